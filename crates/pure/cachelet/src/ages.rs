//! How old items are, by class: a sample of every cachelet that is here.

use mbal_model::{CLASSES, Seconds};

use crate::access::Access;
use crate::classes::class_of;
use crate::item::Item;
use crate::log::temper_of;
use crate::policy::age_for_choice;
use crate::shim::Ordering::*;
use crate::slice::Slice;
use crate::store::Store;

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

impl Store {
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
            from = self.sample_slice(hash, now, |item| {
                count += 1;
                if count % every == 0 {
                    let (class, _) = class_of(item);
                    all[class].ages.push(self.age_for_choice(item, at, now));
                }
            });
            from = from.and_then(|hash| self.routes.next_here(hash));
        }
        all.iter_mut().for_each(|class| class.ages.sort_unstable());
        all
    }

    /// See [`age_for_choice`].
    pub(crate) fn age_for_choice(&self, item: Item, at: Seconds, now: Seconds) -> Seconds {
        let access = Access(item.access());
        let log = self.pages[self.page_of(&item)].log.load(Relaxed) as usize;
        age_for_choice(at.saturating_sub(access.last(now)), access, temper_of(log))
    }

    /// Shows the items of the slice of `hash`; where the next one begins.
    fn sample_slice(&self, hash: u64, now: Seconds, mut show: impl FnMut(Item)) -> Option<u64> {
        let crate::routes::Way::Here(slot) = self.routes.of(hash) else { return Some(hash) };
        let (locked, end) = self.lock_slice(slot, hash, now);
        let slice = locked.slice_at(locked.entry(hash));
        for offset in slice.into_iter().flat_map(Slice::offsets) {
            show(Item::at(&self.memory, offset));
        }
        u64::try_from(end).ok()
    }
}
