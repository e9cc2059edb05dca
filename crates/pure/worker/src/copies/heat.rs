//! Which keys are hot: a worker's tracker of those that it executes (SPORE's SSM cache, SoCC 2013, §3.3), and the sum over a
//! server's workers.

use std::collections::BTreeMap;

use mbal_model::Key;
use mbal_sketch::{Access, HotKeys, HotKeysConfig, Observed};

/// Keys that a worker tracks. With their names and a bounded number of bytes for each they stay under 100 KiB.
const TRACKED: usize = 256;
/// The newest epoch's share in a key's average.
const SMOOTHING: f32 = 0.5;

/// One worker's tracker, by epochs of a fraction of a second.
pub(crate) struct Heat {
    keys: HotKeys,
    /// By slot.
    names: Vec<Box<[u8]>>,
    samples: u64,
}

/// A key's requests in a second.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Rates {
    pub key: Box<[u8]>,
    pub reads: f64,
    pub writes: f64,
}

impl Default for Heat {
    fn default() -> Heat {
        // What is hot is decided where the rates of all workers are known.
        let config = HotKeysConfig {
            capacity: TRACKED,
            hot_score: f32::INFINITY,
            smoothing: SMOOTHING,
            ..HotKeysConfig::default()
        };
        Heat { keys: HotKeys::new(config), names: vec![Box::default(); TRACKED], samples: 0 }
    }
}

impl Heat {
    pub fn observe(&mut self, key: &Key<'_>, access: Access) {
        self.samples += 1;
        if let Observed::Admitted(slot) = self.keys.observe(key.hash(), access) {
            self.names[slot as usize] = key.bytes().into();
        }
    }

    /// Ends an epoch of so many seconds, in which a sample stood for so many requests: the rates of all keys with at least
    /// `least` requests a second, by their hashes.
    pub fn tick(&mut self, seconds: f64, stands_for: f64, least: f64) -> BTreeMap<u64, Rates> {
        let mut hot = BTreeMap::new();
        // Nothing is sampled on a server that rests: its averages may wait.
        if self.samples == 0 && self.keys.tracked().next().is_none() {
            return hot;
        }
        self.samples = 0;
        let scale = stands_for / seconds;
        for slot in self.keys.tracked() {
            // As the epoch ends: the average of those before, and what this one has counted.
            let rate = |access| {
                let (past, now) = self.keys.sampled(slot, access);
                f64::from(past + SMOOTHING * (now as f32 - past)) * scale
            };
            let (reads, writes) = (rate(Access::Read), rate(Access::Write));
            if reads + writes >= least {
                let key = self.names[slot as usize].clone();
                hot.insert(self.keys.hash(slot), Rates { key, reads, writes });
            }
        }
        self.keys.tick(&mut Vec::new());
        hot
    }
}

/// What the workers of a server have told last.
#[derive(Default)]
pub(crate) struct Heats {
    by_worker: BTreeMap<u16, BTreeMap<u64, Rates>>,
}

impl Heats {
    pub fn tell(&mut self, worker: u16, hot: BTreeMap<u64, Rates>) {
        self.by_worker.insert(worker, hot);
    }

    pub fn sum(&self) -> BTreeMap<u64, Rates> {
        let mut all: BTreeMap<u64, Rates> = BTreeMap::new();
        for (hash, rates) in self.by_worker.values().flatten() {
            let sum = all.entry(*hash).or_insert_with(|| Rates {
                key: rates.key.clone(),
                reads: 0.0,
                writes: 0.0,
            });
            if sum.key == rates.key {
                sum.reads += rates.reads;
                sum.writes += rates.writes;
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_the_epoch_that_ends_and_of_all_workers() {
        let (mut first, mut second) = (Heat::default(), Heat::default());
        let hot = Key::new(b"hot").expect("a key");
        for _ in 0..10 {
            first.observe(&hot, Access::Read);
        }
        first.observe(&hot, Access::Write);
        second.observe(&hot, Access::Read);
        second.observe(&Key::new(b"cold").expect("a key"), Access::Read);
        let mut heats = Heats::default();
        heats.tell(0, first.tick(0.5, 10.0, 20.0));
        heats.tell(1, second.tick(0.5, 40.0, 20.0));
        let all = heats.sum();
        let rates = &all[&hot.hash()];
        assert_eq!((rates.reads, rates.writes, &*rates.key), (140.0, 10.0, &b"hot"[..]));
        assert_eq!(all.len(), 2);
        assert_eq!(first.tick(0.5, 10.0, 0.0)[&hot.hash()].reads, 50.0, "half of what it was");
    }
}
