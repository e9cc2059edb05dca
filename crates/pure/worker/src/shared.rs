//! What the workers of one server share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::Relaxed};

use mbal_cachelet::{ClassStats, Classes, Store, StoreStats};
use mbal_locks::{Mutex, MutexGuard, ranks};
use mbal_model::{CLASSES, Key, Prefix, Seconds, WorkerId};

use crate::conns::Conns;
use crate::copies::Copies;
use crate::counters::{ClassCounters, ClassSums, Counters, Sums};
use crate::details::Details;
use crate::distances::Distances;
use crate::everywhere::Newest;
use crate::following::Following;
use crate::hot::{Heat, Hot, HotKey, WATCHED_SECONDS, hottest};
use crate::latency::{Histograms, Latency};
use crate::lease::Lease;
use crate::log::WatchLog;
use crate::login::Authenticator;
use crate::moves::Moves;
use crate::quota::CpuBudget;
use crate::selection::{Hurry, Reference};
use crate::settings::{Echoed, Settings};
use crate::stats_cluster::LinksUp;

/// What only the process knows: written by the driver at any time, read by `stats`.
#[derive(Default)]
pub struct Gauges {
    pub pid: AtomicU64,
    pub pointer_bits: AtomicU64,
    /// CPU time, in microseconds.
    pub user_us: AtomicU64,
    pub system_us: AtomicU64,
    pub curr_connections: AtomicU64,
    pub total_connections: AtomicU64,
    pub rejected_connections: AtomicU64,
    pub listen_disabled: AtomicU64,
    pub verbosity: AtomicU64,
    /// The second in which certificates were read.
    pub certs_read: AtomicU64,
    /// TLS handshakes that failed, and those that took up no earlier session.
    pub handshake_errors: AtomicU64,
    /// TLS that broke after its handshake.
    pub tls_errors: AtomicU64,
    /// Seconds by which `debugtime` has moved the clock; the driver adds them to the time of every event.
    pub time_shift: AtomicI32,
    pub new_sessions: AtomicU64,
    /// Descriptors that are not clients'.
    pub reserved_fds: AtomicU64,
    /// 0 while new connections are left waiting.
    pub accepting: AtomicU64,
    /// How long they were, in microseconds.
    pub listen_disabled_us: AtomicU64,
}

/// One server: its items, its settings and what its workers have counted.
pub struct Shared {
    pub store: Store,
    pub settings: Settings,
    pub gauges: Gauges,
    pub conns: Conns,
    pub(crate) log: WatchLog,
    pub(crate) details: Details,
    pub(crate) authenticator: Option<Arc<Authenticator>>,
    /// What commands may change of [`Settings::echoed`].
    pub(crate) echoed: Mutex<ranks::Echoed, Echoed>,
    pub(crate) crawler_enabled: AtomicBool,
    /// `-m`, or what `cache_memlimit` made of it.
    pub(crate) memory_bytes: AtomicU64,
    /// Walks of the crawler under way.
    pub(crate) crawls: AtomicU64,
    counters: Box<[Counters]>,
    latency: Box<[Latency]>,
    hot: Box<[Mutex<ranks::Hot, Hot>]>,
    /// None if they are not to be known.
    pub(crate) distances: Option<Distances>,
    /// Until then somebody watches the hottest keys.
    watched_until: AtomicU32,
    /// The balancer's epochs so far.
    pub(crate) epoch: AtomicU64,
    pub(crate) following: Following,
    pub(crate) moves: Moves,
    pub(crate) links_up: LinksUp,
    pub(crate) lease: Lease,
    pub(crate) copies: Copies,
    pub(crate) newest_flush: Mutex<ranks::NewestFlush, Newest>,
    pub(crate) reference: Reference,
    pub(crate) hurry: Hurry,
    pub(crate) cpu_budget: CpuBudget,
    /// The store is not yet as the map says.
    pub(crate) unsettled: AtomicBool,
    /// By the newest map that any worker has heard of: its version, and whether no cachelet of it is another server's.
    pub(crate) map_version: AtomicU64,
    pub(crate) alone: AtomicBool,
    class_counters: Box<[Box<[ClassCounters]>]>,
    /// What `stats reset` subtracts: counters are their workers' to write. Locked before they are read: what is
    /// subtracted must not be younger than what it is subtracted from.
    reset: Mutex<ranks::Reset, (Totals, Histograms)>,
}

