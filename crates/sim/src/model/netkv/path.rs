//! NetKV's path of a request (ICAC 2016, §IV): a stream, the sketches that find its hot keys, and the
//! table of renamed keys that spreads them over the servers.

use mbal_lossy::LossyCounter;
use mbal_sketch::{HyperLogLog, Random, Sampler, mix};

use crate::model::Popularity;

/// The requests of one measurement interval.
pub(super) enum Stream {
    Made(Made),
    Read(Vec<u32>, u32),
}

/// A popularity, and which key has which rank in it.
pub(super) struct Made {
    ranks: Popularity,
    /// By rank, from the most popular on; beyond them a key's number is its rank.
    keys: Vec<u32>,
}

/// Ranks that drift; what is rarer is never copied.
const DRIFTING: usize = 1 << 16;

/// Two intervals that follow each other. What the first shows decides where the second is served.
pub(super) struct Intervals {
    pub(super) seen: Stream,
    pub(super) served: Stream,
}

impl Intervals {
    /// Between the intervals a key's rank is multiplied by e^(drift · g), g of a normal distribution: rates of a
    /// key change by about that share, and neighbours in popularity change places. In each, a rank has its
    /// exact number of requests, in an order of its own.
    pub(super) fn made(popularity: impl Fn(u64) -> Popularity, drift: f64, seed: u64) -> Intervals {
        let seen = popularity(seed);
        let mut bits = Random::new(mix(seed));
        let drifting = DRIFTING.min(seen.keys() as usize);
        let mut moved: Vec<(f64, u32)> = (0..drifting as u32)
            .map(|key| {
                let angle = std::f64::consts::TAU * bits.unit();
                let normal = (-2.0 * bits.unit().ln()).sqrt() * angle.cos();
                (f64::from(key + 1).ln() + drift * normal, key)
            })
            .collect();
        moved.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        let keys = moved.into_iter().map(|(_, key)| key).collect();
        Intervals {
            seen: Stream::Made(Made { ranks: seen, keys: Vec::new() }),
            served: Stream::Made(Made { ranks: popularity(mix(seed)), keys }),
        }
    }

    /// The halves of a trace, which drifts by itself.
    pub(super) fn halves(mut keys: Vec<u32>, distinct: u32) -> Intervals {
        let later = keys.split_off(keys.len() / 2);
        let half = |keys: Vec<u32>| {
            let mut is_here = vec![false; distinct as usize];
            keys.iter().for_each(|key| is_here[*key as usize] = true);
            let here = is_here.into_iter().filter(|here| *here).count();
            Stream::Read(keys, here as u32)
        };
        Intervals { seen: half(keys), served: half(later) }
    }
}

impl Stream {
    pub(super) fn requests(&self) -> u32 {
        match self {
            Stream::Made(made) => made.ranks.requests(),
            Stream::Read(keys, _) => keys.len() as u32,
        }
    }

    #[inline]
    pub(super) fn at(&self, position: u32) -> u32 {
        match self {
            Stream::Made(made) => {
                let rank = made.ranks.at(position);
                made.keys.get(rank as usize).copied().unwrap_or(rank)
            }
            Stream::Read(keys, _) => keys[position as usize],
        }
    }

