//! NetKV's own prediction, which counts equal balls, and the sweep by where copies really are: to be compared with what a cluster does.

use mbal_balance::{Demand, Threshold, copies};

/// Predicted max load / average load at threshold T by equations (1) to (5).
pub fn predict_equal(demand: &Demand, threshold: f64) -> f64 {
    let average = demand.requests / demand.bins as f64;
    if average <= 0.0 {
        return 1.0;
    }
    (equal_balls(demand, threshold) / average).max(1.0)
}

/// The fullest of n bins after m balls: NetKV's Eq. 1, after Raab and Steger, with α = 1.
///
/// More balls never give less. As printed Eq. 1 falls twice: at m = n / ln n, where its first case ends above
/// its second, and near m = n ln n, where ln ln x < 0. So the first case stops where the second begins,
/// and the third case follows where the second falls, and is a floor everywhere. Where balls are
/// thrown (n from 2 to 2,500, m/n from 0.03 to 1,000) the mean of the fullest bin is 0.66 to 1.18 times this, and
/// 0.85 to 1.03 times from m = 10 n on: an estimate, and no bound.
fn max_balls(m: f64, n: f64) -> f64 {
    if m <= 0.0 {
        return 0.0;
    }
    let many = m / n + (2.0 * (m / n) * n.ln()).sqrt();
    let middle = |ln_x: f64| (n.ln() / ln_x) * (1.0 + ln_x.ln() / ln_x);
    let ln_x = (n * n.ln() / m).ln();
    let most = if ln_x < 1.0 {
        many
    } else if m < n / n.ln() {
        // At m = n / ln n, x is ln² n.
        (n.ln() / (n / m).ln()).min(middle((2.0 * n.ln().ln()).max(1.0)))
    } else {
        middle(ln_x)
    };
    most.max(many).min(m)
}

fn equal_balls(demand: &Demand, threshold: f64) -> f64 {
    let n = demand.bins as f64;
    let hot = demand.tracked.iter().filter(|requests| **requests >= threshold);
    let (mut hot_keys, mut hot_requests) = (0.0, 0.0);
    for requests in hot {
        hot_keys += 1.0;
        hot_requests += requests;
    }
    let virtual_keys = hot_requests / threshold;
    let cold_keys = (demand.keys - hot_keys).max(1.0);
    let cold_requests = (demand.requests - hot_requests).max(0.0);
    max_balls(virtual_keys, n) * threshold + max_balls(cold_keys, n) * cold_requests / cold_keys
}

/// The steps of the sweep.
const FINE: f64 = 1.02;

/// The sweep by what is rather than by what is likely: `bin_of` says for a tracked key which bin holds one of so
/// many copies, so every T has one imbalance, and that of the real placement. `target` is a limit, as
/// everywhere (`--imbalance-target`): chosen is the largest T, in steps of 2%, whose imbalance is at most the
/// target, or the most even if none is. Where a few keys outweigh all others the imbalance jumps from T to
/// T, so what is chosen may lie far under its target. Untracked keys count as even, and rates are those that
/// were seen: what is served afterwards exceeds the target by as much as these are wrong. A cluster
/// that keeps the target has no copies. At
/// most ln(64 · bins) / 0.02 steps of O(tracked + their copies): 600 with 2,500 bins.
pub fn choose_threshold_placed(
    demand: &Demand,
    target: f64,
    bin_of: impl Fn(usize, u32, u32) -> usize,
) -> Threshold {
    let hottest = demand.tracked.iter().copied().fold(1.0, f64::max);
    let least = (hottest / (64.0 * demand.bins as f64)).max(1.0);
    let mut loads = vec![0.0; demand.bins];
    let mut at = |threshold: f64| Threshold {
        requests_per_copy: threshold,
        predicted: placed_imbalance(demand, threshold, &bin_of, &mut loads),
    };
    let mut best = at(hottest);
    let mut threshold = hottest;
    while best.predicted > target && threshold > least {
        threshold /= FINE;
        let here = at(threshold);
        if here.predicted < best.predicted {
            best = here;
        }
    }
    best
}

