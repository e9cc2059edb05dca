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

use mbal_model::planted::{Fault, is_planted};
use mbal_routing::ketama::{FILLED, RingServer};

use crate::Nanos;
use crate::counting::Latency;
use crate::expect::Expect;
use crate::missed::{Missed, Return};
use crate::pool::Pool;
use crate::proxy::{Action, ConnId, Proxy};
use crate::reply::Kind;
use crate::upstream::{Conn, Health, Hide, InFlight, State, Upstream, Who, push_flush};

/// So many upstreams are remembered, those that are gone included. Beyond that whoever comes may have been here before.
const REMEMBERED_MAX: usize = 1024;

impl Proxy {
    /// The pool is `servers` from now on, in their order; there is at least one. An upstream of the same host and port that has been
    /// here keeps its number, if `is_same(number, place)` says that it is dialed as before. The number of each.
    pub fn change(
        &mut self,
        now: Nanos,
        servers: Vec<RingServer>,
        is_same: impl Fn(usize, usize) -> bool,
    ) -> Vec<usize> {
        assert!(!servers.is_empty(), "a pool has servers");
        self.now = now;
        // Over the connections of those that leave, too.
        self.end_all_copies();
        let before = std::mem::take(&mut self.order);
        let mut order: Vec<usize> = Vec::new();
        for (place, server) in servers.into_iter().enumerate() {
            let is_its = |number: &usize| {
                let known = &self.settings.servers[*number];
                (&known.host, known.port) == (&server.host, server.port)
                    && !order.contains(number)
                    && is_same(*number, place)
            };
            let known = (0..self.upstreams.len()).find(is_its);
            let number = match known {
                Some(number) => {
                    self.upstreams[number].name = server.to_string();
                    self.settings.servers[number] = server;
                    number
                }
                None => self.add(server),
            };
            order.push(number);
        }
        if self.clusters.is_any() {
            self.raise_barrier();
        }
        before.iter().filter(|number| !order.contains(number)).for_each(|one| self.leave(*one));
        order.iter().filter(|number| !before.contains(number)).for_each(|one| self.join(*one));
        self.order = order.clone();
        self.full = self.pool_of(|_| true);
        self.place_again();
        self.counters.pool_changes += 1;
        order
    }

    /// Of the upstreams in the pool, those that are `present`.
    pub(crate) fn pool_of(&self, present: impl Fn(usize) -> bool) -> Pool {
        let members = self.order.iter().filter(|number| present(**number));
        let members: Vec<(usize, &RingServer)> =
            members.map(|number| (*number, &self.settings.servers[*number])).collect();
        Pool::new(self.settings.distribution, &members)
    }

    /// An upstream that is not known, under a number of its own.
    fn add(&mut self, server: RingServer) -> usize {
        let conns = 2 * self.settings.conns_per_server;
        let number = self.oldest_gone().unwrap_or(self.upstreams.len());
        let is_new = number == self.upstreams.len();
        let upstream = Upstream {
            name: server.to_string(),
            health: Health::Serves,
            missed: (self.forgot || !is_new).then_some(Missed::All),
            returning: Return::Away,
            has_left: true,
            cluster: self.clusters.of_client(&server.to_string()),
            is_told: false,
            hung_up: 0,
            asked_again_at: Nanos::MAX,
            failures: 0,
            failed_at: None,
            failures_total: 0,
            latency: Latency::default(),
            first_conn: if is_new { self.conns.len() } else { self.upstreams[number].first_conn },
        };
        if is_new {
            self.conns.extend((0..conns).map(|_| Conn::new(number, None)));
            self.upstreams.push(upstream);
            self.settings.servers.push(server);
        } else {
            self.forgot = true;
            let first = upstream.first_conn;
            self.conns[first..][..conns]
                .iter_mut()
                .for_each(|conn| *conn = Conn::new(number, None));
            self.upstreams[number] = upstream;
            self.settings.servers[number] = server;
        }
        number
    }

