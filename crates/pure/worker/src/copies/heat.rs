//! How hot a server's keys are: the sum over its workers' trackers of what they execute.

use std::collections::BTreeMap;

use mbal_sketch::{HotKeys, KeyRates, Rates};

/// By the keys' hashes.
pub(crate) type RatesByKey = BTreeMap<u64, KeyRates>;

/// A worker's tracker, by epochs of a fraction of a second. With their names and a bounded number of bytes for each its keys stay under 100 KiB.
pub(crate) struct Heat(pub HotKeys);

const TRACKED: usize = 256;
/// The newest epoch's share in a key's average.
const SMOOTHING: f32 = 0.5;
/// A key with less than this part of a worker's requests is not told of: copies of it would help nobody.
pub(crate) const SHARE_LEAST: f64 = 1.0 / 256.0;

impl Default for Heat {
    fn default() -> Heat {
        Heat(HotKeys::new(TRACKED, SMOOTHING))
    }
}

/// The newest epoch's share in what is told of a key: a key that was sampled once by chance is hardly seen.
const TOLD_SMOOTHING: f64 = 0.25;

/// What the workers of a server have counted last, and on average.
#[derive(Default)]
pub(crate) struct Heats {
    by_worker: BTreeMap<u16, RatesByKey>,
    told: BTreeMap<u16, RatesByKey>,
}

impl Heats {
    /// What a worker's tracker has said of its last epoch, and its requests a second in it.
    pub fn tell(&mut self, worker: u16, rates: RatesByKey, requests: f64) {
        let told = self.told.entry(worker).or_default();
        for known in told.values_mut() {
            known.rates.reads *= 1.0 - TOLD_SMOOTHING;
            known.rates.writes *= 1.0 - TOLD_SMOOTHING;
        }
        for (hash, KeyRates { key, rates }) in &rates {
            let new = || KeyRates { key: key.clone(), rates: Rates::default() };
            let known = &mut told.entry(*hash).or_insert_with(new).rates;
            known.reads += TOLD_SMOOTHING * rates.reads;
            known.writes += TOLD_SMOOTHING * rates.writes;
            known.sample = TOLD_SMOOTHING * rates.sample;
        }
        told.retain(|_, known| known.rates.all() > requests * SHARE_LEAST);
        self.by_worker.insert(worker, rates);
    }

    /// As the workers' last epochs say.
    pub fn sum(&self) -> RatesByKey {
        sum_of(&self.by_worker)
    }

    /// On average over the last second or so: the hottest keys alone.
    pub fn told(&self) -> RatesByKey {
        sum_of(&self.told)
    }
}

fn sum_of(by_worker: &BTreeMap<u16, RatesByKey>) -> RatesByKey {
    let mut all = RatesByKey::new();
    for (hash, KeyRates { key, rates }) in by_worker.values().flatten() {
        let new = || KeyRates { key: key.clone(), rates: Rates::default() };
        let sum = all.entry(*hash).or_insert_with(new);
        if sum.key == *key {
            sum.rates.reads += rates.reads;
            sum.rates.writes += rates.writes;
            sum.rates.sample = sum.rates.sample.max(rates.sample);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use mbal_sketch::Access;

    use super::*;

    #[test]
    fn rates_are_of_the_epoch_that_ends_and_of_all_workers() {
        let (mut first, mut second) = (Heat::default().0, Heat::default().0);
        (0..10).for_each(|_| first.observe(1, b"hot", Access::Read));
        first.observe(1, b"hot", Access::Write);
        second.observe(1, b"hot", Access::Read);
        second.observe(2, b"cold", Access::Read);
        let mut heats = Heats::default();
        heats.tell(0, first.rates(0.5, 110.0, SHARE_LEAST, |_| true), 220.0);
        heats.tell(1, second.rates(0.5, 80.0, SHARE_LEAST, |_| true), 160.0);
        let all = heats.sum();
        let KeyRates { key, rates } = &all[&1];
        assert_eq!((rates.reads, rates.writes, &**key), (140.0, 10.0, &b"hot"[..]));
        assert_eq!(all.len(), 2);
        assert_eq!(heats.told()[&1].rates.reads, 35.0);
    }
}
