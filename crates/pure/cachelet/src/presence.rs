//! Which cachelets a store has: how they come and go.
//!
//! A cachelet that is released is first *away*: [`Store::route`] sends its keys elsewhere, while those who have asked before may
//! still be in it. When every worker has left the batch in which it could have asked, it is emptied, and the table forgets it; after
//! as long again its slot can be used for another.

use std::collections::VecDeque;
use std::ptr;

use mbal_locks::ranks;
use mbal_model::{Elsewhere, Prefix, Route, Seconds, ServerId, WorkerId};

use crate::cachelet::Cachelet;
use crate::routes::{Slot, Way};
use crate::shim::{AtomicPtr, AtomicU32, Ordering::*};
use crate::store::Store;
use crate::sync::{Guard, SpinLock};
use crate::types::Birth;

/// Cachelets of one store, whatever becomes of them.
pub(crate) const CACHELETS_MAX: usize = 1 << 12;

/// Room for cachelets. What was one stays, to be used again.
pub(crate) struct Slots {
    /// Each is null until it is used, and then leads to one cachelet for as long as there are slots.
    all: Box<[AtomicPtr<Cachelet>]>,
    used: AtomicU32,
    changes: SpinLock<ranks::Changes, Changes>,
    /// Whether `changes` has anything that goes.
    going: AtomicU32,
}

/// What is on its way, by those who change which cachelets there are: one at a time.
#[derive(Default)]
pub(crate) struct Changes {
    leaving: VecDeque<Leaving>,
    /// Vacant, since this stamp.
    free: VecDeque<(u64, Slot)>,
    /// When the last `flush_all` that was asked for a later second comes, and its number.
    pub flush_next: (Seconds, u32),
}

struct Leaving {
    stamp: u64,
    slot: Slot,
    prefix: Prefix,
    to: Elsewhere,
}

impl Slots {
    pub fn new() -> Slots {
        Slots {
            all: (0..CACHELETS_MAX).map(|_| AtomicPtr::new(ptr::null_mut())).collect(),
            used: AtomicU32::new(0),
            changes: SpinLock::new(Changes::default()),
            going: AtomicU32::new(0),
        }
    }

    /// The cachelets of all slots in use.
    #[inline]
    pub fn used(&self) -> impl Iterator<Item = &Cachelet> + Clone {
        (0..self.used.load(Acquire) as Slot).map(|slot| self.at(slot))
    }

    /// The cachelet of a slot in use: one below `used`, or one that a route has led to.
    ///
    /// # Panics
    /// If the slot has never been used.
    #[inline(always)]
    pub fn at(&self, slot: Slot) -> &Cachelet {
        let cachelet = self.all[slot].load(Acquire);
        assert!(!cachelet.is_null(), "a route leads to a slot in use");
        // SAFETY: `use_next` stored it, after the cachelet was made; it is freed with the slots alone, and nobody has it mutably.
        unsafe { &*cachelet }
    }

    /// Puts a cachelet into the first slot that has never been used; `None` if all have. By one thread at a time.
    fn use_next(&self) -> Option<&Cachelet> {
        let slot = self.used.load(Relaxed) as Slot;
        let room = self.all.get(slot)?;
        room.store(Box::into_raw(Box::new(Cachelet::vacant(slot))), Release);
        self.used.store(slot as u32 + 1, Release);
        Some(self.at(slot))
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        for slot in 0..self.used.load(Relaxed) as Slot {
            // SAFETY: from Box::into_raw, and whoever had borrowed it had borrowed the slots.
            drop(unsafe { Box::from_raw(self.all[slot].load(Relaxed)) });
        }
    }
}

/// A present cachelet, as planners see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub prefix: Prefix,
    pub owner: WorkerId,
    /// Counted by [`Store::count_work`], since the cachelet was born.
    pub work: u64,
    /// Of pages, which go where the cachelet goes.
    pub bytes: u64,
}

impl Store {
    /// Who serves `hash`, for a request that worker `here` has. Good until the worker leaves its batch: so long a key that is served
    /// here can be read and locked.
    #[inline]
    pub fn route(&self, here: WorkerId, hash: u64) -> Route {
        match self.routes.of(hash) {
            Way::Away(elsewhere) => elsewhere.into(),
            Way::Here(slot) => {
                let cachelet = self.at(slot);
                match cachelet.away(hash) {
                    Some(elsewhere) => elsewhere.into(),
                    None if cachelet.owner() == usize::from(here.0) => Route::Own,
                    None => Route::Neighbour(WorkerId(cachelet.owner() as u16)),
                }
            }
        }
    }

