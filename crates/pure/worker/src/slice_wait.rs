//! Requests that wait for a slice of a cachelet that moves: in a moment it is served here again, or elsewhere.

use crate::time::Moment;

/// A slice takes a millisecond or so; one that takes longer than this fails who waits for it, as a link that does not answer.
pub(crate) const SLICE_MICROS_MAX: u64 = 1_000_000;

const RETRY_MICROS_MIN: u64 = 50;
const RETRY_MICROS_MAX: u64 = 1_000;
/// Tries before the pauses grow.
const RETRIES_SOON: u32 = 8;

/// How a request has waited for a slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SliceWait {
    since: Option<Moment>,
    tries: u32,
}

impl SliceWait {
    /// Of what does not wait.
    pub const OVER: SliceWait = SliceWait { since: Some(Moment(0)), tries: 0 };

    /// It is not to wait any longer.
    pub fn is_over(&self, now: Moment) -> bool {
        self.since.is_some_and(|since| since.after(SLICE_MICROS_MAX) <= now)
    }

    /// When to try again.
    pub fn again(&mut self, now: Moment) -> Moment {
        let since = *self.since.get_or_insert(now);
        let doublings = self.tries.saturating_sub(RETRIES_SOON).min(16);
        let pause = (RETRY_MICROS_MIN << doublings).min(RETRY_MICROS_MAX);
        self.tries += 1;
        let (again, end) = (now.after(pause), since.after(SLICE_MICROS_MAX));
        // What waits for copies goes on until their leases are over.
        if now < end { again.min(end) } else { again }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_tries_again_soon_then_less_often_and_not_for_ever() {
        let (mut wait, mut now) = (SliceWait::default(), Moment(7));
        let mut tries = Vec::new();
        while !wait.is_over(now) {
            now = wait.again(now);
            tries.push(now.0 - 7);
        }
        assert_eq!(tries[..10], [50, 100, 150, 200, 250, 300, 350, 400, 450, 550]);
        assert_eq!(tries.last(), Some(&SLICE_MICROS_MAX));
    }
}
