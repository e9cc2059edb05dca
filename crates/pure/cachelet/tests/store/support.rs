use mbal_cachelet::Options;

/// A small xorshift: tests print its seed.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

pub fn options(memory_mib: usize, workers: usize, cachelets: usize) -> Options {
    Options {
        memory_bytes: memory_mib << 20,
        workers,
        cachelets,
        item_bytes_max: 1 << 20,
        evict: true,
        generation: 7,
    }
}
