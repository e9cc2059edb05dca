//! When the server started, and what time it is since.

use std::time::{SystemTime, UNIX_EPOCH};

use mbal_model::Instant;
use mbal_reactor::{Clock, LeaseClock};
use mbal_worker::Now;

/// When the server started, by both clocks.
#[derive(Clone, Copy)]
pub(crate) struct Started {
    pub(crate) clock: Clock,
    /// That of leases.
    pub(crate) lease_clock: LeaseClock,
    pub(crate) unix: u64,
    /// Nanoseconds of a second that had passed: both clocks' seconds begin together.
    fraction_ns: u64,
    pub(crate) generation: u16,
}

impl Started {
    /// See [`Now::second`].
    pub(crate) const FIRST_SECOND: u64 = 2;

    pub(crate) fn now() -> Started {
        let since_1970 =
            SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970");
        Started {
            clock: Clock::start(),
            lease_clock: LeaseClock::start(),
            unix: since_1970.as_secs(),
            fraction_ns: since_1970.subsec_nanos().into(),
            // Its low 15 bits count. A restart begins with the cas values of the one before only if both fell into the same
            // of 32,768 milliseconds.
            generation: since_1970.as_millis() as u16,
        }
    }

    /// The wall clock is not read again: a step of it moves no deadline.
    #[inline]
    pub(crate) fn at(&self, now_ns: u64) -> Now {
        let since = now_ns + self.fraction_ns;
        let elapsed = since / 1_000_000_000;
        Now {
            second: (Self::FIRST_SECOND + elapsed) as u32,
            unix: self.unix + elapsed,
            micros: (since % 1_000_000_000 / 1_000) as u32,
        }
    }

    /// When that is by the loop's clock: from then on, [`Started::at`] moved by `shift` seconds is at this moment or later.
    pub(crate) fn ns_of(&self, moment: Instant, shift: i32) -> u64 {
        let first = Instant::from_secs(Self::FIRST_SECOND.saturating_add_signed(shift.into()));
        moment.as_nanos().saturating_sub(first.as_nanos()).saturating_sub(self.fraction_ns)
    }
}
