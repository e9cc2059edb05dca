//! A cachelet's index: a directory by the highest bits of the hash, an entry a slice (see `slice`). A
//! slice that is full grows or is split in two, alone (extendible hashing), so that growth never makes
//! one long pause. An index that has grown sparse moves together, and gives pages back.

use std::collections::VecDeque;
use std::ops::Range;

use crate::blocks::Blocks;
use crate::bucket::{BLOCK_BUCKETS, SLOTS, tag_of};
use crate::dir::{Dir, index};
use crate::entry::{BLOCKS_MAX, Entry};
use crate::item::Item;
use crate::memory::{BlockId, Offset, prefetch};
use crate::pool::PageId;
use crate::site::Site;
use crate::slice::{Place, Slice};
use crate::types::Full;

/// 2^20 slices of up to 1,280 slots for one cachelet. Whoever makes keys collide beyond that evicts its own.
const DEPTH_MAX: u32 = 20;

/// A slice that has more slots than so many per item would not be helped by more: its keys collide.
const SLOTS_PER_ITEM_MAX: usize = 4;

/// So many items of a new slice may just find their places in its blocks, of 80 slots each; else it gets one more.
const ITEMS_PER_BLOCK: usize = 74;

/// A directory that grows for what comes from another cachelet takes no more than one of so many parts of the memory.
const DIR_PART: usize = 256;

/// An index is sparse, and gives pages back, when it has more slots than so many per item.
const SPARSE_SLOTS_PER_ITEM: usize = 2;

/// Blocks that are less than one of so many parts of the logs' memory are taken for ghosts too. An index sheds nothing
/// unless its pages are half as much again: it would be what it grows by.
const GHOSTS_PART: usize = 32;

/// A slice of a sparse index is rebuilt if so many percent of its slots suffice.
const WORTH_PERCENT: usize = 75;

/// What its writer remembers of an index, beside the directory. `items` is always how many it has.
#[derive(Default)]
pub struct Index {
    blocks: Blocks,
    /// Ghosts left in it so far.
    ghosts: u32,
    old_dirs: Vec<(u64, Box<Dir>)>,
    shedding: Shedding,
}

/// How far a sparse index has moved together.
#[derive(Default)]
struct Shedding {
    /// Entry of the directory that is looked at next.
    next: usize,
    /// Slices with blocks from here on are rebuilt in this round; at first all.
    above: BlockId,
}

impl Index {
    pub fn pages(&self) -> usize {
        self.blocks.pages()
    }

    /// Has the key of `hash` been evicted lately, unread?
    #[inline]
    pub fn is_ghost(&self, site: &Site, hash: u64, items: u64) -> bool {
        let Some(slice) = site.slice_of(hash) else { return false };
        let ghost = slice.home_for(hash).ghost(tag_of(hash), self.ghosts);
        ghost.is_some_and(|(age, _)| is_lately(age, items))
    }

    /// Leaves a ghost in a place that has just been emptied; only a home bucket is asked for it.
    pub fn haunt(&mut self, site: &Site, hash: u64, place: Place) {
        let slice = site.slice_of(hash).expect("the place lies in it");
        let home = slice.home_for(hash);
        if std::ptr::eq(slice.at(place.bucket.into()), home) {
            let stamp = self.ghosts.wrapping_add(1);
            home.haunt(place.slot.into(), stamp);
            self.ghosts = stamp;
        }
    }

