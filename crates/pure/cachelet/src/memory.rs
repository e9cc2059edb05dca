//! The bytes that items and indexes live in: one range for the life of the server.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::zeroed::ZeroedBytes;

/// A place in the memory, in granules; 0 is nowhere.
pub type Offset = u32;

/// Position of a block of the index in the memory; 28 bits, 0 is none.
pub type BlockId = u32;

/// Of the index.
pub const BLOCK_BYTES: usize = 512;

/// The kernel's huge pages begin at multiples of this, and so blocks of the index and our pages do.
const ALIGNMENT: usize = 2 << 20;

/// More than is written while one huge page is populated, 5 ms where that is slow.
const POPULATED_AHEAD: usize = 2 * ALIGNMENT;

/// Smallest granule: items begin at multiples of 4 bytes, which their header's words need.
const GRANULE_SHIFT_MIN: u32 = 2;

/// A range of memory, addressed by 32-bit offsets in granules of 4 bytes (up to 8 GiB), 8 (up to
/// 16 GiB) and so on: the offset stays small, so that ten fit into a bucket beside their tags. The
/// highest bit is never set: the index has a use for it.
pub struct Memory {
    base: NonNull<u8>,
    bytes: usize,
    shift: u32,
    /// Blocks of the index begin at multiples of two to this.
    pub(crate) block_shift: u32,
    region: Box<dyn Region>,
    /// So many bytes from the start may be used.
    committed: AtomicUsize,
    /// So many were asked to be populated.
    populated: AtomicUsize,
}

/// Where a memory comes from.
///
/// # Safety
/// The range stays the same, aligned to 2 MiB, and nobody else's, until the region is dropped; what has been
/// committed can be read and written, what is decommitted afterwards too.
pub unsafe trait Region: Send + Sync {
    fn range(&self) -> NonNull<[u8]>;

    /// Makes so many bytes from the start usable; false if they cannot be had.
    fn commit(&self, bytes: usize) -> bool;

    /// Takes back the memory behind this part, until it is touched again. Its content does not matter.
    fn decommit(&self, part: Range<usize>);

    /// Whether what is touched first may come in huge pages, each of which takes milliseconds on some machines.
    fn touch_huge_pages(&self, _: bool) {}

    /// So many bytes from the start, all of them committed, are about to be used: another thread may touch them first. Never waits.
    fn populate(&self, _: usize) {}
}

/// A region from the allocator, zeroed and so untouched until it is used.
struct Heap {
    zeroed: ZeroedBytes,
    bytes: usize,
}

// SAFETY: who may touch which bytes when is the business of `sync`; the range itself never moves.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

// SAFETY: what the allocator gave is ours and usable until it is freed; its start is aligned.
unsafe impl Region for Heap {
    fn range(&self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.zeroed.start(), self.bytes)
    }

    fn commit(&self, bytes: usize) -> bool {
        bytes <= self.bytes
    }

    fn decommit(&self, _: Range<usize>) {}
}

impl Memory {
    /// From the allocator.
    pub fn heap(bytes: usize) -> Memory {
        let zeroed = ZeroedBytes::new(bytes, ALIGNMENT).expect("memory for a store");
        Memory::of(Box::new(Heap { zeroed, bytes }))
    }

    /// In a region of which nothing is in use.
    pub fn of(region: Box<dyn Region>) -> Memory {
        let range = region.range();
        let (base, bytes) = (range.cast(), range.len());
        let (shift, block_shift) = (granule_shift(bytes), block_shift(bytes));
        let (committed, populated) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Memory { base, bytes, shift, block_shift, region, committed, populated }
    }

    /// The largest memory whose granule is that of one of `bytes`: room to grow that costs items nothing.
    pub fn reach(bytes: usize) -> usize {
        ((i32::MAX as usize) << granule_shift(bytes)) & !(ALIGNMENT - 1)
    }

    /// Makes so many bytes from the start usable; false if they cannot be had.
    pub fn commit(&self, bytes: usize) -> bool {
        let usable = bytes <= self.committed() || self.region.commit(bytes);
        if usable {
            self.committed.fetch_max(bytes, Relaxed);
        }
        usable
    }

    pub fn committed(&self) -> usize {
        self.committed.load(Relaxed)
    }

    pub(crate) fn decommit(&self, part: Range<usize>) {
        self.region.decommit(part);
    }

    pub(crate) fn touch_huge_pages(&self, may: bool) {
        self.region.touch_huge_pages(may);
    }

    /// What lies behind the first `used` bytes is about to be used, as far as it may be: before `end`.
    #[inline]
    pub(crate) fn populate_behind(&self, used: usize, end: usize) {
        let wanted = (used + POPULATED_AHEAD).next_multiple_of(ALIGNMENT).min(end);
        if self.populated.load(Relaxed) < wanted {
            self.populated.store(wanted, Relaxed);
            self.region.populate(wanted);
        }
    }

    /// Zeroes the first `bytes`.
    pub(crate) fn zero(&mut self, bytes: usize) {
        assert!(bytes <= self.committed());
        // SAFETY: so many bytes are usable, and nobody else has the memory now.
        unsafe { self.base.as_ptr().write_bytes(0, bytes) }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// `bytes` rounded up to whole granules.
    #[inline(always)]
    pub fn round_up(&self, bytes: usize) -> usize {
        let mask = (1usize << self.shift) - 1;
        (bytes + mask) & !mask
    }

    #[inline(always)]
    pub fn at(&self, offset: Offset) -> *mut u8 {
        self.byte((offset as usize) << self.shift)
    }

    #[inline(always)]
    pub fn byte(&self, position: usize) -> *mut u8 {
        debug_assert!(position < self.bytes);
        // SAFETY: positions come from pages, which lie inside the range.
        unsafe { self.base.as_ptr().add(position) }
    }

    #[inline(always)]
    pub fn block(&self, id: BlockId) -> *mut u8 {
        self.byte((id as usize) << self.block_shift)
    }

    #[inline(always)]
    pub fn position(&self, offset: Offset) -> usize {
        (offset as usize) << self.shift
    }

    #[inline(always)]
    pub fn offset(&self, position: usize) -> Offset {
        (position >> self.shift) as Offset
    }
}

fn granule_shift(bytes: usize) -> u32 {
    let mut shift = GRANULE_SHIFT_MIN;
    while bytes >> shift > i32::MAX as usize {
        shift += 1;
    }
    shift
}

/// That of [`BLOCK_BYTES`] below 128 GiB, where 28 bits of a block's id come to their end.
fn block_shift(bytes: usize) -> u32 {
    let mut shift = BLOCK_BYTES.trailing_zeros();
    while bytes >> shift >= 1 << 28 {
        shift += 1;
    }
    shift
}

/// Asks for a cache line; never faults.
#[inline(always)]
pub fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that the program can see.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address as *const i8);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn granules_grow_with_the_memory() {
        assert_eq!(
            [64 << 20, 8 << 30].map(Memory::reach),
            [(8 << 30) - ALIGNMENT, (16 << 30) - ALIGNMENT]
        );
        assert_eq!([1 << 20, (8 << 30) - 4, 9 << 30, 17 << 30].map(granule_shift), [2, 2, 3, 4]);
        assert_eq!([1 << 20, 127 << 30, 128 << 30, 300 << 30].map(block_shift), [9, 9, 10, 11]);
    }
}
