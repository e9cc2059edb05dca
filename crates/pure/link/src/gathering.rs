//! When requests leave that are to go over a link.
//!
//! A send costs what some ten requests cost, on either side. So while many requests are on their way already, those that come next wait
//! for the first answer, and leave together. Few are on their way at low load: then each leaves at once.
//!
//! ```text
//!   a..h ══ send ══►                      ◄══ answers of a..h
//!                    i  j  k  l  m  n ... ══ send ══►
//! ```

/// While fewer are on their way, requests leave at once.
const ON_WAY_MIN: usize = 8;
/// So many bytes leave at once, whatever is on its way.
const GATHERED_BYTES_MAX: usize = 16 << 10;
/// Without an answer they leave after so long: the other side may be slow, or what it was asked is.
const GATHERED_NS_MAX: u64 = 100_000;

/// The requests of one link that have not left yet.
#[derive(Debug, Default)]
pub struct Gathering {
    gathered: usize,
    /// When the last ones left, unless something has been heard since.
    unheard_since: Option<u64>,
}

impl Gathering {
    /// One more is to leave.
    pub fn gathers(&mut self) {
        self.gathered += 1;
    }

    /// Until when what has been gathered, so many bytes, waits for more; `None` is not at all. `unanswered` are all requests of the
    /// link, gathered ones included.
    pub fn waits_until(&self, unanswered: usize, bytes: usize, now: u64) -> Option<u64> {
        let until = self.unheard_since? + GATHERED_NS_MAX;
        let is_busy = unanswered.saturating_sub(self.gathered) >= ON_WAY_MIN;
        (is_busy && bytes < GATHERED_BYTES_MAX && now < until).then_some(until)
    }

    /// All have left.
    pub fn sent(&mut self, now: u64) {
        self.gathered = 0;
        self.unheard_since = Some(now);
    }

    /// The other side has answered something.
    pub fn heard(&mut self) {
        self.unheard_since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gathered(count: usize) -> Gathering {
        let mut gathering = Gathering::default();
        (0..count).for_each(|_| gathering.gathers());
        gathering
    }

    #[test]
    fn what_comes_first_and_what_comes_while_little_is_on_its_way_leaves_at_once() {
        let mut gathering = gathered(100);
        assert_eq!(gathering.waits_until(100, 9, 50), None);
        gathering.sent(50);
        gathering.gathers();
        assert_eq!(gathering.waits_until(7 + 1, 9, 51), None);
        assert_eq!(gathering.waits_until(8 + 1, 9, 51), Some(100_050));
    }

    #[test]
    fn under_load_the_next_requests_leave_when_the_last_are_answered() {
        let mut gathering = gathered(100);
        gathering.sent(50);
        (0..40).for_each(|_| gathering.gathers());
        assert_eq!(gathering.waits_until(140, 4_000, 60), Some(100_050));
        gathering.heard();
        assert_eq!(gathering.waits_until(139, 4_000, 70), None);
        gathering.sent(70);
        assert_eq!(gathering.waits_until(139, 0, 71), Some(100_070));
    }

    #[test]
    fn what_gathers_is_bounded_in_bytes_and_in_time() {
        let mut gathering = gathered(100);
        gathering.sent(0);
        gathering.gathers();
        assert_eq!(gathering.waits_until(101, (16 << 10) - 1, 99_999), Some(100_000));
        assert_eq!(gathering.waits_until(101, 16 << 10, 1), None);
        assert_eq!(gathering.waits_until(101, 9, 100_000), None);
    }
}
