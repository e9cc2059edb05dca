//! All cachelets of one server, shared by its workers.

use std::ops::Deref;

use mbal_model::Prefix;

use crate::cachelets::Cachelets;
use crate::chosen::AgeThresholds;
use crate::evict::Cleaner;
use crate::memory::Memory;
use crate::reserves::{pages_left, pages_to_refill};
use crate::shared::Shared;
use crate::shim::AtomicU32;
use crate::slots::CACHELETS_MAX;
use crate::types::Options;

/// No limit leaves a cachelet fewer pages: an open one of each temper, one of the index, one to clean with.
const PAGES_PER_CACHELET_MIN: usize = 4;

/// What can be said of its cachelets stands there.
pub struct Store {
    cachelets: Cachelets,
    pub(crate) cleaner: Cleaner,
    /// Cachelets that are being split.
    pub(crate) splitting: AtomicU32,
}

impl Deref for Store {
    type Target = Cachelets;

    #[inline(always)]
    fn deref(&self) -> &Cachelets {
        &self.cachelets
    }
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
        let store = Store {
            cleaner: Cleaner::new(options.workers),
            splitting: AtomicU32::new(0),
            cachelets: Cachelets::new(Shared::new(options, memory)?),
        };
        store.tell_when_to_refill();
        Some(store)
    }

    /// Nothing is made free where nothing is evicted; and one that is alone does not wait for what it has made free.
    fn tell_when_to_refill(&self) {
        let is_ahead = self.options().evict && self.options().workers > 1;
        let pages = if is_ahead { pages_to_refill(&self.shared) } else { 0 };
        self.shared.pages.pool.set_to_refill(pages);
    }

    /// The memory of a store that nobody needs any more, as zero as from [`Memory::heap`]; where stores come and
    /// go, that is cheaper: only what was used is touched.
    pub fn into_memory(self) -> Memory {
        self.cachelets.shared.pages.into_memory()
    }

    /// `cache_memlimit`: from now on items and their index have `bytes`. False, and nothing has changed, if
    /// the memory has no room for that.
    ///
    /// More may be used at once. What is in use beyond a lower limit is evicted, and its memory returned to
    /// the system, in the workers' background time. The index shrinks with what is evicted, but later, and
    /// the largest item must still fit: a limit below these is heeded as far as they let it.
    pub fn set_memory_limit(&self, bytes: usize) -> bool {
        let pages = &self.shared.pages;
        if !pages.memory.commit(bytes) {
            return false;
        }
        let index_bytes = |cachelet| self.stats_in(cachelet).index_bytes as usize;
        let floor = PAGES_PER_CACHELET_MIN * self.slots.used().count() * pages.bytes
            + 2 * self.options().item_bytes_max
            + self.slots.used().map(index_bytes).sum::<usize>();
        let limit = bytes.max(floor.min(pages.memory.committed())) >> pages.shift;
        pages.pool.set_limit(limit as u32);
        self.tell_when_to_refill();
        true
    }

    /// Where nothing is evicted: bytes that are free, and what compaction would win. O(cachelets).
    pub fn room_bytes(&self) -> Option<u64> {
        if self.options().evict {
            return None;
        }
        let pages = &self.shared.pages;
        let kept = pages_left(&self.shared) * self.options().workers as u32;
        let free = u64::from(pages.pool.unused().saturating_sub(kept)) * pages.bytes as u64;
        let won = |cachelet| {
            let locked = self.lock_cachelet(cachelet, 0);
            locked.inner.items.logs.bytes_to_compact(&locked.site)
        };
        Some(free + self.slots.used().map(won).sum::<u64>())
    }

    /// Whether memory that is used for the first time may come in huge pages: yes, if nothing else is said.
    pub fn touch_huge_pages(&self, may: bool) {
        self.memory().touch_huge_pages(may);
    }

    /// Of a cachelet that leaves, and of which no slice is frozen: from now on items that are not chosen stay behind, and go with their slices.
    pub fn take_along(&self, prefix: Prefix, age_thresholds: AgeThresholds) {
        if let Some(cachelet) = self.present(prefix).filter(|one| one.front.away.leaves()) {
            cachelet.inner.lock().chosen = Some(Box::new(age_thresholds));
        }
    }

    /// What arrives from now on was chosen, and is as good as what is read here. From pages that are full by now, what is not chosen
    /// makes room, whatever policy would say; what is chosen stays, each item once.
    pub fn keep(&self, age_thresholds: AgeThresholds) {
        self.shared.kept.set(age_thresholds, self.shared.pages.eras.seals());
    }
}
