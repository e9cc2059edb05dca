//! Requests that wait for room: for memory that other workers' batches may still see, or that is cleaned bit by bit.
//!
//! A connection's request waits in its session, a peer's is [held](crate::held). Either is tried again when the worker is woken. When
//! it has waited in vain for long enough, what it stores is refused for want of memory.

use mbal_cachelet::{Locked, Room};
use mbal_model::Key;

use crate::time::Moment;
use crate::turn::Turn;
use crate::wakes::Sleeper;
use crate::worker::Worker;
use crate::{Actions, Now};

/// Waiting in vain ends after this: longer than a worker is kept from its core, be the machine as busy as it likes. Only the client that
/// stores waits.
pub const ROOM_MICROS_MAX: u64 = 1_000_000;

/// Others' batches last some ten microseconds; where one lasts longer, its worker has lost its core.
const RETRY_MICROS_MIN: u64 = 50;
const RETRY_MICROS_MAX: u64 = 1_000;

/// After so many turns in which something was cleaned for a value, more is cleaned at a time: others may have taken what was made
/// free.
const TURNS_MAX: u32 = 1_000;
/// After so many the value is refused if there is no room still. A value of a gibibyte, whose pages are full of small items, needs half
/// as many.
const TURNS_IN_ALL_MAX: u32 = 4_000;

/// Of those that are due, before others have their turn.
const TRIED_AT_ONCE: usize = 64;

/// What a request may do for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Haste {
    /// Come again, as often as need be.
    None,
    /// Clean much at a time, and come again.
    Cleans,
    /// Clean much once more, and take what is there.
    Last,
}

/// How a request has waited for room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RoomWait {
    /// Since when in vain; `None` if something was cleaned for it at its last try.
    since: Option<Moment>,
    /// Tries since then.
    tries: u32,
    /// Tries at which something was cleaned for it.
    turns: u32,
}

impl RoomWait {
    /// What the next try may do.
    pub fn haste(&self, now: Moment) -> Haste {
        let waited = self.since.is_some_and(|since| since.after(ROOM_MICROS_MAX) <= now);
        if waited || self.turns >= TURNS_IN_ALL_MAX {
            Haste::Last
        } else if self.turns >= TURNS_MAX {
            Haste::Cleans
        } else {
            Haste::None
        }
    }

    /// There was none yet: when to try again.
    pub fn again(&mut self, room: Room, now: Moment) -> Moment {
        if room == Room::Partly {
            *self = RoomWait { since: None, tries: 0, turns: self.turns + 1 };
            return now;
        }
        let since = *self.since.get_or_insert(now);
        let pause = (RETRY_MICROS_MIN << self.tries.min(16)).min(RETRY_MICROS_MAX);
        self.tries += 1;
        now.after(pause).min(since.after(ROOM_MICROS_MAX))
    }
}

impl<'w> Turn<'w> {
    /// The key's writer lock, after seeing to it that there is room for a value. `None`: not yet, see [`Turn::no_room`].
    pub fn lock_to_store(&mut self, key: &Key<'_>, value_bytes: usize) -> Option<Locked<'w>> {
        let (store, ahead) = (&self.shared.store, self.take_ahead());
        let (worker, second) = (self.here.worker, self.now.second);
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
}

impl Worker {
    /// When the worker wants to be woken ([`crate::Event::Woken`]), at the latest; `None` is never. To be asked after every event.
    #[inline]
    pub fn next_wake(&self) -> Option<Moment> {
        match (self.wakes.next(), self.carries_at) {
            (Some(wake), Some(carries)) => Some(wake.min(carries)),
            (wake, carries) => wake.or(carries),
        }
    }

    /// Tries again for those whose moment has come.
    pub(crate) fn woken(&mut self, now: Now, actions: &mut Actions) {
        for sleeper in self.wakes.due(now.moment(), TRIED_AT_ONCE) {
            match sleeper {
                Sleeper::Conn(conn) => self.go_on(now, conn, actions),
                Sleeper::Lost => self.tell_lost(now, actions),
                Sleeper::Held(number) => self.try_held(now, number, actions),
                Sleeper::Datagram(serial) => self.try_datagram(now, serial, actions),
                Sleeper::Map => self.settles = true,
                Sleeper::Copies => self.tick_copies(now, actions),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_in_vain_is_tried_less_and_less_often_and_ends() {
        let (mut wait, mut now) = (RoomWait::default(), Moment(5));
        let mut tries = Vec::new();
        while wait.haste(now) != Haste::Last {
            now = wait.again(Room::InUse, now);
            tries.push(now.0 - 5);
        }
        assert_eq!(tries[..7], [50, 150, 350, 750, 1_550, 2_550, 3_550]);
        assert_eq!(tries.last(), Some(&ROOM_MICROS_MAX));
    }

    #[test]
    fn what_is_cleaned_bit_by_bit_goes_on_at_once_and_does_not_wait_in_vain() {
        let mut wait = RoomWait::default();
        for turn in 0..u64::from(TURNS_MAX) {
            let now = Moment(turn * 2 * ROOM_MICROS_MAX);
            assert_eq!(wait.haste(now), Haste::None, "turn {turn}");
            assert_eq!(wait.again(Room::InUse, now), now.after(RETRY_MICROS_MIN));
            assert_eq!(wait.again(Room::Partly, now), now);
        }
        assert_eq!(wait.haste(Moment(0)), Haste::Cleans);
        for _ in TURNS_MAX..TURNS_IN_ALL_MAX {
            assert_eq!(
                (wait.haste(Moment(0)), wait.again(Room::Partly, Moment(0))),
                (Haste::Cleans, Moment(0))
            );
        }
        assert_eq!(wait.haste(Moment(0)), Haste::Last, "a request does not come again for ever");
    }
}
