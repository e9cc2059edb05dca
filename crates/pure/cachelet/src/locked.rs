//! What the holder of a cachelet's writer lock can do to its items.

use mbal_locks::{Held, Rank, ranks};
use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Key, Seconds};

use crate::access::Access;
use crate::cachelet::{Cachelet, Inner};
use crate::cas::Cas;
use crate::entry;
use crate::item::{Item, bits};
use crate::log::temper_of;
use crate::memory::Offset;
use crate::policy::{Temper, temper_of_arrived, temper_of_written};
use crate::reading::Ahead;
use crate::records::{MARKS, New, Rewrite, fields_of};
use crate::shim::Ordering::*;
use crate::slice::Place;
use crate::store::Store;
use crate::sync::Guard;
use crate::types::{Draft, Full};
use crate::view::View;

/// The writer lock of one cachelet, held for one operation.
pub struct Locked<'a> {
    pub(crate) store: &'a Store,
    pub(crate) cachelet: &'a Cachelet,
    pub(crate) inner: Guard<'a, ranks::Cachelet, Inner>,
    pub(crate) now: Seconds,
    /// The worker whose pool gives pages and gets them back.
    pub(crate) pool: usize,
    /// Cleaning may use the last pages, which it needs to make others free.
    pub(crate) cleaning: bool,
    /// Of main pages that are cleaned, items survive that were read within so many eras.
    pub(crate) window: u32,
}

/// An item found under the writer lock; good until the next change of the cachelet.
#[derive(Clone, Copy)]
pub struct Found<'k> {
    key: Key<'k>,
    place: Place,
}

impl Store {
    /// Takes the writer lock of the cachelet that serves `hash`. Between [`Store::enter`] and
    /// [`Store::leave`].
    #[inline]
    pub fn lock(&self, hash: u64, now: Seconds) -> Locked<'_> {
        self.lock_from(self.serving(hash), hash, now)
    }

    /// [`Store::lock`] where [`Store::prefetch_bucket`] has told for this hash, in the same epoch: so long the cachelet in which
    /// the key's slice was seen has it still, or leads on to the child to which it has moved.
    #[inline]
    pub fn lock_ahead<'s>(&'s self, ahead: Ahead<'s>, hash: u64, now: Seconds) -> Locked<'s> {
        let cachelet = ahead.cachelet().unwrap_or_else(|| self.serving(hash));
        self.lock_from(cachelet, hash, now)
    }

    #[inline]
    fn lock_from<'s>(&'s self, cachelet: &'s Cachelet, hash: u64, now: Seconds) -> Locked<'s> {
        let mut cachelet = cachelet;
        loop {
            let locked = self.lock_cachelet(cachelet, now);
            // Under the lock nobody moves it.
            let moves = cachelet.child.load(Relaxed) != 0;
            if !(moves
                && matches!(
                    self.way(cachelet.dir.load(Acquire), cachelet, hash),
                    entry::Way::Moved
                ))
            {
                return locked;
            }
            cachelet = self.child(cachelet);
        }
    }

    #[inline]
    pub(crate) fn lock_cachelet<'a>(&'a self, cachelet: &'a Cachelet, now: Seconds) -> Locked<'a> {
        self.locked(cachelet, cachelet.inner.lock(), now)
    }

    /// The upper half of a cachelet that is being split, and that is locked.
    pub(crate) fn lock_half<'a>(&'a self, half: &'a Cachelet, now: Seconds) -> Locked<'a> {
        self.locked(half, half.inner.lock_as(Held::enter(Rank::NewHalf)), now)
    }

    #[inline(always)]
    fn locked<'a>(
        &'a self,
        cachelet: &'a Cachelet,
        inner: Guard<'a, ranks::Cachelet, Inner>,
        now: Seconds,
    ) -> Locked<'a> {
        let now = self.latest(now);
        let pool = cachelet.owner();
        let mut locked =
            Locked { store: self, cachelet, inner, now, pool, cleaning: false, window: u32::MAX };
        let flush_at = cachelet.flush_at.load(Relaxed);
        if flush_at != 0 && flush_at <= now {
            let number = locked.inner.flush_next;
            locked.flush(number);
        }
        locked
    }
}

impl<'a> Locked<'a> {
    pub(crate) fn item(&self, offset: Offset) -> Item {
        Item::at(&self.store.memory, offset)
    }

