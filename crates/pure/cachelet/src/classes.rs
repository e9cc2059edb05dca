//! Statistics by memcached's classes of size, and what watchers are told of evictions.

use std::ops::{Deref, DerefMut};

use mbal_locks::ranks;
use mbal_model::{CLASSES, item_bytes, size_class};

use crate::access::Access;
use crate::item::Item;
use crate::locked::Locked;
use crate::memory::Offset;
use crate::shim::{AtomicU32, AtomicU64, Ordering::*};
use crate::store::Store;
use crate::sync::SpinLock;
use crate::types::Meta;
use crate::view::View;

/// Evicted items that wait to be told of; further ones are only counted.
const EVICTED_KEPT_MAX: usize = 1024;

/// What is counted of the items of one class; gauges unless they say so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassStats {
    pub items: u64,
    /// As memcached would count them ([`item_bytes`]).
    pub bytes: u64,
    /// Counters, as those of [`crate::StoreStats`].
    pub evicted: u64,
    /// Counter: of these, with a deadline.
    pub evicted_nonzero: u64,
    pub evicted_unfetched: u64,
    pub expired: u64,
    pub expired_unfetched: u64,
    /// Seconds that the item which was evicted last had not been used for.
    pub evicted_time: u64,
}

pub type Classes = [ClassStats; CLASSES];

/// An item that went for want of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evicted {
    pub key: Vec<u8>,
    pub meta: Meta,
}

/// Keeps what is evicted, while somebody watches.
pub(crate) struct Witness {
    on: AtomicU32,
    lost: AtomicU64,
    kept: SpinLock<ranks::Evicted, Vec<Evicted>>,
}

impl Witness {
    pub fn new() -> Witness {
        let kept = SpinLock::new(Vec::new());
        Witness { on: AtomicU32::new(0), lost: AtomicU64::new(0), kept }
    }
}

/// [`Classes`] that begin empty.
pub struct ByClass(Box<Classes>);

impl Default for ByClass {
    fn default() -> ByClass {
        ByClass(Box::new([ClassStats::default(); CLASSES]))
    }
}

impl Deref for ByClass {
    type Target = Classes;

    fn deref(&self) -> &Classes {
        &self.0
    }
}

impl DerefMut for ByClass {
    fn deref_mut(&mut self) -> &mut Classes {
        &mut self.0
    }
}

pub(crate) fn class_of(item: Item) -> (usize, u64) {
    let bytes = item_bytes(item.key().len(), item.flags(), item.value_bytes() as usize);
    (size_class(bytes), bytes as u64)
}

impl Locked<'_> {
    pub(crate) fn count_born(&mut self, item: Item) {
        let (class, bytes) = class_of(item);
        self.inner.classes[class].items += 1;
        self.inner.classes[class].bytes += bytes;
    }

    pub(crate) fn count_dead(&mut self, item: Item) {
        let (class, bytes) = class_of(item);
        self.inner.classes[class].items -= 1;
        self.inner.classes[class].bytes -= bytes;
    }

    pub(crate) fn count_evicted(&mut self, offset: Offset) {
        let item = Item::at(&self.store.memory, offset);
        let access = Access(item.access());
        let unread = u64::from(!access.fetched());
        self.inner.stats.evictions += 1;
        self.inner.stats.evicted_unfetched += unread;
        let idle = self.now.wrapping_sub(access.last(self.now));
        let class = &mut self.inner.classes[class_of(item).0];
        class.evicted += 1;
        class.evicted_unfetched += unread;
        class.evicted_nonzero += u64::from(item.deadline() != 0);
        class.evicted_time = u64::from(idle);
        if self.store.witness.on.load(Relaxed) != 0 {
            self.bear_witness(item);
        }
    }

    #[cold]
    fn bear_witness(&self, item: Item) {
        let view = View::new(self.store, self.cachelet, item, self.now);
        let mut kept = self.store.witness.kept.lock();
        if kept.len() < EVICTED_KEPT_MAX {
            kept.push(Evicted { key: view.key().to_vec(), meta: view.meta() });
        } else {
            self.store.witness.lost.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn count_expired(&mut self, offset: Offset) {
        let item = Item::at(&self.store.memory, offset);
        let unread = u64::from(!Access(item.access()).fetched());
        self.inner.stats.expired += 1;
        self.inner.stats.expired_unfetched += unread;
        let class = &mut self.inner.classes[class_of(item).0];
        class.expired += 1;
        class.expired_unfetched += unread;
    }
}

impl Store {
    /// By class, 0 is none.
    pub fn class_stats(&self) -> Box<Classes> {
        let mut sums = Box::new([ClassStats::default(); CLASSES]);
        for cachelet in self.cachelets() {
            let inner = cachelet.inner.lock();
            for (sum, class) in sums.iter_mut().zip(inner.classes.iter()) {
                sum.items += class.items;
                sum.bytes += class.bytes;
                sum.evicted += class.evicted;
                sum.evicted_nonzero += class.evicted_nonzero;
                sum.evicted_unfetched += class.evicted_unfetched;
                sum.expired += class.expired;
                sum.expired_unfetched += class.expired_unfetched;
                sum.evicted_time = sum.evicted_time.max(class.evicted_time);
            }
        }
        sums
    }

    /// From now on keeps evicted items for [`Store::take_evicted`], or no longer.
    pub fn watch_evictions(&self, on: bool) {
        self.witness.on.store(on.into(), Relaxed);
        if !on {
            self.witness.kept.lock().clear();
        }
    }

    /// What was evicted since the last call, and how many more there were than were kept.
    pub fn take_evicted(&self) -> (Vec<Evicted>, u64) {
        let kept = std::mem::take(&mut *self.witness.kept.lock());
        (kept, self.witness.lost.swap(0, Relaxed))
    }
}