    /// The cachelet that serves `hash` here, and its owner.
    pub fn cachelet_of(&self, hash: u64) -> Option<(Prefix, WorkerId)> {
        let Way::Here(slot) = self.routes.of(hash) else { return None };
        let cachelet = self.at(slot);
        let owner = WorkerId(cachelet.owner() as u16);
        // Between the change of its name and that of the table a split's upper half has the lower one's.
        let prefix = cachelet.prefix().filter(|_| !cachelet.is_away())?;
        Some((prefix, owner))
    }

    /// The worker that owns a cachelet; `None` if it is absent.
    pub fn owner(&self, prefix: Prefix) -> Option<WorkerId> {
        self.present(prefix).map(|cachelet| WorkerId(cachelet.owner() as u16))
    }

    /// True if every key of `prefix` is served here, by one cachelet or by several.
    pub fn is_here(&self, prefix: Prefix) -> bool {
        let prefixes = self.prefixes();
        let inside = prefixes.iter().filter(|here| here.overlaps(prefix));
        inside.map(|here| here.nodes()).sum::<usize>() >= prefix.nodes()
    }

    /// The present cachelets, in the prefixes' order. One that is still arriving is not among them.
    pub fn prefixes(&self) -> Vec<Prefix> {
        let here = self.cachelets().filter(|cachelet| !cachelet.is_away() && !cachelet.arrives());
        let mut prefixes: Vec<Prefix> = here.filter_map(Cachelet::prefix).collect();
        prefixes.sort_unstable();
        prefixes
    }

