//! Connections to upstreams: dialed, lost, given up; and upstreams that are ejected and come back.

use mbal_model::planted::{Fault, is_planted};

use crate::Nanos;
use crate::missed::Return;
use crate::passing::End;
use crate::proxy::{Action, ConnId, Proxy};
use crate::upstream::{Health, State, Who};

/// A connection that was up for so long has been of use, though it may have been asked nothing.
pub(crate) const USE_NS_MIN: Nanos = 100_000_000;

impl Proxy {
    pub(crate) fn dial(&mut self, conn: usize) {
        let this = &mut self.conns[conn];
        this.state = State::Dialing { since: self.now };
        this.has_answered = false;
        let upstream = this.upstream;
        self.actions.push(Action::Dial { conn: ConnId(conn as u32), upstream });
    }

    pub(crate) fn connected(&mut self, conn: usize) {
        let upstream = self.conns[conn].upstream;
        let this = &mut self.conns[conn];
        (this.state, this.up_since, this.heard_at) = (State::Up, self.now, self.now);
        if self.upstreams[upstream].health == Health::Ejected && is_planted(Fault::ServesUnflushed)
        {
            self.come_back(upstream);
        }
        let is_first = conn == self.upstreams[upstream].first_conn;
        match self.upstreams[upstream].health {
            Health::Ejected if is_first => self.begin_return(upstream),
            Health::Ejected => {}
            Health::Serves | Health::Gone => {
                self.pay_or_wait(conn);
                if self.end_of(upstream) == End::Server {
                    self.ask_cluster(conn, true);
                }
            }
        }
        if std::mem::take(&mut self.conns[conn].is_stood_for) {
            self.raise_barrier();
        }
        let this = &mut self.conns[conn];
        // What was asked meanwhile has its time from now on.
        let now = self.now;
        this.asked.iter_mut().for_each(|asked| asked.at = now);
        if let (End::Promises(place), Some(peers)) = (self.end_of(upstream), &mut self.peers) {
            peers.connected(place, now);
            self.tell_peers();
        }
        self.tell_conn(conn);
    }

    /// A connection is gone by itself.
    pub(crate) fn lost(&mut self, conn: usize) {
        let this = &self.conns[conn];
        let was_of_use = this.has_answered || this.up_since + USE_NS_MIN <= self.now;
        let may_keep = this.state == State::Up && !this.asked.is_empty() && this.paying == 0;
        let upstream = this.upstream;
        let serves = self.upstreams[upstream].health == Health::Serves
            && self.end_of(upstream) == End::Server;
        // An upstream may close a connection that nobody uses: it is made again, and asked what it could not have heard, and reads.
        if may_keep && was_of_use && serves && self.conns[conn].asks_again() {
            self.conns[conn].keep();
            self.connection_ends(conn);
            return self.dial(conn);
        }
        self.fail(conn, b"SERVER_ERROR upstream connection lost\r\n");
    }

    /// It may have had copies, or a home's items.
    fn connection_ends(&mut self, conn: usize) {
        self.conns[conn].state = State::Closed { retry_at: Nanos::MAX };
        match self.end_of(self.conns[conn].upstream) {
            End::Server => self.end_all_copies(),
            End::Passed(_) => {}
            End::Promises(place) => self.lost_peer(place),
        }
    }

    /// Gives a connection up: whoever waits for it hears `error`.
    pub(crate) fn fail(&mut self, conn: usize, error: &'static [u8]) {
        let this = &self.conns[conn];
        // An upstream may close a connection that nobody waits for.
        let failing_since = match this.state {
            State::Dialing { since } => Some(since),
            State::Up if is_planted(Fault::IdleCloseFails) => Some(self.now),
            State::Up => this.asked.front().map(|asked| asked.at),
            State::Closed { .. } => None,
        };
        self.fail_since(conn, failing_since, error);
    }

