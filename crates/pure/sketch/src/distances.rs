use crate::curve::{Curve, Histogram};
use crate::index::Index;
use crate::mix;
use crate::recency::Recency;

/// Sampled stack distances: the miss ratio of an LRU cache of every size, from one pass over the
/// requests in bounded memory (papers/elmem §III.B; SHARDS, Waldspurger et al., FAST 2015).
///
/// Keys are sampled by hash: all requests of a chosen key are seen, so that the number of
/// *sampled* keys between two of its requests, divided by the rate, estimates the number of all
/// keys between. The rate starts at 1 and falls so that at most `samples_most` keys are tracked;
/// while they all fit, the curve is exact to its buckets (under 0.8% of a size).
///
/// A request that is not sampled costs a hash and a compare. State: see
/// [`state_bytes`](StackDistances::state_bytes), 0.9 MB for 16,384 samples.
#[derive(Clone, Debug)]
pub struct StackDistances {
    samples_most: usize,
    /// Keys are sampled whose mixed hash is at most this.
    hash_most: u64,
    recency: Recency,
    index: Index,
    by_items: Histogram,
    by_bytes: Histogram,
    requests: f64,
    scratch: Vec<u64>,
}

/// What is dropped when the samples are full; a part of them, so that dropping, which is linear,
/// costs O(1) per sample.
const DROPPED_SHARE: usize = 16;

impl StackDistances {
    pub fn new(samples_most: usize) -> StackDistances {
        assert!(samples_most >= DROPPED_SHARE, "{samples_most} samples are too few");
        StackDistances {
            samples_most,
            hash_most: u64::MAX,
            recency: Recency::new(samples_most),
            index: Index::new(samples_most),
            by_items: Histogram::default(),
            by_bytes: Histogram::default(),
            requests: 0.0,
            scratch: Vec::new(),
        }
    }

    /// As if keys were sampled at `rate` from the start: for a stream known to have many.
    pub fn with_rate(samples_most: usize, rate: f64) -> StackDistances {
        assert!(0.0 < rate && rate <= 1.0, "a sampling rate lies in (0, 1]: {rate}");
        let mut distances = StackDistances::new(samples_most);
        distances.hash_most = (rate * u64::MAX as f64) as u64;
        distances
    }

    /// Counts one request for an item of `bytes`, memory overhead included.
    #[inline]
    pub fn observe(&mut self, hash: u64, bytes: u32) {
        self.requests += 1.0;
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
        self.recency.live()
    }

    /// The estimated number of distinct keys.
    pub fn distinct(&self) -> f64 {
        self.samples() as f64 / self.rate()
    }

    /// Memory held, in bytes: fixed at the start.
    pub fn state_bytes(&self) -> usize {
        self.recency.state_bytes()
            + self.index.state_bytes()
            + self.by_items.state_bytes()
            + self.by_bytes.state_bytes()
            + self.scratch.capacity() * size_of::<u64>()
    }

    /// Miss ratio by the number of items that a cache holds.
    pub fn by_items(&self) -> Curve {
        self.by_items.curve(self.requests)
    }

    /// Miss ratio by the bytes that a cache holds.
    pub fn by_bytes(&self) -> Curve {
        self.by_bytes.curve(self.requests)
    }

    /// Lets what was counted so far weigh only `share` of itself: called once a minute with 0.9,
    /// a curve tells of the last ten minutes. The order of the keys stays.
    pub fn fade(&mut self, share: f64) {
        self.requests *= share;
        self.by_items.fade(share);
        self.by_bytes.fade(share);
    }

    fn sample(&mut self, hash: u64, bytes: u32) {
        if self.recency.is_full() {
            self.compact();
        }
        let weight = 1.0 / self.rate();
        let recency = &self.recency;
        match self.index.find_mut(hash, |at| recency.hash(at) == hash) {
            Some(at) => {
                let newer = self.recency.newer_than(*at);
                let items = 1.0 + f64::from(newer.samples) * weight;
                let bytes_newer = newer.bytes as f64 * weight + f64::from(bytes);
                self.by_items.add(items as u64, weight);
                self.by_bytes.add(bytes_newer as u64, weight);
                self.recency.remove(*at);
                *at = self.recency.append(hash, bytes);
            }
            None if self.recency.live() == self.samples_most => {
                self.lower_rate();
                if hash <= self.hash_most {
                    self.sample(hash, bytes);
                }
            }
            None => {
                let at = self.recency.append(hash, bytes);
                self.index.insert(hash, at);
                self.by_items.add_miss(weight);
                self.by_bytes.add_miss(weight);
            }
        }
    }

    fn lower_rate(&mut self) {
        self.scratch.clear();
        self.scratch.extend(self.recency.live_hashes());
        let kept = self.scratch.len() - self.scratch.len() / DROPPED_SHARE;
        let (_, &mut most, _) = self.scratch.select_nth_unstable(kept - 1);
        self.hash_most = most;
        self.compact();
    }

    fn compact(&mut self) {
        let index = &mut self.index;
        let hash_most = self.hash_most;
        self.recency.compact(
            |hash| hash <= hash_most,
            |hash, moved| match moved.to {
                Some(to) => {
                    *index
                        .find_mut(hash, |at| at == moved.from)
                        .expect("every sample is indexed") = to;
                }
                None => index.remove(hash, moved.from),
            },
        );
    }
}
