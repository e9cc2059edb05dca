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
use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Instant, Key, ServerId};
use mbal_wire::{Request, words_of};

use crate::asked::ForwardedRequest;
use crate::batch::{Batch, Job};
use crate::room::{Haste, RoomWait};
use crate::slice_wait::SliceWait;
use crate::time::micros_left;
use crate::wakes::Sleeper;
use crate::worker::Worker;
use crate::{Actions, Now, Ticket, Ticketed};

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

struct Waiting {
    from: ServerId,
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
    const NONE: Patience = Patience { haste: Haste::Last, slice_is_over: true };
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

    fn take(&mut self, number: u64) -> Option<Waiting> {
        let waiting = self.all.remove(&number)?;
        self.bytes -= waiting.request.len();
        Some(waiting)
    }

    /// Of this server, the first that stands behind no other any more.
    fn next_free(&self, from: ServerId) -> Option<u64> {
        let is_free = |(number, waiting): &(&u64, &Waiting)| {
            waiting.from == from
                && waiting.wait.is_none()
                && !self.is_behind(from, waiting.hops, &waiting.keys, **number)
        };
        self.all.iter().find(is_free).map(|(number, _)| *number)
    }
}

impl Batch<'_> {
    /// What a peer's request may wait for; `None` if it stands behind others, and is held.
    pub fn patience_of(
        &mut self,
        from: ServerId,
        asked: &ForwardedRequest<'_>,
        job: &Job<'_>,
        key: Option<&Key<'_>>,
    ) -> Option<Patience> {
        if let Some(again) = self.again {
            return Some(again.patience);
        }
        if self.held.all.is_empty() {
            return Some(Patience::WHOLE);
        }
        let keys = Keys::of(job, key);
        if !self.held.is_behind(from, asked.peer.hops, &keys, u64::MAX) {
            return Some(Patience::WHOLE);
        }
        self.hold(from, asked, keys, None);
        None
    }

    /// It could not be executed yet.
    pub fn hold_for(
        &mut self,
        from: ServerId,
        asked: &ForwardedRequest<'_>,
        job: &Job<'_>,
        key: Option<&Key<'_>>,
        obstacle: Obstacle,
    ) {
        let mut wait = self.again.map_or(HeldWait::default(), |again| again.wait);
        let now = self.turn.now.instant();
        let at = match obstacle {
            Obstacle::Room(room) => wait.room.again(room, now),
            Obstacle::Slice => wait.slice.again(now),
        };
        let number = self.hold(from, asked, Keys::of(job, key), Some(wait));
        if !is_planted(Fault::NobodyIsWoken) {
            self.wakes.set(at, Sleeper::Held(number));
        }
    }

    fn hold(
        &mut self,
        from: ServerId,
        asked: &ForwardedRequest<'_>,
        keys: Keys,
        wait: Option<HeldWait>,
    ) -> u64 {
        let number = match self.again {
            Some(again) => again.number,
            None => {
                self.held.last += 1;
                self.held.last
            }
        };
        let ForwardedRequest { as_it_came, peer } = asked;
        let (hops, request, ticket) = (peer.hops, as_it_came.bytes.to_vec(), as_it_came.ticket);
        let until = self.until;
        self.held.keep(number, Waiting { from, hops, request, ticket, until, keys, wait });
        number
    }
}

impl Worker {
    /// Makes room for what a server asks, if much of what it asked is held.
    pub(crate) fn bound_held(&mut self, now: Now, actions: &mut Actions) {
        while self.held.bytes > HELD_BYTES_MAX {
            let (&number, waiting) = self.held.all.first_key_value().expect("it has bytes");
            let from = waiting.from;
            self.wakes.forget(Sleeper::Held(number));
            self.run_held(now, number, Some(Patience::NONE), actions);
            self.go_on_behind(now, from, actions);
        }
    }

    /// A held request's moment has come.
    pub(crate) fn try_held(&mut self, now: Now, number: u64, actions: &mut Actions) {
        let Some(waiting) = self.held.all.get(&number) else { return };
        let from = waiting.from;
        self.run_held(now, number, None, actions);
        if !self.held.all.contains_key(&number) {
            self.go_on_behind(now, from, actions);
        }
    }

    fn go_on_behind(&mut self, now: Now, from: ServerId, actions: &mut Actions) {
        while let Some(number) = self.held.next_free(from) {
            self.run_held(now, number, None, actions);
        }
    }

    fn run_held(
        &mut self,
        now: Now,
        number: u64,
        patience: Option<Patience>,
        actions: &mut Actions,
    ) {
        let Some(waiting) = self.held.take(number) else { return };
        let wait = waiting.wait.unwrap_or_default();
        let moment = now.instant();
        let patience = patience.unwrap_or_else(|| Patience {
            haste: wait.room.haste(moment),
            slice_is_over: wait.slice.is_over(moment),
        });
        let (ticket, micros_left) = (waiting.ticket, micros_left(waiting.until, moment));
        let requests = [Ticketed { ticket, micros_left, bytes: &waiting.request }];
        let Actions { bytes: out, requests: to_peers, list } = actions;
        self.turn_of_nobody(now, 0, out, to_peers, list, |batch, decoded| {
            batch.again = Some(Again { number, wait, patience });
            batch.serve(waiting.from, &requests, decoded);
        });
    }

    /// Who asked these over a link has gone: what is left of them is not executed, since it could come after newer requests.
    pub(crate) fn drop_held(
        &mut self,
        now: Now,
        server: ServerId,
        tickets: &Range<Ticket>,
        actions: &mut Actions,
    ) {
        let is_gone =
            |waiting: &Waiting| waiting.from == server && tickets.contains(&waiting.ticket);
        let gone: Vec<u64> =
            self.held.all.iter().filter(|(_, waiting)| is_gone(waiting)).map(|(n, _)| *n).collect();
        for number in gone {
            self.held.take(number);
            self.wakes.forget(Sleeper::Held(number));
        }
        self.go_on_behind(now, server, actions);
    }
}
