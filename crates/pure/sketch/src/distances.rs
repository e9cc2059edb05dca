//! Stack distances of a sampled stream.

pub mod lasting;
pub mod of_cache;

use crate::ages::Ages;
use crate::curve::{Curve, Histogram};
use crate::mix;
use crate::table::Table;

/// Sampled stack distances: the miss ratio of an LRU cache of every size, from one pass over the
/// requests in bounded memory (ElMem, ICDCS 2018, §III.B; SHARDS, Waldspurger et al., FAST 2015).
///
/// Keys are sampled by hash: all requests of a chosen key are seen, so that the number of
/// *sampled* keys between two of its requests, divided by the rate, estimates the number of all
/// keys between. The rate starts at 1 and falls so that at most `samples_most` keys are tracked;
/// their order is known to under 1% of their number, and exactly while they are fewer than 128
/// (docs/decisions/0162).
///
/// A request that is not sampled costs a hash and a compare. State: see
/// [`state_bytes`](StackDistances::state_bytes), 0.6 MB for 16,384 samples.
#[derive(Clone, Debug)]
pub struct StackDistances {
    samples_most: usize,
    /// Keys are sampled whose mixed hash is at most this.
    hash_most: u64,
    /// Requests that one of a sample stands for: 1 / rate.
    weight: f64,
    /// By hash: a sample's bytes, and in which bucket of age it is; above that, its deadline.
    samples: Table,
    ages: Ages,
    by_items: Histogram,
    by_bytes: Histogram,
    /// Requests until the last [`fade`](StackDistances::fade), and since.
    faded: f64,
    seen: u64,
}

/// Of a mark, what says the bucket. The rest is a deadline in seconds.
const BUCKET_BITS: u32 = 8;
const BUCKET: u32 = (1 << BUCKET_BITS) - 1;
/// Not in the next 194 days.
const NEVER: u32 = u32::MAX << BUCKET_BITS;

/// What is dropped when the samples are full; a part of them, so that dropping, which is linear,
/// costs O(1) per sample.
const DROPPED_SHARE: u64 = 16;

impl StackDistances {
    /// At most 65,535 samples.
    pub fn new(samples_most: usize) -> StackDistances {
        assert!((16..=Ages::SAMPLES_MOST).contains(&samples_most), "{samples_most} samples");
        StackDistances {
            samples_most,
            hash_most: u64::MAX,
            weight: 1.0,
            samples: Table::new(0),
            ages: Ages::new(),
            by_items: Histogram::default(),
            by_bytes: Histogram::default(),
            faded: 0.0,
            seen: 0,
        }
    }

    /// As if keys were sampled at `rate` from the start: for a stream known to have many.
    pub fn with_rate(samples_most: usize, rate: f64) -> StackDistances {
        assert!(0.0 < rate && rate <= 1.0, "a sampling rate lies in (0, 1]: {rate}");
        let mut distances = StackDistances::new(samples_most);
        distances.hash_most = (rate * u64::MAX as f64) as u64;
        distances.weight = 1.0 / distances.rate();
        distances
    }

    /// Counts one request for an item of `bytes`, memory overhead included.
    #[inline]
    pub fn observe(&mut self, hash: u64, bytes: u32) {
        self.seen += 1;
        let hash = mix(hash);
        if hash <= self.hash_most {
            self.sample(hash, bytes.max(1));
        }
    }

    /// The share of all keys that is sampled now.
    pub fn rate(&self) -> f64 {
        (self.hash_most as f64 + 1.0) / (u64::MAX as f64 + 1.0)
    }

    /// Keys tracked now.
    pub fn samples(&self) -> usize {
        self.samples.len()
    }

    /// The estimated number of distinct keys.
    pub fn distinct(&self) -> f64 {
        self.samples() as f64 / self.rate()
    }

    /// Memory held, in bytes: at most 43 for each of `samples_most`, and 83,000.
    pub fn state_bytes(&self) -> usize {
        size_of::<Ages>()
            + self.samples.state_bytes()
            + self.by_items.state_bytes()
            + self.by_bytes.state_bytes()
    }

    /// Miss ratio by the number of items that a cache holds.
    pub fn by_items(&self) -> Curve {
        self.by_items.curve(self.requests())
    }

    /// Miss ratio by the bytes that a cache holds.
    pub fn by_bytes(&self) -> Curve {
        self.by_bytes.curve(self.requests())
    }

    /// Lets what was counted so far weigh only `share` of itself: called once a minute with 0.983,
    /// a curve tells of the last hour. The order of the keys stays.
    pub fn fade(&mut self, share: f64) {
        self.faded = share * self.requests();
        self.seen = 0;
        self.by_items.fade(share);
        self.by_bytes.fade(share);
    }

    fn requests(&self) -> f64 {
        (self.faded + self.seen as f64).max(0.0)
    }

    #[inline]
    fn sample(&mut self, hash: u64, bytes: u32) {
        let cell = self.samples.cell(hash);
        if cell.is_empty() {
            if self.admit(hash, bytes, NEVER) {
                self.by_items.add_miss(self.weight);
                self.by_bytes.add_miss(self.weight);
            }
            return;
        }
        let newer = self.ages.newer_than(cell.mark & BUCKET, cell.amount);
        self.ages.take(cell.mark & BUCKET, cell.amount);
        (cell.amount, cell.mark) = (bytes, self.ages.newest() | NEVER);
        self.by_items.add(1.0 + newer.samples * self.weight, self.weight);
        self.by_bytes.add(newer.bytes * self.weight + f64::from(bytes), self.weight);
        if self.ages.put(bytes, self.samples.len()) {
            self.join();
        }
    }

    /// False if it is not sampled any more, now that the samples are full.
    #[inline(never)]
    fn admit(&mut self, hash: u64, bytes: u32, deadline: u32) -> bool {
        while self.samples.len() == self.samples_most {
            self.lower_rate();
        }
        if hash > self.hash_most {
            return false;
        }
        let cell = self.samples.cell(hash);
        (cell.amount, cell.mark) = (bytes, self.ages.newest() | deadline);
        self.samples.added(1);
        if self.ages.put(bytes, self.samples.len()) {
            self.join();
        }
        true
    }

    #[cold]
    #[inline(never)]
    fn join(&mut self) {
        let renamed = self.ages.join();
        let of = |mark: u32| mark & !BUCKET | renamed[(mark & BUCKET) as usize];
        self.samples.marks_mut().for_each(|mark| *mark = of(*mark));
    }

    fn lower_rate(&mut self) {
        self.hash_most -= self.hash_most / DROPPED_SHARE;
        self.weight = 1.0 / self.rate();
        let hash_most = self.hash_most;
        let dropped = self.samples.cells().filter(|cell| cell.hash > hash_most);
        dropped.for_each(|cell| self.ages.take(cell.mark & BUCKET, cell.amount));
        self.samples.retain(|cell| cell.hash <= hash_most);
    }
}