    /// Adds a key that has no place yet. Grows the slice where it must. `Some`: this item is to be evicted first, since its window is full.
    #[inline]
    pub fn insert(
        &mut self,
        site: &mut Site,
        hash: u64,
        offset: Offset,
        items: u64,
    ) -> Result<Option<Offset>, Full> {
        loop {
            let Some(slice) = site.slice_of(hash) else {
                let new = self.blocks.take(site, 1).ok_or(Full::OutOfMemory)?;
                let dir = site.dir();
                dir.run(site.entry(hash)).for_each(|entry| dir.entries[entry].lead(&new));
                continue;
            };
            let (tag, stamp) = (tag_of(hash), self.ghosts);
            if let Some((bucket, slot)) = slice.place_for(tag, stamp) {
                let forgotten = slice.at(bucket).forgets(slot, tag, stamp);
                let too_early = forgotten.is_some_and(|age| is_lately(age, items));
                if too_early && self.has_room_for_ghosts(site) && self.grow(site, hash) {
                    continue;
                }
                let slice = site.slice_of(hash).expect("growth that fails changes nothing");
                let change = || slice.set_slot(tag, (bucket, slot), offset);
                slice.home_for(hash).version.write(change);
                return Ok(None);
            }
            if slice.make_room(tag, stamp) {
                continue;
            }
            let placed = slice.items().count();
            let helps = placed * SLOTS_PER_ITEM_MAX >= slice.buckets() * SLOTS;
            if !(helps && self.grow(site, hash)) {
                return Ok(Some(victim_of_window(site, hash)));
            }
        }
    }

    /// True if what ghosts take in the index is little beside what they do for the items.
    fn has_room_for_ghosts(&self, site: &Site) -> bool {
        self.blocks.bytes(site) * GHOSTS_PART < site.log_bytes()
    }

    /// Gives the slice of `hash` more blocks, or splits it; false if there is no memory for it, or no depth left.
    fn grow(&mut self, site: &mut Site, hash: u64) -> bool {
        let entry = site.entry(hash);
        let slice = site.slice_at(entry).expect("it is full");
        let (blocks, items) = (slice.blocks(), slice.all_items());
        (blocks + 1..=BLOCKS_MAX).any(|blocks| self.rebuild(site, entry, blocks, &items))
            || self.split_slice(site, hash)
    }

    /// Puts a slice's items into so many blocks, and the ghosts that have room. False if they do not fit, or there is
    /// no memory for it. Touches no item.
    fn rebuild(
        &mut self,
        site: &mut Site,
        entry: usize,
        blocks: usize,
        items: &[(u16, Offset)],
    ) -> bool {
        let Some(new) = self.blocks.take(site, blocks) else { return false };
        let (old, new_slice) = (site.slice_at(entry), new.slice(site.memory()));
        let (old, new_slice) = old.zip(new_slice).expect("both have blocks");
        if !new_slice.fill(items).is_empty() {
            self.blocks.give_back(site, &new);
            return false;
        }
        new_slice.inherit_ghosts(old);
        let run = site.dir().run(entry);
        self.replace(site, run, |_| &new);
        true
    }

    /// Splits the slice of `hash` in two; false if there is no memory for it or no depth left.
    pub fn split_slice(&mut self, site: &mut Site, hash: u64) -> bool {
        let alone = site.dir().run(site.entry(hash)).len() == 1;
        if alone && !self.may_double_dir(site) {
            return false;
        }
        // The next bit of the hash parts them, which is found in the items alone.
        let (dir, memory) = (site.dir(), site.memory());
        let mut run = dir.run(site.entry(hash));
        let old = site.slice_at(run.start).expect("it is to be split");
        old.offsets().for_each(|offset| prefetch(memory.at(offset)));
        let prefix_bits = site.front.root.prefix_bits();
        let (entry, mut depth) = (run.start, dir.depth());
        if alone {
            (run, depth) = (2 * run.start..2 * run.end, depth + 1);
        }
        let middle = run.start + run.len() / 2;
        let is_upper = |&(_, offset): &(u16, Offset)| {
            index(Item::at(memory, offset).hash(), prefix_bits, depth) >= middle
        };
        let (upper, lower): (Vec<_>, Vec<_>) = old.all_items().into_iter().partition(is_upper);
        let Some(low) = self.new_slice(site, entry, &lower) else { return false };
        let Some(high) = self.new_slice(site, entry, &upper) else {
            self.blocks.give_back(site, &low);
            return false;
        };
        if alone {
            self.double_dir(site);
        }
        self.replace(site, run, |entry| if entry < middle { &low } else { &high });
        true
    }

