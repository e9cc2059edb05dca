//! All cachelets of one server, shared by its workers.

use std::ops::ControlFlow;

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Key, Prefix, Seconds, WorkerId};

use crate::bucket::{Bucket, tag_of};
use crate::cachelet::{Cachelet, Locked};
use crate::classes::Witness;
use crate::index::Dir;
use crate::item::Item;
use crate::log::TTL_CLASSES_MAX;
use crate::memory::{Memory, Offset, prefetch};
use crate::policy::{Gauge, Temper, Victim};
use crate::pool::{Page, PageId, Pool};
use crate::presence::{CACHELETS_MAX, Changes, Slots};
use crate::routes::{Routes, Slot, Way};
use crate::shim::{AtomicU32, AtomicU64, Ordering::*};
use crate::slice::{self, Slice};
use crate::sync::{Epochs, SpinLock, enter, leave, pause};
use crate::types::{Options, StoreStats};
use crate::view::View;

/// Pages are this part of a cachelet's share of the memory, within bounds.
const PAGES_PER_CACHELET: usize = 128;
const PAGE_BYTES_MIN: usize = 4 << 10;
const PAGE_BYTES_MAX: usize = 64 << 10;

/// Longer items are chained, so that less than this part of a page is lost at its end.
const INLINE_PER_PAGE: usize = 8;

/// Memory that is kept free for each worker's writes.
const RESERVE_BYTES: usize = 256 << 10;
/// What one that is alone keeps free ahead of its writes is no more than this part of all.
const RESERVES_PER_SHARE: u32 = 512;
/// And the pages that a write may need at once: one to write to, and one for the index.
const PAGES_OF_A_WRITE: u32 = 2;
/// With no more every write cleans a part of a page, so that none has to clean a whole one: those two, and two that
/// writes may open meanwhile.
const PAGES_AHEAD_OF_A_WRITE: u32 = PAGES_OF_A_WRITE + 2;

/// Every so many evictions the oldest page of the whole server goes, whoever owns it: so memory
/// flows to the workers whose items live shortest.
const TRADE_EVERY: u32 = 8;

/// A value that needs more has a part of each page in so many bytes cleaned for it in one go.
const CLEANED_BYTES_AT_ONCE: usize = 64 << 10;

/// Dropped pages that are given back in one go, at a cache miss each: some ten microseconds.
const GIVEN_BACK_AT_ONCE: usize = 64;

/// Tries before a writer that finds no memory is told so. Each waits a moment for the other workers'
/// batches, all of them for some 20 ms: longer than a worker is kept from its core.
const RESERVE_TRIES: u32 = 200_000;
/// Of these, so many may find nothing to clean.
const FRUITLESS_MAX: u32 = 2_000;

/// Why there is nothing to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    NotFound,
    /// It is there, but dead by its deadline.
    Expired,
}

/// Where a key's item is looked for: what [`Store::prefetch_bucket`] found out for those who look next.
#[derive(Clone, Copy)]
pub struct Ahead<'s>(Option<Home<'s>>);

/// A key's home bucket.
#[derive(Clone, Copy)]
struct Home<'s> {
    cachelet: &'s Cachelet,
    /// Another one as soon as the cachelet has been flushed.
    dir: *const Dir,
    bucket: &'s Bucket,
}

impl Ahead<'_> {
    /// Of no key.
    pub const NONE: Ahead<'static> = Ahead(None);

    /// Who owns the key's cachelet, if that is here and known.
    #[inline]
    pub fn owner(&self) -> Option<WorkerId> {
        self.0.map(|home| WorkerId(home.cachelet.owner() as u16))
    }
}

/// A page that eviction has cleaned a part of, and what its choice went by: the rest goes by the same.
#[derive(Clone, Copy)]
struct Begun {
    cachelet: Slot,
    page: PageId,
    victim: Victim,
}

