//! How a memcached cuts its memory into pages of chunks of one size: its slab classes.

/// A page of any class.
pub const PAGE_BYTES: u64 = 1 << 20;
/// The header of an item; chunks of the first class have so much more than `chunk_size`.
const HEADER_BYTES: u64 = 48;
/// Chunk sizes are multiples of it.
const ALIGN: u64 = 8;
/// The last class is of `slab_chunk_max`.
const CLASSES_MAX: usize = 63;

/// What a server says of it in `stats settings`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlabSettings {
    /// Of the smallest class, for key, value and flags.
    pub chunk_size: u64,
    pub growth_factor: f64,
    pub slab_chunk_max: u64,
}

/// Chunk sizes by class; the class of number 0 is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slabs {
    chunk_bytes: Vec<u64>,
}

impl Slabs {
    /// As memcached computes them when it starts.
    pub fn new(settings: &SlabSettings) -> Slabs {
        let most = (settings.slab_chunk_max as f64 / settings.growth_factor) as u64;
        let mut chunk_bytes = vec![0];
        let mut bytes = HEADER_BYTES + settings.chunk_size;
        while chunk_bytes.len() < CLASSES_MAX && bytes < most {
            bytes = bytes.next_multiple_of(ALIGN);
            chunk_bytes.push(bytes);
            bytes = (bytes as f64 * settings.growth_factor) as u64;
        }
        chunk_bytes.push(settings.slab_chunk_max);
        Slabs { chunk_bytes }
    }

    /// Classes are below it.
    pub fn end(&self) -> usize {
        self.chunk_bytes.len()
    }

    pub fn chunk_bytes(&self, class: usize) -> u64 {
        self.chunk_bytes[class]
    }

    pub fn chunks_per_page(&self, class: usize) -> u64 {
        PAGE_BYTES / self.chunk_bytes[class]
    }

    /// Where an item of so many bytes is, header and all, and how many chunks it takes: a long one has several of the last class.
    pub fn class_of(&self, item_bytes: u64) -> (usize, u64) {
        let class = self.chunk_bytes[1..].partition_point(|&bytes| bytes < item_bytes) + 1;
        let last = self.end() - 1;
        if class <= last { (class, 1) } else { (last, item_bytes.div_ceil(self.chunk_bytes[last])) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: SlabSettings =
        SlabSettings { chunk_size: 48, growth_factor: 1.25, slab_chunk_max: 512 << 10 };

    #[test]
    fn the_classes_of_memcached_with_its_own_settings() {
        // From `stats slabs` of memcached 1.6.18: class, chunk_size, chunks_per_page.
        let slabs = Slabs::new(&DEFAULT);
        for (class, bytes, per_page) in
            [(1, 96, 10922), (2, 120, 8738), (6, 304, 3449), (12, 1184, 885), (39, 524288, 2)]
        {
            assert_eq!(slabs.chunk_bytes(class), bytes, "{class}");
            assert_eq!(slabs.chunks_per_page(class), per_page, "{class}");
        }
        assert_eq!(slabs.end(), 40);
    }

    #[test]
    fn an_item_is_in_the_first_class_that_holds_it() {
        let slabs = Slabs::new(&DEFAULT);
        for (bytes, class, chunks) in
            [(1, 1, 1), (96, 1, 1), (97, 2, 1), (260, 6, 1), (524_288, 39, 1), (524_289, 39, 2)]
        {
            assert_eq!(slabs.class_of(bytes), (class, chunks), "{bytes}");
        }
    }
}
