//! The clock of a server.

use crate::sys;

/// Monotonic time since the clock was made, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin_ns: u64,
}

impl Clock {
    pub fn start() -> Clock {
        Clock { origin_ns: sys::monotonic_ns() }
    }

    #[inline]
    pub fn now_ns(&self) -> u64 {
        sys::monotonic_ns() - self.origin_ns
    }
}
