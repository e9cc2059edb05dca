//! The memory of a cachelet's index: blocks in pages of its own.

use std::collections::{BTreeSet, VecDeque};
use std::mem;

use crate::bucket::{BLOCK_BUCKETS, SLOTS};
use crate::entry::Entry;
use crate::memory::{BLOCK_BYTES, BlockId};
use crate::pool::PageId;
use crate::site::Site;

#[derive(Default)]
pub struct Blocks {
    pages: BTreeSet<PageId>,
    /// The lowest go first, so that the highest pages come free.
    free: BTreeSet<BlockId>,
    /// Blocks that readers may still be in.
    limbo: VecDeque<(u64, Vec<BlockId>)>,
}

fn per_page(site: &Site) -> u32 {
    1 << (site.pages().shift - site.memory().block_shift)
}

impl Blocks {
    pub fn pages(&self) -> usize {
        self.pages.len()
    }

    pub fn slots(&self, site: &Site) -> usize {
        self.pages.len() * per_page(site) as usize * BLOCK_BUCKETS * SLOTS
    }

    /// What blocks in use have, in bytes; those in limbo count.
    pub fn bytes(&self, site: &Site) -> usize {
        (self.pages.len() * per_page(site) as usize - self.free.len()) * BLOCK_BYTES
    }

    /// A slice of so many zeroed blocks that nobody points to.
    pub fn take(&mut self, site: &mut Site, blocks: usize) -> Option<Entry> {
        self.reap(site);
        while self.free.len() < blocks {
            let page = site.take_page()?;
            let per_page = per_page(site);
            self.pages.insert(page);
            // At once: one by one they would take some ten microseconds.
            self.free.append(&mut (page * per_page..(page + 1) * per_page).collect());
        }
        let ids: Vec<BlockId> = std::iter::from_fn(|| self.free.pop_first()).take(blocks).collect();
        for &id in &ids {
            // SAFETY: the block is this cachelet's and unpublished.
            unsafe { site.memory().block(id).write_bytes(0, BLOCK_BYTES) }
        }
        Some(Entry::of(&ids))
    }

    /// Gives back what nobody has seen.
    pub fn give_back(&mut self, site: &Site, unseen: &Entry) {
        let slice = unseen.slice(site.memory()).expect("it has blocks");
        self.free.extend(slice.ids());
    }

    /// Blocks that nothing points to any more.
    pub fn retire(&mut self, site: &Site, ids: Vec<BlockId>) {
        self.limbo.push_back((site.pages().pool.epochs().stamp(), ids));
    }

    pub fn reap(&mut self, site: &Site) {
        let epochs = site.pages().pool.epochs();
        while self.limbo.front().is_some_and(|&(stamp, _)| epochs.passed(stamp)) {
            let (_, ids) = self.limbo.pop_front().expect("its front was looked at");
            self.free.extend(ids);
        }
    }

    /// Gives up all of them; their pages.
    pub fn drop_all(&mut self) -> VecDeque<(u64, PageId)> {
        mem::take(self).pages.into_iter().map(|id| (0, id)).collect()
    }

    /// The first block of the pages that are more than those in use need, and one.
    pub fn above_need(&self, site: &Site) -> BlockId {
        let per_page = per_page(site);
        let kept = (self.bytes(site) / BLOCK_BYTES).div_ceil(per_page as usize) + 1;
        self.pages.iter().nth(kept).map_or(BlockId::MAX, |page| page * per_page)
    }

    /// The highest page, if none of its blocks is in use.
    pub fn give_back_page(&mut self, site: &Site) {
        let per_page = per_page(site);
        let Some(&page) = self.pages.last() else { return };
        let first = page * per_page;
        if self.free.range(first..).count() == per_page as usize {
            self.free.split_off(&first);
            self.pages.remove(&page);
            site.release_page(page);
        }
    }
}