    /// Likewise; since when the upstream has not done what was wanted, if it is to blame.
    pub(crate) fn fail_since(
        &mut self,
        conn: usize,
        failing_since: Option<Nanos>,
        error: &'static [u8],
    ) {
        let this = &self.conns[conn];
        let upstream = this.upstream;
        let was_of_use = this.has_answered || this.up_since + USE_NS_MIN <= self.now;
        let owed = self.conns[conn].owes();
        let waiting = self.conns[conn].lose(&mut self.spare);
        if !owed && self.conns[conn].owes() {
            self.conns[conn].lost_at = self.now;
            self.owing = true;
        }
        self.connection_ends(conn);
        if let Some(since) = failing_since {
            self.count_failure(upstream, since);
        }
        let this = &mut self.upstreams[upstream];
        if waiting.iter().any(|asked| asked.who == Who::Cluster) {
            this.hung_up += 1;
        }
        if conn == this.first_conn {
            this.returning = Return::Away;
        }
        // Any server of a cluster stands in for it, and it misses nothing.
        let eject = self.settings.eject
            && this.cluster.is_none()
            && this.health == Health::Serves
            && self.settings.failures_max <= this.failures;
        let at_once = this.failures <= 1
            && this.health == Health::Serves
            && !eject
            && (failing_since.is_some() || was_of_use);
        if eject {
            self.eject(upstream);
        }
        if at_once {
            self.dial(conn);
        } else {
            let is_gone = self.upstreams[upstream].health == Health::Gone;
            let retry_at = if is_gone { Nanos::MAX } else { self.now + self.settings.retry };
            self.conns[conn].state = State::Closed { retry_at };
        }
        self.lose_written(conn, error);
        for asked in waiting {
            self.resting.lost(asked.keys());
            self.lose_asked(asked, error);
        }
        self.move_debts(conn);
        self.clean_if_idle(upstream);
    }

    /// What was under way when the last failure was counted fails with it: several connections fail by one event.
    fn count_failure(&mut self, upstream: usize, since: Nanos) {
        let this = &mut self.upstreams[upstream];
        this.failures_total += 1;
        self.counters.upstream_failures += 1;
        if this.failed_at.is_none_or(|at| at <= since) || is_planted(Fault::EachConnectionFails) {
            this.failures += 1;
            this.failed_at = Some(self.now);
        }
    }

    fn eject(&mut self, upstream: usize) {
        self.upstreams[upstream].health = Health::Ejected;
        self.goes_away(upstream);
        self.counters.ejections += 1;
        self.place_again();
    }

    /// Deletes first what is owed, over a connection that is up.
    pub(crate) fn pay_or_wait(&mut self, conn: usize) {
        let upstream = self.conns[conn].upstream;
        let binary = self.is_binary(conn);
        let is_server = self.end_of(upstream) == End::Server;
        let this = &mut self.conns[conn];
        if this.state != State::Up || this.paying > 0 {
            return;
        }
        if this.owes() {
            let is_last = !is_server || this.is_settled() || is_planted(Fault::LateWritesForgotten);
            this.pay_first(self.now, binary, is_last);
            self.tell_conn(conn);
        } else if is_server && self.upstreams[upstream].failures > 0 {
            this.probe_first(self.now, binary);
            self.tell_conn(conn);
        }
    }

    pub(crate) fn place_again(&mut self) {
        self.end_all_copies();
        self.epoch = self.epoch.wrapping_add(1);
        let serves = |at: usize| self.upstreams[at].health == Health::Serves;
        self.present = self.pool_of(serves);
        self.all_present = self.order.iter().all(|number| serves(*number));
    }

    pub(crate) fn time_out(&mut self, conn: usize) {
        self.counters.upstream_timeouts += 1;
        let this = &self.conns[conn];
        let upstream = this.upstream;
        let asked_at = this.asked.front().filter(|_| this.state == State::Up).map(|asked| asked.at);
        self.give_up(conn);
        self.fail(conn, b"SERVER_ERROR upstream timed out\r\n");
        if let Some(at) = asked_at.filter(|_| self.end_of(upstream) == End::Server) {
            self.refresh(upstream, at);
        }
    }

    /// A firewall on the way may have forgotten connections that nobody used: those that have said nothing since are made again.
    fn refresh(&mut self, upstream: usize, since: Nanos) {
        if self.upstreams[upstream].health != Health::Serves {
            return;
        }
        for conn in self.conns_of(upstream) {
            let this = &self.conns[conn];
            if this.state == State::Up && this.asked.is_empty() && this.heard_at < since {
                self.actions.push(Action::HangUp(ConnId(conn as u32)));
                self.conns[conn].keep();
                self.connection_ends(conn);
                self.dial(conn);
            }
        }
    }
}
