//! Which key comes next: uniform, zipfian with any constant, hotspot, latest. Every draw is O(1) and exact.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mbal_random::{Random, Scatter};

/// How requests spread over `0..keys`: a law over ranks, and which key has which rank at the moment.
#[derive(Clone)]
pub struct Popularity {
    ranks: Ranks,
    keys: u64,
    order: Order,
    /// The place of rank 0, one after the other as the hot set shifts.
    starts: Arc<[u64]>,
    start: u64,
}

#[derive(Clone)]
pub enum Ranks {
    Uniform,
    Zipfian(Zipfian),
    /// A share of all draws falls on the first `hot_keys` ranks, evenly, the rest on the rest (YCSB's hotspot).
    Hotspot {
        hot_keys: u64,
        share: f64,
    },
}

/// Which key stands at which place.
#[derive(Clone)]
pub enum Order {
    Scattered(Scatter),
    /// Keys of one worker side by side, so that what is hot together burdens one worker.
    Listed(Arc<[u64]>),
    /// The newest key first. The last `unsure` may not have been stored yet, and are not asked for.
    Newest {
        keys: Arc<AtomicU64>,
        unsure: u64,
    },
}

/// Of all keys, how far a shift moves the hot ones.
const SHIFTS: u64 = 20;

impl Popularity {
    /// `theta` 0 is uniform; YCSB's constant is 0.99.
    pub fn new(keys: u64, theta: f64) -> Self {
        let uniform = theta == 0.0;
        let ranks =
            if uniform { Ranks::Uniform } else { Ranks::Zipfian(Zipfian::new(keys, theta)) };
        Self::scattered(keys, ranks)
    }

    pub fn scattered(keys: u64, ranks: Ranks) -> Self {
        let stride = match ranks {
            Ranks::Hotspot { hot_keys, .. } => hot_keys,
            Ranks::Uniform | Ranks::Zipfian(_) => keys / SHIFTS,
        };
        let starts = (0..keys).step_by(stride.max(1) as usize).take(SHIFTS as usize).collect();
        Self { ranks, keys, order: Order::Scattered(Scatter::new(keys)), starts, start: 0 }
    }

    /// The hottest key is the newest one (YCSB's latest); `newest` counts all keys there are.
    pub fn latest(keys: u64, theta: f64, newest: Arc<AtomicU64>, unsure: u64) -> Self {
        let ranks = Ranks::Zipfian(Zipfian::new(keys, theta));
        let order = Order::Newest { keys: newest, unsure };
        Self { ranks, keys, order, starts: [0].into(), start: 0 }
    }

    /// The hottest keys are those of worker `hot`, after a shift those of the next worker.
    pub fn of_worker(
        keys: u64,
        ranks: Ranks,
        hot: u16,
        workers: u16,
        worker_of: impl Fn(u64) -> u16,
    ) -> Self {
        let mut runs: Vec<Vec<u64>> = vec![Vec::new(); usize::from(workers)];
        (0..keys).for_each(|key| runs[usize::from(worker_of(key))].push(key));
        runs.rotate_left(usize::from(hot));
        let starts = runs.iter().scan(0, |next, run| {
            let start = *next;
            *next += run.len() as u64;
            Some(start)
        });
        let starts = starts.collect();
        let order = Order::Listed(runs.concat().into());
        Self { ranks, keys, order, starts, start: 0 }
    }

    /// Makes the keys of the `shift`-th hot set the hottest; in the end it starts anew.
    pub fn shift(&mut self, shift: u64) {
        self.start = self.starts[(shift % self.starts.len() as u64) as usize];
    }

    pub fn draw(&self, random: &mut Random) -> u64 {
        self.draw_ranked(random).1
    }

    /// The key, and its rank at the moment.
    pub fn draw_ranked(&self, random: &mut Random) -> (u64, u64) {
        let rank = match &self.ranks {
            Ranks::Uniform => {
                let key = random.below(self.keys);
                return (key, key);
            }
            Ranks::Zipfian(zipfian) => zipfian.draw(random),
            Ranks::Hotspot { hot_keys, share } if random.unit() <= *share => {
                random.below(*hot_keys)
            }
            Ranks::Hotspot { hot_keys, .. } => hot_keys + random.below(self.keys - hot_keys),
        };
        let place = (rank + self.start) % self.keys;
        let key = match &self.order {
            Order::Scattered(scatter) => scatter.place(place),
            Order::Listed(order) => order[place as usize],
            Order::Newest { keys, unsure } => {
                let sure = keys.load(Ordering::Relaxed).saturating_sub(*unsure).max(self.keys);
                sure - 1 - place
            }
        };
        (rank, key)
    }
}

