//! What the coordinator orders.

use mbal_model::{MoveId, Prefix, WorkerId};

use crate::message::Begin;

pub use mbal_model::MOVES_MAX;

/// One life of a server's process: a random number that it draws at its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

/// Move this cachelet to that process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Given once, by numbers that grow.
    pub id: MoveId,
    pub prefix: Prefix,
    pub source: Incarnation,
    pub destination: Incarnation,
    /// Of the destination: who owns it there.
    pub worker: WorkerId,
    /// What the cachelet is born with at the destination, should nothing of it ever come.
    pub generation: u16,
}

impl Order {
    /// What the source begins with, whenever the link has come up. `gone`: the last hash that is gone.
    pub(crate) fn begin(&self, gone: Option<u64>) -> Begin {
        let &Order { prefix, source, destination, worker, generation, .. } = self;
        Begin { prefix, source, destination, worker, generation, gone }
    }
}
