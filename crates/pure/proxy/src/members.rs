//! Upstreams that come and go while a proxy serves.
//!
//! ```text
//!                    ┌──────── joins, never seen ─────────┐
//!                    │                                    ▼
//!   unknown ─────────┘     Ejected ── flush_all: OK ──► Serves
//!                             ▲                           │ is in the pool no more
//!                             └── joins again ── Gone ◄───┘
//!                                                 └─ its connections end when they have answered
//! ```
//!
//! An upstream that was in the pool before has what was true then: what it has missed is deleted before it serves again, as for one
//! that was ejected (`missed.rs`).

use mbal_model::Instant;
use mbal_model::planted::{Fault, is_planted};
use mbal_routing::ketama::FILLED;

use crate::backend::Backend;
use crate::conn::State;
use crate::expect::Expect;
use crate::inflight::Who;
use crate::ledger::Ledger;
use crate::mapped::{CopiedKey, PoolTold};
use crate::upstreams::Health;
use mbal_wire::ReplyKind;

impl Backend {
    /// The pool is this one from now on; `is_same` says which of those that are known are dialed as before. The number of each.
    pub fn change(
        &mut self,
        PoolTold { servers, slots, copies }: PoolTold,
        is_same: impl Fn(usize, usize) -> bool,
        ledger: &mut Ledger,
    ) -> Vec<usize> {
        assert!(!servers.is_empty(), "a pool has servers");
        let is_filled = self.switching.is_own_list(&servers);
        // Over the connections of those that leave, too.
        self.end_all_copies(ledger);
        let before = self.placing.take_order();
        let mut order: Vec<usize> = Vec::new();
        for (place, server) in servers.into_iter().enumerate() {
            let known = &ledger.settings.servers;
            let is_its = |number: &usize| {
                let known = &known[*number];
                (&known.host, known.port) == (&server.host, server.port)
                    && !order.contains(number)
                    && is_same(*number, place)
            };
            let number = match (0..known.len()).find(is_its) {
                Some(number) => {
                    self.upstreams.get_mut(number).name = server.to_string();
                    number
                }
                None => {
                    let cluster = self.clusters.of_client(&server.to_string());
                    self.upstreams.add(&server, cluster)
                }
            };
            match ledger.settings.servers.get_mut(number) {
                Some(known) => *known = server,
                None => ledger.settings.servers.push(server),
            }
            order.push(number);
        }
        match (self.placing.slots(), &slots) {
            (Some(old), Some(new)) => {
                let losers = new.losers((old, &before), &order);
                let stood_for = |loser: &usize| {
                    let mut texts = self.upstreams.texts_of(*loser);
                    texts.any(|text| self.upstreams.conn(text).is_stood_for)
                };
                // Whoever stood for one may have been asked for its keys.
                let all = losers.iter().any(stood_for);
                let is_meant = |upstream| all || losers.contains(&upstream);
                self.clusters.raise_barrier_for(&self.upstreams, is_meant);
            }
            _ if self.clusters.is_any() => self.clusters.raise_barrier(&self.upstreams),
            _ => {}
        }
        let (left, joined) = (
            before.iter().filter(|number| !order.contains(number)),
            order.iter().filter(|number| !before.contains(number)),
        );
        left.for_each(|number| self.leave(*number, ledger));
        joined.for_each(|number| self.join(*number, is_filled, ledger));
        ledger.counters.pool_changes += u64::from(order != before || slots.is_none());
        self.placing.set_order(order.clone(), slots, &ledger.settings);
        self.place_again(ledger);
        self.know_copies(copies);
        order
    }

    /// These keys have copies, and no others; their members are the pool's.
    pub fn know_copies(&mut self, copies: Vec<CopiedKey>) {
        let order = self.placing.order();
        self.copied.know(copies, |member| order.get(usize::from(member)).copied());
    }

    /// The connection for a read of a key that has copies; none if it is to be asked where the key is.
    pub fn copy(&mut self, key: &[u8], binary: bool, ledger: &mut Ledger) -> Option<usize> {
        let home = self.placing.home(key)?;
        let kind = |both: [usize; 2]| both[usize::from(binary)];
        let own = kind(self.upstreams.both_of(home, key));
        // A copy may be asked before the write that stands in front of the read is executed, or while one is in doubt.
        let upstreams = &self.upstreams;
        let in_doubt = upstreams.is_owing() && upstreams.owes_key(own, key, false, None);
        if in_doubt || upstreams.conn(own).has_written(key) {
            return None;
        }
        let there = self.copied.choose(key)?;
        let conn = kind(self.upstreams.both_of(there, key));
        let is_up = self.upstreams.conn(conn).is_up();
        // Binary is dialed when it is used first.
        let may = is_up || binary && self.upstreams.reaches(there);
        (may && self.upstreams.admit(conn, ledger).is_ok()).then_some(conn)
    }

    fn leave(&mut self, upstream: usize, ledger: &mut Ledger) {
        let this = self.upstreams.get_mut(upstream);
        (this.health, this.has_left, this.failures) = (Health::Gone, true, 0);
        let has_items = this.cluster.is_none();
        self.notes.goes_away(upstream, &mut self.upstreams);
        let first = self.upstreams.first_conn(upstream);
        if has_items && self.upstreams.conn(first).is_up() {
            // What it has from now on is not what it was filled with.
            let (parts, shape) =
                ([b"delete ", FILLED.as_bytes(), b"\r\n"], (ReplyKind::Line, Expect::Any));
            self.upstreams.ask_own(first, &parts, shape, Who::Nobody, ledger.now);
        }
        for conn in self.upstreams.conns_of(upstream) {
            if self.upstreams.conn(conn).is_idle() {
                self.upstreams.retire(conn, ledger);
            }
        }
    }

    /// Who `is_filled` has what there is: nothing that was written meanwhile was its own.
    fn join(&mut self, upstream: usize, is_filled: bool, ledger: &mut Ledger) {
        if is_filled {
            self.upstreams.get_mut(upstream).missed = None;
            for conn in self.upstreams.conns_of(upstream) {
                self.upstreams.conn_mut(conn).doubts.forget();
            }
        }
        let this = self.upstreams.get_mut(upstream);
        let returns = self.notes.have(this.missed) && !is_planted(Fault::ReturnsUnflushed);
        (this.health, this.failures) = (Health::Ejected, 0);
        if !returns {
            let before = ledger.counters.returns;
            self.come_back(upstream, ledger);
            ledger.counters.returns = before;
        }
        let first = self.upstreams.first_conn(upstream);
        for conn in self.upstreams.conns_of(upstream) {
            match self.upstreams.conn(conn).state {
                State::Up if returns && conn == first => self.begin_return(upstream, ledger.now),
                State::Up | State::Dialing { .. } => {}
                State::Closed { .. } if self.upstreams.is_binary(conn) => {
                    self.upstreams.conn_mut(conn).state = State::Closed { retry_at: Instant::ZERO };
                }
                State::Closed { .. } => self.upstreams.dial(conn, ledger),
            }
        }
    }
}
