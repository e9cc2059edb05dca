//! A bucket of the index: one cache line.
//!
//! ```text
//!   0        20       24                                              64
//!   | 10 tags | version | 10 offsets, 0 = free                          |
//!   |  16 bit |  reach  | 32 bit, in granules                           |
//! ```
//!
//! An item that was evicted before anybody read it leaves its tag behind, and a stamp instead of an
//! offset, until the slot is used again: a ghost, which tells that its key has come back. So the free
//! part of the index remembers whom it was wrong to evict, for no memory of its own.
//!
//! The reach beside the version says how far on the items of this home bucket lie that had to be put into
//! one of the next buckets of the slice; while it is 0 a lookup ends here.

use crate::memory::{BLOCK_BYTES, Offset};
use crate::shim::{AtomicU32, AtomicU64, Ordering::*};
use crate::sync::Version;

pub const SLOTS: usize = 10;
/// A bucket's items lie in it or in the next ones of its slice, this many in all.
pub const WINDOW: usize = 16;
/// Buckets of a block, of which a slice has some.
pub const BLOCK_BUCKETS: usize = BLOCK_BYTES / 64;

#[repr(C, align(64))]
pub struct Bucket {
    /// Four tags a word.
    tags: [AtomicU64; SLOTS / 4],
    last_tags: AtomicU32,
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

/// The lowest bits of the hash.
#[inline(always)]
pub fn tag_of(hash: u64) -> u16 {
    hash as u16
}

/// Home bucket of a tag among so many. A slice grows without a look at its items, since this is all it has to know of
/// them; a tag then tells less of the items of one bucket: with 128 buckets one in 512 has another's.
#[inline(always)]
pub fn home_of(tag: u16, buckets: usize) -> usize {
    (usize::from(tag) * buckets) >> 16
}

impl Bucket {
    #[cfg(loom)]
    pub fn new() -> Bucket {
        Bucket {
            tags: std::array::from_fn(|_| AtomicU64::new(0)),
            last_tags: AtomicU32::new(0),
            version: Version::new(),
            slots: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }

    /// Slots whose tag is `tag`, free ones included.
    #[inline(always)]
    fn matches(&self, tag: u16) -> Matches {
        let [first, second] = [0, 1].map(|i| self.tags[i].load(Relaxed));
        Matches(equal_lanes([first, second], self.last_tags.load(Relaxed), tag))
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
        for slot in self.matches(tag) {
            let offset = self.slots[slot].load(Acquire);
            if is_item(offset) && wanted(offset) {
                return Some((slot, offset));
            }
        }
        None
    }

    /// A slot with neither item nor ghost.
    pub fn empty_slot(&self) -> Option<usize> {
        self.slots.iter().position(|word| word.load(Relaxed) == 0)
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
        for slot in self.matches(tag) {
            let word = self.slots[slot].load(Relaxed);
            if word & GHOST != 0 {
                let this = (age(word, stamp), slot);
                youngest = Some(youngest.map_or(this, |other| this.min(other)));
            }
        }
        youngest
    }

    /// Ghosts made from that of this slot to `stamp`; `None` if it has no ghost, or one of this tag.
    pub fn forgets(&self, slot: usize, tag: u16, stamp: u32) -> Option<u32> {
        let word = self.slots[slot].load(Relaxed);
        (word & GHOST != 0 && self.tag(slot) != tag).then(|| age(word, stamp))
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

    /// Its items with their tags, by slot.
    pub fn items(&self) -> impl Iterator<Item = (usize, u16, Offset)> + '_ {
        let items = (0..SLOTS).map(|slot| (slot, self.tag(slot), self.offset(slot)));
        items.filter(|&(_, _, offset)| offset != 0)
    }

    /// Its ghosts: their tags and stamps.
    pub fn ghosts(&self) -> impl Iterator<Item = (u16, u32)> + '_ {
        let words = (0..SLOTS).map(|slot| (self.tag(slot), self.slots[slot].load(Relaxed)));
        words.filter(|&(_, word)| word & GHOST != 0).map(|(tag, word)| (tag, word & !GHOST))
    }

    fn tag(&self, slot: usize) -> u16 {
        let word = match self.tags.get(slot / 4) {
            Some(word) => word.load(Relaxed),
            None => self.last_tags.load(Relaxed).into(),
        };
        (word >> (16 * (slot % 4))) as u16
    }

