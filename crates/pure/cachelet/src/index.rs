//! A cachelet's index: a directory by the highest bits of the hash, an entry a slice (see `slice`). A
//! slice that is full grows or is split in two, alone (extendible hashing), so that growth never makes
//! one long pause.

use std::ops::Range;

use crate::bucket::{SLOTS, tag_of};
use crate::entry::{BLOCKS_MAX, Entry};
use crate::item::Item;
use crate::locked::Locked;
use crate::memory::{Memory, Offset, prefetch};
use crate::shim::Ordering::*;
use crate::slice::{Place, Slice};
use crate::types::Full;

use mbal_model::{Key, Prefix};

/// 2^20 slices of up to 1,280 slots for one cachelet. Whoever makes keys collide beyond that evicts its own.
const DEPTH_MAX: u32 = 20;

/// A slice that has more slots than so many per item would not be helped by more: its keys collide.
const SLOTS_PER_ITEM_MAX: usize = 4;

/// So many items of a new slice may just find their places in its blocks, of 80 slots each; else it gets one more.
const ITEMS_PER_BLOCK: usize = 74;

/// A directory that grows for what comes from another cachelet takes no more than one of so many parts of the memory.
const DIR_PART: usize = 256;

pub struct Dir {
    depth: u32,
    pub entries: Box<[Entry]>,
}

impl Dir {
    pub fn empty() -> Box<Dir> {
        Box::new(Dir { depth: 0, entries: Box::new([Entry::empty()]) })
    }

    /// Index of the entry for `hash`, whose first `prefix_bits` chose the cachelet.
    #[inline(always)]
    pub fn index(&self, hash: u64, prefix_bits: u32) -> usize {
        index(hash, prefix_bits, self.depth)
    }

    pub fn depth(&self) -> u32 {
        self.depth
    }

    fn doubled(&self) -> Box<Dir> {
        let twice = self.entries.iter().flat_map(|entry| [entry.copy(), entry.copy()]);
        Box::new(Dir { depth: self.depth + 1, entries: twice.collect() })
    }

    /// No slice is left; what has moved to another cachelet is still there.
    fn emptied(&self) -> Box<Dir> {
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

#[inline(always)]
fn index(hash: u64, prefix_bits: u32, depth: u32) -> usize {
    // Two shifts: a shift by 64 has no meaning.
    ((hash << prefix_bits) >> 1 >> (63 - depth)) as usize
}

pub fn hash_of(memory: &Memory, offset: Offset) -> u64 {
    let item = Item::at(memory, offset);
    Key::new(item.key()).expect("a stored key has a valid length").hash()
}

impl Locked<'_> {
    #[inline]
    pub(crate) fn dir(&self) -> &Dir {
        // SAFETY: the directory is replaced under this lock only, and freed after its epoch.
        unsafe { &*self.cachelet.dir.load(Acquire) }
    }

    /// Index of the directory's entry for `hash`.
    #[inline]
    pub(crate) fn entry(&self, hash: u64) -> usize {
        self.dir().index(hash, self.cachelet.prefix_bits.load(Relaxed))
    }

    #[inline]
    pub(crate) fn slice_at(&self, entry: usize) -> Option<Slice<'_>> {
        self.dir().entries[entry].slice(&self.store.memory)
    }

