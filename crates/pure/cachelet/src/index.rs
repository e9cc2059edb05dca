//! A cachelet's index: a directory by the highest bits of the hash, pointing to slices, each a block
//! of 64 buckets. A slice that is full is split in two, alone (extendible hashing), so that growth
//! never makes one long pause.

use mbal_model::Key;

use crate::bucket::{BLOCK_BUCKETS, BLOCK_BYTES, Block, Bucket, SLOTS, WINDOW, home_of, tag_of};
use crate::cachelet::Locked;
use crate::item::Item;
use crate::memory::{Memory, Offset, prefetch};
use crate::shim::{AtomicU32, Ordering::*};
use crate::types::Full;

/// Position of a block in the memory, in blocks; 0 is none.
pub type BlockId = u32;

/// A slice that has moved to the cachelet's child.
pub const MOVED: BlockId = BlockId::MAX;

/// 2^20 slices of 640 slots for one cachelet. Whoever makes keys collide beyond that evicts its own.
const DEPTH_MAX: u32 = 20;

/// Splitting a slice that is less full than this would not help: its keys collide.
const SPLIT_FILL_MIN: usize = BLOCK_BUCKETS * SLOTS / 4;

pub struct Dir {
    depth: u32,
    pub entries: Box<[AtomicU32]>,
}

impl Dir {
    pub fn empty() -> Box<Dir> {
        Box::new(Dir { depth: 0, entries: Box::new([AtomicU32::new(0)]) })
    }

    /// Index of the entry for `hash`, whose first `prefix_bits` chose the cachelet.
    #[inline(always)]
    pub fn index(&self, hash: u64, prefix_bits: u32) -> usize {
        // Two shifts: a shift by 64 has no meaning.
        ((hash << prefix_bits) >> 1 >> (63 - self.depth)) as usize
    }

    pub fn depth(&self) -> u32 {
        self.depth
    }

    fn doubled(&self) -> Box<Dir> {
        let twice = self.entries.iter().map(|entry| entry.load(Relaxed)).flat_map(|id| [id, id]);
        Box::new(Dir { depth: self.depth + 1, entries: twice.map(AtomicU32::new).collect() })
    }

    /// No slice is left; what has moved to another cachelet is still there.
    fn emptied(&self) -> Box<Dir> {
        let has_moved = |entry: &AtomicU32| entry.load(Relaxed) == MOVED;
        if !self.entries.iter().any(has_moved) {
            return Dir::empty();
        }
        let left = |entry| AtomicU32::new(if has_moved(entry) { MOVED } else { 0 });
        Box::new(Dir { depth: self.depth, entries: self.entries.iter().map(left).collect() })
    }

    /// The run of entries that share the slice of entry `index`.
    pub fn run(&self, index: usize) -> std::ops::Range<usize> {
        let block = self.entries[index].load(Relaxed);
        let same = |i: &usize| self.entries[*i].load(Relaxed) == block;
        let start = (0..index).rev().take_while(same).last().unwrap_or(index);
        let end = (index + 1..self.entries.len()).take_while(same).last().unwrap_or(index) + 1;
        start..end
    }
}

#[inline(always)]
pub fn block(memory: &Memory, id: BlockId) -> &Block {
    // SAFETY: block ids name 64-aligned blocks of index pages, zeroed before they were published,
    // which epochs keep from reuse as anything else.
    unsafe { &*(memory.byte(id as usize * BLOCK_BYTES) as *const Block) }
}

/// Where an item is: its bucket's place in the block, the slot, and the item.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub bucket: u8,
    pub slot: u8,
    pub offset: Offset,
}

/// Looks for `key` in its home bucket, and in the next ones if the home bucket says that some of its
/// items lie there. At most [`WINDOW`] cache lines and one per matching tag.
#[inline(always)]
pub fn look_up(memory: &Memory, block: &Block, key: &Key) -> Option<Place> {
    let accept = |offset| same(Item::at(memory, offset).key(), key.bytes());
    search(block, key.hash(), accept)
}

/// Equality of keys, inline: they are too short for a call to be worth it.
#[inline(always)]
fn same(a: &[u8], b: &[u8]) -> bool {
    let len = b.len();
    if a.len() != len {
        return false;
    }
    let word =
        |text: &[u8], at: usize| u64::from_le_bytes(*text[at..].first_chunk().expect("8 bytes"));
    let half =
        |text: &[u8], at: usize| u32::from_le_bytes(*text[at..].first_chunk().expect("4 bytes"));
    if len >= 8 {
        let mut at = 0;
        while at + 8 < len {
            if word(a, at) != word(b, at) {
                return false;
            }
            at += 8;
        }
        return word(a, len - 8) == word(b, len - 8);
    }
    match len {
        4.. => half(a, 0) == half(b, 0) && half(a, len - 4) == half(b, len - 4),
        _ => a == b,
    }
}

