//! The memory of a cachelet's index: blocks in pages of its own, and what becomes of them when there are
//! fewer items.

use std::collections::{BTreeSet, VecDeque};

use crate::bucket::{BLOCK_BUCKETS, BLOCK_BYTES, SLOTS};
use crate::entry::{BlockId, Entry};
use crate::locked::Locked;
use crate::pool::PageId;
use crate::shim::Ordering::*;

/// An index is sparse, and gives pages back, when it has more slots than so many per item.
const SPARSE_SLOTS_PER_ITEM: usize = 2;

/// Blocks that are less than one of so many parts of the logs' memory are taken for ghosts too. An index sheds nothing
/// unless its pages are half as much again: it would be what it grows by.
const GHOSTS_PART: usize = 32;

/// A slice of a sparse index is rebuilt if so many percent of its slots suffice.
const WORTH_PERCENT: usize = 75;

/// Slices that are looked at for every page that is cleaned.
const LOOKED_AT: usize = 4;

#[derive(Default)]
pub struct Blocks {
    pages: BTreeSet<PageId>,
    /// The lowest go first, so that the highest pages come free.
    free: BTreeSet<BlockId>,
    /// Blocks that readers may still be in.
    limbo: VecDeque<(u64, Vec<BlockId>)>,
    /// Entry of the directory that is looked at next.
    next: usize,
    /// Slices with blocks from here on are rebuilt in this round; at first all.
    above: BlockId,
}

impl Blocks {
    pub fn pages(&self) -> usize {
        self.pages.len()
    }
}

impl Locked<'_> {
    fn blocks_per_page(&self) -> u32 {
        1 << (self.store.page_shift - self.store.memory.block_shift)
    }

    /// What blocks in use have, in bytes; those in limbo count.
    pub(crate) fn block_bytes(&self) -> usize {
        let blocks = &self.inner.blocks;
        let all = blocks.pages.len() * self.blocks_per_page() as usize;
        (all - blocks.free.len()) * BLOCK_BYTES
    }

    /// True if what ghosts take in the index is little beside what they do for the items.
    pub(crate) fn has_room_for_ghosts(&self) -> bool {
        self.block_bytes() * GHOSTS_PART < self.log_bytes()
    }

    pub(crate) fn log_bytes(&self) -> usize {
        let pages: u32 = self.cachelet.log_pages.iter().map(|pages| pages.load(Relaxed)).sum();
        pages as usize * self.store.page_bytes
    }

    /// A slice of so many zeroed blocks that nobody points to.
    pub(crate) fn take_slice_of(&mut self, blocks: usize) -> Option<Entry> {
        self.reap_blocks();
        while self.inner.blocks.free.len() < blocks {
            let page = self.take_page()?;
            let per_page = self.blocks_per_page();
            self.inner.blocks.pages.insert(page);
            // At once: one by one they would take some ten microseconds.
            self.inner.blocks.free.append(&mut (page * per_page..(page + 1) * per_page).collect());
        }
        let free = &mut self.inner.blocks.free;
        let ids: Vec<BlockId> = std::iter::from_fn(|| free.pop_first()).take(blocks).collect();
        for &id in &ids {
            // SAFETY: the block is this cachelet's and unpublished.
            unsafe { self.store.memory.block(id).write_bytes(0, BLOCK_BYTES) }
        }
        Some(Entry::of(&ids))
    }

    /// Gives back what nobody has seen.
    pub(crate) fn give_back_slice(&mut self, unseen: &Entry) {
        let slice = unseen.slice(&self.store.memory).expect("it has blocks");
        self.inner.blocks.free.extend(slice.ids());
    }

    /// Blocks that nothing points to any more.
    pub(crate) fn retire_blocks(&mut self, ids: Vec<BlockId>) {
        let stamp = self.store.epochs.stamp();
        self.inner.blocks.limbo.push_back((stamp, ids));
    }

    fn reap_blocks(&mut self) {
        let (epochs, blocks) = (&self.store.epochs, &mut self.inner.blocks);
        while blocks.limbo.front().is_some_and(|&(stamp, _)| epochs.passed(stamp)) {
            let (_, ids) = blocks.limbo.pop_front().expect("its front was looked at");
            blocks.free.extend(ids);
        }
    }

    pub(crate) fn drop_blocks(&mut self) {
        let pages = std::mem::take(&mut self.inner.blocks).pages;
        self.drop_pages(pages.into_iter().map(|id| (0, id)).collect());
    }

    /// A step on the way of an index that has grown sparse to one that is not: some slices move together, and
    /// a page without blocks is given back. O(slots of some slices).
    pub(crate) fn shed_index(&mut self) {
        let pages = self.inner.blocks.pages.len();
        let per_page = self.blocks_per_page() as usize;
        let slots = pages * per_page * BLOCK_BUCKETS * SLOTS;
        let is_sparse = slots > self.inner.stats.items as usize * SPARSE_SLOTS_PER_ITEM;
        let is_large = pages * self.store.page_bytes * GHOSTS_PART * 2 > self.log_bytes() * 3;
        if pages < 2 || !is_sparse || !is_large {
            return;
        }
        self.reap_blocks();
        self.give_back_index_page();
        for _ in 0..LOOKED_AT {
            if self.inner.blocks.next >= self.dir().entries.len() {
                let in_use = self.block_bytes() / BLOCK_BYTES;
                let kept = in_use.div_ceil(per_page) + 1;
                let blocks = &mut self.inner.blocks;
                let above = blocks.pages.iter().nth(kept);
                blocks.above = above.map_or(BlockId::MAX, |page| page * per_page as u32);
                blocks.next = 0;
            }
            let entry = self.inner.blocks.next;
            self.inner.blocks.next = self.dir().run(entry).end;
            self.shed_slice(entry);
        }
    }

    fn shed_slice(&mut self, entry: usize) {
        // What is being exported keeps its places.
        if self.cachelet.leaves() {
            return;
        }
        let Some(slice) = self.slice_at(entry) else { return };
        let items = slice.all_items();
        let worth = BLOCK_BUCKETS * SLOTS * WORTH_PERCENT / 100;
        let enough = items.len().div_ceil(worth).clamp(1, slice.blocks());
        let is_above = slice.ids().any(|id| id >= self.inner.blocks.above);
        if enough < slice.blocks() || is_above {
            self.rebuild(entry, enough, &items);
        }
    }

    /// The highest page of the index, if none of its blocks is in use.
    fn give_back_index_page(&mut self) {
        let per_page = self.blocks_per_page();
        let blocks = &mut self.inner.blocks;
        let Some(&page) = blocks.pages.last() else { return };
        let first = page * per_page;
        if blocks.free.range(first..).count() == per_page as usize {
            blocks.free.split_off(&first);
            blocks.pages.remove(&page);
            self.release_page(page);
        }
    }
}
