//! The clock of a server.

use mbal_model::Instant;

use crate::sys;

/// Monotonic time since the clock was made, in nanoseconds. It goes on while the machine sleeps: what other servers may take for failed
/// by then is not executed when it wakes up.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin_ns: u64,
}

impl Clock {
    pub fn start() -> Clock {
        Clock { origin_ns: sys::boot_ns() }
    }

    #[inline]
    pub fn now_ns(&self) -> u64 {
        sys::boot_ns() - self.origin_ns
    }

    #[inline]
    pub fn now(&self) -> Instant {
        Instant::from_nanos(self.now_ns())
    }

    /// What other servers are told of it.
    pub fn now_us(&self) -> u64 {
        self.now_ns() / 1_000
    }
}

/// Time since it was made, by a clock that goes on while the machine sleeps: for leases that others count as well.
#[derive(Clone, Copy, Debug)]
pub struct LeaseClock {
    origin_ns: u64,
}

impl LeaseClock {
    pub fn start() -> LeaseClock {
        LeaseClock { origin_ns: sys::boot_ns() }
    }

    pub fn now(&self) -> Instant {
        Instant::from_nanos(sys::boot_ns() - self.origin_ns)
    }
}
