//! How fast a move goes: rests between slices while a worker has no time left, patience with a slice that is on its way.

const REST_NS_MIN: u64 = 1_000_000;
/// So there are ten slices a second in any case.
pub const REST_NS_MAX: u64 = 100_000_000;

/// Rests between two slices, never inside of one: there clients wait for it.
#[derive(Debug, Default)]
pub struct Pace {
    rest_ns: u64,
}

impl Pace {
    /// How long to rest after a slice. `strained`: clients left the worker no time, here or there.
    pub fn rest_ns(&mut self, strained: bool) -> u64 {
        self.rest_ns = match strained {
            true => (self.rest_ns * 2).clamp(REST_NS_MIN, REST_NS_MAX),
            false if self.rest_ns <= REST_NS_MIN => 0,
            false => self.rest_ns / 2,
        };
        self.rest_ns
    }

    pub fn is_slowed(&self) -> bool {
        self.rest_ns > 0
    }
}

const PATIENCE_NS_MIN: u64 = 200_000_000;
pub const PATIENCE_NS_MAX: u64 = 6_400_000_000;

/// For how long a slice may be on its way before it is served at the source again.
///
/// Doubled after each failure: a slice that needs longer than the first patience must get through some day.
#[derive(Debug)]
pub struct Patience {
    ns: u64,
}

impl Patience {
    pub fn new() -> Patience {
        Patience { ns: PATIENCE_NS_MIN }
    }

    pub fn ns(&self) -> u64 {
        self.ns
    }

    /// A slice took too long; how long to rest before the next attempt.
    pub fn ended(&mut self) -> u64 {
        let rest = self.ns;
        self.ns = (self.ns * 2).min(PATIENCE_NS_MAX);
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
        let mut rests = |strains: &[bool]| -> Vec<u64> {
            strains.iter().map(|strained| pace.rest_ns(*strained) / 1_000).collect()
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
        let rests: Vec<u64> = (0..7).map(|_| patience.ended() / 1_000_000).collect();
        assert_eq!(rests, [200, 400, 800, 1_600, 3_200, 6_400, 6_400]);
        patience.slice_has_gone();
        assert_eq!(patience.ns(), 200_000_000);
    }
}
