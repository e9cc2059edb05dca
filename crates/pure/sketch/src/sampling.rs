//! Which requests are looked at.

use crate::Random;

/// Chooses requests at random, each with the same probability, independently.
///
/// The distance to the next chosen request is geometric, so it is drawn once per *chosen* request
/// and then only counted down: at 3% a request that is not chosen costs one decrement.
///
/// This is right for counting keys. It is wrong for stack distances, which need *all* requests of
/// a few keys: [`StackDistances`](crate::StackDistances) chooses by the key's hash.
#[derive(Clone, Debug)]
pub struct Sampler {
    skips_left: u32,
    rate: f64,
    skip_scale: f64,
    bits: Random,
}

impl Sampler {
    /// `rate` is the probability of being chosen, in (0, 1].
    pub fn new(rate: f64, seed: u64) -> Sampler {
        let mut sampler = Sampler { skips_left: 0, rate, skip_scale: 0.0, bits: Random::new(seed) };
        sampler.set_rate(rate);
        sampler
    }

    /// Samples more or less from now on; phase 2 turns phase 1's sampling down.
    pub fn set_rate(&mut self, rate: f64) {
        assert!(0.0 < rate && rate <= 1.0, "a sampling rate lies in (0, 1]: {rate}");
        self.rate = rate;
        self.skip_scale = -1.0 / (1.0 - rate).log2();
        self.skips_left = self.draw_skips();
    }

    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// One sampled request stands for this many.
    pub fn requests_per_sample(&self) -> f64 {
        1.0 / self.rate
    }

    /// Whether to look at this request.
    #[inline]
    pub fn choose(&mut self) -> bool {
        if self.skips_left > 0 {
            self.skips_left -= 1;
            return false;
        }
        self.skips_left = self.draw_skips();
        true
    }

    /// The place among the next `requests` of the first to look at; all up to it are counted then.
    #[inline]
    pub fn next_among(&mut self, requests: u32) -> Option<u32> {
        if requests <= self.skips_left {
            self.skips_left -= requests;
            return None;
        }
        let place = self.skips_left;
        self.skips_left = self.draw_skips();
        Some(place)
    }

    // P(skips = g) = (1 - rate)^g · rate; at rate 1 the scale is 0, hence no skips.
    #[inline]
    fn draw_skips(&mut self) -> u32 {
        (exponential(self.bits.word()) * self.skip_scale) as u32
    }
}

/// -log2 of the number in (0, 1] that `bits` stand for, to within 0.0001: the logarithm of the
/// standard library would cost more than all the rest of choosing a request.
#[inline]
fn exponential(bits: u64) -> f64 {
    let leading = (bits | 1).leading_zeros();
    let mantissa = ((bits << leading << 1) >> 12) as f64 * (1.0 / (1u64 << 52) as f64);
    // log2(1 + m) / m, interpolated at five Chebyshev nodes.
    let log = mantissa
        * (1.442_604
            + mantissa
                * (-0.716_715
                    + mantissa * (0.440_599 + mantissa * (-0.225_103 + mantissa * 0.058_665))));
    f64::from(leading) + 1.0 - log
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chooses_its_share_of_requests() {
        for rate in [0.001, 0.03, 0.5, 1.0] {
            let mut sampler = Sampler::new(rate, 7);
            let requests = 2_000_000;
            let chosen = (0..requests).filter(|_| sampler.choose()).count() as f64;
            let expected = requests as f64 * rate;
            let deviation = (expected * (1.0 - rate)).sqrt();
            assert!((chosen - expected).abs() <= 4.0 * deviation, "{rate}: {chosen}");
        }
    }

    #[test]
    fn the_logarithm_is_close_enough() {
        let mut random = Random::new(8);
        for _ in 0..100_000 {
            let bits = random.word() >> (random.word() % 50);
            let exact = 64.0 - (bits as f64).log2();
            assert!(bits == 0 || (exponential(bits) - exact).abs() < 1e-4, "{bits}");
        }
    }

    #[test]
    fn gaps_do_not_depend_on_what_went_before() {
        let mut sampler = Sampler::new(0.25, 3);
        let chosen: Vec<bool> = (0..400_000).map(|_| sampler.choose()).collect();
        let pairs = chosen.windows(2).filter(|pair| pair[0] && pair[1]).count() as f64;
        assert!((pairs / 400_000.0 - 0.0625).abs() < 0.002, "{pairs}");
    }

    #[test]
    fn the_same_seed_chooses_the_same_requests() {
        let run = || {
            let mut sampler = Sampler::new(0.1, 11);
            (0..1_000).map(|_| sampler.choose()).collect::<Vec<_>>()
        };
        assert_eq!(run(), run());
    }

    #[test]
    fn the_next_among_several_is_the_one_that_single_requests_choose() {
        let mut single = Sampler::new(0.2, 6);
        let mut several = single.clone();
        for requests in (0..10_000).map(|round| round % 7) {
            let mut places = Vec::new();
            let mut from = 0;
            while let Some(place) = several.next_among(requests - from) {
                places.push(from + place);
                from += place + 1;
            }
            let chosen: Vec<u32> = (0..requests).filter(|_| single.choose()).collect();
            assert_eq!(places, chosen);
        }
    }

    #[test]
    fn a_new_rate_holds_from_the_next_request() {
        let mut sampler = Sampler::new(0.000_001, 1);
        sampler.set_rate(1.0);
        assert!((0..100).all(|_| sampler.choose()));
    }
}
