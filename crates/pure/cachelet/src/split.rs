//! A cachelet parts in two inside of its store, slice by slice, so that nobody waits for more than some hundred items.

use mbal_locks::{Held, Rank};
use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Prefix, Seconds, WorkerId};

use crate::adopting::{Adopted, adoption_bytes};
use crate::cachelet::Split;
use crate::entry::Entry;
use crate::flushes::Flushed;
use crate::locked::Locked;
use crate::memory::{Offset, prefetch};
use crate::reserves::pages_for;
use crate::routes::Way;
use crate::shim::Ordering::*;
use crate::site::Site;
use crate::store::Store;
use crate::types::Birth;

/// Slices of no more items, and no more bytes, are moved in one step: some 0.2 µs an item that comes from memory. They fill two blocks of
/// the index well.
const STEP_ITEMS: usize = 140;
const STEP_BYTES: usize = 64 << 10;

impl Store {
    /// Begins to split a cachelet: its upper half will be a cachelet of its own, once all slices of it have moved. The owner does
    /// that, step by step, in [`Store::background`]. Every key stays reachable throughout.
    ///
    /// False, and nothing has changed, if it is absent, leaves or arrives, or as narrow as cachelets get, or the store has no
    /// more room for cachelets, or its last split is too recent.
    pub fn split(&self, whole: Prefix, now: Seconds) -> bool {
        let mut changes = self.slots.changes();
        let (Some(parent), Some((_, upper))) = (self.present(whole), whole.halves()) else {
            return false;
        };
        let mut locked = self.lock_cachelet(parent, now);
        let (inner, front) = (&mut *locked.inner, &parent.front);
        if front.away.is_part() || !inner.split.may_begin(self.epochs()) {
            return false;
        }
        let Some(child) = self.slots.vacant(&mut changes, self.epochs()) else { return false };
        let birth =
            Birth { generation: front.generation() as u16, flush_number: inner.flushed.number() };
        let mut born = child.inner.lock_as(Held::enter(Rank::NewHalf));
        child.is_born(&mut born, upper, WorkerId(front.owner() as u16), birth);
        self.slots.count_half_owner();
        born.flushed = Flushed::born(birth.flush_number, inner.flushed.next());
        // Where the items that it gets have left off: so their cas stay short.
        born.items.counter.go_on_from(inner.items.counter.last());
        drop(born);
        child.front.root.set_prefix_bits(front.root.prefix_bits());
        child.front.set_flush_at(front.flush_at());
        inner.split = Split::UnderWay;
        self.splitting.fetch_add(1, Relaxed);
        front.root.set_child(Some(child.front.slot as u32));
        if is_planted(Fault::RoutesBeforeItems) {
            self.routes.set(upper, Way::Here(child.front.slot));
            self.version.fetch_add(1, Release);
        }
        true
    }

    /// A step for a cachelet of `worker` that is being split; false if there is none. Part of [`Store::background`].
    pub(crate) fn go_on_splitting(&self, worker: usize, now: Seconds) -> bool {
        if self.splitting.load(Relaxed) == 0 {
            return false;
        }
        let owned = self.cleaner.owned(self, worker);
        let mut owned = owned.iter().map(|&slot| self.at(slot));
        let splits = owned.find(|cachelet| cachelet.inner.lock().split.is_under_way());
        splits.and_then(|cachelet| cachelet.front.prefix()).is_some_and(|whole| {
            self.split_step(whole, now);
            true
        })
    }

