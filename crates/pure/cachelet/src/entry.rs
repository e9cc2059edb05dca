//! An entry of a directory: which blocks a slice has, or where it has gone. See `slice`.

use crate::memory::BlockId;
use crate::shim::{AtomicU32, Ordering::*};

/// Blocks of a slice, at most.
pub const BLOCKS_MAX: usize = 16;

pub const NUMBER_MASK: u32 = BLOCKS_MAX as u32 - 1;

/// The first word of a slice that has moved to the cachelet's child.
pub const MOVED: u32 = u32::MAX;

/// An entry of the directory.
#[repr(align(64))]
pub struct Entry {
    pub words: [AtomicU32; BLOCKS_MAX],
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
}
