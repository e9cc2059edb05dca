//! How long keys and values are: by key, so that every reply can be checked, whoever stored the item.

use std::str::FromStr;

use mbal_model::KEY_BYTES_MAX;

use mbal_random::{Random, mix};

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Sizes {
    Constant(u32),
    /// Uniform, ends included.
    Range(u32, u32),
    /// Facebook's ETC pool (Atikoglu et al. 2012, §5): key sizes by their generalized extreme value law.
    EtcKeys,
    /// The same pool's value sizes: a table up to 14 bytes, from there on a generalized Pareto law.
    EtcValues {
        max: u32,
    },
}

/// What [`Sizes`] draws for a key's name and for its value must not depend on each other.
const KEY_SALT: u64 = 0x6b_6579;

/// Shares of ETC's values of 0 to 14 bytes, as published.
const ETC_SMALL: [f64; 15] = [
    0.00536, 0.00047, 0.17820, 0.09239, 0.00018, 0.02740, 0.00065, 0.00606, 0.00023, 0.00837,
    0.00837, 0.08989, 0.00092, 0.00326, 0.01980,
];
const ETC_SCALE: f64 = 214.476;
const ETC_SHAPE: f64 = 0.348238;
const ETC_KEY_LOCATION: f64 = 30.7984;
const ETC_KEY_SCALE: f64 = 8.20449;
const ETC_KEY_SHAPE: f64 = 0.078688;

impl Sizes {
    /// Of the name of `key`.
    pub fn key_bytes(&self, key: u64) -> usize {
        (self.draw(key ^ KEY_SALT) as usize).min(KEY_BYTES_MAX)
    }

    /// Of the value of `key`.
    pub fn value_bytes(&self, key: u64) -> u32 {
        self.draw(key)
    }

    fn draw(&self, seed: u64) -> u32 {
        match *self {
            Self::Constant(bytes) => bytes,
            Self::Range(low, high) => {
                let span = u64::from(high - low) + 1;
                low + ((u128::from(mix(seed)) * u128::from(span)) >> 64) as u32
            }
            Self::EtcKeys => {
                let size =
                    extreme_value(unit(seed), ETC_KEY_LOCATION, ETC_KEY_SCALE, ETC_KEY_SHAPE);
                size.round().clamp(1.0, KEY_BYTES_MAX as f64) as u32
            }
            Self::EtcValues { max } => etc_value(unit(seed)).min(max),
        }
    }

    /// The least that keys may come out as.
    pub fn min(&self) -> u32 {
        match *self {
            Self::Constant(bytes) | Self::Range(bytes, _) => bytes,
            Self::EtcKeys | Self::EtcValues { .. } => 1,
        }
    }

    pub fn max(&self) -> u32 {
        match *self {
            Self::Constant(bytes) | Self::Range(_, bytes) => bytes,
            Self::EtcKeys => KEY_BYTES_MAX as u32,
            Self::EtcValues { max } => max,
        }
    }
}

/// In (0, 1], the same for a key on every machine.
fn unit(seed: u64) -> f64 {
    Random::new(seed).unit()
}

fn etc_value(unit: f64) -> u32 {
    let mut below = 0.0;
    for (bytes, share) in ETC_SMALL.iter().enumerate() {
        below += share;
        if unit <= below {
            return bytes as u32;
        }
    }
    // What is left of the unit is uniform again; the law goes on from 15 bytes.
    let rest = (1.0 - unit) / (1.0 - below);
    (ETC_SMALL.len() as f64 + pareto(rest, ETC_SCALE, ETC_SHAPE)).min(f64::from(u32::MAX)) as u32
}

/// Generalized Pareto from 0, by inversion: `unit` is the probability of a larger value.
pub fn pareto(unit: f64, scale: f64, shape: f64) -> f64 {
    scale / shape * (unit.powf(-shape) - 1.0)
}

/// Generalized extreme value, by inversion.
fn extreme_value(unit: f64, location: f64, scale: f64, shape: f64) -> f64 {
    location + scale / shape * ((-unit.ln()).powf(-shape) - 1.0)
}

impl FromStr for Sizes {
    type Err = String;

    /// `N` or `N-M`; `etc` is read by whoever knows what it is of.
    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse::<u32>().ok();
        let sizes = match text.split_once('-') {
            None => number(text).map(Self::Constant),
            Some((low, high)) => {
                let both = number(low).zip(number(high)).filter(|(low, high)| low <= high);
                both.map(|(low, high)| Self::Range(low, high))
            }
        };
        sizes.ok_or_else(|| format!("{text:?} is neither N nor N-M bytes"))
    }
}

