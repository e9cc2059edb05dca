//! Which keys are hot: a worker's tracker of those that it executes (SPORE's SSM cache, SoCC 2013, §3.3), and the sum over a
//! server's workers.

use std::collections::BTreeMap;

use mbal_model::Key;
use mbal_sketch::{Access, HotKeys, HotKeysConfig, Observed};

/// Keys that a worker tracks. With their names and a bounded number of bytes for each they stay under 100 KiB.
const TRACKED: usize = 256;
/// The newest epoch's share in a key's average.
const SMOOTHING: f32 = 0.5;
/// A key with less than this part of a worker's requests is not told of: copies of it would help nobody.
const LEAST: f64 = 1.0 / 256.0;
/// Nor is one that was sampled less often in an epoch, on average: chance does that.
const SAMPLES_LEAST: f32 = 1.0;

/// One worker's tracker, by epochs of a fraction of a second.
pub(crate) struct Heat {
    keys: HotKeys,
    /// By slot.
    names: Vec<Box<[u8]>>,
    samples: u64,
    /// Requests for a sample, in the last epoch that had one.
    stood_for: f64,
}

/// A key's requests in a second.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Rates {
    pub key: Box<[u8]>,
    pub reads: f64,
    pub writes: f64,
    /// What one sample more would have added; 0 of what is counted exactly.
    pub sample: f64,
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
        Heat {
            keys: HotKeys::new(config),
            names: vec![Box::default(); TRACKED],
            samples: 0,
            stood_for: 1.0,
        }
    }
}

impl Heat {
    pub fn observe(&mut self, key: &Key<'_>, access: Access) {
        self.samples += 1;
        if let Observed::Admitted(slot) = self.keys.observe(key.hash(), access) {
            self.names[slot as usize] = key.bytes().into();
        }
    }

    /// Ends an epoch of so many seconds, in which so many requests were executed: the rates of the keys that matter, by their hashes.
    /// `counts`: those that matter however small their rates are.
    pub fn tick(
        &mut self,
        seconds: f64,
        requests: f64,
        counts: impl Fn(u64) -> bool,
    ) -> BTreeMap<u64, Rates> {
        let samples = std::mem::take(&mut self.samples) as f64;
        self.keys.tick(&mut Vec::new());
        // Without a sample there is nothing that it stands for: what is known fades.
        let stands_for = if samples > 0.0 { (requests / samples).max(1.0) } else { self.stood_for };
        self.stood_for = stands_for;
        let scale = stands_for / seconds;
        let rates = |slot| {
            let rate = |access| f64::from(self.keys.sampled(slot, access).0) * scale;
            let (reads, writes) = (rate(Access::Read), rate(Access::Write));
            let sample = f64::from(SMOOTHING) * scale;
            Rates { key: self.names[slot as usize].clone(), reads, writes, sample }
        };
        // Most of what is tracked was sampled by chance: its names are not copied.
        let least = SAMPLES_LEAST.max((requests / seconds * LEAST / scale) as f32);
        let told = self.keys.tracked().filter(|slot| {
            let sampled = |access| self.keys.sampled(*slot, access).0;
            let all = sampled(Access::Read) + sampled(Access::Write);
            all >= least || all > 0.0 && counts(self.keys.hash(*slot))
        });
        told.map(|slot| (self.keys.hash(slot), rates(slot))).collect()
    }
}

/// The newest epoch's share in what is told of a key: a key that was sampled once by chance is hardly seen.
const TOLD_SMOOTHING: f64 = 0.25;

/// What the workers of a server have counted last, and on average.
#[derive(Default)]
pub(crate) struct Heats {
    by_worker: BTreeMap<u16, BTreeMap<u64, Rates>>,
    told: BTreeMap<u16, BTreeMap<u64, Rates>>,
}

