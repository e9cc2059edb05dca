//! Time as a worker knows it: what the driver says, and what clients mean by an exptime.

use mbal_model::Seconds;

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

/// A moment on the server's monotonic clock, in microseconds. [`Now::second`] counts its seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub u64);

impl Moment {
    /// So many microseconds later.
    pub const fn after(self, micros: u64) -> Moment {
        Moment(self.0.saturating_add(micros))
    }

    /// Microseconds from `now` to this moment; 0 once it has come, [`UNLIMITED`](crate::UNLIMITED) if it never does.
    pub const fn left(self, now: Moment) -> u64 {
        match self.0 {
            u64::MAX => u64::MAX,
            at => at.saturating_sub(now.0),
        }
    }
}

/// The longest exptime that counts from now, in seconds (30 days); larger ones are points in time.
const RELATIVE_MAX: i64 = 60 * 60 * 24 * 30;

impl Now {
    pub fn moment(self) -> Moment {
        Moment(u64::from(self.second) * 1_000_000 + u64::from(self.micros))
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
    fn exptimes_are_relative_up_to_thirty_days() {
        let now = Now { second: 100, unix: 1_700_000_100, micros: 0 };
        let deadlines = [0, 1, 2_592_000, -1, 2_592_001, 1_700_000_000, 1_700_000_105]
            .map(|exptime| now.deadline(exptime));
        assert_eq!(deadlines, [0, 101, 2_592_100, 1, 1, 1, 105]);
    }
}
