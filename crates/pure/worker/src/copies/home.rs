//! A key of this server that has copies elsewhere.

use mbal_model::Instant;
use mbal_replica::Home;

use crate::copies::worth::Ledger;

/// A key that has copies.
pub(crate) struct HomeKey {
    pub key: Box<[u8]>,
    pub home: Home,
    /// Until every batch is over in which somebody could have found that it has none, nobody is told of what it is.
    pub stamp: Option<u64>,
    pub since: Instant,
    /// Requests a second at the last look, those that copies have answered included.
    pub reads: f64,
    pub writes: f64,
    pub value_bytes: u32,
    /// Answered by copies since the last look; and their average a second.
    pub answered: u64,
    pub elsewhere: f64,
    /// Writes that were executed since the last look.
    pub written: u64,
    pub ledger: Ledger,
    /// Looks at which it was not hot any more, one after the other.
    pub cool: u32,
}

impl HomeKey {
    pub fn cools(&mut self) {
        self.home.cools();
    }
}
