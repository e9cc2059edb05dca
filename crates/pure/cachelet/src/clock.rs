//! What time it is, for a store that reads no clock.

use mbal_model::Seconds;

use crate::shim::{AtomicU32, AtomicU64, Ordering::*};

pub struct Clock {
    /// The latest second that a worker has told of.
    latest: AtomicU32,
    /// Seconds since 1970 at second 0.
    unix_start: AtomicU64,
}

impl Clock {
    pub fn new() -> Clock {
        Clock { latest: AtomicU32::new(0), unix_start: AtomicU64::new(0) }
    }

    /// The latest second of all workers, who may be behind each other: what one has found dead, no other finds alive.
    #[inline(always)]
    pub fn latest(&self, now: Seconds) -> Seconds {
        let latest = self.latest.load(Relaxed);
        if now <= latest { latest } else { self.latest.fetch_max(now, Relaxed).max(now) }
    }

    pub fn starts_at(&self, unix: u64) {
        self.unix_start.store(unix, Relaxed);
    }

    pub fn unix_at(&self, now: Seconds) -> u64 {
        self.unix_start.load(Relaxed) + u64::from(now)
    }
}