pub struct Store {
    options: Options,
    pub(crate) memory: Memory,
    pub(crate) page_bytes: usize,
    pub(crate) page_shift: u32,
    pub(crate) inline_bytes_max: usize,
    /// Logs by remaining time that this memory has room for.
    pub(crate) ttl_classes: usize,
    pub(crate) pages: Box<[Page]>,
    pub(crate) pool: Pool,
    pub(crate) epochs: Epochs,
    /// The same for whole batches, which a worker does not leave while it makes room.
    pub(crate) batches: Epochs,
    /// Pages sealed so far, by anybody.
    pub(crate) seals: AtomicU64,
    /// The time that items' accesses carry, see `samples`.
    pub(crate) era: AtomicU32,
    /// By worker.
    pub(crate) gauges: Box<[SpinLock<Gauge>]>,
    pub(crate) slots: Slots,
    /// Grows whenever a cachelet comes, goes, is split, or changes its owner.
    pub(crate) version: AtomicU64,
    pub(crate) routes: Routes,
    /// The highest number of a `flush_all` that has been done to a cachelet here.
    pub(crate) flushes: AtomicU32,
    evictions: AtomicU32,
    /// By worker: the page that it has cleaned a part of.
    begun: Box<[SpinLock<Option<Begun>>]>,
    /// The latest second that a worker has told of.
    clock: AtomicU32,
    /// Cachelets with pages that a flush has dropped, and that are still to be given back.
    pub(crate) with_dropped: AtomicU32,
    pub(crate) witness: Witness,
    /// The second in which each worker last found no expired page.
    looked_for_expired: Box<[AtomicU32]>,
}

impl Store {
    /// A store in memory from the allocator.
    pub fn new(options: Options) -> Store {
        let memory = Memory::heap(options.memory_bytes);
        Store::with_memory(options, memory)
    }

    /// A store that has all cachelets, of equal width, dealt out among the workers.
    ///
    /// # Panics
    /// As [`Store::try_with_memory`], and if that has none for what is known of pages.
    pub fn with_memory(options: Options, memory: Memory) -> Store {
        Store::try_with_memory(options, memory).expect("memory for what is known of pages")
    }

    /// `None`: the allocator has no memory for what is known of each page, which grows with what `memory` may grow to.
    ///
    /// # Panics
    /// If the number of cachelets is not a power of two up to 4,096, or workers are none.
    pub fn try_with_memory(options: Options, memory: Memory) -> Option<Store> {
        let store = Store::vacant(options, memory)?;
        store.bear_all();
        Some(store)
    }

    /// A store without any cachelet; else as [`Store::try_with_memory`].
    pub fn vacant(options: Options, memory: Memory) -> Option<Store> {
        assert!(options.cachelets.is_power_of_two() && options.cachelets <= CACHELETS_MAX);
        assert!(options.workers > 0, "a store belongs to workers");
        assert!(memory.commit(options.memory_bytes), "the memory has room for -m");
        let share = options.memory_bytes / options.cachelets;
        let page_bytes = (share / PAGES_PER_CACHELET).clamp(PAGE_BYTES_MIN, PAGE_BYTES_MAX);
        let page_bytes = 1usize << page_bytes.ilog2();
        let pages = (options.memory_bytes / page_bytes) as u32;
        let chunk = (pages / (16 * options.workers as u32)).clamp(1, (1 << 20) / page_bytes as u32);
        Some(Store {
            page_bytes,
            page_shift: page_bytes.trailing_zeros(),
            inline_bytes_max: page_bytes / INLINE_PER_PAGE,
            ttl_classes: (share / page_bytes / 16).min(TTL_CLASSES_MAX),
            pages: Page::untouched((memory.bytes() / page_bytes) as u32)?,
            pool: Pool::new(pages, options.workers, chunk),
            epochs: Epochs::new(options.workers),
            batches: Epochs::new(options.workers),
            seals: AtomicU64::new(0),
            era: AtomicU32::new(0),
            gauges: (0..options.workers).map(|_| SpinLock::new(Gauge::default())).collect(),
            slots: Slots::new(),
            version: AtomicU64::new(0),
            routes: Routes::new(),
            flushes: AtomicU32::new(0),
            evictions: AtomicU32::new(0),
            begun: (0..options.workers).map(|_| SpinLock::new(None)).collect(),
            clock: AtomicU32::new(0),
            with_dropped: AtomicU32::new(0),
            witness: Witness::new(),
            looked_for_expired: (0..options.workers).map(|_| AtomicU32::new(0)).collect(),
            options,
            memory,
        })
    }

