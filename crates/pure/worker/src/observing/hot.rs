//! The hottest keys, by samples of the requests: what `stats hot` tells.
//!
//! A request costs a countdown (its hash is there already), and every hundredth or so a look-up in the
//! worker's tracker. While somebody asks for the hottest keys, every request is looked at: a hundredth
//! cannot tell the tenth hottest key from the eleventh within a second or two.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use mbal_locks::{Mutex, MutexGuard, ranks};
use mbal_model::{Key, Prefix, Seconds};
use mbal_sketch::{Access, HotKeys, Slot};

/// Keys that a worker tracks. With so many places the tenth key of a Zipf 0.99 keeps its own, however
/// long the tail.
const TRACKED: usize = 4096;

/// After a question for the hottest keys, all requests are looked at for so long.
const WATCHED_SECONDS: Seconds = 3;

/// One worker's tracker. Epochs are seconds; what is told is the last second, of which a part lies in
/// the epoch before this one. A worker writes its own with each sample, beside nobody else's.
#[repr(align(128))]
pub(crate) struct Hot {
    keys: HotKeys,
    second: Seconds,
    samples: Counted,
    requests: Counted,
    /// By cachelet: how many requests the samples stand for, ever and of late.
    cachelets: BTreeMap<Prefix, CacheletHeat>,
    /// The worker's count of requests when this epoch began.
    requests_before: u64,
}

#[derive(Clone, Copy, Default)]
struct CacheletHeat {
    ever: f64,
    late: Counted,
}

/// In the epoch before, and in this one.
#[derive(Clone, Copy, Default)]
struct Counted {
    past: f64,
    now: f64,
}

impl Counted {
    /// The last second's, if `past_share` of it lies in the epoch before.
    fn last_second(self, past_share: f64) -> f64 {
        self.past * past_share + self.now
    }

    fn end_second(&mut self) {
        *self = Counted { past: self.now, now: 0.0 };
    }
}

/// A key, with the requests for it in the last second: an estimate, unless every request was looked at.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HotKey {
    pub key: Vec<u8>,
    pub reads: f64,
    pub writes: f64,
}

impl HotKey {
    pub fn rate(&self) -> f64 {
        self.reads + self.writes
    }
}

/// What one worker was asked for in the last second, estimated likewise.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Heat {
    /// Reads and writes of a key.
    pub key: [f64; 2],
    /// Requests for keys of a cachelet.
    pub cachelet: f64,
    /// Requests for any key.
    pub all: f64,
}

impl Default for Hot {
    fn default() -> Hot {
        // Only the last epoch counts.
        Hot {
            keys: HotKeys::new(TRACKED, 1.0),
            second: 0,
            samples: Counted::default(),
            requests: Counted::default(),
            cachelets: BTreeMap::new(),
            requests_before: 0,
        }
    }
}

impl Hot {
    /// A request that was chosen, for a key of this cachelet; it stands for so many.
    pub fn observe(&mut self, key: &Key<'_>, access: Access, cachelet: Prefix, stands_for: f64) {
        self.samples.now += 1.0;
        let heat = self.cachelets.entry(cachelet).or_default();
        heat.ever += stands_for;
        heat.late.now += stands_for;
        self.keys.observe(key.hash(), key.bytes(), access);
    }

    /// Lets the seconds pass that have passed.
    pub fn pass_to(&mut self, second: Seconds, requests: u64) {
        // After two seconds nothing of the past is left.
        for _ in 0..second.saturating_sub(self.second).min(2) {
            self.keys.tick();
            self.samples.end_second();
            self.cachelets.values_mut().for_each(|cachelet| cachelet.late.end_second());
            self.requests.now = requests.saturating_sub(self.requests_before) as f64;
            self.requests.end_second();
            self.requests_before = requests;
        }
        self.second = self.second.max(second);
        self.requests.now = requests.saturating_sub(self.requests_before) as f64;
    }

    /// Adds to `all`, by cachelet, this worker's requests ever, and in the last second.
    /// Those that are absent from it have gone.
    pub fn add_cachelets_to(
        &mut self,
        all: &mut BTreeMap<Prefix, (f64, f64)>,
        second: Seconds,
        requests: u64,
    ) {
        self.pass_to(second, requests);
        let past_share = self.past_share();
        self.cachelets.retain(|prefix, _| all.contains_key(prefix));
        for (prefix, cachelet) in &self.cachelets {
            let sum = all.get_mut(prefix).expect("others have just gone");
            sum.0 += cachelet.ever;
            sum.1 += cachelet.late.last_second(past_share);
        }
    }

    /// How much of the last second lies in the epoch before: how much of this one has passed, the
    /// requests themselves tell.
    fn past_share(&self) -> f64 {
        1.0 - (self.requests.now / self.requests.past.max(1.0)).min(1.0)
    }

