//! What the workers of one server share.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

use mbal_cachelet::{Store, StoreStats};
use mbal_model::Seconds;
use mbal_wire::Login;

use crate::counters::{Counters, Sums};
use crate::details::Details;
use crate::hot::{Hot, HotKey, WATCHED_SECONDS, hottest};
use crate::latency::{Histograms, Latency};
use crate::load::CacheletWork;
use crate::login::Doorkeeper;

/// What the operator chose; `stats settings` tells it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What `version` answers: the memcached whose protocol this is.
    pub version: &'static str,
    /// `-m`, bytes.
    pub memory_bytes: u64,
    /// `-c`.
    pub connections_max: u32,
    pub tcp_port: u16,
    /// `-U`; 0 is none.
    pub udp_port: u16,
    /// `-l`; `None` is all interfaces.
    pub interface: Option<String>,
    /// `-s`.
    pub socket_path: Option<String>,
    /// `-v`, 0 to 3; `verbosity` changes [`Gauges::verbosity`].
    pub verbosity: u32,
    /// `-t`.
    pub workers: u16,
    /// `-I`, bytes.
    pub item_bytes_max: usize,
    /// False for `-M`.
    pub evict: bool,
    /// `-R`: so many requests of one connection are executed before others get their turn.
    pub requests_per_event: u32,
    /// `-b`.
    pub backlog: u32,
    /// False for `-F`.
    pub flush_enabled: bool,
    /// `-A`.
    pub shutdown_enabled: bool,
    /// `--worker-ports`: where each worker listens; none without.
    pub worker_addresses: Vec<SocketAddr>,
    /// `-B`.
    pub protocol: Protocol,
    /// `-S`: a binary client logs in first.
    pub sasl: bool,
    /// `-Y`: a text client logs in first, with what is in this file.
    pub auth_file: Option<String>,
    /// The share of requests that is looked at for `stats hot`, 0 to 1.
    pub hot_sample: f64,
}

/// What a connection speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// Its first byte decides.
    #[default]
    Auto,
    Text,
    Binary,
}

impl Protocol {
    /// As `stats settings` names it.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Auto => "auto-negotiate",
            Protocol::Text => "ascii",
            Protocol::Binary => "binary",
        }
    }
}

impl Settings {
    pub(crate) fn login(&self) -> Login {
        if self.sasl || self.auth_file.is_some() { Login::Needed } else { Login::NotAsked }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            version: "1.6.18",
            memory_bytes: 64 << 20,
            connections_max: 1024,
            tcp_port: 11211,
            udp_port: 0,
            interface: None,
            socket_path: None,
            verbosity: 0,
            workers: 1,
            item_bytes_max: 1 << 20,
            evict: true,
            requests_per_event: 512,
            backlog: 1024,
            flush_enabled: true,
            shutdown_enabled: false,
            worker_addresses: Vec::new(),
            protocol: Protocol::Auto,
            sasl: false,
            auth_file: None,
            hot_sample: 0.03,
        }
    }
}

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
}

/// One server: its items, its settings and what its workers have counted.
pub struct Server {
    pub store: Store,
    pub settings: Settings,
    pub gauges: Gauges,
    pub(crate) details: Details,
    pub(crate) doorkeeper: Option<Arc<Doorkeeper>>,
    counters: Box<[Counters]>,
    latency: Box<[Latency]>,
    hot: Box<[Mutex<Hot>]>,
    /// Until then somebody watches the hottest keys.
    watched_until: AtomicU32,
    pub(crate) cachelet_work: Box<[CacheletWork]>,
    /// The balancer's epochs so far.
    pub(crate) epoch: AtomicU64,
    /// What `stats reset` subtracts: counters are their workers' to write.
    reset: Mutex<(Totals, Histograms)>,
}

/// What is counted over the whole server.
#[derive(Clone, Copy, Default)]
pub(crate) struct Totals {
    pub sums: Sums,
    /// Gauges and counters both.
    pub store: StoreStats,
    pub total_connections: u64,
    pub rejected_connections: u64,
}

impl Server {
    pub fn new(settings: Settings, store: Store) -> Server {
        let workers = 0..settings.workers;
        let counters = workers.clone().map(|_| Counters::default()).collect();
        let latency = workers.clone().map(|_| Latency::default()).collect();
        let hot = workers.map(|_| Mutex::default()).collect();
        let watched_until = AtomicU32::new(0);
        let gauges = Gauges::default();
        gauges.verbosity.store(u64::from(settings.verbosity), Relaxed);
        let (details, reset) = (Details::default(), Mutex::default());
        let cachelet_work = (0..store.cachelets_max()).map(|_| CacheletWork::default()).collect();
        let epoch = AtomicU64::new(0);
        Server {
            store,
            settings,
            gauges,
            details,
            doorkeeper: None,
            counters,
            latency,
            hot,
            watched_until,
            cachelet_work,
            epoch,
            reset,
        }
    }

    /// Who lets clients in, if the settings ask them to log in; without one nobody comes in.
    pub fn guarded_by(mut self, doorkeeper: Arc<Doorkeeper>) -> Server {
        self.doorkeeper = Some(doorkeeper);
        self
    }

    pub(crate) fn counters(&self, worker: usize) -> &Counters {
        &self.counters[worker]
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
        let then = self.reset.lock().expect("nothing panics with it held");
        self.latencies_ever().since(&then.1)
    }

    pub fn latencies_ever(&self) -> Histograms {
        let mut histograms = Histograms::default();
        self.latency.iter().for_each(|latency| latency.add_to(&mut histograms));
        histograms
    }

    pub(crate) fn hot(&self, worker: usize) -> MutexGuard<'_, Hot> {
        self.hot[worker].lock().expect("nothing panics with it held")
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

    /// The share of requests to look at now. The sampler knows no rate of 0, but one that no server
    /// lives to see chosen.
    pub(crate) fn hot_sample(&self, second: Seconds) -> f64 {
        match self.settings.hot_sample {
            0.0 => 1e-9,
            _ if second <= self.watched_until.load(Relaxed) => 1.0,
            share => share,
        }
    }

    /// What one worker has counted since the start.
    pub fn sums_of(&self, worker: usize) -> Sums {
        let mut sums = Sums::default();
        self.counters[worker].add_to(&mut sums);
        sums
    }

    fn totals(&self) -> Totals {
        let mut sums = Sums::default();
        self.counters.iter().for_each(|counters| counters.add_to(&mut sums));
        Totals {
            sums,
            store: self.store.stats(),
            total_connections: self.gauges.total_connections.load(Relaxed),
            rejected_connections: self.gauges.rejected_connections.load(Relaxed),
        }
    }

    pub(crate) fn since_reset(&self) -> Totals {
        let mut now = self.totals();
        let then = self.reset.lock().expect("nothing panics with it held");
        let then = &then.0;
        now.sums = now.sums.since(&then.sums);
        now.total_connections -= then.total_connections;
        now.rejected_connections -= then.rejected_connections;
        let (store, old) = (&mut now.store, &then.store);
        store.total_items -= old.total_items;
        store.evictions -= old.evictions;
        store.evicted_unfetched -= old.evicted_unfetched;
        store.expired -= old.expired;
        store.expired_unfetched -= old.expired_unfetched;
        now
    }

    /// `stats reset`.
    pub(crate) fn reset(&self) {
        *self.reset.lock().expect("nothing panics with it held") =
            (self.totals(), self.latencies_ever());
        self.details.clear();
    }
}
