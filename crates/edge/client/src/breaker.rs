//! A server that does not answer is left alone, and tried again from time to time: by a probe, not by somebody's request.
//!
//! ```text
//!              failed                      its time has come
//!   closed ───────────────► open ──────────────────────────────► probing
//!      ▲                      ▲         failed: a longer pause      │  │
//!      │                      └─────────────────────────────────────┘  │
//!      └───────────────────────────── succeeded ───────────────────────┘
//! ```
//! One failure opens it, since a failure is what no slow request can cause: a connection that was refused or took too long, or one
//! that said nothing at all for as long as a request may take.

use std::time::{Duration, Instant};

/// Before the first probe, at most.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// However many have failed.
const PAUSE_MAX: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Breaker {
    #[default]
    Closed,
    Open {
        probe_at: Instant,
        pause: Duration,
    },
    Probing {
        pause: Duration,
    },
}

impl Breaker {
    pub fn is_closed(&self) -> bool {
        *self == Breaker::Closed
    }

    /// `jitter` is any number: half of each pause is chance, so that clients do not all knock at once. True if it was closed.
    pub fn failed(&mut self, now: Instant, jitter: u64) -> bool {
        let pause = match *self {
            Breaker::Closed => PAUSE_MIN,
            // Requests that were under way when it opened say nothing new.
            Breaker::Open { .. } => return false,
            Breaker::Probing { pause } => (2 * pause).min(PAUSE_MAX),
        };
        let was_closed = self.is_closed();
        let half = pause.as_nanos() as u64 / 2;
        let wait = Duration::from_nanos(half + jitter % half);
        *self = Breaker::Open { probe_at: now + wait, pause };
        was_closed
    }

    /// A probe is due: whoever is told so makes it, and says what came of it.
    pub fn begin_probe(&mut self, now: Instant) -> bool {
        match *self {
            Breaker::Open { probe_at, pause } if probe_at <= now => {
                *self = Breaker::Probing { pause };
                true
            }
            _ => false,
        }
    }

    pub fn succeeded(&mut self) {
        *self = Breaker::Closed;
    }

    /// When a probe is due.
    pub fn probe_at(&self) -> Option<Instant> {
        match self {
            Breaker::Open { probe_at, .. } => Some(*probe_at),
            Breaker::Closed | Breaker::Probing { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn one_failure_opens_it_and_only_a_probe_closes_it() {
        let (start, mut breaker) = (Instant::now(), Breaker::default());
        assert!(breaker.is_closed() && breaker.failed(start, 0));
        assert!(!breaker.is_closed());
        assert!(!breaker.begin_probe(start + 9 * MS), "it is not due");
        assert!(breaker.begin_probe(start + 10 * MS));
        assert!(!breaker.begin_probe(start + 99 * MS), "one at a time");
        assert!(!breaker.is_closed());
        breaker.succeeded();
        assert!(breaker.is_closed());
    }

    #[test]
    fn pauses_double_up_to_a_second_and_begin_again_after_a_success() {
        let (start, mut breaker) = (Instant::now(), Breaker::default());
        breaker.failed(start, 0);
        for pause_ms in [20, 40, 80, 160, 320, 640, 1000, 1000] {
            let due = start + pause_ms * MS / 2;
            assert_eq!(breaker.probe_at(), Some(due));
            let mut latest = breaker;
            assert!(breaker.begin_probe(due) && latest.begin_probe(due));
            assert!(!breaker.failed(start, 0) && !latest.failed(start, u64::MAX));
            assert!(latest.probe_at() >= breaker.probe_at());
            assert!(latest.probe_at() <= Some(start + 1000 * MS));
        }
        breaker.begin_probe(start + 1000 * MS);
        breaker.succeeded();
        breaker.failed(start, 0);
        assert_eq!(breaker.probe_at(), Some(start + 10 * MS));
    }

    #[test]
    fn failures_of_requests_that_were_under_way_do_not_put_the_probe_off() {
        let (start, mut breaker) = (Instant::now(), Breaker::default());
        breaker.failed(start, 0);
        assert!(!breaker.failed(start + 8 * MS, 0));
        assert_eq!(breaker.probe_at(), Some(start + 10 * MS));
    }
}