    /// What this worker was asked for in the last second: of a cachelet, and of a key.
    pub fn heat(
        &mut self,
        cachelet: Prefix,
        key: Option<&Key<'_>>,
        second: Seconds,
        requests: u64,
    ) -> Heat {
        self.pass_to(second, requests);
        let past_share = self.past_share();
        let all = self.requests.last_second(past_share);
        let late = |heat: &CacheletHeat| heat.late.last_second(past_share);
        let looked_at: f64 = self.cachelets.values().map(late).sum();
        if looked_at == 0.0 {
            return Heat { all, ..Heat::default() };
        }
        let slot = key.and_then(|key| {
            let slot = self.keys.find(key.hash())?;
            (self.keys.name(slot) == key.bytes()).then_some(slot)
        });
        Heat {
            key: slot.map_or([0.0; 2], |slot| self.rates(slot)),
            cachelet: self.cachelets.get(&cachelet).map_or(0.0, late) * all / looked_at,
            all,
        }
    }

    /// Reads and writes of a key in the last second. Something was looked at in it.
    fn rates(&self, slot: Slot) -> [f64; 2] {
        let past_share = self.past_share();
        let requests = self.requests.last_second(past_share);
        let samples = self.samples.last_second(past_share);
        [Access::Read, Access::Write].map(|access| {
            let (past, now) = self.keys.sampled(slot, access);
            let counted = Counted { past: past.into(), now: now.into() };
            counted.last_second(past_share) * requests / samples
        })
    }

    /// Adds what this worker knows to `all`.
    pub fn add_to(&mut self, all: &mut BTreeMap<Vec<u8>, HotKey>, second: Seconds, requests: u64) {
        self.pass_to(second, requests);
        if self.samples.last_second(self.past_share()) == 0.0 {
            return;
        }
        for slot in self.keys.tracked() {
            let sampled =
                [Access::Read, Access::Write].map(|access| self.keys.sampled(slot, access));
            if sampled == [(0.0, 0); 2] {
                continue;
            }
            let [reads, writes] = self.rates(slot);
            let sum = all.entry(self.keys.name(slot).to_vec()).or_default();
            sum.reads += reads;
            sum.writes += writes;
        }
    }
}

/// The trackers of a server's workers.
pub(crate) struct HotTrackers {
    workers: Box<[Mutex<ranks::Hot, Hot>]>,
    /// Until then somebody watches the hottest keys.
    watched_until: AtomicU32,
}

impl HotTrackers {
    pub fn new(workers: u16) -> HotTrackers {
        let workers = (0..workers).map(|_| Mutex::default()).collect();
        HotTrackers { workers, watched_until: AtomicU32::new(0) }
    }

    pub fn of(&self, worker: usize) -> MutexGuard<'_, ranks::Hot, Hot> {
        self.workers[worker].lock()
    }

    /// Somebody asks, and is taken to watch for a while.
    pub fn watch(&self, second: Seconds) {
        self.watched_until.store(second + WATCHED_SECONDS, Relaxed);
    }

    pub fn is_watched(&self, second: Seconds) -> bool {
        second <= self.watched_until.load(Relaxed)
    }
}

/// The `count` hottest, the hottest first.
pub(crate) fn hottest(all: BTreeMap<Vec<u8>, HotKey>, count: usize) -> Vec<HotKey> {
    let mut keys: Vec<HotKey> = all.into_iter().map(|(key, heat)| HotKey { key, ..heat }).collect();
    keys.sort_by(|a, b| b.rate().total_cmp(&a.rate()).then_with(|| a.key.cmp(&b.key)));
    keys.truncate(count);
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This second has as many requests as the last already, and none of them was chosen.
    #[test]
    fn a_key_that_was_looked_at_in_a_second_that_is_over_is_no_longer_told() {
        let key = |name| Key::new(name).expect("a key");
        let mut hot = Hot::default();
        hot.pass_to(1, 0);
        hot.observe(&key(b"past"), Access::Read, Prefix::ALL, 10.0);
        let mut all = BTreeMap::new();
        hot.add_to(&mut all, 2, 10);
        let told = HotKey { key: b"past".to_vec(), reads: 10.0, writes: 0.0 };
        assert_eq!(hottest(std::mem::take(&mut all), 1), [told]);
        all.insert(b"past".to_vec(), HotKey { reads: 3.0, ..HotKey::default() });
        hot.add_to(&mut all, 2, 20);
        let told = HotKey { key: b"past".to_vec(), reads: 3.0, writes: 0.0 };
        assert_eq!(hottest(all, 1), [told]);
    }
}