    /// The key's live item. One that has expired is removed on the way.
    #[inline]
    pub fn find<'k>(&mut self, key: &Key<'k>) -> Option<Found<'k>> {
        let place = self.place_of(key)?;
        let found = Found { key: *key, place };
        if self.item(place.offset).expired(self.now) {
            self.count_expired(place.offset);
            self.remove(&found);
            return None;
        }
        Some(found)
    }

    pub fn view<R>(&self, found: &Found, show: impl FnOnce(&View) -> R) -> R {
        show(&View::new(self.store, self.cachelet, self.item(found.place.offset), self.now))
    }

    /// Stores an item, replacing the key's old one; its cas.
    pub fn put(&mut self, key: &Key, draft: &Draft) -> Result<u64, Full> {
        let old = self.place_of(key);
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
        debug_assert_eq!(old, self.place_of(key), "nothing was changed since");
        self.put_at(key, old, draft)
    }

    fn put_at(&mut self, key: &Key, old: Option<Place>, draft: &Draft) -> Result<u64, Full> {
        let value_bytes = draft.parts.iter().map(|part| part.len()).sum::<usize>();
        if key.bytes().len() + value_bytes > self.store.options().item_bytes_max {
            return Err(Full::TooLarge);
        }
        self.inner.counter += 1;
        let cas = draft.cas.map_or(Cas::Own(self.inner.counter), |cas| self.classify(cas));
        let new = New { draft, cas, fields: fields_of(draft, cas), value_bytes };
        self.inner.stats.total_items += 1;
        if old.is_some_and(|place| self.overwrite(key.hash(), place, &new)) {
            return Ok(self.cas_value(cas));
        }
        let frequency =
            old.map_or(0, |place| Access(self.item(place.offset).access()).frequency() + 1);
        let access = Access::new(self.now, frequency, false, self.store.era());
        let returns = old.is_none() && self.is_ghost(key.hash());
        let log = self.log_for(temper_of_written(returns), draft.deadline);
        let offset = self.write_new(key, &new, access, log)?;
        self.publish(key.hash(), old, offset)?;
        Ok(self.cas_value(cas))
    }

    /// Stores an item that comes from another server, where it was counted and got its cas, unless the key has one here.
    /// `is_chosen`: it is among those that travel alone.
    pub(crate) fn take_in(
        &mut self,
        key: &Key,
        draft: &Draft,
        cas: u64,
        access: Access,
        is_chosen: bool,
    ) -> Result<(), Full> {
        let value_bytes = draft.parts.iter().map(|part| part.len()).sum::<usize>();
        if key.bytes().len() + value_bytes > self.store.options().item_bytes_max {
            return Err(Full::TooLarge);
        }
        let old = self.place_of(key);
        if old.is_some() && !is_planted(Fault::ImportOverNewer) {
            return Ok(());
        }
        let cas = self.classify(cas);
        let new = New { draft, cas, fields: fields_of(draft, cas), value_bytes };
        let temper = temper_of_arrived(access.frequency(), is_chosen);
        let log = self.log_for(temper, draft.deadline);
        let offset = self.write_new(key, &new, access, log)?;
        self.publish(key.hash(), old, offset)
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
                self.repoint(hash, place, offset);
                self.kill_record(place.offset);
            }
            None => {
                if let Err(full) = self.insert(hash, offset) {
                    self.kill_record(offset);
                    return Err(full);
                }
            }
        }
        self.inner.stats.items += u64::from(old.is_none());
        Ok(())
    }

    pub fn remove(&mut self, found: &Found) {
        self.unlink(found.key.hash(), found.place);
    }

    pub(crate) fn unlink(&mut self, hash: u64, place: Place) {
        self.repoint(hash, place, 0);
        self.kill_record(place.offset);
        self.inner.stats.items -= 1;
    }

    /// Evicts the item at `offset`, whose key has `hash`; one from a new log is remembered.
    pub(crate) fn evict(&mut self, hash: u64, offset: Offset) {
        let place = self.place_at(hash, offset).expect("a live record has its place");
        self.count_evicted(offset);
        let temper = temper_of(self.page(self.page_of(offset)).log.load(Relaxed) as usize);
        self.unlink(hash, place);
        if temper == Temper::New {
            self.haunt(hash, place);
        }
    }

    /// Changes the deadline, not the cas. May fail where a field has to be added to a full cache.
    pub fn touch(&mut self, found: &Found, deadline: Seconds) -> Result<(), Full> {
        let item = self.item(found.place.offset);
        if item.bits() & bits::DEADLINE != 0 {
            self.change(found.key.hash(), || item.set_deadline(deadline));
            self.outlive(self.page_of(found.place.offset), deadline);
            return Ok(());
        }
        if deadline == 0 {
            return Ok(());
        }
        let temper =
            temper_of(self.page(self.page_of(found.place.offset)).log.load(Relaxed) as usize);
        let log = self.log_for(temper, deadline);
        let rewrite = Rewrite { deadline, log, ..self.as_it_is(item, found.place.offset) };
        self.rewrite(found.key.hash(), found.place, rewrite).map(drop)
    }

    /// Sets both marks of meta's stale items, and a new cas if one is given.
    pub fn mark(
        &mut self,
        found: &Found,
        stale: bool,
        win: bool,
        cas: Option<u64>,
    ) -> Result<(), Full> {
        let item = self.item(found.place.offset);
        let marks = bits::when(stale, bits::STALE) | bits::when(win, bits::WIN);
        let Some(cas) = cas else {
            self.change(found.key.hash(), || item.set_bits(item.bits() & !MARKS | marks));
            return Ok(());
        };
        let cas = self.classify(cas);
        let as_it_is = self.as_it_is(item, found.place.offset);
        let marks = marks | as_it_is.marks & !MARKS;
        self.rewrite(found.key.hash(), found.place, Rewrite { cas, marks, ..as_it_is }).map(drop)
    }

    /// Counts as a read: last access, fetched, frequency.
    #[inline]
    pub fn accessed(&mut self, found: &Found) {
        self.item(found.place.offset).touch_access(self.now, self.store.era());
    }
}
