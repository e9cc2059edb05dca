//! Writes with no known outcome: an upstream may have one in its receive buffer, and execute it when it goes on.
//!
//! ```text
//!  a write times out ─► its key is owed: deleted at once over the next connection, and reads of it miss
//!        │
//!        ├─ the upstream's machine has all of it ─► half-closed ─► the upstream closes: all is executed ─┐
//!        └─ or not ─► reset ─► the upstream answers over a new connection ─► `Settings::doubt` later ────┤
//!                                                                                                        ▼
//!                                              deleted once more, behind all that was asked; reads go there again
//! ```
//!
//! Between the two deletions the late write may be executed, over what has been stored since. So nobody is shown what is there.

use std::collections::BTreeSet;
use std::time::Duration;

use mbal_model::{Instant, KEY_BYTES_MAX};
use mbal_wire::{ReplyKind, Request, base64_decode};

use crate::encode::{push_delete, push_flush};
use crate::expect::{Echo, Expect};
use crate::inflight::{InFlight, Who};

pub(crate) const IN_DOUBT: &[u8] = b"SERVER_ERROR upstream write in doubt\r\n";

/// What a client hears of a key that is in doubt.
pub(crate) enum InDoubt {
    /// It is sent: it shows nothing of what is there.
    Sent,
    Said(&'static [u8]),
    Refused,
}

impl InDoubt {
    pub fn of(request: &Request<'_>) -> InDoubt {
        match request {
            Request::Get(_) => InDoubt::Said(b"END\r\n"),
            Request::MetaGet(meta) if meta.flags.has(b'q') => InDoubt::Said(b""),
            Request::MetaGet(_) | Request::MetaDebug { .. } => InDoubt::Said(b"EN\r\n"),
            Request::Arithmetic { .. } | Request::MetaArithmetic(_) => InDoubt::Refused,
            _ => InDoubt::Sent,
        }
    }
}

/// Keys that a connection remembers to delete.
const OWED_MAX: usize = 10_000;

/// A key that was written, and whether text needs base64 for it.
pub(crate) type Owed = (Box<[u8]>, bool);

/// What is not known of writes over earlier lives of a connection.
#[derive(Default)]
pub(crate) struct Doubts {
    /// A write may still be executed: until then, or until some time after the next reply.
    until: Option<Instant>,
    /// Keys whose last write has no known outcome: they are deleted before anything else is asked, and again when the write cannot
    /// be executed any more.
    owed: BTreeSet<Owed>,
    /// Too many to know: everything is.
    owes_all: bool,
    /// Deletions that are on their way for good.
    paying: usize,
    /// Earlier connections that were given up while a write was not answered, and nothing tells when it is over.
    unknown: u32,
    /// Likewise, whose upstream will close them when it is.
    lingering: u32,
    /// When a write got no answer.
    since: Instant,
}

impl Doubts {
    pub fn until(until: Option<Instant>) -> Doubts {
        Doubts { until, ..Doubts::default() }
    }

    /// Something is to be deleted.
    pub fn owes(&self) -> bool {
        self.owes_all || !self.owed.is_empty()
    }

    pub fn owes_key(&self, key: &[u8]) -> bool {
        let is_owed = |base64| self.owed.contains(&(key.into(), base64) as &Owed);
        self.owes_all || !self.owed.is_empty() && (is_owed(false) || is_owed(true))
    }

    /// An earlier write may still be executed, or what it has brought is still to be deleted.
    pub fn is_any(&self, now: Instant) -> bool {
        self.owes() || self.end(now).is_some()
    }

    /// When an earlier write cannot be executed any more; [`Instant::MAX`] before the upstream has answered.
    pub fn end(&self, now: Instant) -> Option<Instant> {
        self.until.filter(|until| now < *until)
    }

    /// The upstream has answered nothing since a write was lost.
    pub fn awaits_reply(&self) -> bool {
        self.until == Some(Instant::MAX)
    }

    /// A reply has come: earlier writes may be executed for so long more.
    #[inline]
    pub fn answered(&mut self, now: Instant, doubt: Duration) {
        if self.until == Some(Instant::MAX) {
            self.until = Some(now + doubt);
        }
    }

    /// No earlier write can be executed any more.
    pub fn is_settled(&self) -> bool {
        self.unknown == 0 && self.lingering == 0
    }

    pub fn is_paying(&self) -> bool {
        self.paying > 0
    }

    /// When what is owed can be deleted for good.
    pub fn pays_at(&self) -> Option<Instant> {
        let waits = self.unknown > 0 && self.lingering == 0 && self.owes() && self.paying == 0;
        self.until.filter(|until| waits && *until < Instant::MAX)
    }

