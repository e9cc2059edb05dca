//! A slice: the keys of one entry of the directory, in up to 16 blocks of 8 buckets.
//!
//! ```text
//!   entry: 16 words, one cache line                        slice of 3 blocks: 24 buckets
//!   | id, 3 - 1 | id, 3 - 1 | id, 3 - 1 | stale | ... |    tag * 24 >> 16 is the home bucket
//!      28 bit, 4
//! ```
//!
//! It grows by a block when an item finds no place, so that the index is some 86% full however many items
//! there are (decision 0008), and splits in two when it has no more words: into as much memory as it had. Growth needs
//! nothing but the tags, and so touches no item.
//!
//! **Readers** take no lock. The first word tells the number of blocks, the home bucket's word must tell
//! the same. Whoever changes a slice retires every old bucket first, then stores the new words, the
//! first one last; so a reader who met words of two states sees two different numbers, or a retired
//! bucket, and starts again.

use crate::bucket::{BLOCK_BUCKETS, Block, Bucket, SLOTS, WINDOW, home_of, tag_of};
use crate::entry::{BLOCKS_MAX, Entry, MOVED, NUMBER_MASK};
use crate::memory::{BlockId, Memory, Offset};
use crate::shim::Ordering::*;

#[derive(Clone, Copy)]
pub struct Slice<'a> {
    memory: &'a Memory,
    entry: &'a Entry,
    /// Of blocks, less one.
    number: u32,
}

/// What a directory entry leads to.
pub enum Way<'a> {
    /// No key of it is stored.
    Nowhere,
    /// To the cachelet's child.
    Moved,
    Slice(Slice<'a>),
}

/// Where an item is: its bucket's place in the slice, the slot, and the item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub bucket: u8,
    pub slot: u8,
    pub offset: Offset,
}

impl Entry {
    #[inline(always)]
    pub fn way<'a>(&'a self, memory: &'a Memory) -> Way<'a> {
        match self.words[0].load(Acquire) {
            0 => Way::Nowhere,
            MOVED => Way::Moved,
            first => Way::Slice(Slice { memory, entry: self, number: first & NUMBER_MASK }),
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

impl<'a> Slice<'a> {
    #[inline(always)]
    pub fn blocks(&self) -> usize {
        self.number as usize + 1
    }

    #[inline(always)]
    pub fn buckets(&self) -> usize {
        self.blocks() * BLOCK_BUCKETS
    }

    #[inline(always)]
    fn home_of(&self, hash: u64) -> usize {
        home_of(tag_of(hash), self.buckets())
    }

    /// `None` if the slice is being changed.
    #[inline(always)]
    fn bucket(&self, at: usize) -> Option<&'a Bucket> {
        let word = self.entry.words[at / BLOCK_BUCKETS].load(Acquire);
        (word & NUMBER_MASK == self.number)
            .then(|| &block(self.memory, word >> 4)[at % BLOCK_BUCKETS])
    }

    /// The home bucket of the keys with this hash; `None` if the slice is being changed.
    #[inline(always)]
    pub fn home(&self, hash: u64) -> Option<&'a Bucket> {
        self.bucket(self.home_of(hash))
    }

    pub fn ids(&self) -> impl Iterator<Item = BlockId> + use<'a> {
        self.entry.words[..self.blocks()].iter().map(|word| word.load(Relaxed) >> 4)
    }

    /// The first item with this hash that `accept` knows: in its home bucket, or in the next ones if the home bucket says
    /// that some of its items lie there. At most [`WINDOW`] cache lines.
    #[inline]
    pub fn search(
        self,
        home: &Bucket,
        hash: u64,
        accept: impl Fn(Offset) -> bool,
    ) -> Option<Place> {
        if let Some((slot, offset)) = home.find(tag_of(hash), &accept) {
            return Some(Place { bucket: self.home_of(hash) as u8, slot: slot as u8, offset });
        }
        match home.version.reach() {
            0 => None,
            reach => self.search_beyond(hash, reach, accept),
        }
    }

    /// The search of an item that may lie in one of the buckets behind its home.
    #[inline]
    pub fn search_beyond(
        self,
        hash: u64,
        reach: usize,
        accept: impl Fn(Offset) -> bool,
    ) -> Option<Place> {
        let (home, buckets) = (self.home_of(hash), self.buckets());
        // A plain loop, which is not left to how much the compiler inlines: many keys come here.
        for step in 1..=reach.min(WINDOW.min(buckets) - 1) {
            let bucket = wrapped(home + step, buckets);
            // Where the slice is being changed the home bucket has been retired, and what is found is not asked for.
            let found = self.bucket(bucket).and_then(|bucket| bucket.find(tag_of(hash), &accept));
            if let Some((slot, offset)) = found {
                return Some(Place { bucket: bucket as u8, slot: slot as u8, offset });
            }
        }
        None
    }

