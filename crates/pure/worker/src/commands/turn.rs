//! One request, executed.

use std::sync::Arc;

use mbal_cachelet::{Ahead, Room};
use mbal_wire::push_line;

use crate::commands::context::Context;
use crate::commands::walks::Walk;
use crate::observing::log::Watcher;
use crate::observing::observer::Observer;
use crate::sessions::room::Haste;
use crate::sessions::session::Pause;
use crate::time::Now;

/// What the requests of one connection are executed with.
pub(crate) struct Turn<'w> {
    pub on: Context<'w>,
    pub observer: Observer<'w>,
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
    /// Requests of other servers for cachelets of this worker: what they cost leaves with those when they leave the server.
    pub linked: usize,
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
    /// Nothing has been asked yet.
    #[inline]
    pub fn new(
        on: Context<'w>,
        observer: Observer<'w>,
        scratch: &'w mut Vec<u8>,
        out: &'w mut Vec<u8>,
    ) -> Turn<'w> {
        let start = out.len();
        Turn {
            on,
            observer,
            ahead: Ahead::NONE,
            made_room: false,
            haste: Haste::None,
            no_room: None,
            scratch,
            out,
            has_waiting: false,
            start,
            further_keys: 0,
            follows: false,
            linked: 0,
        }
    }

    #[inline]
    pub fn now(&self) -> Now {
        self.on.now()
    }

    /// For the first key of this request alone.
    #[inline]
    pub fn take_ahead(&mut self) -> Ahead<'w> {
        let known = std::mem::replace(&mut self.ahead, Ahead::NONE);
        if self.made_room { Ahead::NONE } else { known }
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
