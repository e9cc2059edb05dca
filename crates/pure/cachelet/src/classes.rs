//! Statistics by memcached's classes of size.

use std::ops::{Deref, DerefMut};

use mbal_model::{CLASSES, item_bytes, size_class};

use crate::item::Item;

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

/// The class, and the bytes as memcached would count them.
pub fn class_of(item: Item) -> (usize, u64) {
    let bytes = item_bytes(item.key().len(), item.flags(), item.value_bytes() as usize);
    (size_class(bytes), bytes as u64)
}

impl ClassStats {
    pub fn add(&mut self, other: &ClassStats) {
        self.items += other.items;
        self.bytes += other.bytes;
        self.evicted += other.evicted;
        self.evicted_nonzero += other.evicted_nonzero;
        self.evicted_unfetched += other.evicted_unfetched;
        self.expired += other.expired;
        self.expired_unfetched += other.expired_unfetched;
        self.evicted_time = self.evicted_time.max(other.evicted_time);
    }
}
