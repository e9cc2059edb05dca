//! Frequent keys of a stream in bounded memory, as NetKV counts them: what the tracker of hot keys is held against.
#![forbid(unsafe_code)]

#[allow(dead_code)]
#[path = "../../../crates/pure/sketch/src/table.rs"]
mod table;

use table::Table;

/// The frequent keys of a stream, after Manku and Motwani's lossy counting (NetKV, ICAC 2016, §IV.A).
///
/// The stream is cut into windows of 1/error keys; at the end of each, keys that cannot be
/// frequent are dropped. For a stream of length N: every key that occurs at least support × N
/// times is reported, none that occurs less than (support − error) × N times is, and a count is
/// low by at most error × N. Memory is at most 1/error × ln(error × N) keys of 22 to 43 bytes,
/// in practice about 1/error keys. Amortised O(1) per key.
#[derive(Clone, Debug)]
pub struct LossyCounter {
    support: f64,
    error: f64,
    error_most: f64,
    window_keys: u64,
    window_left: u64,
    /// Windows completed: how often a key may have occurred that is not here.
    missed_most: u32,
    seen: u64,
    /// By hash: its count, and how often it may have occurred before that began.
    keys: Table,
}

/// A key that the counter reports. It occurred between `count` and `count + missed_most` times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frequent {
    pub hash: u64,
    pub count: u32,
    pub missed_most: u32,
}

/// However hot the keys, a counter remembers fewer than some 64 thousand at a time.
const ERROR_LEAST: f64 = 1.0 / 65_536.0;

impl LossyCounter {
    /// Both are shares of the stream, 0 < error < support < 1.
    pub fn new(support: f64, error: f64) -> LossyCounter {
        assert!(
            ERROR_LEAST <= error && error < support && support < 1.0,
            "error {error}, support {support}"
        );
        let window_keys = (1.0 / error).ceil() as u64;
        LossyCounter {
            support,
            error,
            error_most: error,
            window_keys,
            window_left: window_keys,
            missed_most: 0,
            seen: 0,
            keys: Table::new(window_keys as usize),
        }
    }

    #[inline]
    pub fn observe(&mut self, hash: u64) {
        self.seen += 1;
        let cell = self.keys.cell(hash);
        let new = cell.is_empty();
        cell.mark = if new { self.missed_most } else { cell.mark };
        cell.amount += 1;
        self.keys.added(usize::from(new));
        self.window_left -= 1;
        if self.window_left == 0 {
            self.window_left = self.window_keys;
            self.missed_most += 1;
            self.drop_rare();
        }
    }

    /// The length of the stream so far.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// How many keys are remembered, frequent or not.
    pub fn tracked(&self) -> usize {
        self.keys.len()
    }

    pub fn error(&self) -> f64 {
        self.error
    }

    /// All keys that may reach the support, the most frequent first. O(k log k).
    pub fn frequent(&self) -> Vec<Frequent> {
        self.at_least((self.support - self.error) * self.seen as f64)
    }

    /// The `most` keys counted most often, whatever their share.
    pub fn top(&self, most: usize) -> Vec<Frequent> {
        let mut top = self.at_least(0.0);
        top.truncate(most);
        top
    }

    fn at_least(&self, count: f64) -> Vec<Frequent> {
        let mut frequent: Vec<Frequent> = self
            .keys
            .cells()
            .filter(|cell| f64::from(cell.amount) >= count)
            .map(|cell| Frequent { hash: cell.hash, count: cell.amount, missed_most: cell.mark })
            .collect();
        // By hash among equals: the order must not depend on the order of arrival.
        frequent.sort_unstable_by_key(|key| (std::cmp::Reverse(key.count), key.hash));
        frequent
    }

    /// Starts the next interval. `replicated` of the reported keys were hot enough to copy.
    ///
    /// When that was all of them, colder keys that nobody saw may be hot as well: support and
    /// error are halved, so that more keys are tracked (NetKV, ICAC 2016, §IV.A). They grow back when
    /// fewer than a quarter were hot.
    pub fn next_interval(&mut self, replicated: usize) {
        let reported = self.frequent().len();
        let scale = if reported > 0 && replicated >= reported {
            0.5_f64.max(ERROR_LEAST / self.error)
        } else if 4 * replicated < reported {
            2.0_f64.min(self.error_most / self.error)
        } else {
            1.0
        };
        self.error *= scale;
        self.support *= scale;
        self.window_keys = (1.0 / self.error).ceil() as u64;
        self.window_left = self.window_keys;
        self.missed_most = 0;
        self.seen = 0;
        self.keys.clear();
    }

    fn drop_rare(&mut self) {
        let missed_most = self.missed_most;
        self.keys.retain(|cell| cell.amount + cell.mark > missed_most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mbal_random::{Random, mix};
    use std::collections::BTreeMap;

    // Key k with probability proportional to 1/k, roughly: enough skew for both sides of a bound.
    fn skewed(requests: usize, seed: u64) -> Vec<u64> {
        let mut bits = Random::new(seed);
        (0..requests).map(|_| mix((5_000f64.powf(bits.unit())) as u64)).collect()
    }

    fn exact(stream: &[u64]) -> BTreeMap<u64, u32> {
        let mut counts = BTreeMap::new();
        for &key in stream {
            *counts.entry(key).or_insert(0) += 1;
        }
        counts
    }

    fn assert_guarantees(counter: &LossyCounter, stream: &[u64], support: f64, error: f64) {
        let length = stream.len() as f64;
        let truth = exact(stream);
        let reported: BTreeMap<u64, Frequent> =
            counter.frequent().into_iter().map(|key| (key.hash, key)).collect();
        for (&hash, &count) in &truth {
            if f64::from(count) >= support * length {
                assert!(reported.contains_key(&hash), "a frequent key is missing: {count}");
            }
        }
        for (hash, key) in reported {
            let count = truth[&hash];
            assert!(f64::from(count) >= (support - error) * length, "a rare key: {count}");
            assert!(key.count <= count && count <= key.count + key.missed_most);
            assert!(f64::from(count - key.count) <= error * length + 1.0);
        }
    }

    #[test]
    fn reports_every_frequent_key_and_no_rare_one() {
        for seed in 0..20 {
            let stream = skewed(60_000, seed);
            let mut counter = LossyCounter::new(0.005, 0.001);
            stream.iter().for_each(|&key| counter.observe(key));
            assert_guarantees(&counter, &stream, 0.005, 0.001);
            assert!(counter.tracked() < 2_000, "{}", counter.tracked());
        }
    }

    #[test]
    fn tracks_more_keys_after_an_interval_in_which_all_were_hot() {
        let mut counter = LossyCounter::new(0.04, 0.01);
        let stream = skewed(10_000, 1);
        stream.iter().for_each(|&key| counter.observe(key));
        let narrow = counter.frequent().len();
        counter.next_interval(narrow);
        stream.iter().for_each(|&key| counter.observe(key));
        assert_eq!(counter.error(), 0.005);
        assert!(counter.frequent().len() > narrow);
        counter.next_interval(0);
        assert_eq!(counter.error(), 0.01);
        assert_eq!((counter.seen(), counter.tracked()), (0, 0));
    }

    #[test]
    fn the_error_stops_halving_at_its_floor() {
        let mut counter = LossyCounter::new(0.5, 0.1);
        for _ in 0..40 {
            counter.observe(1);
            counter.next_interval(1);
        }
        assert!((counter.error() / ERROR_LEAST - 1.0).abs() < 1e-9, "{}", counter.error());
    }
}