    /// The buckets that items with this home may lie in.
    fn window(&self, home: usize) -> impl Iterator<Item = usize> + use<> {
        window(home, self.buckets())
    }
}

/// What only the holder of the writer lock may ask, or who made the slice and has not shown it yet.
impl<'a> Slice<'a> {
    #[inline]
    pub fn at(&self, bucket: usize) -> &'a Bucket {
        self.bucket(bucket).expect("nobody else changes it")
    }

    #[inline]
    pub fn home_for(&self, hash: u64) -> &'a Bucket {
        self.at(self.home_of(hash))
    }

    /// Its items, with their tags.
    pub fn items(self) -> impl Iterator<Item = (u16, Offset)> + use<'a> {
        let items = move |bucket| self.at(bucket).items().map(|(_, tag, offset)| (tag, offset));
        (0..self.buckets()).flat_map(items)
    }

    /// Its items from a slot on, each with its slot: they keep these as long as nothing is inserted.
    pub fn items_from(self, slot: usize) -> impl Iterator<Item = (usize, Offset)> + use<'a> {
        let items = move |bucket| {
            let of_bucket = self.at(bucket).items();
            of_bucket.map(move |(slot, _, offset)| (bucket * SLOTS + slot, offset))
        };
        (slot / SLOTS..self.buckets()).flat_map(items).filter(move |(at, _)| *at >= slot)
    }

    /// Empties a slot whose item nobody looks for any more.
    pub fn clear(&self, slot: usize) {
        self.at(slot / SLOTS).set(slot % SLOTS, 0, 0);
    }

    pub fn all_items(self) -> Vec<(u16, Offset)> {
        let mut all = Vec::with_capacity(self.buckets() * SLOTS);
        self.items().for_each(|item| all.push(item));
        all
    }

    pub fn offsets(self) -> impl Iterator<Item = Offset> + use<'a> {
        self.items().map(|(_, offset)| offset)
    }

    /// The items that may lie where one with this hash would.
    pub fn neighbours(&self, hash: u64) -> impl Iterator<Item = Offset> {
        let items = |bucket| self.at(bucket).items().map(|(_, _, offset)| offset);
        self.window(self.home_of(hash)).flat_map(items)
    }

    fn free_place(&self, tag: u16, stamp: u32) -> Option<(usize, usize)> {
        self.window(home_of(tag, self.buckets()))
            .find_map(|bucket| Some((bucket, self.at(bucket).free_slot(stamp)?)))
    }

    /// A place for an item with this tag: that of its own ghost, if it has one.
    pub fn place_for(&self, tag: u16, stamp: u32) -> Option<(usize, usize)> {
        let home = home_of(tag, self.buckets());
        let ghost = self.at(home).ghost(tag, stamp).map(|(_, slot)| (home, slot));
        ghost.or_else(|| self.free_place(tag, stamp))
    }

    /// Frees a slot in the full window of this tag: one of its items moves on, behind the window, to where it may lie
    /// too. False if none can. Readers of that item start again.
    pub fn make_room(&self, tag: u16, stamp: u32) -> bool {
        let (home, buckets) = (home_of(tag, self.buckets()), self.buckets());
        let mut behind = (WINDOW..buckets.min(2 * WINDOW - 1)).map(|step| (home + step) % buckets);
        let free = behind.find_map(|bucket| Some((bucket, self.at(bucket).free_slot(stamp)?)));
        let Some(free) = free else { return false };
        let may_move = |tag| (free.0 + buckets - home_of(tag, buckets)) % buckets < WINDOW;
        let places = self.window(home).flat_map(|bucket| {
            self.at(bucket).items().map(move |(slot, tag, offset)| (tag, (bucket, slot), offset))
        });
        let Some((tag, place, offset)) = places.into_iter().find(|(tag, ..)| may_move(*tag)) else {
            return false;
        };
        self.at(home_of(tag, buckets)).version.write(|| {
            self.set_slot(tag, free, offset);
            self.set_slot(tag, place, 0);
        });
        true
    }

    /// Fills or (offset 0) empties a slot, and keeps its home bucket's reach.
    pub fn set_slot(&self, tag: u16, (bucket, slot): (usize, usize), offset: Offset) {
        self.at(bucket).set(slot, tag, offset);
        let home = home_of(tag, self.buckets());
        if bucket != home {
            self.keep_reach(home, bucket, offset);
        }
    }

    #[cold]
    fn keep_reach(&self, home: usize, bucket: usize, offset: Offset) {
        let version = &self.at(home).version;
        let step = (bucket + self.buckets() - home) % self.buckets();
        if offset != 0 {
            version.set_reach(version.reach().max(step));
        } else if step == version.reach() {
            let is_ours = |(_, tag, _)| home_of(tag, self.buckets()) == home;
            let has_ours = |bucket: &usize| self.at(*bucket).items().any(is_ours);
            let steps = self.window(home).take(step + 1).enumerate().skip(1);
            let reach = steps.filter(|(_, bucket)| has_ours(bucket)).map(|(step, _)| step).last();
            version.set_reach(reach.unwrap_or(0));
        }
    }

    /// Fills a slice that nobody can see; the items that found no place.
    pub fn fill(&self, items: &[(u16, Offset)]) -> Vec<Offset> {
        let (mut used, mut homeless) = (Used::new(self.blocks()), Vec::new());
        for &(tag, offset) in items {
            match used.place(tag) {
                Some(place) => self.set_slot(tag, place, offset),
                None => homeless.push(offset),
            }
        }
        homeless
    }

    /// Fills a slice that nobody can see with some items of one of as many blocks, in its order: each keeps its place.
    pub fn fill_like(&self, old: Slice, items: &[(u16, Offset)]) {
        debug_assert_eq!(self.blocks(), old.blocks());
        let mut items = items.iter().peekable();
        for (slot, offset) in old.items_from(0) {
            if let Some(&(tag, _)) = items.next_if(|(_, next)| *next == offset) {
                self.set_slot(tag, (slot / SLOTS, slot % SLOTS), offset);
            }
        }
        debug_assert!(items.next().is_none(), "in another order");
    }

    /// Fills a slice that nobody can see with what becomes of the items of another one of as many blocks: each has its place.
    pub fn fill_from(&self, old: Slice, mut moved: impl FnMut(Offset) -> Option<Offset>) {
        debug_assert_eq!(self.blocks(), old.blocks());
        for bucket in 0..old.buckets() {
            for (slot, tag, offset) in old.at(bucket).items() {
                if let Some(offset) = moved(offset) {
                    self.set_slot(tag, (bucket, slot), offset);
                }
            }
        }
    }

    /// Leaves a slice that nobody can see the ghosts of `old` that have room in their home buckets.
    pub fn inherit_ghosts(&self, old: Slice) {
        for (tag, stamp) in (0..old.buckets()).flat_map(|bucket| old.at(bucket).ghosts()) {
            let home = self.at(home_of(tag, self.buckets()));
            if let Some(slot) = home.empty_slot() {
                home.set(slot, tag, 0);
                home.haunt(slot, stamp);
            }
        }
    }

    /// Readers that are in it start again, for good.
    pub fn retire(&self) {
        (0..self.buckets()).for_each(|bucket| self.at(bucket).version.retire());
    }
}

