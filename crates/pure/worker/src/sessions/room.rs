//! Requests that wait for room: for memory that other workers' batches may still see, or that is cleaned bit by bit.
//!
//! A connection's request waits in its session, a peer's is [held](crate::forwarding::held). Either is tried again when the worker is woken. When
//! it has waited in vain for long enough, what it stores is refused for want of memory.

use std::time::Duration;

use mbal_cachelet::Room;
use mbal_model::Instant;

use crate::sessions::retry::Retry;

/// Waiting in vain ends after this: longer than a worker is kept from its core, be the machine as busy as it likes. Only the client that
/// stores waits.
pub const ROOM_WAIT_MAX: Duration = Duration::from_secs(1);

/// After so many turns in which something was cleaned for a value, more is cleaned at a time: others may have taken what was made
/// free.
const TURNS_MAX: u32 = 1_000;
/// After so many the value is refused if there is no room still. A value of a gibibyte, whose pages are full of small items, needs half
/// as many.
const TURNS_IN_ALL_MAX: u32 = 4_000;

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
    /// Tries in vain, since something was cleaned for it last.
    retry: Retry,
    /// Tries at which something was cleaned for it.
    turns: u32,
}

impl RoomWait {
    /// What the next try may do.
    pub fn haste(&self, now: Instant) -> Haste {
        if self.retry.is_over(ROOM_WAIT_MAX, now) || self.turns >= TURNS_IN_ALL_MAX {
            Haste::Last
        } else if self.turns >= TURNS_MAX {
            Haste::Cleans
        } else {
            Haste::None
        }
    }

    /// There was none yet: when to try again.
    pub fn again(&mut self, room: Room, now: Instant) -> Instant {
        if room == Room::Partly {
            *self = RoomWait { retry: Retry::default(), turns: self.turns + 1 };
            return now;
        }
        self.retry.again(0, ROOM_WAIT_MAX, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_in_vain_is_tried_less_and_less_often_and_ends() {
        let begin = Instant::from_micros(5);
        let (mut wait, mut now) = (RoomWait::default(), begin);
        let mut tries = Vec::new();
        while wait.haste(now) != Haste::Last {
            now = wait.again(Room::InUse, now);
            tries.push((now - begin).as_micros());
        }
        assert_eq!(tries[..7], [50, 150, 350, 750, 1_550, 2_550, 3_550]);
        assert_eq!(tries.last(), Some(&ROOM_WAIT_MAX.as_micros()));
    }

    #[test]
    fn what_is_cleaned_bit_by_bit_goes_on_at_once_and_does_not_wait_in_vain() {
        let mut wait = RoomWait::default();
        for turn in 0..TURNS_MAX {
            let now = Instant::ZERO + 2 * turn * ROOM_WAIT_MAX;
            assert_eq!(wait.haste(now), Haste::None, "turn {turn}");
            assert_eq!(wait.again(Room::InUse, now), now + Duration::from_micros(50));
            assert_eq!(wait.again(Room::Partly, now), now);
        }
        assert_eq!(wait.haste(Instant::ZERO), Haste::Cleans);
        for _ in TURNS_MAX..TURNS_IN_ALL_MAX {
            assert_eq!(
                (wait.haste(Instant::ZERO), wait.again(Room::Partly, Instant::ZERO)),
                (Haste::Cleans, Instant::ZERO)
            );
        }
        assert_eq!(
            wait.haste(Instant::ZERO),
            Haste::Last,
            "a request does not come again for ever"
        );
    }
}
