//! How many copies a hot key gets: NetKV's balls and bins (ICAC 2016, §IV.B, D and E; docs/design/balancing.md).
//!
//! A key of frequency f gets ceil(f / T) copies; T is the largest threshold whose predicted imbalance
//! (max load / average load) stays under the target. Three predictions: NetKV's own, which counts equal
//! balls, and two that know their weights, one as a bound and one in the middle (docs/decisions/0171).

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
    /// NetKV's equations (1) to (5).
    EqualBalls,
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

/// The fullest of n bins after m balls, with high probability: NetKV's Eq. 1, after Raab and Steger.
///
/// Their middle case holds asymptotically and turns down near m = n ln n, where ln ln x < 0; there the
/// case above takes over, and it is a floor everywhere, so that more balls never predict less.
pub fn max_balls(m: f64, n: f64, alpha: f64) -> f64 {
    if m <= 0.0 {
        return 0.0;
    }
    if n <= 2.0 {
        return m;
    }
    let many = m / n + alpha * (2.0 * (m / n) * n.ln()).sqrt();
    let ln_x = (n * n.ln() / m).ln();
    let most = if m < n / n.ln() {
        n.ln() / (n / m).ln()
    } else if ln_x >= 1.0 {
        (n.ln() / ln_x) * (1.0 + alpha * ln_x.ln() / ln_x)
    } else {
        many
    };
    most.max(many).min(m)
}

/// Predicted max load / average load at threshold T (NetKV, ICAC 2016, §IV.D). O(tracked), and some 60 · 300 steps
/// more where balls are weighed.
pub fn predict(demand: &Demand, threshold: f64, prediction: Prediction) -> f64 {
    let average = demand.requests / demand.bins as f64;
    if average <= 0.0 {
        return 1.0;
    }
    let most = match prediction {
        Prediction::EqualBalls => equal_balls(demand, threshold),
        Prediction::WeighedBalls => average * Balls::new(demand, threshold).bound(),
        Prediction::Typical => average * Balls::new(demand, threshold).median_of_most(),
    };
    (most / average).max(1.0)
}

/// Raab and Steger want α > 1 for an upper bound; with 1 it is the expected order.
const ALPHA: f64 = 1.0;

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
    max_balls(virtual_keys, n, ALPHA) * threshold
        + max_balls(cold_keys, n, ALPHA) * cold_requests / cold_keys
}

/// The chance that some bin exceeds the prediction, by Chernoff's reckoning; in truth it is smaller.
const EXCEEDED: f64 = 0.1;

/// What is thrown into the bins: balls of nearly one weight together, as (weight in averages, how many).
struct Balls {
    groups: Vec<(f64, f64)>,
    bins: f64,
}

/// Weights that agree in their exponent and this many bits more, 1.6%, are one group, of their mean weight.
const WEIGHT_BITS: u32 = 6;

