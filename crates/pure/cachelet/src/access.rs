//! An item's access word: when it was last read or written, and how often it was read.
//!
//! ```text
//!   second of the last read or write 24 | frequency 2 | read at all 1 | era of the last read or write 5
//! ```

use mbal_model::Seconds;

const ACCESS_SECONDS: u32 = (1 << 24) - 1;
const FREQUENCY_SHIFT: u32 = 24;
/// Frequency counts to this and stays.
pub const FREQUENCY_MAX: u32 = 3;
const FETCHED: u32 = 1 << 26;
const ERA_SHIFT: u32 = 27;
/// Eras wrap after so many.
pub const ERAS: u32 = 32;

/// The word that a read of an item changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access(pub u32);

impl Access {
    #[inline(always)]
    pub fn new(now: Seconds, frequency: u32, fetched: bool, era: u32) -> Access {
        let fetched = if fetched { FETCHED } else { 0 };
        let frequency = frequency.min(FREQUENCY_MAX) << FREQUENCY_SHIFT;
        Access(now & ACCESS_SECONDS | frequency | fetched | era << ERA_SHIFT)
    }

    /// The latest second up to `now` that the 24 bits can mean.
    pub fn last(&self, now: Seconds) -> Seconds {
        now - (now.wrapping_sub(self.0) & ACCESS_SECONDS).min(now)
    }

    #[inline(always)]
    pub fn frequency(&self) -> u32 {
        self.0 >> FREQUENCY_SHIFT & FREQUENCY_MAX
    }

    #[inline(always)]
    pub fn fetched(&self) -> bool {
        self.0 & FETCHED != 0
    }

    #[inline(always)]
    pub fn read_at(self, now: Seconds, era: u32) -> Access {
        Access::new(now, self.frequency() + 1, true, era)
    }

    /// Eras since the last read or write.
    #[inline(always)]
    pub fn eras_ago(&self, era: u32) -> u32 {
        era.wrapping_sub(self.0 >> ERA_SHIFT) % ERAS
    }

    /// The same but for its frequency.
    pub fn with_frequency(&self, frequency: u32) -> Access {
        Access(self.0 & !(FREQUENCY_MAX << FREQUENCY_SHIFT) | frequency << FREQUENCY_SHIFT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_access_survives_the_wrap_of_its_24_bits() {
        for (written, now) in
            [(5, 5), (5, 400), ((1 << 24) - 1, (1 << 24) + 3), (70_000_000, 70_000_009)]
        {
            assert_eq!(Access::new(written, 0, false, 31).last(now), written);
        }
    }

    #[test]
    fn frequency_stops_at_three() {
        let mut access = Access::new(9, 0, false, 0);
        assert!(!access.fetched());
        for expected in [1, 2, 3, 3] {
            access = access.read_at(10, 1);
            assert_eq!((access.frequency(), access.fetched()), (expected, true));
        }
    }
}
