//! Writes with no known outcome: what is owed for them, and when it is paid.

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Instant, KEY_BYTES_MAX};
use mbal_wire::base64_decode;

use super::{End, Health, Upstreams};
use crate::conn::Conn;
use crate::naming::push_name;

impl Upstreams {
    #[inline]
    pub fn is_owing(&self) -> bool {
        self.owing
    }

    pub fn look_who_owes(&mut self) {
        self.owing = self.conns.iter().any(|conn| conn.doubts.owes());
    }

    /// A key is deleted first when its connection is used.
    pub fn owe(&mut self, conn: usize, key: Box<[u8]>, base64: bool) {
        self.conns[conn].doubts.owe(key, base64);
        self.owing = true;
    }

    /// When [`Upstreams::settle`] is due.
    pub(super) fn settles_at(&self, conn: &Conn) -> Option<Instant> {
        conn.doubts.pays_at().filter(|_| self.all[conn.upstream].serves())
    }

    /// When another server may delete what a server owes that is in its cluster no more.
    pub(super) fn moves_at(&self, conn: &Conn) -> Option<Instant> {
        let upstream = &self.all[conn.upstream];
        let is_gone = upstream.health == Health::Gone && upstream.cluster.is_some();
        (is_gone && conn.doubts.owes()).then(|| conn.doubts.late_at(self.doubt))
    }

    /// Deletes for good what is owed, if no earlier write can be executed after that.
    pub fn settle(&mut self, conn: usize, now: Instant) {
        let binary = self.is_binary(conn);
        let this = &mut self.conns[conn];
        if this.doubts.may_pay(now) && this.is_up() && self.all[this.upstream].serves() {
            this.pay(now, binary);
            self.tell(conn);
        }
    }

    /// Deletes first what is owed, over a connection that is up.
    pub fn pay_or_wait(&mut self, conn: usize, now: Instant) {
        let (binary, is_server) = (self.is_binary(conn), self.end(conn) == End::Server);
        let this = &mut self.conns[conn];
        if !this.is_up() || this.doubts.is_paying() {
            return;
        }
        if this.doubts.owes() {
            let late_is_nothing = is_planted(Fault::LateWritesForgotten);
            let is_last = !is_server || this.doubts.is_settled() || late_is_nothing;
            this.pay_first(now, binary, is_last);
            self.tell(conn);
        } else if is_server && self.all[this.upstream].failures > 0 {
            this.probe_first(now, binary);
            self.tell(conn);
        }
    }

    /// A deletion that was owed is done.
    pub fn paid(&mut self, conn: usize) {
        let doubts = &mut self.conns[conn].doubts;
        doubts.paid();
        if !doubts.owes() {
            self.look_who_owes();
        }
    }

    /// An upstream has flushed everything: what it owes is deleted, but for what may still be written.
    pub fn flushed(&mut self, upstream: usize) {
        for conn in self.conns_of(upstream) {
            let doubts = &mut self.conns[conn].doubts;
            // An older write may be executed after the flush.
            if doubts.is_settled() || is_planted(Fault::LateWritesForgotten) {
                doubts.forget_owed();
            }
        }
    }

    /// True if a write over an earlier life of one of these connections may still be executed.
    pub fn are_in_doubt(&self, conns: [usize; 2], now: Instant) -> bool {
        conns.iter().any(|conn| self.conns[*conn].doubts.is_any(now))
    }

    /// Whether the last write of a key may still be executed. `conn` is one of those that it goes over; `name` is what its name is
    /// made of there, if it has another.
    #[cold]
    pub fn owes_key(&self, conn: usize, key: &[u8], base64: bool, name: Option<u64>) -> bool {
        if is_planted(Fault::LateWritesForgotten) || self.end(conn) != End::Server {
            return false;
        }
        if let Some(name) = name {
            let mut named = Vec::new();
            push_name(&mut named, key, name);
            return self.owes_key(conn, &named, false, None);
        }
        let mut decoded = [0; KEY_BYTES_MAX];
        let key = match base64.then(|| base64_decode(key, &mut decoded)).flatten() {
            Some(length) => &decoded[..length],
            None => key,
        };
        let first = self.first_conn(self.conns[conn].upstream);
        let among = (conn - first) % self.conns_each;
        let both = [first + among, first + self.conns_each + among];
        both.iter().any(|conn| self.conns[*conn].doubts.owes_key(key))
    }
}
