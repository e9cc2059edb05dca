//! How many copies a hot key gets: NetKV's balls and bins (ICAC 2016, §IV.B, D and E; docs/design/balancing.md).
//!
//! A key of frequency f gets ceil(f / T) copies; T is the largest threshold whose predicted imbalance
//! (max load / average load) stays under the target. Two predictions, which know the balls' weights: one as a bound and one in
//! the middle (docs/decisions/0171). NetKV's own, which counts equal balls, is in `mbal-lab`.

/// What the sketches say of one interval.
#[derive(Clone, Debug, PartialEq)]
pub struct Demand {
    /// Requests of each tracked key in the interval.
    pub tracked: Vec<f64>,
    /// All requests in the interval, tracked keys included.
    pub requests: f64,
    /// Distinct keys in the interval.
    pub keys: f64,
    /// Servers or workers that copies are spread over by hash.
    pub bins: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prediction {
    /// Chernoff's bound with every tracked copy's own weight: exceeded once in ten times, or less.
    WeighedBalls,
    /// The median with every tracked copy's own weight, by the saddle point of the same sum: exceeded as
    /// often as not, so that a target is met and not undershot.
    Typical,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Threshold {
    /// Requests per interval and copy: a key of frequency f gets ceil(f / T) copies.
    pub requests_per_copy: f64,
    /// Max load / average load that this promises.
    pub predicted: f64,
}

/// Copies in all, the original included (NetKV §IV.B). 1 is an ordinary key.
pub fn copies(requests: f64, threshold: f64) -> u32 {
    (requests / threshold).ceil().clamp(1.0, f64::from(u32::MAX)) as u32
}

/// Predicted max load / average load at threshold T (NetKV, ICAC 2016, §IV.D). O(tracked), and at most 40 · 300 steps
/// more where balls are weighed.
pub fn predict(demand: &Demand, threshold: f64, prediction: Prediction) -> f64 {
    let average = demand.requests / demand.bins as f64;
    if average <= 0.0 {
        return 1.0;
    }
    let most = match prediction {
        Prediction::WeighedBalls => average * Balls::new(demand, threshold).bound(),
        Prediction::Typical => average * Balls::new(demand, threshold).median_of_most(),
    };
    (most / average).max(1.0)
}

/// The chance that some bin exceeds the prediction, by Chernoff's reckoning; in truth it is smaller.
const EXCEEDED: f64 = 0.1;

/// What is thrown into the bins, in groups, and what lies in each bin already. Loads are in averages.
struct Balls {
    groups: Vec<Group>,
    even: f64,
    bins: f64,
}

/// Balls of nearly one weight: each lies in a bin with the same chance.
#[derive(Clone, Copy, Default)]
struct Group {
    weight: f64,
    chance: f64,
    count: f64,
}

/// Weights that agree in their exponent and this many bits more, 1.6%, are one group, of their mean weight.
const WEIGHT_BITS: u32 = 6;

impl Balls {
    fn new(demand: &Demand, threshold: f64) -> Balls {
        let bins = demand.bins as f64;
        let average = demand.requests / bins;
        let mut groups: Vec<Group> = Vec::new();
        let mut by_weight = [u16::MAX; 64 << WEIGHT_BITS];
        let mut throw = |requests: f64, copies: f64| {
            let weight = requests / copies / average;
            // From 2^-48 to 2^16 averages.
            let rounded = (weight.to_bits() >> (52 - WEIGHT_BITS)) as usize;
            let group = rounded.saturating_sub((1023 - 48) << WEIGHT_BITS).min(by_weight.len() - 1);
            if by_weight[group] == u16::MAX {
                by_weight[group] = groups.len() as u16;
                groups.push(Group { chance: 1.0 / bins, ..Group::default() });
            }
            let group = &mut groups[by_weight[group] as usize];
            group.weight += weight * copies;
            group.count += copies;
        };
        let mut tracked = 0.0;
        for &requests in demand.tracked.iter().filter(|requests| **requests > 0.0) {
            throw(requests, f64::from(copies(requests, threshold)));
            tracked += requests;
        }
        let rest = (demand.requests - tracked).max(0.0);
        if rest > 0.0 {
            throw(rest, (demand.keys - demand.tracked.len() as f64).max(1.0));
        }
        groups.iter_mut().for_each(|group| group.weight /= group.count);
        Balls { groups, even: 0.0, bins }
    }

    /// Each key's copies on as many servers, no two on one; the rest of the requests is even. Copies are whole only
    /// in truth: a key of f > T counts as f / T of them, of T requests each, so that a little more or less
    /// changes the prediction a little. What is whole is more even than that.
    fn one_a_server(servers: usize, requests: f64, hottest: &[f64], threshold: f64) -> Balls {
        let bins = servers as f64;
        let average = requests / bins;
        let mut even = requests;
        let hot = |&rate: &f64| {
            even -= rate;
            let copies = (rate / threshold).clamp(1.0, bins);
            Group { weight: rate / copies / average, chance: copies / bins, count: 1.0 }
        };
        let groups = hottest.iter().filter(|rate| **rate > 0.0).map(hot).collect();
        Balls { groups, even: (even / requests).max(0.0), bins }
    }

    fn heaviest(&self) -> f64 {
        self.groups.iter().map(|group| group.weight).fold(f64::MIN_POSITIVE, f64::max)
    }

    /// ln E[e^θL] for a bin's load L = even + Σ w B, B drawn 1 with its ball's chance; and its first two derivatives.
    fn cumulants(&self, theta: f64) -> [f64; 3] {
        let mut sums = [theta * self.even, self.even, 0.0];
        for Group { weight, chance, count } in &self.groups {
            // In powers of e^−θw, which do not overflow.
            let absent = (1.0 - chance) * (-theta * weight).exp();
            // The chance of this ball once every outcome weighs e^θL.
            let tilted = chance / (chance + absent);
            let shrunk = (1.0 - chance) * (-theta * weight).exp_m1();
            sums[0] += count * (theta * weight + shrunk.ln_1p());
            sums[1] += count * weight * tilted;
            sums[2] += count * weight * weight * tilted * (1.0 - tilted);
        }
        sums
    }

    /// P(L ≥ b) ≤ E[e^θL] / e^θb for every θ. The b at which n of these sum to [`EXCEEDED`] bounds the
    /// fullest bin; the best θ is found by golden section, as there is one valley.
    fn bound(&self) -> f64 {
        let bound = |theta: f64| ((self.bins / EXCEEDED).ln() + self.cumulants(theta)[0]) / theta;
        least(bound, 1e-3, 1e9_f64.min(2e4 / self.heaviest()))
    }

    /// The b that n bins exceed ln 2 times on average, so that with half a chance none does. At the b whose
    /// best θ is known, P(L ≥ b) ≈ e^(K − θb) / (θ √(2π K'')) (Bahadur and Rao); it falls as θ grows.
    fn median_of_most(&self) -> f64 {
        let (mut low, mut high) = (1e-3_f64.ln(), 200.0_f64.min(200.0 / self.heaviest()).ln());
        let mut most = 1.0;
        for _ in 0..40 {
            let middle = (low + high) / 2.0;
            let theta = middle.exp();
            let [exponent, load, spread] = self.cumulants(theta);
            let chance = (exponent - theta * load).exp()
                / (theta * (std::f64::consts::TAU * spread).sqrt()).max(f64::MIN_POSITIVE);
            if self.bins * chance > std::f64::consts::LN_2 {
                low = middle
            } else {
                high = middle
            }
            most = load;
        }
        most
    }
}

/// The least value of a function with one valley, over a logarithmic scale.
fn least(function: impl Fn(f64) -> f64, low: f64, high: f64) -> f64 {
    const GOLDEN: f64 = 0.618_033_988_749_894_9;
    let at = |logarithm: f64| (logarithm, function(logarithm.exp()));
    let (mut low, mut high) = (low.ln(), high.ln());
    let mut left = at(high - GOLDEN * (high - low));
    let mut right = at(low + GOLDEN * (high - low));
    for _ in 0..30 {
        // The point that stays inside is a golden one of what is left.
        if left.1 < right.1 {
            high = right.0;
            right = left;
            left = at(high - GOLDEN * (high - low));
        } else {
            low = left.0;
            left = right;
            right = at(low + GOLDEN * (high - low));
        }
    }
    left.1.min(right.1)
}

/// The sweep of NetKV (ICAC 2016) §IV.E: the largest T, in requests per copy, whose prediction stays under
/// `target`; in steps of 25% first, then of 2% within the last of them. If none does, because cold keys alone
/// exceed it, the smallest that was tried. Copies are virtual (§IV.B): a key may get more of them than
/// there are bins, so that hashing spreads it evenly. O(50 · predict).
pub fn choose_threshold(demand: &Demand, target: f64, prediction: Prediction) -> Threshold {
    let hottest = demand.tracked.iter().copied().fold(1.0, f64::max);
    let least = (hottest / (64.0 * demand.bins as f64)).max(1.0);
    let mut at = hottest;
    let mut step = 1.25;
    loop {
        let predicted = predict(demand, at, prediction);
        if predicted <= target || at <= least {
            if step == FINE || at == hottest {
                return Threshold { requests_per_copy: at, predicted };
            }
            at *= step;
            step = FINE;
        }
        at = (at / step).max(least);
    }
}

/// The last steps of the sweep.
const FINE: f64 = 1.02;

/// The largest T, in requests per second and copy, with which a cluster of so many servers is predicted to keep
/// max / average load under `target`: phase 1's threshold, for the coordinator, and what
/// `--imbalance-target` (1.25 by default) means.
///
/// A key of rate f gets [`copies`]`(f, T).min(servers)` copies in all, on as many servers; which, a hash says. `hottest`
/// are rates of keys, in any order, `requests` that of all keys; what is not listed counts as even. The
/// prediction is [`Prediction::WeighedBalls`]' bound: at most one placement in ten exceeds the target. Copies
/// of every listed key on every server are even, so every target above 1 is kept.
///
/// - Infinite where nothing is hot: no key needs a copy. So with one server, and with no requests.
/// - Never zero: where even the target is 1 or less, T is the least listed rate / servers, so that every listed
///   key is on every server. Nothing does more.
/// - Monotone: a smaller target never gives a larger T, and more requests for keys that are not listed never
///   a smaller one. All rates doubled double T.
/// - Stable: T is a power of 1.01, rounded down, so small changes of the rates change nothing, or a step or two. It jumps
///   only over rates where no key's number of copies depends on it.
///
/// Some 12 steps of a bisection with 32 passes over `hottest` each, so O(keys): docs/results/deciders.md has the time.
pub fn copies_threshold(servers: usize, requests: f64, hottest: &[f64], target: f64) -> f64 {
    let listed = || hottest.iter().copied().filter(|rate| *rate > 0.0);
    let requests = requests.max(listed().sum());
    let even_with = |threshold: f64| {
        Balls::one_a_server(servers, requests, hottest, threshold).bound() <= target
    };
    if servers <= 1 || listed().next().is_none() || even_with(f64::INFINITY) {
        return f64::INFINITY;
    }
    let step_of = |threshold: f64| threshold.ln() / STEP.ln();
    let threshold_of = |step: i32| STEP.powi(step);
    // Every key everywhere, and no key twice.
    let mut enough =
        step_of(listed().fold(f64::INFINITY, f64::min) / servers as f64).floor() as i32;
    let mut too_few = step_of(listed().fold(0.0, f64::max)).ceil() as i32;
    while enough + 1 < too_few {
        let middle = enough + (too_few - enough) / 2;
        if even_with(threshold_of(middle)) { enough = middle } else { too_few = middle }
    }
    threshold_of(enough)
}

/// Of the thresholds that a coordinator names.
const STEP: f64 = 1.01;

#[cfg(test)]
mod tests {
    use mbal_random::Random;

    use super::*;

    #[test]
    fn a_key_of_rate_f_gets_ceil_f_over_t_copies() {
        assert_eq!([1.0, 10.0, 10.5, 95.0].map(|f| copies(f, 10.0)), [1, 1, 2, 10]);
    }

    fn skewed(bins: usize) -> Demand {
        let tracked: Vec<f64> = (1..=1_000).map(|rank| 1_000_000.0 / f64::from(rank)).collect();
        Demand { requests: tracked.iter().sum::<f64>() + 5e6, keys: 1e6, tracked, bins }
    }

    #[test]
    fn a_tighter_target_means_a_smaller_threshold() {
        for prediction in [Prediction::WeighedBalls, Prediction::Typical] {
            let loose = choose_threshold(&skewed(100), 3.2, prediction);
            let tight = choose_threshold(&skewed(100), 1.7, prediction);
            assert!(tight.requests_per_copy < loose.requests_per_copy);
            assert!(tight.predicted <= 1.7 && loose.predicted <= 3.2);
        }
    }

    #[test]
    fn an_even_demand_keeps_every_key_single() {
        let even = Demand { tracked: vec![10.0; 100], requests: 1e7, keys: 1e6, bins: 20 };
        let chosen = choose_threshold(&even, 1.5, Prediction::WeighedBalls);
        assert_eq!(copies(10.0, chosen.requests_per_copy), 1);
    }

    /// The fullest of 50 bins after each of 400 throws, from a seed.
    fn thrown(demand: &Demand, threshold: f64) -> Vec<f64> {
        let mut random = Random::new(7);
        let mut bin = || random.below(demand.bins as u64) as usize;
        let mut fullest: Vec<f64> = (0..400)
            .map(|_| {
                let mut loads = vec![0.0; demand.bins];
                for &requests in &demand.tracked {
                    let copies = copies(requests, threshold);
                    (0..copies).for_each(|_| loads[bin()] += requests / f64::from(copies));
                }
                let total: f64 = loads.iter().sum();
                loads.iter().copied().fold(0.0, f64::max) * demand.bins as f64 / total
            })
            .collect();
        fullest.sort_by(f64::total_cmp);
        fullest
    }

    #[test]
    fn the_typical_prediction_lies_in_the_middle_and_the_bound_above_nine_tenths() {
        for (skew, threshold) in [(0.6, 1e9), (0.9, 20_000.0), (0.9, 3_000.0), (1.1, 3_000.0)] {
            let tracked: Vec<f64> =
                (1..=2_000).map(|rank| 100_000.0 / f64::from(rank).powf(skew)).collect();
            let demand =
                Demand { requests: tracked.iter().sum(), keys: 2_000.0, tracked, bins: 50 };
            let seen = thrown(&demand, threshold);
            let typical = predict(&demand, threshold, Prediction::Typical);
            let bound = predict(&demand, threshold, Prediction::WeighedBalls);
            assert!((typical / seen[200] - 1.0).abs() < 0.05, "{skew}: {typical} {}", seen[200]);
            assert!(seen[360] <= bound, "{skew}: {bound} {}", seen[360]);
        }
    }

    #[test]
    fn no_requests_are_balanced() {
        let none = Demand { tracked: vec![], requests: 0.0, keys: 0.0, bins: 20 };
        assert_eq!(predict(&none, 1.0, Prediction::Typical), 1.0);
    }

    const TARGET: f64 = 1.25;

    /// Servers, requests, and the rates of some hottest keys, from a seed.
    fn drawn(seed: u64) -> (usize, f64, Vec<f64>) {
        let mut random = Random::new(seed);
        let servers = 2 + random.below(300) as usize;
        let (skew, scale) = (2.0 * random.unit(), 10f64.powf(6.0 * random.unit()));
        let keys = 1 + random.below(300);
        let rate = |rank| scale * (rank as f64).powf(-skew) * (0.5 + random.unit());
        let hottest: Vec<f64> = (1..=keys).map(rate).collect();
        let requests = hottest.iter().sum::<f64>() * (1.0 + 9.0 * random.unit());
        (servers, requests, hottest)
    }

    /// Max / average of one placement, each key's copies on servers of their own.
    fn placed_apart(
        (servers, requests, hottest): &(usize, f64, Vec<f64>),
        threshold: f64,
        random: &mut Random,
    ) -> f64 {
        let average = requests / *servers as f64;
        let rest = (requests - hottest.iter().sum::<f64>()) / *servers as f64;
        let mut loads = vec![rest; *servers];
        let mut order: Vec<usize> = (0..*servers).collect();
        for &rate in hottest {
            let copies = copies(rate, threshold).min(*servers as u32) as usize;
            for copy in 0..copies {
                order.swap(copy, copy + random.below((servers - copy) as u64) as usize);
                loads[order[copy]] += rate / copies as f64;
            }
        }
        loads.into_iter().fold(0.0, f64::max) / average
    }

    #[test]
    fn by_its_threshold_a_cluster_keeps_its_target_nine_times_in_ten() {
        let mut random = Random::new(3);
        for seed in 0..60 {
            let cluster = drawn(seed);
            let threshold = copies_threshold(cluster.0, cluster.1, &cluster.2, TARGET);
            let over = (0..100)
                .filter(|_| placed_apart(&cluster, threshold, &mut random) > TARGET)
                .count();
            assert!(over <= 10, "{seed}: {over} of 100 at {threshold}");
        }
    }

    #[test]
    fn the_threshold_is_the_largest_that_keeps_the_target() {
        for seed in 0..200 {
            let (servers, requests, hottest) = drawn(seed);
            let threshold = copies_threshold(servers, requests, &hottest, TARGET);
            let bound =
                |threshold| Balls::one_a_server(servers, requests, &hottest, threshold).bound();
            assert!(threshold > 0.0 && bound(threshold) <= TARGET, "{seed}: {threshold}");
            assert!(threshold == f64::INFINITY || bound(threshold * STEP) > TARGET, "{seed}");
        }
    }

    #[test]
    fn a_threshold_falls_with_its_target_and_rises_with_what_is_even() {
        for seed in 0..100 {
            let (servers, requests, hottest) = drawn(seed);
            let at = |requests, target| copies_threshold(servers, requests, &hottest, target);
            let mut last = 0.0;
            for target in [0.5, 1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0, 1e6] {
                let threshold = at(requests, target);
                assert!(threshold >= last && threshold > 0.0, "{seed}: {target}");
                last = threshold;
            }
            assert_eq!(last, f64::INFINITY);
            let mut last = 0.0;
            for more in [1.0, 1.1, 2.0, 5.0, 20.0] {
                let threshold = at(requests * more, TARGET);
                assert!(threshold >= last, "{seed}: {more}");
                last = threshold;
            }
        }
    }

    #[test]
    fn small_changes_of_the_rates_change_the_threshold_little() {
        for seed in 0..200 {
            let (servers, requests, hottest) = drawn(seed);
            let before = copies_threshold(servers, requests, &hottest, TARGET);
            let mut random = Random::new(seed);
            let changed: Vec<f64> =
                hottest.iter().map(|rate| rate * (0.9995 + 0.001 * random.unit())).collect();
            let after = copies_threshold(servers, requests, &changed, TARGET);
            let same = before == after || (before / after).ln().abs() < 0.021;
            assert!(same, "{seed}: {before} then {after}");
            let doubled: Vec<f64> = hottest.iter().map(|rate| 2.0 * rate).collect();
            let twice = copies_threshold(servers, 2.0 * requests, &doubled, TARGET);
            assert!(twice == before || (twice / before / 2.0).ln().abs() < 0.0101, "{seed}");
        }
    }

    #[test]
    fn one_key_that_is_all_gets_four_fifths_of_the_servers() {
        let threshold = copies_threshold(100, 1e6, &[1e6], TARGET);
        let copies = copies(1e6, threshold);
        assert!((80..=82).contains(&copies), "{copies}");
    }

    #[test]
    fn where_nothing_is_hot_or_one_server_is_all_no_key_is_copied() {
        assert_eq!(copies_threshold(1, 1e6, &[1e6], TARGET), f64::INFINITY);
        assert_eq!(copies_threshold(0, 1e6, &[1e6], TARGET), f64::INFINITY);
        assert_eq!(copies_threshold(20, 1e6, &[], TARGET), f64::INFINITY);
        assert_eq!(copies_threshold(20, 0.0, &[0.0; 9], TARGET), f64::INFINITY);
        assert_eq!(copies_threshold(20, 1e6, &[100.0; 300], TARGET), f64::INFINITY);
        assert_eq!(copies(1e6, f64::INFINITY), 1);
    }

    #[test]
    fn a_target_that_nothing_keeps_puts_every_listed_key_everywhere() {
        let threshold = copies_threshold(20, 1e6, &[3e5, 40.0], 1.0);
        assert!(copies(40.0, threshold) >= 20 && threshold > 1.9, "{threshold}");
    }
}
