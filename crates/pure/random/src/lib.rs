//! Random bits that a seed repeats on every machine. Never asks the machine for any.

#![forbid(unsafe_code)]

mod scatter;

pub use scatter::Scatter;

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): one word of state, passes the usual batteries, needs no warm-up.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    #[inline]
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Uniform in `0..bound`, by Lemire's multiplication; its bias is under bound / 2^64.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.word()) * u128::from(bound)) >> 64) as u64
    }

    /// Uniform in (0, 1]: never zero, so that its logarithm is finite.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        ((self.word() >> 11) + 1) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

/// Scrambles a word so that all bits depend on all bits; a bijection, about 1 ns.
#[inline]
pub fn mix(word: u64) -> u64 {
    let mut bits = word;
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reference implementation's first words of seed 1234567.
    #[test]
    fn the_words_are_those_of_the_published_generator() {
        let mut random = Random::new(1_234_567);
        let words = [0; 3].map(|_: u64| random.word());
        let published = [6457827717110365317, 3203168211198807973, 9817491932198370423];
        assert_eq!(words, published);
    }
}
