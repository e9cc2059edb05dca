//! A key of this server that has copies elsewhere.

use std::time::Duration;

use mbal_balance::hot::Upkeep;
use mbal_model::Instant;
use mbal_replica::Home;

/// A key that has copies.
pub(crate) struct HomeKey {
    pub key: Box<[u8]>,
    pub home: Home,
    /// Until every batch is over in which somebody could have found that it has none, nobody is told of what it is.
    pub stamp: Option<u64>,
    pub since: Instant,
    pub upkeep: Upkeep,
    pub value_bytes: u32,
    /// Answered by copies since the last look.
    pub answered: u64,
    /// Writes that were executed since the last look.
    pub written: u64,
    /// For how long writes have waited for copies since the last look.
    pub waited: Duration,
}

impl HomeKey {
    pub fn cools(&mut self) {
        self.home.cools();
    }
}
