//! Cleaning a page, part by part: its popular items move on, the others are evicted, and the page is free.

use crate::access::Access;
use crate::chosen::Keep;
use crate::chunks::chunks;
use crate::item::{Item, bits};
use crate::locked::Locked;
use crate::log::TakenPage;
use crate::memory::{Offset, prefetch};
use crate::pages::Pages;
use crate::policy::{Temper, survives};
use crate::pool::PageId;
use crate::site::Site;

/// Records of a page that are looked at in one go: some ten microseconds where no cache has their buckets.
const RECORDS_AT_ONCE: usize = 64;

/// What stays, whatever policy says, and whether the page was full when that was said.
type Rule<'k> = Option<(&'k Keep, bool)>;

/// A page's kind, what stays of it, and that main pages keep items only that were read within so many eras.
#[derive(Clone, Copy)]
struct Choice<'k> {
    temper: Temper,
    window: u32,
    rule: Rule<'k>,
}

impl Locked<'_> {
    /// Cleans a part of the oldest page of this temper; false if there is none, or what lives in it has to stay. Of main pages, items
    /// survive that were read within `window` eras.
    pub(crate) fn clean_oldest(&mut self, temper: Temper, window: u32) -> bool {
        let aged = &self.site.front.aged;
        let before = aged.pages(temper);
        match self.inner.items.logs.oldest_page(&self.site, temper) {
            Some(taken) => self.clean(taken, window),
            // An open page whose records were all dead was given back on the way.
            None => aged.pages(temper) < before,
        }
    }

    /// Moves a part of what lives in the sparsest page together; false if that is not worth it.
    pub(crate) fn compact(&mut self) -> bool {
        let taken = self.inner.items.logs.sparsest_page(&self.site);
        taken.is_some_and(|taken| self.clean(taken, u32::MAX))
    }

    /// Cleans a part of a page whose items are all past their deadline; false if there is none.
    pub(crate) fn clean_expired(&mut self) -> bool {
        let taken = self.inner.items.logs.expired_page(&self.site);
        taken.is_some_and(|taken| self.clean(taken, u32::MAX))
    }

    /// The oldest page of this temper.
    pub(crate) fn peek_oldest(&mut self, temper: Temper) -> Option<PageId> {
        self.inner.items.logs.peek_oldest(&self.site, temper)
    }

    /// Empties the next [`RECORDS_AT_ONCE`] records of a page, and gives it back after its last one; until then it
    /// takes its place in the queue again.
    /// False if nothing may be evicted and there was no room for what lives in it.
    fn clean(&mut self, TakenPage { order, id }: TakenPage, window: u32) -> bool {
        let page = self.site.page(id);
        let (log, temper) = (page.log(), page.temper());
        let keep = self.site.shared.kept.get();
        let keep = keep.filter(|keep| keep.holds_for(order) || temper == Temper::New);
        let rule = keep.as_deref().map(|keep| (keep, keep.holds_for(order)));
        let choice = Choice { temper, window, rule };
        self.site.cleaning = true;
        // On the stack: another worker would have a heap's line beside them.
        let mut records = [None; RECORDS_AT_ONCE];
        let done = next_records(self.site.pages(), id, &mut records);
        for (hash, _) in records.into_iter().flatten() {
            if let Some(slice) = self.site.slice_of(hash) {
                prefetch(&raw const *slice.home_for(hash) as *const u8);
            }
        }
        for (hash, offset) in records.into_iter().flatten() {
            // Its item may have gone, or moved it, with an earlier record of this page.
            if !self.site.item(offset).is_dead() {
                self.clean_record(hash, offset, choice);
            }
        }
        self.site.cleaning = false;
        let inner = &mut *self.inner;
        inner.index.shed(&mut self.site, inner.items.counts.items());
        if !done && page.live_records() > 0 {
            inner.items.logs.put_back(&self.site, log, TakenPage { order, id });
            return true;
        }
        if page.live_records() > 0 {
            inner.items.logs.seal_page(&self.site, log, id);
            return false;
        }
        inner.items.logs.give_back(&self.site, id);
        true
    }

    /// An item is kept or evicted as a whole, when its first record comes up, but moved record by record: so
    /// that cleaning a page never needs room for more than a page.
    fn clean_record(&mut self, hash: u64, offset: Offset, choice: Choice<'_>) {
        let site = &self.site;
        let record = site.item(offset);
        let place = match record.is_chunk() {
            true => site.place_where(hash, |item| has_chunk(site, item, offset)),
            false => site.place_at(hash, offset),
        };
        let place = place.expect("a live record belongs to an item in the index");
        let (item, items) = (site.item(place.offset), &mut self.inner.items);
        if item.expired(site.now) {
            items.counts.expired(item);
            self.unlink(hash, place);
            return;
        }
        let comes_up = item.chain().is_none_or(|(_, first)| first == offset);
        let access = match comes_up {
            true => choice.survivor(site, item),
            false => Some(Access(item.access())),
        };
        let main = site.target(Temper::Main, item.deadline()).log;
        let moved = access.map(|access| match record.is_chunk() {
            true => {
                item.set_access(access.0);
                items.relocate_chunks(site, hash, place, offset, main)
            }
            false => items.relocate(site, hash, place, main, access),
        });
        if !matches!(moved, Some(Ok(()))) && site.shared.options.evict {
            self.evict(hash, place.offset);
        }
    }
}

impl Choice<'_> {
    fn survivor(&self, site: &Site, item: Item) -> Option<Access> {
        let access = Access(item.access());
        if !site.shared.options.evict {
            return Some(access);
        }
        let by_policy = || survives(access, self.temper, site.era(), self.window);
        match self.rule {
            None => by_policy(),
            Some((keep, true)) => keep.stays(site.pages(), item, site.now).then_some(access),
            // Its page was open then: what was there is as good as in a full one.
            Some((keep, false)) => by_policy()
                .or_else(|| keep.stays_since(site.pages(), item, site.now).then_some(access)),
        }
    }
}

/// Those of the next part that are not dead, with their hashes; true if it is the last.
fn next_records(
    pages: &Pages,
    id: PageId,
    records: &mut [Option<(u64, Offset)>; RECORDS_AT_ONCE],
) -> bool {
    let mut all = pages.records(id);
    for (record, offset) in records.iter_mut().zip(all.by_ref()) {
        let item = Item::at(&pages.memory, offset);
        if !item.is_dead() {
            let hash = if item.is_chunk() { item.chunk_hash() } else { item.hash() };
            *record = Some((hash, offset));
        }
    }
    let next = all.next().map(|offset| pages.memory.position(offset) as u32);
    let cleaned = next.map_or(0, |at| at & (pages.bytes as u32 - 1));
    pages.get(id).set_cleaned(cleaned);
    next.is_none()
}

fn has_chunk(site: &Site, item: Item, offset: Offset) -> bool {
    item.bits() & bits::CHAINED != 0 && chunks(site.memory(), item).any(|chunk| chunk == offset)
}