    /// The slice that `hash` falls into, if there is one.
    #[inline]
    pub(crate) fn slice_of(&self, hash: u64) -> Option<Slice<'_>> {
        let entry = self.entry(hash);
        debug_assert!(!self.dir().entries[entry].has_moved(), "lock() follows it to the child");
        self.slice_at(entry)
    }

    /// The key's item's place, if it has one.
    pub(crate) fn place_of(&self, key: &Key) -> Option<Place> {
        let slice = self.slice_of(key.hash())?;
        let accept = |offset| Item::at(&self.store.memory, offset).has_key(key.bytes());
        slice.search(slice.home_for(key.hash()), key.hash(), accept)
    }

    /// The place of the record at `offset`, whose key has `hash`.
    pub(crate) fn place_at(&self, hash: u64, offset: Offset) -> Option<Place> {
        let slice = self.slice_of(hash)?;
        slice.search(slice.home_for(hash), hash, |candidate| candidate == offset)
    }

    /// The chained item with this hash that `accept` knows as its own.
    pub(crate) fn place_where(&self, hash: u64, accept: impl Fn(Item) -> bool) -> Option<Place> {
        let accept = |offset| accept(Item::at(&self.store.memory, offset));
        let slice = self.slice_of(hash)?;
        slice.search(slice.home_for(hash), hash, accept)
    }

    /// Runs `change` while readers of the keys with this home bucket are told to try again.
    #[inline]
    pub(crate) fn change<R>(&self, hash: u64, change: impl FnOnce() -> R) -> R {
        let slice = self.slice_of(hash).expect("its item was found in it");
        slice.home_for(hash).version.write(change)
    }

    /// Has the key of `hash` been evicted lately, unread?
    pub(crate) fn is_ghost(&self, hash: u64) -> bool {
        let Some(slice) = self.slice_of(hash) else { return false };
        let ghost = slice.home_for(hash).ghost(tag_of(hash), self.inner.ghosts);
        ghost.is_some_and(|(age, _)| self.is_lately(age))
    }

    /// Within three evictions of unread items to four items that there are? With as many as there are, a memory of
    /// two items in each of 32 cachelets hits a point less (decision 0005).
    fn is_lately(&self, ghosts: u32) -> bool {
        u64::from(ghosts) * 4 <= self.inner.stats.items * 3
    }

    /// Leaves a ghost in a place that has just been emptied; only a home bucket is asked for it.
    pub(crate) fn haunt(&mut self, hash: u64, place: Place) {
        let slice = self.slice_of(hash).expect("the place lies in it");
        let home = slice.home_for(hash);
        if std::ptr::eq(slice.at(place.bucket.into()), home) {
            let stamp = self.inner.ghosts.wrapping_add(1);
            home.haunt(place.slot.into(), stamp);
            self.inner.ghosts = stamp;
        }
    }

    /// Points an existing place to another record of the same key, or to none (0).
    pub(crate) fn repoint(&mut self, hash: u64, place: Place, offset: Offset) {
        let slice = self.slice_of(hash).expect("the place lies in it");
        let place = (place.bucket.into(), place.slot.into());
        let change = || slice.set_slot(tag_of(hash), place, offset);
        slice.home_for(hash).version.write(change);
    }

    /// Adds a key that has no place yet. Grows the slice where it must.
    pub(crate) fn insert(&mut self, hash: u64, offset: Offset) -> Result<(), Full> {
        loop {
            let Some(slice) = self.slice_of(hash) else {
                let new = self.take_slice_of(1).ok_or(Full::OutOfMemory)?;
                let dir = self.dir();
                dir.run(self.entry(hash)).for_each(|entry| dir.entries[entry].lead(&new));
                continue;
            };
            let (tag, stamp) = (tag_of(hash), self.inner.ghosts);
            if let Some((bucket, slot)) = slice.place_for(tag, stamp) {
                let forgotten = slice.at(bucket).forgets(slot, tag, stamp);
                let too_early = forgotten.is_some_and(|age| self.is_lately(age));
                if too_early && self.has_room_for_ghosts() && self.grow(hash) {
                    continue;
                }
                let slice = self.slice_of(hash).expect("growth that fails changes nothing");
                let change = || slice.set_slot(tag, (bucket, slot), offset);
                slice.home_for(hash).version.write(change);
                return Ok(());
            }
            if slice.make_room(tag, stamp) {
                continue;
            }
            let items = slice.items().count();
            let helps = items * SLOTS_PER_ITEM_MAX >= slice.buckets() * SLOTS;
            if !(helps && self.grow(hash)) {
                self.evict_from_window(hash);
            }
        }
    }

    /// Gives the slice of `hash` more blocks, or splits it; false if there is no memory for it, or no depth left.
    fn grow(&mut self, hash: u64) -> bool {
        let entry = self.entry(hash);
        let slice = self.slice_at(entry).expect("it is full");
        let (blocks, items) = (slice.blocks(), slice.all_items());
        (blocks + 1..=BLOCKS_MAX).any(|blocks| self.rebuild(entry, blocks, &items))
            || self.split_slice(hash)
    }

    /// Puts a slice's items into so many blocks, and the ghosts that have room. False if they do not fit, or there is
    /// no memory for it. Touches no item.
    pub(crate) fn rebuild(&mut self, entry: usize, blocks: usize, items: &[(u16, Offset)]) -> bool {
        let Some(new) = self.take_slice_of(blocks) else { return false };
        let memory = &self.store.memory;
        let (old, new_slice) = (self.slice_at(entry), new.slice(memory));
        let (old, new_slice) = old.zip(new_slice).expect("both have blocks");
        if !new_slice.fill(items).is_empty() {
            self.give_back_slice(&new);
            return false;
        }
        new_slice.inherit_ghosts(old);
        let run = self.dir().run(entry);
        self.replace(run, |_| &new);
        true
    }

    /// Splits the slice of `hash` in two; false if there is no memory for it or no depth left.
    pub(crate) fn split_slice(&mut self, hash: u64) -> bool {
        let alone = self.dir().run(self.entry(hash)).len() == 1;
        if alone && !self.may_double_dir() {
            return false;
        }
        // The next bit of the hash parts them, which is found in the items alone.
        let (dir, memory) = (self.dir(), &self.store.memory);
        let mut run = dir.run(self.entry(hash));
        let old = self.slice_at(run.start).expect("it is to be split");
        old.offsets().for_each(|offset| prefetch(memory.at(offset)));
        let prefix_bits = self.cachelet.prefix_bits.load(Relaxed);
        let (entry, mut depth) = (run.start, dir.depth);
        if alone {
            (run, depth) = (2 * run.start..2 * run.end, depth + 1);
        }
        let middle = run.start + run.len() / 2;
        let is_upper = |&(_, offset): &(u16, Offset)| {
            index(hash_of(memory, offset), prefix_bits, depth) >= middle
        };
        let (upper, lower): (Vec<_>, Vec<_>) = old.all_items().into_iter().partition(is_upper);
        let Some(low) = self.new_slice(entry, &lower) else { return false };
        let Some(high) = self.new_slice(entry, &upper) else {
            self.give_back_slice(&low);
            return false;
        };
        if alone {
            self.double_dir();
        }
        self.replace(run, |entry| if entry < middle { &low } else { &high });
        true
    }

    /// A slice that nobody can see of these items of the one of `old`, in as many blocks as they need; where all that there may be
    /// do not suffice each has the place that it had. `None` if there is no memory for it.
    fn new_slice(&mut self, old: usize, items: &[(u16, Offset)]) -> Option<Entry> {
        for blocks in items.len().div_ceil(ITEMS_PER_BLOCK).clamp(1, BLOCKS_MAX)..=BLOCKS_MAX {
            let entry = self.take_slice_of(blocks)?;
            let slice = entry.slice(&self.store.memory).expect("it has blocks");
            if slice.fill(items).is_empty() {
                return Some(entry);
            }
            self.give_back_slice(&entry);
        }
        let memory = &self.store.memory;
        let blocks = self.slice_at(old).expect("it is to be split").blocks();
        let entry = self.take_slice_of(blocks)?;
        let (old, slice) = (self.slice_at(old), entry.slice(memory));
        slice.expect("it has blocks").fill_like(old.expect("it is there still"), items);
        Some(entry)
    }

    /// Has these entries of the directory, of one slice, lead to what was made of it.
    fn replace<'e>(&mut self, run: Range<usize>, new: impl Fn(usize) -> &'e Entry) {
        let old = self.slice_at(run.start).expect("it was replaced by another");
        // Readers that are in the old blocks start again before they can find the new ones.
        old.retire();
        let ids: Vec<_> = old.ids().collect();
        for entry in run {
            self.dir().entries[entry].lead(new(entry));
        }
        self.retire_blocks(ids);
    }

    /// The hashes that the directory stands for, by one of them.
    pub(crate) fn hashes_around(&self, hash: u64) -> (u64, u64) {
        let all = Prefix::of(hash, self.cachelet.prefix_bits.load(Relaxed));
        (all.first_hash(), all.last_hash())
    }

    /// Sees to it that the index has a slice of so many blocks for these hashes, where it has none. `None`, and nothing that is stored
    /// has changed, if it has one, or no memory. Slices come from another cachelet in the order of their hashes: without this all
    /// items would crowd into one, to be split again and again until the directory may not grow.
    pub(crate) fn make_way(&mut self, low: u64, high: u64, blocks: usize) -> Option<Slice<'_>> {
        let bits = self.cachelet.prefix_bits.load(Relaxed);
        let (_, last) = self.hashes_around(low);
        let zeros = low.trailing_zeros().min(high.wrapping_add(1).trailing_zeros());
        let depth = (64 - bits).saturating_sub(zeros);
        let dir_bytes = size_of::<Entry>().checked_shl(depth).filter(|_| depth < 24);
        if dir_bytes.is_none_or(|bytes| bytes > self.store.options().memory_bytes / DIR_PART) {
            return None;
        }
        self.part_at(low);
        if high < last {
            self.part_at(high + 1);
        }
        while self.dir().depth() < depth {
            self.double_dir();
        }
        let (low, high) = (self.entry(low), self.entry(high));
        let is_empty = |entry: &Entry| entry.leads_like(&Entry::empty());
        if !self.dir().entries[low..=high].iter().all(is_empty) {
            return None;
        }
        let new = self.take_slice_of(blocks.clamp(1, BLOCKS_MAX))?;
        self.dir().entries[low..=high].iter().for_each(|entry| entry.lead(&new));
        self.slice_at(low)
    }

    /// The directory is no larger than the blocks that it leads to.
    fn may_double_dir(&self) -> bool {
        let dir = self.dir();
        let bytes = 2 * size_of_val(&*dir.entries);
        dir.depth < DEPTH_MAX && bytes <= self.block_bytes()
    }

    pub(crate) fn double_dir(&mut self) {
        let doubled = Box::into_raw(self.dir().doubled());
        let old = self.cachelet.dir.swap(doubled, AcqRel);
        self.retire_dir(old);
    }

    /// Makes room in the window of `hash` by evicting one of its items.
    fn evict_from_window(&mut self, hash: u64) {
        let slice = self.slice_of(hash).expect("its window is full");
        let memory = &self.store.memory;
        let victim = slice
            .neighbours(hash)
            .min_by_key(|&offset| Item::at(memory, offset).access() & 0x0300_0000)
            .expect("a full window has items");
        self.evict(hash_of(memory, victim), victim);
    }

    fn retire_dir(&mut self, old: *mut Dir) {
        let stamp = self.store.epochs.stamp();
        // SAFETY: it came from Box::into_raw and has just been taken out of the cachelet.
        let old = unsafe { Box::from_raw(old) };
        let epochs = &self.store.epochs;
        self.inner.old_dirs.retain(|(stamp, _)| !epochs.passed(*stamp));
        self.inner.old_dirs.push((stamp, old));
    }

    /// Takes a slice (or an empty entry) out of the index; its items. Readers that are in it start again, and
    /// find `left` in the directory.
    pub(crate) fn take_slice(&mut self, entry: usize, left: &Entry) -> Vec<Offset> {
        let Some(old) = self.slice_at(entry) else {
            self.dir().entries[entry].lead(left);
            return Vec::new();
        };
        let items = old.offsets().collect();
        let run = self.dir().run(entry);
        self.replace(run, |_| left);
        items
    }

    /// Forgets every item at once, whatever their number: O(pages of the index).
    ///
    /// A reader that is already in the old index may still find what was there when it began.
    pub(crate) fn drop_index(&mut self) {
        self.drop_index_for(self.dir().emptied());
    }

    /// [`Locked::drop_index`] of a cachelet that has gone: what its splits have left is forgotten too.
    pub(crate) fn vacate_index(&mut self) {
        self.drop_index_for(Dir::empty());
    }

    fn drop_index_for(&mut self, emptied: Box<Dir>) {
        let emptied = Box::into_raw(emptied);
        let old = self.cachelet.dir.swap(emptied, AcqRel);
        self.retire_dir(old);
        self.drop_blocks();
    }
}
