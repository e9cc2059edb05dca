//! How a lease is counted by who holds it, and by who waits for its end. The arithmetic of leases is here, and nowhere else.

use std::time::Duration;

use mbal_model::Instant;
use mbal_model::planted::{Fault, is_planted};

/// The part of a lease that is left to clocks that run apart: one in so many.
const DRIFT: u32 = 10;

/// Until when its holder may count on it. It counts from before it was asked for, and leaves a part to clocks that run apart.
pub(crate) fn held_until(now: Instant, sent: Instant, lasts: Duration) -> Instant {
    let from = if is_planted(Fault::LeaseFromItsAnswer) { now } else { sent };
    let kept = if is_planted(Fault::LeaseToItsEnd) { Duration::ZERO } else { lasts / DRIFT };
    from + (lasts - kept)
}

/// How long somebody else waits after the last moment at which it may have been renewed: then its holder counts on it no more.
pub fn over_after(lasts: Duration) -> Duration {
    lasts + lasts / DRIFT
}

/// A renewal that counts when a look has shown the holder's key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Renewal {
    pub until: Instant,
    /// etcd's own leader at that time. One that another has replaced may renew for some time, and nobody knows of it.
    pub raft_term: u64,
}

impl Renewal {
    /// True if it counts by a look that was answered in this term of etcd's.
    pub fn counts(&self, raft_term: u64) -> bool {
        self.raft_term == raft_term || is_planted(Fault::RenewedByAnyone)
    }
}