impl Heats {
    /// What a worker's tracker has said of its last epoch, and its requests a second in it.
    pub fn tell(&mut self, worker: u16, rates: BTreeMap<u64, Rates>, requests: f64) {
        let told = self.told.entry(worker).or_default();
        for known in told.values_mut() {
            known.reads *= 1.0 - TOLD_SMOOTHING;
            known.writes *= 1.0 - TOLD_SMOOTHING;
        }
        for (hash, new) in &rates {
            let known = told.entry(*hash).or_insert_with(|| Rates {
                reads: 0.0,
                writes: 0.0,
                ..new.clone()
            });
            known.reads += TOLD_SMOOTHING * new.reads;
            known.writes += TOLD_SMOOTHING * new.writes;
            known.sample = TOLD_SMOOTHING * new.sample;
        }
        told.retain(|_, known| known.reads + known.writes > requests * LEAST);
        self.by_worker.insert(worker, rates);
    }

    /// As the workers' last epochs say.
    pub fn sum(&self) -> BTreeMap<u64, Rates> {
        sum_of(&self.by_worker)
    }

    /// On average over the last second or so: the hottest keys alone.
    pub fn told(&self) -> BTreeMap<u64, Rates> {
        sum_of(&self.told)
    }
}

fn sum_of(by_worker: &BTreeMap<u16, BTreeMap<u64, Rates>>) -> BTreeMap<u64, Rates> {
    let mut all: BTreeMap<u64, Rates> = BTreeMap::new();
    for (hash, rates) in by_worker.values().flatten() {
        let sum =
            all.entry(*hash).or_insert_with(|| Rates { reads: 0.0, writes: 0.0, ..rates.clone() });
        if sum.key == rates.key {
            sum.reads += rates.reads;
            sum.writes += rates.writes;
            sum.sample = sum.sample.max(rates.sample);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tracker_that_is_full_of_the_longest_keys_has_at_most_100_kib() {
        let mut heat = Heat::default();
        for number in 0..100_000 {
            let name = format!("{number:0250}");
            heat.observe(&Key::new(name.as_bytes()).expect("a key"), Access::Read);
        }
        let names: usize = heat.names.iter().map(|name| size_of::<Box<[u8]>>() + name.len()).sum();
        let bytes = size_of::<Heat>() + heat.keys.bytes() + names;
        assert_eq!(heat.keys.tracked().count(), TRACKED);
        assert!(bytes <= 100 << 10, "{bytes} bytes");
    }

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
        heats.tell(0, first.tick(0.5, 110.0, |_| true), 220.0);
        heats.tell(1, second.tick(0.5, 80.0, |_| true), 160.0);
        let all = heats.sum();
        let rates = &all[&hot.hash()];
        assert_eq!((rates.reads, rates.writes, &*rates.key), (140.0, 10.0, &b"hot"[..]));
        assert_eq!(all.len(), 2);
        assert_eq!(heats.told()[&hot.hash()].reads, 35.0);
        assert_eq!(first.tick(0.5, 0.0, |_| true)[&hot.hash()].reads, 50.0, "half of what it was");
    }

    #[test]
    fn keys_that_were_sampled_by_chance_are_not_told_of_unless_they_count() {
        let key = |name: &str| Key::new(name.as_bytes()).expect("a key").hash();
        for samples in [60, 6_000] {
            let mut heat = Heat::default();
            for number in 0..samples {
                let chance = format!("{number}");
                heat.observe(&Key::new(chance.as_bytes()).expect("a key"), Access::Read);
                if number % 10 == 0 {
                    heat.observe(&Key::new(b"hot").expect("a key"), Access::Read);
                }
            }
            let last = key(&format!("{}", samples - 1));
            let told = heat.tick(0.2, 33.0 * f64::from(samples), |hash| hash == last);
            let mut hashes = [key("hot"), last];
            hashes.sort();
            assert_eq!(told.into_keys().collect::<Vec<_>>(), hashes, "{samples} samples");
        }
    }
}