/// What is counted over the whole server.
#[derive(Clone)]
pub(crate) struct Totals {
    pub sums: Sums,
    pub classes: Box<[ClassSums; CLASSES]>,
    pub class_stats: Box<Classes>,
    /// Gauges and counters both.
    pub store: StoreStats,
    pub total_connections: u64,
    pub rejected_connections: u64,
    pub log: [u64; 3],
}

impl Default for Totals {
    fn default() -> Totals {
        Totals {
            sums: Sums::default(),
            classes: Box::new([ClassSums::default(); CLASSES]),
            class_stats: Box::new([ClassStats::default(); CLASSES]),
            store: StoreStats::default(),
            total_connections: 0,
            rejected_connections: 0,
            log: [0; 3],
        }
    }
}

impl Shared {
    pub fn new(settings: Settings, store: Store) -> Shared {
        let gauges = Gauges { accepting: AtomicU64::new(1), ..Gauges::default() };
        gauges.verbosity.store(u64::from(settings.verbosity), Relaxed);
        let log = WatchLog::new(settings.workers, (settings.watcher_kib as usize) << 10);
        log.set_verbosity(settings.verbosity);
        let epoch = AtomicU64::new(0);
        let classes = || (0..CLASSES).map(|_| ClassCounters::default()).collect();
        Shared {
            store,
            gauges,
            conns: Conns::default(),
            log,
            authenticator: None,
            details: Details::new(settings.delimiter),
            echoed: Mutex::new(settings.echoed.clone()),
            crawler_enabled: AtomicBool::new(settings.crawler_enabled),
            memory_bytes: AtomicU64::new(settings.memory_bytes),
            crawls: AtomicU64::new(0),
            counters: (0..settings.workers).map(|_| Counters::default()).collect(),
            class_counters: (0..settings.workers).map(|_| classes()).collect(),
            latency: (0..settings.workers).map(|_| Latency::default()).collect(),
            hot: (0..settings.workers).map(|_| Mutex::default()).collect(),
            distances: settings.stack_distances.then(Distances::new),
            watched_until: AtomicU32::new(0),
            epoch,
            following: Following::default(),
            moves: Moves::default(),
            links_up: LinksUp::default(),
            lease: Lease::default(),
            copies: Copies::new(settings.workers),
            newest_flush: Mutex::default(),
            reference: Reference::default(),
            hurry: Hurry::default(),
            cpu_budget: CpuBudget::default(),
            unsettled: AtomicBool::new(false),
            map_version: AtomicU64::new(1),
            alone: AtomicBool::new(true),
            reset: Mutex::default(),
            settings,
        }
    }

    /// `-m`, or what `cache_memlimit` made of it, in bytes.
    pub fn memory_limit(&self) -> u64 {
        self.memory_bytes.load(Relaxed)
    }

    /// Who lets clients in, if the settings ask them to log in; without one nobody comes in.
    pub fn guarded_by(mut self, authenticator: Arc<Authenticator>) -> Shared {
        self.authenticator = Some(authenticator);
        self
    }

    pub(crate) fn counters(&self, worker: usize) -> &Counters {
        &self.counters[worker]
    }

    pub(crate) fn class_counters(&self, worker: usize) -> &[ClassCounters] {
        &self.class_counters[worker]
    }

    /// What all workers counted since the start or the last `stats reset`.
    pub fn sums(&self) -> Sums {
        self.since_reset().sums
    }

    pub(crate) fn latency(&self, worker: usize) -> &Latency {
        &self.latency[worker]
    }

    /// Latencies since the start or the last `stats reset`, over all workers.
    pub fn latencies(&self) -> Histograms {
        let then = self.reset.lock();
        self.latencies_ever().since(&then.1)
    }

    pub fn latencies_ever(&self) -> Histograms {
        let mut histograms = Histograms::default();
        self.latency.iter().for_each(|latency| latency.add_to(&mut histograms));
        histograms
    }

