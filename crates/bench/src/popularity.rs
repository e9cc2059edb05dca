//! Which key comes next: uniform, or zipfian with any constant. Every draw is O(1) and exact.

use crate::random::{Random, mix};

/// How requests spread over `0..keys`.
#[derive(Clone)]
pub enum Popularity {
    Uniform { keys: u64 },
    Zipfian { ranks: Zipfian, scatter: Scatter },
}

impl Popularity {
    /// `theta` 0 is uniform; YCSB's constant is 0.99.
    pub fn new(keys: u64, theta: f64) -> Self {
        if theta == 0.0 {
            return Self::Uniform { keys };
        }
        Self::Zipfian { ranks: Zipfian::new(keys, theta), scatter: Scatter::new(keys) }
    }

    pub fn draw(&self, random: &mut Random) -> u64 {
        match self {
            Self::Uniform { keys } => random.below(*keys),
            Self::Zipfian { ranks, scatter } => scatter.place(ranks.draw(random)),
        }
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

/// Spreads ranks over the key space, so that hot keys are no neighbours.
///
/// YCSB hashes and takes the remainder, which lets ranks collide and so bends the distribution. This is a
/// permutation of the next power of two, walked until it lands inside: under two steps on average.
#[derive(Clone)]
pub struct Scatter {
    keys: u64,
    half_bits: u32,
}

impl Scatter {
    pub fn new(keys: u64) -> Self {
        let bits = (64 - (keys - 1).leading_zeros()).max(2);
        Self { keys, half_bits: bits.div_ceil(2) }
    }

    pub fn place(&self, rank: u64) -> u64 {
        let mut place = self.permute(rank);
        while place >= self.keys {
            place = self.permute(place);
        }
        place
    }

    /// Three rounds of a balanced Feistel network: a permutation whatever its round function.
    fn permute(&self, value: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for round in 1..=3u64 {
            (left, right) = (right, left ^ (mix(right ^ (round << 56)) & mask));
        }
        left << self.half_bits | right
    }
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
