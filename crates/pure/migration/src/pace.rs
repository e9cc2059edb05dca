//! How fast a move goes: rests between slices while a worker has no time left, patience with a slice that is on its way.

use std::time::Duration;

use mbal_model::Instant;

const REST_MIN: Duration = Duration::from_millis(1);
/// So there are five slices a second in any case,
const REST_MAX: Duration = Duration::from_millis(200);
/// and ten where the source has more to do than it can.
const REST_MAX_FULL: Duration = Duration::from_millis(100);
/// Nobody knows yet what clients will feel.
const REST_FIRST: Duration = Duration::from_millis(4);
/// What the last change of the rests has done is known so much later.
const CHANGED_EVERY: Duration = Duration::from_millis(100);

/// What clients of a worker feel of its moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strain {
    #[default]
    None,
    /// They wait longer than moves may make them.
    Felt,
    /// They leave the worker no time.
    Full,
}

/// Rests between two slices, never inside of one: there clients wait for it.
#[derive(Debug)]
pub struct Pace {
    rest: Duration,
    /// When it may change.
    changes_at: Option<Instant>,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { rest: REST_FIRST, changes_at: None }
    }
}

impl Pace {
    /// How long to rest after a slice. `there`: what the destination has said.
    pub fn rest(&mut self, now: Instant, here: Strain, there: bool) -> Duration {
        let changes_at = *self.changes_at.get_or_insert(now + CHANGED_EVERY);
        if changes_at <= now {
            self.changes_at = Some(now + CHANGED_EVERY);
            let longest = if here == Strain::Full { REST_MAX_FULL } else { REST_MAX };
            self.rest = match here != Strain::None || there {
                true => (self.rest * 2).clamp(REST_MIN, longest),
                false if self.rest <= REST_MIN => Duration::ZERO,
                false => self.rest * 3 / 4,
            };
        }
        self.rest
    }

    pub fn is_slowed(&self) -> bool {
        self.rest > REST_FIRST
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
    fn rests_grow_while_clients_feel_a_move_and_end_when_they_do_not() {
        let (mut pace, mut now) = (Pace::default(), Instant::ZERO);
        let mut rests = |strains: &[Strain]| -> Vec<u128> {
            let mut rest = |strain: &Strain| {
                let rest = pace.rest(now, *strain, false);
                now += CHANGED_EVERY;
                rest.as_micros()
            };
            strains.iter().map(&mut rest).collect()
        };
        use Strain::{Felt, Full, None};
        assert_eq!(rests(&[None, Felt, Felt]), [4_000, 8_000, 16_000]);
        assert_eq!(rests(&[Felt; 9])[3..], [200_000; 6], "some progress always");
        assert_eq!(rests(&[Full]), [100_000], "it is to get rid of what it has");
        assert_eq!(rests(&[None; 3]), [75_000, 56_250, 42_187]);
        assert_eq!(rests(&[None; 18])[14..], [0; 4]);
        assert_eq!(rests(&[Felt]), [1_000]);
    }

    #[test]
    fn a_rest_stays_until_what_it_does_is_known() {
        let mut pace = Pace::default();
        let rests = [0, 40, 99, 100, 150, 200]
            .map(|ms| pace.rest(Instant::from_millis(ms), Strain::None, true).as_millis());
        assert_eq!(rests, [4, 4, 4, 8, 8, 16]);
        assert!(pace.is_slowed());
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
