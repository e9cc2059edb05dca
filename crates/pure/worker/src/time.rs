//! Time as a worker knows it: what the driver says, and what clients mean by an exptime.

use std::time::Duration;

use mbal_model::{Instant, Seconds};

/// Of `micros_left`: no deadline.
pub const UNLIMITED: u64 = u64::MAX;

/// The time of an event; the driver reads its clocks once for all that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Seconds on the server's monotonic clock. It starts at 2 or later, so that 1 is past and 0
    /// can mean "never".
    pub second: Seconds,
    /// Seconds since 1970 on the wall clock: what a client's absolute exptime is measured by.
    pub unix: u64,
    /// What has passed of that second, in microseconds.
    pub micros: u32,
}

/// What another server is told of the time that a request has until then: [`Ticketed::micros_left`](crate::Ticketed::micros_left).
pub(crate) fn micros_left(until: Instant, now: Instant) -> u64 {
    match until {
        Instant::MAX => UNLIMITED,
        _ => until.as_micros().saturating_sub(now.as_micros()),
    }
}

/// Until when a request may be executed of which that was told.
pub(crate) fn until(now: Instant, micros_left: u64) -> Instant {
    match micros_left {
        UNLIMITED => Instant::MAX,
        micros => now + Duration::from_micros(micros),
    }
}

/// The longest exptime that counts from now, in seconds (30 days); larger ones are points in time.
const RELATIVE_MAX: i64 = 60 * 60 * 24 * 30;

impl Now {
    /// The same on the server's monotonic clock, to the microsecond.
    #[inline]
    pub fn instant(self) -> Instant {
        Instant::from_micros(u64::from(self.second) * 1_000_000 + u64::from(self.micros))
    }

    /// The time by a clock that was moved by so many seconds.
    #[inline]
    pub fn moved(self, seconds: i32) -> Now {
        Now {
            second: self.second.saturating_add_signed(seconds),
            unix: self.unix.saturating_add_signed(seconds.into()),
            micros: self.micros,
        }
    }

    /// The second at which something with `exptime` dies, as memcached reads it: 0 is never, and
    /// what is negative or lies before the server's start is already dead.
    #[inline]
    pub fn deadline(self, exptime: impl Into<i64>) -> Seconds {
        let started = self.unix as i64 - i64::from(self.second);
        match exptime.into() {
            0 => 0,
            ..0 => 1,
            relative @ ..=RELATIVE_MAX => self.second.wrapping_add(relative as Seconds),
            absolute if absolute <= started => 1,
            absolute => (absolute - started) as Seconds,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_told_in_microseconds_and_no_end_is_no_end() {
        let now = Now { second: 100, unix: 1_700_000_100, micros: 7 }.instant();
        assert_eq!(now, Instant::from_nanos(100_000_007_000));
        for left in [0, 1, 1_000_000, UNLIMITED] {
            assert_eq!(micros_left(until(now, left), now), left);
        }
        assert_eq!(micros_left(until(now, 5), now + Duration::from_secs(1)), 0, "it is over");
    }

    #[test]
    fn exptimes_are_relative_up_to_thirty_days() {
        let now = Now { second: 100, unix: 1_700_000_100, micros: 0 };
        let deadlines = [0, 1, 2_592_000, -1, 2_592_001, 1_700_000_000, 1_700_000_105]
            .map(|exptime| now.deadline(exptime));
        assert_eq!(deadlines, [0, 101, 2_592_100, 1, 1, 1, 105]);
    }
}
