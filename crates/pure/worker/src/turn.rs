//! One request, executed.

use std::sync::Arc;

use mbal_cachelet::{Ahead, Room};
use mbal_model::{Instant, Key, Owner, Route, WorkerId};
use mbal_sketch::Sampler;
use mbal_wire::{Limits, Login, Request, push_line};

use crate::Now;
use crate::batch::Pause;
use crate::conns::ConnInfo;
use crate::counters::{ClassCounters, Counters};
use crate::distances::Shown;
use crate::log::Watcher;
use crate::room::Haste;
use crate::shared::Shared;
use crate::walks::Walk;

/// What the requests of one connection are executed with.
pub(crate) struct Turn<'w> {
    pub shared: &'w Shared,
    pub counters: &'w Counters,
    /// By class of size.
    pub classes: &'w [ClassCounters],
    /// Streams of log lines that somebody watches.
    pub watched: u32,
    /// The connection that asks, and its descriptor.
    pub info: &'w ConnInfo,
    pub fd: u32,
    pub map_version: u64,
    pub here: Owner,
    /// No cachelet of the map is another server's.
    pub alone: bool,
    /// The lease by which this server owns is over: what is here is nobody's.
    pub lapsed: bool,
    /// By the clock that leases are counted by.
    pub lease_now: Instant,
    /// Some cachelets that are here serve nothing yet.
    pub newborn: bool,
    pub now: Now,
    pub sampler: &'w mut Sampler,
    pub shown: &'w mut Shown,
    /// Where the first key of the next request is looked for, as far as that is known.
    pub ahead: Ahead<'w>,
    /// What was known ahead is void: room was made since.
    pub made_room: bool,
    /// What the next request may do for room; and what came of that, if it was not executed for want of it.
    pub haste: Haste,
    pub no_room: Option<Room>,
    /// Values on their way from an item to its successor.
    pub scratch: &'w mut Vec<u8>,
    /// Replies are appended here.
    pub out: &'w mut Vec<u8>,
    /// Replies of peers stand before what is appended.
    pub has_waiting: bool,
    /// Where this connection's replies begin in `out`.
    pub start: usize,
    /// Keys of `get`s answered so far, but for each one's first.
    pub further_keys: usize,
    /// The client knows the workers: what its turn costs leaves with its cachelets.
    pub follows: bool,
}

/// What follows a request.
pub(crate) enum Then {
    Next,
    /// A `get` stopped halfway, with too much output or after too many keys; this `get` is the rest of it.
    Resume(Vec<u8>),
    /// It was not executed: peers have to answer others first.
    Wait(Pause),
    /// It was not executed: there is no room yet.
    NoRoom(Room),
    /// It was not executed: it asks for a slice of a cachelet that moves.
    OnItsWay,
    Close(Option<bool>),
    /// The answer takes many steps.
    Walk(Box<Walk>),
    /// From now on the connection watches.
    Watch(Arc<Watcher>),
    /// The driver has to read certificates first.
    RefreshCerts,
}

impl<'w> Turn<'w> {
    /// `key` is the request's (first) key, unless that is too long to be one.
    #[inline]
    pub fn execute(&mut self, request: &Request<'_>, key: Option<Key<'_>>) -> Then {
        let owner = self.ahead.owner();
        let then = self.execute_uncounted(request, key);
        if let Some(room) = self.no_room.take() {
            return Then::NoRoom(room);
        }
        self.count_executed(key.as_ref(), owner);
        then
    }

    /// Executes an `mg` that changes nothing of its item, though its flags might. False, and nothing is done, if it is no such request.
    pub fn execute_unchanging(&mut self, request: &Request<'_>, key: &Key<'_>) -> bool {
        let Request::MetaGet(meta) = request else { return false };
        let owner = self.ahead.owner();
        let is_done = self.meta_get_unchanged(meta, key);
        if is_done {
            self.count_executed(Some(key), owner);
        }
        is_done
    }

    fn execute_uncounted(&mut self, request: &Request<'_>, key: Option<Key<'_>>) -> Then {
        let the_key = || key.expect("the parser measured it");
        match request {
            Request::Get(get) => return self.get(get, key),
            Request::MetaGet(meta) => self.meta_get(meta, &the_key()),
            Request::MetaSet(meta, chunk) => self.meta_set(meta, &the_key(), *chunk),
            Request::MetaDelete(meta) => self.meta_delete(meta, &the_key()),
            Request::MetaArithmetic(meta) => self.meta_arithmetic(meta, &the_key()),
            Request::MetaDebug { .. } => self.meta_debug(&the_key()),
            Request::MetaNoop => self.line(b"MN"),
            Request::Store(storage) => self.store(storage, &the_key()),
            Request::Arithmetic { direction, delta, noreply, .. } => {
                self.arithmetic(&the_key(), *direction, *delta, *noreply);
            }
            Request::Touch { exptime, noreply, .. } => self.touch(&the_key(), *exptime, *noreply),
            Request::Delete { noreply, .. } => self.delete(&the_key(), *noreply),
            Request::TooLarge { remove, noreply, .. } => {
                self.too_large(&the_key(), *remove, *noreply);
            }
            Request::Answer(line) => self.line(line.as_bytes()),
            Request::Silence => {}
            Request::Version => {
                self.out.extend_from_slice(b"VERSION ");
                self.line(self.shared.settings.version.as_bytes());
            }
            Request::Quit => return Then::Close(None),
            Request::Binary(binary) => return self.binary(binary, key),
            Request::Login { .. } => unreachable!("the batch logs in"),
            Request::Admin { command, noreply } => return self.admin(command, *noreply),
        }
        Then::Next
    }

    /// For the first key of this request alone.
    #[inline]
    pub fn take_ahead(&mut self) -> Ahead<'w> {
        let known = std::mem::replace(&mut self.ahead, Ahead::NONE);
        if self.made_room { Ahead::NONE } else { known }
    }

    /// Counts a key's request, by whose cachelet that is. `owner` is who was found ahead of it, which spares the way there.
    #[inline]
    pub fn count_executed(&self, key: Option<&Key<'_>>, owner: Option<WorkerId>) {
        match (owner, key) {
            (Some(owner), _) => self.count_owner(owner),
            (None, Some(key)) => match self.route(key) {
                Route::Own => self.count_owner(self.here.worker),
                Route::Neighbour(owner) => self.count_owner(owner),
                // Counted where it is forwarded.
                Route::Peer(_) | Route::Moving(_) => {}
            },
            (None, None) => {}
        }
    }

    #[inline]
    fn count_owner(&self, owner: WorkerId) {
        match owner == self.here.worker {
            true => self.counters.requests_own.add(1),
            false => self.counters.requests_neighbour.add(1),
        }
    }

    pub fn limits(&self, login: Login) -> Limits {
        Limits { item_bytes_max: self.shared.settings.item_bytes_max, login }
    }

    /// Reply bytes of this connection so far.
    pub fn replied_bytes(&self) -> usize {
        self.out.len() - self.start
    }

    /// Something is to be sent before the next reply.
    pub fn replies_wait(&self) -> bool {
        self.has_waiting || self.replied_bytes() > 0
    }

    pub fn line(&mut self, line: &[u8]) {
        push_line(self.out, line);
    }

    /// A reply for those who want one.
    pub fn reply(&mut self, noreply: bool, line: &[u8]) {
        if !noreply {
            self.line(line);
        }
    }
}
