//! Requests with exact counts and no memory for them.
//!
//! A trace of N requests is a permutation of its multiset of keys. Laid out in order of popularity, slot
//! s of 0..N belongs to one key; request i is the key at slot π(i), where π is a bijection that
//! looks random. So 28 million requests to 4 million keys need some 500 KiB, and each key
//! occurs exactly as often as was asked.

/// Requests per entry of the coarse table: below the count of keys that need more than one.
const COARSE_SHIFT: u32 = 8;

#[derive(Clone, Copy, Debug, PartialEq)]
struct Level {
    first_slot: u32,
    first_key: u32,
    /// Requests of each of its keys.
    count: u32,
}

#[derive(Clone, Debug)]
pub struct Popularity {
    /// Keys with equal counts, most popular first; ends with a sentinel.
    levels: Vec<Level>,
    coarse: Vec<u32>,
    requests: u32,
    bits: u32,
    multipliers: [u32; 3],
}

impl Popularity {
    /// `counts`: (keys, requests of each), most popular first.
    pub fn from_counts(counts: impl IntoIterator<Item = (u32, u32)>, seed: u64) -> Popularity {
        let mut levels: Vec<Level> = Vec::new();
        let (mut slot, mut key) = (0u32, 0u32);
        for (keys, count) in counts.into_iter().filter(|(keys, count)| keys * count.min(&1) > 0) {
            if levels.last().is_none_or(|last| last.count != count) {
                levels.push(Level { first_slot: slot, first_key: key, count });
            }
            slot += keys * count;
            key += keys;
        }
        levels.push(Level { first_slot: slot, first_key: key, count: 1 });
        let mut coarse = Vec::with_capacity((slot >> COARSE_SHIFT) as usize + 1);
        let mut level = 0;
        for at in 0..=slot >> COARSE_SHIFT {
            while levels[level + 1].first_slot <= at << COARSE_SHIFT && level + 2 < levels.len() {
                level += 1;
            }
            coarse.push(level as u32);
        }
        let odd = |index: u64| (mbal_sketch::mix(seed.wrapping_add(index)) as u32) | 1;
        let bits = 32 - slot.max(2).leading_zeros();
        Popularity { levels, coarse, requests: slot, bits, multipliers: [odd(1), odd(2), odd(3)] }
    }

    /// Zipf's law cut to whole requests: key of rank r has requests / (r^skew · H).
    pub fn zipf(skew: f64, keys: u32, requests: u32, seed: u64) -> Popularity {
        let harmonic: f64 = (1..=keys).map(|rank| f64::from(rank).powf(-skew)).sum();
        let mut sum = 0.0;
        let mut given = 0u32;
        let counts: Vec<(u32, u32)> = (1..=keys)
            .map(|rank| {
                sum += f64::from(rank).powf(-skew) / harmonic;
                let count = (sum * f64::from(requests)).round() as u32 - given;
                given += count;
                (1, count)
            })
            .collect();
        let mut counts = counts;
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        Popularity::from_counts(counts, seed)
    }

    /// What NetKV (ICAC 2016) publishes of its Wikipedia trace: 28 million requests; the top 25 keys make 22%
    /// and are those above 100,000 requests, 141 are above 25,000 (Figure 12); 3.2 million keys
    /// have at most ten requests (§IV.B). Between these points: power laws.
    pub fn wikipedia(seed: u64) -> Popularity {
        const REQUESTS: u32 = 28_000_000;
        let mut counts = Vec::new();
        // 25 keys, 6.16 million requests: from 718,000 down to 115,000.
        counts.extend((1..=25u32).map(|rank| power(718_000.0, 2.0, 0.8315, rank)));
        counts.extend((26..=141u32).map(|rank| {
            let share = f64::from(rank - 26) / 115.0;
            (99_000.0 * (25_200.0f64 / 99_000.0).powf(share.powf(0.75))) as u32
        }));
        let head: u32 = counts.iter().sum();
        // At most ten requests: n keys of c requests, n in proportion to c^-2.2.
        let weights: Vec<f64> = (1..=10).map(|count| f64::from(count).powf(-2.2)).collect();
        let total: f64 = weights.iter().sum();
        let cold: Vec<(u32, u32)> = (1..=10u32)
            .rev()
            .map(|count| ((3_200_000.0 * weights[count as usize - 1] / total) as u32, count))
            .collect();
        let cold_requests: u32 = cold.iter().map(|(keys, count)| keys * count).sum();
        let body = body(REQUESTS - head - cold_requests);
        let singles = counts.into_iter().chain(body).map(|count| (1, count));
        let shape = singles.chain(cold);
        Popularity::from_counts(shape, seed)
    }

