//! What the balancer reads of a server, what it orders, and what it is told of that.

use crate::{Move, Owner, Snapshot};

/// Loads at the end of an epoch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    pub snapshot: Snapshot,
    /// By worker of the snapshot: what of its fixed load are connections that can be handed over.
    pub handable: Vec<f64>,
    /// The store's version when the owners were read.
    pub seen: u64,
}

impl Reading {
    pub fn loads(&self) -> Vec<f64> {
        self.snapshot.workers.iter().map(|worker| worker.load()).collect()
    }
}

/// What the balancer orders of a worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Order {
    /// For the worker `step.from`: lend, unless the owner has changed since `seen`.
    Lend { step: Move, seen: u64 },
    /// For the worker `from`: hand over connections that make up this part of its connections' load; a
    /// single one may be up to `share_max`.
    Lighten { from: Owner, to: Owner, share: f64, share_max: f64 },
}

/// What came of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// The connection is in the middle of something, and goes when that is over.
    Due,
    /// So many connections leave, now or when they are between requests.
    Leaving(u32),
    /// The cachelet is not that worker's, or has left and come back since; the connection is not
    /// there. Nothing was done.
    Stale,
    /// The other worker does not exist, or is this one; or the connection chose its worker. Nothing
    /// was done.
    Refused,
}
