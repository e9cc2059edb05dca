//! A cachelet parts in two inside of its store, slice by slice, so that nobody waits for more than some hundred items.

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Prefix, Seconds, WorkerId};

use crate::cachelet::Locked;
use crate::index::hash_of;
use crate::routes::Way;
use crate::shim::Ordering::*;
use crate::slice::{Entry, Slice};
use crate::store::Store;
use crate::types::Birth;

/// Slices of no more items are moved in one step.
const STEP_ITEMS: usize = 128;

impl Store {
    /// Begins to split a cachelet: its upper half will be a cachelet of its own, once [`Store::split_step`] has said that it is
    /// done. Every key stays reachable throughout.
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
        let mut born = child.inner.lock();
        child.is_born(&mut born, upper, WorkerId(parent.owner() as u16), birth);
        born.flush_next = inner.flush_next;
        // Where the items that it gets have left off: so their cas stay short.
        born.counter = inner.counter;
        drop(born);
        child.prefix_bits.store(parent.prefix_bits.load(Relaxed), Relaxed);
        child.flush_at.store(parent.flush_at.load(Relaxed), Relaxed);
        inner.split_done = None;
        inner.splits = true;
        parent.child.store(child.slot as u32 + 1, Release);
        if is_planted(Fault::RoutesBeforeItems) {
            self.routes.set(upper, Way::Here(child.slot));
            self.version.fetch_add(1, Release);
        }
        true
    }

    /// Moves one slice of a cachelet that is being split, or makes two of a long one; false once all have moved and the split is
    /// done. O(items of a slice).
    pub fn split_step(&self, whole: Prefix, now: Seconds) -> bool {
        let _changes = self.changes();
        let (Some(parent), Some((lower, upper))) = (self.present(whole), whole.halves()) else {
            return false;
        };
        let mut locked = self.lock_cachelet(parent, now);
        if !locked.inner.splits {
            return false;
        }
        let child = self.child(parent);
        locked.part_at(upper.first_hash());
        let dir = locked.dir();
        let entries = locked.entry(upper.first_hash())..locked.entry(upper.last_hash()) + 1;
        let next = entries.clone().find(|&entry| !dir.entries[entry].has_moved());
        let Some(entry) = next else {
            parent.set_prefix(Some(lower));
            child.set_prefix(Some(upper));
            self.routes.set(upper, Way::Here(child.slot));
            // The child may have been lent meanwhile: then these keys change their owner now.
            self.version.fetch_add(1, Release);
            locked.inner.splits = false;
            locked.inner.split_done = Some(self.epochs.stamp());
            return false;
        };
        // A long slice is halved until a step is short, as far as the directory may grow.
        let long = locked.slice_at(entry).is_some_and(|slice| slice.items().count() > STEP_ITEMS);
        if long && locked.split_slice(locked.first_hash_of(entry)) {
            return true;
        }
        let mut child = self.lock_cachelet(child, now);
        child.inner.counter = child.inner.counter.max(locked.inner.counter);
        locked.hand_over(entry, &mut child);
        true
    }
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
            let run = self.dir().run(entry);
            let has_slice = self.slice_at(entry).is_some();
            if begins && (run.start == entry || !has_slice) {
                return;
            }
            // What is asked for may be finer than the few items of an index need.
            if !has_slice || run.len() == 1 {
                self.double_dir();
            } else if !self.split_slice(hash) {
                // No memory for its halves: one that spans the place is given up.
                if run.start == entry {
                    self.double_dir();
                    continue;
                }
                for (_, offset) in self.take_slice(entry, &Entry::empty()) {
                    self.inner.stats.evictions += 1;
                    self.inner.stats.items -= 1;
                    self.kill_record(offset);
                }
            }
        }
    }

    /// Moves the slice of `entry` to `child`.
    fn hand_over(&mut self, entry: usize, child: &mut Locked<'_>) {
        let memory = &self.store.memory;
        for offset in self.slice_at(entry).into_iter().flat_map(Slice::offsets) {
            let log = self.page(self.page_of(offset)).log.load(Relaxed) as usize;
            // No room: as if evicted.
            if child.adopt(hash_of(memory, offset), offset, log).is_err() {
                child.inner.stats.evictions += 1;
            }
        }
        for (_, offset) in self.take_slice(entry, &Entry::moved()) {
            self.inner.stats.items -= 1;
            self.kill_record(offset);
        }
    }
}
