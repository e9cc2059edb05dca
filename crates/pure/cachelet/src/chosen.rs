//! Items that are chosen by their last access: those that a cachelet takes along to another server, and those that make no room for what
//! arrives. Ages are by memcached's classes of size.

use std::sync::Arc;

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{CLASSES, Key, Prefix, Seconds};

use crate::access::Access;
use crate::classes::class_of;
use crate::item::Item;
use crate::shim::Ordering::*;
use crate::store::Store;

/// By class, the age below which an item is chosen, at a moment of this server's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgeThresholds {
    at: Seconds,
    /// [`Seconds::MAX`] chooses all.
    younger_than: [Seconds; CLASSES],
    /// Of the items of that very age so many 65,536ths are chosen, by their hashes.
    tied: [u16; CLASSES],
}

/// What stays of the pages that were full at a moment.
pub(crate) struct Keep {
    age_thresholds: AgeThresholds,
    /// Order of the last page.
    until: u64,
}

impl AgeThresholds {
    /// Everything is chosen, as long as nothing else is said of its class. What is used after `at` is younger than anything.
    pub fn at(at: Seconds) -> AgeThresholds {
        AgeThresholds { at, younger_than: [Seconds::MAX; CLASSES], tied: [0; CLASSES] }
    }

    pub fn younger_than(&mut self, class: usize, age: Seconds, tied: u16) {
        self.younger_than[class % CLASSES] = age;
        self.tied[class % CLASSES] = tied;
    }

    pub(crate) fn choose(&self, store: &Store, item: Item, now: Seconds) -> bool {
        let class = class_of(item).0;
        let bound = self.younger_than[class];
        if bound == Seconds::MAX {
            return true;
        }
        let is_used_since = Access(item.access()).last(now) > self.at;
        let age = store.age_for_choice(item, self.at, now);
        let is_chosen =
            is_used_since || age < bound || age == bound && is_among(item, self.tied[class]);
        is_chosen != is_planted(Fault::ColdestTravel)
    }
}

/// Of items that share an age this one is among the first so many 65,536ths.
fn is_among(item: Item, part: u16) -> bool {
    let hash = Key::new(item.key()).expect("a stored key has a valid length").hash();
    ((hash >> 16) as u16) < part
}

impl Keep {
    /// Whether this rule holds for a page of that order.
    pub fn holds_for(&self, order: u64) -> bool {
        order <= self.until
    }

    pub fn stays(&self, store: &Store, item: Item, now: Seconds) -> bool {
        self.age_thresholds.choose(store, item, now)
    }

    /// The same of items that were not used since: what clients write is no more protected than ever.
    pub fn stays_since(&self, store: &Store, item: Item, now: Seconds) -> bool {
        Access(item.access()).last(now) <= self.age_thresholds.at && self.stays(store, item, now)
    }
}

impl Store {
    /// Of a cachelet that leaves, and of which no slice is frozen: from now on items that are not chosen stay behind, and go with their slices.
    pub fn take_along(&self, prefix: Prefix, age_thresholds: AgeThresholds) {
        if let Some(cachelet) = self.present(prefix).filter(|cachelet| cachelet.leaves()) {
            cachelet.inner.lock().chosen = Some(Box::new(age_thresholds));
        }
    }

    /// What arrives from now on was chosen, and is as good as what is read here. From pages that are full by now, what is not chosen
    /// makes room, whatever policy would say; what is chosen stays, each item once.
    pub fn keep(&self, age_thresholds: AgeThresholds) {
        let mut keep = self.keep.lock();
        if keep.as_ref().is_none_or(|before| before.age_thresholds != age_thresholds) {
            let until = self.seals.load(Relaxed);
            *keep = Some(Arc::new(Keep { age_thresholds, until }));
        }
    }

    pub(crate) fn kept(&self) -> Option<Arc<Keep>> {
        self.keep.lock().clone()
    }
}
