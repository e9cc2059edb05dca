//! Which cachelets a store has: how they come and go.
//!
//! A cachelet that is released is first *away*: [`Cachelets::route`] sends its keys elsewhere, while those who have asked before may
//! still be in it. When every worker has left the batch in which it could have asked, it is emptied, and the table forgets it; after
//! as long again its slot can be used for another.

use mbal_model::{Elsewhere, Prefix, Route, Seconds, ServerId, WorkerId};

use crate::cachelet::Cachelet;
use crate::cachelets::Cachelets;
use crate::front::{CacheletWork, Front};
use crate::routes::Way;
use crate::shim::Ordering::*;
use crate::slots::Leaving;
use crate::types::Birth;

/// A present cachelet, as planners see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub prefix: Prefix,
    pub owner: WorkerId,
    /// Counted by [`Cachelets::count_work`] and [`Cachelets::count_linked`].
    pub work: CacheletWork,
    /// Of pages, which go where the cachelet goes.
    pub bytes: u64,
}

impl Cachelets {
    /// Who serves `hash`, for a request that worker `here` has. Good until the worker leaves its batch: so long a key that is served
    /// here can be read and locked.
    #[inline]
    pub fn route(&self, here: WorkerId, hash: u64) -> Route {
        match self.routes.of(hash) {
            Way::Away(elsewhere) => elsewhere.into(),
            Way::Here(slot) => {
                let front = &self.at(slot).front;
                match front.away.of(hash) {
                    Some(elsewhere) => elsewhere.into(),
                    None if front.owner() == usize::from(here.0) => Route::Own,
                    None => Route::Neighbour(WorkerId(front.owner() as u16)),
                }
            }
        }
    }

    /// The cachelet that serves `hash` here, and its owner.
    pub fn cachelet_of(&self, hash: u64) -> Option<(Prefix, WorkerId)> {
        let Way::Here(slot) = self.routes.of(hash) else { return None };
        let front = &self.at(slot).front;
        let owner = WorkerId(front.owner() as u16);
        // Between the change of its name and that of the table a split's upper half has the lower one's.
        let prefix = front.prefix().filter(|_| !front.away.is_all())?;
        Some((prefix, owner))
    }

    /// The worker that owns a cachelet; `None` if it is absent.
    pub fn owner(&self, prefix: Prefix) -> Option<WorkerId> {
        self.present(prefix).map(|cachelet| WorkerId(cachelet.front.owner() as u16))
    }

    /// True if every key of `prefix` is served here, by one cachelet or by several.
    pub fn is_here(&self, prefix: Prefix) -> bool {
        let prefixes = self.prefixes();
        let inside = prefixes.iter().filter(|here| here.overlaps(prefix));
        inside.map(|here| here.nodes()).sum::<usize>() >= prefix.nodes()
    }

    /// The present cachelets, in the prefixes' order. One that is still arriving is not among them.
    pub fn prefixes(&self) -> Vec<Prefix> {
        let here = self.fronts().filter(|front| front.is_here());
        let mut prefixes: Vec<Prefix> = here.filter_map(Front::prefix).collect();
        prefixes.sort_unstable();
        prefixes
    }

