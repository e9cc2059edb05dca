//! What is told of a store's items: counters, classes, ages, evictions.

use mbal_model::{CLASSES, Prefix, Seconds};

use crate::cachelet::Cachelet;
use crate::cachelets::Cachelets;
use crate::chosen::age_for_choice;
use crate::classes::{ClassStats, Classes, class_of};
use crate::routes::Way;
use crate::slice::Slice;
use crate::types::StoreStats;
use crate::witness::Evicted;

/// Of the items of one class: how many there are, and the ages of some of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassAges {
    pub items: u64,
    /// As memcached would count them.
    pub bytes: u64,
    /// Seconds between the last access and the moment that was asked for, 0 if it was later; more of what was never read, see
    /// `policy`. Sorted, youngest first.
    pub ages: Vec<Seconds>,
}

impl Cachelets {
    /// One cachelet's, without what only a whole store has; counters are those of all that were in its place.
    /// `None` if it is absent.
    pub fn stats_of(&self, prefix: Prefix) -> Option<StoreStats> {
        self.present(prefix).map(|cachelet| self.stats_in(cachelet))
    }

    pub(crate) fn stats_in(&self, cachelet: &Cachelet) -> StoreStats {
        let inner = cachelet.inner.lock();
        let index_bytes = (inner.index.pages() * self.shared.pages.bytes) as u64;
        StoreStats { index_bytes, ..*inner.items.counts.stats() }
    }

    pub fn stats(&self) -> StoreStats {
        let mut sum = StoreStats::default();
        for cachelet in self.slots.used() {
            sum.add(&self.stats_in(cachelet));
        }
        let pages = &self.shared.pages;
        sum.free_bytes = u64::from(pages.pool.unused()) * pages.bytes as u64;
        sum.used_bytes = self.used_bytes();
        sum
    }

    /// Pages that hold something, as [`StoreStats::used_bytes`] has it, without a look at each cachelet.
    pub fn used_bytes(&self) -> u64 {
        let pages = &self.shared.pages;
        u64::from(pages.pool.used()) * pages.bytes as u64
    }

    /// By class, 0 is none.
    pub fn class_stats(&self) -> Box<Classes> {
        let mut sums = Box::new([ClassStats::default(); CLASSES]);
        for cachelet in self.slots.used() {
            let inner = cachelet.inner.lock();
            for (sum, class) in sums.iter_mut().zip(inner.items.counts.classes()) {
                sum.add(class);
            }
        }
        sums
    }

    /// From now on keeps evicted items for [`Cachelets::take_evicted`], or no longer.
    pub fn watch_evictions(&self, on: bool) {
        self.shared.witness.turn(on);
    }

    /// What was evicted since the last call, and how many more there were than were kept.
    pub fn take_evicted(&self) -> (Vec<Evicted>, u64) {
        self.shared.witness.take()
    }

    /// By class, 0 is none. About `most` ages in all: every so manieth item of each slice is looked at, whose lock is held so long.
    /// Reads of items that nobody locks may have been lost from their access times, one in many.
    ///
    /// For a thread that is no worker. O(index + `most` cache misses).
    pub fn ages(&self, at: Seconds, now: Seconds, most: usize) -> Vec<ClassAges> {
        let every = (self.stats().items as usize / most.max(1)).max(1);
        let mut all = vec![ClassAges::default(); CLASSES];
        for (class, counted) in all.iter_mut().zip(self.class_stats().iter()) {
            (class.items, class.bytes) = (counted.items, counted.bytes);
        }
        let mut count = 0;
        let mut from = self.routes.next_here(0);
        while let Some(hash) = from {
            let Way::Here(slot) = self.routes.of(hash) else {
                from = self.routes.next_here(hash);
                continue;
            };
            let (locked, end) = self.lock_slice(slot, hash, now);
            let site = &locked.site;
            let slice = site.slice_at(site.entry(hash));
            for item in slice.into_iter().flat_map(Slice::offsets).map(|at| site.item(at)) {
                count += 1;
                if count % every == 0 {
                    let age = age_for_choice(&self.shared.pages, item, at, now);
                    all[class_of(item).0].ages.push(age);
                }
            }
            from = u64::try_from(end).ok().and_then(|hash| self.routes.next_here(hash));
        }
        all.iter_mut().for_each(|class| class.ages.sort_unstable());
        all
    }
}