    /// The memory of a store that nobody needs any more, as zero as from [`Memory::heap`]; where stores come and
    /// go, that is cheaper: only what was used is touched.
    pub fn into_memory(self) -> Memory {
        let Store { mut memory, pool, page_bytes, .. } = self;
        memory.zero(pool.untouched() as usize * page_bytes);
        memory
    }

    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Every slot in use: what is served here, and what comes or goes.
    #[inline]
    pub(crate) fn cachelets(&self) -> impl Iterator<Item = &Cachelet> + Clone {
        self.slots.used().iter().map(|slot| &**slot.get().expect("a used slot has a cachelet"))
    }

    #[inline(always)]
    pub(crate) fn at(&self, slot: Slot) -> &Cachelet {
        self.slots.at(slot)
    }

    /// The cachelet of a key that [`Store::route`] has said is served here, in the same epoch.
    #[inline(always)]
    pub(crate) fn serving(&self, hash: u64) -> &Cachelet {
        match self.routes.of(hash) {
            Way::Here(slot) => self.at(slot),
            Way::Away(_) => not_here(),
        }
    }

    /// How often something has changed that [`Store::route`] tells. Who reads this, then the owners,
    /// knows owners of this version or later ones.
    #[inline]
    pub fn version(&self) -> u64 {
        self.version.load(Acquire)
    }

    /// The owner `from` gives a cachelet to another worker: one store, and its pages go along.
    /// False, and nothing has changed, if it is not the owner, or not the one of version `seen`.
    pub fn give(&self, prefix: Prefix, from: WorkerId, to: WorkerId, seen: u64) -> bool {
        let Some(cachelet) = self.present(prefix) else { return false };
        let _writer = cachelet.inner.lock();
        let is_still = cachelet.prefix() == Some(prefix) && !cachelet.is_away();
        if !is_still || cachelet.owner() != usize::from(from.0) || !cachelet.owned_since(seen) {
            return false;
        }
        cachelet.set_owner(usize::from(to.0), &self.version);
        true
    }

    /// The latest second of all workers, who may be behind each other: what one has found dead, no other finds alive.
    #[inline(always)]
    pub(crate) fn latest(&self, now: Seconds) -> Seconds {
        let latest = self.clock.load(Relaxed);
        if now <= latest { latest } else { self.clock.fetch_max(now, Relaxed).max(now) }
    }

    #[inline(always)]
    pub(crate) fn page_of(&self, item: &Item) -> usize {
        item.position_in(&self.memory) >> self.page_shift
    }

