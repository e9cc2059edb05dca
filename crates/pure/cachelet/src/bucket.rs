//! A bucket of the index: one cache line.
//!
//! ```text
//!   0        20       24                                              64
//!   | 10 tags | version | 10 offsets, 0 = free                          |
//!   |  16 bit |  count  | 32 bit, in granules                           |
//! ```
//!
//! An item that was evicted before anybody read it leaves its tag behind, and a stamp instead of an
//! offset, until the slot is used again: a ghost, which tells that its key has come back. So the free
//! part of the index remembers whom it was wrong to evict, for no memory of its own.
//!
//! The count beside the version says how many items of this home bucket had to be put into one of
//! the next buckets of the block; while it is 0 a lookup ends here.

use crate::memory::Offset;
use crate::shim::{AtomicU32, Ordering::*};
use crate::sync::Version;

pub const SLOTS: usize = 10;
/// A bucket's items lie in it or in the next ones of its block, this many in all.
pub const WINDOW: usize = 8;
/// Buckets of a block: the memory of one slice.
pub const BLOCK_BUCKETS: usize = 64;
pub const BLOCK_BYTES: usize = BLOCK_BUCKETS * 64;

#[repr(C, align(64))]
pub struct Bucket {
    /// Two tags a word.
    tags: [AtomicU32; SLOTS / 2],
    pub version: Version,
    slots: [AtomicU32; SLOTS],
}

/// Says that a slot holds the stamp of a ghost in its other bits. Offsets stay below it.
const GHOST: u32 = 1 << 31;

/// Neither free nor a ghost.
#[inline(always)]
fn is_item(word: u32) -> bool {
    word as i32 > 0
}

fn age(ghost: u32, stamp: u32) -> u32 {
    stamp.wrapping_sub(ghost) & !GHOST
}

pub type Block = [Bucket; BLOCK_BUCKETS];

/// Home bucket in its block: the lowest bits of the hash.
#[inline(always)]
pub fn home_of(hash: u64) -> usize {
    hash as usize % BLOCK_BUCKETS
}

#[inline(always)]
pub fn tag_of(hash: u64) -> u16 {
    (hash >> 6) as u16
}

