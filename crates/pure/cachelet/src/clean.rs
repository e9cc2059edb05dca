//! Cleaning a page, part by part: its popular items move on, the others are evicted, and the page is free.

use mbal_model::Key;

use crate::access::Access;
use crate::chosen::Keep;
use crate::item::{Item, bits};
use crate::locked::Locked;
use crate::log::{TakenPage, temper_of};
use crate::memory::{Offset, prefetch};
use crate::policy::{Temper, survives};
use crate::pool::PageId;
use crate::shim::Ordering::*;

/// Records of a page that are looked at in one go: some hundred microseconds where no cache has their buckets.
const RECORDS_AT_ONCE: usize = 256;

/// What stays, whatever policy says, and whether the page was full when that was said.
type Rule<'k> = Option<(&'k Keep, bool)>;

impl<'a> Locked<'a> {
    /// Cleans a part of the oldest page of this temper; false if there is none, or what lives in it has to stay.
    pub(crate) fn clean_oldest(&mut self, temper: Temper) -> bool {
        let pages = |locked: &Self| locked.cachelet.log_pages[temper as usize].load(Relaxed);
        let before = pages(self);
        match self.oldest_page(temper) {
            Some(taken) => self.clean(taken),
            // An open page whose records were all dead was given back on the way.
            None => pages(self) < before,
        }
    }

    /// Moves a part of what lives in the sparsest page together; false if that is not worth it.
    pub(crate) fn compact(&mut self) -> bool {
        let Some(taken) = self.sparsest_page() else { return false };
        self.clean(taken)
    }

    /// Empties the next [`RECORDS_AT_ONCE`] records of a page, and gives it back after its last one; until then it
    /// takes its place in the queue again.
    /// False if nothing may be evicted and there was no room for what lives in it.
    pub(crate) fn clean(&mut self, TakenPage { order, id }: TakenPage) -> bool {
        let log = self.page(id).log.load(Relaxed) as usize;
        let temper = temper_of(log);
        let keep = self.store.kept().filter(|keep| keep.holds_for(order) || temper == Temper::New);
        let was_full = keep.as_ref().is_some_and(|keep| keep.holds_for(order));
        self.cleaning = true;
        let mut records = std::mem::take(&mut self.inner.records);
        let done = self.next_records(id, &mut records);
        for &(hash, _) in &records {
            if let Some(slice) = self.slice_of(hash) {
                prefetch(&raw const *slice.home_for(hash) as *const u8);
            }
        }
        for &(hash, offset) in &records {
            // Its item may have gone, or moved it, with an earlier record of this page.
            if !Item::at(&self.store.memory, offset).is_dead() {
                let rule = keep.as_deref().map(|keep| (keep, was_full));
                self.clean_record(hash, offset, temper, rule);
            }
        }
        records.clear();
        self.inner.records = records;
        self.cleaning = false;
        if !done && self.page(id).live_records.load(Relaxed) > 0 {
            self.put_back(log, TakenPage { order, id });
            return true;
        }
        self.shed_index();
        if self.page(id).live_records.load(Relaxed) > 0 {
            self.seal_page(log, id);
            return false;
        }
        self.give_back(id);
        true
    }

    /// Has a part of this page been cleaned?
    pub(crate) fn is_begun(&self, id: PageId) -> bool {
        self.page(id).cleaned.load(Relaxed) > 0
    }

    /// Where the records begin that cleaning has not come to yet, dead ones too.
    pub(crate) fn records(&self, id: PageId) -> impl Iterator<Item = Offset> + use<'a> {
        let (memory, page) = (&self.store.memory, self.page(id));
        let start = (id as usize) << self.store.page_shift;
        let mut at = start + page.cleaned.load(Relaxed) as usize;
        let end = start + page.fill.load(Relaxed) as usize;
        std::iter::from_fn(move || {
            let offset = (at < end).then(|| memory.offset(at))?;
            at += Item::at(memory, offset).stride(memory);
            Some(offset)
        })
    }

    /// Those of the next part that are not dead; true if it is the last.
    fn next_records(&self, id: PageId, records: &mut Vec<(u64, Offset)>) -> bool {
        let mut all = self.records(id);
        for offset in all.by_ref().take(RECORDS_AT_ONCE) {
            let item = Item::at(&self.store.memory, offset);
            if !item.is_dead() {
                let hash = match item.is_chunk() {
                    true => item.chunk_hash(),
                    false => Key::new(item.key()).expect("a stored key has a valid length").hash(),
                };
                records.push((hash, offset));
            }
        }
        let next = all.next().map(|offset| self.store.memory.position(offset) as u32);
        let cleaned = next.map_or(0, |at| at & (self.store.page_bytes as u32 - 1));
        self.page(id).cleaned.store(cleaned, Relaxed);
        next.is_none()
    }

    /// An item is kept or evicted as a whole, when its first record comes up, but moved record by record: so
    /// that cleaning a page never needs room for more than a page.
    fn clean_record(&mut self, hash: u64, offset: Offset, temper: Temper, rule: Rule<'_>) {
        let record = Item::at(&self.store.memory, offset);
        let place = match record.is_chunk() {
            true => self.place_where(hash, |item| self.has_chunk(item, offset)),
            false => self.place_at(hash, offset),
        };
        let place = place.expect("a live record belongs to an item in the index");
        let item = Item::at(&self.store.memory, place.offset);
        if item.expired(self.now) {
            self.count_expired(place.offset);
            self.unlink(hash, place);
            return;
        }
        let comes_up = item.chain().is_none_or(|(_, first)| first == offset);
        let access = match comes_up {
            true => self.survivor(item, temper, rule),
            false => Some(Access(item.access())),
        };
        let main = self.log_for(Temper::Main, item.deadline());
        let moved = access.map(|access| match record.is_chunk() {
            true => {
                item.set_access(access.0);
                self.relocate_chunks(hash, place, offset, main)
            }
            false => self.relocate(hash, place, main, access),
        });
        if !matches!(moved, Some(Ok(()))) && self.store.options().evict {
            self.evict(hash, place.offset);
        }
    }

    fn has_chunk(&self, item: Item, offset: Offset) -> bool {
        item.bits() & bits::CHAINED != 0 && self.chunks(item).any(|chunk| chunk == offset)
    }

    fn survivor(&self, item: Item, temper: Temper, rule: Rule<'_>) -> Option<Access> {
        let access = Access(item.access());
        if !self.store.options().evict {
            return Some(access);
        }
        let by_policy = || survives(access, temper, self.store.era(), self.window);
        match rule {
            None => by_policy(),
            Some((keep, true)) => keep.stays(self.store, item, self.now).then_some(access),
            // Its page was open then: what was there is as good as in a full one.
            Some((keep, false)) => by_policy()
                .or_else(|| keep.stays_since(self.store, item, self.now).then_some(access)),
        }
    }
}
