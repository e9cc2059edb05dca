//! What is counted of a cachelet's items.

use crate::access::Access;
use crate::classes::{ByClass, Classes, class_of};
use crate::item::Item;
use crate::memory::Offset;
use crate::site::Site;
use crate::types::StoreStats;

#[derive(Default)]
#[repr(C)]
pub struct Counts {
    stats: StoreStats,
    classes: ByClass,
}

impl Counts {
    pub fn stats(&self) -> &StoreStats {
        &self.stats
    }

    #[inline(always)]
    pub fn items(&self) -> u64 {
        self.stats.items
    }

    pub fn classes(&self) -> &Classes {
        &self.classes
    }

    /// Somebody stores an item, which may fail.
    #[inline]
    pub fn store(&mut self) {
        self.stats.total_items += 1;
    }

    /// The index leads to so many more.
    #[inline]
    pub fn add(&mut self, items: u64) {
        self.stats.items += items;
    }

    #[inline]
    pub fn remove(&mut self, items: u64) {
        self.stats.items -= items;
    }

    /// An item has been written, of so many bytes.
    #[inline]
    pub fn born(&mut self, item: Item, bytes: u64) {
        self.stats.bytes += bytes;
        let (class, bytes) = class_of(item);
        self.classes[class].items += 1;
        self.classes[class].bytes += bytes;
    }

    #[inline]
    pub fn dead(&mut self, item: Item, bytes: u64) {
        self.stats.bytes -= bytes;
        let (class, bytes) = class_of(item);
        self.classes[class].items -= 1;
        self.classes[class].bytes -= bytes;
    }

    /// Its header has other fields.
    pub fn resized(&mut self, new_bytes: u64, old_bytes: u64) {
        self.stats.bytes = self.stats.bytes + new_bytes - old_bytes;
    }

    pub fn copied(&mut self, bytes: usize) {
        self.stats.copied_bytes += bytes as u64;
    }

    /// Items that went for want of memory, and of which nothing more is known.
    pub fn lost(&mut self, items: u64) {
        self.stats.evictions += items;
    }

    pub fn left_behind(&mut self, items: u64) {
        self.stats.left_behind += items;
    }

    pub fn evicted(&mut self, site: &Site, offset: Offset) {
        let item = site.item(offset);
        let access = Access(item.access());
        let unread = u64::from(!access.fetched());
        self.stats.evictions += 1;
        self.stats.evicted_unfetched += unread;
        let idle = site.now.wrapping_sub(access.last(site.now));
        let class = &mut self.classes[class_of(item).0];
        class.evicted += 1;
        class.evicted_unfetched += unread;
        class.evicted_nonzero += u64::from(item.deadline() != 0);
        class.evicted_time = u64::from(idle);
        if site.shared.witness.is_on() {
            site.shared.witness.see(&site.view(offset));
        }
    }

    pub fn expired(&mut self, item: Item) {
        let unread = u64::from(!Access(item.access()).fetched());
        self.stats.expired += 1;
        self.stats.expired_unfetched += unread;
        let class = &mut self.classes[class_of(item).0];
        class.expired += 1;
        class.expired_unfetched += unread;
    }

    /// All items are forgotten.
    pub fn forget_all(&mut self) {
        (self.stats.items, self.stats.bytes) = (0, 0);
        for class in self.classes.iter_mut() {
            (class.items, class.bytes) = (0, 0);
        }
    }
}
