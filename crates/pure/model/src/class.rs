//! memcached's classes of item sizes: here a statistic, there how its memory is cut.

/// Classes are numbered from 1 to one less.
pub const CLASSES: usize = 64;

const SMALLEST_BYTES: u32 = 96;
/// Items of the last class lie in memcached in several chunks.
const LARGEST_BYTES: u32 = 512 << 10;
/// memcached cuts its classes from pages of this size.
pub const CLASS_PAGE_BYTES: usize = 1 << 20;

const fn class_sizes() -> ([u32; CLASSES], usize) {
    let mut sizes = [0; CLASSES];
    let (mut size, mut class) = (SMALLEST_BYTES, 1);
    while size * 5 / 4 < LARGEST_BYTES {
        sizes[class] = size;
        size = (size * 5 / 4).next_multiple_of(8);
        class += 1;
    }
    sizes[class] = LARGEST_BYTES;
    (sizes, class)
}

static SIZES: [u32; CLASSES] = class_sizes().0;
/// The class of everything that is longer than all classes but the last.
pub const LAST_CLASS: usize = class_sizes().1;

/// By the three highest bits of a size: the first class that one with these bits may belong to.
static FIRST: [u8; 4 * 32] = {
    let mut first = [0; 4 * 32];
    let mut place = 0;
    while place < first.len() {
        let least = (4 + place as u64 % 4) << (place / 4) >> 2;
        let mut class = 1;
        while class < LAST_CLASS && (class_sizes().0[class] as u64) < least {
            class += 1;
        }
        first[place] = class as u8;
        place += 1;
    }
    first
};

/// Bytes that memcached would count for an item: what `size=` of `me` and `-I` mean (48 bytes of
/// header and 8 of cas, key and a zero byte, 4 of flags unless 0, value and line end).
#[inline]
pub fn item_bytes(key_bytes: usize, flags: u32, value_bytes: usize) -> usize {
    48 + 8 + key_bytes + 1 + if flags == 0 { 0 } else { 4 } + value_bytes + 2
}

/// The class that memcached (growth factor 1.25, 512 KiB the largest) would put an item of so many
/// bytes into.
#[inline]
pub fn size_class(bytes: usize) -> usize {
    let bytes = bytes.clamp(4, u32::MAX as usize) as u32;
    let log = bytes.ilog2();
    let mut class = FIRST[(log * 4 + (bytes >> (log - 2)) % 4) as usize] as usize;
    while class < LAST_CLASS && SIZES[class] < bytes {
        class += 1;
    }
    class
}

/// The largest item of a class, in bytes.
pub fn class_bytes(class: usize) -> usize {
    SIZES[class] as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_is_in_the_first_class_that_holds_it() {
        let slow = |bytes: usize| {
            (1..LAST_CLASS).find(|class| bytes <= class_bytes(*class)).unwrap_or(LAST_CLASS)
        };
        for bytes in (0..300_000).chain([1 << 20, 1 << 30, usize::MAX]) {
            assert_eq!(size_class(bytes), slow(bytes), "{bytes}");
        }
    }

    #[test]
    fn classes_are_memcacheds() {
        assert_eq!([1, 2, 3, 4, LAST_CLASS].map(class_bytes), [96, 120, 152, 192, 512 << 10]);
        assert_eq!(LAST_CLASS, 39);
    }
}