#[inline(always)]
fn search(block: &Block, hash: u64, accept: impl Fn(Offset) -> bool) -> Option<Place> {
    let home = home_of(hash);
    if let Some((slot, offset)) = block[home].find(tag_of(hash), &accept) {
        return Some(Place { bucket: home as u8, slot: slot as u8, offset });
    }
    if block[home].version.count() == 0 {
        return None;
    }
    search_beyond(block, hash, accept)
}

/// The search of an item that may lie in one of the buckets behind its home. Few do: apart, so that it is not in the
/// way of the others.
#[cold]
#[inline(never)]
fn search_beyond(block: &Block, hash: u64, accept: impl Fn(Offset) -> bool) -> Option<Place> {
    (1..WINDOW).find_map(|step| {
        let bucket = (home_of(hash) + step) % BLOCK_BUCKETS;
        let (slot, offset) = block[bucket].find(tag_of(hash), &accept)?;
        Some(Place { bucket: bucket as u8, slot: slot as u8, offset })
    })
}

pub fn hash_of(memory: &Memory, offset: Offset) -> u64 {
    let item = Item::at(memory, offset);
    Key::new(item.key()).expect("a stored key has a valid length").hash()
}

/// Items of a block, as (bucket, slot).
pub fn occupied(block: &Block) -> impl Iterator<Item = (usize, usize)> + '_ {
    let slots = (0..BLOCK_BUCKETS).flat_map(|bucket| (0..SLOTS).map(move |slot| (bucket, slot)));
    slots.filter(|&(bucket, slot)| block[bucket].offset(slot) != 0)
}

/// Puts an item into a block that nobody can see; false if its window is full.
fn place_unseen(block: &Block, hash: u64, offset: Offset) -> bool {
    let Some((bucket, slot)) = free_place(block, home_of(hash), 0) else { return false };
    set_slot(block, hash, bucket, slot, offset);
    true
}

fn free_place(block: &Block, home: usize, stamp: u32) -> Option<(usize, usize)> {
    (0..WINDOW).find_map(|step| {
        let bucket = (home + step) % BLOCK_BUCKETS;
        Some((bucket, block[bucket].free_slot(stamp)?))
    })
}

/// Fills or (offset 0) empties a slot and keeps the home bucket's count of items elsewhere.
fn set_slot(block: &Block, hash: u64, bucket: usize, slot: usize, offset: Offset) {
    let home: &Bucket = &block[home_of(hash)];
    if bucket != home_of(hash) {
        let before = block[bucket].offset(slot) != 0;
        match (before, offset != 0) {
            (false, true) => home.version.set_count(home.version.count() + 1),
            (true, false) => home.version.set_count(home.version.count() - 1),
            _ => {}
        }
    }
    block[bucket].set(slot, tag_of(hash), offset);
}