    pub fn requests(&self) -> u32 {
        self.requests
    }

    pub fn keys(&self) -> u32 {
        self.levels.last().expect("a sentinel ends the levels").first_key
    }

    /// The key of request `position`. About 10 ns.
    #[inline]
    pub fn at(&self, position: u32) -> u32 {
        let slot = self.permuted(position);
        let mut level = self.coarse[(slot >> COARSE_SHIFT) as usize] as usize;
        while self.levels[level + 1].first_slot <= slot {
            level += 1;
        }
        let level = &self.levels[level];
        level.first_key + (slot - level.first_slot) / level.count
    }

    /// Requests of every key, by key.
    pub fn counts(&self) -> Vec<u32> {
        let mut counts = Vec::with_capacity(self.keys() as usize);
        for pair in self.levels.windows(2) {
            counts.resize(pair[1].first_key as usize, pair[0].count);
        }
        counts
    }

    /// A bijection on 0..requests: rounds of odd multiplication and folding permute the next power of two,
    /// and who lands outside walks on.
    #[inline]
    fn permuted(&self, position: u32) -> u32 {
        let mask = (1u64 << self.bits) as u32 - 1;
        let fold = self.bits / 2;
        let mut slot = position;
        loop {
            for multiplier in self.multipliers {
                slot = slot.wrapping_mul(multiplier).wrapping_add(multiplier >> 7) & mask;
                slot ^= slot >> fold;
            }
            if slot < self.requests {
                return slot;
            }
        }
    }
}

fn power(first: f64, shift: f64, exponent: f64, rank: u32) -> u32 {
    (first * ((1.0 + shift) / (f64::from(rank) + shift)).powf(exponent)) as u32
}

/// Counts from 25,000 down to 11 that sum to `requests`: a power law whose exponent is searched.
fn body(requests: u32) -> Vec<u32> {
    let law = |exponent: f64| -> Vec<u32> {
        (142..4_000_000u32)
            .map(|rank| (25_000.0 * (142.0 / f64::from(rank)).powf(exponent)) as u32)
            .take_while(|count| *count > 10)
            .collect()
    };
    let (mut steep, mut flat) = (3.0, 0.9);
    for _ in 0..40 {
        let middle = (steep + flat) / 2.0;
        let sum: u64 = law(middle).iter().map(|count| u64::from(*count)).sum();
        if sum > u64::from(requests) { flat = middle } else { steep = middle }
    }
    let mut counts = law(steep);
    let missing = requests - counts.iter().sum::<u32>();
    // What rounding left over: more keys of eleven requests.
    counts.extend(std::iter::repeat_n(11, (missing / 11) as usize));
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_occurs_exactly_as_often_as_asked() {
        let made = Popularity::from_counts([(1, 1_000), (3, 70), (500, 2)], 9);
        let mut counts = vec![0; made.keys() as usize];
        (0..made.requests()).for_each(|position| counts[made.at(position) as usize] += 1);
        assert_eq!(counts, made.counts());
        assert_eq!((counts[0], counts[3], counts[4], counts.len()), (1_000, 70, 2, 504));
    }

    #[test]
    fn any_part_of_the_trace_looks_like_the_whole() {
        let made = Popularity::zipf(1.0, 10_000, 1_000_000, 1);
        let hottest = f64::from(made.counts()[0]) / 1e6;
        for start in (0..1_000_000).step_by(100_000) {
            let seen = (start..start + 100_000).filter(|at| made.at(*at) == 0).count() as f64 / 1e5;
            assert!((seen / hottest - 1.0).abs() < 0.1, "{seen} in {start}.., {hottest} in all");
        }
    }

    #[test]
    fn wikipedia_has_its_published_shape() {
        let made = Popularity::wikipedia(1);
        let counts = made.counts();
        let total = f64::from(made.requests());
        assert!((total / 28e6 - 1.0).abs() < 1e-3);
        let top: u32 = counts[..25].iter().sum();
        assert!((f64::from(top) / total - 0.22).abs() < 0.005, "{}", f64::from(top) / total);
        let rare = counts.iter().filter(|count| **count <= 10).count();
        assert!((rare as f64 / 3.2e6 - 1.0).abs() < 1e-3);
        let above = |threshold: u32| counts.iter().filter(|count| **count > threshold).count();
        assert_eq!((above(100_000), above(25_000)), (25, 141));
        assert!(counts.windows(2).all(|pair| pair[0] >= pair[1]));
    }
}
