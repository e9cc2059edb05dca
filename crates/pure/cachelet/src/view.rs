use mbal_model::Seconds;

use crate::cachelet::Cachelet;
use crate::item::{Access, Item, bits};
use crate::shim::Ordering::*;
use crate::store::Store;
use crate::sync::copy_shared;
use crate::types::Meta;

/// What is shown of an item: to a reader, before it is known whether a writer came in between.
pub struct View<'a> {
    store: &'a Store,
    cachelet: &'a Cachelet,
    item: Item,
    now: Seconds,
}

impl<'a> View<'a> {
    #[inline(always)]
    pub(crate) fn new(
        store: &'a Store,
        cachelet: &'a Cachelet,
        item: Item,
        now: Seconds,
    ) -> View<'a> {
        View { store, cachelet, item, now }
    }

    pub fn meta(&self) -> Meta {
        let access = Access(self.item.access());
        let marks = self.item.bits();
        Meta {
            flags: self.item.flags(),
            deadline: self.item.deadline(),
            cas: self.cas(),
            last_access: access.last(self.now),
            fetched: access.fetched(),
            stale: marks & bits::STALE != 0,
            win: marks & bits::WIN != 0,
            binary_key: marks & bits::BINARY_KEY != 0,
            value_bytes: self.value_bytes(),
        }
    }

    #[inline(always)]
    pub fn flags(&self) -> u32 {
        self.item.flags()
    }

    #[inline(always)]
    pub fn value_bytes(&self) -> u32 {
        self.item.value_bytes()
    }

    pub fn key(&self) -> &[u8] {
        self.item.key()
    }

    /// Reads the page's base, another cache line.
    pub fn cas(&self) -> u64 {
        self.item.foreign_cas().unwrap_or_else(|| {
            let page = &self.store.pages[self.store.page_of(&self.item)];
            let counter = page.base.load(Relaxed) + u64::from(self.item.sequence());
            u64::from(self.cachelet.generation.load(Relaxed)) << 48 | counter
        })
    }

    /// Appends the value to `out`.
    #[inline(always)]
    pub fn copy_value(&self, out: &mut Vec<u8>) {
        let Some((bytes, first)) = self.item.chain() else {
            let (at, len) = self.item.value();
            // SAFETY: the item is protected by the caller's epoch or lock.
            unsafe { copy_shared(at, len, out) }
            return;
        };
        out.reserve(bytes as usize);
        let end = out.len() + bytes as usize;
        let mut next = first;
        // A chain whose item was overwritten meanwhile is never longer than it said.
        while next != 0 && out.len() < end {
            let chunk = Item::at(&self.store.memory, next);
            let (at, len) = chunk.chunk_value();
            // SAFETY: as above; chunks of a replaced value keep their bytes and links until their epoch.
            unsafe { copy_shared(at, len.min(end - out.len()), out) }
            next = chunk.next_chunk();
        }
    }
}
