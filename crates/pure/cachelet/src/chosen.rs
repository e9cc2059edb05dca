//! Items that are chosen by their last access: those that a cachelet takes along to another server, and those that make no room for what
//! arrives. Ages are by memcached's classes of size.

use std::sync::Arc;

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{CLASSES, Prefix, Seconds};

use crate::access::Access;
use crate::classes::class_of;
use crate::item::Item;
use crate::shim::Ordering::*;
use crate::store::Store;

/// By class, the second since which an item was read or written last, if it is chosen; 0 chooses all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cutoffs([Seconds; CLASSES]);

/// What stays of the pages that were full at a moment.
pub(crate) struct Keep {
    cutoffs: Cutoffs,
    /// Order of the last page.
    until: u64,
}

impl Cutoffs {
    pub const ALL: Cutoffs = Cutoffs([0; CLASSES]);

    /// Of a class, only items that are younger than that at the moment `at`: later accesses are younger than anything.
    pub fn younger_than(&mut self, class: usize, age: Seconds, at: Seconds) {
        self.0[class % CLASSES] = match age {
            Seconds::MAX => 0,
            age => (at + 1).saturating_sub(age),
        };
    }

    pub(crate) fn choose(&self, item: Item, now: Seconds) -> bool {
        let since = self.0[class_of(item).0];
        let last = Access(item.access()).last(now);
        if is_planted(Fault::ColdestTravel) && since != 0 {
            return last < since;
        }
        last >= since
    }
}

impl Keep {
    /// Whether this rule holds for a page of that order.
    pub fn holds_for(&self, order: u64) -> bool {
        order <= self.until
    }

    pub fn stays(&self, item: Item, now: Seconds) -> bool {
        self.cutoffs.choose(item, now)
    }
}

impl Store {
    /// Of a cachelet that leaves: items that are not chosen stay behind, and go with their slices.
    pub fn take_along(&self, prefix: Prefix, cutoffs: Cutoffs) {
        if let Some(cachelet) = self.present(prefix).filter(|cachelet| cachelet.leaves()) {
            cachelet.inner.lock().chosen = Some(Box::new(cutoffs));
        }
    }

    /// What arrives from now on was chosen, and is as good as what is read here. From pages that are full by now, what is not chosen
    /// makes room, whatever policy would say; what is chosen stays, each item once.
    pub fn keep(&self, cutoffs: Cutoffs) {
        let mut keep = self.keep.lock();
        if keep.as_ref().is_none_or(|before| before.cutoffs != cutoffs) {
            let until = self.seals.load(Relaxed);
            *keep = Some(Arc::new(Keep { cutoffs, until }));
        }
    }

    pub(crate) fn kept(&self) -> Option<Arc<Keep>> {
        self.keep.lock().clone()
    }
}
