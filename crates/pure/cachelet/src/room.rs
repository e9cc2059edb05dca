//! Room for what is to be stored. It is made ahead where that goes, bit by bit where it does not, and nobody waits for it here.

use std::ops::ControlFlow;

use mbal_model::{Seconds, WorkerId};

use crate::ahead::Ahead;
use crate::evict::give_back_dropped;
use crate::pool::Pool;
use crate::reserves::{
    PAGES_AHEAD_OF_A_WRITE, pages_ahead, pages_for, pages_left, pages_to_refill,
};
use crate::routes::Way;
use crate::store::Store;

/// A value that needs more has a part of each page in so many bytes cleaned for it in one go.
const CLEANED_BYTES_AT_ONCE: usize = 64 << 10;
/// Parts of pages that are cleaned in one go for a value that needs no page of its own.
const PARTS_AT_ONCE: usize = 16;
/// Goes of [`Store::reserve_at_once`]: some milliseconds. Others may take what is made free as fast as that is done.
const GOES_MAX: u32 = 64;

/// What a step of [`Store::background_step`] is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chore {
    /// A cachelet that has gone, or a page that moves have dropped.
    Release,
    Split,
    /// Less memory than before: a page goes back to the system, or is cleaned for that.
    Shrink,
    Expire,
    /// A part of a page, ahead of the writes that will need it.
    Evict,
}

/// What came of [`Store::reserve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "there may be none yet"]
pub enum Room {
    /// There is.
    There,
    /// There is now. The worker has left its epoch for that: what [`crate::Cachelets::prefetch_bucket`] has told is void, here and below.
    Made,
    /// Not yet: there is more to clean. Ask again when others have had their turn.
    Partly,
    /// Not yet: what could be free is still seen by other workers' batches, or is being cleaned by them. Ask again a moment later.
    InUse,
    /// Nothing is left that may be cleaned. What is stored all the same is refused, unless it is smaller.
    Nowhere,
}

impl Store {
    /// Sees to it that an item of about `bytes` can be stored under `hash`, by eviction if need be.
    /// Called by worker `worker` before it takes the lock, holding nothing found before.
    ///
    /// Cheap while memory is kept free ahead. Where that comes to an end it cleans a part of a page; where it has, a
    /// bounded number of parts. It never waits: memory that other workers' batches may still see is free later.
    #[inline]
    pub fn reserve(&self, worker: WorkerId, hash: u64, bytes: usize, now: Seconds) -> Room {
        self.reserve_ahead(Ahead::NONE, worker, hash, bytes, now)
    }

    /// [`Store::reserve`] where [`crate::Cachelets::prefetch_bucket`] has told for this hash, in the same epoch. If it does not say
    /// [`Room::There`], that is void.
    #[inline]
    pub fn reserve_ahead(
        &self,
        ahead: Ahead<'_>,
        worker: WorkerId,
        hash: u64,
        bytes: usize,
        now: Seconds,
    ) -> Room {
        let owner = match ahead.cachelet() {
            Some(cachelet) => cachelet.front.owner(),
            None => self.owner_or(worker, hash),
        };
        let pages = pages_for(&self.shared.pages, bytes);
        if self.has_room(owner, pages) {
            return Room::There;
        }
        self.make_room_outside(worker, owner, pages, now)
    }

    /// So much that no write has to do anything for the next ones.
    #[inline]
    fn has_room(&self, owner: usize, pages: u32) -> bool {
        let (pool, available) = (self.pool(), self.pool().available(owner));
        available > pages.max(PAGES_AHEAD_OF_A_WRITE)
            && available + pool.waiting(owner) >= pool.to_refill()
    }

    /// [`Store::make_room`], for which the worker leaves its epoch.
    #[cold]
    #[inline(never)]
    fn make_room_outside(&self, worker: WorkerId, owner: usize, pages: u32, now: Seconds) -> Room {
        self.epochs().leave(worker.0.into());
        let room = self.make_room(owner, pages, now);
        self.epochs().enter(worker.0.into());
        room
    }

    /// [`Store::reserve`] that cleans [`GOES_MAX`] times as much before it says [`Room::Partly`], and waits as little.
    pub fn reserve_at_once(&self, worker: WorkerId, hash: u64, bytes: usize, now: Seconds) -> Room {
        let mut goes = (0..GOES_MAX).map(|_| self.reserve(worker, hash, bytes, now));
        goes.find(|room| *room != Room::Partly).unwrap_or(Room::Partly)
    }

    /// The owner of a key's cachelet; `worker` if that is absent.
    #[inline]
    fn owner_or(&self, worker: WorkerId, hash: u64) -> usize {
        match self.routes.of(hash) {
            Way::Here(slot) => self.at(slot).front.owner(),
            Way::Away(_) => worker.0.into(),
        }
    }

