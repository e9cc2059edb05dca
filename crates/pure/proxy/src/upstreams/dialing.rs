//! Connections that are made, lost and given up.

use std::collections::VecDeque;
use std::time::Duration;

use mbal_model::Instant;
use mbal_model::planted::{Fault, is_planted};

use super::{End, Health, Return, Upstreams};
use crate::conn::{Conn, State};
use crate::event::{Action, ConnId};
use crate::inflight::{InFlight, Who};
use crate::ledger::Ledger;
use crate::refusal::{BUSY, DOWN, Refusal};

/// What is to be done with a connection by now.
pub(crate) enum Due {
    Nothing,
    Dial,
    TimedOut,
}

impl Upstreams {
    pub fn dial(&mut self, conn: usize, ledger: &mut Ledger) {
        let this = &mut self.conns[conn];
        this.state = State::Dialing { since: ledger.now };
        self.quiet_until = None;
        this.has_answered = false;
        let upstream = this.upstream;
        ledger.actions.push(Action::Dial { conn: ConnId(conn as u32), upstream });
    }

    /// Those that are there from the start: the others are dialed when they are used.
    pub fn start(&mut self, ledger: &mut Ledger) {
        for conn in 0..self.conns.len() {
            let is_used = self.is_first(conn) || !matches!(self.end(conn), End::Promises(_));
            if !self.is_binary(conn) && is_used {
                self.dial(conn, ledger);
            }
        }
    }

    /// Whether a connection takes one more request.
    #[inline]
    pub fn admit(&mut self, conn: usize, ledger: &mut Ledger) -> Result<(), Refusal> {
        let this = &self.conns[conn];
        match this.state {
            State::Closed { retry_at } if retry_at <= ledger.now => self.dial(conn, ledger),
            // It was closed since nobody used it.
            State::Closed { .. } if self.all[this.upstream].failures == 0 => {
                self.dial(conn, ledger);
            }
            State::Closed { .. } => return Err(DOWN),
            State::Dialing { .. } | State::Up => {}
        }
        let limits = &ledger.settings.limits;
        let this = &self.conns[conn];
        match this.asked.len() < limits.conn_requests_max
            && this.out.len() < limits.conn_output_bytes_max
        {
            true => Ok(()),
            false => Err(BUSY),
        }
    }

    /// A peer that waits for an upstream may take as long as that, and answers still.
    fn timeout_of(&self, conn: &Conn) -> Duration {
        match self.end_of(conn.upstream) {
            End::Server => self.timeout,
            End::Passed(_) | End::Promises(_) => 2 * self.timeout,
        }
    }

    /// When one of the connections may have to be looked at. That moment is kept while requests come and are answered: what it was
    /// for may be over by then.
    #[inline]
    pub fn next_wake(&mut self) -> Instant {
        let quiet_until = match self.quiet_until {
            Some(until) if !self.owing => until,
            _ => self.look_for_wake(),
        };
        debug_assert!(quiet_until <= self.first_due(), "somebody would be looked at too late");
        let gathers = self.gathering.iter().filter_map(|conn| self.conns[*conn as usize].gathers);
        gathers.fold(quiet_until, Instant::min)
    }

    #[cold]
    fn look_for_wake(&mut self) -> Instant {
        let due = self.first_due();
        self.quiet_until = Some(due);
        due
    }

    /// It is asked for its cluster again, then.
    pub fn ask_again(&mut self, upstream: usize, at: Instant) {
        self.all[upstream].asked_again_at = at;
        self.quiet_until = None;
    }

    /// What was to be done by now is done: when the next is due is found out.
    pub fn looked(&mut self) {
        self.quiet_until = None;
    }

    /// When one of the connections is to be looked at, but for those whose requests gather.
    fn first_due(&self) -> Instant {
        let due = self.conns.iter().filter_map(|conn| match conn.state {
            State::Closed { retry_at } => {
                let moves_at = if self.owing { self.moves_at(conn) } else { None };
                moves_at.or(Some(retry_at)).filter(|at| *at > Instant::ZERO)
            }
            State::Dialing { since } => Some(since + self.timeout_of(conn)),
            State::Up => {
                let late_at = conn.waits_since().map(|since| since + self.timeout_of(conn));
                let settles_at = if self.owing { self.settles_at(conn) } else { None };
                late_at.into_iter().chain(settles_at).min()
            }
        });
        let asked_again = self.all.iter().map(|one| one.asked_again_at);
        due.chain(asked_again).min().unwrap_or(Instant::MAX)
    }