impl Balls {
    fn new(demand: &Demand, threshold: f64) -> Balls {
        let bins = demand.bins as f64;
        let average = demand.requests / bins;
        let mut groups: Vec<(f64, f64)> = Vec::new();
        let mut by_weight = [u16::MAX; 64 << WEIGHT_BITS];
        let mut throw = |requests: f64, copies: f64| {
            let weight = requests / copies / average;
            // From 2^-48 to 2^16 averages.
            let rounded = (weight.to_bits() >> (52 - WEIGHT_BITS)) as usize;
            let group = rounded.saturating_sub((1023 - 48) << WEIGHT_BITS).min(by_weight.len() - 1);
            if by_weight[group] == u16::MAX {
                by_weight[group] = groups.len() as u16;
                groups.push((0.0, 0.0));
            }
            let (sum, count) = &mut groups[by_weight[group] as usize];
            *sum += weight * copies;
            *count += copies;
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
        groups.iter_mut().for_each(|(sum, count)| *sum /= *count);
        Balls { groups, bins }
    }

    fn heaviest(&self) -> f64 {
        self.groups.iter().map(|group| group.0).fold(f64::MIN_POSITIVE, f64::max)
    }

    /// ln E[e^θL] for a bin's load L = Σ w B, B drawn 1 with chance 1/n; and its first two derivatives.
    fn cumulants(&self, theta: f64) -> [f64; 3] {
        let mut sums = [0.0; 3];
        for (weight, count) in &self.groups {
            let grown = (theta * weight).exp_m1() / self.bins;
            // The chance of this ball once every outcome weighs e^θL.
            let tilted = (grown + 1.0 / self.bins) / (1.0 + grown);
            sums[0] += count * grown.ln_1p();
            sums[1] += count * weight * tilted;
            sums[2] += count * weight * weight * tilted * (1.0 - tilted);
        }
        sums
    }

    /// P(L ≥ b) ≤ E[e^θL] / e^θb for every θ. The b at which n of these sum to [`EXCEEDED`] bounds the
    /// fullest bin; the best θ is found by golden section, as there is one valley.
    fn bound(&self) -> f64 {
        let bound = |theta: f64| ((self.bins / EXCEEDED).ln() + self.cumulants(theta)[0]) / theta;
        least(bound, 1e-3, 200.0_f64.min(200.0 / self.heaviest()))
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
    let (mut low, mut high) = (low.ln(), high.ln());
    for _ in 0..30 {
        let (left, right) = (high - GOLDEN * (high - low), low + GOLDEN * (high - low));
        if function(left.exp()) < function(right.exp()) {
            high = right;
        } else {
            low = left;
        }
    }
    function(((low + high) / 2.0).exp())
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

/// The sweep by what is rather than by what is likely: `bin_of` says for a tracked key which bin holds one of so
/// many copies, so every T has one imbalance, and that of the real placement. Where a few keys outweigh
/// all others it jumps from T to T, up as well as down; chosen is the largest T whose imbalance is
/// within 3% of `target`, or else the nearest that is seen until T is a quarter of the first that keeps
/// it. Untracked keys count as even. A cluster that keeps the target has no copies.
/// O(300 · (tracked + their copies)).
pub fn choose_threshold_placed(
    demand: &Demand,
    target: f64,
    bin_of: impl Fn(usize, u32, u32) -> usize,
) -> Threshold {
    let hottest = demand.tracked.iter().copied().fold(1.0, f64::max);
    let least = (hottest / (64.0 * demand.bins as f64)).max(1.0);
    let mut loads = vec![0.0; demand.bins];
    let mut placed = |threshold: f64| placed_imbalance(demand, threshold, &bin_of, &mut loads);
    let miss = |threshold: Threshold| (threshold.predicted / target).ln().abs();
    let at = |threshold: f64, predicted: f64| Threshold { requests_per_copy: threshold, predicted };
    let mut best = at(hottest, placed(hottest));
    if best.predicted <= target {
        return best;
    }
    let (mut threshold, mut last) = (hottest, least);
    while threshold > last && miss(best) > CLOSE {
        threshold /= FINE;
        let here = at(threshold, placed(threshold));
        if here.predicted <= target {
            last = last.max(threshold / 4.0);
        }
        if miss(here) < miss(best) {
            best = here;
        }
    }
    best
}

/// As near to its target as the sweep wants an imbalance.
const CLOSE: f64 = 0.03;

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

    #[test]
    fn more_balls_never_predict_less() {
        for n in [10.0, 50.0, 100.0, 2_500.0] {
            let mut last = 0.0;
            let mut m = 1.0;
            while m < 100.0 * n {
                let most = max_balls(m, n, 1.0);
                assert!(most >= last * 0.65, "{m} balls in {n} bins: {last} then {most}");
                assert!(most >= m / n && most <= m);
                last = most;
                m *= 1.1;
            }
        }
    }

    #[test]
    fn equation_1_at_its_three_cases() {
        let close =
            |value: f64, expected: f64| assert!((value - expected).abs() < 0.005, "{value}");
        close(max_balls(10.0, 100.0, 1.0), 2.0);
        close(max_balls(100.0, 100.0, 1.0), 4.035);
        close(max_balls(10_000.0, 100.0, 1.0), 130.349);
    }

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
        for prediction in [Prediction::EqualBalls, Prediction::WeighedBalls, Prediction::Typical] {
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

    /// A bin for each copy, from a seed.
    fn placing(seed: u64, bins: usize) -> impl Fn(usize, u32, u32) -> usize {
        move |key, copy, _| {
            let bits = mix(mix(seed) ^ (key as u64) << 32 ^ u64::from(copy));
            (((bits >> 32) * bins as u64) >> 32) as usize
        }
    }

    #[test]
    fn by_the_real_placement_each_target_is_held_each_time() {
        for seed in 1..30 {
            for target in [1.7, 3.2] {
                let bin_of = placing(seed, 100);
                let demand = skewed(100);
                let chosen = choose_threshold_placed(&demand, target, &bin_of);
                assert!((chosen.predicted / target - 1.0).abs() < 0.16, "{seed}: {chosen:?}");
                let mut loads = vec![0.0; 100];
                let again =
                    placed_imbalance(&demand, chosen.requests_per_copy, &bin_of, &mut loads);
                assert_eq!(again, chosen.predicted);
                assert!((loads.iter().sum::<f64>() / demand.requests - 1.0).abs() < 1e-9);
            }
        }
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
        assert_eq!(predict(&none, 1.0, Prediction::EqualBalls), 1.0);
    }
}
