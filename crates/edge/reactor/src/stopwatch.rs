//! Which wake-ups are timed.

use mbal_model::METRICS;

/// After so many timed wake-ups in a second, half as many are timed from then on...
const TIMED_MANY: u32 = 256;
/// ...and twice as many after a second with fewer than this.
const TIMED_FEW: u32 = 128;
/// Even in the busiest second one wake-up in so many is timed.
const STRIDE_MAX: u32 = 64;

/// Chooses the wake-ups whose time is taken, for a read of the clock is too much for every one: all
/// of them while there are few, up to one in [`STRIDE_MAX`] while there are many.
pub(crate) struct Stopwatch {
    left: u32,
    stride: u32,
    timed: u32,
}

impl Stopwatch {
    pub(crate) fn new() -> Stopwatch {
        Stopwatch { left: 1, stride: 1, timed: 0 }
    }

    /// Whether to time this wake-up; it stands for so many.
    #[inline]
    pub(crate) fn choose(&mut self) -> Option<u32> {
        if !METRICS {
            return None;
        }
        self.left -= 1;
        if self.left == 0 { Some(self.chosen()) } else { None }
    }

    #[cold]
    fn chosen(&mut self) -> u32 {
        let stands_for = self.stride;
        self.timed += 1;
        if self.timed % TIMED_MANY == 0 {
            self.stride = (self.stride * 2).min(STRIDE_MAX);
        }
        self.left = self.stride;
        stands_for
    }

    /// A second has passed.
    pub(crate) fn tick(&mut self) {
        if self.timed < TIMED_FEW {
            self.stride = (self.stride / 2).max(1);
        }
        self.timed = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many wake-ups were timed, and how many they stand for.
    fn second(stopwatch: &mut Stopwatch, wakeups: u32) -> (u32, u32) {
        let chosen: Vec<u32> = (0..wakeups).filter_map(|_| stopwatch.choose()).collect();
        stopwatch.tick();
        (chosen.len() as u32, chosen.iter().sum())
    }

    #[test]
    fn times_every_wake_up_of_a_quiet_server_and_few_of_a_busy_one() {
        let mut stopwatch = Stopwatch::new();
        assert_eq!(second(&mut stopwatch, 250), (250, 250));
        let ramp = 256 * (1 + 2 + 4 + 8 + 16 + 32);
        assert_eq!(second(&mut stopwatch, ramp + 64_000), (256 * 6 + 1000, ramp + 64_000));
        assert_eq!(second(&mut stopwatch, 320_000), (5_000, 320_000));
        let quiet: Vec<_> = (0..7).map(|_| second(&mut stopwatch, 160).0).collect();
        assert!(quiet.is_sorted() && quiet[0] == 2 && quiet[6] == 159, "{quiet:?}");
    }
}
