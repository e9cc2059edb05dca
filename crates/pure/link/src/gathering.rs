//! When requests leave that are to go over a link.
//!
//! A send costs what some ten requests cost, on either side, and wakes a server up. So while many requests are on their way already,
//! those that come next wait for the first answer, and leave together. Clients that had so many answers at once ask again, each a
//! moment later: the requests that come first wait for most of them. Few are on their way at low load: then each leaves at once.
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

/// After a send of at least so many, as many are expected to come again.
const MANY: usize = 32;
/// They are waited for as long as this, from the moment on at which nothing else stands in the way.
const EXPECTED_NS_MAX: u64 = 50_000;

/// The requests of one link that have not left yet.
#[derive(Debug, Default)]
pub struct Gathering {
    gathered: usize,
    /// Since when they could have left: the first has come, and the other side has answered.
    free_since: u64,
    /// How many the last send took along.
    sent_last: usize,
    /// When the last ones left, unless something has been heard since.
    unheard_since: Option<u64>,
}

impl Gathering {
    /// One more is to leave.
    pub fn gathers(&mut self, now: u64) {
        if self.gathered == 0 {
            self.free_since = now;
        }
        self.gathered += 1;
    }

    /// Until when what has been gathered, so many bytes, waits for more; `None` is not at all. `unanswered` are all requests of the
    /// link, gathered ones included.
    pub fn waits_until(&self, unanswered: usize, bytes: usize, now: u64) -> Option<u64> {
        let is_busy = unanswered.saturating_sub(self.gathered) >= ON_WAY_MIN;
        let heard = self.unheard_since.filter(|_| is_busy).map(|since| since + GATHERED_NS_MAX);
        let expects_more = self.sent_last >= MANY && self.gathered < self.sent_last / 4 * 3;
        let expected = expects_more.then_some(self.free_since + EXPECTED_NS_MAX);
        let until = heard.max(expected)?;
        (bytes < GATHERED_BYTES_MAX && now < until).then_some(until)
    }

    /// All have left.
    pub fn sent(&mut self, now: u64) {
        self.sent_last = self.gathered;
        self.gathered = 0;
        self.unheard_since = Some(now);
    }

    /// The other side has answered something.
    pub fn heard(&mut self, now: u64) {
        if self.unheard_since.take().is_some() {
            self.free_since = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gathered(count: usize, now: u64) -> Gathering {
        let mut gathering = Gathering::default();
        gathers(&mut gathering, count, now);
        gathering
    }

    fn gathers(gathering: &mut Gathering, count: usize, now: u64) {
        (0..count).for_each(|_| gathering.gathers(now));
    }

    #[test]
    fn what_comes_first_and_what_comes_while_little_is_on_its_way_leaves_at_once() {
        let mut gathering = gathered(20, 50);
        assert_eq!(gathering.waits_until(20, 9, 50), None);
        gathering.sent(50);
        gathering.gathers(51);
        assert_eq!(gathering.waits_until(7 + 1, 9, 51), None);
        assert_eq!(gathering.waits_until(8 + 1, 9, 51), Some(100_050));
    }

    #[test]
    fn under_load_the_next_requests_leave_when_the_last_are_answered() {
        let mut gathering = gathered(100, 50);
        gathering.sent(50);
        gathers(&mut gathering, 75, 55);
        assert_eq!(gathering.waits_until(175, 4_000, 60), Some(100_050));
        gathering.heard(70);
        assert_eq!(gathering.waits_until(139, 4_000, 70), None);
        gathering.sent(70);
        assert_eq!(gathering.waits_until(139, 0, 71), Some(100_070));
    }

    #[test]
    fn after_many_as_many_are_expected_for_a_moment() {
        let mut gathering = gathered(MANY, 0);
        gathering.sent(0);
        gathering.heard(10);
        gathers(&mut gathering, MANY / 4 * 3 - 1, 20);
        assert_eq!(gathering.waits_until(MANY, 900, 30), Some(50_020));
        gathering.gathers(40);
        assert_eq!(gathering.waits_until(MANY, 900, 40), None);
        // Fewer than expected leave when the moment is over; then so few are expected.
        gathering.sent(40);
        gathering.gathers(50);
        gathering.heard(60);
        assert_eq!(gathering.waits_until(1, 9, 50_060), None);
        gathering.sent(50_060);
        gathering.heard(50_070);
        gathering.gathers(50_080);
        assert_eq!(gathering.waits_until(1, 9, 50_080), None);
    }

    #[test]
    fn what_is_expected_is_waited_for_from_the_answer_on() {
        let mut gathering = gathered(100, 0);
        gathering.sent(0);
        gathers(&mut gathering, 10, 5);
        gathering.heard(80_000);
        assert_eq!(gathering.waits_until(10, 400, 80_000), Some(130_000));
        // Further answers give no further time.
        gathering.heard(90_000);
        assert_eq!(gathering.waits_until(10, 400, 90_000), Some(130_000));
        assert_eq!(gathering.waits_until(10, 400, 130_000), None);
    }

    #[test]
    fn what_gathers_is_bounded_in_bytes_and_in_time() {
        let mut gathering = gathered(100, 0);
        gathering.sent(0);
        gathering.gathers(1);
        assert_eq!(gathering.waits_until(101, (16 << 10) - 1, 99_999), Some(100_000));
        assert_eq!(gathering.waits_until(101, 16 << 10, 1), None);
        assert_eq!(gathering.waits_until(101, 9, 100_000), None);
    }
}
