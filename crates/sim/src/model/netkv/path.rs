//! NetKV's path of a request (ICAC 2016, §IV): a stream, the sketches that find its hot keys, and the
//! table of renamed keys that spreads them over the servers.

use mbal_sketch::{HyperLogLog, LossyCounter, Sampler, mix};

use crate::model::Popularity;

pub(super) enum Stream {
    Made(Popularity),
    Read(Vec<u32>, u32),
}

impl Stream {
    pub(super) fn requests(&self) -> u32 {
        match self {
            Stream::Made(made) => made.requests(),
            Stream::Read(keys, _) => keys.len() as u32,
        }
    }

    #[inline]
    pub(super) fn at(&self, position: u32) -> u32 {
        match self {
            Stream::Made(made) => made.at(position),
            Stream::Read(keys, _) => keys[position as usize],
        }
    }

    pub(super) fn counts(&self) -> Vec<u32> {
        match self {
            Stream::Made(made) => made.counts(),
            Stream::Read(keys, distinct) => {
                let mut counts = vec![0; *distinct as usize];
                keys.iter().for_each(|key| counts[*key as usize] += 1);
                counts
            }
        }
    }

    /// Every key's requests, and how many keys there are: what perfect sketches would say.
    pub(super) fn known(&self, bins: usize) -> Vec<(u32, f64)> {
        let counts = self.counts();
        let least = f64::from(self.requests()) / bins as f64 / 200.0;
        let hot = |(key, count): (usize, &u32)| (key as u32, f64::from(*count));
        let mut known: Vec<(u32, f64)> = counts
            .iter()
            .enumerate()
            .map(hot)
            .filter(|(_, count)| *count >= least.max(2.0))
            .collect();
        known.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        known
    }

    pub(super) fn distinct(&self) -> f64 {
        match self {
            Stream::Made(made) => f64::from(made.keys()),
            Stream::Read(_, distinct) => f64::from(*distinct),
        }
    }
}

pub(super) fn hash(key: u32, seed: u64) -> u64 {
    mix(u64::from(key) ^ seed << 32 | 1 << 63)
}

pub(super) fn server(hash: u64, servers: usize) -> u32 {
    ((u128::from(hash) * servers as u128) >> 64) as u32
}

/// Copies of a key are found by renaming it; a key without copies keeps its name.
pub(super) fn place(hash: u64, copy: u32, copies: u32, servers: usize) -> u32 {
    let renamed = if copies == 1 { hash } else { mix(hash ^ u64::from(copy) << 1) };
    server(renamed, servers)
}

/// What the key detector says after one interval (§IV.A).
pub(super) struct Detected {
    /// (key's hash, estimated requests), most first.
    pub(super) hot: Vec<(u64, f64)>,
    pub(super) distinct: f64,
}

pub(super) fn detect(stream: &Stream, one_in: u32, seed: u64) -> Detected {
    let mut detector = Detector::new(one_in, seed);
    for position in 0..stream.requests() {
        if detector.sampler.choose() {
            detector.observe(hash(stream.at(position), seed));
        }
    }
    detector.detected()
}

pub(super) struct Detector {
    pub(super) sampler: Sampler,
    counter: LossyCounter,
    distinct: HyperLogLog,
}

impl Detector {
    pub(super) fn new(one_in: u32, seed: u64) -> Detector {
        Detector {
            sampler: Sampler::new(1.0 / f64::from(one_in), seed),
            counter: LossyCounter::new(1e-4, 2e-5),
            distinct: HyperLogLog::new(12),
        }
    }

    #[inline]
    pub(super) fn observe(&mut self, hash: u64) {
        self.counter.observe(hash);
        self.distinct.observe(hash);
    }

    pub(super) fn detected(&self) -> Detected {
        let scale = self.sampler.requests_per_sample();
        let estimate = |count: u32| f64::from(count) * scale;
        // A key that was sampled twice is not yet a hot key.
        let certain = self.counter.top(8_192).into_iter().filter(|key| key.count >= 4);
        Detected {
            hot: certain.map(|key| (key.hash, estimate(key.count))).collect(),
            distinct: self.distinct.distinct(),
        }
    }
}

/// Which keys are replicated, and on which servers: open addressing behind a filter that most keys fail.
pub(super) struct Replicas {
    filter: Vec<u64>,
    slots: Vec<(u64, u32, u32)>,
    pub(super) places: Vec<u32>,
    pub(super) keys: usize,
}

const FILTER_BITS: u32 = 18;

impl Replicas {
    pub(super) fn new(
        hot: &[(u64, f64)],
        copies_of: impl Fn(f64) -> u32,
        servers: usize,
    ) -> Replicas {
        let replicated: Vec<(u64, u32)> = hot
            .iter()
            .map(|(hash, requests)| (*hash, copies_of(*requests)))
            .filter(|(_, copies)| *copies > 1)
            .collect();
        let mut table = Replicas {
            filter: vec![0; 1 << (FILTER_BITS - 6)],
            slots: vec![(0, 0, 0); (4 * replicated.len() + 4).next_power_of_two()],
            places: Vec::new(),
            keys: replicated.len(),
        };
        let mask = table.slots.len() - 1;
        for (hash, copies) in replicated {
            let bit = hash as u32 & ((1 << FILTER_BITS) - 1);
            table.filter[(bit >> 6) as usize] |= 1 << (bit & 63);
            let mut slot = (hash >> FILTER_BITS) as usize & mask;
            while table.slots[slot].1 != 0 {
                slot = (slot + 1) & mask;
            }
            table.slots[slot] = (hash, copies, table.places.len() as u32);
            table.places.extend((0..copies).map(|copy| place(hash, copy, copies, servers)));
        }
        table
    }

    #[inline]
    pub(super) fn route(&self, hash: u64, position: u32, servers: usize) -> u32 {
        let bit = hash as u32 & ((1 << FILTER_BITS) - 1);
        if self.filter[(bit >> 6) as usize] >> (bit & 63) & 1 == 0 {
            return server(hash, servers);
        }
        let mask = self.slots.len() - 1;
        let mut slot = (hash >> FILTER_BITS) as usize & mask;
        loop {
            let (held, copies, first) = self.slots[slot];
            if copies == 0 {
                return server(hash, servers);
            }
            if held == hash {
                let pick = ((mix(u64::from(position)) >> 32) * u64::from(copies)) >> 32;
                return self.places[first as usize + pick as usize];
            }
            slot = (slot + 1) & mask;
        }
    }
}

/// Requests that each server got.
pub(super) fn observe(stream: &Stream, replicas: &Replicas, servers: usize, seed: u64) -> Vec<u32> {
    let mut served = vec![0; servers];
    for position in 0..stream.requests() {
        let hash = hash(stream.at(position), seed);
        served[replicas.route(hash, position, servers) as usize] += 1;
    }
    served
}

pub(super) fn imbalance(served: &[u32]) -> f64 {
    let most = *served.iter().max().expect("a server");
    let total: u64 = served.iter().map(|count| u64::from(*count)).sum();
    f64::from(most) * served.len() as f64 / total as f64
}

/// NetKV's Eq. 6.
pub(super) fn mean_deviation(served: &[u32]) -> f64 {
    let loads: Vec<f64> = served.iter().map(|count| f64::from(*count)).collect();
    mbal_balance::deviation(&loads)
}
