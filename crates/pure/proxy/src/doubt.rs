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

use mbal_model::KEY_BYTES_MAX;
use mbal_model::planted::{Fault, is_planted};
use mbal_wire::{Request, base64_decode};

use crate::Nanos;
use crate::naming::push_name;
use crate::passing::End;
use crate::proxy::{Action, ConnId, Proxy};
use crate::upstream::{Conn, Health, State};

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

impl Proxy {
    /// Hangs up. What was sent may still be executed: if it writes, it has to be known when that is over.
    pub(crate) fn give_up(&mut self, conn: usize) {
        let this = &self.conns[conn];
        let id = ConnId(conn as u32);
        let writes = this.state == State::Up && this.awaits_writes() && !this.is_unsent();
        self.actions.push(match self.end_of(this.upstream) {
            End::Server if writes => Action::Abandon(id),
            _ => Action::HangUp(id),
        });
    }

    /// The driver keeps an abandoned connection half-open: all that was sent has arrived.
    pub(crate) fn lingers(&mut self, conn: usize) {
        let this = &mut self.conns[conn];
        this.doubts = this.doubts.saturating_sub(1);
        this.lingering += 1;
    }

    /// The upstream has closed such a connection, behind all that came over it; or has not in good time.
    pub(crate) fn ended(&mut self, conn: usize, closed: bool) {
        let this = &mut self.conns[conn];
        this.lingering = this.lingering.saturating_sub(1);
        if !closed {
            this.doubts += 1;
            this.doubt = Some(Nanos::MAX);
        }
        self.settle(conn);
    }

    /// When [`Proxy::settle`] is due.
    pub(crate) fn settles_at(&self, conn: &Conn) -> Option<Nanos> {
        let waits = conn.doubts > 0 && conn.lingering == 0 && conn.owes() && conn.paying == 0;
        let serves = self.upstreams[conn.upstream].health == Health::Serves;
        conn.doubt.filter(|until| waits && serves && *until < Nanos::MAX)
    }

    /// Deletes for good what is owed, if no earlier write can be executed after that.
    pub(crate) fn settle(&mut self, conn: usize) {
        let this = &mut self.conns[conn];
        if this.doubt.is_some_and(|until| until <= self.now) {
            this.doubts = 0;
        }
        let serves = self.upstreams[this.upstream].health == Health::Serves;
        let may_pay = this.state == State::Up && this.is_settled() && this.paying == 0;
        if serves && may_pay && this.owes() {
            let binary = self.is_binary(conn);
            self.conns[conn].pay(self.now, binary);
            self.tell_conn(conn);
        }
    }

    /// A deletion that was owed is done.
    pub(crate) fn paid(&mut self, conn: usize) {
        self.counters.deleted_unsure += 1;
        self.conns[conn].paid();
        if !self.conns[conn].owes() {
            self.owing = self.conns.iter().any(Conn::owes);
        }
    }

    /// What becomes of a request that goes over `conn`, where its key may have another name.
    #[cold]
    pub(crate) fn in_doubt_of(
        &self,
        conn: usize,
        request: &Request<'_>,
        (key, base64): (&[u8], bool),
        name: Option<u64>,
    ) -> InDoubt {
        match self.is_in_doubt(conn, key, base64, name) {
            true => InDoubt::of(request),
            false => InDoubt::Sent,
        }
    }

    /// Whether the last write of a key may still be executed. `conn` is one of those that it goes over.
    #[cold]
    pub(crate) fn is_in_doubt(
        &self,
        conn: usize,
        key: &[u8],
        base64: bool,
        name: Option<u64>,
    ) -> bool {
        if is_planted(Fault::LateWritesForgotten)
            || self.end_of(self.conns[conn].upstream) != End::Server
        {
            return false;
        }
        if let Some(name) = name {
            let mut named = Vec::new();
            push_name(&mut named, key, name);
            return self.is_in_doubt(conn, &named, false, None);
        }
        let mut decoded = [0; KEY_BYTES_MAX];
        let key = match base64.then(|| base64_decode(key, &mut decoded)).flatten() {
            Some(length) => &decoded[..length],
            None => key,
        };
        let conns = self.settings.conns_per_server;
        let first = self.upstreams[self.conns[conn].upstream].first_conn;
        let among = (conn - first) % conns;
        [first + among, first + conns + among].iter().any(|conn| self.conns[*conn].owes_key(key))
    }
}
