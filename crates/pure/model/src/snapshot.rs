//! What planners read, and what they return.

use crate::{Owner, Prefix};

/// One cachelet in one epoch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheletLoad {
    pub cachelet: Prefix,
    /// Fraction of its worker's time that leaves with it when it moves.
    pub load: f64,
    pub bytes: u64,
    /// It stays: it moved so recently that moving it again would be restlessness; or, between servers, a key of it has copies.
    pub pinned: bool,
}

/// How a worker served in one epoch: what shows an overload, and what makes workers comparable. The default is that nothing is known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Service {
    /// Requests that stood ready before they were served, on average over the epoch's time. `None`: nobody has measured it.
    pub waiting: Option<f64>,
    /// Work in a second in which it ran or was ready to run; the unit is the same for all workers of a cluster. 0: unknown, and
    /// taken for the others' average.
    pub capacity: f64,
    /// Of that second, the part in which it ran: little under a quota that is used up. `None`: nobody has measured it.
    pub part: Option<f64>,
    /// Keys that it was asked for, and the turns in which they came: chance goes by the one, and both tell of batches. 0 turns: unknown.
    pub keys: u64,
    pub turns: u64,
}

/// What counts as waiting where nobody measures it: at most so many requests.
const WAITING_MAX: f64 = 50.0;

/// Requests that stand ready at a load, on average, if they are as long as each other and come by chance (M/D/1).
pub fn waiting_at(load: f64) -> f64 {
    let load = load.clamp(0.0, 1.0);
    (load * load / (2.0 * (1.0 - load))).min(WAITING_MAX)
}

/// One worker in one epoch.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerLoad {
    pub at: Owner,
    pub service: Service,
    /// Fraction of time for what no plan can move: sockets, parsing, forwarding.
    pub fixed: f64,
    pub bytes_max: u64,
    pub cachelets: Vec<CacheletLoad>,
}

impl WorkerLoad {
    /// Fraction of time in which it ran or was ready to run; 1.0 is saturated.
    pub fn load(&self) -> f64 {
        self.fixed + self.cachelets.iter().map(|cachelet| cachelet.load).sum::<f64>()
    }

    /// Requests that stood ready, on average. What nobody has measured is as the load says.
    pub fn waiting(&self) -> f64 {
        self.service.waiting.unwrap_or_else(|| waiting_at(self.load()))
    }

    pub fn bytes(&self) -> u64 {
        self.cachelets.iter().map(|cachelet| cachelet.bytes).sum()
    }
}

/// Loads at the end of an epoch: of one server in phase 2, of the cluster in phase 3.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    pub workers: Vec<WorkerLoad>,
}

/// One cachelet changes its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Move {
    pub cachelet: Prefix,
    pub from: Owner,
    pub to: Owner,
}
