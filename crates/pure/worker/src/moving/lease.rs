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

use mbal_model::Instant;

/// Nobody asks for a lease: what is here is owned for ever.
const NONE: u64 = u64::MAX;

/// Until when this server owns what is here, in nanoseconds by the clock of [`crate::Worker::look_at_lease`].
pub(crate) struct Lease(AtomicU64);

impl Default for Lease {
    fn default() -> Lease {
        Lease(AtomicU64::new(NONE))
    }
}

impl Lease {
    pub fn own_until(&self, until: Instant) {
        self.0.store(until.as_nanos().min(NONE - 1), Release);
    }

    #[inline]
    pub fn is_there(&self) -> bool {
        self.0.load(Acquire) != NONE
    }

    #[inline]
    pub fn is_over(&self, now: Instant) -> bool {
        self.0.load(Acquire) <= now.as_nanos()
    }
}