impl Bucket {
    #[cfg(loom)]
    pub fn new() -> Bucket {
        Bucket {
            tags: std::array::from_fn(|_| AtomicU32::new(0)),
            version: Version::new(),
            slots: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }

    /// Slots whose tag is `tag`, free ones included: bit `16 × slot % 4 + 15` of word `slot / 4`.
    #[inline(always)]
    fn matches(&self, tag: u16) -> [u64; 3] {
        let word = |i: usize| u64::from(self.tags[i].load(Relaxed));
        let wanted = u64::from(tag) * 0x0001_0001_0001_0001;
        [
            zero_lanes((word(0) | word(1) << 32) ^ wanted),
            zero_lanes((word(2) | word(3) << 32) ^ wanted),
            zero_lanes(word(4) ^ wanted) & 0x8000_8000,
        ]
    }

    /// The slot and offset of the first item with this tag that `wanted` accepts.
    ///
    /// Offsets are loaded with acquire: whoever sees one sees the item that was written before it.
    #[inline(always)]
    pub fn find(
        &self,
        tag: u16,
        mut wanted: impl FnMut(Offset) -> bool,
    ) -> Option<(usize, Offset)> {
        for (i, mut lanes) in self.matches(tag).into_iter().enumerate() {
            while lanes != 0 {
                let slot = 4 * i + lanes.trailing_zeros() as usize / 16;
                let offset = self.slots[slot].load(Acquire);
                if is_item(offset) && wanted(offset) {
                    return Some((slot, offset));
                }
                lanes &= lanes - 1;
            }
        }
        None
    }

    /// A free slot: one without a ghost, else the one whose ghost is the oldest at `stamp`.
    #[inline]
    pub fn free_slot(&self, stamp: u32) -> Option<usize> {
        let mut oldest = None;
        for (slot, word) in self.slots.iter().enumerate() {
            let word = word.load(Relaxed);
            if word == 0 {
                return Some(slot);
            }
            if word & GHOST != 0 {
                oldest = oldest.max(Some((age(word, stamp), slot)));
            }
        }
        oldest.map(|(_, slot)| slot)
    }

    /// Ghosts made at stamps from that of this tag's youngest ghost to `stamp`, and its slot.
    #[inline]
    pub fn ghost(&self, tag: u16, stamp: u32) -> Option<(u32, usize)> {
        let mut youngest = None;
        for (i, mut lanes) in self.matches(tag).into_iter().enumerate() {
            while lanes != 0 {
                let slot = 4 * i + lanes.trailing_zeros() as usize / 16;
                let word = self.slots[slot].load(Relaxed);
                if word & GHOST != 0 {
                    let this = (age(word, stamp), slot);
                    youngest = Some(youngest.map_or(this, |other| this.min(other)));
                }
                lanes &= lanes - 1;
            }
        }
        youngest
    }

    /// Leaves a ghost in a slot that has just been emptied.
    #[inline]
    pub fn haunt(&self, slot: usize, stamp: u32) {
        self.slots[slot].store(GHOST | stamp & !GHOST, Relaxed);
    }

    /// 0 where no item is.
    #[inline(always)]
    pub fn offset(&self, slot: usize) -> Offset {
        let word = self.slots[slot].load(Relaxed);
        if word & GHOST == 0 { word } else { 0 }
    }

    /// Under the writer lock, between two bumps of the version of the item's home bucket.
    #[inline]
    pub fn set(&self, slot: usize, tag: u16, offset: Offset) {
        let shift = 16 * (slot % 2);
        let word = &self.tags[slot / 2];
        let others = word.load(Relaxed) & !(0xffff << shift);
        word.store(others | u32::from(tag) << shift, Relaxed);
        self.slots[slot].store(offset, Release);
    }
}

/// The highest bit of every 16-bit lane that is zero.
#[inline(always)]
fn zero_lanes(lanes: u64) -> u64 {
    const LOW: u64 = 0x7fff_7fff_7fff_7fff;
    !(((lanes & LOW) + LOW) | lanes | LOW)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_one_cache_line() {
        assert_eq!(size_of::<Bucket>(), 64);
        assert_eq!(size_of::<Block>(), BLOCK_BYTES);
    }

    #[test]
    fn every_slot_is_found_by_its_tag_and_only_by_it() {
        // SAFETY: all words of a bucket may be zero.
        let bucket: Bucket = unsafe { std::mem::zeroed() };
        for slot in 0..SLOTS {
            bucket.set(slot, 0x8000 ^ slot as u16, slot as u32 + 1);
        }
        for slot in 0..SLOTS {
            let tag = 0x8000 ^ slot as u16;
            assert_eq!(bucket.find(tag, |_| true), Some((slot, slot as u32 + 1)));
            assert_eq!(bucket.find(tag ^ 0x4000, |_| true), None);
        }
        assert_eq!(bucket.free_slot(3), None);
        bucket.set(7, 0, 0);
        assert_eq!((bucket.free_slot(3), bucket.find(0, |_| true)), (Some(7), None));
    }

    #[test]
    fn a_ghost_is_found_until_its_slot_is_used_and_the_oldest_goes_first() {
        // SAFETY: all words of a bucket may be zero.
        let bucket: Bucket = unsafe { std::mem::zeroed() };
        (0..SLOTS).for_each(|slot| bucket.set(slot, slot as u16, 40));
        assert_eq!(bucket.ghost(4, 0), None);
        for (slot, stamp) in [(4, 30), (7, 20), (8, 25)] {
            bucket.set(slot, slot as u16, 0);
            bucket.haunt(slot, stamp);
        }
        assert_eq!((bucket.ghost(4, 33), bucket.offset(4)), (Some((3, 4)), 0));
        assert_eq!(bucket.find(4, |_| true), None);
        assert_eq!(bucket.free_slot(33), Some(7));
        bucket.set(7, 10, 50);
        assert_eq!((bucket.ghost(7, 33), bucket.free_slot(33)), (None, Some(8)));
    }
}
