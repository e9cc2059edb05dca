//! The hit ratio of a cluster at every size, from the curves of its servers.
//!
//! Keys lie in servers by their hash, so a cluster is a cache in parts, and the curves of parts add up: where all have `bytes`
//! together, a part with the share s of all hashes has s × `bytes`, and the hits of the whole are the sum of theirs
//! ([`Curve::merged`]). That holds for any number of servers: a cachelet keeps its keys wherever it lies.
//!
//! Stack distances tell of LRU lists, and of the last hour. A store has another policy, and its last minutes other requests. So the
//! curve says what more or less memory brings, and the cluster itself how often it hits as it is ([`Measured`]).

use mbal_sketch::Curve;

/// A cluster that had so many bytes hit so often.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    pub bytes: u64,
    pub hit_ratio: f64,
}

/// What is known of a cluster's hit ratio.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    curve: Curve,
    through: Option<Point>,
}

/// Where the curve says `curve`, the forecast is `hit_ratio`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    curve: f64,
    hit_ratio: f64,
}

impl Point {
    /// Of a hit ratio that the curve gains, the part that is forecast: all, but no more than there are misses.
    fn gained(&self) -> f64 {
        part(1.0 - self.hit_ratio, 1.0 - self.curve)
    }

    /// The same of what it loses: no more than there are hits.
    fn lost(&self) -> f64 {
        part(self.hit_ratio, self.curve)
    }
}

/// 1 at most.
fn part(of: f64, whole: f64) -> f64 {
    if of < whole { of / whole } else { 1.0 }
}

impl Forecast {
    /// Of servers with these shares of all hashes.
    pub fn new(parts: &[(Curve, f64)]) -> Forecast {
        Forecast::of(Curve::merged(parts))
    }

    /// Of a whole cluster's curve by bytes.
    pub fn of(curve: Curve) -> Forecast {
        Forecast { curve, through: None }
    }

    /// One that is, at this size, what was measured.
    pub fn through(self, measured: Measured) -> Forecast {
        let curve = self.curve_at(measured.bytes);
        let hit_ratio = measured.hit_ratio.clamp(0.0, 1.0);
        Forecast { through: Some(Point { curve, hit_ratio }), ..self }
    }

    /// With so many bytes of memory in all.
    pub fn hit_ratio(&self, bytes: u64) -> f64 {
        self.where_curve_is(self.curve_at(bytes))
    }

    /// Of a cluster that never evicts.
    pub fn hit_ratio_most(&self) -> f64 {
        self.where_curve_is(self.curve.hit_ratio_most())
    }

    /// The least memory with that hit ratio; `None` if no size has it.
    pub fn bytes_for(&self, hit_ratio: f64) -> Option<u64> {
        let curve = match self.through {
            Some(now) if hit_ratio < now.hit_ratio => {
                now.curve - (now.hit_ratio - hit_ratio) / now.lost()
            }
            Some(now) if hit_ratio > now.hit_ratio => {
                now.curve + (hit_ratio - now.hit_ratio) / now.gained()
            }
            Some(now) => now.curve,
            None => hit_ratio,
        };
        self.curve.size_for_hit_ratio(curve)
    }

    fn curve_at(&self, bytes: u64) -> f64 {
        1.0 - self.curve.miss_ratio(bytes)
    }

    fn where_curve_is(&self, curve: f64) -> f64 {
        match self.through {
            Some(now) if curve < now.curve => now.hit_ratio - now.lost() * (now.curve - curve),
            Some(now) => now.hit_ratio + now.gained() * (curve - now.curve),
            None => curve,
        }
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
    fn a_forecast_goes_through_what_was_measured_and_changes_no_more_than_the_curve() {
        let plain = Forecast::of(of(requests().into_iter()));
        let sizes: Vec<u64> = (0..=60).map(|step| 50_000 * step).collect();
        for bytes in [0, 200_000, 600_000, 1_500_000, 1 << 40] {
            for hit_ratio in [0.0, 0.1, 0.5, plain.hit_ratio(bytes), 0.9, 1.0] {
                let forecast = plain.clone().through(Measured { bytes, hit_ratio });
                assert!((forecast.hit_ratio(bytes) - hit_ratio).abs() < 1e-9);
                for pair in sizes.windows(2) {
                    let change = |of: &Forecast| of.hit_ratio(pair[1]) - of.hit_ratio(pair[0]);
                    let changes = -1e-9..=change(&plain) + 1e-9;
                    assert!(changes.contains(&change(&forecast)), "{bytes} {hit_ratio} {pair:?}");
                }
                let all = sizes.iter().map(|&size| forecast.hit_ratio(size));
                assert!(all.clone().all(|ratio| (0.0..=1.0 + 1e-9).contains(&ratio)));
            }
        }
        let measured = Measured { bytes: 600_000, hit_ratio: plain.hit_ratio(600_000) };
        let same = plain.clone().through(measured);
        assert!(
            sizes.iter().all(|&size| (same.hit_ratio(size) - plain.hit_ratio(size)).abs() < 1e-9)
        );
    }

    /// Of the sizes of all buckets, one after the other.
    fn least_bytes(forecast: &Forecast, hit_ratio: f64) -> Option<u64> {
        (0..40_000).map(|step| 100 * step).find(|&bytes| forecast.hit_ratio(bytes) >= hit_ratio)
    }

    #[test]
    fn the_least_memory_for_a_hit_ratio_is_what_trying_all_sizes_finds() {
        let plain = Forecast::of(of(requests().into_iter()));
        let measured = |bytes, hit_ratio| plain.clone().through(Measured { bytes, hit_ratio });
        for forecast in
            [plain.clone(), measured(600_000, 0.9), measured(600_000, 0.2), measured(0, 0.3)]
        {
            for percent in 0..=100 {
                let hit_ratio = f64::from(percent) / 100.0;
                let bytes = forecast.bytes_for(hit_ratio);
                match (bytes, least_bytes(&forecast, hit_ratio)) {
                    (Some(found), Some(tried)) => {
                        assert!(
                            found.abs_diff(tried) <= 100 + tried / 100,
                            "{percent}: {found} {tried}"
                        );
                    }
                    (found, tried) => assert_eq!(found, tried, "{percent}"),
                }
            }
            assert_eq!(forecast.bytes_for(1.001), None);
            assert!(forecast.hit_ratio_most() <= 1.0);
        }
    }
}
