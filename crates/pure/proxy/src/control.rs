//! NetKV's control (ICAC 2016): which keys are hot, and how many copies each gets, decided once an interval.

use std::time::Duration;

use mbal_balance::hot::{COPY_WORTH, virtual_threshold};
use mbal_balance::{Demand, Threshold, copies};
use mbal_model::Instant;
use mbal_sketch::{Access, HotKeys, HyperLogLog, KeyRates, Sampler};

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
/// Keys that are tracked, and the share of the requests from which one is looked at, unless less would fill a copy.
const TRACKED: usize = 4096;
const SHARE_LEAST: f64 = 0.0015;
/// Fewer samples say nothing.
const SAMPLES_MIN: u64 = 50;
const PRECISION: u32 = 12;

/// What is counted in one interval.
pub(crate) struct Control {
    pub replication: Replication,
    sampler: Sampler,
    keys: HotKeys,
    distinct: HyperLogLog,
    pub ends_at: Instant,
    /// Of the last interval in which there was something to decide.
    pub decided: Option<Threshold>,
}

impl Control {
    pub fn new(replication: Replication, seed: u64, now: Instant) -> Control {
        Control {
            replication,
            sampler: Sampler::new(replication.sampling, seed),
            // Only the last interval counts.
            keys: HotKeys::new(TRACKED, 1.0),
            distinct: HyperLogLog::new(PRECISION),
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
        self.keys.observe(hash, key, Access::Read);
        self.distinct.observe(hash);
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
        let samples = self.keys.samples();
        let share_least = SHARE_LEAST.min(COPY_WORTH / upstreams.max(1) as f64);
        let told = self.keys.rates(1.0, samples as f64, share_least, |_| false);
        let mut hot = Vec::new();
        if samples >= SAMPLES_MIN && upstreams > 1 {
            let mut told: Vec<(u64, KeyRates)> = told.into_iter().collect();
            told.sort_by(|a, b| b.1.rates.reads.total_cmp(&a.1.rates.reads).then(a.0.cmp(&b.0)));
            let demand = Demand {
                tracked: told.iter().map(|(_, told)| told.rates.reads).collect(),
                requests: samples as f64,
                keys: self.distinct.distinct(),
                bins: upstreams,
            };
            let threshold = virtual_threshold(&demand, self.replication.target);
            self.decided = Some(threshold);
            for (hash, KeyRates { key, rates }) in told.into_iter().take(HOT_MAX) {
                let wanted = copies(rates.reads, threshold.requests_per_copy);
                if wanted > 1 {
                    hot.push((hash, key, wanted.min(64 * upstreams as u32)));
                }
            }
        }
        self.distinct.clear();
        hot
    }
}
