//! Requests that wait for a slice of a cachelet that moves: in a moment it is served here again, or elsewhere.

use std::time::Duration;

use mbal_model::Instant;

use crate::sessions::retry::Retry;

/// A slice takes a millisecond or so; one that takes longer than this fails who waits for it, as a link that does not answer.
pub(crate) const SLICE_WAIT_MAX: Duration = Duration::from_secs(1);

/// Tries before the pauses grow.
const RETRIES_SOON: u32 = 8;

/// How a request has waited for a slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SliceWait(Retry);

impl SliceWait {
    /// Of what does not wait.
    pub const OVER: SliceWait = SliceWait(Retry::OVER);

    /// It is not to wait any longer.
    pub fn is_over(&self, now: Instant) -> bool {
        self.0.is_over(SLICE_WAIT_MAX, now)
    }

    /// When to try again.
    pub fn again(&mut self, now: Instant) -> Instant {
        self.0.again(RETRIES_SOON, SLICE_WAIT_MAX, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_tries_again_soon_then_less_often_and_not_for_ever() {
        let begin = Instant::from_micros(7);
        let (mut wait, mut now) = (SliceWait::default(), begin);
        let mut tries = Vec::new();
        while !wait.is_over(now) {
            now = wait.again(now);
            tries.push((now - begin).as_micros());
        }
        assert_eq!(tries[..10], [50, 100, 150, 200, 250, 300, 350, 400, 450, 550]);
        assert_eq!(tries.last(), Some(&SLICE_WAIT_MAX.as_micros()));
    }
}
