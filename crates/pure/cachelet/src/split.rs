//! A cachelet parts in two inside of its store, slice by slice, so that nobody waits for more than some hundred items.

use mbal_locks::{Held, Rank};
use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Prefix, Seconds, WorkerId};

use crate::cachelet::Cachelet;
use crate::chunks::Adopted;
use crate::entry::Entry;
use crate::index::hash_of;
use crate::item::Item;
use crate::locked::Locked;
use crate::memory::{Offset, prefetch};
use crate::routes::Way;
use crate::shim::Ordering::*;
use crate::store::Store;
use crate::types::Birth;

/// Slices of no more items, and no more bytes, are moved in one step.
const STEP_ITEMS: usize = 280;
const STEP_BYTES: usize = 64 << 10;

impl Store {
    /// Begins to split a cachelet: its upper half will be a cachelet of its own, once all slices of it have moved. The owner does
    /// that, step by step, in [`Store::background`]. Every key stays reachable throughout.
    ///
    /// False, and nothing has changed, if it is absent, leaves or arrives, or as narrow as cachelets get, or the store has no
    /// more room for cachelets, or its last split is too recent.
    pub fn split(&self, whole: Prefix, now: Seconds) -> bool {
        let mut changes = self.changes();
        let (Some(parent), Some((_, upper))) = (self.present(whole), whole.halves()) else {
            return false;
        };
        let mut locked = self.lock_cachelet(parent, now);
        let inner = &mut *locked.inner;
        if inner.splits
            || parent.is_partly_here()
            || inner.split_done.is_some_and(|stamp| !self.epochs.passed(stamp))
        {
            return false;
        }
        let Some(child) = self.vacant_slot(&mut changes) else { return false };
        let generation = parent.generation.load(Relaxed) as u16;
        let birth = Birth { generation, flush_number: inner.flush_number };
        let mut born = child.inner.lock_as(Held::enter(Rank::NewHalf));
        child.is_born(&mut born, upper, WorkerId(parent.owner() as u16), birth);
        born.flush_next = inner.flush_next;
        // Where the items that it gets have left off: so their cas stay short.
        born.counter = inner.counter;
        drop(born);
        child.prefix_bits.store(parent.prefix_bits.load(Relaxed), Relaxed);
        child.flush_at.store(parent.flush_at.load(Relaxed), Relaxed);
        inner.split_done = None;
        inner.splits = true;
        self.splitting.fetch_add(1, Relaxed);
        parent.child.store(child.slot as u32 + 1, Release);
        if is_planted(Fault::RoutesBeforeItems) {
            self.routes.set(upper, Way::Here(child.slot));
            self.version.fetch_add(1, Release);
        }
        true
    }

    /// A step for a cachelet of `worker` that is being split; false if there is none. Part of [`Store::background`].
    pub(crate) fn go_on_splitting(&self, worker: usize, now: Seconds) -> bool {
        if self.splitting.load(Relaxed) == 0 {
            return false;
        }
        let mut owned = self.cachelets().filter(|cachelet| cachelet.owner() == worker);
        let whole = owned.find(|cachelet| cachelet.inner.lock().splits).and_then(Cachelet::prefix);
        whole.is_some_and(|whole| {
            self.split_step(whole, now);
            true
        })
    }

    /// Moves one slice of a cachelet that is being split, or makes two of a long one, or makes room; false once all have moved and
    /// the split is done. [`Store::background`] does this in a server; tests and simulators may want to see what is between two
    /// steps. Not between [`Store::enter`] and [`Store::leave`].
    ///
    /// O([`STEP_ITEMS`]), copying no more than [`STEP_BYTES`] or one item; or O(items of a slice), which are looked at. Of a long value
    /// only what shares a page with others is copied.
    pub fn split_step(&self, whole: Prefix, now: Seconds) -> bool {
        let step = match self.split_next(whole, now, true) {
            Step::Short { owner, pages } if self.clean_for_split(owner, pages, now) => return true,
            Step::Short { .. } => self.split_next(whole, now, false),
            step => step,
        };
        step == Step::More
    }

    /// `needs_room`: a step for which there is too little is not done.
    fn split_next(&self, whole: Prefix, now: Seconds, needs_room: bool) -> Step {
        let _changes = self.changes();
        let (Some(parent), Some((lower, upper))) = (self.present(whole), whole.halves()) else {
            return Step::Done;
        };
        let mut locked = self.lock_cachelet(parent, now);
        if !locked.inner.splits {
            return Step::Done;
        }
        let child = self.child(parent);
        locked.part_at(upper.first_hash());
        let entries = locked.entry(upper.first_hash())..locked.entry(upper.last_hash()) + 1;
        // They go in order.
        let moved = locked.dir().entries[entries.clone()].partition_point(Entry::has_moved);
        let entry = entries.start + moved;
        if entry == entries.end {
            parent.set_prefix(Some(lower));
            child.set_prefix(Some(upper));
            self.routes.set(upper, Way::Here(child.slot));
            // The child may have been lent meanwhile: then these keys change their owner now.
            self.version.fetch_add(1, Release);
            locked.inner.splits = false;
            self.splitting.fetch_sub(1, Relaxed);
            locked.inner.split_done = Some(self.epochs.stamp());
            return Step::Done;
        }
        let (items, bytes) = locked.measure(entry);
        // A long slice is halved until a step is short, as far as the directory may grow.
        let is_long = items > STEP_ITEMS || (items > 1 && bytes > STEP_BYTES);
        if is_long && locked.split_slice(locked.first_hash_of(entry)) {
            return Step::More;
        }
        let (owner, pages) = (child.owner(), self.pages_for(bytes));
        if needs_room && items > 0 && self.pool.available(owner) <= pages {
            return Step::Short { owner, pages };
        }
        let mut child = self.lock_half(child, now);
        child.inner.counter = child.inner.counter.max(locked.inner.counter);
        locked.hand_over(entry, &mut child);
        Step::More
    }

