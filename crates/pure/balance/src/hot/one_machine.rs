//! Whether copies can relieve a server of a cluster that is on one machine.
//!
//! Such servers share cores: what one of them leaves idle another one uses. Copies relieve who is held back by a limit of its own, as a worker
//! that fills its core, or a quota. To all others they are work. Which of both a server is shows when it has been busy for a while.

use std::time::Duration;

use mbal_model::Instant;

/// What a server has shown since the last look.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// One of its workers looks for hot keys.
    pub is_busy: bool,
    /// A worker fills its core, or a quota holds workers back; or nobody knows.
    pub is_limited: bool,
    pub has_copies: bool,
}

/// Looks of a fifth of a second, one after the other, that show that a busy server has no limit of its own, and that it is calm.
const SHOWS: u32 = 10;
const CALM: u32 = 10;
/// A limit that shows afterwards may be chance: so long there are no copies, and twice as long each time.
const PAUSE_MIN: Duration = Duration::from_secs(30);
const PAUSE_MAX: Duration = Duration::from_secs(240);

#[derive(Debug, Default)]
pub struct OneMachine {
    /// Looks in a row.
    unlimited: u32,
    calm: u32,
    /// Copies have not paid: there are none until then.
    until: Instant,
    pause: Duration,
}

impl OneMachine {
    pub fn look(&mut self, effort: Effort, now: Instant) {
        if !effort.is_busy {
            self.calm += 1;
            if self.calm >= CALM {
                *self = OneMachine::default();
            }
            return;
        }
        self.calm = 0;
        self.unlimited = if effort.is_limited { 0 } else { self.unlimited.saturating_add(1) };
        if self.unlimited == SHOWS && effort.has_copies {
            self.pause = (self.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
            self.until = now + self.pause;
        }
    }

    /// Copies may relieve this server, or nobody knows yet that they do not.
    pub fn relieves(&self, now: Instant) -> bool {
        self.unlimited < SHOWS && self.until <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALM_LOOK: Effort = Effort { is_busy: false, is_limited: false, has_copies: false };
    const LIMITED: Effort = Effort { is_busy: true, is_limited: true, has_copies: true };
    const UNLIMITED: Effort = Effort { is_busy: true, is_limited: false, has_copies: true };

    /// Whether copies relieve after each of these looks, of which there are so many.
    fn after(looks: &[(Effort, u64)]) -> Vec<bool> {
        let (mut machine, mut at) = (OneMachine::default(), Instant::from_secs(9));
        let mut relieves = |&(effort, times): &(Effort, u64)| {
            for _ in 0..times {
                at += Duration::from_millis(200);
                machine.look(effort, at);
            }
            machine.relieves(at)
        };
        looks.iter().map(&mut relieves).collect()
    }

    #[test]
    fn copies_stay_until_a_busy_server_has_shown_for_two_seconds_that_it_has_no_limit() {
        assert_eq!(after(&[(UNLIMITED, 9), (UNLIMITED, 1)]), [true, false]);
        assert_eq!(after(&[(UNLIMITED, 9), (LIMITED, 1), (UNLIMITED, 9)]), [true; 3]);
        assert_eq!(after(&[(LIMITED, 900)]), [true]);
    }

    #[test]
    fn a_limit_that_shows_later_counts_after_a_pause_that_doubles() {
        let (pause, twice) = (29 * 5, 59 * 5);
        let looks = [(UNLIMITED, 10), (LIMITED, pause), (LIMITED, 10), (UNLIMITED, 10)];
        assert_eq!(after(&looks), [false, false, true, false]);
        let again = [(LIMITED, twice), (LIMITED, 10)];
        assert_eq!(after(&[looks.as_slice(), &again].concat())[4..], [false, true]);
    }

    #[test]
    fn without_copies_there_is_nothing_to_wait_for_when_a_limit_shows() {
        let none = Effort { has_copies: false, ..UNLIMITED };
        assert_eq!(after(&[(none, 99), (LIMITED, 1)]), [false, true]);
    }

    #[test]
    fn who_was_calm_is_looked_at_anew() {
        let looks = [(UNLIMITED, 10), (CALM_LOOK, 9), (CALM_LOOK, 1), (UNLIMITED, 9)];
        assert_eq!(after(&looks), [false, false, true, true]);
    }
}
