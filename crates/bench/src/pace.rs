//! When requests are to be sent in open loop: at random moments, as independent users would.

use crate::random::Random;

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Pace {
    /// A connection sends its next request as soon as it has fewer than `depth` unanswered.
    Closed,
    /// Requests are due at moments that do not ask how the server fares.
    Open { requests_per_second: f64 },
}

/// Poisson arrivals: a request that is late keeps its moment, so its wait counts as latency.
pub struct Schedule {
    random: Random,
    gap_ns: f64,
    due_ns: f64,
}

impl Schedule {
    pub fn new(requests_per_second: f64, seed: u64) -> Self {
        let mut schedule =
            Self { random: Random::new(seed), gap_ns: 1e9 / requests_per_second, due_ns: 0.0 };
        schedule.advance();
        schedule
    }

    pub fn due_ns(&self) -> u64 {
        self.due_ns as u64
    }

    pub fn advance(&mut self) {
        self.due_ns -= self.random.unit().ln() * self.gap_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_have_the_rate_and_the_spread_of_independent_users() {
        let (mut schedule, mut last, mut gaps) = (Schedule::new(1e6, 1), 0, Vec::new());
        for _ in 0..200_000 {
            gaps.push((schedule.due_ns() - last) as f64);
            last = schedule.due_ns();
            schedule.advance();
        }
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let longer = gaps.iter().filter(|&&gap| gap > mean).count() as f64 / gaps.len() as f64;
        assert!((mean - 1_000.0).abs() < 10.0, "{mean}");
        assert!((longer - (-1f64).exp()).abs() < 0.005, "{longer}");
    }
}
