//! What the workers of one server share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed};

use mbal_cachelet::Store;
use mbal_locks::{Mutex, MutexGuard, ranks};
use mbal_model::Seconds;
use mbal_model::planted::{Fault, is_planted};

use crate::copies::Copies;
use crate::forwarding::flush::NewestFlush;
use crate::moving::followed::FollowedMap;
use crate::moving::hurry::Hurry;
use crate::moving::lease::Lease;
use crate::moving::moves::Moves;
use crate::moving::quota::CpuBudget;
use crate::observing::chores::StepTimes;
use crate::observing::conns::Conns;
use crate::observing::counted::Counted;
use crate::observing::counters::{ClassCounters, Counters};
use crate::observing::details::Details;
use crate::observing::distances::Distances;
use crate::observing::hot::{Hot, HotTrackers};
use crate::observing::latency::Latency;
use crate::observing::links_up::LinksUp;
use crate::observing::log::WatchLog;
use crate::passwords::Authenticator;
use crate::settings::{Echoed, Settings};

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

/// What commands change.
pub(crate) struct Tuned {
    /// Of [`Settings::echoed`].
    pub echoed: Mutex<ranks::Echoed, Echoed>,
    pub crawler_enabled: AtomicBool,
    /// `-m`, or what `cache_memlimit` made of it.
    pub memory_bytes: AtomicU64,
    /// Walks of the crawler under way.
    pub crawls: AtomicU64,
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
    pub(crate) tuned: Tuned,
    pub(crate) counted: Counted,
    pub(crate) hot: HotTrackers,
    /// None if they are not to be known.
    pub(crate) distances: Option<Distances>,
    pub(crate) map: FollowedMap,
    pub(crate) moves: Moves,
    pub(crate) links_up: LinksUp,
    pub(crate) lease: Lease,
    pub(crate) copies: Copies,
    pub(crate) newest_flush: NewestFlush,
    /// The moment from which ages count that were told last, and its number; 0 is none.
    pub(crate) reference: Mutex<ranks::Reference, (u32, Seconds)>,
    pub(crate) hurry: Hurry,
    pub(crate) cpu_budget: CpuBudget,
}

impl Shared {
    pub fn new(settings: Settings, store: Store) -> Shared {
        let gauges = Gauges { accepting: AtomicU64::new(1), ..Gauges::default() };
        gauges.verbosity.store(u64::from(settings.verbosity), Relaxed);
        let log = WatchLog::new(settings.workers, (settings.watcher_kib as usize) << 10);
        log.set_verbosity(settings.verbosity);
        Shared {
            store,
            gauges,
            conns: Conns::default(),
            log,
            authenticator: None,
            details: Details::new(settings.delimiter),
            tuned: Tuned {
                echoed: Mutex::new(settings.echoed.clone()),
                crawler_enabled: AtomicBool::new(settings.crawler_enabled),
                memory_bytes: AtomicU64::new(settings.memory_bytes),
                crawls: AtomicU64::new(0),
            },
            counted: Counted::new(settings.workers),
            hot: HotTrackers::new(settings.workers),
            distances: settings.stack_distances.then(Distances::new),
            map: FollowedMap::default(),
            moves: Moves::default(),
            links_up: LinksUp::default(),
            lease: Lease::default(),
            copies: Copies::new(settings.workers),
            newest_flush: NewestFlush::default(),
            reference: Mutex::default(),
            hurry: Hurry::default(),
            cpu_budget: CpuBudget::default(),
            settings,
        }
    }

    /// `-m`, or what `cache_memlimit` made of it, in bytes.
    pub fn memory_limit(&self) -> u64 {
        self.tuned.memory_bytes.load(Relaxed)
    }

    /// Who lets clients in, if the settings ask them to log in; without one nobody comes in.
    pub fn guarded_by(mut self, authenticator: Arc<Authenticator>) -> Shared {
        self.authenticator = Some(authenticator);
        self
    }

    pub(crate) fn counters(&self, worker: usize) -> &Counters {
        &self.counted.workers[if is_planted(Fault::CountersAreOne) { 0 } else { worker }]
    }

    pub(crate) fn all_counters(&self) -> &[Counters] {
        &self.counted.workers
    }

    pub(crate) fn class_counters(&self, worker: usize) -> &[ClassCounters] {
        &self.counted.classes[worker]
    }

    pub(crate) fn latency(&self, worker: usize) -> &Latency {
        &self.counted.latency[worker]
    }

    pub(crate) fn steps(&self, worker: usize) -> &StepTimes {
        &self.counted.steps[worker]
    }

    pub(crate) fn hot(&self, worker: usize) -> MutexGuard<'_, ranks::Hot, Hot> {
        self.hot.of(worker)
    }
}
