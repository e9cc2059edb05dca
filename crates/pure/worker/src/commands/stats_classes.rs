//! `stats items` and `stats slabs`: by memcached's classes of size, though memory is not cut by them here.
//!
//! What there is one of, is told of the list that memcached would evict from (cold); what only several
//! lists could count stays 0.

use mbal_cachelet::Dead;
use mbal_model::{CLASS_PAGE_BYTES, CLASSES, class_bytes, item_bytes, size_class};

use crate::commands::stats::Stats;

/// Slices, evenly over all keys, that are looked at to find out how long items go unused.
const SAMPLED_SLICES: u64 = 16;

impl Stats<'_, '_> {
    fn class_stat(&mut self, prefix: &str, class: usize, name: &str, value: u64) {
        self.stat(&format!("{prefix}{class}:{name}"), value);
    }

    pub(crate) fn stats_items(&mut self) {
        let since = self.on.shared.since_reset();
        let class_stats = self.on.shared.class_stats();
        let ages = self.sampled_ages();
        let segmented = self.on.shared.tuned.echoed.lock().lru_maintainer;
        for class in (1..CLASSES).filter(|class| class_stats[*class].items > 0) {
            let (store, done) = (&class_stats[class], &since.classes[class]);
            for (of_segments, name, value) in [
                (false, "number", store.items),
                (true, "number_hot", 0),
                (true, "number_warm", 0),
                (true, "number_cold", store.items),
                (true, "age_hot", 0),
                (true, "age_warm", 0),
                (false, "age", ages[class].into()),
                (false, "mem_requested", store.bytes),
                (false, "evicted", store.evicted),
                (false, "evicted_nonzero", store.evicted_nonzero),
                (false, "evicted_time", store.evicted_time),
                (false, "outofmemory", done.outofmemory),
                (false, "tailrepairs", 0),
                (false, "reclaimed", store.expired),
                (false, "expired_unfetched", store.expired_unfetched),
                (false, "evicted_unfetched", store.evicted_unfetched),
                (true, "evicted_active", 0),
                (false, "crawler_reclaimed", done.crawler_reclaimed),
                (false, "crawler_items_checked", done.crawler_items_checked),
                (false, "lrutail_reflocked", 0),
                (true, "moves_to_cold", 0),
                (true, "moves_to_warm", 0),
                (true, "moves_within_lru", 0),
                (true, "direct_reclaims", 0),
                (true, "hits_to_hot", 0),
                (true, "hits_to_warm", 0),
                (true, "hits_to_cold", done.get_hits),
                (true, "hits_to_temp", 0),
            ] {
                if segmented || !of_segments {
                    self.class_stat("items:", class, name, value);
                }
            }
        }
        self.line(b"END");
    }

    /// By class, the longest that one of some items has not been used, in seconds.
    fn sampled_ages(&self) -> [u32; CLASSES] {
        let mut ages = [0; CLASSES];
        let now = self.on.now().second;
        for sample in 0..SAMPLED_SLICES {
            let from = sample * (u64::MAX / SAMPLED_SLICES);
            self.on.shared.store.walk(from, now, Dead::PassOver, 0, |view| {
                let meta = view.meta();
                let bytes = item_bytes(view.key().len(), meta.flags, meta.value_bytes as usize);
                let age = &mut ages[size_class(bytes)];
                *age = (*age).max(now.saturating_sub(meta.last_access));
            });
        }
        ages
    }

    /// A class's items lie among those of others, in memory that is anybody's. While there is some left, a class has the free chunks of
    /// the page that its bytes have begun, as in memcached; in a full server none has: tools take that for a full class.
    pub(crate) fn stats_slabs(&mut self) {
        let is_full = self.on.shared.store.is_full();
        let since = self.on.shared.since_reset();
        let class_stats = self.on.shared.class_stats();
        let mut active = 0;
        for class in (1..CLASSES).filter(|class| class_stats[*class].items > 0) {
            let (store, done) = (&class_stats[class], &since.classes[class]);
            active += 1;
            let pages = store.bytes.div_ceil(CLASS_PAGE_BYTES as u64);
            let left = pages * CLASS_PAGE_BYTES as u64 - store.bytes;
            let free = if is_full { 0 } else { (left / class_bytes(class) as u64).max(1) };
            for (name, value) in [
                ("chunk_size", class_bytes(class) as u64),
                ("chunks_per_page", (CLASS_PAGE_BYTES / class_bytes(class)) as u64),
                ("total_pages", pages),
                ("total_chunks", store.items + free),
                ("used_chunks", store.items),
                ("free_chunks", free),
                ("free_chunks_end", 0),
                ("get_hits", done.get_hits),
                ("cmd_set", done.cmd_set),
                ("delete_hits", done.delete_hits),
                ("incr_hits", done.incr_hits),
                ("decr_hits", done.decr_hits),
                ("cas_hits", done.cas_hits),
                ("cas_badval", done.cas_badval),
                ("touch_hits", done.touch_hits),
            ] {
                self.class_stat("", class, name, value);
            }
        }
        self.stat("active_slabs", active);
        // All of it is the server's from the start, page by page as it is used.
        self.stat("total_malloced", self.on.shared.memory_limit());
        self.line(b"END");
    }
}