    /// Where so many are remembered that one has to be forgotten: one that is gone, and has answered all.
    fn oldest_gone(&self) -> Option<usize> {
        if self.upstreams.len() < REMEMBERED_MAX {
            return None;
        }
        let is_over = |number: &usize| {
            let upstream = &self.upstreams[*number];
            let conns = &self.conns[upstream.first_conn..][..2 * self.settings.conns_per_server];
            upstream.health == Health::Gone
                && conns.iter().all(|conn| conn.state == State::Closed { retry_at: Nanos::MAX })
        };
        (0..self.upstreams.len()).find(is_over)
    }

    pub(crate) fn conns_of(&self, upstream: usize) -> std::ops::Range<usize> {
        let first = self.upstreams[upstream].first_conn;
        first..first + 2 * self.settings.conns_per_server
    }

    fn leave(&mut self, upstream: usize) {
        let this = &mut self.upstreams[upstream];
        this.health = Health::Gone;
        this.has_left = true;
        this.failures = 0;
        let first = this.first_conn;
        self.goes_away(upstream);
        if self.conns[first].state == State::Up && self.upstreams[upstream].cluster.is_none() {
            // What it has from now on is not what it was filled with.
            let request = format!("delete {FILLED}\r\n");
            self.conns[first].out.bytes.extend_from_slice(request.as_bytes());
            self.ask_own(first, Kind::Line, Expect::Any, Who::Nobody);
        }
        for conn in self.conns_of(upstream) {
            if self.conns[conn].asked.is_empty() {
                self.retire(conn);
            }
        }
    }

    /// All that a connection was asked is answered, and nothing more will be.
    fn retire(&mut self, conn: usize) {
        let this = &mut self.conns[conn];
        if !matches!(this.state, State::Closed { .. }) {
            self.actions.push(Action::HangUp(ConnId(conn as u32)));
        }
        let nobody = this.lose(&mut self.spare);
        debug_assert!(nobody.is_empty(), "all is answered");
        this.state = State::Closed { retry_at: Nanos::MAX };
    }

    fn join(&mut self, upstream: usize) {
        let returns = self.has_missed(upstream) && !is_planted(Fault::ReturnsUnflushed);
        let this = &mut self.upstreams[upstream];
        this.health = Health::Ejected;
        this.failures = 0;
        let first = this.first_conn;
        if !returns {
            let before = self.counters.returns;
            self.come_back(upstream);
            self.counters.returns = before;
        }
        for conn in self.conns_of(upstream) {
            let binary = self.is_binary(conn);
            match self.conns[conn].state {
                State::Up if returns && conn == first => self.begin_return(upstream),
                State::Up | State::Dialing { .. } => {}
                State::Closed { .. } if binary => {
                    self.conns[conn].state = State::Closed { retry_at: 0 };
                }
                State::Closed { .. } => self.dial(conn),
            }
        }
    }

    /// Tells an upstream to flush, behind all that this connection was asked.
    pub(crate) fn ask_fence(&mut self, conn: usize) {
        let binary = self.is_binary(conn);
        let this = &mut self.conns[conn];
        push_flush(&mut this.out.bytes, binary);
        let fence = InFlight {
            who: Who::Fence,
            kind: if binary { Kind::Binary } else { Kind::Line },
            // It is looked at when it comes.
            expect: Expect::Any,
            hide: Hide::Nothing,
            writes: false,
            renamed: false,
            at: self.now,
        };
        this.ask(fence, None);
        self.tell_conn(conn);
    }

    /// A flush is done: nothing that was asked before is on its way.
    pub(crate) fn flushed(&mut self, conn: usize) {
        let upstream = self.conns[conn].upstream;
        if self.upstreams[upstream].health != Health::Ejected {
            return;
        }
        for conn in self.conns_of(upstream) {
            let this = &mut self.conns[conn];
            // An older write may be executed after the flush.
            if this.is_settled() || is_planted(Fault::LateWritesForgotten) {
                this.owed.clear();
                this.owes_all = false;
            }
        }
        self.come_back(upstream);
    }

    /// An upstream that does not serve has answered something.
    #[cold]
    pub(crate) fn answered_late(&mut self, conn: usize) {
        let this = &self.conns[conn];
        match self.upstreams[this.upstream].health {
            Health::Gone if this.asked.is_empty() => self.retire(conn),
            Health::Ejected => self.clean_if_idle(this.upstream),
            Health::Gone | Health::Serves => {}
        }
    }
}
