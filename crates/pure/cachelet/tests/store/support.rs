use mbal_cachelet::Options;

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