    pub fn due(&self, conn: usize, ledger: &Ledger) -> Due {
        let this = &self.conns[conn];
        let timeout = self.timeout_of(this);
        let late = |since: Instant| since + timeout <= ledger.now;
        match this.state {
            State::Closed { retry_at } if retry_at > Instant::ZERO && retry_at <= ledger.now => {
                Due::Dial
            }
            State::Dialing { since } if late(since) => Due::TimedOut,
            State::Up if this.waits_since().is_some_and(late) => Due::TimedOut,
            _ => Due::Nothing,
        }
    }

    /// Hangs up. What was sent may still be executed: if it writes, it has to be known when that is over.
    pub fn give_up(&self, conn: usize, ledger: &mut Ledger) {
        let this = &self.conns[conn];
        let writes = this.is_up() && this.awaits_writes() && !this.is_unsent();
        match self.end(conn) {
            End::Server if writes => ledger.actions.push(Action::Abandon(ConnId(conn as u32))),
            _ => ledger.hang_up(conn),
        }
    }

    /// All that a connection was asked is answered, and nothing more will be.
    pub fn retire(&mut self, conn: usize, ledger: &mut Ledger) {
        if !matches!(self.conns[conn].state, State::Closed { .. }) {
            ledger.hang_up(conn);
        }
        let this = &mut self.conns[conn];
        let nobody = this.lose(ledger.now, &mut ledger.spare);
        debug_assert!(nobody.is_empty(), "all is answered");
        this.state = State::Closed { retry_at: Instant::MAX };
        // What it owes may be another's to delete.
        self.quiet_until = None;
    }

    /// Since when an upstream has not done what was wanted, if a connection that ends is its fault.
    pub fn failing_since(&self, conn: usize, now: Instant) -> Option<Instant> {
        let this = &self.conns[conn];
        // An upstream may close a connection that nobody waits for.
        match this.state {
            State::Dialing { since } => Some(since),
            State::Up if is_planted(Fault::IdleCloseFails) => Some(now),
            State::Up => this.asked.front().map(|asked| asked.at),
            State::Closed { .. } => None,
        }
    }

    /// A connection is gone by itself. True if what was asked over it waits for the next one.
    pub fn keeps(&mut self, conn: usize, now: Instant) -> bool {
        let serves = self.all[self.conns[conn].upstream].serves() && self.end(conn) == End::Server;
        let this = &mut self.conns[conn];
        let may_keep = this.is_up() && !this.is_idle() && !this.doubts.is_paying();
        // An upstream may close a connection that nobody uses: it is made again, and asked what it could not have heard, and reads.
        let keeps = may_keep && this.was_of_use(now) && serves && this.asks_again();
        if keeps {
            this.keep();
        }
        keeps
    }

    /// A connection is gone. Who waits for it.
    pub fn lose(&mut self, conn: usize, ledger: &mut Ledger) -> VecDeque<InFlight> {
        let this = &mut self.conns[conn];
        let waiting = this.lose(ledger.now, &mut ledger.spare);
        if self.all[this.upstream].cluster.is_some() {
            // To flush would take what all servers have.
            this.doubts.forget_rest();
        }
        self.owing |= this.doubts.owes();
        waiting
    }

    /// A connection that is lost has failed `since` then, if its upstream is to blame. True if the upstream is to be ejected.
    pub fn count_failure(
        &mut self,
        conn: usize,
        since: Option<Instant>,
        waiting: &VecDeque<InFlight>,
        ledger: &mut Ledger,
    ) -> bool {
        let is_first = self.is_first(conn);
        let this = &mut self.all[self.conns[conn].upstream];
        if let Some(since) = since {
            this.failures_total += 1;
            ledger.counters.upstream_failures += 1;
            // What was under way when the last failure was counted fails with it: several connections fail by one event.
            let is_another = this.failed_at.is_none_or(|at| at <= since);
            if is_another || is_planted(Fault::EachConnectionFails) {
                this.failures += 1;
                this.failed_at = Some(ledger.now);
            }
        }
        if waiting.iter().any(|asked| asked.who == Who::Cluster) {
            this.hung_up += 1;
        }
        if is_first {
            this.returning = Return::Away;
        }
        // Any server of a cluster stands in for it, and it misses nothing.
        ledger.settings.eject
            && this.cluster.is_none()
            && this.serves()
            && ledger.settings.failures_max <= this.failures
    }

    /// A connection that is lost is made again: at once, if it was `of_use` and its upstream has not failed often.
    pub fn retry(&mut self, conn: usize, of_use: bool, ledger: &mut Ledger) {
        let this = &self.all[self.conns[conn].upstream];
        if this.failures <= 1 && this.serves() && of_use {
            return self.dial(conn, ledger);
        }
        let is_gone = this.health == Health::Gone;
        let retry_at = if is_gone { Instant::MAX } else { ledger.now + ledger.settings.retry };
        self.conns[conn].state = State::Closed { retry_at };
        self.quiet_until = None;
    }
}
