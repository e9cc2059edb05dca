//! The memory limit of a running store: raised at once, lowered by and by.

use std::ops::ControlFlow;

use mbal_model::Seconds;

use crate::store::Store;

/// No limit leaves a cachelet fewer: an open page of each temper, one of the index, one to clean with.
const PAGES_PER_CACHELET_MIN: usize = 4;

/// Cleaned ahead of other workers' batches.
const WAITING_MAX: u32 = 8;

impl Store {
    /// `cache_memlimit`: from now on items and their index have `bytes`. False, and nothing has changed, if
    /// the memory has no room for that.
    ///
    /// More may be used at once. What is in use beyond a lower limit is evicted, and its memory returned to
    /// the system, in the workers' background time. The index shrinks with what is evicted, but later, and
    /// the largest item must still fit: a limit below these is heeded as far as they let it.
    pub fn set_memory_limit(&self, bytes: usize) -> bool {
        if !self.memory.commit(bytes) {
            return false;
        }
        let floor = PAGES_PER_CACHELET_MIN * self.cachelets().count() * self.page_bytes
            + 2 * self.options().item_bytes_max
            + self
                .cachelets()
                .map(|cachelet| self.stats_in(cachelet).index_bytes as usize)
                .sum::<usize>();
        let pages = bytes.max(floor.min(self.memory.committed())) >> self.page_shift;
        self.pool.set_limit(pages as u32);
        true
    }

    /// Where nothing is evicted: bytes that are free, and what compaction would win. O(cachelets).
    pub fn room_bytes(&self) -> Option<u64> {
        if self.options().evict {
            return None;
        }
        let kept = self.pages_left() * self.options().workers as u32;
        let free = u64::from(self.pool.unused().saturating_sub(kept)) * self.page_bytes as u64;
        let won = |cachelet| self.lock_cachelet(cachelet, 0).bytes_to_compact();
        Some(free + self.cachelets().map(won).sum::<u64>())
    }

    /// Whether memory that is used for the first time may come in huge pages: yes, if nothing else is said.
    pub fn touch_huge_pages(&self, may: bool) {
        self.memory.touch_huge_pages(may);
    }

    /// One step towards a smaller surplus. Breaks with whether it is worth trying again soon.
    pub(crate) fn shrink(&self, worker: usize, now: Seconds) -> ControlFlow<bool> {
        let waiting = self.pool.reap(worker, &self.epochs);
        if let Some(page) = self.pool.take_surplus(worker, &self.epochs) {
            let start = (page as usize) << self.page_shift;
            self.memory.decommit(start..start + self.page_bytes);
            self.pool.returned(page);
        } else if waiting >= self.pool.surplus().min(WAITING_MAX) {
            return ControlFlow::Break(true);
        } else if !self.clean_one(worker, now) {
            return ControlFlow::Break(false);
        }
        ControlFlow::Continue(())
    }
}
