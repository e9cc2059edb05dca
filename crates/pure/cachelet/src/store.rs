//! All cachelets of one server, shared by its workers.

use std::sync::Arc;

use mbal_locks::ranks;
use mbal_model::{Prefix, Seconds, WorkerId};

use crate::cachelet::Cachelet;
use crate::chosen::Keep;
use crate::classes::Witness;
use crate::evict::Begun;
use crate::item::Item;
use crate::log::TTL_CLASSES_MAX;
use crate::memory::Memory;
use crate::policy::Gauge;
use crate::pool::{Page, Pool};
use crate::presence::{CACHELETS_MAX, Slots};
use crate::routes::{Routes, Slot, Way};
use crate::shim::{AtomicU32, AtomicU64, Ordering::*};
use crate::sync::{Epochs, SpinLock, enter, leave};
use crate::types::{Options, StoreStats};

/// Pages are this part of a cachelet's share of the memory, within bounds.
const PAGES_PER_CACHELET: usize = 128;
const PAGE_BYTES_MIN: usize = 4 << 10;
const PAGE_BYTES_MAX: usize = 64 << 10;

/// Longer items are chained, so that less than this part of a page is lost at its end.
pub(crate) const INLINE_PER_PAGE: usize = 8;

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
    /// How long values are, see [`Store::wrote_long`].
    pub(crate) long: AtomicU64,
    /// Main pages are not judged before so many have been sealed: items came from another server.
    pub(crate) judged_from: AtomicU64,
    /// The time that items' accesses carry, see `samples`.
    pub(crate) era: AtomicU32,
    /// By worker.
    pub(crate) gauges: Box<[SpinLock<ranks::Gauge, Gauge>]>,
    pub(crate) slots: Slots,
    /// Grows whenever a cachelet comes, goes, is split, or changes its owner.
    pub(crate) version: AtomicU64,
    pub(crate) routes: Routes,
    /// The highest number of a `flush_all` that has been done to a cachelet here.
    pub(crate) flushes: AtomicU32,
    /// None up to this number is under way anywhere.
    pub(crate) flushes_over: AtomicU32,
    /// Seconds since 1970 at second 0.
    unix_start: AtomicU64,
    pub(crate) evictions: AtomicU32,
    /// By worker: the page that it has cleaned a part of.
    pub(crate) begun: Box<[SpinLock<ranks::Begun, Option<Begun>>]>,
    /// The latest second that a worker has told of.
    clock: AtomicU32,
    /// Cachelets with pages that a flush has dropped, and that are still to be given back.
    pub(crate) with_dropped: AtomicU32,
    /// Cachelets that are being split.
    pub(crate) splitting: AtomicU32,
    pub(crate) witness: Witness,
    /// What stays while others' items arrive, if policy does not say so alone.
    pub(crate) keep: SpinLock<ranks::Keep, Option<Arc<Keep>>>,
    /// The second in which each worker last found no expired page.
    pub(crate) looked_for_expired: Box<[AtomicU32]>,
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
            long: AtomicU64::new(0),
            judged_from: AtomicU64::new(0),
            era: AtomicU32::new(0),
            gauges: (0..options.workers).map(|_| SpinLock::new(Gauge::default())).collect(),
            slots: Slots::new(),
            version: AtomicU64::new(0),
            routes: Routes::new(),
            flushes: AtomicU32::new(0),
            flushes_over: AtomicU32::new(0),
            unix_start: AtomicU64::new(0),
            evictions: AtomicU32::new(0),
            begun: (0..options.workers).map(|_| SpinLock::new(None)).collect(),
            clock: AtomicU32::new(0),
            with_dropped: AtomicU32::new(0),
            splitting: AtomicU32::new(0),
            witness: Witness::new(),
            keep: SpinLock::new(None),
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
        self.slots.used()
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

    /// The wall clock at second 0 of the times that are given here, in seconds since 1970: so times of items mean the same on other servers.
    pub fn starts_at(&self, unix: u64) {
        self.unix_start.store(unix, Relaxed);
    }

    pub(crate) fn unix_at(&self, now: Seconds) -> u64 {
        self.unix_start.load(Relaxed) + u64::from(now)
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

    pub(crate) fn child(&self, cachelet: &Cachelet) -> &Cachelet {
        let child = cachelet.child.load(Acquire);
        self.at(child.checked_sub(1).expect("a moved slice has a child to go to") as Slot)
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
        sum.free_bytes = u64::from(self.pool.unused()) * self.page_bytes as u64;
        sum.used_bytes = u64::from(self.pool.used()) * self.page_bytes as u64;
        sum
    }
}

#[cold]
fn not_here() -> ! {
    unreachable!("its worker asked for the key's route in this epoch")
}