/// Ranks `0..n` with probability proportional to `(rank + 1)^-theta`.
///
/// Rejection-inversion (Hörmann and Derflinger 1996): invert the integral of the density's hull, accept
/// nearly always. No table, so a billion keys cost what ten do, and unlike YCSB's own sampler it is exact
/// and takes any constant above 0, 1 and more included.
#[derive(Clone)]
pub struct Zipfian {
    n: f64,
    theta: f64,
    integral_low: f64,
    integral_high: f64,
    always_within: f64,
}

impl Zipfian {
    pub fn new(n: u64, theta: f64) -> Self {
        assert!(n > 0 && theta > 0.0, "zipfian ranks need a key and a constant above 0");
        let mut zipfian =
            Self { n: n as f64, theta, integral_low: 0.0, integral_high: 0.0, always_within: 0.0 };
        zipfian.integral_low = zipfian.integral(1.5) - 1.0;
        zipfian.integral_high = zipfian.integral(zipfian.n + 0.5);
        zipfian.always_within = 2.0 - zipfian.inverse(zipfian.integral(2.5) - zipfian.weight(2.0));
        zipfian
    }

    pub fn draw(&self, random: &mut Random) -> u64 {
        loop {
            let area =
                self.integral_high + random.unit() * (self.integral_low - self.integral_high);
            let x = self.inverse(area);
            let rank = (x + 0.5).floor().clamp(1.0, self.n);
            if rank - x <= self.always_within
                || area >= self.integral(rank + 0.5) - self.weight(rank)
            {
                return rank as u64 - 1;
            }
        }
    }

    fn weight(&self, x: f64) -> f64 {
        x.powf(-self.theta)
    }

    /// ∫ t^-theta dt from 1 to x, written so that it stays precise around theta = 1.
    fn integral(&self, x: f64) -> f64 {
        let log = x.ln();
        expm1_over((1.0 - self.theta) * log) * log
    }

    fn inverse(&self, area: f64) -> f64 {
        let t = (area * (1.0 - self.theta)).max(-1.0);
        (log1p_over(t) * area).exp()
    }
}

fn expm1_over(x: f64) -> f64 {
    if x.abs() > 1e-8 { x.exp_m1() / x } else { 1.0 + x / 2.0 }
}

