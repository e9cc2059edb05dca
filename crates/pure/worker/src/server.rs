//! What the workers of one server share.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use mbal_cachelet::{Store, StoreStats};
use mbal_wire::Login;

use crate::counters::{Counters, Sums};
use crate::details::Details;
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
    /// What `stats reset` subtracts: counters are their workers' to write.
    reset: Mutex<Totals>,
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
        let counters = (0..settings.workers).map(|_| Counters::default()).collect();
        let gauges = Gauges::default();
        gauges.verbosity.store(u64::from(settings.verbosity), Relaxed);
        let (details, reset) = (Details::default(), Mutex::default());
        Server { store, settings, gauges, details, doorkeeper: None, counters, reset }
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
        *self.reset.lock().expect("nothing panics with it held") = self.totals();
        self.details.clear();
    }
}