    fn make_room(&self, owner: usize, pages: u32, now: Seconds) -> Room {
        self.clean_ahead(owner, now);
        if self.pool().available(owner) > pages {
            return Room::Made;
        }
        let is_long = pages > pages_for(&self.shared.pages, 0);
        // Another worker may take of what is made free for a long value, before that is stored.
        let ahead = if is_long { pages_left(&self.shared) } else { 1 };
        let parts =
            if is_long { CLEANED_BYTES_AT_ONCE / self.shared.pages.bytes } else { PARTS_AT_ONCE };
        let keep = pages_left(&self.shared);
        if self.pool().is_spare_elsewhere(owner, keep) {
            self.pool().collect(owner, keep);
        }
        for _ in 0..parts {
            let waiting = self.pool().reap(owner);
            if self.pool().available(owner) > pages {
                return Room::Made;
            }
            if waiting >= pages + ahead {
                return Room::InUse;
            }
            if !self.clean_one(owner, now) {
                return self.collect_room(owner, pages, waiting);
            }
        }
        self.pool().reap(owner);
        if self.pool().available(owner) > pages { Room::Made } else { Room::Partly }
    }

    /// Nothing is left to clean: takes what others keep free.
    fn collect_room(&self, owner: usize, pages: u32, waiting: u32) -> Room {
        self.pool().collect(owner, 0);
        let (alone, evicts) = (self.options().workers == 1, self.options().evict);
        if self.pool().available(owner) > pages {
            Room::Made
        } else if waiting > 0 || (evicts && !alone) {
            Room::InUse
        } else {
            Room::Nowhere
        }
    }

    /// So that not one of those who write has to clean a whole page at once.
    fn clean_ahead(&self, owner: usize, now: Seconds) {
        let waiting = self.reap_if_short(owner);
        let enough = pages_to_refill(&self.shared);
        if self.options().evict && self.pool().available(owner) + waiting < enough {
            self.clean_one(owner, now);
        }
    }

    /// Makes free what waits, where too little is: others' batches are looked at once for several pages. The number of those that wait.
    fn reap_if_short(&self, owner: usize) -> u32 {
        let is_alone = self.options().workers == 1;
        match is_alone || self.pool().available(owner) <= PAGES_AHEAD_OF_A_WRITE {
            true => self.pool().reap(owner),
            false => self.pool().waiting(owner),
        }
    }

    /// True while some worker has hardly more free pages than it keeps for its writes: what is stored makes others go.
    pub fn is_full(&self) -> bool {
        let ahead = pages_ahead(&self.shared);
        (0..self.options().workers).any(|worker| self.pool().available(worker) < 2 * ahead)
    }

    fn pool(&self) -> &Pool {
        &self.shared.pages.pool
    }

    pub(crate) fn clean_one(&self, worker: usize, now: Seconds) -> bool {
        self.cleaner.clean_one(self, worker, now)
    }

    /// At most `budget` steps for the cachelets of `worker`, see [`Self::background_step`]; true if there is more to do.
    pub fn background(&self, worker: WorkerId, now: Seconds, budget: usize) -> bool {
        (0..budget).all(|_| self.background_step(worker, now).1)
    }

    /// A step for the cachelets of `worker`: of splits that have begun, of expiry or of eviction ahead, a part of a page. What it was for,
    /// and whether there is more to do. Not between [`crate::Cachelets::enter`] and [`crate::Cachelets::leave`].
    pub fn background_step(&self, worker: WorkerId, now: Seconds) -> (Option<Chore>, bool) {
        let worker = usize::from(worker.0);
        self.shared.pages.populate_ahead();
        if self.drop_released(now) || give_back_dropped(self, worker, now) {
            return (Some(Chore::Release), true);
        }
        if self.go_on_splitting(worker, now) {
            return (Some(Chore::Split), true);
        }
        if self.pool().surplus() > 0 {
            let more = match self.cleaner.shrink(self, worker, now) {
                ControlFlow::Continue(()) => true,
                ControlFlow::Break(more) => more,
            };
            return (Some(Chore::Shrink), more);
        }
        let expire = || match self.cleaner.expire_one(self, worker, now) {
            true => (Some(Chore::Expire), true),
            false => (None, false),
        };
        if self.pool().available(worker) >= pages_ahead(&self.shared) {
            return expire();
        }
        let waiting = self.reap_if_short(worker);
        let available = self.pool().available(worker);
        if available + waiting < pages_ahead(&self.shared) {
            let more = self.clean_one(worker, now);
            return (more.then_some(Chore::Evict), more);
        }
        match available <= PAGES_AHEAD_OF_A_WRITE {
            true => (None, true),
            false => expire(),
        }
    }
}
