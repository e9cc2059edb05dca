//! Looking at every item, a slice at a time.

use mbal_model::Seconds;

use crate::classes::class_of;
use crate::index::hash_of;
use crate::item::Item;
use crate::locked::Locked;
use crate::memory::Offset;
use crate::routes::{Slot, Way};
use crate::shim::Ordering::*;
use crate::slice::Slice;
use crate::store::Store;
use crate::view::View;

/// What a walk does with dead items that it meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dead {
    PassOver,
    Remove,
}

impl Store {
    /// Shows the live items of the slice that the hash `from` falls into, under its cachelet's lock; the
    /// first hash of the next slice, whichever cachelet that belongs to. `None` is the end. O(items of a
    /// slice). An item that is there all the time is shown once, whatever splits or moves meanwhile.
    ///
    /// With it, the class of every item that was dead, belongs to `classes` (by bit), and was removed.
    ///
    /// Between [`Store::enter`] and [`Store::leave`].
    pub fn walk(
        &self,
        from: u64,
        now: Seconds,
        dead: Dead,
        classes: u64,
        mut show: impl FnMut(&View),
    ) -> (Option<u64>, Vec<usize>) {
        let Some(from) = self.routes.next_here(from) else { return (None, Vec::new()) };
        let Way::Here(slot) = self.routes.of(from) else { return (Some(from), Vec::new()) };
        let (mut locked, next) = self.lock_slice(slot, from, now);
        let now = locked.now;
        let mut expired = Vec::new();
        let slice = locked.slice_at(locked.entry(from));
        for offset in slice.into_iter().flat_map(Slice::offsets) {
            let item = Item::at(&self.memory, offset);
            // A child's slice may hold what was shown before it was moved there, and what will be shown where it is still.
            if !(u128::from(from)..next).contains(&u128::from(hash_of(&self.memory, offset))) {
                continue;
            }
            if item.expired(now) {
                expired.push(offset);
            } else {
                show(&View::new(self, locked.cachelet, item, now));
            }
        }
        let mut removed = Vec::new();
        for offset in expired.into_iter().filter(|_| dead == Dead::Remove) {
            let class = class_of(Item::at(&self.memory, offset)).0;
            if classes >> class & 1 == 1 {
                locked.remove_expired(offset);
                removed.push(class);
            }
        }
        (u64::try_from(next).ok(), removed)
    }

    /// The cachelet that has the slice of `from` now, locked, and where the slice ends.
    pub(crate) fn lock_slice(&self, slot: Slot, from: u64, now: Seconds) -> (Locked<'_>, u128) {
        let mut cachelet = self.at(slot);
        let mut end = u128::MAX;
        loop {
            let locked = self.lock_cachelet(cachelet, now);
            // What a child does not have yet is empty there: its slice may seem longer than it is.
            end = end.min(locked.end_of_slice(from));
            if !locked.dir().entries[locked.entry(from)].has_moved() {
                return (locked, end);
            }
            cachelet = self.child(cachelet);
        }
    }
}

impl Locked<'_> {
    pub(crate) fn end_of_slice(&self, hash: u64) -> u128 {
        let prefix_bits = self.cachelet.prefix_bits.load(Relaxed);
        let prefix = hash.checked_shr(64 - prefix_bits).unwrap_or(0);
        let dir = self.dir();
        let end = dir.run(self.entry(hash)).end as u128;
        ((u128::from(prefix) << dir.depth()) + end) << (64 - prefix_bits - dir.depth())
    }

    fn remove_expired(&mut self, offset: Offset) {
        let hash = hash_of(&self.store.memory, offset);
        let place = self.place_at(hash, offset).expect("nobody moved it under this lock");
        self.count_expired(offset);
        self.unlink(hash, place);
    }
}
