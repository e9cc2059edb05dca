//! A server that owns by a lease: other threads renew it, and workers look at it before each event.
//!
//! ```text
//!   the lease lasts ──► over: all that is here is nobody's ──► fenced off: moves end, cachelets are dropped ──► owns anew, by a newer map
//! ```
//! A process that was stopped goes on with events that had arrived before; it finds its lease over before it serves the next one.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Release},
};

use mbal_migration::{Incarnation, destination, source};
use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Instant, WorkerId};

use crate::Now;
use crate::moves::Side;
use crate::shared::Shared;
use crate::worker::Worker;

/// Nobody asks for a lease: what is here is owned for ever.
const NONE: u64 = u64::MAX;

/// Until when this server owns what is here, in nanoseconds by the clock of [`Worker::look_at_lease`].
pub(crate) struct Lease(AtomicU64);

impl Default for Lease {
    fn default() -> Lease {
        Lease(AtomicU64::new(NONE))
    }
}

impl Shared {
    /// This server owns what is here before that moment, and never then, by a clock that goes on while the machine sleeps. Zero: it
    /// owns nothing.
    pub fn own_until(&self, until: Instant) {
        self.lease.0.store(until.as_nanos().min(NONE - 1), Release);
    }

    /// It owns by a lease, so workers have to look at it.
    #[inline]
    pub fn owns_by_lease(&self) -> bool {
        self.lease.0.load(Acquire) != NONE
    }

    /// Gives up all that is here, since the lease is over: moves end, cachelets are dropped. To be called until nothing is left, which is
    /// `None`; else whom to tell that there is something to carry. Not in a batch.
    pub fn fence_off(&self, now: Now) -> Option<Vec<WorkerId>> {
        // No move begins any more.
        self.set_incarnation(Incarnation(0));
        self.give_to_nobody();
        let mut wake = Vec::new();
        for one in self.moves_here() {
            let has_ended = match &mut one.lock().side {
                Side::Leaves(leaver) => {
                    let heard = leaver.source.handle(Instant::ZERO, source::Event::HandedOver);
                    heard.expect("a map is no answer");
                    leaver.source.is_over()
                }
                Side::Comes(arriver) => {
                    let heard = arriver.destination.handle(destination::Event::Ended);
                    heard.expect("a word is no message");
                    false
                }
            };
            match has_ended {
                true => self.move_has_ended(one.id),
                false => wake.push(one.worker),
            }
        }
        self.settle(now.second);
        let is_left = self.moves_under_way() > 0 || !self.store.prefixes().is_empty();
        is_left.then_some(wake)
    }
}

impl Worker {
    /// Before each event that came later than this moment was read: whether what is here may be served.
    #[inline]
    pub fn look_at_lease(&mut self, now: Instant) {
        self.lapsed = self.shared.lease.0.load(Acquire) <= now.as_nanos()
            && !is_planted(Fault::ServesWithoutLease);
        self.lease_now = now;
    }
}
