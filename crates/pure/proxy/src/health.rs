//! Connections to upstreams: dialed, lost, given up; and upstreams that are ejected and come back.

use mbal_model::planted::{Fault, is_planted};

use crate::Nanos;
use crate::passing::End;
use crate::proxy::{Action, ConnId, Proxy};
use crate::upstream::{Health, State};

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
        self.conns[conn].state = State::Up;
        if self.upstreams[upstream].health == Health::Ejected && is_planted(Fault::ServesUnflushed)
        {
            self.come_back(upstream);
        }
        if self.upstreams[upstream].health == Health::Ejected {
            self.ask_fence(conn);
        } else {
            let binary = self.is_binary(conn);
            self.conns[conn].pay(self.now, binary);
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

    pub(crate) fn lost(&mut self, conn: usize) {
        self.fail(conn, b"SERVER_ERROR upstream connection lost\r\n");
    }

    /// Gives a connection up: whoever waits for it hears `error`.
    pub(crate) fn fail(&mut self, conn: usize, error: &'static [u8]) {
        let upstream = self.conns[conn].upstream;
        let this = &self.conns[conn];
        let idle = this.asked.is_empty() && this.has_answered && this.state == State::Up;
        let waiting = self.conns[conn].lose(&mut self.spare);
        // It may have had copies, or a home's items.
        self.conns[conn].state = State::Closed { retry_at: Nanos::MAX };
        match self.end_of(upstream) {
            End::Server => self.end_all_copies(),
            End::Passed(_) => {}
            End::Promises(place) => self.lost_peer(place),
        }
        let this = &mut self.upstreams[upstream];
        // An upstream may close a connection that nobody uses.
        if !idle {
            this.failures += 1;
            this.failures_total += 1;
            self.counters.upstream_failures += 1;
        }
        let eject = self.settings.eject
            && this.health == Health::Serves
            && self.settings.failures_max <= this.failures;
        let at_once = this.failures <= 1 && this.health == Health::Serves && !eject;
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
    }

    fn eject(&mut self, upstream: usize) {
        self.upstreams[upstream].health = Health::Ejected;
        self.counters.ejections += 1;
        self.place_again();
    }

    /// The flush of an ejected upstream is done.
    pub(crate) fn come_back(&mut self, upstream: usize) {
        let first = self.upstreams[upstream].first_conn;
        for conn in &mut self.conns[first..][..2 * self.settings.conns_per_server] {
            conn.owed.clear();
            conn.owes_all = false;
        }
        self.upstreams[upstream].health = Health::Serves;
        self.counters.returns += 1;
        self.place_again();
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
        self.actions.push(Action::HangUp(ConnId(conn as u32)));
        self.fail(conn, b"SERVER_ERROR upstream timed out\r\n");
    }
}
