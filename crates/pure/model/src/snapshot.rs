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

/// One worker in one epoch.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerLoad {
    pub at: Owner,
    /// Fraction of time for what no plan can move: sockets, parsing, forwarding.
    pub fixed: f64,
    pub bytes_max: u64,
    pub cachelets: Vec<CacheletLoad>,
}

impl WorkerLoad {
    /// Fraction of time busy, plus backlog; 1.0 is saturated.
    pub fn load(&self) -> f64 {
        self.fixed + self.cachelets.iter().map(|cachelet| cachelet.load).sum::<f64>()
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

/// Moves, and how good they are, so that a bad plan can be seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    pub moves: Vec<Move>,
    /// The objective's value without this plan, and with it. Its unit is the objective's:
    /// moves for equation (1), load for (4) and (8).
    pub objective_before: f64,
    pub objective: f64,
    /// No plan can have a smaller objective than this.
    pub lower_bound: f64,
    /// Load above the permissible, summed over workers, that remains.
    pub excess: f64,
    /// Heavier than any worker may be: split them, or replicate their keys.
    pub too_heavy: Vec<Prefix>,
}

impl Plan {
    /// How far the objective may be from the best, in the objective's unit.
    pub fn gap(&self) -> f64 {
        self.objective - self.lower_bound
    }
}
