//! The directory of a cachelet's index, and where it is found: an entry for each slice of the hashes.

use std::ops::Range;

use crate::entry::Entry;
use crate::memory::Memory;
use crate::shim::{AtomicPtr, AtomicU32, Ordering::*};
use crate::slice::Way;

pub struct Dir {
    depth: u32,
    pub entries: Box<[Entry]>,
}

impl Dir {
    pub fn empty() -> Box<Dir> {
        Box::new(Dir { depth: 0, entries: Box::new([Entry::empty()]) })
    }

    pub fn depth(&self) -> u32 {
        self.depth
    }

    pub fn doubled(&self) -> Box<Dir> {
        let twice = self.entries.iter().flat_map(|entry| [entry.copy(), entry.copy()]);
        Box::new(Dir { depth: self.depth + 1, entries: twice.collect() })
    }

    /// No slice is left; what has moved to another cachelet is still there.
    pub fn emptied(&self) -> Box<Dir> {
        if !self.entries.iter().any(Entry::has_moved) {
            return Dir::empty();
        }
        let left = |entry: &Entry| if entry.has_moved() { Entry::moved() } else { Entry::empty() };
        Box::new(Dir { depth: self.depth, entries: self.entries.iter().map(left).collect() })
    }

    /// The run of entries that share the slice of entry `index`.
    pub fn run(&self, index: usize) -> Range<usize> {
        let same = |i: &usize| self.entries[*i].leads_like(&self.entries[index]);
        let start = (0..index).rev().take_while(same).last().unwrap_or(index);
        let end = (index + 1..self.entries.len()).take_while(same).last().unwrap_or(index) + 1;
        start..end
    }
}

/// The entry of a hash in a directory of this depth, if its first `prefix_bits` chose the cachelet.
#[inline(always)]
pub fn index(hash: u64, prefix_bits: u32, depth: u32) -> usize {
    // Two shifts: a shift by 64 has no meaning.
    ((hash << prefix_bits) >> 1 >> (63 - depth)) as usize
}

/// Where a cachelet's index begins, for its writer and for readers of all workers.
#[repr(C)]
pub struct Root {
    dir: AtomicPtr<Dir>,
    /// Bits of the hash before those that the directory goes by: those of its prefix, or fewer after a split.
    prefix_bits: AtomicU32,
    /// Where slices marked as moved have gone, plus one; 0 is nowhere.
    child: AtomicU32,
}

impl Root {
    pub fn new() -> Root {
        Root {
            dir: AtomicPtr::new(Box::into_raw(Dir::empty())),
            prefix_bits: AtomicU32::new(0),
            child: AtomicU32::new(0),
        }
    }

    /// In an epoch, or under the writer lock.
    #[inline(always)]
    pub fn dir(&self) -> &Dir {
        // SAFETY: a directory is replaced under the writer lock alone, and freed only after every worker left the epoch in which it was
        // replaced.
        unsafe { &*self.dir.load(Acquire) }
    }

    /// Readers find this one from now on. The one of before is to be kept until its epoch has passed. Under the writer lock.
    pub fn replace(&self, dir: Box<Dir>) -> Box<Dir> {
        let old = self.dir.swap(Box::into_raw(dir), AcqRel);
        // SAFETY: it came from Box::into_raw and has just been taken out.
        unsafe { Box::from_raw(old) }
    }

    #[inline(always)]
    pub fn prefix_bits(&self) -> u32 {
        self.prefix_bits.load(Relaxed)
    }

    pub fn set_prefix_bits(&self, bits: u32) {
        self.prefix_bits.store(bits, Relaxed);
    }

    /// Index of the directory's entry for `hash`.
    #[inline(always)]
    pub fn entry_in(&self, dir: &Dir, hash: u64) -> usize {
        index(hash, self.prefix_bits(), dir.depth)
    }

    /// Where one of its directories leads.
    #[inline(always)]
    pub fn way<'a>(&self, dir: &'a Dir, hash: u64, memory: &'a Memory) -> Way<'a> {
        dir.entries[self.entry_in(dir, hash)].way(memory)
    }

    /// The slot of the cachelet to which slices have moved.
    pub fn child(&self) -> Option<u32> {
        self.child.load(Acquire).checked_sub(1)
    }

    /// Under the writer lock nobody moves a slice.
    #[inline]
    pub fn has_child(&self) -> bool {
        self.child.load(Relaxed) != 0
    }

    pub fn set_child(&self, slot: Option<u32>) {
        self.child.store(slot.map_or(0, |slot| slot + 1), Release);
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        // SAFETY: made by Box::into_raw; nobody else can have the cachelet any more.
        drop(unsafe { Box::from_raw(self.dir.load(Relaxed)) });
    }
}