    /// Moves one slice of a cachelet that is being split, or makes two of a long one, or makes room; false once all have moved and
    /// the split is done. [`Store::background`] does this in a server; tests and simulators may want to see what is between two
    /// steps. Not between [`crate::Cachelets::enter`] and [`crate::Cachelets::leave`].
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
        let _changes = self.slots.changes();
        let (Some(parent), Some((lower, upper))) = (self.present(whole), whole.halves()) else {
            return Step::Done;
        };
        let mut locked = self.lock_cachelet(parent, now);
        if !locked.inner.split.is_under_way() {
            return Step::Done;
        }
        let child = self.child(&parent.front);
        locked.part_at(upper.first_hash());
        let site = &mut locked.site;
        let entries = site.entry(upper.first_hash())..site.entry(upper.last_hash()) + 1;
        // They go in order.
        let moved = site.dir().entries[entries.clone()].partition_point(Entry::has_moved);
        let entry = entries.start + moved;
        if entry == entries.end {
            parent.front.set_prefix(Some(lower));
            child.front.set_prefix(Some(upper));
            self.routes.set(upper, Way::Here(child.front.slot));
            // The child may have been lent meanwhile: then these keys change their owner now.
            self.version.fetch_add(1, Release);
            self.splitting.fetch_sub(1, Relaxed);
            locked.inner.split = Split::Done(self.epochs().stamp());
            return Step::Done;
        }
        let (items, bytes) = measure(site, entry);
        // A long slice is halved until a step is short, as far as the directory may grow.
        let is_long = items > STEP_ITEMS || (items > 1 && bytes > STEP_BYTES);
        let first = site.first_hash_of(entry);
        if is_long && locked.inner.index.split_slice(site, first) {
            let site = &locked.site;
            prefetch_items(site, site.entry(first));
            return Step::More;
        }
        let pages = &self.shared.pages;
        let (owner, needed) = (child.front.owner(), pages_for(pages, bytes));
        if needs_room && items > 0 && pages.pool.available(owner) <= needed {
            return Step::Short { owner, pages: needed };
        }
        let mut child = self.lock_half(child, now);
        child.inner.items.counter.reach(locked.inner.items.counter.last());
        let next = locked.site.dir().run(entry).end;
        locked.hand_over(entry, &mut child);
        // The next step would wait for them.
        if next < entries.end {
            prefetch_items(&locked.site, next);
        }
        Step::More
    }

    /// Makes some room, or has to wait for what has been made free; false if none can be had.
    fn clean_for_split(&self, owner: usize, pages: u32, now: Seconds) -> bool {
        let pool = &self.shared.pages.pool;
        let waiting = pool.reap(owner);
        let is_short = pool.available(owner) + waiting <= pages;
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
    /// Moves the slice of `entry` to `child`.
    fn hand_over(&mut self, entry: usize, child: &mut Locked<'_>) {
        let site = &self.site;
        let Some(slice) = site.slice_at(entry) else {
            self.inner.index.take_slice(&mut self.site, entry, &Entry::moved());
            return;
        };
        let run = site.dir().run(entry);
        let low = site.first_hash_of(run.start);
        let high = match run.end < site.dir().entries.len() {
            true => site.first_hash_of(run.end) - 1,
            false => site.hashes_around(low).1,
        };
        let has_way = child.make_way(low, high, slice.blocks()).is_some();
        let offsets: Vec<Offset> = slice.offsets().collect();
        let mut adopted: Vec<Option<Adopted>> = Vec::with_capacity(offsets.len());
        for offset in offsets {
            let (here, there) = (&mut child.inner.items, &mut self.inner.items);
            let copy = here.adopt(&child.site, there, site, offset);
            // No room: as if evicted.
            here.counts.lost(u64::from(copy.is_err()));
            adopted.push(copy.ok());
        }
        let copies = adopted.iter().map(|adopted| Some(adopted.as_ref()?.offset));
        if has_way {
            let mut next = copies.clone();
            let new = child.site.slice_at(child.site.entry(low)).expect("it was made");
            new.fill_from(slice, |_| next.next().flatten());
            child.inner.items.counts.add(copies.flatten().count() as u64);
        } else {
            for copy in copies.flatten() {
                let hash = child.site.item(copy).hash();
                if child.publish(hash, None, copy).is_err() {
                    child.inner.items.counts.lost(1);
                }
            }
        }
        let inner = &mut *self.inner;
        let old = inner.index.take_slice(&mut self.site, entry, &Entry::moved());
        inner.items.counts.remove(old.len() as u64);
        for (offset, adopted) in old.into_iter().zip(adopted) {
            match adopted {
                Some(Adopted { left, .. }) => inner.items.kill_adopted(&self.site, offset, left),
                None => inner.items.kill_record(&self.site, offset),
            }
        }
    }
}

fn prefetch_items(site: &Site, entry: usize) {
    let offsets = site.slice_at(entry).into_iter().flat_map(|slice| slice.offsets());
    offsets.for_each(|offset| prefetch(site.memory().at(offset)));
}

/// Items of the slice of `entry`; and the bytes that are to be copied, if they are few enough for a step.
fn measure(site: &Site, entry: usize) -> (usize, usize) {
    let Some(slice) = site.slice_at(entry) else { return (0, 0) };
    let items = slice.offsets().count();
    if items > STEP_ITEMS {
        return (items, 0);
    }
    prefetch_items(site, entry);
    (items, slice.offsets().map(|offset| adoption_bytes(site, site.item(offset))).sum())
}