    /// True if what is owed is to be deleted for good now.
    pub fn may_pay(&mut self, now: Instant) -> bool {
        if self.until.is_some_and(|until| until <= now) {
            self.unknown = 0;
        }
        self.is_settled() && self.paying == 0 && self.owes()
    }

    /// The connection is gone; `keys` of its writes are not answered, each behind its length and whether it is in base64. They
    /// `may_come` if something of them has left.
    pub fn lose(&mut self, mut keys: &[u8], may_come: bool, now: Instant) {
        if !keys.is_empty() && may_come {
            self.until = Some(Instant::MAX);
            self.unknown += 1;
        }
        self.paying = 0;
        let owed = self.owes();
        while let [length, base64, rest @ ..] = keys {
            let (key, rest) = rest.split_at(usize::from(*length));
            if self.owed.len() < OWED_MAX {
                let mut decoded = [0; KEY_BYTES_MAX];
                let length = if *base64 != 0 { base64_decode(key, &mut decoded) } else { None };
                let key = length.map_or(key, |length| &decoded[..length]);
                self.owe(key.into(), length.is_some());
            } else {
                self.owes_all = true;
            }
            keys = rest;
        }
        if !owed && self.owes() {
            self.since = now;
        }
    }

    pub fn owe(&mut self, key: Box<[u8]>, base64: bool) {
        self.owed.insert((key, base64));
    }

    /// What is owed; `None`: everything.
    pub fn owed(&self) -> Option<impl Iterator<Item = &[u8]>> {
        (!self.owes_all).then(|| self.owed.iter().map(|(key, _)| &**key))
    }

    /// When another server may delete what is owed: for longer than a write may take.
    pub fn late_at(&self, doubt: Duration) -> Instant {
        self.since + doubt
    }

    /// It could not: it is tried again when as much time has gone.
    pub fn postpone(&mut self, now: Instant) {
        self.since = now;
    }

    /// Of more keys than are known nothing is owed.
    pub fn forget_rest(&mut self) {
        self.owes_all = false;
    }

    /// Keys that are owed, for longer than a write may take: another server may delete them.
    pub fn take_late(&mut self, now: Instant, doubt: Duration) -> BTreeSet<Owed> {
        match self.late_at(doubt) <= now {
            true => self.take(),
            false => BTreeSet::new(),
        }
    }

    pub fn take(&mut self) -> BTreeSet<Owed> {
        std::mem::take(&mut self.owed)
    }

    /// Everything was flushed, or filled anew.
    pub fn forget_owed(&mut self) {
        self.owed.clear();
        self.owes_all = false;
    }

    /// Everything was filled anew, behind all writes.
    pub fn forget(&mut self) {
        self.forget_owed();
        self.unknown = 0;
    }

    /// An abandoned connection is half-open: all that was sent has arrived.
    pub fn lingers(&mut self) {
        self.unknown = self.unknown.saturating_sub(1);
        self.lingering += 1;
    }

    /// The upstream has closed it, behind all that came over it; or has not in good time.
    pub fn ended(&mut self, closed: bool) {
        self.lingering = self.lingering.saturating_sub(1);
        if !closed {
            self.unknown += 1;
            self.until = Some(Instant::MAX);
        }
    }

    /// Appends the deletions of what is owed, for good if so. How many they are, and each of them.
    pub fn push(
        &mut self,
        out: &mut Vec<u8>,
        is_last: bool,
        binary: bool,
        now: Instant,
    ) -> (usize, InFlight) {
        let count = if self.owes_all {
            push_flush(out, binary);
            1
        } else {
            self.owed.iter().for_each(|(key, base64)| push_delete(out, key, *base64, binary));
            self.owed.len()
        };
        if is_last {
            self.paying = count;
        }
        let (kind, expect) = match (binary, self.owes_all) {
            (true, all) => {
                let opcode = if all { 0x08 } else { 0x04 };
                (ReplyKind::Binary, Expect::Binary { opcode, opaque: [0; 4] })
            }
            (false, true) => (ReplyKind::Line, Expect::Ok),
            (false, false) => (ReplyKind::Meta, Expect::MetaDeleted(Echo::default())),
        };
        (count, InFlight::own(if is_last { Who::Owed } else { Who::Nobody }, kind, expect, now))
    }

    /// A deletion that was owed is done.
    pub fn paid(&mut self) {
        self.paying -= 1;
        if self.owes_all {
            self.forget_owed();
        } else {
            self.owed.pop_first();
        }
    }
}
