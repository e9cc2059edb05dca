//! Room for what is to be stored. It is made ahead where that goes, bit by bit where it does not, and nobody waits for it here.

use mbal_model::{Seconds, WorkerId};

use crate::reading::Ahead;
use crate::routes::Way;
use crate::store::{INLINE_PER_PAGE, Store};

/// Memory that is kept free for each worker's writes.
const RESERVE_BYTES: usize = 256 << 10;
/// What one that is alone keeps free ahead of its writes is no more than this part of all.
const RESERVES_PER_SHARE: u32 = 512;
/// And the pages that a write may need at once: one to write to, and one for the index.
const PAGES_OF_A_WRITE: u32 = 2;
/// With no more every write cleans a part of a page, so that none has to clean a whole one: those two, and two that
/// writes may open meanwhile.
const PAGES_AHEAD_OF_A_WRITE: u32 = PAGES_OF_A_WRITE + 2;

/// A value that needs more has a part of each page in so many bytes cleaned for it in one go.
const CLEANED_BYTES_AT_ONCE: usize = 64 << 10;
/// Parts of pages that are cleaned in one go for a value that needs no page of its own.
const PARTS_AT_ONCE: usize = 16;
/// Goes of [`Store::reserve_at_once`]: some milliseconds. Others may take what is made free as fast as that is done.
const GOES_MAX: u32 = 64;

/// What came of [`Store::reserve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "there may be none yet"]
pub enum Room {
    /// There is.
    There,
    /// There is now. The worker has left its epoch for that: what [`Store::prefetch_bucket`] has told is void, here and below.
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

    /// [`Store::reserve`] where [`Store::prefetch_bucket`] has told for this hash, in the same epoch. If it does not say
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
            Some(cachelet) => cachelet.owner(),
            None => self.owner_or(worker, hash),
        };
        let pages = self.pages_for(bytes);
        if self.pool.available(owner) > pages.max(PAGES_AHEAD_OF_A_WRITE) {
            return Room::There;
        }
        self.make_room_outside(worker, owner, pages, now)
    }

    /// [`Store::make_room`], for which the worker leaves its epoch.
    #[cold]
    #[inline(never)]
    fn make_room_outside(&self, worker: WorkerId, owner: usize, pages: u32, now: Seconds) -> Room {
        self.epochs.leave(worker.0.into());
        let room = self.make_room(owner, pages, now);
        self.epochs.enter(worker.0.into());
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
            Way::Here(slot) => self.at(slot).owner(),
            Way::Away(_) => worker.0.into(),
        }
    }

    /// A page's end may be lost with every piece.
    #[inline]
    pub(crate) fn pages_for(&self, bytes: usize) -> u32 {
        ((bytes + bytes / INLINE_PER_PAGE) >> self.page_shift) as u32 + PAGES_OF_A_WRITE
    }

    fn make_room(&self, owner: usize, pages: u32, now: Seconds) -> Room {
        self.clean_ahead(owner, now);
        if self.pool.available(owner) > pages {
            return Room::Made;
        }
        let is_long = pages > self.pages_for(0);
        // Another worker may take of what is made free for a long value, before that is stored.
        let ahead = if is_long { self.pages_left() } else { 1 };
        let parts = if is_long { CLEANED_BYTES_AT_ONCE / self.page_bytes } else { PARTS_AT_ONCE };
        self.pool.collect(owner, self.pages_left(), &self.epochs);
        for _ in 0..parts {
            let waiting = self.pool.reap(owner, &self.epochs);
            if self.pool.available(owner) > pages {
                return Room::Made;
            }
            if waiting >= pages + ahead {
                return Room::InUse;
            }
            if !self.clean_one(owner, now) {
                return self.collect_room(owner, pages, waiting);
            }
        }
        self.pool.reap(owner, &self.epochs);
        if self.pool.available(owner) > pages { Room::Made } else { Room::Partly }
    }

    /// Nothing is left to clean: takes what others keep free.
    fn collect_room(&self, owner: usize, pages: u32, waiting: u32) -> Room {
        self.pool.collect(owner, 0, &self.epochs);
        let (alone, evicts) = (self.options().workers == 1, self.options().evict);
        if self.pool.available(owner) > pages {
            Room::Made
        } else if waiting > 0 || (evicts && !alone) {
            Room::InUse
        } else {
            Room::Nowhere
        }
    }

    /// So that not one of those who write has to clean a whole page at once.
    fn clean_ahead(&self, owner: usize, now: Seconds) {
        let waiting = self.pool.reap(owner, &self.epochs);
        let enough = self.pages_left().min(PAGES_AHEAD_OF_A_WRITE + 1);
        if self.options().evict && self.pool.available(owner) + waiting < enough {
            self.clean_one(owner, now);
        }
    }

    /// Pages that a worker has made free ahead of its writes. One that is alone waits for nobody's batch until they are
    /// free, so few will do.
    pub(crate) fn pages_ahead(&self) -> u32 {
        match self.options().workers {
            1 => {
                let part = self.share() / RESERVES_PER_SHARE + PAGES_OF_A_WRITE;
                self.pages_left().min(part.max(PAGES_AHEAD_OF_A_WRITE + 1))
            }
            _ => self.pages_left(),
        }
    }

    /// True while some worker has hardly more free pages than it keeps for its writes: what is stored makes others go.
    pub fn is_full(&self) -> bool {
        let ahead = self.pages_ahead();
        (0..self.options().workers).any(|worker| self.pool.available(worker) < 2 * ahead)
    }

    /// Pages that a worker is left for its writes while another needs many at once.
    pub(crate) fn pages_left(&self) -> u32 {
        let pages = (RESERVE_BYTES / self.page_bytes) as u32 + PAGES_OF_A_WRITE;
        pages.min(self.share() / 16).max(PAGES_OF_A_WRITE)
    }

    /// A worker's part of all pages.
    fn share(&self) -> u32 {
        self.pool.limit() / self.options().workers as u32
    }
}
