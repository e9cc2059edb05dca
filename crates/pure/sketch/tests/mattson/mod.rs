//! Exact stack distances (Mattson et al. 1970): the oracle for [`mbal_sketch::StackDistances`].
//!
//! O(log n) per request and as much memory as there are requests; for tests and experiments.

use std::collections::BTreeMap;

/// The exact curve: every distance of every request that had one, sorted.
#[derive(Clone, Debug)]
pub struct ExactCurve {
    distances: Vec<u64>,
    requests: usize,
}

impl ExactCurve {
    pub fn miss_ratio(&self, size: u64) -> f64 {
        let hits = self.distances.partition_point(|&distance| distance <= size);
        1.0 - hits as f64 / self.requests as f64
    }

    /// From here on the curve is flat: the largest stack distance.
    pub fn size_most(&self) -> u64 {
        self.distances.last().copied().unwrap_or(0)
    }
}

/// The curves by items and by bytes of a stream of (key, bytes).
pub fn exact(requests: &[(u64, u32)]) -> (ExactCurve, ExactCurve) {
    let mut last_access: BTreeMap<u64, (usize, u32)> = BTreeMap::new();
    let mut items = Fenwick::new(requests.len());
    let mut bytes = Fenwick::new(requests.len());
    let (mut by_items, mut by_bytes) = (Vec::new(), Vec::new());
    for (now, &(key, size)) in requests.iter().enumerate() {
        if let Some((before, size_before)) = last_access.insert(key, (now, size)) {
            by_items.push(1 + items.sum_between(before + 1, now));
            by_bytes.push(u64::from(size) + bytes.sum_between(before + 1, now));
            items.add(before, 1_u64.wrapping_neg());
            bytes.add(before, u64::from(size_before).wrapping_neg());
        }
        items.add(now, 1);
        bytes.add(now, u64::from(size));
    }
    by_items.sort_unstable();
    by_bytes.sort_unstable();
    let curve = |distances| ExactCurve { distances, requests: requests.len() };
    (curve(by_items), curve(by_bytes))
}

struct Fenwick {
    sums: Vec<u64>,
}

impl Fenwick {
    fn new(len: usize) -> Fenwick {
        Fenwick { sums: vec![0; len + 1] }
    }

    fn add(&mut self, at: usize, amount: u64) {
        let mut node = at + 1;
        while node < self.sums.len() {
            self.sums[node] = self.sums[node].wrapping_add(amount);
            node += node & node.wrapping_neg();
        }
    }

    fn sum_between(&self, from: usize, to: usize) -> u64 {
        self.sum_to(to).wrapping_sub(self.sum_to(from))
    }

    fn sum_to(&self, end: usize) -> u64 {
        let (mut node, mut sum) = (end, 0_u64);
        while node > 0 {
            sum = sum.wrapping_add(self.sums[node]);
            node &= node - 1;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // An LRU list, played literally.
    fn misses_of_a_list(requests: &[(u64, u32)], size: u64, weigh: fn(u32) -> u64) -> usize {
        let mut list: Vec<(u64, u32)> = Vec::new();
        let mut misses = 0;
        for &(key, bytes) in requests {
            let used: u64;
            match list.iter().position(|&(other, _)| other == key) {
                Some(at) => {
                    used = list[..at].iter().map(|&(_, bytes)| weigh(bytes)).sum();
                    list.remove(at);
                }
                None => used = u64::MAX / 2,
            }
            misses += usize::from(used + weigh(bytes) > size);
            list.insert(0, (key, bytes));
        }
        misses
    }

    #[test]
    fn agrees_with_a_list_at_every_size() {
        let mut bits = mbal_sketch::Random::new(2);
        let requests: Vec<(u64, u32)> = (0..3_000)
            .map(|_| {
                let key = bits.word() % 40 * (bits.word() % 3);
                (key, 1 + (key * 7 % 30) as u32)
            })
            .collect();
        let (by_items, by_bytes) = exact(&requests);
        for size in 0..90 {
            let misses = misses_of_a_list(&requests, size, |_| 1);
            assert!((by_items.miss_ratio(size) - misses as f64 / 3_000.0).abs() < 1e-12);
            let misses = misses_of_a_list(&requests, 13 * size, u64::from);
            assert!((by_bytes.miss_ratio(13 * size) - misses as f64 / 3_000.0).abs() < 1e-12);
        }
    }
}
