//! `flush_all`: every item is forgotten at once. A flush has a number, by which what travels between servers is told apart.

use mbal_model::Seconds;
use mbal_model::planted::{Fault, is_planted};

use crate::cachelets::Cachelets;
use crate::slots::Changes;

impl Cachelets {
    /// `flush_all`: everything stored before second `at` dies then; at once if `at` ≤ `now`. Its number, by which the other servers
    /// of a cluster are told, see [`Cachelets::flush_as`].
    pub fn flush(&self, at: Seconds, now: Seconds) -> u32 {
        let mut changes = self.slots.changes();
        let number = self.newest_flush(&changes).saturating_add(1);
        self.flush_all(&mut changes, number, at, now);
        number
    }

    /// The number of the newest `flush_all` that has come to pass, as far as this server knows.
    pub fn flushed(&self) -> u32 {
        self.shared.flushes.newest()
    }

    /// The number of the newest `flush_all` that this server knows of, though it may still be to come.
    pub fn flush_number(&self) -> u32 {
        self.newest_flush(&self.slots.changes())
    }

    /// The number of the newest `flush_all` that has come to pass in the cachelet that serves `hash`: this server may know of newer ones
    /// that have not reached it. As [`Cachelets::lock`].
    pub fn flushed_at(&self, hash: u64, now: Seconds) -> u32 {
        self.lock(hash, now).inner.flushed.number()
    }

    /// A `flush_all` that has come to pass here may be under way to other servers.
    pub fn may_be_flushing(&self) -> bool {
        self.shared.flushes.over() < self.shared.flushes.newest()
    }

    /// Somewhere in the cluster a flush of this number has come to pass: what begins here is not older.
    pub fn know_flush(&self, number: u32) {
        self.shared.flushes.know(number);
    }

    /// No `flush_all` up to this number is under way any more: what one of them has not reached came to be after it, or is left out. So it
    /// counts as stored since. A cachelet that travels does so when it is whole: until then its source's number says what a flush has
    /// reached there.
    pub fn flushes_are_over(&self, number: u32) {
        let _changes = self.slots.changes();
        self.shared.flushes.are_over(number);
        for cachelet in self.slots.used().filter(|cachelet| !cachelet.front.away.is_part()) {
            cachelet.inner.lock().flushed.count_as_stored_since(&cachelet.front, number);
        }
    }

    /// When the newest `flush_all` with a delay comes, and its number; `None`, if none is to come after second `now`.
    pub fn flush_to_come(&self, now: Seconds) -> Option<(Seconds, u32)> {
        Some(self.slots.changes().flush_next).filter(|(at, _)| now < *at)
    }

    /// True if this server was told to do the `flush_all` of this number, or a newer one.
    pub fn has_heard_of_flush(&self, number: u32) -> bool {
        number <= self.slots.changes().flush_next.1
    }

    fn newest_flush(&self, changes: &Changes) -> u32 {
        self.shared.flushes.newest().max(changes.flush_next.1)
    }

    /// A `flush_all` that another server has begun, and given this number: above that of every flush that it knew of. What travels
    /// from a server that has seen it to one that has not, or the other way, is told apart by it.
    pub fn flush_as(&self, number: u32, at: Seconds, now: Seconds) {
        self.flush_all(&mut self.slots.changes(), number, at, now);
    }

    /// Nothing comes, goes or is split meanwhile: else a part that moves could be passed over.
    fn flush_all(&self, changes: &mut Changes, number: u32, at: Seconds, now: Seconds) {
        // One of a higher number came after this one, though this server has heard of it before.
        if changes.flush_next.0 <= now || changes.flush_next.1 <= number {
            changes.flush_next = (at, number);
        }
        if at <= now {
            // A server that has no cachelet tells of it as well: who begins elsewhere has to hear of it.
            self.shared.flushes.know(number);
        }
        for cachelet in self.slots.used() {
            if is_planted(Fault::FlushSkipsNewHalf) && cachelet.front.prefix().is_none() {
                continue;
            }
            let mut locked = self.lock_cachelet(cachelet, now);
            let flushed = &mut locked.inner.flushed;
            if at <= now {
                locked.flush(number);
            } else if !flushed.awaits_later(&cachelet.front, number) {
                flushed.await_next(&cachelet.front, at, number);
            }
        }
    }
}
