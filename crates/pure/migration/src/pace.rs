//! How fast a move goes: rests between slices while a worker has no time left, patience with a slice that is on its way.

use std::time::Duration;

const REST_MIN: Duration = Duration::from_millis(1);
/// So there are ten slices a second in any case.
pub const REST_MAX: Duration = Duration::from_millis(100);

/// Rests between two slices, never inside of one: there clients wait for it.
#[derive(Debug, Default)]
pub struct Pace {
    rest: Duration,
}

impl Pace {
    /// How long to rest after a slice. `strained`: clients left the worker no time, here or there.
    pub fn rest(&mut self, strained: bool) -> Duration {
        self.rest = match strained {
            true => (self.rest * 2).clamp(REST_MIN, REST_MAX),
            false if self.rest <= REST_MIN => Duration::ZERO,
            false => self.rest / 2,
        };
        self.rest
    }

    pub fn is_slowed(&self) -> bool {
        !self.rest.is_zero()
    }
}

const PATIENCE_MIN: Duration = Duration::from_millis(200);
pub const PATIENCE_MAX: Duration = Duration::from_millis(6_400);

/// For how long a slice may be on its way before it is served at the source again.
///
/// Doubled after each failure: a slice that needs longer than the first patience must get through some day.
#[derive(Debug)]
pub struct Patience {
    lasts: Duration,
}

impl Patience {
    pub fn new() -> Patience {
        Patience { lasts: PATIENCE_MIN }
    }

    pub fn lasts(&self) -> Duration {
        self.lasts
    }

    /// A slice took too long; how long to rest before the next attempt.
    pub fn ended(&mut self) -> Duration {
        let rest = self.lasts;
        self.lasts = (self.lasts * 2).min(PATIENCE_MAX);
        rest
    }

    pub fn slice_has_gone(&mut self) {
        *self = Patience::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_grow_while_a_worker_has_no_time_left_and_end_when_it_has() {
        let mut pace = Pace::default();
        let mut rests = |strains: &[bool]| -> Vec<u128> {
            strains.iter().map(|strained| pace.rest(*strained).as_micros()).collect()
        };
        assert_eq!(rests(&[false, true, true, true]), [0, 1_000, 2_000, 4_000]);
        assert_eq!(rests(&[true; 9])[5..], [100_000; 4], "some progress always");
        assert_eq!(rests(&[false; 3]), [50_000, 25_000, 12_500]);
        assert_eq!(rests(&[false; 9])[4..], [0; 5]);
        assert!(!pace.is_slowed());
    }

    #[test]
    fn patience_doubles_up_to_a_bound_until_a_slice_has_gone() {
        let mut patience = Patience::new();
        let rests: Vec<u128> = (0..7).map(|_| patience.ended().as_millis()).collect();
        assert_eq!(rests, [200, 400, 800, 1_600, 3_200, 6_400, 6_400]);
        patience.slice_has_gone();
        assert_eq!(patience.lasts(), Duration::from_millis(200));
    }
}