    /// A slice that nobody can see of these items of the one of `old`, in as many blocks as they need; where all that there may be
    /// do not suffice each has the place that it had. `None` if there is no memory for it.
    fn new_slice(&mut self, site: &mut Site, old: usize, items: &[(u16, Offset)]) -> Option<Entry> {
        let memory = site.memory();
        for blocks in items.len().div_ceil(ITEMS_PER_BLOCK).clamp(1, BLOCKS_MAX)..=BLOCKS_MAX {
            let entry = self.blocks.take(site, blocks)?;
            let slice = entry.slice(memory).expect("it has blocks");
            if slice.fill(items).is_empty() {
                return Some(entry);
            }
            self.blocks.give_back(site, &entry);
        }
        let blocks = site.slice_at(old).expect("it is to be split").blocks();
        let entry = self.blocks.take(site, blocks)?;
        let (old, slice) = (site.slice_at(old), entry.slice(memory));
        slice.expect("it has blocks").fill_like(old.expect("it is there still"), items);
        Some(entry)
    }

    /// Has these entries of the directory, of one slice, lead to what was made of it.
    fn replace<'e>(
        &mut self,
        site: &mut Site,
        run: Range<usize>,
        new: impl Fn(usize) -> &'e Entry,
    ) {
        let old = site.slice_at(run.start).expect("it was replaced by another");
        // Readers that are in the old blocks start again before they can find the new ones.
        old.retire();
        let ids: Vec<_> = old.ids().collect();
        for entry in run {
            site.dir().entries[entry].lead(new(entry));
        }
        self.blocks.retire(site, ids);
    }

    /// How deep the directory has to be for a slice of these hashes; `None` if it would take too much memory.
    pub fn depth_for(&self, site: &Site, low: u64, high: u64) -> Option<u32> {
        let zeros = low.trailing_zeros().min(high.wrapping_add(1).trailing_zeros());
        let depth = (64 - site.front.root.prefix_bits()).saturating_sub(zeros);
        let bytes = size_of::<Entry>().checked_shl(depth).filter(|_| depth < 24)?;
        (bytes <= site.shared.options.memory_bytes / DIR_PART).then_some(depth)
    }

    /// A slice of so many blocks for these hashes, where there is none. `None`, and nothing that is stored has changed, if there is one,
    /// or no memory.
    pub fn slice_for<'s>(
        &mut self,
        site: &'s mut Site,
        (low, high): (u64, u64),
        depth: u32,
        blocks: usize,
    ) -> Option<Slice<'s>> {
        while site.dir().depth() < depth {
            self.double_dir(site);
        }
        let (low, high) = (site.entry(low), site.entry(high));
        let is_empty = |entry: &Entry| entry.leads_like(&Entry::empty());
        if !site.dir().entries[low..=high].iter().all(is_empty) {
            return None;
        }
        let new = self.blocks.take(site, blocks.clamp(1, BLOCKS_MAX))?;
        site.dir().entries[low..=high].iter().for_each(|entry| entry.lead(&new));
        site.slice_at(low)
    }

    /// Sees to it that a slice begins at `hash`. `Some`: one that spans the place was given up for want of memory, and these were its
    /// items. Then it is to be asked again.
    pub fn part_at(&mut self, site: &mut Site, hash: u64) -> Option<Vec<Offset>> {
        loop {
            let entry = site.entry(hash);
            let begins = hash == 0 || site.entry(hash - 1) != entry;
            let has_slice = site.slice_at(entry).is_some();
            // Only a slice's run is short: without one it may be most of the directory.
            if begins && (!has_slice || site.dir().run(entry).start == entry) {
                return None;
            }
            let run = if has_slice { site.dir().run(entry) } else { entry..entry + 1 };
            // What is asked for may be finer than the few items of an index need.
            if run.len() == 1 {
                self.double_dir(site);
            } else if !self.split_slice(site, hash) {
                // No memory for its halves.
                if run.start != entry {
                    return Some(self.take_slice(site, entry, &Entry::empty()));
                }
                self.double_dir(site);
            }
        }
    }

    /// The directory is no larger than the blocks that it leads to.
    fn may_double_dir(&self, site: &Site) -> bool {
        let dir = site.dir();
        let bytes = 2 * size_of_val(&*dir.entries);
        dir.depth() < DEPTH_MAX && bytes <= self.blocks.bytes(site)
    }

    fn double_dir(&mut self, site: &mut Site) {
        let doubled = site.dir().doubled();
        self.replace_dir(site, doubled);
    }

    fn replace_dir(&mut self, site: &mut Site, dir: Box<Dir>) {
        let old = site.replace_dir(dir);
        let epochs = site.pages().pool.epochs();
        let stamp = epochs.stamp();
        self.old_dirs.retain(|(stamp, _)| !epochs.passed(*stamp));
        self.old_dirs.push((stamp, old));
    }

    /// Takes a slice (or an empty entry) out of the index; its items. Readers that are in it start again, and
    /// find `left` in the directory.
    pub fn take_slice(&mut self, site: &mut Site, entry: usize, left: &Entry) -> Vec<Offset> {
        let Some(old) = site.slice_at(entry) else {
            site.dir().entries[entry].lead(left);
            return Vec::new();
        };
        let items = old.offsets().collect();
        let run = site.dir().run(entry);
        self.replace(site, run, |_| left);
        items
    }

    /// Forgets every item at once, whatever their number: O(pages of the index), which are what is returned.
    ///
    /// A reader that is already in the old index may still find what was there when it began.
    pub fn drop_all(&mut self, site: &mut Site) -> VecDeque<(u64, PageId)> {
        let emptied = site.dir().emptied();
        self.drop_for(site, emptied)
    }

    /// [`Index::drop_all`] of a cachelet that has gone: what its splits have left is forgotten too.
    pub fn vacate(&mut self, site: &mut Site) -> VecDeque<(u64, PageId)> {
        self.drop_for(site, Dir::empty())
    }

    fn drop_for(&mut self, site: &mut Site, emptied: Box<Dir>) -> VecDeque<(u64, PageId)> {
        self.replace_dir(site, emptied);
        self.shedding = Shedding::default();
        self.blocks.drop_all()
    }

    /// A step on the way of an index that has grown sparse to one that is not, with each part of a page that is cleaned: a slice moves
    /// together, and a page without blocks is given back. O(slots of a slice).
    pub fn shed(&mut self, site: &mut Site, items: u64) {
        let pages = self.blocks.pages();
        let is_sparse = self.blocks.slots(site) > items as usize * SPARSE_SLOTS_PER_ITEM;
        let is_large = pages * site.pages().bytes * GHOSTS_PART * 2 > site.log_bytes() * 3;
        if pages < 2 || !is_sparse || !is_large {
            return;
        }
        self.blocks.reap(site);
        self.blocks.give_back_page(site);
        if self.shedding.next >= site.dir().entries.len() {
            self.shedding = Shedding { next: 0, above: self.blocks.above_need(site) };
        }
        let entry = self.shedding.next;
        self.shedding.next = site.dir().run(entry).end;
        self.shed_slice(site, entry);
    }

    fn shed_slice(&mut self, site: &mut Site, entry: usize) {
        // What is being exported keeps its places.
        if site.front.away.leaves() {
            return;
        }
        let Some(slice) = site.slice_at(entry) else { return };
        let items = slice.all_items();
        let worth = BLOCK_BUCKETS * SLOTS * WORTH_PERCENT / 100;
        let enough = items.len().div_ceil(worth).clamp(1, slice.blocks());
        let is_above = slice.ids().any(|id| id >= self.shedding.above);
        if enough < slice.blocks() || is_above {
            self.rebuild(site, entry, enough, &items);
        }
    }
}

/// Within three evictions of unread items to four items that there are? With as many as there are, a memory of
/// two items in each of 32 cachelets hits a point less (decision 0005).
fn is_lately(ghosts: u32, items: u64) -> bool {
    u64::from(ghosts) * 4 <= items * 3
}

/// Of the items in the window of `hash`, which is full, the one to evict.
fn victim_of_window(site: &Site, hash: u64) -> Offset {
    let slice = site.slice_of(hash).expect("its window is full");
    slice
        .neighbours(hash)
        .min_by_key(|&offset| site.item(offset).access() & 0x0300_0000)
        .expect("a full window has items")
}
