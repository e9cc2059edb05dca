//! What classic, meta and binary commands have in common: conditions and changes of one item.

use mbal_cachelet::{Draft, Full, Locked, Meta, Miss, Room};
use mbal_model::{Key, Seconds};
use mbal_wire::{Direction, Login, Verb, parse_u64, push_u64};

use crate::commands::change::{Change, Changed, New, Removed, Sum};
use crate::commands::tell::Fetched;
use crate::commands::turn::Turn;
use crate::observing::details::Deed;
use crate::sessions::room::Haste;

/// Larger items memcached keeps in chunks, and does no arithmetic on them (bytes by its count).
const UNCHUNKED_BYTES_MAX: usize = 512 << 10;

/// Another worker may take the pages that were made free for an item before it is stored; then
/// they are made free again, this often in all: each is as much as [`mbal_cachelet::Store::reserve_at_once`] does.
const STORE_TRIES: u32 = 4;

impl<'w> Turn<'w> {
    /// The key's writer lock, after seeing to it that there is room for a value. `None`: not yet, see [`Turn::no_room`].
    pub fn lock_to_store(&mut self, key: &Key<'_>, value_bytes: usize) -> Option<Locked<'w>> {
        let (store, ahead) = (&self.on.shared.store, self.take_ahead());
        let (worker, second) = (self.on.here.owner.worker, self.now().second);
        let room = match self.haste {
            Haste::None => store.reserve_ahead(ahead, worker, key.hash(), value_bytes, second),
            _ => store.reserve_at_once(worker, key.hash(), value_bytes, second),
        };
        if room == Room::There {
            return Some(store.lock_ahead(ahead, key.hash(), second));
        }
        self.made_room = true;
        if self.haste != Haste::Last && matches!(room, Room::Partly | Room::InUse) {
            self.no_room = Some(room);
            return None;
        }
        Some(store.lock(key.hash(), second))
    }

    pub fn store_item(&mut self, key: &Key<'_>, change: &Change<'_>) -> Changed {
        let outcome = self.store_unwatched(key, change);
        if matches!(outcome, Changed::NoRoom) {
            return outcome;
        }
        self.on.tell_store(key, change, &outcome);
        outcome
    }

    fn store_unwatched(&mut self, key: &Key<'_>, change: &Change<'_>) -> Changed {
        let mut room = change.value.len();
        for _ in 0..STORE_TRIES {
            match self.try_to_store_item(key, change, room) {
                Ok(outcome) => return outcome,
                Err(value_bytes) => room = value_bytes,
            }
            if !self.on.shared.store.options().evict {
                break;
            }
        }
        match change.verb {
            // A copy that finds no room is not stored; the old item stays.
            Verb::Append | Verb::Prepend => Changed::Refused,
            _ => Changed::Full(Full::OutOfMemory),
        }
    }

    /// `Err` says how much room the value would have needed.
    fn try_to_store_item(
        &mut self,
        key: &Key<'_>,
        change: &Change<'_>,
        room: usize,
    ) -> Result<Changed, usize> {
        let Some(mut locked) = self.lock_to_store(key, room) else { return Ok(Changed::NoRoom) };
        let parts;
        let mut draft = Draft {
            flags: change.flags,
            deadline: change.deadline,
            parts: &[change.value],
            cas: change.new_cas,
            stale: false,
            win: false,
            binary_key: change.binary_key,
        };
        let found = locked.find(key);
        if self.on.watched != 0 {
            let old = found.map(|found| locked.view(&found, |view| view.meta()));
            self.on.tell_get(key, old.as_ref().into());
        }
        match (found, change.verb) {
            (None, Verb::Set | Verb::Add) | (Some(_), Verb::Set | Verb::Replace) => {}
            (None, Verb::Append | Verb::Prepend) if change.creates => {}
            (None, Verb::Cas) => {
                self.on.counters.cas_misses.add(1);
                return Ok(Changed::NotFound);
            }
            (None, _) | (Some(_), Verb::Add) => return Ok(Changed::Refused),
            (Some(found), Verb::Cas) => {
                let old = locked.view(&found, |view| view.meta());
                let class = self.on.class(key, &old);
                if change.cas != 0 && change.cas == old.cas {
                    self.on.counters.cas_hits.add(1);
                    class.cas_hits.add(1);
                } else if change.may_be_stale && change.cas != 0 && change.cas < old.cas {
                    self.on.counters.cas_hits.add(1);
                    class.cas_hits.add(1);
                    draft.deadline = old.deadline;
                    draft.stale = true;
                    draft.win = old.win;
                } else {
                    self.on.counters.cas_badval.add(1);
                    class.cas_badval.add(1);
                    return Ok(Changed::Exists);
                }
            }
            (Some(found), Verb::Append | Verb::Prepend) => {
                self.scratch.clear();
                let old = locked.view(&found, |view| {
                    view.copy_value(self.scratch);
                    view.meta()
                });
                if change.cas != 0 && change.cas != old.cas {
                    return Ok(Changed::Exists);
                }
                parts = match change.verb {
                    Verb::Append => [self.scratch.as_slice(), change.value],
                    _ => [change.value, self.scratch.as_slice()],
                };
                draft.parts = &parts;
                draft.flags = old.flags;
                draft.deadline = old.deadline;
                draft.binary_key = false;
                let value_bytes = parts[0].len() + parts[1].len();
                if self.on.limits(Login::Done).too_large(key.bytes().len(), old.flags, value_bytes)
                {
                    return Ok(Changed::Refused);
                }
            }
        }
        let value_bytes = draft.parts.iter().map(|part| part.len()).sum();
        match locked.put_found(key, found.as_ref(), &draft) {
            Ok(cas) => Ok(Changed::Done { cas, value_bytes }),
            Err(Full::OutOfMemory) => Err(value_bytes),
            Err(full) => Ok(Changed::Full(full)),
        }
    }

    /// Removes an item on a client's behalf. `cas` of 0 asks for none.
    pub fn delete_item(&mut self, key: &Key<'_>, cas: u64) -> Removed {
        self.on.shared.details.count(key.bytes(), Deed::Delete);
        let mut locked = self.on.shared.store.lock(key.hash(), self.now().second);
        let Some(found) = locked.find(key) else {
            self.on.counters.delete_misses.add(1);
            self.on.tell_get(key, Fetched::Miss(Miss::NotFound));
            return Removed::NotFound;
        };
        let old = locked.view(&found, |view| view.meta());
        self.on.tell_get(key, Some(&old).into());
        if cas != 0 && cas != old.cas {
            return Removed::Exists;
        }
        locked.remove(&found);
        self.on.counters.delete_hits.add(1);
        self.on.class(key, &old).delete_hits.add(1);
        Removed::Done(old)
    }

    /// Removes the item that a value which could not be stored would have replaced.
    pub fn remove_item(&mut self, key: &Key<'_>) {
        let mut locked = self.on.shared.store.lock(key.hash(), self.now().second);
        if let Some(found) = locked.find(key) {
            locked.remove(&found);
        }
    }

    /// As [`Turn::count_item`]; a missing item is created with the value and deadline of `initial`.
    pub fn count_or_create(
        &mut self,
        key: &Key<'_>,
        direction: Direction,
        delta: u64,
        cas: u64,
        new: New,
        initial: Option<(u64, Seconds)>,
    ) -> Sum {
        loop {
            let sum = self.count_item(key, direction, delta, cas, new);
            let (Sum::NotFound, Some((value, deadline))) = (&sum, initial) else { return sum };
            let mut digits = Vec::new();
            push_u64(&mut digits, value);
            let change = Change {
                verb: Verb::Add,
                flags: 0,
                deadline,
                cas: 0,
                new_cas: new.cas,
                value: &digits,
                creates: false,
                may_be_stale: false,
                binary_key: false,
            };
            match self.store_item(key, &change) {
                Changed::Done { cas, .. } => return Sum::Created { value, cas },
                // Another worker was faster: then there is something to count.
                Changed::Refused => {}
                Changed::Full(_) => return Sum::Full,
                Changed::NoRoom => return Sum::NoRoom,
                Changed::Exists | Changed::NotFound => unreachable!("an add compares no cas"),
            }
        }
    }

    /// Adds or subtracts. A result no longer than the old value stays in place, padded with
    /// blanks; a longer one is a new item. `cas` of 0 asks for none. A longer result does not take over
    /// what is `new` (memcached sets it on the item that just went), but the reply tells it.
    pub fn count_item(
        &mut self,
        key: &Key<'_>,
        direction: Direction,
        delta: u64,
        cas: u64,
        new: New,
    ) -> Sum {
        let Some(mut locked) = self.lock_to_store(key, 0) else { return Sum::NoRoom };
        let Some(found) = locked.find(key) else {
            self.on.tell_get(key, Fetched::Miss(Miss::NotFound));
            return Sum::NotFound;
        };
        let old = locked.view(&found, |view| view.meta());
        self.on.tell_get(key, Some(&old).into());
        let old_bytes = old.value_bytes as usize;
        let item_bytes = mbal_model::item_bytes(key.bytes().len(), old.flags, old_bytes);
        if old_bytes == 0 || item_bytes > UNCHUNKED_BYTES_MAX {
            return Sum::NotNumeric;
        }
        if cas != 0 && cas != old.cas {
            return Sum::Exists;
        }
        self.scratch.clear();
        locked.view(&found, |view| view.copy_value(self.scratch));
        let Some(value) = parse_u64(self.scratch) else {
            return Sum::NotNumeric;
        };
        let value = match direction {
            Direction::Increment => {
                self.on.counters.incr_hits.add(1);
                self.on.class(key, &old).incr_hits.add(1);
                value.wrapping_add(delta)
            }
            Direction::Decrement => {
                self.on.counters.decr_hits.add(1);
                self.on.class(key, &old).decr_hits.add(1);
                value.saturating_sub(delta)
            }
        };
        self.scratch.clear();
        push_u64(self.scratch, value);
        let renewed = self.scratch.len() > old_bytes;
        if !renewed {
            self.scratch.resize(old_bytes, b' ');
        }
        let draft = Draft {
            flags: old.flags,
            deadline: new.deadline.filter(|_| !renewed).unwrap_or(old.deadline),
            parts: &[self.scratch],
            cas: new.cas.filter(|_| !renewed),
            stale: old.stale && !renewed,
            win: old.win && !renewed,
            binary_key: old.binary_key && !renewed,
        };
        let Ok(cas) = locked.put_found(key, Some(&found), &draft) else {
            return Sum::Full;
        };
        if old.fetched && !renewed {
            if let Some(found) = locked.find(key) {
                locked.accessed(&found);
            }
        }
        // With the deadline before this command: flags are answered in order, `t` before `T` too.
        let meta = Meta { cas: new.cas.unwrap_or(cas), ..old };
        Sum::Done { value, meta }
    }
}