    /// Makes some room, or has to wait for what has been made free; false if none can be had.
    fn clean_for_split(&self, owner: usize, pages: u32, now: Seconds) -> bool {
        let waiting = self.pool.reap(owner, &self.epochs);
        let is_short = self.pool.available(owner) + waiting <= pages;
        !is_short || self.clean_one(owner, now)
    }
}

#[derive(PartialEq)]
enum Step {
    Done,
    More,
    Short { owner: usize, pages: u32 },
}

impl Locked<'_> {
    /// The first hash that an entry of the directory stands for.
    fn first_hash_of(&self, entry: usize) -> u64 {
        let prefix = self.cachelet.prefix().expect("it serves one");
        let bits = self.cachelet.prefix_bits.load(Relaxed);
        let depth = self.dir().depth();
        Prefix::of(prefix.first_hash(), bits).first_hash()
            | (entry as u64).checked_shl(64 - bits - depth).unwrap_or(0)
    }

    /// Sees to it that a slice begins at `hash`.
    pub(crate) fn part_at(&mut self, hash: u64) {
        loop {
            let entry = self.entry(hash);
            let begins = hash == 0 || self.entry(hash - 1) != entry;
            let has_slice = self.slice_at(entry).is_some();
            // Only a slice's run is short: without one it may be most of the directory.
            if begins && (!has_slice || self.dir().run(entry).start == entry) {
                return;
            }
            let run = if has_slice { self.dir().run(entry) } else { entry..entry + 1 };
            // What is asked for may be finer than the few items of an index need.
            if run.len() == 1 {
                self.double_dir();
            } else if !self.split_slice(hash) {
                // No memory for its halves: one that spans the place is given up.
                if run.start == entry {
                    self.double_dir();
                    continue;
                }
                for offset in self.take_slice(entry, &Entry::empty()) {
                    self.inner.stats.evictions += 1;
                    self.inner.stats.items -= 1;
                    self.kill_record(offset);
                }
            }
        }
    }

    /// Items of the slice of `entry`; and the bytes that are to be copied, if they are few enough for a step.
    fn measure(&self, entry: usize) -> (usize, usize) {
        let memory = &self.store.memory;
        let Some(slice) = self.slice_at(entry) else { return (0, 0) };
        let items = slice.offsets().count();
        if items > STEP_ITEMS {
            return (items, 0);
        }
        slice.offsets().for_each(|offset| prefetch(memory.at(offset)));
        let bytes = slice.offsets().map(|offset| self.adoption_bytes(Item::at(memory, offset)));
        (items, bytes.sum())
    }

    /// Moves the slice of `entry` to `child`.
    fn hand_over(&mut self, entry: usize, child: &mut Locked<'_>) {
        let Some(slice) = self.slice_at(entry) else {
            self.take_slice(entry, &Entry::moved());
            return;
        };
        let run = self.dir().run(entry);
        let low = self.first_hash_of(run.start);
        let high = match run.end < self.dir().entries.len() {
            true => self.first_hash_of(run.end) - 1,
            false => self.hashes_around(low).1,
        };
        let has_way = child.make_way(low, high, slice.blocks()).is_some();
        let offsets: Vec<Offset> = slice.offsets().collect();
        let mut adopted: Vec<Option<Adopted>> = Vec::with_capacity(offsets.len());
        for offset in offsets {
            let log = self.page(self.page_of(offset)).log.load(Relaxed) as usize;
            let copy = child.adopt(self, offset, log);
            // No room: as if evicted.
            child.inner.stats.evictions += u64::from(copy.is_err());
            adopted.push(copy.ok());
        }
        let copies = adopted.iter().map(|adopted| Some(adopted.as_ref()?.offset));
        if has_way {
            let mut next = copies.clone();
            let old = self.slice_at(entry).expect("nobody else changes it");
            let new = child.slice_at(child.entry(low)).expect("it was made");
            new.fill_from(old, |_| next.next().flatten());
            child.inner.stats.items += copies.flatten().count() as u64;
        } else {
            for copy in copies.flatten() {
                let hash = hash_of(&self.store.memory, copy);
                if child.publish(hash, None, copy).is_err() {
                    child.inner.stats.evictions += 1;
                }
            }
        }
        let old = self.take_slice(entry, &Entry::moved());
        self.inner.stats.items -= old.len() as u64;
        for (offset, adopted) in old.into_iter().zip(adopted) {
            match adopted {
                Some(Adopted { left, .. }) => self.kill_adopted(offset, left),
                None => self.kill_record(offset),
            }
        }
    }
}
