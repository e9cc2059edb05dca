//! Items that are chosen by their last access: those that a cachelet takes along to another server, and those that make no room for what
//! arrives. Ages are by memcached's classes of size.

use std::sync::Arc;

use mbal_locks::ranks;
use mbal_model::planted::{Fault, is_planted};
use mbal_model::{CLASSES, Seconds};

use crate::access::Access;
use crate::apart::Apart;
use crate::classes::class_of;
use crate::item::Item;
use crate::pages::Pages;
use crate::policy;
use crate::shim::{AtomicU32, Ordering::*};
use crate::sync::SpinLock;

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
pub struct Keep {
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

    pub(crate) fn choose(&self, pages: &Pages, item: Item, now: Seconds) -> bool {
        let class = class_of(item).0;
        let bound = self.younger_than[class];
        if bound == Seconds::MAX {
            return true;
        }
        let is_used_since = Access(item.access()).last(now) > self.at;
        let age = age_for_choice(pages, item, self.at, now);
        let is_chosen =
            is_used_since || age < bound || age == bound && is_among(item, self.tied[class]);
        is_chosen != is_planted(Fault::ColdestTravel)
    }
}

/// See [`policy::age_for_choice`].
pub fn age_for_choice(pages: &Pages, item: Item, at: Seconds, now: Seconds) -> Seconds {
    let access = Access(item.access());
    let age = at.saturating_sub(access.last(now));
    policy::age_for_choice(age, access, pages.of(item).temper())
}

/// Of items that share an age this one is among the first so many 65,536ths.
fn is_among(item: Item, part: u16) -> bool {
    ((item.hash() >> 16) as u16) < part
}

impl Keep {
    /// Whether this rule holds for a page of that order.
    pub fn holds_for(&self, order: u64) -> bool {
        order <= self.until
    }

    pub fn stays(&self, pages: &Pages, item: Item, now: Seconds) -> bool {
        self.age_thresholds.choose(pages, item, now)
    }

    /// The same of items that were not used since: what clients write is no more protected than ever.
    pub fn stays_since(&self, pages: &Pages, item: Item, now: Seconds) -> bool {
        Access(item.access()).last(now) <= self.age_thresholds.at && self.stays(pages, item, now)
    }
}

/// What of the pages that are full by now makes room for what arrives, if policy does not say so alone.
pub struct Kept {
    /// Whether anything is: most often nothing is, and who cleans a page does not lock for that.
    any: AtomicU32,
    keep: Apart<SpinLock<ranks::Keep, Option<Arc<Keep>>>>,
}

impl Kept {
    pub fn nothing() -> Kept {
        Kept { any: AtomicU32::new(0), keep: Apart(SpinLock::new(None)) }
    }

    /// `until`: the order of the page that was sealed last.
    pub fn set(&self, age_thresholds: AgeThresholds, until: u64) {
        let mut keep = self.keep.lock();
        if keep.as_ref().is_none_or(|before| before.age_thresholds != age_thresholds) {
            *keep = Some(Arc::new(Keep { age_thresholds, until }));
            self.any.store(1, Release);
        }
    }

    pub fn get(&self) -> Option<Arc<Keep>> {
        if self.any.load(Acquire) == 0 {
            return None;
        }
        self.keep.lock().clone()
    }
}
