//! Choices of a run, all from its seed.

use std::ops::RangeInclusive;

use mbal_sketch::Random;

/// What falls is the seed's alone: the same seed makes the same run.
pub struct Dice(Random);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(Random::new(mbal_sketch::mix(seed ^ 0x6d62_616c)))
    }

    pub fn bits(&mut self) -> u64 {
        self.0.word()
    }

    /// Below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.bits()) * bound as u128) >> 64) as usize
    }

    pub fn between(&mut self, range: RangeInclusive<u64>) -> u64 {
        range.start() + self.below((range.end() - range.start() + 1) as usize) as u64
    }

    pub fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// Mostly near the start of the range, at times far up: what delays are like.
    pub fn skewed(&mut self, range: RangeInclusive<u64>) -> u64 {
        let reach = (range.end() - range.start()) >> self.below(10);
        range.start() + self.between(0..=reach)
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at + 1));
        }
    }
}
