//! Ranks to keys: a permutation of any number of them that needs no table.

use crate::mix;

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
