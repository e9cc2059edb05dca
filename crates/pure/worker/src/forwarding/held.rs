//! Peers' requests that are not executed yet: those that wait for room or for a slice that moves, and those behind them that may be about
//! the same key.
//!
//! ```text
//!   set a (waits for room)    get b     set a           flush_all        get c
//!   held, tried again         served    behind set a    behind both      behind flush_all
//! ```
//! So what one connection has asked of a key is executed in its order, and the other requests of its link go on.

use std::collections::BTreeMap;
use std::ops::Range;

use mbal_cachelet::Room;
use mbal_model::{Instant, Key, ServerId};
use mbal_wire::{Request, words_of};

use crate::forwarding::forwarded::ForwardedRequest;
use crate::ids::{Ticket, Ticketed};
use crate::sessions::job::Job;
use crate::sessions::room::{Haste, RoomWait};
use crate::sessions::slice_wait::SliceWait;
use crate::time::micros_left;

/// Beyond so many bytes the older ones are tried for the last time before more are held.
const HELD_BYTES_MAX: usize = 4 << 20;

/// What a request is about.
enum Keys {
    All,
    /// Hashes of its keys.
    Of(Vec<u64>),
}

impl Keys {
    fn of(job: &Job<'_>, key: Option<&Key<'_>>) -> Keys {
        let Some(key) = key else { return Keys::All };
        let mut hashes = vec![key.hash()];
        if let Request::Get(get) = job.request {
            hashes.extend(words_of(get.further).filter_map(Key::new).map(|key| key.hash()));
        }
        Keys::Of(hashes)
    }

    fn meet(&self, other: &Keys) -> bool {
        match (self, other) {
            (Keys::Of(these), Keys::Of(those)) => these.iter().any(|hash| those.contains(hash)),
            _ => true,
        }
    }
}

pub(crate) struct Waiting {
    pub from: ServerId,
    /// Servers that have passed it on.
    hops: u8,
    request: Vec<u8>,
    ticket: Ticket,
    /// Until when it may be executed.
    until: Instant,
    keys: Keys,
    /// `None`: it stands behind another.
    wait: Option<HeldWait>,
}

/// Why a request cannot be executed at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    Room(Room),
    /// A slice is on its way; or whom to ask next has no credit.
    Slice,
}

/// How a request has waited for either.
#[derive(Clone, Copy, Default)]
struct HeldWait {
    room: RoomWait,
    slice: SliceWait,
}

/// What a request may wait for.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    pub haste: Haste,
    pub slice_is_over: bool,
}

impl Patience {
    const WHOLE: Patience = Patience { haste: Haste::None, slice_is_over: false };
    pub const NONE: Patience = Patience { haste: Haste::Last, slice_is_over: true };
}

#[derive(Default)]
pub(crate) struct HeldRequests {
    /// By number, which is the order in which they came.
    all: BTreeMap<u64, Waiting>,
    last: u64,
    bytes: usize,
}

/// A held request that is tried again.
#[derive(Clone, Copy)]
pub(crate) struct Again {
    number: u64,
    wait: HeldWait,
    patience: Patience,
}

impl HeldRequests {
    /// True if the request has to stand behind one of the same server that came before it. One that has been passed on less often may wait
    /// for this one's answer.
    fn is_behind(&self, from: ServerId, hops: u8, keys: &Keys, before: u64) -> bool {
        let mut earlier = self.all.range(..before).map(|(_, waiting)| waiting);
        earlier.any(|other| other.from == from && other.hops >= hops && other.keys.meet(keys))
    }

    fn keep(&mut self, number: u64, waiting: Waiting) {
        self.bytes += waiting.request.len();
        self.all.insert(number, waiting);
    }

    pub fn take(&mut self, number: u64) -> Option<Waiting> {
        let waiting = self.all.remove(&number)?;
        self.bytes -= waiting.request.len();
        Some(waiting)
    }