    /// Under the writer lock, between two bumps of the version of the item's home bucket.
    #[inline]
    pub fn set(&self, slot: usize, tag: u16, offset: Offset) {
        let shift = 16 * (slot % 4);
        match self.tags.get(slot / 4) {
            Some(word) => {
                let others = word.load(Relaxed) & !(0xffff << shift);
                word.store(others | u64::from(tag) << shift, Relaxed);
            }
            None => {
                let others = self.last_tags.load(Relaxed) & !(0xffff << shift);
                self.last_tags.store(others | u32::from(tag) << shift, Relaxed);
            }
        }
        self.slots[slot].store(offset, Release);
    }
}

/// Slots of a bucket, a bit for each: one word, so that a lookup need not guess where the tag will be found.
#[derive(Clone, Copy)]
struct Matches(u32);

impl Iterator for Matches {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let slot = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        Some(slot)
    }
}

const ALL_SLOTS: u32 = (1 << SLOTS) - 1;

/// Which of ten lanes of 16 bits are `wanted`, a bit for each.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[allow(unused_unsafe)]
fn equal_lanes(lanes: [u64; 2], last: u32, wanted: u16) -> u32 {
    use std::arch::x86_64::*;
    // SAFETY: these instructions are SSE2's, which every x86-64 has, and touch no memory.
    unsafe {
        let wanted = _mm_set1_epi16(wanted as i16);
        let first = _mm_cmpeq_epi16(_mm_set_epi64x(lanes[1] as i64, lanes[0] as i64), wanted);
        let last = _mm_cmpeq_epi16(_mm_cvtsi32_si128(last as i32), wanted);
        _mm_movemask_epi8(_mm_packs_epi16(first, last)) as u32 & ALL_SLOTS
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn equal_lanes(lanes: [u64; 2], last: u32, wanted: u16) -> u32 {
    equal_lanes_by_words(lanes, last, wanted)
}

/// The same without vectors, and what the other is tested against.
#[cfg(any(test, not(target_arch = "x86_64")))]
fn equal_lanes_by_words(lanes: [u64; 2], last: u32, wanted: u16) -> u32 {
    let lane = |slot: usize| match lanes.get(slot / 4) {
        Some(word) => (word >> (16 * (slot % 4))) as u16,
        None => (last >> (16 * (slot % 4))) as u16,
    };
    (0..SLOTS).fold(0, |found, slot| found | u32::from(lane(slot) == wanted) << slot)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use mbal_random::Random;

    use super::*;

    #[test]
    fn a_bucket_is_one_cache_line() {
        assert_eq!(size_of::<Bucket>(), 64);
        assert_eq!(size_of::<Block>(), BLOCK_BYTES);
        assert_eq!([0, 511, 512, u16::MAX].map(|tag| home_of(tag, 128)), [0, 0, 1, 127]);
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
        let slots = (0..SLOTS).map(|slot| (slot, 0x8000 ^ slot as u16, slot as u32 + 1));
        assert!(bucket.items().eq(slots));
        assert_eq!(bucket.free_slot(3), None);
        bucket.set(7, 0, 0);
        assert_eq!((bucket.free_slot(3), bucket.find(0, |_| true)), (Some(7), None));
    }

    #[test]
    fn vectors_and_words_see_the_same_lanes() {
        let mut random = Random::new(1);
        for _ in 0..2000 {
            // Few values, so that several lanes are the same.
            let words = [(); 3].map(|()| random.word() & 0x8003_0001_7f01_8001);
            for wanted in [0, 1, 2, 0x8000, 0x8001, 0x8003, 0x7f01, u16::MAX] {
                let lanes = [words[0], words[1]];
                let last = words[2] as u32;
                let by_words = equal_lanes_by_words(lanes, last, wanted);
                assert_eq!(equal_lanes(lanes, last, wanted), by_words, "{words:x?} {wanted:x}");
            }
        }
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
        assert!(bucket.ghosts().eq([(4, 30), (7, 20), (8, 25)]));
        assert_eq!(bucket.free_slot(33), Some(7));
        let forgotten = [(7, 10), (7, 7), (1, 10)].map(|(slot, tag)| bucket.forgets(slot, tag, 33));
        assert_eq!(forgotten, [Some(13), None, None]);
        bucket.set(7, 10, 50);
        assert_eq!((bucket.ghost(7, 33), bucket.free_slot(33)), (None, Some(8)));
    }
}