/// How many slots of each bucket are taken when a new slice is filled.
struct Used {
    buckets: usize,
    slots: [u8; BLOCKS_MAX * BLOCK_BUCKETS],
}

impl Used {
    fn new(blocks: usize) -> Used {
        Used { buckets: blocks * BLOCK_BUCKETS, slots: [0; BLOCKS_MAX * BLOCK_BUCKETS] }
    }

    /// Takes the first slot that an item with this tag may have.
    #[inline]
    fn place(&mut self, tag: u16) -> Option<(usize, usize)> {
        let is_free = |&bucket: &usize| usize::from(self.slots[bucket]) < SLOTS;
        let bucket = window(home_of(tag, self.buckets), self.buckets).find(is_free)?;
        self.slots[bucket] += 1;
        Some((bucket, usize::from(self.slots[bucket]) - 1))
    }
}

fn window(home: usize, buckets: usize) -> impl Iterator<Item = usize> {
    (home..home + WINDOW.min(buckets)).map(move |at| wrapped(at, buckets))
}

/// Behind the last bucket comes the first.
#[inline(always)]
fn wrapped(at: usize, buckets: usize) -> usize {
    if at < buckets { at } else { at - buckets }
}

#[inline(always)]
fn block(memory: &Memory, id: BlockId) -> &Block {
    // SAFETY: block ids name 64-aligned blocks of index pages, zeroed before they were published,
    // which epochs keep from reuse as anything else.
    unsafe { &*(memory.block(id) as *const Block) }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use mbal_random::Random;

    use super::*;

    /// Items with tags as hashes have them.
    fn items(count: u32, seed: u64) -> Vec<(u16, Offset)> {
        let mut random = Random::new(seed);
        (1..=count).map(|n| (random.word() as u16, n)).collect()
    }

    #[test]
    fn what_found_its_place_is_in_reach_until_it_goes() {
        let memory = Memory::heap(1 << 20);
        for blocks in [1, 2, 5, 16] {
            let ids: Vec<BlockId> = (1..=blocks as u32).collect();
            let all = items(2000, 1);
            let slots = blocks * BLOCK_BUCKETS * SLOTS;
            let entry = Entry::of(&ids);
            let slice = entry.slice(&memory).expect("it has blocks");
            let homeless = slice.fill(&all);
            // Tags come in the order of items; the first that finds no place comes late.
            let most = homeless[0] as usize - 1;
            assert!(most * 100 >= slots * 85 && most <= slots, "{most} of {slots}");
            let later: Vec<_> =
                slice.items().filter(|&(_, offset)| offset as usize > most).collect();
            later.iter().for_each(|&(tag, offset)| {
                let place = slice.search(slice.home_for(tag.into()), tag.into(), |at| at == offset);
                let place = place.expect("it has just been shown");
                slice.set_slot(tag, (place.bucket.into(), place.slot.into()), 0);
            });
            assert_eq!(slice.items().count(), most);
            let find = |(tag, offset): (u16, Offset)| {
                let home = slice.home(tag.into()).expect("nobody changes it");
                slice.search(home, tag.into(), |found| found == offset)
            };
            assert!(all[..most].iter().all(|&item| find(item).is_some()), "{blocks} blocks");
            // One by one they go, and the others stay in reach.
            for (at, &(tag, offset)) in all[..most].iter().enumerate() {
                let place = find((tag, offset)).expect("it is still there");
                slice.set_slot(tag, (place.bucket.into(), place.slot.into()), 0);
                let all_found = all[at + 1..most].iter().step_by(17).all(|&i| find(i).is_some());
                assert!(all_found, "after item {at} of {most} in {blocks} blocks");
            }
            let reach = |bucket| slice.at(bucket).version.reach();
            assert_eq!((0..slice.buckets()).map(reach).max(), Some(0));
            let zeroed = ids.into_iter().map(|id| memory.block(id));
            // SAFETY: the blocks lie in the memory, and the slice is not used again.
            zeroed.for_each(|at| unsafe { at.write_bytes(0, size_of::<Block>()) });
        }
    }

    #[test]
    fn a_full_window_gets_room_while_one_behind_it_has_some() {
        for blocks in [1, 2, 3, 5, 16] {
            let moved: usize = (1..5).map(|seed| fill_and_move(blocks, seed)).sum();
            assert!(moved > 0 || blocks * BLOCK_BUCKETS <= WINDOW, "{blocks} blocks");
        }
    }

    /// Fills a slice; how many items have moved to make room.
    fn fill_and_move(blocks: usize, seed: u64) -> usize {
        let memory = Memory::heap(1 << 20);
        let entry = Entry::of(&(1..=blocks as u32).collect::<Vec<_>>());
        let slice = entry.slice(&memory).expect("it has blocks");
        let slots = blocks * BLOCK_BUCKETS * SLOTS;
        let find = |(tag, offset): (u16, Offset)| {
            slice.search(slice.home_for(tag.into()), tag.into(), |found| found == offset)
        };
        let (all, mut moved) = (items(2000, seed), 0);
        let placed = all.iter().take_while(|(tag, offset)| {
            let place = slice.place_for(*tag, 0).or_else(|| {
                let made = slice.make_room(*tag, 0).then(|| slice.place_for(*tag, 0));
                moved += usize::from(made.is_some());
                made.map(|place| place.expect("there is room now"))
            });
            place.inspect(|place| slice.set_slot(*tag, *place, *offset)).is_some()
        });
        let placed = placed.count();
        assert!(placed * 100 >= slots * 88, "{placed} of {slots}");
        assert!(all[..placed].iter().all(|&item| find(item).is_some()), "{blocks} blocks");
        assert_eq!(slice.items().count(), placed);
        moved
    }

    #[test]
    fn a_reader_that_meets_two_states_of_an_entry_is_told() {
        let memory = Memory::heap(1 << 20);
        let entry = Entry::of(&[1, 2]);
        let before = entry.slice(&memory).expect("it has blocks");
        assert!(before.bucket(0).is_some() && before.bucket(15).is_some());
        entry.lead(&Entry::of(&[3, 4, 5]));
        assert!(before.bucket(0).is_none() && before.bucket(15).is_none());
        let after = entry.slice(&memory).expect("it has blocks");
        assert!(after.bucket(0).is_some() && after.bucket(23).is_some());
        entry.lead(&Entry::moved());
        assert!(entry.has_moved() && matches!(entry.way(&memory), Way::Moved));
    }
}
