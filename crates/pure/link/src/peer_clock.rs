//! What the clock at the other end of a link shows at least, so that a request can say by that clock until when it may be executed.
//!
//! ```text
//!   receiver's clock   ──────●───────────────────────────────▲──────
//!                            └─ reading r ─┐                 │ no later than r + (g - t)(1 - drift)
//!   sender's clock     ────────────────────●─────────────────●──────
//!                                    heard at t        given up at g
//! ```
//! When the sender has heard a reading, the receiver's clock shows it or more. From then on both clocks run, each as fast as it may, or as
//! slowly. So at the moment at which the sender gives a request up, the receiver's clock shows the request's deadline or more: what is executed
//! by then was executed before anybody was told that it failed. How long a reading was on its way shortens the time that requests have.

/// In so many nanoseconds two clocks drift apart by one at most: Linux lets a clock be slewed by 500 millionths, and there are two.
const DRIFT_NS: u64 = 1_000;

/// Of one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerClock {
    /// The best reading, in microseconds of the other side's clock.
    reading: u64,
    /// When it was heard, in nanoseconds of this side's.
    heard: u64,
}

impl PeerClock {
    pub fn new(reading: u64, heard: u64) -> PeerClock {
        PeerClock { reading, heard }
    }

    /// What it shows at least, in microseconds, at moment `at` of this side's clock.
    pub fn at_least(&self, at: u64) -> u64 {
        let since = at.saturating_sub(self.heard);
        self.reading.saturating_add((since - since.div_ceil(DRIFT_NS)) / 1_000)
    }

    /// A further reading: it is kept if it tells more than what is known.
    pub fn heard(&mut self, reading: u64, now: u64) {
        if self.at_least(now) <= reading {
            *self = PeerClock::new(reading, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_deadline_is_never_later_than_the_moment_at_which_the_request_is_given_up() {
        // The receiver's clock runs up to 500 millionths fast or slow, the sender's the other way; a reading takes some time.
        for (receiver, sender) in [(0.9995, 1.0005), (1.0005, 0.9995), (1.0, 1.0)] {
            for delay in [0, 3 * MS, 700 * MS] {
                let receivers = |truth: u64| (truth as f64 * receiver / 1e3) as u64 + 77_000_000;
                let senders = |truth: u64| (truth as f64 * sender) as u64;
                let clock = PeerClock::new(receivers(5 * MS), senders(5 * MS + delay));
                for given_up in [MS, 1_000 * MS, 100_000 * MS] {
                    let truth = 5 * MS + delay + given_up;
                    let deadline = clock.at_least(senders(truth));
                    assert!(deadline <= receivers(truth), "{receiver} {delay} {given_up}");
                    let lost = receivers(truth) - deadline;
                    assert!(lost <= delay / 990 + given_up / 490_000 + 2, "{lost}");
                }
            }
        }
    }

    #[test]
    fn the_reading_that_was_on_its_way_for_the_least_time_counts() {
        let mut clock = PeerClock::new(1_000, 900 * MS);
        clock.heard(500_000, 901 * MS);
        assert_eq!(clock, PeerClock::new(500_000, 901 * MS));
        // One that was late.
        clock.heard(510_000, 1_000 * MS);
        assert_eq!(clock, PeerClock::new(500_000, 901 * MS));
        // What was heard loses by drift.
        clock.heard(1_499_400, 1_901 * MS);
        assert_eq!(clock, PeerClock::new(1_499_400, 1_901 * MS));
        assert_eq!(clock.at_least(0), 1_499_400);
    }
}
