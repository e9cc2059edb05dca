//! What a run came to: counts over its measured window, latencies of the requests that were due in it.

use hdrhistogram::Histogram;

use crate::replies::Answer;

/// The longest latency that is told apart: a minute, in ns.
pub const LATENCY_NS_MAX: u64 = 60_000_000_000;
const WRONG_SHOWN_MAX: usize = 10;

/// What was answered.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    pub requests: u64,
    pub gets: u64,
    pub hits: u64,
    pub sets: u64,
    /// Deletes, counters, and adds of what was there.
    pub others: u64,
}

impl Counts {
    /// One key's reply.
    pub fn count(&mut self, outcome: &Answer) {
        match outcome {
            Answer::Hit => (self.gets, self.hits) = (self.gets + 1, self.hits + 1),
            Answer::Miss => self.gets += 1,
            Answer::Stored => self.sets += 1,
            Answer::Done => self.others += 1,
            _ => {}
        }
    }

    /// Operations on single keys.
    pub fn keys(&self) -> u64 {
        self.gets + self.sets + self.others
    }

    pub fn hit_ratio(&self) -> Option<f64> {
        (self.gets > 0).then(|| self.hits as f64 / self.gets as f64)
    }

    pub fn join(&mut self, other: &Self) {
        self.requests += other.requests;
        self.gets += other.gets;
        self.hits += other.hits;
        self.sets += other.sets;
        self.others += other.others;
    }
}

#[derive(Clone, Debug)]
pub struct Tally {
    /// Within the window.
    pub counts: Counts,
    /// Before the window, and after it: what the server counts beside.
    pub outside: Counts,
    /// Gets within the window that copies of hot keys have answered.
    pub from_copies: u64,
    pub seconds: f64,
    /// From the intended moment in open loop, from sending in closed loop; in ns.
    pub latency: Histogram<u64>,
    /// The same of writes alone.
    pub writes: Histogram<u64>,
    /// How late the generator itself was with requests that a connection was free for; in ns.
    pub lag: Histogram<u64>,
    /// Requests that were due and could not be sent before the run was given up; their latency so far counts.
    pub unsent: u64,
    /// Requests over UDP whose reply never came.
    pub lost: u64,
    pub wrong: u64,
    pub wrong_shown: Vec<String>,
}

impl Default for Tally {
    fn default() -> Self {
        let histogram =
            || Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("constant, valid bounds");
        Self {
            counts: Counts::default(),
            outside: Counts::default(),
            from_copies: 0,
            seconds: 0.0,
            latency: histogram(),
            writes: histogram(),
            lag: histogram(),
            unsent: 0,
            lost: 0,
            wrong: 0,
            wrong_shown: Vec::new(),
        }
    }
}

impl Tally {
    pub fn blame(&mut self, wrong: String) {
        self.wrong += 1;
        if self.wrong_shown.len() < WRONG_SHOWN_MAX {
            self.wrong_shown.push(wrong);
        }
    }

    /// Joins another thread's share of the same run.
    pub fn join(&mut self, other: Self) {
        self.counts.join(&other.counts);
        self.outside.join(&other.outside);
        self.from_copies += other.from_copies;
        self.seconds = self.seconds.max(other.seconds);
        self.latency.add(&other.latency).expect("both have the same bounds");
        self.writes.add(&other.writes).expect("both have the same bounds");
        self.lag.add(&other.lag).expect("both have the same bounds");
        self.unsent += other.unsent;
        self.lost += other.lost;
        self.wrong += other.wrong;
        self.wrong_shown.extend(other.wrong_shown);
        self.wrong_shown.truncate(WRONG_SHOWN_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_all_threads_together() {
        let (mut left, mut right) = (Tally::default(), Tally::default());
        (1..=500).for_each(|us| left.latency.record(us * 1_000).unwrap());
        (501..=1_000).for_each(|us| right.latency.record(us * 1_000).unwrap());
        left.join(right);
        for (quantile, us) in [(0.5, 500.0), (0.99, 990.0), (0.999, 999.0), (1.0, 1_000.0)] {
            let told = left.latency.value_at_quantile(quantile) as f64 / 1e3;
            assert!((told / us - 1.0).abs() < 1e-3, "{quantile}: {told}");
        }
    }
}