    pub(crate) fn hot(&self, worker: usize) -> MutexGuard<'_, ranks::Hot, Hot> {
        self.hot[worker].lock()
    }

    /// The keys with the most requests in the last second. Who asks is taken to watch for a while.
    pub fn hottest(&self, count: usize, second: Seconds) -> Vec<HotKey> {
        self.watched_until.store(second + WATCHED_SECONDS, Relaxed);
        let mut all = BTreeMap::new();
        for (worker, counters) in self.counters.iter().enumerate() {
            self.hot(worker).add_to(&mut all, second, counters.keyed());
        }
        hottest(all, count)
    }

    /// By cachelet, estimates of its requests ever, and in the last second.
    pub fn cachelet_requests(&self, second: Seconds) -> BTreeMap<Prefix, (f64, f64)> {
        let present = self.store.prefixes().into_iter();
        let mut all = present.map(|prefix| (prefix, (0.0, 0.0))).collect();
        for (worker, counters) in self.counters.iter().enumerate() {
            self.hot(worker).add_cachelets_to(&mut all, second, counters.keyed());
        }
        all
    }

    /// What each worker was asked for in the last second: of a cachelet, and of a key. Who asks is taken to watch for
    /// a while.
    pub fn heat(&self, cachelet: Prefix, key: Option<&Key<'_>>, second: Seconds) -> Vec<Heat> {
        self.watched_until.store(second + WATCHED_SECONDS, Relaxed);
        let heat = |(worker, counters): (usize, &Counters)| {
            self.hot(worker).heat(cachelet, key, second, counters.keyed())
        };
        self.counters.iter().enumerate().map(heat).collect()
    }

    /// The share of requests to look at now. The sampler knows no rate of 0, but one that no server
    /// lives to see chosen.
    pub(crate) fn hot_sample(&self, second: Seconds, worker: WorkerId) -> f64 {
        match self.settings.hot_sample {
            0.0 => 1e-9,
            _ if second <= self.watched_until.load(Relaxed) => 1.0,
            share => self.copies.sample(worker.0).map_or(share, |more| more.max(share)),
        }
    }

    /// What one worker has counted since the start.
    pub fn sums_of(&self, worker: usize) -> Sums {
        let mut sums = Sums::default();
        self.counters[worker].add_to(&mut sums);
        sums
    }

    /// What all workers counted since the start.
    pub(crate) fn sums_ever(&self) -> Sums {
        let mut sums = Sums::default();
        self.counters.iter().for_each(|counters| counters.add_to(&mut sums));
        sums
    }

    fn totals(&self) -> Totals {
        let mut totals = Totals { sums: self.sums_ever(), ..Totals::default() };
        for classes in &self.class_counters {
            for (counters, sums) in classes.iter().zip(totals.classes.iter_mut()) {
                counters.add_to(sums);
            }
        }
        Totals {
            store: self.store.stats(),
            total_connections: self.gauges.total_connections.load(Relaxed),
            rejected_connections: self.gauges.rejected_connections.load(Relaxed),
            log: [&self.log.written, &self.log.skipped, &self.log.sent]
                .map(|one| one.load(Relaxed)),
            ..totals
        }
    }

    pub(crate) fn since_reset(&self) -> Totals {
        let then = &self.reset.lock().0;
        let mut now = self.totals();
        now.sums = now.sums.since(&then.sums);
        now.total_connections -= then.total_connections;
        now.rejected_connections -= then.rejected_connections;
        let (store, old) = (&mut now.store, &then.store);
        store.total_items -= old.total_items;
        store.evictions -= old.evictions;
        store.evicted_unfetched -= old.evicted_unfetched;
        store.expired -= old.expired;
        store.expired_unfetched -= old.expired_unfetched;
        for (class, old) in now.classes.iter_mut().zip(then.classes.iter()) {
            *class = class.since(old);
        }
        for (line, old) in now.log.iter_mut().zip(then.log) {
            *line -= old;
        }
        now
    }

    /// The store's statistics by class, counters since the start or the last `stats reset`.
    pub(crate) fn class_stats(&self) -> Box<Classes> {
        let then = &self.reset.lock().0;
        let mut now = self.store.class_stats();
        for (class, old) in now.iter_mut().zip(then.class_stats.iter()) {
            class.evicted -= old.evicted;
            class.evicted_nonzero -= old.evicted_nonzero;
            class.evicted_unfetched -= old.evicted_unfetched;
            class.expired -= old.expired;
            class.expired_unfetched -= old.expired_unfetched;
        }
        now
    }

    /// `stats reset`.
    pub(crate) fn reset(&self) {
        *self.reset.lock() = (
            Totals { class_stats: self.store.class_stats(), ..self.totals() },
            self.latencies_ever(),
        );
        self.details.clear();
    }
}
