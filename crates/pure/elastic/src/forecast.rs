//! The hit ratio of a cluster at every size, from the curves of its servers.
//!
//! Keys lie in servers by their hash, so a cluster is a cache in parts, and the curves of parts add up: where all have `bytes`
//! together, a part with the share s of all hashes has s × `bytes`, and the hits of the whole are the sum of theirs
//! ([`Curve::merged`]). That holds for any number of servers: a cachelet keeps its keys wherever it lies.
//!
//! Stack distances tell of LRU lists, and of bytes of items. A store has another policy, pages and an index. What that is
//! worth the cluster says itself: the list that hits as often as the cluster does has `efficiency` times its memory.

use mbal_sketch::Curve;

/// A store that hits less than half as well, or four times as well as a list of its size, is not measured rightly.
const EFFICIENCY: std::ops::RangeInclusive<f64> = 0.5..=4.0;

/// Where twice the memory does not bring so much, the hit ratio does not tell one size from another.
const FLAT: f64 = 0.01;

/// What is known of a cluster's hit ratio.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    curve: Curve,
    efficiency: f64,
}

impl Forecast {
    /// Of servers with these shares of all hashes.
    pub fn new(parts: &[(Curve, f64)]) -> Forecast {
        Forecast::of(Curve::merged(parts))
    }

    /// Of a whole cluster's curve by bytes.
    pub fn of(curve: Curve) -> Forecast {
        Forecast { curve, efficiency: 1.0 }
    }

    /// With memory that is worth so many times that of a list.
    pub fn with_efficiency(self, efficiency: f64) -> Forecast {
        Forecast { efficiency, ..self }
    }

    /// What memory is worth, if the cluster has `bytes` and was seen to hit so often: none where the curve is flat.
    pub fn efficiency_of(&self, bytes: u64, measured: f64) -> Option<f64> {
        let bytes = bytes as f64;
        let at = |times: f64| 1.0 - self.curve.miss_ratio((bytes * times) as u64);
        if bytes == 0.0 || at(2.0) - at(0.5) < 2.0 * FLAT || at(1.0) - at(0.5) < FLAT {
            return None;
        }
        let most = self.curve.hit_ratio_most();
        let size = self.curve.size_for_hit_ratio(measured.min(most - FLAT / 2.0))?;
        Some((size as f64 / bytes).clamp(*EFFICIENCY.start(), *EFFICIENCY.end()))
    }

    pub fn efficiency(&self) -> f64 {
        self.efficiency
    }

    /// With so many bytes of memory in all.
    pub fn hit_ratio(&self, bytes: u64) -> f64 {
        1.0 - self.curve.miss_ratio((bytes as f64 * self.efficiency) as u64)
    }

    /// The least memory with that hit ratio; `None` if no size has it.
    pub fn bytes_for(&self, hit_ratio: f64) -> Option<u64> {
        let size = self.curve.size_for_hit_ratio(hit_ratio)?;
        Some((size as f64 / self.efficiency).ceil() as u64)
    }

    /// Of a cluster that never evicts.
    pub fn hit_ratio_most(&self) -> f64 {
        self.curve.hit_ratio_most()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mbal_sketch::{Random, StackDistances, mix};

    fn requests() -> Vec<u64> {
        let mut bits = Random::new(4);
        (0..300_000).map(|_| mix((30_000.0 * bits.unit().powi(2)) as u64)).collect()
    }

    fn of(requests: impl Iterator<Item = u64>) -> Curve {
        let mut distances = StackDistances::new(16_384);
        requests.for_each(|hash| distances.observe(hash, 100));
        distances.by_bytes()
    }

    /// An LRU list for each part of the hashes, with its share of the memory.
    fn hits_of_parts(requests: &[u64], part_of: impl Fn(u64) -> usize, items: &[usize]) -> f64 {
        let mut lists: Vec<Vec<u64>> = vec![Vec::new(); items.len()];
        let mut hits = 0;
        for &hash in requests {
            let list = &mut lists[part_of(hash)];
            match list.iter().position(|&other| other == hash) {
                Some(at) => {
                    list.remove(at);
                    hits += 1;
                }
                None if list.len() == items[part_of(hash)] => drop(list.remove(0)),
                None => {}
            }
            list.push(hash);
        }
        hits as f64 / requests.len() as f64
    }

    #[test]
    fn a_cluster_s_curve_is_the_sum_of_its_servers_and_holds_for_other_numbers_of_servers() {
        let requests = &requests()[..60_000];
        // Of three servers one has half of the hashes.
        let of_three = |hash: u64| [0, 0, 1, 2][(hash >> 62) as usize];
        let part = |part| of(requests.iter().copied().filter(|&hash| of_three(hash) == part));
        let parts = [(part(0), 0.5), (part(1), 0.25), (part(2), 0.25)];
        let forecast = Forecast::new(&parts);
        for servers in [1, 2, 4] {
            let items = vec![2_000 / servers; servers];
            let part_of = |hash: u64| (hash >> 62) as usize * servers / 4;
            let played = hits_of_parts(requests, part_of, &items);
            let told = forecast.hit_ratio(200_000);
            assert!((told - played).abs() < 0.01, "{servers}: {told} {played}");
        }
    }

    #[test]
    fn memory_that_is_worth_more_than_a_list_s_is_measured() {
        let forecast = Forecast::of(of(requests().into_iter()));
        let measured = forecast.hit_ratio(600_000);
        let efficiency = forecast.efficiency_of(400_000, measured).expect("the curve rises");
        assert!((efficiency - 1.5).abs() < 0.02, "{efficiency}");
        let better = forecast.clone().with_efficiency(efficiency);
        assert!((better.hit_ratio(800_000) - forecast.hit_ratio(1_200_000)).abs() < 0.01);
        let bytes = better.bytes_for(better.hit_ratio(800_000)).expect("it is reached");
        assert!(bytes.abs_diff(800_000) < 16_000, "{bytes}");
        assert_eq!(forecast.efficiency_of(1 << 40, 0.5), None, "everything fits");
        assert_eq!(forecast.efficiency_of(0, 0.5), None);
    }
}
