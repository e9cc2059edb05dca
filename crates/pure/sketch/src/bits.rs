//! Bits that depend on all bits of a hash, and bits that a seed repeats.

/// Scrambles a key's hash so that all bits depend on all bits; a bijection, about 1 ns.
///
/// Every sketch does this first. A cachelet is a *prefix* of the hash, so the hashes that one
/// worker sees share their high bits: a threshold or a register chosen by raw high bits would
/// look at all of one cachelet and at nothing of the next.
#[inline]
pub fn mix(hash: u64) -> u64 {
    let mut bits = hash;
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// A deterministic stream of random bits from a seed (Steele, Lea and Flood's SplitMix64).
#[derive(Clone, Debug)]
pub struct RandomBits(u64);

impl RandomBits {
    pub fn new(seed: u64) -> RandomBits {
        RandomBits(seed)
    }

    #[inline]
    pub fn next_bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Uniform in (0, 1]: never zero, so that its logarithm is finite.
    #[inline]
    pub fn next_unit(&mut self) -> f64 {
        ((self.next_bits() >> 11) + 1) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}