    /// The same with their owners, in any order: the same one as long as nothing comes and goes.
    pub fn owners(&self) -> impl Iterator<Item = (Prefix, WorkerId)> + '_ {
        let here = self.cachelets().filter(|cachelet| !cachelet.is_away() && !cachelet.arrives());
        here.filter_map(|one| Some((one.prefix()?, WorkerId(one.owner() as u16))))
    }

    /// The same with what planners want of them.
    pub fn held(&self) -> Vec<Held> {
        let here = self.cachelets().filter(|cachelet| !cachelet.is_away() && !cachelet.arrives());
        let held = here.filter_map(|cachelet| {
            let logs: u32 = cachelet.log_pages.iter().map(|pages| pages.load(Relaxed)).sum();
            let pages = logs as usize + cachelet.inner.lock().blocks.pages();
            let (owner, work) = (WorkerId(cachelet.owner() as u16), cachelet.work());
            let bytes = (pages * self.page_bytes) as u64;
            Some(Held { prefix: cachelet.prefix()?, owner, work, bytes })
        });
        let mut held: Vec<Held> = held.collect();
        held.sort_unstable_by_key(|held| held.prefix);
        held
    }

    /// Counts work for the sake of the cachelet of a key that is served here. What is counted by two workers at once may get lost.
    #[inline]
    pub fn count_work(&self, hash: u64, work: u64) {
        self.serving(hash).count_work(work);
    }

    pub(crate) fn present(&self, prefix: Prefix) -> Option<&Cachelet> {
        let Way::Here(slot) = self.routes.of(prefix.first_hash()) else { return None };
        let cachelet = self.at(slot);
        (cachelet.prefix() == Some(prefix) && !cachelet.is_away()).then_some(cachelet)
    }

    /// The cachelet `prefix` is served here from now on, empty, by worker `owner`. False, and nothing has changed, if some of it
    /// is here already, or has not yet gone, or the store has no room for another.
    pub fn adopt(&self, prefix: Prefix, owner: WorkerId, birth: Birth) -> bool {
        self.bring(prefix, owner, birth, None)
    }

    /// [`Store::adopt`]; of a cachelet that arrives from another server nothing is served yet.
    pub(crate) fn bring(
        &self,
        prefix: Prefix,
        owner: WorkerId,
        birth: Birth,
        from: Option<ServerId>,
    ) -> bool {
        let mut changes = self.slots.changes.lock();
        if !self.routes.is_absent(prefix) {
            return false;
        }
        let Some(cachelet) = self.vacant_slot(&mut changes) else { return false };
        let known = self.flushes.fetch_max(birth.flush_number, Relaxed).max(birth.flush_number);
        // A flush that has passed here is not to miss what arrives from where it has not been yet. When it is over it does not come there
        // any more: what is sent from now on came after it, though its source may not have heard of it.
        let is_over = from.is_some() && known <= self.flushes_over.load(Relaxed);
        let flush_number = if is_over { birth.flush_number } else { known };
        self.bear(cachelet, prefix, owner, Birth { flush_number, ..birth }, from);
        let (at, number) = changes.flush_next;
        // Of the last flush and one to come two servers may have given the same number. One that has passed drops nothing of what is new.
        // What arrives is told of it by its source.
        if number > known || number == known && from.is_none() {
            cachelet.inner.lock().flush_next = number;
            cachelet.flush_at.store(at, Relaxed);
        }
        // Last: who reads a version finds what it says.
        cachelet.set_owner(usize::from(owner.0), &self.version);
        true
    }

    fn bear(
        &self,
        vacant: &Cachelet,
        prefix: Prefix,
        owner: WorkerId,
        birth: Birth,
        from: Option<ServerId>,
    ) {
        vacant.is_born(&mut vacant.inner.lock(), prefix, owner, birth);
        if let Some(from) = from {
            vacant.begin_to_arrive(prefix.first_hash(), from);
        }
        vacant.set_prefix(Some(prefix));
        self.routes.set(prefix, Way::Here(vacant.slot));
    }

    /// All cachelets of a store that is alone, of equal width, dealt out among the workers.
    pub(crate) fn bear_all(&self) {
        let mut changes = self.slots.changes.lock();
        let (cachelets, workers) = (self.options().cachelets, self.options().workers);
        let birth = Birth { generation: self.options().generation, flush_number: 0 };
        for (at, prefix) in Prefix::equal(cachelets.trailing_zeros()).enumerate() {
            let owner = WorkerId((at * workers / cachelets) as u16);
            let vacant = self.vacant_slot(&mut changes).expect("no more than there is room for");
            self.bear(vacant, prefix, owner, birth, None);
        }
    }

    /// A cachelet's room that no reader can be in.
    pub(crate) fn vacant_slot(&self, changes: &mut Changes) -> Option<&Cachelet> {
        if let Some(&(stamp, slot)) = changes.free.front() {
            if self.epochs.passed(stamp) {
                changes.free.pop_front();
                return Some(self.at(slot));
            }
        }
        self.slots.use_next()
    }

    pub(crate) fn changes(&self) -> Guard<'_, ranks::Changes, Changes> {
        self.slots.changes.lock()
    }

    /// From now on keys of this cachelet are served elsewhere. What was here is dropped as soon as no worker can be in it, by
    /// [`Store::background`]. False, and nothing has changed, if it is absent, or is being split.
    pub fn release(&self, prefix: Prefix, to: Elsewhere) -> bool {
        let mut changes = self.slots.changes.lock();
        let Some(cachelet) = self.present(prefix) else { return false };
        if cachelet.inner.lock().splits {
            return false;
        }
        cachelet.set_away(Some(to));
        self.version.fetch_add(1, Release);
        let stamp = self.batches.stamp();
        changes.leaving.push_back(Leaving { stamp, slot: cachelet.slot, prefix, to });
        self.slots.going.fetch_add(1, Release);
        true
    }

    /// Says where the keys of an absent cachelet are served, by a map whose version says so. False, and nothing has changed, if some of it is here.
    pub fn point(&self, prefix: Prefix, to: Elsewhere) -> bool {
        let mut changes = self.slots.changes.lock();
        if let Some(leaving) = changes.leaving.iter_mut().find(|leaving| leaving.prefix == prefix) {
            leaving.to = to;
            self.at(leaving.slot).set_away(Some(to));
        } else if !self.routes.is_absent(prefix) {
            return false;
        } else {
            self.routes.set(prefix, Way::Away(to));
        }
        true
    }

    /// Drops the next cachelet that has been released, if every worker has passed; true if one was. Part of [`Store::background`].
    pub fn drop_released(&self, now: Seconds) -> bool {
        if self.slots.going.load(Acquire) == 0 {
            return false;
        }
        let mut changes = self.slots.changes.lock();
        let is_over = |leaving: &Leaving| self.batches.passed(leaving.stamp);
        if !changes.leaving.front().is_some_and(is_over) {
            return false;
        }
        let Leaving { slot, prefix, to, .. } = changes.leaving.pop_front().expect("looked at");
        let cachelet = self.at(slot);
        cachelet.set_prefix(None);
        let mut locked = self.lock_cachelet(cachelet, now);
        locked.flush(0);
        locked.vacate_index();
        drop(locked);
        self.routes.set(prefix, Way::Away(to));
        changes.free.push_back((self.epochs.stamp(), slot));
        self.slots.going.fetch_sub(1, Release);
        true
    }
}
