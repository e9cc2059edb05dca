//! What the holder of a cachelet's writer lock can do to its items.

use std::collections::VecDeque;

use mbal_locks::ranks;
use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Key, Seconds};

use crate::access::Access;
use crate::cachelet::{Cachelet, Inner};
use crate::cas::{Cas, cas_of};
use crate::item::bits;
use crate::memory::Offset;
use crate::policy::{Temper, temper_of_written};
use crate::pool::PageId;
use crate::records::{Arrival, MARKS, New, Rewrite, as_it_is, overwrite};
use crate::shared::Shared;
use crate::site::Site;
use crate::slice::{Place, Slice};
use crate::sync::Guard;
use crate::types::{Draft, Full};
use crate::view::View;

/// The writer lock of one cachelet, held for one operation.
pub struct Locked<'a> {
    pub(crate) site: Site<'a>,
    pub(crate) inner: Guard<'a, ranks::Cachelet, Inner>,
}

/// An item found under the writer lock; good until the next change of the cachelet.
#[derive(Clone, Copy)]
pub struct Found<'k> {
    key: Key<'k>,
    place: Place,
}

impl<'a> Locked<'a> {
    #[inline(always)]
    pub(crate) fn new(
        shared: &'a Shared,
        cachelet: &'a Cachelet,
        inner: Guard<'a, ranks::Cachelet, Inner>,
        now: Seconds,
    ) -> Locked<'a> {
        let (front, now) = (&cachelet.front, shared.clock.latest(now));
        let site = Site { shared, front, now, worker: front.owner(), cleaning: false };
        let mut locked = Locked { site, inner };
        if front.is_flush_due(now) {
            let number = locked.inner.flushed.next();
            locked.flush(number);
        }
        locked
    }

    /// The key's live item. One that has expired is removed on the way.
    #[inline]
    pub fn find<'k>(&mut self, key: &Key<'k>) -> Option<Found<'k>> {
        let place = self.site.place_of(key)?;
        let item = self.site.item(place.offset);
        if item.expired(self.site.now) {
            self.inner.items.counts.expired(item);
            self.unlink(key.hash(), place);
            return None;
        }
        Some(Found { key: *key, place })
    }

    pub fn view<R>(&self, found: &Found, show: impl FnOnce(&View) -> R) -> R {
        show(&self.site.view(found.place.offset))
    }

    /// The cas that the next stored item would get; consumes it.
    pub fn next_cas(&mut self) -> u64 {
        cas_of(self.site.front, self.inner.items.counter.next())
    }

    /// Stores an item, replacing the key's old one; its cas.
    pub fn put(&mut self, key: &Key, draft: &Draft) -> Result<u64, Full> {
        let old = self.site.place_of(key);
        self.put_at(key, old, draft)
    }

    /// [`Locked::put`] where the key has been looked for already: `found` is what [`Locked::find`] has told, and nothing was
    /// changed since.
    pub fn put_found(
        &mut self,
        key: &Key,
        found: Option<&Found>,
        draft: &Draft,
    ) -> Result<u64, Full> {
        let old = found.map(|found| found.place);
        debug_assert_eq!(old, self.site.place_of(key), "nothing was changed since");
        self.put_at(key, old, draft)
    }

    fn put_at(&mut self, key: &Key, old: Option<Place>, draft: &Draft) -> Result<u64, Full> {
        let value_bytes = self.check(key, draft)?;
        let (site, inner) = (&self.site, &mut *self.inner);
        let (items, front) = (&mut inner.items, site.front);
        let counter = items.counter.next();
        let cas = draft.cas.map_or(Cas::Own(counter), |cas| items.counter.classify(front, cas));
        let new = New::of(draft, cas, value_bytes);
        items.counts.store();
        if old.is_some_and(|place| overwrite(site, key.hash(), place, &new)) {
            return Ok(cas.value(front));
        }
        let frequency =
            old.map_or(0, |place| Access(site.item(place.offset).access()).frequency() + 1);
        let access = Access::new(site.now, frequency, false, site.era());
        let count = items.counts.items();
        let returns = old.is_none() && inner.index.is_ghost(site, key.hash(), count);
        let target = site.target(temper_of_written(returns), draft.deadline);
        let offset = items.write_new(site, key, &new, access, target)?;
        self.publish(key.hash(), old, offset)?;
        Ok(cas.value(self.site.front))
    }

    /// The bytes of the value, if they are not too many.
    #[inline]
    fn check(&self, key: &Key, draft: &Draft) -> Result<usize, Full> {
        let bytes = draft.parts.iter().map(|part| part.len()).sum::<usize>();
        let most = self.site.shared.options.item_bytes_max;
        if key.bytes().len() + bytes > most { Err(Full::TooLarge) } else { Ok(bytes) }
    }

    /// Stores an item that comes from another server, unless the key has one here.
    pub(crate) fn take_in(&mut self, key: &Key, arrival: &Arrival) -> Result<(), Full> {
        let value_bytes = self.check(key, &arrival.draft)?;
        let old = self.site.place_of(key);
        if old.is_some() && !is_planted(Fault::ImportOverNewer) {
            return Ok(());
        }
        let (site, items) = (&self.site, &mut self.inner.items);
        let cas = items.counter.classify(site.front, arrival.cas);
        let new = New::of(&arrival.draft, cas, value_bytes);
        let target = arrival.target(site);
        let offset = items.write_new(site, key, &new, arrival.access, target)?;
        self.publish(key.hash(), old, offset)
    }

    /// Stores a long value, all of which has come: see [`Locked::take_in`] and `unfinished`.
    pub(crate) fn finish_value(&mut self, key: &Key, arrival: &Arrival) -> Result<(), Full> {
        let old = self.site.place_of(key);
        if old.is_some() && !is_planted(Fault::ImportOverNewer) {
            self.drop_value();
            return Ok(());
        }
        let (site, inner) = (&self.site, &mut *self.inner);
        match inner.unfinished.finish(site, &mut inner.items, key, arrival)? {
            Some(offset) => self.publish(key.hash(), old, offset),
            None => Ok(()),
        }
    }

    /// Gives up what has come of a value that is not whole.
    pub(crate) fn drop_value(&mut self) {
        let pages = self.inner.unfinished.drop_all();
        self.drop_pages(pages);
    }

    /// Makes a record that was written just now the key's item.
    pub(crate) fn publish(
        &mut self,
        hash: u64,
        old: Option<Place>,
        offset: Offset,
    ) -> Result<(), Full> {
        match old {
            Some(place) => {
                self.site.repoint(hash, place, offset);
                self.inner.items.kill_record(&self.site, place.offset);
            }
            None => {
                if let Err(full) = self.insert(hash, offset) {
                    self.inner.items.kill_record(&self.site, offset);
                    return Err(full);
                }
                self.inner.items.counts.add(1);
            }
        }
        Ok(())
    }

    /// Adds a key that has no place yet, for which others of its window may have to go.
    #[inline]
    fn insert(&mut self, hash: u64, offset: Offset) -> Result<(), Full> {
        loop {
            let (inner, site) = (&mut *self.inner, &mut self.site);
            let count = inner.items.counts.items();
            match inner.index.insert(site, hash, offset, count)? {
                None => return Ok(()),
                Some(victim) => self.evict(self.site.item(victim).hash(), victim),
            }
        }
    }

    pub fn remove(&mut self, found: &Found) {
        self.unlink(found.key.hash(), found.place);
    }

    pub(crate) fn unlink(&mut self, hash: u64, place: Place) {
        self.site.repoint(hash, place, 0);
        self.inner.items.kill_record(&self.site, place.offset);
        self.inner.items.counts.remove(1);
    }

    /// Evicts the item at `offset`, whose key has `hash`; one from a new log is remembered.
    pub(crate) fn evict(&mut self, hash: u64, offset: Offset) {
        let place = self.site.place_at(hash, offset).expect("a live record has its place");
        self.inner.items.counts.evicted(&self.site, offset);
        let temper = self.site.page_at(offset).temper();
        self.unlink(hash, place);
        if temper == Temper::New {
            self.inner.index.haunt(&self.site, hash, place);
        }
    }

    /// Removes an item that is dead by its deadline.
    pub(crate) fn remove_expired(&mut self, offset: Offset) {
        let item = self.site.item(offset);
        let place = self.site.place_at(item.hash(), offset);
        let place = place.expect("nobody moved it under this lock");
        self.inner.items.counts.expired(item);
        self.unlink(item.hash(), place);
    }

    /// Changes the deadline, not the cas. May fail where a field has to be added to a full cache.
    pub fn touch(&mut self, found: &Found, deadline: Seconds) -> Result<(), Full> {
        let (site, place) = (&self.site, found.place);
        let (item, page) = (site.item(place.offset), site.page_at(place.offset));
        if item.bits() & bits::DEADLINE != 0 {
            site.change(found.key.hash(), || item.set_deadline(deadline));
            page.outlive(deadline);
            return Ok(());
        }
        if deadline == 0 {
            return Ok(());
        }
        let target = site.target(page.temper(), deadline);
        let rewrite = Rewrite { target, ..as_it_is(site, place.offset) };
        self.inner.items.rewrite(site, found.key.hash(), place, rewrite)
    }

    /// Sets both marks of meta's stale items, and a new cas if one is given.
    pub fn mark(
        &mut self,
        found: &Found,
        stale: bool,
        win: bool,
        cas: Option<u64>,
    ) -> Result<(), Full> {
        let (site, place) = (&self.site, found.place);
        let item = site.item(place.offset);
        let marks = bits::when(stale, bits::STALE) | bits::when(win, bits::WIN);
        let Some(cas) = cas else {
            site.change(found.key.hash(), || item.set_bits(item.bits() & !MARKS | marks));
            return Ok(());
        };
        let items = &mut self.inner.items;
        let cas = items.counter.classify(site.front, cas);
        let as_it_is = as_it_is(site, place.offset);
        let marks = marks | as_it_is.marks & !MARKS;
        items.rewrite(site, found.key.hash(), place, Rewrite { cas, marks, ..as_it_is })
    }

    /// Counts as a read: last access, fetched, frequency.
    #[inline]
    pub fn accessed(&mut self, found: &Found) {
        self.site.item(found.place.offset).touch_access(self.site.now, self.site.era());
    }

    /// `flush_all` of this number: forgets every item. A later one that is to come still comes.
    pub(crate) fn flush(&mut self, number: u32) {
        let pages = self.inner.index.drop_all(&mut self.site);
        self.drop_pages(pages);
        let (site, inner) = (&self.site, &mut *self.inner);
        inner.items.logs.drop_all(site);
        inner.items.counts.forget_all();
        inner.flushed.pass(site.front, number);
        site.shared.flushes.know(number);
        self.drop_value();
    }

    /// Of one that has gone, nothing is left.
    pub(crate) fn vacate(&mut self) {
        self.flush(0);
        let pages = self.inner.index.vacate(&mut self.site);
        self.drop_pages(pages);
    }

    fn drop_pages(&mut self, pages: VecDeque<(u64, PageId)>) {
        self.inner.items.logs.drop_pages(&self.site, pages);
    }

    /// Sees to it that a slice begins at `hash`.
    pub(crate) fn part_at(&mut self, hash: u64) {
        while let Some(lost) = self.inner.index.part_at(&mut self.site, hash) {
            let items = &mut self.inner.items;
            items.counts.lost(lost.len() as u64);
            items.counts.remove(lost.len() as u64);
            lost.into_iter().for_each(|offset| items.kill_record(&self.site, offset));
        }
    }

    /// Sees to it that the index has a slice of so many blocks for these hashes, where it has none. `None`, and nothing that is stored
    /// has changed, if it has one, or no memory. Slices come from another cachelet in the order of their hashes: without this all
    /// items would crowd into one, to be split again and again until the directory may not grow.
    pub(crate) fn make_way(&mut self, low: u64, high: u64, blocks: usize) -> Option<Slice<'_>> {
        let (_, last) = self.site.hashes_around(low);
        let depth = self.inner.index.depth_for(&self.site, low, high)?;
        self.part_at(low);
        if high < last {
            self.part_at(high + 1);
        }
        self.inner.index.slice_for(&mut self.site, (low, high), depth, blocks)
    }
}
