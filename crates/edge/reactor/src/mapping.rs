//! Memory from the kernel for the storage engine: addresses at the start, pages when they are used.

use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use mbal_cachelet::Region;

use crate::populator::Populator;

/// The kernel's huge pages begin at multiples of this.
const ALIGNMENT: usize = 2 << 20;

/// A range of addresses of which the first part can be used.
pub struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    /// With what was cut off to align it.
    whole: Range<usize>,
    /// Something has been decommitted.
    has_holes: AtomicBool,
    /// Small pages are wanted.
    is_small: AtomicBool,
    /// Since something was to be populated; `None` if there can be no thread for it.
    populator: OnceLock<Option<Populator>>,
}

// SAFETY: it is nothing but the right to advise on, and to unmap, what it names.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Room to grow up to `bytes_max`, or as much of it as the kernel grants; `bytes` at least.
    pub fn reserve(bytes: usize, bytes_max: usize) -> io::Result<Mapping> {
        let mut wanted = bytes_max.max(bytes);
        loop {
            match Mapping::of(wanted) {
                Ok(mapping) => return Ok(mapping),
                Err(error) if wanted == bytes => return Err(error),
                Err(_) => wanted = (wanted / 2).max(bytes),
            }
        }
    }

    fn of(bytes: usize) -> io::Result<Mapping> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let length = bytes + ALIGNMENT;
        // SAFETY: a new mapping, wherever the kernel likes, replaces none.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), length, libc::PROT_NONE, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = start.cast::<u8>();
        // SAFETY: the mapping has ALIGNMENT bytes more than are needed behind it.
        let base = unsafe { start.add(start.align_offset(ALIGNMENT)) };
        let base = NonNull::new(base).expect("the kernel maps nothing at 0");
        let whole = start as usize..start as usize + length;
        let mapping = Mapping {
            base,
            bytes,
            whole,
            has_holes: AtomicBool::new(false),
            is_small: AtomicBool::new(false),
            populator: OnceLock::new(),
        };
        // Random access to gigabytes costs a page walk for nearly every item otherwise. Without it all works
        // the same.
        mapping.advise(0..bytes, libc::MADV_HUGEPAGE);
        Ok(mapping)
    }

    fn advise(&self, part: Range<usize>, advice: i32) -> bool {
        assert!(part.end <= self.bytes, "a part of the mapping");
        // SAFETY: inside the mapping, which is ours; the advice given here changes at most what is in parts
        // that nobody uses.
        unsafe { libc::madvise(self.base.as_ptr().add(part.start).cast(), part.len(), advice) == 0 }
    }
}

// SAFETY: the mapping stays until it is dropped, and begins at a multiple of ALIGNMENT; `commit` lets what it is
// asked for be read and written, and nothing takes that back.
unsafe impl Region for Mapping {
    fn range(&self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.base, self.bytes)
    }

    fn commit(&self, bytes: usize) -> bool {
        if bytes > self.bytes {
            return false;
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: inside the mapping, where nothing relies on what cannot be touched.
        unsafe { libc::mprotect(self.base.as_ptr().cast(), bytes, access) == 0 }
    }

    /// Pages that are huge stay so.
    fn touch_huge_pages(&self, may: bool) {
        self.is_small.store(!may, Relaxed);
        let advice = match may && !self.has_holes.load(Relaxed) {
            true => libc::MADV_HUGEPAGE,
            false => libc::MADV_NOHUGEPAGE,
        };
        self.advise(0..self.bytes, advice);
    }

    /// Small pages come at once. And who has little CPU time should not spend it ahead.
    fn populate(&self, bytes: usize) {
        if self.is_small.load(Relaxed) {
            return;
        }
        // SAFETY: the mapping ends after its populator, see `drop`.
        let start = || unsafe { Populator::start(self.base) }.ok();
        if let Some(populator) = self.populator.get_or_init(start) {
            populator.reach(bytes.min(self.bytes));
        }
    }

    /// Memory that has holes is not made huge again: that would fill them.
    fn decommit(&self, part: Range<usize>) {
        if !self.has_holes.swap(true, Relaxed) {
            self.advise(0..self.bytes, libc::MADV_NOHUGEPAGE);
        }
        self.advise(part, libc::MADV_DONTNEED);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        drop(self.populator.take());
        // SAFETY: mapped as this very range, and nobody has the region any more.
        unsafe { libc::munmap(self.whole.start as *mut libc::c_void, self.whole.len()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_committed_can_be_used_and_given_back() {
        let mapping = Mapping::reserve(4 << 20, 1 << 30).expect("addresses");
        assert!(mapping.commit(4 << 20) && mapping.commit(8 << 20));
        assert!(!mapping.commit(usize::MAX / 2), "more than was reserved");
        let at = mapping.range().cast::<u8>().as_ptr();
        // SAFETY: 8 MiB have been committed, and nobody else has them.
        unsafe {
            at.add(5 << 20).write(7);
            mapping.decommit(4 << 20..8 << 20);
            assert_eq!(at.add(5 << 20).read(), 0, "the kernel has it back");
            at.add(5 << 20).write(7);
        }
    }

    #[test]
    fn what_is_to_be_used_is_touched_by_another_thread() {
        let mapping = Mapping::reserve(8 << 20, 8 << 20).expect("addresses");
        assert!(mapping.commit(8 << 20));
        let is_there = |nth: usize| {
            let mut there = [0u8; ALIGNMENT / 4096];
            // SAFETY: inside the mapping; `there` has a byte for each page.
            let looked = unsafe {
                let first = mapping.base.as_ptr().add(nth * ALIGNMENT);
                libc::mincore(first.cast(), ALIGNMENT, there.as_mut_ptr())
            };
            assert_eq!(looked, 0);
            there.iter().all(|page| page & 1 == 1)
        };
        mapping.touch_huge_pages(false);
        mapping.populate(2 * ALIGNMENT);
        assert!(mapping.populator.get().is_none(), "who has little time does nothing ahead");
        mapping.touch_huge_pages(true);
        mapping.populate(2 * ALIGNMENT);
        while !(is_there(0) && is_there(1)) {
            let populator = mapping.populator.get().and_then(Option::as_ref);
            if populator.is_none_or(Populator::has_ended) {
                println!("SKIPPED, NOT TESTED: this kernel populates nothing when it is asked to");
                return;
            }
            std::thread::yield_now();
        }
        assert!(!is_there(2));
    }

    #[test]
    fn where_huge_pages_are_unwanted_a_first_byte_brings_none() {
        let mapping = Mapping::reserve(8 << 20, 8 << 20).expect("addresses");
        assert!(mapping.commit(8 << 20));
        let at = mapping.range().cast::<u8>().as_ptr();
        // What comes of the first byte of the nth 2 MiB: pages of 4 KiB that are there.
        let touched = |nth: usize| {
            let mut there = [0u8; ALIGNMENT / 4096];
            // SAFETY: committed above, and nobody else has it; `there` has a byte for each page.
            let looked = unsafe {
                let first = at.add(nth * ALIGNMENT);
                first.write(7);
                libc::mincore(first.cast(), ALIGNMENT, there.as_mut_ptr())
            };
            assert_eq!(looked, 0);
            there.iter().filter(|page| **page & 1 == 1).count()
        };
        mapping.touch_huge_pages(false);
        assert!((1..512).contains(&touched(0)));
        mapping.touch_huge_pages(true);
        assert!(touched(1) >= 1, "one huge page, where the kernel has them");
    }
}