    /// Asks for the cache line of the key's index bucket, ahead of `read` or `lock`. Between [`Store::enter`] and
    /// [`Store::leave`].
    #[inline]
    pub fn prefetch_bucket(&self, hash: u64) -> Ahead<'_> {
        let home = self.home(hash).and_then(Result::ok);
        if let Some(home) = home {
            prefetch(&raw const *home.bucket as *const u8);
        }
        Ahead(home)
    }

    /// Asks for the item's cache lines; the bucket should have arrived. In the same epoch, see
    /// [`Store::look_ahead`].
    #[inline]
    pub fn prefetch_item(&self, hash: u64, ahead: Ahead<'_>) {
        let Some(Home { bucket, .. }) = ahead.0 else { return };
        if let Some(offset) = self.find(bucket, hash, |_| true) {
            let at = self.memory.at(offset);
            prefetch(at);
            prefetch(at.wrapping_add(64));
        }
    }

    /// The first item with this hash that `accept` knows, by its home bucket.
    #[inline(always)]
    fn find(&self, home: &Bucket, hash: u64, accept: impl Fn(Offset) -> bool) -> Option<Offset> {
        if let Some((_, offset)) = home.find(tag_of(hash), &accept) {
            return Some(offset);
        }
        match home.version.reach() {
            0 => None,
            reach => self.search_beyond(hash, reach, accept),
        }
    }

    /// Few items are not in their home buckets: apart, so that it is not in the way of the others.
    #[cold]
    #[inline(never)]
    fn search_beyond(
        &self,
        hash: u64,
        reach: usize,
        accept: impl Fn(Offset) -> bool,
    ) -> Option<Offset> {
        let (.., slice) = self.slice(hash)?;
        Some(slice.search_beyond(hash, reach, accept)?.offset)
    }

    /// Must be called by worker `worker` before a batch of operations, and `leave` after it:
    /// between them memory that the worker may be looking at is not reused.
    #[inline]
    pub fn enter(&self, worker: WorkerId) {
        enter(&self.batches, &self.epochs, worker.0.into());
    }

    /// See [`Store::enter`].
    #[inline]
    pub fn leave(&self, worker: WorkerId) {
        leave(&self.batches, &self.epochs, worker.0.into());
    }

    #[inline(always)]
    pub(crate) fn way<'s>(
        &'s self,
        dir: *const Dir,
        cachelet: &'s Cachelet,
        hash: u64,
    ) -> slice::Way<'s> {
        // SAFETY: it is the cachelet's directory, which is freed only after every worker left the epoch in which it was
        // replaced.
        let dir = unsafe { &*dir };
        dir.entries[dir.index(hash, cachelet.prefix_bits.load(Relaxed))].way(&self.memory)
    }

    /// The slice of `hash`, and whose it is, by which directory; `None` if no key of it is stored here.
    #[inline(always)]
    fn slice(&self, hash: u64) -> Option<(&Cachelet, *const Dir, Slice<'_>)> {
        let Way::Here(slot) = self.routes.of(hash) else { return None };
        let mut cachelet = self.at(slot);
        loop {
            let dir = cachelet.dir.load(Acquire);
            match self.way(dir, cachelet, hash) {
                slice::Way::Nowhere => return None,
                slice::Way::Moved => cachelet = self.child(cachelet),
                slice::Way::Slice(slice) => return Some((cachelet, dir, slice)),
            }
        }
    }

    /// The key's home bucket: `None` if no key of its slice is stored, an error while the slice is being changed.
    #[inline(always)]
    fn home(&self, hash: u64) -> Option<Result<Home<'_>, ()>> {
        let (cachelet, dir, slice) = self.slice(hash)?;
        Some(slice.home(hash).map(|bucket| Home { cachelet, dir, bucket }).ok_or(()))
    }

    /// Shows the live item of `key` to `show`, and counts as an access if `access`. Between
    /// [`Store::enter`] and [`Store::leave`].
    ///
    /// Optimistic: `show` may be called again when a writer came in between, with `out` cut back
    /// to its length before, so it must have no other effect. `None` is a miss.
    #[inline]
    pub fn read<R>(
        &self,
        key: &Key,
        now: Seconds,
        access: bool,
        out: &mut Vec<u8>,
        show: impl FnMut(&View, &mut Vec<u8>) -> R,
    ) -> Option<R> {
        self.look(key, now, access, out, show).ok()
    }

    /// [`Store::read`] that says why there is nothing to read.
    #[inline]
    pub fn look<R>(
        &self,
        key: &Key,
        now: Seconds,
        access: bool,
        out: &mut Vec<u8>,
        show: impl FnMut(&View, &mut Vec<u8>) -> R,
    ) -> Result<R, Miss> {
        self.look_ahead(Ahead::NONE, key, now, access, out, show)
    }

    /// [`Store::look`] where [`Store::prefetch_bucket`] has told for this key, in the same epoch: before the worker reserves
    /// room. What changes a bucket changes its version, and a flush the directory, so nothing that was done meanwhile
    /// is overlooked.
    #[inline]
    pub fn look_ahead<R>(
        &self,
        ahead: Ahead<'_>,
        key: &Key,
        now: Seconds,
        access: bool,
        out: &mut Vec<u8>,
        mut show: impl FnMut(&View, &mut Vec<u8>) -> R,
    ) -> Result<R, Miss> {
        let now = self.latest(now);
        let (hash, key) = (key.hash(), key.bytes());
        let length = out.len();
        let mut spins = 0;
        let mut known =
            ahead.0.filter(|home| home.cachelet.dir.load(Acquire).cast_const() == home.dir);
        loop {
            let home = match known.take().map_or_else(|| self.home(hash), |home| Some(Ok(home))) {
                None => return Err(Miss::NotFound),
                Some(Err(())) => {
                    pause(&mut spins);
                    continue;
                }
                Some(Ok(home)) => home,
            };
            let flush_at = home.cachelet.flush_at.load(Relaxed);
            if flush_at != 0 && flush_at <= now {
                drop(self.lock(hash, now));
                continue;
            }
            let Some(seen) = home.bucket.version.begin() else {
                pause(&mut spins);
                continue;
            };
            let accept = |offset| {
                // Where the value begins is known when the key has arrived: too late to ask for its line.
                prefetch(self.memory.at(offset).wrapping_add(64));
                Item::at(&self.memory, offset).has_key(key)
            };
            let shown = match self.find(home.bucket, hash, accept) {
                None => Err(Miss::NotFound),
                Some(offset) => {
                    let item = Item::at(&self.memory, offset);
                    let view = View::new(self, home.cachelet, item, now);
                    match view.expired() {
                        true => Err(Miss::Expired),
                        false => Ok((item, show(&view, out))),
                    }
                }
            };
            if home.bucket.version.unchanged(seen) {
                let (item, shown) = shown?;
                if access {
                    item.touch_access(now, self.era());
                }
                return Ok(shown);
            }
            out.truncate(length);
            pause(&mut spins);
        }
    }

    pub(crate) fn child(&self, cachelet: &Cachelet) -> &Cachelet {
        let child = cachelet.child.load(Acquire);
        self.at(child.checked_sub(1).expect("a moved slice has a child to go to") as Slot)
    }

    /// Takes the writer lock of the cachelet that serves `hash`. Between [`Store::enter`] and
    /// [`Store::leave`].
    #[inline]
    pub fn lock(&self, hash: u64, now: Seconds) -> Locked<'_> {
        let mut cachelet = self.serving(hash);
        loop {
            let locked = self.lock_cachelet(cachelet, now);
            // Under the lock nobody moves it.
            let moves = cachelet.child.load(Relaxed) != 0;
            if !(moves
                && matches!(
                    self.way(cachelet.dir.load(Acquire), cachelet, hash),
                    slice::Way::Moved
                ))
            {
                return locked;
            }
            cachelet = self.child(cachelet);
        }
    }

    #[inline]
    pub(crate) fn lock_cachelet<'a>(&'a self, cachelet: &'a Cachelet, now: Seconds) -> Locked<'a> {
        let inner = cachelet.inner.lock();
        let now = self.latest(now);
        let pool = cachelet.owner();
        let mut locked =
            Locked { store: self, cachelet, inner, now, pool, cleaning: false, window: u32::MAX };
        let flush_at = cachelet.flush_at.load(Relaxed);
        if flush_at != 0 && flush_at <= now {
            let number = locked.inner.flush_next;
            locked.flush(number);
        }
        locked
    }

    /// `flush_all`: everything stored before second `at` dies then; at once if `at` ≤ `now`. Its number, by which the other servers
    /// of a cluster are told, see [`Store::flush_as`].
    pub fn flush(&self, at: Seconds, now: Seconds) -> u32 {
        let mut changes = self.changes();
        let number = self.newest_flush(&changes).saturating_add(1);
        self.flush_all(&mut changes, number, at, now);
        number
    }

    /// The number of the newest `flush_all` that this server knows of.
    pub fn flush_number(&self) -> u32 {
        self.newest_flush(&self.changes())
    }

    fn newest_flush(&self, changes: &Changes) -> u32 {
        self.flushes.load(Relaxed).max(changes.flush_next.1)
    }

    /// A `flush_all` that another server has begun, and given this number: above that of every flush that it knew of. What travels
    /// from a server that has seen it to one that has not, or the other way, is told apart by it.
    pub fn flush_as(&self, number: u32, at: Seconds, now: Seconds) {
        self.flush_all(&mut self.changes(), number, at, now);
    }

    /// Nothing comes, goes or is split meanwhile: else a part that moves could be passed over.
    fn flush_all(&self, changes: &mut Changes, number: u32, at: Seconds, now: Seconds) {
        changes.flush_next = (at, number);
        for cachelet in self.cachelets() {
            if is_planted(Fault::FlushSkipsNewHalf) && cachelet.prefix().is_none() {
                continue;
            }
            let mut locked = self.lock_cachelet(cachelet, now);
            if at <= now {
                locked.flush(number);
            } else {
                locked.cachelet.flush_at.store(at, Relaxed);
                locked.inner.flush_next = number;
            }
        }
    }

    /// Pages that a worker has made free ahead of its writes. One that is alone waits for nobody's batch until they are
    /// free, so few will do.
    fn pages_ahead(&self) -> u32 {
        match self.options.workers {
            1 => {
                let part = self.share() / RESERVES_PER_SHARE + PAGES_OF_A_WRITE;
                self.pages_left().min(part.max(PAGES_AHEAD_OF_A_WRITE + 1))
            }
            _ => self.pages_left(),
        }
    }

    /// Pages that a worker is left for its writes while another needs many at once.
    fn pages_left(&self) -> u32 {
        let pages = (RESERVE_BYTES / self.page_bytes) as u32 + PAGES_OF_A_WRITE;
        pages.min(self.share() / 16).max(PAGES_OF_A_WRITE)
    }

    /// A worker's part of all pages.
    fn share(&self) -> u32 {
        self.pool.limit() / self.options.workers as u32
    }

    /// Sees to it that an item of about `bytes` can be stored under `hash`, by eviction if need be.
    /// Called by worker `worker` before it takes the lock, holding nothing found before.
    ///
    /// Cheap while memory is kept free ahead. Where that comes to an end it cleans a part of a page; where it has,
    /// whole pages, and waits, out of its own epoch, for the batches of other workers.
    ///
    /// True if it has left its epoch meanwhile: what [`Store::prefetch_bucket`] has told is void.
    #[inline]
    pub fn reserve(&self, worker: WorkerId, hash: u64, bytes: usize, now: Seconds) -> bool {
        let owner = self.owner_or(worker, hash);
        let pages = self.pages_for(bytes);
        let leaves = self.pool.available(owner) <= pages.max(PAGES_AHEAD_OF_A_WRITE);
        if leaves {
            self.epochs.leave(worker.0.into());
            self.clean_ahead(owner, now);
            if self.pool.available(owner) <= pages {
                self.make_room(owner, pages, now);
            }
            self.epochs.enter(worker.0.into());
        }
        leaves
    }

    /// The owner of a key's cachelet; `worker` if that is absent.
    #[inline]
    fn owner_or(&self, worker: WorkerId, hash: u64) -> usize {
        match self.routes.of(hash) {
            Way::Here(slot) => self.at(slot).owner(),
            Way::Away(_) => worker.0.into(),
        }
    }

    /// So that not one of those who write has to clean a whole page at once.
    #[cold]
    fn clean_ahead(&self, owner: usize, now: Seconds) {
        let waiting = self.pool.reap(owner, &self.epochs);
        let enough = self.pages_left().min(PAGES_AHEAD_OF_A_WRITE + 1);
        if self.options.evict && self.pool.available(owner) + waiting < enough {
            self.clean_one(owner, now);
        }
    }

    /// Does a part of what [`Store::reserve`] would have to do for a long value, no more than
    /// [`CLEANED_BYTES_AT_ONCE`] of cleaning; false if there is more to be done. So a value of many pages
    /// does not keep a worker from its other connections.
    pub fn reserve_part(&self, worker: WorkerId, hash: u64, bytes: usize, now: Seconds) -> bool {
        let owner = self.owner_or(worker, hash);
        let pages = self.pages_for(bytes);
        let at_once = (CLEANED_BYTES_AT_ONCE / self.page_bytes) as u32;
        if self.pool.available(owner) > pages || pages <= at_once || !self.options.evict {
            return true;
        }
        self.epochs.leave(worker.0.into());
        for _ in 0..at_once {
            if self.pool.available(owner) + self.pool.reap(owner, &self.epochs) > pages {
                break;
            }
            self.clean_one(owner, now);
        }
        self.epochs.enter(worker.0.into());
        self.pool.available(owner) > pages
    }

    /// A page's end may be lost with every piece.
    pub(crate) fn pages_for(&self, bytes: usize) -> u32 {
        ((bytes + bytes / INLINE_PER_PAGE) >> self.page_shift) as u32 + PAGES_OF_A_WRITE
    }

    #[cold]
    fn make_room(&self, owner: usize, pages: u32, now: Seconds) {
        let (mut spins, mut fruitless) = (0, 0);
        // Another worker may take of what is made free for a long value, before that is stored.
        let ahead = if pages > self.pages_for(0) { self.pages_left() } else { 1 };
        self.pool.collect(owner, self.pages_left(), &self.epochs);
        for _ in 0..RESERVE_TRIES {
            let waiting = self.pool.reap(owner, &self.epochs);
            if self.pool.available(owner) > pages {
                break;
            }
            if waiting < pages + ahead {
                if !self.clean_one(owner, now) && waiting == 0 {
                    // All that could be cleaned is another worker's at this moment, or there is nothing.
                    self.pool.collect(owner, 0, &self.epochs);
                    fruitless += 1;
                    if fruitless > FRUITLESS_MAX || !self.options.evict {
                        break;
                    }
                    pause(&mut spins);
                }
            } else {
                pause(&mut spins);
            }
        }
    }

    /// Gives some of the pages that a flush has dropped to `worker`; false if there are none.
    fn give_back_dropped(&self, worker: usize, now: Seconds) -> bool {
        if self.with_dropped.load(Relaxed) == 0 {
            return false;
        }
        self.cachelets().any(|cachelet| {
            let mut locked = self.lock_cachelet(cachelet, now);
            locked.pool = worker;
            locked.give_back_dropped(GIVEN_BACK_AT_ONCE)
        })
    }

    /// Cleans a part of a page of a cachelet of `worker`, or of another; false if there is none to clean.
    pub(crate) fn clean_one(&self, worker: usize, now: Seconds) -> bool {
        if self.give_back_dropped(worker, now) {
            return true;
        }
        let mut cachelets = self.cachelets();
        if let Some(cachelet) = cachelets.find(|c| c.expires.load(Relaxed) <= now) {
            if self.clean_expired(cachelet, worker, now) {
                return true;
            }
        }
        if self.collect_spare(worker) {
            return true;
        }
        if !self.options.evict {
            let mut cachelets = self.cachelets();
            return cachelets.any(|cachelet| self.lock_cachelet(cachelet, now).compact());
        }
        if self.go_on_cleaning(worker, now) {
            return true;
        }
        let turn = self.evictions.fetch_add(1, Relaxed);
        let of_all = turn % TRADE_EVERY == 0;
        (!of_all && self.clean_among(worker, now, |cachelet| cachelet.owner() == worker))
            || self.clean_among(worker, now, |_| true)
    }

    /// Takes what other workers keep free beyond twice their need: they may have been given back much that they do not use.
    /// False if that is nothing.
    fn collect_spare(&self, worker: usize) -> bool {
        let keep = self.pages_left();
        if !self.pool.is_spare_elsewhere(worker, 2 * keep) {
            return false;
        }
        let before = self.pool.available(worker);
        self.pool.collect(worker, keep, &self.epochs);
        self.pool.available(worker) > before
    }

    /// Cleans another part of the page that `worker` has begun; false if that page is not the oldest any more.
    fn go_on_cleaning(&self, worker: usize, now: Seconds) -> bool {
        let Some(begun) = self.begun[worker].lock().take() else { return false };
        let mut locked = self.lock_cachelet(self.at(begun.cachelet), now);
        let is_oldest = locked.peek_oldest(begun.victim.temper) == Some(begun.page);
        is_oldest && self.clean_for(worker, &mut locked, begun.victim)
    }

    fn clean_for(&self, worker: usize, locked: &mut Locked, victim: Victim) -> bool {
        locked.pool = worker;
        locked.window = victim.window;
        let cleaned = locked.clean_oldest(victim.temper);
        let begun = locked.peek_oldest(victim.temper).filter(|&page| locked.is_begun(page));
        let cachelet = locked.cachelet.slot;
        *self.begun[worker].lock() = begun.map(|page| Begun { cachelet, page, victim });
        cleaned
    }

    /// Cleans a part of the oldest page among these cachelets, for `worker` to use.
    fn clean_among(
        &self,
        worker: usize,
        now: Seconds,
        eligible: impl Fn(&Cachelet) -> bool,
    ) -> bool {
        let cachelets = || self.cachelets().filter(|c| eligible(c));
        let Victim { temper: first, window } = self.next_victim(worker, now, cachelets);
        let second = if first == Temper::New { Temper::Main } else { Temper::New };
        for temper in [first, second] {
            let age = |c: &&Cachelet| c.oldest[temper as usize].load(Relaxed);
            let fill = |c: &&Cachelet| c.log_pages[temper as usize].load(Relaxed);
            // Where no page is sealed, the cachelet with most open ones gives one.
            let victim = cachelets()
                .filter(|c| fill(c) > 0)
                .min_by_key(|c| (age(c), std::cmp::Reverse(fill(c))));
            if let Some(victim) = victim {
                let mut locked = self.lock_cachelet(victim, now);
                if self.clean_for(worker, &mut locked, Victim { temper, window }) {
                    return true;
                }
            }
        }
        false
    }

    /// At most `budget` steps of expiry and of eviction ahead for the cachelets of `worker`, each a
    /// part of a page; true if there is more to do. Not between [`Store::enter`] and [`Store::leave`].
    pub fn background(&self, worker: WorkerId, now: Seconds, budget: usize) -> bool {
        let worker = usize::from(worker.0);
        for _ in 0..budget {
            if self.drop_released(now) || self.give_back_dropped(worker, now) {
                continue;
            }
            if self.pool.surplus() > 0 {
                match self.shrink(worker, now) {
                    ControlFlow::Continue(()) => continue,
                    ControlFlow::Break(more) => return more,
                }
            }
            if self.pool.available(worker) >= self.pages_ahead() {
                return self.expire_one(worker, now);
            }
            let waiting = self.pool.reap(worker, &self.epochs);
            if self.pool.available(worker) + waiting >= self.pages_ahead() {
                return true;
            }
            if !self.clean_one(worker, now) {
                return false;
            }
        }
        true
    }

    /// Cleans a part of a page whose items are all dead by their deadline. Looks once a second until it
    /// finds nothing.
    fn expire_one(&self, worker: usize, now: Seconds) -> bool {
        let looked_at = &self.looked_for_expired[worker];
        if self.ttl_classes == 0 || looked_at.load(Relaxed) == now {
            return false;
        }
        let owned = self.cachelets().filter(|c| c.owner() == worker);
        for cachelet in owned {
            if self.clean_expired(cachelet, worker, now) {
                return true;
            }
        }
        looked_at.store(now, Relaxed);
        false
    }

    fn clean_expired(&self, cachelet: &Cachelet, worker: usize, now: Seconds) -> bool {
        let mut locked = self.lock_cachelet(cachelet, now);
        locked.pool = worker;
        let Some(page) = locked.expired_page() else { return false };
        locked.clean(page)
    }

    /// One cachelet's, without what only a whole store has; counters are those of all that were in its place.
    /// `None` if it is absent.
    pub fn stats_of(&self, prefix: Prefix) -> Option<StoreStats> {
        self.present(prefix).map(|cachelet| self.stats_in(cachelet))
    }

    pub(crate) fn stats_in(&self, cachelet: &Cachelet) -> StoreStats {
        let inner = cachelet.inner.lock();
        let index_bytes = (inner.blocks.pages() * self.page_bytes) as u64;
        StoreStats { index_bytes, ..inner.stats }
    }

    pub fn stats(&self) -> StoreStats {
        let mut sum = StoreStats::default();
        for cachelet in self.cachelets() {
            sum.add(&self.stats_in(cachelet));
        }
        sum.free_pages = self.pool.unused().into();
        sum.used_bytes = u64::from(self.pool.used()) * self.page_bytes as u64;
        sum
    }
}

#[cold]
fn not_here() -> ! {
    unreachable!("its worker asked for the key's route in this epoch")
}
