//! Where a writer is at work: under the lock of which cachelet, at what time, and for whom.

use mbal_model::Seconds;

use crate::front::Front;
use crate::item::Item;
use crate::kinds::{Target, log_for};
use crate::memory::{Memory, Offset};
use crate::pages::{Page, Pages};
use crate::policy::Temper;
use crate::pool::PageId;
use crate::shared::Shared;
use crate::view::View;

/// Pages that only cleaning may take.
const CLEANING_PAGES: u32 = 2;

/// Only who holds the writer lock of the cachelet has one.
pub struct Site<'a> {
    pub shared: &'a Shared,
    pub front: &'a Front,
    pub now: Seconds,
    /// The worker whose pool gives pages and gets them back.
    pub worker: usize,
    /// Cleaning may use the last pages, which it needs to make others free.
    pub cleaning: bool,
}

impl<'a> Site<'a> {
    #[inline(always)]
    pub fn pages(&self) -> &'a Pages {
        &self.shared.pages
    }

    #[inline(always)]
    pub fn memory(&self) -> &'a Memory {
        &self.shared.pages.memory
    }

    #[inline(always)]
    pub fn item(&self, offset: Offset) -> Item {
        Item::at(self.memory(), offset)
    }

    #[inline]
    pub fn page(&self, id: PageId) -> &'a Page {
        self.pages().get(id)
    }

    #[inline]
    pub fn page_at(&self, offset: Offset) -> &'a Page {
        self.pages().at(offset)
    }

    #[inline]
    pub fn stride(&self, item: Item) -> u64 {
        item.stride(self.memory()) as u64
    }

    #[inline(always)]
    pub fn view(&self, offset: Offset) -> View<'a> {
        View::new(self.pages(), self.front, self.item(offset), self.now)
    }

    #[inline(always)]
    pub fn era(&self) -> u32 {
        self.pages().eras.now()
    }

    /// Where an item goes that dies at `deadline`.
    #[inline]
    pub fn target(&self, temper: Temper, deadline: Seconds) -> Target {
        let log = log_for(temper, deadline, self.now, self.pages().ttl_classes);
        Target { log, deadline }
    }

    /// Of pages in logs.
    #[inline]
    pub fn log_bytes(&self) -> usize {
        self.front.aged.all_pages() as usize * self.pages().bytes
    }

    pub fn take_page(&self) -> Option<PageId> {
        let (spare, pool) = (if self.cleaning { 0 } else { CLEANING_PAGES }, &self.pages().pool);
        if pool.available(self.worker) <= spare { None } else { pool.take(self.worker) }
    }

    pub fn release_page(&self, id: PageId) {
        self.page(id).set_order(0);
        self.pages().pool.release(self.worker, id);
    }
}
