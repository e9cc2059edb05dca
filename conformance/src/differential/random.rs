//! Choices among commands and keys, all from a seed.

pub struct Random(mbal_random::Random);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(mbal_random::Random::new(seed))
    }

    pub fn next(&mut self) -> u64 {
        self.0.word()
    }

    /// Evenly among `0..bound`; `bound` is never 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// True `of` times in a hundred.
    pub fn percent(&mut self, of: usize) -> bool {
        self.below(100) < of
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}
