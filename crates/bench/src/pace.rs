//! When requests are to be sent in open loop: at random moments, as independent users would, or as recorded.

use std::sync::Arc;
use std::time::Duration;

use mbal_random::Random;

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Pace {
    /// A connection sends its next request as soon as it has fewer than `depth` unanswered.
    Closed,
    /// Requests are due at moments that do not ask how the server fares.
    Open { requests_per_second: f64 },
    /// The same, with a rate that changes evenly from the start of the measured window on.
    Ramp { from: f64, to: f64, over: Duration },
    /// As recorded, so many times as fast.
    Recorded { speed: f64 },
}

impl Pace {
    /// What falls to one of so many threads; recorded moments are shared out one by one.
    pub fn of_one(self, threads: usize) -> Self {
        let n = threads as f64;
        match self {
            Self::Open { requests_per_second } => {
                Self::Open { requests_per_second: requests_per_second / n }
            }
            Self::Ramp { from, to, over } => Self::Ramp { from: from / n, to: to / n, over },
            Self::Closed | Self::Recorded { .. } => self,
        }
    }
}

impl Pace {
    /// What is offered so many seconds after the measured window began; recorded moments have no rate.
    pub fn requests_per_second(self, seconds: f64) -> Option<f64> {
        match self {
            Self::Open { requests_per_second } => Some(requests_per_second),
            Self::Ramp { from, to, over } => {
                let done = (seconds / over.as_secs_f64()).clamp(0.0, 1.0);
                Some(from + (to - from) * done)
            }
            Self::Closed | Self::Recorded { .. } => None,
        }
    }
}

impl std::fmt::Display for Pace {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Self::Closed => write!(f, "closed loop"),
            Self::Open { requests_per_second } => write!(f, "open loop {requests_per_second:.0}/s"),
            Self::Ramp { from, to, .. } => write!(f, "open loop {from:.0} to {to:.0}/s"),
            Self::Recorded { speed } => write!(f, "recorded pace × {speed}"),
        }
    }
}

/// Later than any run.
const NEVER: f64 = f64::MAX;

/// When a trace's requests came: every `step`-th of these, from `first` on.
#[derive(Clone, PartialEq, Debug)]
pub struct Moments {
    pub seconds: Arc<[f64]>,
    pub first: usize,
    pub step: usize,
}

/// A request that is late keeps its moment, so its wait counts as latency.
pub struct Schedule {
    pace: Pace,
    moments: Option<Moments>,
    random: Random,
    warmup_ns: f64,
    due_ns: f64,
    /// How many moments have passed.
    passed: usize,
}

impl Schedule {
    pub fn new(pace: Pace, moments: Option<Moments>, warmup: Duration, seed: u64) -> Self {
        let (random, warmup_ns) = (Random::new(seed), warmup.as_nanos() as f64);
        let mut schedule = Self { pace, moments, random, warmup_ns, due_ns: 0.0, passed: 0 };
        match pace {
            Pace::Recorded { speed } => schedule.due_ns = schedule.recorded(speed),
            _ => schedule.advance(),
        }
        schedule
    }

    pub fn due_ns(&self) -> u64 {
        self.due_ns as u64
    }

    /// No further request will be due: all recorded moments have passed.
    pub fn is_over(&self) -> bool {
        self.due_ns == NEVER
    }

    pub fn advance(&mut self) {
        self.passed += 1;
        let rate = match self.pace {
            Pace::Closed => unreachable!("a closed loop has no schedule"),
            Pace::Recorded { speed } => {
                self.due_ns = self.recorded(speed);
                return;
            }
            pace => {
                let rate = pace.requests_per_second((self.due_ns - self.warmup_ns) / 1e9);
                rate.expect("neither a closed loop nor recorded")
            }
        };
        // Arrivals of independent users (Poisson).
        self.due_ns -= self.random.unit().ln() * 1e9 / rate;
    }

    /// After the last moment none is ever due.
    fn recorded(&self, speed: f64) -> f64 {
        let Some(Moments { seconds, first, step }) = &self.moments else { return NEVER };
        let moment = seconds.get(first + self.passed * step);
        moment.map_or(NEVER, |moment| (moment - seconds[0]).max(0.0) / speed * 1e9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(pace: Pace, count: usize) -> Vec<u64> {
        of(Schedule::new(pace, None, Duration::ZERO, 1), count)
    }

    fn of(mut schedule: Schedule, count: usize) -> Vec<u64> {
        std::iter::repeat_with(|| {
            let due = schedule.due_ns();
            schedule.advance();
            due
        })
        .take(count)
        .collect()
    }

    #[test]
    fn arrivals_have_the_rate_and_the_spread_of_independent_users() {
        let due = moments(Pace::Open { requests_per_second: 1e6 }, 200_001);
        let gaps: Vec<f64> = due.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let longer = gaps.iter().filter(|&&gap| gap > mean).count() as f64 / gaps.len() as f64;
        assert!((mean - 1_000.0).abs() < 10.0, "{mean}");
        assert!((longer - (-1f64).exp()).abs() < 0.005, "{longer}");
    }

    #[test]
    fn a_ramp_ends_at_its_rate_after_having_sent_the_mean_of_both() {
        let over = Duration::from_secs(10);
        let due = moments(Pace::Ramp { from: 1_000.0, to: 9_000.0, over }, 200_000);
        let within = |from: u64, to: u64| {
            due.iter().filter(|due| (from..to).contains(&(**due / 1_000_000_000))).count()
        };
        for (seen, wanted) in
            [(within(0, 1), 1_400), (within(0, 10), 50_000), (within(10, 15), 45_000)]
        {
            assert!(seen.abs_diff(wanted) < 4 * wanted.isqrt() + 20, "{seen}, not {wanted}");
        }
    }

    #[test]
    fn recorded_moments_are_kept_and_shared_out() {
        let seconds: Arc<[f64]> = [5.0, 5.5, 6.0, 8.0].into();
        let recorded = |first, step, count| {
            let moments = Moments { seconds: seconds.clone(), first, step };
            let pace = Pace::Recorded { speed: 2.0 };
            of(Schedule::new(pace, Some(moments), Duration::ZERO, 1), count)
        };
        assert_eq!(recorded(0, 1, 4), [0, 250_000_000, 500_000_000, 1_500_000_000]);
        assert_eq!(recorded(1, 2, 2), [250_000_000, 1_500_000_000]);
        assert!(recorded(0, 1, 5)[4] > 1 << 60);
    }
}
