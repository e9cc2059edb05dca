//! The hit ratio of a cluster at every size, from the curves of its servers.
//!
//! Keys lie in servers by their hash, so a cluster is a cache in parts, and the curves of parts add up: where all have `bytes`
//! together, a part with the share s of all hashes has s × `bytes`, and the hits of the whole are the sum of theirs
//! ([`Curve::merged`]). That holds for any number of servers: a cachelet keeps its keys wherever it lies.
//!
//! Stack distances tell of LRU lists, and of the last hour. A store has another policy, and its last minutes other requests. So the
//! curve says what more or less memory brings, and the cluster itself how often it hits as it is ([`Measured`]).

use mbal_sketch::Curve;

/// Sizes between two at which it is looked how fast a cache fills.
const FILL_STEPS: u32 = 64;
/// What takes longer, in seconds, is called never.
const FILLS_MOST: f64 = 30.0 * 86_400.0;

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

    /// What it hits at most with so many bytes: the keys of which one read alone is known may all come again.
    pub fn hit_ratio_most_at(&self, bytes: u64) -> f64 {
        (self.hit_ratio(bytes) + 1.0 - self.curve.hit_ratio_most()).min(1.0)
    }

    /// Seconds in which a full cache whose memory grows from `bytes` to `more_bytes` is full again: what misses is stored, and nothing
    /// is evicted meanwhile. At a size x that is `rate` × miss ratio(x) × `item_bytes` a second. `None` if that is not known, or
    /// it never is.
    pub fn fills_in(&self, bytes: u64, more_bytes: u64, rate: f64, item_bytes: f64) -> Option<f64> {
        let step = more_bytes.saturating_sub(bytes) as f64 / f64::from(FILL_STEPS);
        let of_step = |nth: u32| {
            let size = bytes as f64 + step * (f64::from(nth) + 0.5);
            step / (rate * (1.0 - self.hit_ratio(size as u64)) * item_bytes)
        };
        let seconds: f64 = (0..FILL_STEPS).map(of_step).sum();
        (seconds.is_finite() && seconds < FILLS_MOST).then_some(seconds)
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
    use std::collections::BTreeMap;

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

    /// A list in the order of the last use, with room for so many items; how many of these requests have been played when it has
    /// that many.
    fn full_after(requests: &[u64], room: usize, more_room: usize) -> usize {
        let (mut last, mut order) = (BTreeMap::new(), BTreeMap::new());
        let mut is_full = false;
        for (at, key) in requests.iter().enumerate() {
            if let Some(before) = last.insert(*key, at) {
                order.remove(&before);
            }
            order.insert(at, *key);
            is_full |= order.len() >= room;
            // It grows after half of the requests.
            let grows = at >= requests.len() / 2;
            if grows && order.len() >= more_room {
                assert!(is_full, "it was full before");
                return at - requests.len() / 2;
            }
            if !grows && order.len() > room {
                let (_, oldest) = order.pop_first().expect("it has items");
                last.remove(&oldest);
            }
        }
        panic!("never")
    }

    #[test]
    fn a_cache_that_grows_is_full_again_when_its_misses_have_filled_it() {
        let requests = requests();
        let forecast = Forecast::of(of(requests[..150_000].iter().copied()));
        for (room, more_room) in [(1_000, 2_000), (1_000, 6_000), (5_000, 7_000)] {
            let played = full_after(&requests, room, more_room) as f64;
            let seconds =
                forecast.fills_in(100 * room as u64, 100 * more_room as u64, 1_000.0, 100.0);
            let told = 1_000.0 * seconds.expect("it fills");
            assert!((told / played - 1.0).abs() < 0.15, "{room} {more_room}: {told} {played}");
        }
        assert_eq!(forecast.fills_in(100_000, 1 << 40, 1_000.0, 100.0), None, "all hits by then");
        assert_eq!(forecast.fills_in(100_000, 200_000, 0.0, 100.0), None, "nobody reads");
        assert_eq!(forecast.fills_in(100_000, 200_000, 1_000.0, 0.0), None, "of nothing");
    }

    #[test]
    fn what_is_known_by_one_read_may_come_again() {
        // Of keys that are each read twice, half of all reads are first ones.
        let twice = (0..10_000).flat_map(|key| [mix(key), mix(key)]);
        let forecast = Forecast::of(of(twice));
        let (hit_ratio, most) = (forecast.hit_ratio(1 << 30), forecast.hit_ratio_most_at(1 << 30));
        assert!((hit_ratio - 0.5).abs() < 0.01 && (most - 1.0).abs() < 0.01, "{hit_ratio} {most}");
    }
}
