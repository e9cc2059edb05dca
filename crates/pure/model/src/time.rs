//! Points on a monotonic clock: the server's, or a simulated world's.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

/// A point on the monotonic clock of whoever hands it over, in nanoseconds since that clock's beginning. What is counted from two clocks is not
/// to be compared. Sums and differences saturate: 2^64 ns are 584 years, and [`Instant::MAX`] never comes.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    pub const ZERO: Instant = Instant(0);
    pub const MAX: Instant = Instant(u64::MAX);

    #[inline]
    pub const fn from_nanos(nanos: u64) -> Instant {
        Instant(nanos)
    }

    pub const fn from_micros(micros: u64) -> Instant {
        Instant(micros.saturating_mul(1_000))
    }

    pub const fn from_millis(millis: u64) -> Instant {
        Instant(millis.saturating_mul(1_000_000))
    }

    pub const fn from_secs(seconds: u64) -> Instant {
        Instant(seconds.saturating_mul(1_000_000_000))
    }

    #[inline]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Whole ones.
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }

    /// Whole ones.
    pub const fn as_secs(self) -> u64 {
        self.0 / 1_000_000_000
    }

    /// From an earlier one to this; nothing if it is not earlier.
    #[inline]
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// From `now` to this one: nothing once it has come, [`Duration::MAX`] if it never does.
    pub const fn left(self, now: Instant) -> Duration {
        match self.0 {
            u64::MAX => Duration::MAX,
            _ => self.since(now),
        }
    }
}

/// As the time since the clock's beginning is written: `100.5s`.
impl fmt::Debug for Instant {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        Duration::from_nanos(self.0).fmt(to)
    }
}

/// Of what is longer than 584 years, as many as there are.
#[inline]
const fn nanos(duration: Duration) -> u64 {
    duration.as_secs().saturating_mul(1_000_000_000).saturating_add(duration.subsec_nanos() as u64)
}

impl Add<Duration> for Instant {
    type Output = Instant;

    #[inline]
    fn add(self, duration: Duration) -> Instant {
        Instant(self.0.saturating_add(nanos(duration)))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;

    #[inline]
    fn sub(self, duration: Duration) -> Instant {
        Instant(self.0.saturating_sub(nanos(duration)))
    }
}

impl Sub for Instant {
    type Output = Duration;

    #[inline]
    fn sub(self, earlier: Instant) -> Duration {
        self.since(earlier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_differences_saturate() {
        let (early, late) = (Instant::from_secs(1), Instant::from_millis(1_500));
        assert_eq!((late - early, early - late), (Duration::from_millis(500), Duration::ZERO));
        assert_eq!(early + Duration::from_micros(500_000), late);
        assert_eq!(late - Duration::from_secs(2), Instant::ZERO);
        assert_eq!(late + Duration::MAX, Instant::MAX);
        assert_eq!(Instant::MAX.left(late), Duration::MAX);
        assert_eq!(
            (late.left(early), early.left(late)),
            (Duration::from_millis(500), Duration::ZERO)
        );
    }
}