impl std::fmt::Display for Sizes {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Self::Constant(bytes) => write!(f, "{bytes}"),
            Self::Range(low, high) => write!(f, "{low}-{high}"),
            Self::EtcKeys | Self::EtcValues { .. } => write!(f, "ETC's"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kolmogorov and Smirnov's distance of what was drawn to its law, in units of the 5% bound for that many.
    fn distance(mut drawn: Vec<f64>, law: impl Fn(f64) -> f64) -> f64 {
        drawn.sort_by(f64::total_cmp);
        let n = drawn.len() as f64;
        let gaps = drawn.iter().enumerate().map(|(i, &x)| {
            let wanted = law(x);
            (wanted - i as f64 / n).abs().max(((i + 1) as f64 / n - wanted).abs())
        });
        gaps.fold(0.0, f64::max) * n.sqrt() / 1.358
    }

    fn pareto_law(x: f64, scale: f64, shape: f64) -> f64 {
        1.0 - (1.0 + shape * x / scale).powf(-1.0 / shape)
    }

    #[test]
    fn pareto_draws_fit_their_law_and_no_other() {
        let mut random = Random::new(11);
        let drawn: Vec<f64> =
            (0..200_000).map(|_| pareto(random.unit(), ETC_SCALE, ETC_SHAPE)).collect();
        assert!(distance(drawn.clone(), |x| pareto_law(x, ETC_SCALE, ETC_SHAPE)) < 1.2);
        assert!(distance(drawn.clone(), |x| pareto_law(x, ETC_SCALE * 1.03, ETC_SHAPE)) > 2.0);
        assert!(distance(drawn, |x| pareto_law(x, ETC_SCALE, ETC_SHAPE * 1.1)) > 2.0);
    }

    #[test]
    fn etcs_values_fit_the_published_table_and_its_tail() {
        let values = Sizes::EtcValues { max: 1_000_000 };
        let drawn: Vec<u32> = (0..1_000_000).map(|key| values.value_bytes(key)).collect();
        let n = drawn.len() as f64;
        for (bytes, share) in ETC_SMALL.iter().enumerate() {
            let seen = drawn.iter().filter(|&&b| b as usize == bytes).count() as f64;
            let sigma = (n * share * (1.0 - share)).sqrt();
            assert!((seen - n * share).abs() < 4.0 * sigma, "{bytes} B: {seen}");
        }
        // What was cut off to whole bytes is put back, anywhere within the byte.
        let mut random = Random::new(12);
        let tail = drawn.iter().filter(|&&b| b >= 15).map(|&b| f64::from(b) - 14.0 - random.unit());
        let far = distance(tail.collect(), |x| pareto_law(x, ETC_SCALE, ETC_SHAPE));
        assert!(far < 1.2, "{far}");
    }

    #[test]
    fn etcs_keys_have_the_median_and_quartiles_of_their_law() {
        let mut drawn: Vec<usize> = (0..100_000).map(|key| Sizes::EtcKeys.key_bytes(key)).collect();
        drawn.sort_unstable();
        for (quantile, wanted) in [(0.25, 28.2), (0.5, 33.9), (0.75, 41.5), (0.99, 76.3)] {
            let told = drawn[(quantile * drawn.len() as f64) as usize] as f64;
            assert!((told - wanted).abs() <= 1.0, "{quantile}: {told}, not {wanted}");
        }
    }

    #[test]
    fn a_range_is_uniform_and_a_key_keeps_its_sizes() {
        let sizes = Sizes::Range(10, 19);
        let mut seen = [0u32; 10];
        (0..100_000).for_each(|key| seen[sizes.value_bytes(key) as usize - 10] += 1);
        assert!(seen.iter().all(|&n| (9_600..10_400).contains(&n)), "{seen:?}");
        assert_eq!(sizes.value_bytes(77), sizes.value_bytes(77));
        assert!((0..1_000).any(|key| sizes.value_bytes(key) != sizes.key_bytes(key) as u32));
    }

    #[test]
    fn sizes_are_numbers_or_ranges() {
        assert_eq!("16".parse(), Ok(Sizes::Constant(16)));
        assert_eq!("16-20".parse(), Ok(Sizes::Range(16, 20)));
        for wrong in ["", "x", "20-16", "1-", "-3"] {
            assert!(wrong.parse::<Sizes>().is_err(), "{wrong:?}");
        }
    }
}