    pub(super) fn counts(&self) -> Vec<u32> {
        match self {
            Stream::Made(made) => {
                let mut counts = made.ranks.counts();
                let by_rank = counts[..made.keys.len()].to_vec();
                let drifted = made.keys.iter().zip(by_rank);
                drifted.for_each(|(key, count)| counts[*key as usize] = count);
                counts
            }
            Stream::Read(keys, _) => {
                let numbers = keys.iter().max().map_or(0, |most| *most as usize + 1);
                let mut counts = vec![0; numbers];
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
            Stream::Made(made) => f64::from(made.ranks.keys()),
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
    let mut detector = Detector::new(one_in, stream.requests(), seed);
    for position in 0..stream.requests() {
        if detector.sampler.choose() {
            detector.observe(hash(stream.at(position), seed));
        }
    }
    detector.detected()
}

/// Windows of the lossy counter in an interval: in less than one it counts exactly and drops nothing, in many it
/// forgets keys of as many samples.
const WINDOWS: f64 = 5.0;

pub(super) struct Detector {
    pub(super) sampler: Sampler,
    counter: LossyCounter,
    distinct: HyperLogLog,
}

impl Detector {
    /// For an interval of so many requests.
    pub(super) fn new(one_in: u32, requests: u32, seed: u64) -> Detector {
        let samples = f64::from(requests / one_in);
        let error = (WINDOWS / samples).clamp(2e-5, 0.1);
        Detector {
            sampler: Sampler::new(1.0 / f64::from(one_in), seed),
            counter: LossyCounter::new(5.0 * error, error),
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

/// Most requests of a server by the least.
pub(super) fn max_over_min(served: &[u32]) -> f64 {
    let least = *served.iter().min().expect("a server");
    f64::from(*served.iter().max().expect("a server")) / f64::from(least)
}

/// NetKV's Eq. 6.
pub(super) fn mean_deviation(served: &[u32]) -> f64 {
    let total: f64 = served.iter().map(|count| f64::from(*count)).sum();
    let average = total / served.len() as f64;
    served.iter().map(|count| (f64::from(*count) - average).abs()).sum::<f64>() / total.max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(stream: &Stream) -> Vec<u32> {
        let mut counts = vec![0; stream.counts().len()];
        (0..stream.requests()).for_each(|position| counts[stream.at(position) as usize] += 1);
        counts
    }

    fn zipf(drift: f64) -> Intervals {
        Intervals::made(|seed| Popularity::zipf(1.0, 10_000, 300_000, seed), drift, 1)
    }

    #[test]
    fn the_next_interval_has_other_rates_of_the_same_keys() {
        let mut last = -1.0;
        for drift in [0.0, 0.1, 0.3] {
            let Intervals { seen, served } = zipf(drift);
            let counts = [seen.counts(), served.counts()];
            assert_eq!(counts, [counted(&seen), counted(&served)]);
            let sorted = counts.clone().map(|mut counts| {
                counts.sort_unstable();
                counts
            });
            assert_eq!(sorted[0], sorted[1]);
            let change =
                |key: usize| (f64::from(counts[1][key]) / f64::from(counts[0][key])).ln().abs();
            let mean = (0..100).map(change).sum::<f64>() / 100.0;
            assert!(last < mean && mean <= drift, "{mean} for {drift}");
            last = mean;
        }
    }

    #[test]
    fn the_two_intervals_come_in_different_orders() {
        let Intervals { seen, served } = zipf(0.0);
        let same =
            (0..10_000).filter(|position| seen.at(*position) == served.at(*position)).count();
        assert!(same < 1_000, "{same}");
    }

    #[test]
    fn the_halves_of_a_trace_are_intervals() {
        let Intervals { seen, served } = Intervals::halves(vec![0, 0, 1, 0, 2, 2], 3);
        assert_eq!((seen.counts(), served.counts()), (vec![2, 1], vec![1, 0, 2]));
        assert_eq!((seen.distinct(), served.distinct()), (2.0, 2.0));
    }

    #[test]
    fn the_lossy_counter_drops_rare_keys_at_every_rate_of_sampling() {
        let seen = zipf(0.0).seen;
        for one_in in [1, 10, 100] {
            let mut detector = Detector::new(one_in, seen.requests(), 1);
            let mut sampled = std::collections::BTreeSet::new();
            for position in 0..seen.requests() {
                if detector.sampler.choose() {
                    let hash = hash(seen.at(position), 1);
                    sampled.insert(hash);
                    detector.observe(hash);
                }
            }
            let kept = detector.counter.tracked();
            assert!(4 * kept < 3 * sampled.len(), "{kept} of {}", sampled.len());
        }
    }
}
