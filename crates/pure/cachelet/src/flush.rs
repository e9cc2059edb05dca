//! `flush_all`: every item is forgotten at once. A flush has a number, by which what travels between servers is told apart.

use mbal_model::Seconds;
use mbal_model::planted::{Fault, is_planted};

use crate::cachelet::{Cachelet, Inner};
use crate::locked::Locked;
use crate::presence::Changes;
use crate::shim::Ordering::*;
use crate::store::Store;

impl Store {
    /// `flush_all`: everything stored before second `at` dies then; at once if `at` ≤ `now`. Its number, by which the other servers
    /// of a cluster are told, see [`Store::flush_as`].
    pub fn flush(&self, at: Seconds, now: Seconds) -> u32 {
        let mut changes = self.changes();
        let number = self.newest_flush(&changes).saturating_add(1);
        self.flush_all(&mut changes, number, at, now);
        number
    }

    /// The number of the newest `flush_all` that has come to pass, as far as this server knows.
    pub fn flushed(&self) -> u32 {
        self.flushes.load(Relaxed)
    }

    /// The number of the newest `flush_all` that this server knows of, though it may still be to come.
    pub fn flush_number(&self) -> u32 {
        self.newest_flush(&self.changes())
    }

    /// The number of the newest `flush_all` that has come to pass in the cachelet that serves `hash`: this server may know of newer ones
    /// that have not reached it. As [`Store::lock`].
    pub fn flushed_at(&self, hash: u64, now: Seconds) -> u32 {
        self.lock(hash, now).inner.flush_number
    }

    /// A `flush_all` that has come to pass here may be under way to other servers.
    pub fn may_be_flushing(&self) -> bool {
        self.flushes_over.load(Relaxed) < self.flushes.load(Relaxed)
    }

    /// Somewhere in the cluster a flush of this number has come to pass: what begins here is not older.
    pub fn know_flush(&self, number: u32) {
        self.flushes.fetch_max(number, Relaxed);
    }

    /// No `flush_all` up to this number is under way any more: what one of them has not reached came to be after it, or is left out. So it
    /// counts as stored since. A cachelet that travels does so when it is whole: until then its source's number says what a flush has
    /// reached there.
    pub fn flushes_are_over(&self, number: u32) {
        let _changes = self.changes();
        self.flushes_over.fetch_max(number, Relaxed);
        for cachelet in self.cachelets().filter(|cachelet| !cachelet.is_partly_here()) {
            cachelet.counts_as_stored_since(number);
        }
    }

    /// When the newest `flush_all` with a delay comes, and its number; `None`, if none is to come after second `now`.
    pub fn flush_to_come(&self, now: Seconds) -> Option<(Seconds, u32)> {
        Some(self.changes().flush_next).filter(|(at, _)| now < *at)
    }

    /// True if this server was told to do the `flush_all` of this number, or a newer one.
    pub fn has_heard_of_flush(&self, number: u32) -> bool {
        number <= self.changes().flush_next.1
    }

    fn newest_flush(&self, changes: &Changes) -> u32 {
        self.flushes.load(Relaxed).max(changes.flush_next.1)
    }

    /// A `flush_all` that another server has begun, and given this number: above that of every flush that it knew of. What travels
    /// from a server that has seen it to one that has not, or the other way, is told apart by it.
    pub fn flush_as(&self, number: u32, at: Seconds, now: Seconds) {
        self.flush_all(&mut self.changes(), number, at, now);
    }

    /// Nothing comes, goes or is split meanwhile: else a part that moves could be passed over.
    fn flush_all(&self, changes: &mut Changes, number: u32, at: Seconds, now: Seconds) {
        // One of a higher number came after this one, though this server has heard of it before.
        if changes.flush_next.0 <= now || changes.flush_next.1 <= number {
            changes.flush_next = (at, number);
        }
        if at <= now {
            // A server that has no cachelet tells of it as well: who begins elsewhere has to hear of it.
            self.flushes.fetch_max(number, Relaxed);
        }
        for cachelet in self.cachelets() {
            if is_planted(Fault::FlushSkipsNewHalf) && cachelet.prefix().is_none() {
                continue;
            }
            let mut locked = self.lock_cachelet(cachelet, now);
            if at <= now {
                locked.flush(number);
            } else if !locked.awaits_later_flush(number) {
                locked.cachelet.flush_at.store(at, Relaxed);
                locked.inner.flush_next = number;
            }
        }
    }
}

impl Cachelet {
    /// True if the `flush_all` of this number has come to pass elsewhere, and neither here nor in a moment.
    pub(crate) fn is_behind_flush(&self, inner: &Inner, number: u32) -> bool {
        let is_to_come = self.flush_at.load(Relaxed) != 0 && number <= inner.flush_next;
        inner.flush_number < number && !is_to_come
    }

    /// What a `flush_all` up to this number has not reached here came to be after it.
    pub(crate) fn counts_as_stored_since(&self, number: u32) {
        let mut inner = self.inner.lock();
        if self.is_behind_flush(&inner, number) {
            inner.flush_number = number;
        }
    }
}

impl Locked<'_> {
    /// A `flush_all` with a delay, of a higher number than this, is to come.
    fn awaits_later_flush(&self, number: u32) -> bool {
        self.cachelet.flush_at.load(Relaxed) != 0 && self.inner.flush_next > number
    }

    /// `flush_all` of this number: forgets every item. A later one that is to come still comes.
    pub(crate) fn flush(&mut self, number: u32) {
        self.drop_index();
        self.drop_logs();
        self.inner.flush_number = self.inner.flush_number.max(number);
        self.store.flushes.fetch_max(number, Relaxed);
        if !self.awaits_later_flush(number) {
            self.cachelet.flush_at.store(0, Relaxed);
        }
        self.inner.stats.items = 0;
        self.inner.stats.bytes = 0;
        for class in self.inner.classes.iter_mut() {
            (class.items, class.bytes) = (0, 0);
        }
    }
}
