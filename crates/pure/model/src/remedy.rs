//! The ledger of balance between servers: what is to take which load from whom, and what came of it.

use crate::{Move, Owner, Prefix};

/// What was ordered for one worker, which has more than its part of the work. Parts are shares of the work / shares of the capacity.
#[derive(Clone, Debug, PartialEq)]
pub struct Remedy {
    pub at: Owner,
    /// Its part when it was seen, and what is to be left of it.
    pub seen: f64,
    pub expected: f64,
    /// Of its time: all that it did, and of that what stays with its connections.
    pub load: f64,
    pub fixed: f64,
    pub moves: Vec<Relief>,
    /// It is the split of this cachelet. The parts are its own then, and that of its heaviest part afterwards.
    pub split: Option<Prefix>,
    /// Its part when it was judged, and what that says.
    pub came: Option<(f64, Came)>,
    /// How often in a row remedies for this worker have not come true, up to now.
    pub vain: u32,
}

/// A cachelet that leaves for a worker's sake, or comes in exchange.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Relief {
    pub step: Move,
    /// By how much that lightens the worker; below 0 of what comes.
    pub relief: f64,
    /// What its destination had of its part before.
    pub taker_had: f64,
}

/// What came of a remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came {
    True,
    /// Its like is tried less often.
    Short,
    /// It is undone, and its like is tried less often.
    Worse,
}