    /// The same with their owners, in any order: the same one as long as nothing comes and goes.
    pub fn owners(&self) -> impl Iterator<Item = (Prefix, WorkerId)> + '_ {
        let here = self.fronts().filter(|front| front.is_here());
        here.filter_map(|front| Some((front.prefix()?, WorkerId(front.owner() as u16))))
    }

    /// The same with what planners want of them.
    pub fn held(&self) -> Vec<Held> {
        let here = self.slots.used().filter(|cachelet| cachelet.front.is_here());
        let held = here.filter_map(|Cachelet { front, inner }| {
            let pages = front.aged.all_pages() as usize + inner.lock().index.pages();
            let (owner, work) = (WorkerId(front.owner() as u16), front.work());
            let bytes = (pages * self.shared.pages.bytes) as u64;
            Some(Held { prefix: front.prefix()?, owner, work, bytes })
        });
        let mut held: Vec<Held> = held.collect();
        held.sort_unstable_by_key(|held| held.prefix);
        held
    }

    /// Counts work for the sake of the cachelet of a key that is served here. What is counted by two workers at once may get lost.
    #[inline]
    pub fn count_work(&self, hash: u64, work: u64) {
        self.serving(hash).front.count_work(work);
    }

    /// The same for the sake of other servers' clients.
    #[inline]
    pub fn count_linked(&self, hash: u64, work: u64) {
        self.serving(hash).front.count_linked(work);
    }

    /// The owner `from` gives a cachelet to another worker: one store, and its pages go along.
    /// False, and nothing has changed, if it is not the owner, or not the one of version `seen`.
    pub fn give(&self, prefix: Prefix, from: WorkerId, to: WorkerId, seen: u64) -> bool {
        let Some(Cachelet { front, inner }) = self.present(prefix) else { return false };
        let _writer = inner.lock();
        let is_still = front.prefix() == Some(prefix) && !front.away.is_all();
        if !is_still || front.owner() != usize::from(from.0) || !front.owned_since(seen) {
            return false;
        }
        front.set_owner(usize::from(to.0), &self.version);
        true
    }

    /// The cachelet `prefix` is served here from now on, empty, by worker `owner`. False, and nothing has changed, if some of it
    /// is here already, or has not yet gone, or the store has no room for another.
    pub fn adopt(&self, prefix: Prefix, owner: WorkerId, birth: Birth) -> bool {
        self.bring(prefix, owner, birth, None)
    }

    /// [`Cachelets::adopt`]; of a cachelet that arrives from another server nothing is served yet.
    pub(crate) fn bring(
        &self,
        prefix: Prefix,
        owner: WorkerId,
        birth: Birth,
        from: Option<ServerId>,
    ) -> bool {
        let mut changes = self.slots.changes();
        if !self.routes.is_absent(prefix) {
            return false;
        }
        let Some(cachelet) = self.slots.vacant(&mut changes, self.epochs()) else { return false };
        let known = self.shared.flushes.know(birth.flush_number);
        // A flush that has passed here is not to miss what arrives from where it has not been yet. When it is over it does not come there
        // any more: what is sent from now on came after it, though its source may not have heard of it.
        let is_over = from.is_some() && known <= self.shared.flushes.over();
        let flush_number = if is_over { birth.flush_number } else { known };
        self.bear(cachelet, prefix, owner, Birth { flush_number, ..birth }, from);
        let (at, number) = changes.flush_next;
        // Of the last flush and one to come two servers may have given the same number. One that has passed drops nothing of what is new.
        // What arrives is told of it by its source.
        if number > known || number == known && from.is_none() {
            cachelet.inner.lock().flushed.await_next(&cachelet.front, at, number);
        }
        // Last: who reads a version finds what it says.
        cachelet.front.set_owner(usize::from(owner.0), &self.version);
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
            vacant.front.away.begin_to_arrive(prefix.first_hash(), from);
        }
        vacant.front.set_prefix(Some(prefix));
        self.routes.set(prefix, Way::Here(vacant.front.slot));
    }

    /// All cachelets of a store that is alone, of equal width, dealt out among the workers.
    pub(crate) fn bear_all(&self) {
        let mut changes = self.slots.changes();
        let (cachelets, workers) = (self.options().cachelets, self.options().workers);
        let birth = Birth { generation: self.options().generation, flush_number: 0 };
        for (at, prefix) in Prefix::equal(cachelets.trailing_zeros()).enumerate() {
            let owner = WorkerId((at * workers / cachelets) as u16);
            let vacant = self.slots.vacant(&mut changes, self.epochs());
            let vacant = vacant.expect("no more than there is room for");
            self.bear(vacant, prefix, owner, birth, None);
        }
    }

    /// From now on keys of this cachelet are served elsewhere. What was here is dropped as soon as no worker can be in it, by
    /// [`crate::Store::background`]. False, and nothing has changed, if it is absent, or is being split.
    pub fn release(&self, prefix: Prefix, to: Elsewhere) -> bool {
        let mut changes = self.slots.changes();
        let Some(Cachelet { front, inner }) = self.present(prefix) else { return false };
        if inner.lock().split.is_under_way() {
            return false;
        }
        front.away.set(Some(to));
        self.version.fetch_add(1, Release);
        let stamp = self.batches.stamp();
        self.slots.leave(&mut changes, Leaving { stamp, slot: front.slot, prefix, to });
        true
    }

    /// Says where the keys of an absent cachelet are served, by a map whose version says so. False, and nothing has changed, if some of it is here.
    pub fn point(&self, prefix: Prefix, to: Elsewhere) -> bool {
        let mut changes = self.slots.changes();
        if let Some(slot) = changes.redirect(prefix, to) {
            self.at(slot).front.away.set(Some(to));
        } else if !self.routes.is_absent(prefix) {
            return false;
        } else {
            self.routes.set(prefix, Way::Away(to));
        }
        true
    }

    /// Drops the next cachelet that has been released, if every worker has passed; true if one was. Part of [`crate::Store::background`].
    pub fn drop_released(&self, now: Seconds) -> bool {
        if !self.slots.has_leaving() {
            return false;
        }
        let mut changes = self.slots.changes();
        let Some(Leaving { slot, prefix, to, .. }) = changes.next_leaving(&self.batches) else {
            return false;
        };
        let cachelet = self.at(slot);
        cachelet.front.set_prefix(None);
        self.lock_cachelet(cachelet, now).vacate();
        self.routes.set(prefix, Way::Away(to));
        self.slots.has_gone(&mut changes, slot, self.epochs().stamp());
        true
    }
}
