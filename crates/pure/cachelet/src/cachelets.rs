//! The cachelets of a store: how they are found, and locked.

use mbal_locks::{Held, Rank};
use mbal_model::{Prefix, Seconds, WorkerId};

use crate::ahead::Ahead;
use crate::cachelet::Cachelet;
use crate::front::Front;
use crate::locked::Locked;
use crate::memory::Memory;
use crate::routes::{Routes, Slot, Way};
use crate::shared::Shared;
use crate::shim::{AtomicU64, Ordering::*};
use crate::slice;
use crate::slots::Slots;
use crate::sync::{Epochs, enter, leave};
use crate::types::Options;

/// Which cachelets are here, and what they share. All of [`crate::Store`] but what makes room, splits and moves.
pub struct Cachelets {
    pub(crate) shared: Shared,
    pub(crate) slots: Slots,
    pub(crate) routes: Routes,
    /// Grows whenever a cachelet comes, goes, is split, or changes its owner.
    pub(crate) version: AtomicU64,
    /// As the epochs of the pages, of whole batches, which a worker does not leave while it makes room.
    pub(crate) batches: Epochs,
}

impl Cachelets {
    /// None is here yet.
    pub(crate) fn new(shared: Shared) -> Cachelets {
        Cachelets {
            batches: Epochs::new(shared.options.workers),
            slots: Slots::new(),
            routes: Routes::new(),
            version: AtomicU64::new(0),
            shared,
        }
    }

    pub fn options(&self) -> &Options {
        &self.shared.options
    }

    /// The wall clock at second 0 of the times that are given here, in seconds since 1970: so times of items mean the same on other servers.
    pub fn starts_at(&self, unix: u64) {
        self.shared.clock.starts_at(unix);
    }

    /// How often something has changed that [`Cachelets::route`] tells. Who reads this, then the owners,
    /// knows owners of this version or later ones.
    #[inline]
    pub fn version(&self) -> u64 {
        self.version.load(Acquire)
    }

    /// Must be called by worker `worker` before a batch of operations, and `leave` after it:
    /// between them memory that the worker may be looking at is not reused.
    #[inline]
    pub fn enter(&self, worker: WorkerId) {
        enter(&self.batches, self.epochs(), worker.0.into());
    }

    /// See [`Cachelets::enter`].
    #[inline]
    pub fn leave(&self, worker: WorkerId) {
        leave(&self.batches, self.epochs(), worker.0.into());
    }

    #[inline(always)]
    pub(crate) fn memory(&self) -> &Memory {
        &self.shared.pages.memory
    }

    #[inline(always)]
    pub(crate) fn epochs(&self) -> &Epochs {
        self.shared.pages.pool.epochs()
    }

    #[inline(always)]
    pub(crate) fn at(&self, slot: Slot) -> &Cachelet {
        self.slots.at(slot)
    }

    /// What others see of every cachelet.
    #[inline]
    pub(crate) fn fronts(&self) -> impl Iterator<Item = &Front> + Clone {
        self.slots.used().map(|cachelet| &cachelet.front)
    }

    /// The cachelet of a key that [`Cachelets::route`] has said is served here, in the same epoch.
    #[inline(always)]
    pub(crate) fn serving(&self, hash: u64) -> &Cachelet {
        match self.routes.of(hash) {
            Way::Here(slot) => self.at(slot),
            Way::Away(_) => not_here(),
        }
    }

    pub(crate) fn present(&self, prefix: Prefix) -> Option<&Cachelet> {
        let Way::Here(slot) = self.routes.of(prefix.first_hash()) else { return None };
        let cachelet = self.at(slot);
        let front = &cachelet.front;
        (front.prefix() == Some(prefix) && !front.away.is_all()).then_some(cachelet)
    }

    pub(crate) fn child(&self, of: &Front) -> &Cachelet {
        self.at(of.root.child().expect("a moved slice has a child to go to") as Slot)
    }

    /// Takes the writer lock of the cachelet that serves `hash`. Between [`Cachelets::enter`] and
    /// [`Cachelets::leave`].
    #[inline]
    pub fn lock(&self, hash: u64, now: Seconds) -> Locked<'_> {
        self.lock_from(self.serving(hash), hash, now)
    }

    /// [`Cachelets::lock`] where [`Cachelets::prefetch_bucket`] has told for this hash, in the same epoch: so long the cachelet in which
    /// the key's slice was seen has it still, or leads on to the child to which it has moved.
    #[inline]
    pub fn lock_ahead<'s>(&'s self, ahead: Ahead<'s>, hash: u64, now: Seconds) -> Locked<'s> {
        let cachelet = ahead.cachelet().unwrap_or_else(|| self.serving(hash));
        self.lock_from(cachelet, hash, now)
    }

    #[inline]
    fn lock_from<'s>(&'s self, cachelet: &'s Cachelet, hash: u64, now: Seconds) -> Locked<'s> {
        let mut cachelet = cachelet;
        loop {
            let locked = self.lock_cachelet(cachelet, now);
            let root = &cachelet.front.root;
            // Under the lock nobody moves it.
            if !(root.has_child()
                && matches!(root.way(root.dir(), hash, self.memory()), slice::Way::Moved))
            {
                return locked;
            }
            cachelet = self.child(&cachelet.front);
        }
    }

    #[inline]
    pub(crate) fn lock_cachelet<'a>(&'a self, cachelet: &'a Cachelet, now: Seconds) -> Locked<'a> {
        Locked::new(&self.shared, cachelet, cachelet.inner.lock(), now)
    }

    /// The same, for `worker` to get the pages that come free.
    pub(crate) fn lock_for<'a>(
        &'a self,
        worker: usize,
        cachelet: &'a Cachelet,
        now: Seconds,
    ) -> Locked<'a> {
        let mut locked = self.lock_cachelet(cachelet, now);
        locked.site.worker = worker;
        locked
    }

    /// The upper half of a cachelet that is being split, and that is locked.
    pub(crate) fn lock_half<'a>(&'a self, half: &'a Cachelet, now: Seconds) -> Locked<'a> {
        let inner = half.inner.lock_as(Held::enter(Rank::NewHalf));
        Locked::new(&self.shared, half, inner, now)
    }

    /// The cachelet that has the slice of `from` now, locked, and where the slice ends.
    pub(crate) fn lock_slice(&self, slot: Slot, from: u64, now: Seconds) -> (Locked<'_>, u128) {
        let mut cachelet = self.at(slot);
        let mut end = u128::MAX;
        loop {
            let locked = self.lock_cachelet(cachelet, now);
            let site = &locked.site;
            // What a child does not have yet is empty there: its slice may seem longer than it is.
            end = end.min(site.end_of_slice(from));
            if !site.dir().entries[site.entry(from)].has_moved() {
                return (locked, end);
            }
            cachelet = self.child(site.front);
        }
    }
}

#[cold]
fn not_here() -> ! {
    unreachable!("its worker asked for the key's route in this epoch")
}