fn log1p_over(x: f64) -> f64 {
    if x.abs() > 1e-8 { x.ln_1p() / x } else { 1.0 - x / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pearson's statistic in standard deviations from its mean: χ² with k degrees of freedom has mean k
    /// and variance 2k.
    fn chi_square_sigmas(observed: &[u64], expected: &[f64]) -> f64 {
        let chi: f64 = observed
            .iter()
            .zip(expected)
            .map(|(&seen, &wanted)| (seen as f64 - wanted).powi(2) / wanted)
            .sum();
        let freedom = (observed.len() - 1) as f64;
        (chi - freedom) / (2.0 * freedom).sqrt()
    }

    fn expected(n: u64, theta: f64, draws: u64) -> Vec<f64> {
        let weights: Vec<f64> = (1..=n).map(|rank| (rank as f64).powf(-theta)).collect();
        let sum: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / sum * draws as f64).collect()
    }

    #[test]
    fn zipfian_ranks_fit_their_law_for_constants_below_at_and_above_one() {
        for (seed, theta) in [(1, 0.2), (2, 0.6), (3, 0.99), (4, 1.0), (5, 1.2), (6, 2.0)] {
            let (n, draws) = (200, 2_000_000);
            let (ranks, mut random) = (Zipfian::new(n, theta), Random::new(seed));
            let mut observed = vec![0u64; n as usize];
            (0..draws).for_each(|_| observed[ranks.draw(&mut random) as usize] += 1);
            let sigmas = chi_square_sigmas(&observed, &expected(n, theta, draws));
            assert!(sigmas.abs() < 4.0, "theta {theta}: {sigmas:.1} sigmas off");
        }
    }

    #[test]
    fn the_test_of_fit_notices_a_constant_that_is_off_by_one_percent() {
        let (n, draws, mut random) = (200, 2_000_000, Random::new(7));
        let ranks = Zipfian::new(n, 0.98);
        let mut observed = vec![0u64; n as usize];
        (0..draws).for_each(|_| observed[ranks.draw(&mut random) as usize] += 1);
        assert!(chi_square_sigmas(&observed, &expected(n, 0.99, draws)) > 10.0);
    }

    #[test]
    fn uniform_keys_fit_their_law() {
        let (keys, draws, mut random) = (1_000, 2_000_000, Random::new(8));
        let popularity = Popularity::new(keys, 0.0);
        let mut observed = vec![0u64; keys as usize];
        (0..draws).for_each(|_| observed[popularity.draw(&mut random) as usize] += 1);
        let wanted = vec![draws as f64 / keys as f64; keys as usize];
        assert!(chi_square_sigmas(&observed, &wanted).abs() < 4.0);
    }

    fn drawn(popularity: &Popularity, seed: u64, draws: u64) -> Vec<u64> {
        let (mut random, mut observed) = (Random::new(seed), vec![0; popularity.keys as usize]);
        (0..draws).for_each(|_| observed[popularity.draw(&mut random) as usize] += 1);
        observed
    }

    #[test]
    fn a_hotspot_fits_its_law_and_shifts_to_keys_that_were_cold() {
        let (keys, draws) = (1_000, 2_000_000);
        let mut popularity =
            Popularity::scattered(keys, Ranks::Hotspot { hot_keys: 50, share: 0.95 });
        let mut hot_before = Vec::new();
        for shift in 0..3 {
            popularity.shift(shift);
            let observed = drawn(&popularity, 9 + shift, draws);
            let hot: Vec<usize> = (0..1_000).filter(|&key| observed[key] > 20_000).collect();
            assert_eq!(hot.len(), 50);
            assert!(hot.iter().all(|key| !hot_before.contains(key)), "shift {shift}");
            let wanted: Vec<f64> = (0..1_000)
                .map(|key| if hot.contains(&key) { 0.95 / 50.0 } else { 0.05 / 950.0 })
                .map(|share| share * draws as f64)
                .collect();
            let sigmas = chi_square_sigmas(&observed, &wanted);
            assert!(sigmas.abs() < 4.0, "shift {shift}: {sigmas:.1} sigmas off");
            hot_before = hot;
        }
    }

    #[test]
    fn the_hot_keys_of_a_worker_are_its_own_and_shift_to_the_next() {
        let ranks = Ranks::Hotspot { hot_keys: 50, share: 1.0 };
        let mut popularity = Popularity::of_worker(1_000, ranks, 2, 4, |key| (key % 4) as u16);
        for (shift, worker) in [(0, 2), (1, 3), (2, 0), (3, 1), (4, 2)] {
            popularity.shift(shift);
            let observed = drawn(&popularity, 5, 10_000);
            let hot: Vec<usize> = (0..1_000).filter(|&key| observed[key] > 0).collect();
            assert_eq!(hot.len(), 50);
            assert!(hot.iter().all(|key| key % 4 == worker), "shift {shift}: {hot:?}");
        }
    }

    #[test]
    fn the_latest_keys_are_the_hottest_as_keys_are_added() {
        let newest = Arc::new(AtomicU64::new(1_000));
        let popularity = Popularity::latest(1_000, 0.99, newest.clone(), 10);
        assert_eq!(
            (0..1_000).zip(drawn(&popularity, 3, 100_000)).max_by_key(|(_, n)| *n).unwrap().0,
            999
        );
        newest.store(5_000, Ordering::Relaxed);
        let mut random = Random::new(4);
        let keys: Vec<u64> = (0..10_000).map(|_| popularity.draw(&mut random)).collect();
        assert!(keys.iter().all(|key| (3_990..4_990).contains(key)));
        assert!(keys.iter().filter(|key| **key == 4_989).count() > 1_000);
    }

    #[test]
    fn scattering_is_a_permutation_of_the_keys() {
        for keys in [1, 2, 3, 5, 64, 65, 1_000, 4_096, 100_003] {
            let scatter = Scatter::new(keys);
            let mut seen = vec![false; keys as usize];
            for rank in 0..keys {
                let place = scatter.place(rank) as usize;
                assert!(!seen[place], "{keys} keys: two ranks at {place}");
                seen[place] = true;
            }
        }
    }

    #[test]
    fn the_hottest_ranks_are_no_neighbours_after_scattering() {
        let scatter = Scatter::new(1_000_000);
        let places: Vec<u64> = (0..10).map(|rank| scatter.place(rank)).collect();
        for (i, a) in places.iter().enumerate() {
            assert!(places[..i].iter().all(|b| a.abs_diff(*b) > 100), "{places:?}");
        }
    }
}
