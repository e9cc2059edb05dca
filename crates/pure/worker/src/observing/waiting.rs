//! How long requests stood waiting in a worker: the sum over all turns, from being ready to being served.
//!
//! ```text
//!   a request's:   ready in its socket ─── epoll tells ─── its turn
//!   the loop's:    │ serves others (before_ns) │  serves others (busy_ns) │
//!                  └ half of it on average ────┴ half of it on average ───┘
//! ```
//! Divided by the time that passes it is how many requests stood waiting (Little's law). Nothing is measured by request: how many turns a
//! wake-up had, and how long it took, tell what they waited on average.

use crate::observing::counters::Counters;

/// What has been counted of a worker's turns when it was told last how long something took.
#[derive(Default)]
pub(crate) struct WaitEstimate {
    turns: u64,
    /// Of wake-ups after a sleep: turns beside each one's first, and turns² − 1.
    others: u64,
    pairs: u64,
}

impl WaitEstimate {
    /// A wake-up is over that took `busy_ns`. What was ready had become so within `before_ns`, in which the loop served others: 0 if it slept.
    #[inline]
    pub fn rests(&mut self, counters: &Counters, busy_ns: u64, before_ns: u64) {
        let all = counters.turns.get();
        let turns = all - self.turns;
        self.turns = all;
        if turns == 0 {
            return;
        }
        let stood_ns = turns * before_ns + (turns - 1) * busy_ns;
        counters.waited_ns.add(stood_ns / 2);
        if before_ns == 0 {
            self.others += turns - 1;
            self.pairs += turns * turns - 1;
        }
    }

    /// Since this was said last the thread was ready to run for so long while its loop took it for asleep. The first turn of such a wake-up
    /// stood all the while, the others half of it; who came with most others has slept longest.
    pub fn delayed(&mut self, counters: &Counters, delay_ns: u64) {
        let turns = match self.others {
            0 => 1.0,
            others => self.pairs as f64 / (2 * others) as f64,
        };
        counters.waited_ns.add((delay_ns as f64 * turns) as u64);
        (self.others, self.pairs) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What stood after wake-ups of so many turns, ns, and ns before.
    fn waited(wakeups: &[(u64, u64, u64)], delay_ns: u64) -> u64 {
        let (counters, mut waiting) = (Counters::default(), WaitEstimate::default());
        for &(turns, busy_ns, before_ns) in wakeups {
            counters.turns.add(turns);
            waiting.rests(&counters, busy_ns, before_ns);
        }
        waiting.delayed(&counters, delay_ns);
        counters.waited_ns.get()
    }

    #[test]
    fn who_is_alone_does_not_wait_and_others_wait_for_those_before_them() {
        assert_eq!(waited(&[(1, 5_000, 0), (0, 9_000, 5_000), (1, 5_000, 0)], 0), 0);
        // 0, 5, 10 and 15 µs.
        assert_eq!(waited(&[(4, 20_000, 0)], 0), 30_000);
    }

    #[test]
    fn a_loop_that_never_sleeps_has_all_its_clients_waiting() {
        // 32 clients of 5 µs each, who ask again at once: but one of them stands in line at any time.
        let (wakeups, turn_ns) = (1_000, 160_000);
        let waited = waited(&vec![(32, turn_ns, turn_ns); wakeups], 0);
        let standing = waited as f64 / (wakeups as u64 * turn_ns) as f64;
        assert!((31.0..32.0).contains(&standing), "{standing}");
    }

    #[test]
    fn what_stands_while_the_thread_has_no_core_is_by_how_many_come_together() {
        assert_eq!(waited(&[(1, 5_000, 0); 10], 1_000_000), 1_000_000);
        // One wake-up has slept for all of it: its first stood for 1 ms, nine others for half of it.
        assert_eq!(waited(&[(1, 0, 0), (10, 0, 0), (1, 0, 0)], 1_000_000), 5_500_000);
    }
}
