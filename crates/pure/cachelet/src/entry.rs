//! An entry of a directory: which blocks a slice has, or where it has gone. See `slice`.

use crate::memory::Memory;
use crate::shim::{AtomicU32, Ordering::*};
use crate::slice::Slice;

/// Position of a block in the memory; 28 bits, 0 is none.
pub type BlockId = u32;

/// Blocks of a slice, at most.
pub const BLOCKS_MAX: usize = 16;

pub const NUMBER_MASK: u32 = BLOCKS_MAX as u32 - 1;

/// The first word of a slice that has moved to the cachelet's child.
const MOVED: u32 = u32::MAX;

/// An entry of the directory.
#[repr(align(64))]
pub struct Entry {
    pub words: [AtomicU32; BLOCKS_MAX],
}

/// What a directory entry leads to.
pub enum Way<'a> {
    /// No key of it is stored.
    Nowhere,
    /// To the cachelet's child.
    Moved,
    Slice(Slice<'a>),
}

impl Entry {
    pub fn empty() -> Entry {
        Entry { words: std::array::from_fn(|_| AtomicU32::new(0)) }
    }

    pub fn moved() -> Entry {
        let entry = Entry::empty();
        entry.words[0].store(MOVED, Relaxed);
        entry
    }

    /// Of a slice in these blocks.
    pub fn of(ids: &[BlockId]) -> Entry {
        let entry = Entry::empty();
        for (word, id) in entry.words.iter().zip(ids) {
            word.store(id << 4 | (ids.len() as u32 - 1), Relaxed);
        }
        entry
    }

    pub fn copy(&self) -> Entry {
        Entry { words: std::array::from_fn(|at| AtomicU32::new(self.words[at].load(Relaxed))) }
    }

    /// Leads where `other` does. Under the writer lock, the blocks of before retired.
    pub fn lead(&self, other: &Entry) {
        for (word, other) in self.words.iter().zip(&other.words).rev() {
            word.store(other.load(Relaxed), Release);
        }
    }

    pub fn leads_like(&self, other: &Entry) -> bool {
        self.words[0].load(Relaxed) == other.words[0].load(Relaxed)
    }

    pub fn has_moved(&self) -> bool {
        self.words[0].load(Relaxed) == MOVED
    }

    #[inline(always)]
    pub fn way<'a>(&'a self, memory: &'a Memory) -> Way<'a> {
        match self.words[0].load(Acquire) {
            0 => Way::Nowhere,
            MOVED => Way::Moved,
            first => Way::Slice(Slice::new(memory, self, first & NUMBER_MASK)),
        }
    }

    /// Where nobody has moved the slice, as under the writer lock.
    #[inline]
    pub fn slice<'a>(&'a self, memory: &'a Memory) -> Option<Slice<'a>> {
        match self.way(memory) {
            Way::Slice(slice) => Some(slice),
            _ => None,
        }
    }
}