impl Locked<'_> {
    pub(crate) fn dir(&self) -> &Dir {
        // SAFETY: the directory is replaced under this lock only, and freed after its epoch.
        unsafe { &*self.cachelet.dir.load(Acquire) }
    }

    /// The block of the slice that `hash` falls into, if there is one.
    pub(crate) fn block_of(&self, hash: u64) -> Option<&Block> {
        let dir = self.dir();
        let id =
            dir.entries[dir.index(hash, self.cachelet.prefix_bits.load(Relaxed))].load(Relaxed);
        debug_assert_ne!(id, MOVED, "lock() follows the slice to the child");
        (id != 0).then(|| block(&self.store.memory, id))
    }

    pub(crate) fn place_of(&self, key: &Key) -> Option<Place> {
        look_up(&self.store.memory, self.block_of(key.hash())?, key)
    }

    /// The place of the record at `offset`, whose key has `hash`.
    pub(crate) fn place_at(&self, hash: u64, offset: Offset) -> Option<Place> {
        search(self.block_of(hash)?, hash, |candidate| candidate == offset)
    }

    /// The chained item with this hash that `accept` knows as its own.
    pub(crate) fn place_where(&self, hash: u64, accept: impl Fn(Item) -> bool) -> Option<Place> {
        let accept = |offset| accept(Item::at(&self.store.memory, offset));
        search(self.block_of(hash)?, hash, accept)
    }

    /// Runs `change` while readers of the keys with this home bucket are told to try again.
    pub(crate) fn change<R>(&self, hash: u64, change: impl FnOnce() -> R) -> R {
        let block = self.block_of(hash).expect("its item was found in it");
        block[home_of(hash)].version.write(change)
    }

    /// Has the key of `hash` been evicted lately, unread: within as many such evictions as there are
    /// items?
    pub(crate) fn is_ghost(&self, hash: u64) -> bool {
        let Some(block) = self.block_of(hash) else { return false };
        let ghost = block[home_of(hash)].ghost(tag_of(hash), self.inner.ghosts);
        ghost.is_some_and(|(age, _)| u64::from(age) <= self.inner.stats.items)
    }

    /// Leaves a ghost in a place that has just been emptied; only a home bucket is asked for it.
    pub(crate) fn haunt(&mut self, hash: u64, place: Place) {
        if usize::from(place.bucket) == home_of(hash) {
            self.inner.ghosts = self.inner.ghosts.wrapping_add(1);
            let block = self.block_of(hash).expect("the place lies in it");
            block[home_of(hash)].haunt(usize::from(place.slot), self.inner.ghosts);
        }
    }

    /// Points an existing place to another record of the same key, or to none (0).
    pub(crate) fn repoint(&mut self, hash: u64, place: Place, offset: Offset) {
        let block = self.block_of(hash).expect("the place lies in it");
        let home = &block[home_of(hash)];
        home.version.write(|| {
            set_slot(block, hash, usize::from(place.bucket), usize::from(place.slot), offset);
        });
    }

    /// Adds a key that has no place yet. Grows the slice where it must.
    pub(crate) fn insert(&mut self, hash: u64, offset: Offset) -> Result<(), Full> {
        loop {
            if self.block_of(hash).is_none() {
                let id = self.take_block().ok_or(Full::OutOfMemory)?;
                let dir = self.dir();
                let index = dir.index(hash, self.cachelet.prefix_bits.load(Relaxed));
                dir.run(index).for_each(|entry| dir.entries[entry].store(id, Release));
            }
            let block = self.block_of(hash).expect("made above");
            let home = &block[home_of(hash)];
            let stamp = self.inner.ghosts;
            let ghost = home.ghost(tag_of(hash), stamp).map(|(_, slot)| (home_of(hash), slot));
            if let Some((bucket, slot)) = ghost.or_else(|| free_place(block, home_of(hash), stamp))
            {
                home.version.write(|| set_slot(block, hash, bucket, slot, offset));
                return Ok(());
            }
            let worth_it = occupied(block).count() >= SPLIT_FILL_MIN;
            if !(worth_it && self.split_slice(hash)) {
                self.evict_from_window(hash);
            }
        }
    }

    /// Splits the slice of `hash` in two; false if there is no memory for it or no depth left.
    pub(crate) fn split_slice(&mut self, hash: u64) -> bool {
        let dir = self.dir();
        let index = dir.index(hash, self.cachelet.prefix_bits.load(Relaxed));
        let run = dir.run(index);
        if run.len() == 1 && dir.depth == DEPTH_MAX {
            return false;
        }
        let Some(low) = self.take_block() else { return false };
        let Some(high) = self.take_block() else {
            self.inner.free_blocks.push(low);
            return false;
        };
        if run.len() == 1 {
            self.double_dir();
        }
        let memory = &self.store.memory;
        let dir = self.dir();
        let run = dir.run(dir.index(hash, self.cachelet.prefix_bits.load(Relaxed)));
        let middle = run.start + run.len() / 2;
        let old_id = dir.entries[run.start].load(Relaxed);
        let old = block(memory, old_id);

        for (bucket, slot) in occupied(old) {
            prefetch(memory.at(old[bucket].offset(slot)));
        }
        let mut homeless = Vec::new();
        for (bucket, slot) in occupied(old) {
            let offset = old[bucket].offset(slot);
            let hash = hash_of(memory, offset);
            let upper = dir.index(hash, self.cachelet.prefix_bits.load(Relaxed)) >= middle;
            if !place_unseen(block(memory, if upper { high } else { low }), hash, offset) {
                homeless.push(offset);
            }
        }
        // Readers that are in the old block start again before they can find the new ones.
        old.iter().for_each(|bucket| bucket.version.retire());
        for entry in run {
            dir.entries[entry].store(if entry < middle { low } else { high }, Release);
        }
        for offset in homeless {
            self.inner.stats.evictions += 1;
            self.inner.stats.items -= 1;
            self.kill_record(offset);
        }
        self.retire_block(old_id);
        true
    }

    pub(crate) fn double_dir(&mut self) {
        let doubled = Box::into_raw(self.dir().doubled());
        let old = self.cachelet.dir.swap(doubled, AcqRel);
        self.retire_dir(old);
    }

    /// Makes room in the window of `hash` by evicting one of its items.
    fn evict_from_window(&mut self, hash: u64) {
        let block = self.block_of(hash).expect("its window is full");
        let memory = &self.store.memory;
        let window = (0..WINDOW * SLOTS).map(|i| (home_of(hash) + i / SLOTS, i % SLOTS));
        let offsets = window.map(|(bucket, slot)| block[bucket % BLOCK_BUCKETS].offset(slot));
        let victim = offsets
            .min_by_key(|&offset| Item::at(memory, offset).access() & 0x0300_0000)
            .expect("a window has slots");
        self.evict(hash_of(memory, victim), victim);
    }

    /// A zeroed block that nobody points to.
    fn take_block(&mut self) -> Option<BlockId> {
        while let Some(&(stamp, id)) = self.inner.block_limbo.front() {
            if !self.store.epochs.passed(stamp) {
                break;
            }
            self.inner.block_limbo.pop_front();
            self.inner.free_blocks.push(id);
        }
        if self.inner.free_blocks.is_empty() {
            let page = self.take_page()?;
            self.inner.index_pages.push(page);
            let per_page = (self.store.page_bytes / BLOCK_BYTES) as u32;
            self.inner.free_blocks.extend((page * per_page..(page + 1) * per_page).rev());
        }
        let id = self.inner.free_blocks.pop()?;
        // SAFETY: the block is this cachelet's and unpublished.
        unsafe { self.store.memory.byte(id as usize * BLOCK_BYTES).write_bytes(0, BLOCK_BYTES) }
        Some(id)
    }

    pub(crate) fn retire_block(&mut self, id: BlockId) {
        let stamp = self.store.epochs.stamp();
        self.inner.block_limbo.push_back((stamp, id));
    }

    fn retire_dir(&mut self, old: *mut Dir) {
        let stamp = self.store.epochs.stamp();
        // SAFETY: it came from Box::into_raw and has just been taken out of the cachelet.
        let old = unsafe { Box::from_raw(old) };
        let epochs = &self.store.epochs;
        self.inner.old_dirs.retain(|(stamp, _)| !epochs.passed(*stamp));
        self.inner.old_dirs.push((stamp, old));
    }

    /// Takes a slice (or an empty entry) out of the index; its items' places. Readers that are in it start again, and
    /// find `left` in the directory.
    pub(crate) fn take_slice(&mut self, entry: usize, left: BlockId) -> Vec<(u64, Offset)> {
        let memory = &self.store.memory;
        let dir = self.dir();
        let id = dir.entries[entry].load(Relaxed);
        let mut items = Vec::new();
        if id != 0 {
            let old = block(memory, id);
            let offsets = occupied(old).map(|(bucket, slot)| old[bucket].offset(slot));
            items.extend(offsets.map(|offset| (hash_of(memory, offset), offset)));
            old.iter().for_each(|bucket| bucket.version.retire());
        }
        if id == 0 {
            dir.entries[entry].store(left, Release);
        } else {
            dir.run(entry).for_each(|entry| dir.entries[entry].store(left, Release));
            self.retire_block(id);
        }
        items
    }

    /// Forgets every item at once, whatever their number: O(pages of the index).
    ///
    /// A reader that is already in the old index may still find what was there when it began.
    pub(crate) fn drop_index(&mut self) {
        let emptied = Box::into_raw(self.dir().emptied());
        let old = self.cachelet.dir.swap(emptied, AcqRel);
        self.retire_dir(old);
        self.inner.free_blocks.clear();
        self.inner.block_limbo.clear();
        let pages = std::mem::take(&mut self.inner.index_pages).into_iter();
        self.drop_pages(pages.map(|id| (0, id)).collect());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::same;

    #[test]
    fn keys_are_the_same_if_all_their_bytes_are() {
        let text: Vec<u8> = (0..40).collect();
        for len in 0..40 {
            let copy = text[..len].to_vec();
            assert!(same(&text[..len], &copy));
            assert!(!same(&text[..len], &text[..len + 1]));
            for at in 0..len {
                let mut other = text[..len].to_vec();
                other[at] ^= 1;
                assert!(!same(&text[..len], &other), "byte {at} of {len}");
            }
        }
    }
}
