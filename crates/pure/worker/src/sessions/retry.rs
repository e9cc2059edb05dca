//! Tries in vain, for room or for a slice that moves: soon at first, then less and less often, and not for ever.

use std::time::Duration;

use mbal_model::Instant;

/// Others' batches last some ten microseconds; where one lasts longer, its worker has lost its core.
const PAUSE_MIN: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_millis(1);
/// So many are more than [`PAUSE_MAX`].
const DOUBLINGS_MAX: u32 = 16;

/// How often something was tried in vain, and since when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Retry {
    since: Option<Instant>,
    tries: u32,
}

impl Retry {
    /// Of what does not wait.
    pub const OVER: Retry = Retry { since: Some(Instant::ZERO), tries: 0 };

    /// It has been tried for so long.
    pub fn is_over(&self, wait_max: Duration, now: Instant) -> bool {
        self.since.is_some_and(|since| since + wait_max <= now)
    }

    /// When to try again, at the end of `wait_max` at the latest. After the first `soon` tries pauses grow.
    pub fn again(&mut self, soon: u32, wait_max: Duration, now: Instant) -> Instant {
        let end = *self.since.get_or_insert(now) + wait_max;
        let doublings = self.tries.saturating_sub(soon).min(DOUBLINGS_MAX);
        let again = now + (PAUSE_MIN * (1 << doublings)).min(PAUSE_MAX);
        self.tries += 1;
        // What waits for copies goes on until their leases are over.
        if now < end { again.min(end) } else { again }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_after_the_first_tries_and_end_with_the_wait() {
        let wait_max = Duration::from_millis(3);
        let tries = |soon| {
            let begin = Instant::from_micros(7);
            let (mut retry, mut now, mut tries) = (Retry::default(), begin, Vec::new());
            while !retry.is_over(wait_max, now) {
                now = retry.again(soon, wait_max, now);
                tries.push((now - begin).as_micros());
            }
            tries
        };
        assert_eq!(tries(0), [50, 150, 350, 750, 1_550, 2_550, 3_000]);
        assert_eq!(tries(2), [50, 100, 150, 250, 450, 850, 1_650, 2_650, 3_000]);
    }
}
