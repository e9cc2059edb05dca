//! How hot a server's keys are: the sum over its workers' trackers of what they execute.

use std::collections::BTreeMap;
use std::time::Duration;

use mbal_balance::hot::{OneMachine, own_threshold};
use mbal_model::{Instant, Key, ServerId};
use mbal_sketch::{Access, HotKeys, KeyRates, Rates};

/// By the keys' hashes.
pub(crate) type RatesByKey = BTreeMap<u64, KeyRates>;

/// A worker's tracker, by epochs of a fraction of a second. With their names and a bounded number of bytes for each its keys stay under 100 KiB.
#[repr(align(128))]
pub(crate) struct Heat {
    keys: HotKeys,
    /// What the samples of this epoch stand for: requests executed, forwarded, or answered from copies.
    requests: f64,
}

const TRACKED: usize = 256;
/// The newest epoch's share in a key's average.
const SMOOTHING: f32 = 0.5;
/// A key with less than this part of a worker's requests is not told of: copies of it would help nobody.
const SHARE_LEAST: f64 = 1.0 / 256.0;

impl Default for Heat {
    fn default() -> Heat {
        Heat { keys: HotKeys::new(TRACKED, SMOOTHING), requests: 0.0 }
    }
}

impl Heat {
    pub fn observe(&mut self, key: &Key<'_>, access: Access, stands_for: f64) {
        self.requests += stands_for;
        self.keys.observe(key.hash(), key.bytes(), access);
    }

    /// Ends an epoch of so many seconds: the rates of the keys that matter, and that of all requests. `counts`: keys that matter however small
    /// their rates are.
    pub fn end_epoch(&mut self, seconds: f64, counts: impl Fn(u64) -> bool) -> (RatesByKey, f64) {
        let requests = std::mem::take(&mut self.requests);
        (self.keys.rates(seconds, requests, SHARE_LEAST, counts), requests / seconds)
    }
}

/// The newest epoch's share in what is told of a key: a key that was sampled once by chance is hardly seen.
const TOLD_SMOOTHING: f64 = 0.25;

/// What a worker has told: of its last epoch, and on average.
#[derive(Default)]
struct Told {
    rates: RatesByKey,
    lately: RatesByKey,
    /// A second, and the part of its time that it was busy.
    requests: f64,
    load: f64,
}

/// A server wants a copy as long as it has said so within this time.
const WANTED_FOR: Duration = Duration::from_secs(1);
/// Keys of which others want copies. Who names one more is not heard.
const WANTED_MAX: usize = 1024;

/// What the workers of a server have counted, and of which of its keys others want copies.
#[derive(Default)]
pub(crate) struct Heats {
    by_worker: BTreeMap<u16, Told>,
    /// Of a cluster on one machine.
    pub one_machine: OneMachine,
    wanted: BTreeMap<u64, BTreeMap<ServerId, Instant>>,
}

impl Heats {
    /// What a worker's tracker has said of its last epoch, with its requests a second in it and its load.
    pub fn tell(&mut self, worker: u16, rates: RatesByKey, requests: f64, load: f64) {
        let worker = self.by_worker.entry(worker).or_default();
        (worker.requests, worker.load) = (requests, load);
        let told = &mut worker.lately;
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
        worker.rates = rates;
    }

    /// As the workers' last epochs say.
    pub fn sum(&self) -> RatesByKey {
        sum_of(self.by_worker.values().map(|told| &told.rates))
    }

    /// On average over the last second or so: the hottest keys alone.
    pub fn told(&self) -> RatesByKey {
        sum_of(self.by_worker.values().map(|told| &told.lately))
    }

    /// T by what the server knows itself.
    pub fn own_threshold(&self) -> f64 {
        let sum = |part: fn(&Told) -> f64| self.by_worker.values().map(part).sum::<f64>();
        own_threshold(sum(|told| told.requests), sum(|told| told.load))
    }

    /// A server wants a copy of this key.
    pub fn wants(&mut self, hash: u64, server: ServerId, now: Instant) {
        if self.wanted.len() < WANTED_MAX || self.wanted.contains_key(&hash) {
            self.wanted.entry(hash).or_default().insert(server, now);
        }
    }

    /// By key, the servers that want copies of it.
    pub fn wanted(&mut self, now: Instant) -> BTreeMap<u64, Vec<ServerId>> {
        self.wanted.retain(|_, servers| {
            servers.retain(|_, said| now < *said + WANTED_FOR);
            !servers.is_empty()
        });
        let servers = |one: &BTreeMap<ServerId, Instant>| one.keys().copied().collect();
        self.wanted.iter().map(|(hash, one)| (*hash, servers(one))).collect()
    }
}

fn sum_of<'a>(of: impl Iterator<Item = &'a RatesByKey>) -> RatesByKey {
    let mut all = RatesByKey::new();
    for (hash, KeyRates { key, rates }) in of.flatten() {
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
    use super::*;

    #[test]
    fn rates_are_of_the_epoch_that_ends_and_of_all_workers() {
        let (mut first, mut second) = (Heat::default(), Heat::default());
        let [hot, cold] = [&b"hot"[..], b"cold"].map(|name| Key::new(name).expect("a key"));
        (0..10).for_each(|_| first.observe(&hot, Access::Read, 10.0));
        first.observe(&hot, Access::Write, 10.0);
        second.observe(&hot, Access::Read, 40.0);
        second.observe(&cold, Access::Read, 40.0);
        let mut heats = Heats::default();
        for (worker, heat, load) in [(0, &mut first, 0.5), (1, &mut second, 0.25)] {
            let (rates, requests) = heat.end_epoch(0.5, |_| true);
            heats.tell(worker, rates, requests, load);
        }
        assert_eq!(heats.own_threshold(), (220.0 + 160.0) / 0.75 / 4.0);
        let all = heats.sum();
        let KeyRates { key, rates } = &all[&hot.hash()];
        assert_eq!((rates.reads, rates.writes, &**key), (140.0, 10.0, &b"hot"[..]));
        assert_eq!(all.len(), 2);
        assert_eq!(heats.told()[&hot.hash()].rates.reads, 35.0);
    }

    #[test]
    fn a_server_wants_a_copy_for_a_second() {
        let (mut heats, at) = (Heats::default(), Instant::from_millis);
        heats.wants(7, ServerId(2), at(0));
        heats.wants(7, ServerId(3), at(500));
        heats.wants(8, ServerId(3), at(500));
        let both = vec![ServerId(2), ServerId(3)];
        assert_eq!(heats.wanted(at(999)), [(7, both), (8, vec![ServerId(3)])].into());
        assert_eq!(heats.wanted(at(1_000))[&7], [ServerId(3)]);
        (0..9_999).for_each(|hash| heats.wants(hash, ServerId(2), at(2_000)));
        assert_eq!(heats.wanted(at(2_001)).len(), WANTED_MAX);
    }
}
