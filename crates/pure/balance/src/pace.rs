//! How fast cachelets leave a server: what a move costs goes by how long it lasts.

use std::collections::BTreeMap;

use mbal_model::{Move, ServerId};

/// Until one has been seen to arrive.
const BYTES_A_SECOND: f64 = (16 << 20) as f64;
/// The newest sample's part.
const NEWEST: f64 = 0.2;
/// Slower than this is a move that does not get on.
const LEAST: f64 = (1 << 20) as f64;

/// Of a whole cluster's servers, on average.
pub(crate) struct Pace(f64);

impl Default for Pace {
    fn default() -> Pace {
        Pace(BYTES_A_SECOND)
    }
}

impl Pace {
    /// An epoch of a second: what has left each server, and what is on its way still. Who has nothing left to send might have sent more.
    pub fn observe(&mut self, arrived: &BTreeMap<ServerId, u64>, under_way: &[Move]) {
        let mut senders: Vec<ServerId> = under_way.iter().map(|step| step.from.server).collect();
        senders.sort_unstable();
        senders.dedup();
        for (server, bytes) in arrived.iter().filter(|(_, bytes)| **bytes > 0) {
            let (bytes, is_busy) = (*bytes as f64, senders.binary_search(server).is_ok());
            if is_busy || bytes > self.0 {
                self.0 += NEWEST * (bytes - self.0);
            }
        }
        for _ in senders.iter().filter(|server| !arrived.contains_key(server)) {
            self.0 -= NEWEST * self.0 / 2.0;
        }
        self.0 = self.0.max(LEAST);
    }

    pub fn bytes_a_second(&self) -> f64 {
        self.0
    }
}
