//! How many copies a hot key gets: NetKV's balls and bins, papers/netkv §IV.B, D and E.
//!
//! A key of frequency f gets ceil(f / T) copies; T is the largest threshold whose predicted imbalance
//! (max load / average load) stays under the target. Two predictions: NetKV's own, which counts equal
//! balls, and one that knows their weights.

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
    /// Chernoff's bound with every tracked copy's own weight.
    WeighedBalls,
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

/// Predicted max load / average load at threshold T. O(tracked), times 60 for weighed balls.
pub fn predict(demand: &Demand, threshold: f64, prediction: Prediction) -> f64 {
    let average = demand.requests / demand.bins as f64;
    if average <= 0.0 {
        return 1.0;
    }
    let most = match prediction {
        Prediction::EqualBalls => equal_balls(demand, threshold),
        Prediction::WeighedBalls => weighed_balls(demand, threshold),
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

/// For a bin with load L = Σ w B, B drawn 1 with chance 1/n: P(L ≥ b) ≤ E[e^θL] / e^θb for every θ. The b
/// at which n of these sum to [`EXCEEDED`] bounds the fullest bin; the best θ is found by golden
/// section, as there is one valley.
fn weighed_balls(demand: &Demand, threshold: f64) -> f64 {
    let n = demand.bins as f64;
    let average = demand.requests / n;
    let mut tracked = 0.0;
    // (weight of a copy in averages, how many copies)
    let mut balls: Vec<(f64, f64)> = Vec::with_capacity(demand.tracked.len() + 1);
    for &requests in &demand.tracked {
        let copies = f64::from(copies(requests, threshold));
        balls.push((requests / copies / average, copies));
        tracked += requests;
    }
    let rest = (demand.requests - tracked).max(0.0);
    let rest_keys = (demand.keys - demand.tracked.len() as f64).max(1.0);
    balls.push((rest / rest_keys / average, rest_keys));
    let heaviest = balls.iter().map(|ball| ball.0).fold(f64::MIN_POSITIVE, f64::max);
    let bound = |theta: f64| {
        let exponent: f64 = balls
            .iter()
            .map(|(weight, count)| count * ((theta * weight).exp_m1() / n).ln_1p())
            .sum();
        ((n / EXCEEDED).ln() + exponent) / theta
    };
    average * least(bound, 1e-3, 200.0_f64.min(200.0 / heaviest))
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

/// The sweep of §IV.E: the largest T whose prediction stays under `target`, in steps of 5%. If none
/// does, because cold keys alone exceed it, the smallest that was tried. Copies are virtual (§IV.B): a
/// key may get more of them than there are bins, so that hashing spreads it evenly.
pub fn choose_threshold(demand: &Demand, target: f64, prediction: Prediction) -> Threshold {
    let hottest = demand.tracked.iter().copied().fold(1.0, f64::max);
    let least = (hottest / (64.0 * demand.bins as f64)).max(1.0);
    let mut at = hottest;
    loop {
        let predicted = predict(demand, at, prediction);
        if predicted <= target || at <= least {
            return Threshold { requests_per_copy: at, predicted };
        }
        at = (at / 1.05).max(least);
    }
}

#[cfg(test)]
mod tests {
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
        for prediction in [Prediction::EqualBalls, Prediction::WeighedBalls] {
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

    #[test]
    fn no_requests_are_balanced() {
        let none = Demand { tracked: vec![], requests: 0.0, keys: 0.0, bins: 20 };
        assert_eq!(predict(&none, 1.0, Prediction::EqualBalls), 1.0);
    }
}