    /// Of this server, the first that stands behind no other any more.
    pub fn next_free(&self, from: ServerId) -> Option<u64> {
        let is_free = |(number, waiting): &(&u64, &Waiting)| {
            waiting.from == from
                && waiting.wait.is_none()
                && !self.is_behind(from, waiting.hops, &waiting.keys, **number)
        };
        self.all.iter().find(is_free).map(|(number, _)| *number)
    }

    /// What a peer's request may wait for; `None` if it stands behind others, and is held.
    pub fn patience_of(
        &mut self,
        asked: &ForwardedRequest<'_>,
        again: Option<Again>,
        job: &Job<'_>,
        key: Option<&Key<'_>>,
    ) -> Option<Patience> {
        if let Some(again) = again {
            return Some(again.patience);
        }
        if self.all.is_empty() {
            return Some(Patience::WHOLE);
        }
        let keys = Keys::of(job, key);
        if !self.is_behind(asked.from, asked.peer.hops, &keys, u64::MAX) {
            return Some(Patience::WHOLE);
        }
        self.hold(asked, again, keys, None);
        None
    }

    /// It could not be executed yet: its number, and when it is to be tried again.
    pub fn hold_for(
        &mut self,
        asked: &ForwardedRequest<'_>,
        again: Option<Again>,
        keys: (&Job<'_>, Option<&Key<'_>>),
        obstacle: Obstacle,
        now: Instant,
    ) -> (u64, Instant) {
        let mut wait = again.map_or(HeldWait::default(), |again| again.wait);
        let at = match obstacle {
            Obstacle::Room(room) => wait.room.again(room, now),
            Obstacle::Slice => wait.slice.again(now),
        };
        (self.hold(asked, again, Keys::of(keys.0, keys.1), Some(wait)), at)
    }

    fn hold(
        &mut self,
        asked: &ForwardedRequest<'_>,
        again: Option<Again>,
        keys: Keys,
        wait: Option<HeldWait>,
    ) -> u64 {
        let number = again.map_or(self.last + 1, |again| again.number);
        self.last = self.last.max(number);
        let ForwardedRequest { from, as_it_came, until, peer } = asked;
        let (hops, request, ticket) = (peer.hops, as_it_came.bytes.to_vec(), as_it_came.ticket);
        let (from, until) = (*from, *until);
        self.keep(number, Waiting { from, hops, request, ticket, until, keys, wait });
        number
    }

    /// The oldest, if there is too much: its number, and whose it is.
    pub fn too_old(&self) -> Option<(u64, ServerId)> {
        let oldest = || self.all.first_key_value().expect("it has bytes");
        (self.bytes > HELD_BYTES_MAX).then(|| (*oldest().0, oldest().1.from))
    }

    /// Whose a request is that is still held.
    pub fn from(&self, number: u64) -> Option<ServerId> {
        self.all.get(&number).map(|waiting| waiting.from)
    }

    /// Takes out those that a server asked by these tickets: their numbers.
    pub fn drop_all(&mut self, from: ServerId, tickets: &Range<Ticket>) -> Vec<u64> {
        let is_gone = |waiting: &Waiting| waiting.from == from && tickets.contains(&waiting.ticket);
        let gone: Vec<u64> =
            self.all.iter().filter(|(_, waiting)| is_gone(waiting)).map(|(n, _)| *n).collect();
        gone.iter().for_each(|number| drop(self.take(*number)));
        gone
    }
}

impl Waiting {
    /// It is tried again; `patience`, unless that is what its waiting has left it.
    pub fn again(&self, number: u64, patience: Option<Patience>, now: Instant) -> Again {
        let wait = self.wait.unwrap_or_default();
        let left =
            || Patience { haste: wait.room.haste(now), slice_is_over: wait.slice.is_over(now) };
        Again { number, wait, patience: patience.unwrap_or_else(left) }
    }

    /// The request as it came.
    pub fn as_asked(&self, now: Instant) -> Ticketed<'_> {
        let micros_left = micros_left(self.until, now);
        Ticketed { ticket: self.ticket, micros_left, bytes: &self.request }
    }
}