fn placed_imbalance(
    demand: &Demand,
    threshold: f64,
    bin_of: impl Fn(usize, u32, u32) -> usize,
    loads: &mut [f64],
) -> f64 {
    let tracked: f64 = demand.tracked.iter().sum();
    loads.fill((demand.requests - tracked).max(0.0) / demand.bins as f64);
    for (key, &requests) in demand.tracked.iter().enumerate() {
        let copies = copies(requests, threshold);
        let each = requests / f64::from(copies);
        (0..copies).for_each(|copy| loads[bin_of(key, copy, copies)] += each);
    }
    let most = loads.iter().copied().fold(0.0, f64::max);
    most * demand.bins as f64 / demand.requests.max(tracked).max(f64::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use mbal_random::{Random, mix};

    use super::*;

    fn skewed(bins: usize) -> Demand {
        let tracked: Vec<f64> = (1..=1_000).map(|rank| 1_000_000.0 / f64::from(rank)).collect();
        Demand { requests: tracked.iter().sum::<f64>() + 5e6, keys: 1e6, tracked, bins }
    }

    #[test]
    fn more_balls_never_predict_less() {
        for n in (1..20).chain([50, 100, 2_500]).map(f64::from) {
            let mut last = 0.0;
            let mut m = 0.01;
            while m < 2_000.0 * n {
                let most = max_balls(m, n);
                assert!(most >= last, "{m} balls in {n} bins: {last} then {most}");
                assert!(most >= (m / n).min(m) && most <= m);
                last = most;
                m *= 1.001;
            }
        }
    }

    #[test]
    fn a_million_balls_in_two_bins_are_even() {
        let most = max_balls(1e6, 2.0) / 5e5;
        assert!((most - 1.0017).abs() < 1e-4, "{most}");
        assert_eq!(max_balls(1e6, 1.0), 1e6);
    }

    #[test]
    fn equation_1_at_its_three_cases() {
        let close =
            |value: f64, expected: f64| assert!((value - expected).abs() < 0.005, "{value}");
        close(max_balls(10.0, 100.0), 2.0);
        close(max_balls(100.0, 100.0), 4.035);
        close(max_balls(10_000.0, 100.0), 130.349);
    }

    fn mean_fullest_bin(m: u64, n: u64, random: &mut Random) -> f64 {
        let throws = (1_000_000 / m).clamp(20, 400);
        let mut sum = 0;
        for _ in 0..throws {
            let mut bins = vec![0; n as usize];
            (0..m).for_each(|_| bins[random.below(n) as usize] += 1);
            sum += bins.into_iter().max().expect("a bin");
        }
        f64::from(sum) / throws as f64
    }

    #[test]
    fn equation_1_beside_thrown_balls() {
        let mut random = Random::new(5);
        for n in [2, 5, 10, 50, 100, 1_000, 2_500] {
            for share in [0.03, 0.1, 0.128, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0, 100.0, 1_000.0] {
                let m = (share * n as f64).round() as u64;
                if m == 0 {
                    continue;
                }
                let ratio = mean_fullest_bin(m, n, &mut random) / max_balls(m as f64, n as f64);
                let (least, most) = if m < 10 * n { (0.66, 1.18) } else { (0.85, 1.03) };
                assert!(least < ratio && ratio < most, "{m} balls in {n} bins: {ratio}");
            }
        }
    }

    /// A bin for each copy, from a seed.
    fn placing(seed: u64, bins: usize) -> impl Fn(usize, u32, u32) -> usize {
        move |key, copy, _| {
            let bits = mix(mix(seed) ^ (key as u64) << 32 ^ u64::from(copy));
            (((bits >> 32) * bins as u64) >> 32) as usize
        }
    }

    #[test]
    fn by_the_real_placement_each_target_is_kept_by_the_largest_threshold_that_does() {
        for seed in 1..30 {
            for target in [1.7, 3.2] {
                let bin_of = placing(seed, 100);
                let demand = skewed(100);
                let chosen = choose_threshold_placed(&demand, target, &bin_of);
                assert!(chosen.predicted <= target, "{seed}: {chosen:?}");
                let mut loads = vec![0.0; 100];
                let mut at = |threshold| placed_imbalance(&demand, threshold, &bin_of, &mut loads);
                assert_eq!(at(chosen.requests_per_copy), chosen.predicted);
                let mut larger = demand.tracked[0];
                while larger > chosen.requests_per_copy * 1.01 {
                    assert!(at(larger) > target, "{seed}: {larger} and {chosen:?}");
                    larger /= FINE;
                }
                assert!((loads.iter().sum::<f64>() / demand.requests - 1.0).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn what_no_threshold_keeps_is_placed_as_evenly_as_can_be() {
        // One bin gets every copy.
        let demand = skewed(10);
        let chosen = choose_threshold_placed(
            &demand,
            1.5,
            |key, _, copies| {
                if copies > 40 { key % 10 } else { 0 }
            },
        );
        assert!(chosen.predicted > 1.5 && chosen.requests_per_copy < 1_000_000.0 / 40.0);
    }

    #[test]
    fn what_keeps_its_target_gets_no_copies() {
        let even = Demand { tracked: vec![10.0; 100], requests: 1e7, keys: 1e6, bins: 20 };
        let chosen = choose_threshold_placed(&even, 1.5, placing(1, 20));
        assert_eq!(copies(10.0, chosen.requests_per_copy), 1);
    }

    #[test]
    fn no_requests_are_balanced() {
        let none = Demand { tracked: vec![], requests: 0.0, keys: 0.0, bins: 20 };
        assert_eq!(predict_equal(&none, 1.0), 1.0);
    }
}
