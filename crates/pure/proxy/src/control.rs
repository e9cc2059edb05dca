//! NetKV's control (ICAC 2016): which keys are hot, and how many copies each gets, decided once an interval.

use std::collections::BTreeMap;
use std::time::Duration;

use mbal_balance::{Demand, Prediction, Threshold, choose_threshold, copies};
use mbal_model::Instant;
use mbal_sketch::{HyperLogLog, LossyCounter, Sampler};

/// What an operator decides of copies.
#[derive(Clone, Copy, Debug)]
pub struct Replication {
    pub interval: Duration,
    /// The busiest upstream is to have at most so many times the average's requests.
    pub target: f64,
    /// Of the requests that are looked at.
    pub sampling: f64,
}

/// Keys with copies, at most.
const HOT_MAX: usize = 256;
/// A key with less than this share of the requests is not tracked, and how wrong its count may be.
const SUPPORT: f64 = 0.002;
const ERROR: f64 = 0.0005;
/// Fewer samples say nothing.
const SAMPLES_MIN: u64 = 50;
const PRECISION: u32 = 12;

/// The sketches of one interval.
pub(crate) struct Control {
    pub replication: Replication,
    sampler: Sampler,
    counter: LossyCounter,
    distinct: HyperLogLog,
    /// Names of sampled keys, of which the counter knows hashes alone.
    names: BTreeMap<u64, Box<[u8]>>,
    pub ends_at: Instant,
    /// Of the last interval in which there was something to decide.
    pub decided: Option<Threshold>,
}

impl Control {
    pub fn new(replication: Replication, seed: u64, now: Instant) -> Control {
        Control {
            replication,
            sampler: Sampler::new(replication.sampling, seed),
            counter: LossyCounter::new(SUPPORT, ERROR),
            distinct: HyperLogLog::new(PRECISION),
            names: BTreeMap::new(),
            ends_at: now + replication.interval,
            decided: None,
        }
    }

    /// A request for a key, by its hash if it is looked at.
    #[inline]
    pub fn observe(&mut self, key: &[u8], hash: u64) {
        if self.sampler.choose() {
            self.count(key, hash);
        }
    }

    /// A request that was chosen.
    pub fn count(&mut self, key: &[u8], hash: u64) {
        self.counter.observe(hash);
        self.distinct.observe(hash);
        if self.names.len() < 4 * self.counter.tracked().max(HOT_MAX) {
            self.names.entry(hash).or_insert_with(|| key.into());
        }
    }

    /// The last threshold, in requests per second: those that are not looked at count too.
    pub fn threshold_per_second(&self) -> Option<Threshold> {
        let seconds = self.replication.interval.as_secs_f64();
        self.decided.map(|decided| Threshold {
            requests_per_copy: decided.requests_per_copy / self.replication.sampling / seconds,
            ..decided
        })
    }

    /// The interval is over: hot keys by hash and name, and how many copies each is to have, its home included.
    pub fn decide(&mut self, upstreams: usize, now: Instant) -> Vec<(u64, Box<[u8]>, u32)> {
        self.ends_at = now + self.replication.interval;
        let mut hot = Vec::new();
        if self.counter.seen() >= SAMPLES_MIN && upstreams > 1 {
            let tracked = self.counter.frequent();
            let demand = Demand {
                tracked: tracked.iter().map(|key| f64::from(key.count)).collect(),
                requests: self.counter.seen() as f64,
                keys: self.distinct.distinct(),
                bins: upstreams,
            };
            let threshold = choose_threshold(&demand, self.replication.target, Prediction::Typical);
            self.decided = Some(threshold);
            for key in tracked.iter().take(HOT_MAX) {
                let wanted = copies(f64::from(key.count), threshold.requests_per_copy);
                if let Some(name) = self.names.get(&key.hash).filter(|_| wanted > 1) {
                    hot.push((key.hash, name.clone(), wanted.min(64 * upstreams as u32)));
                }
            }
        }
        self.counter.next_interval(hot.len());
        self.distinct.clear();
        self.names.clear();
        hot
    }
}
