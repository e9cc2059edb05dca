//! All that is behind a proxy: upstreams that fail, leave and come back, which of them has a key, and what is hot.
//!
//! Nothing of it knows clients. Who waits for a reply is told by [`crate::Proxy`].

use std::collections::VecDeque;
use std::time::Duration;

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Instant, KEY_BYTES_MAX};
use mbal_routing::ketama::FILLED;
use mbal_wire::{ReplyKind, base64_decode};

use crate::clusters::{self, Clusters};
use crate::expect::Expect;
use crate::hot_keys::HotKeys;
use crate::inflight::{InFlight, Who};
use crate::kernel::{KernelChange, KernelTable, KernelUpstream};
use crate::ledger::Ledger;
use crate::mapped::CopiedKeys;
use crate::missed::Notes;
use crate::peering::Peering;
use crate::placing::Placing;
use crate::refusal::Refusal;
use crate::settings::Settings;
use crate::switching::Switching;
use crate::upstreams::{End, Health, Return, Upstreams};

/// A longer exptime is a moment of the calendar.
const RELATIVE_SECONDS_MAX: u64 = 60 * 60 * 24 * 30;

pub(crate) struct Backend {
    pub upstreams: Upstreams,
    pub placing: Placing,
    pub clusters: Clusters,
    pub copied: CopiedKeys,
    pub notes: Notes,
    pub hot: HotKeys,
    pub peering: Peering,
    pub switching: Switching,
}

impl Backend {
    pub fn new(settings: &Settings) -> Backend {
        let peering = Peering::new(settings);
        Backend {
            upstreams: Upstreams::new(settings, peering.names()),
            placing: Placing::new(settings),
            clusters: Clusters::new(settings),
            copied: CopiedKeys::new(settings.seed),
            notes: Notes::default(),
            hot: HotKeys::new(settings.seed),
            peering,
            switching: Switching::new(settings),
        }
    }

    /// Dials the upstreams.
    pub fn start(&mut self, ledger: &mut Ledger) {
        self.hot.start(&ledger.settings, ledger.now);
        self.peering.start(ledger.now);
        self.upstreams.start(ledger);
    }

    /// There is a data plane in the kernel, which takes answers of so many bytes.
    pub fn add_kernel(&mut self, answer_bytes_max: usize) {
        assert!(self.peering.peers().is_none(), "the kernel does not know what peers promise");
        self.hot.kernel = Some(KernelTable::new(answer_bytes_max));
        self.switching.refuse_for_kernel();
    }

    pub fn take_kernel_changes(&mut self, pool_changes: u64) -> Vec<KernelChange> {
        let Some(kernel) = &mut self.hot.kernel else { return Vec::new() };
        let upstream = |number: &usize| KernelUpstream {
            number: *number,
            serves: self.upstreams.is_sure(*number),
        };
        let upstreams = self.placing.order().iter().map(upstream).collect();
        kernel.take_changes(upstreams, pool_changes, || self.placing.points())
    }

    /// True if some requests wait before they are asked. Mostly none does.
    #[inline]
    pub fn may_hold(&self) -> bool {
        self.clusters.is_any()
            || self.peering.is_changing()
            || self.hot.kernel.is_some()
            || self.switching.is_active()
    }

    /// The connection to an upstream is there.
    pub fn connected(&mut self, conn: usize, ledger: &mut Ledger) {
        let now = ledger.now;
        self.upstreams.conn_mut(conn).connected(now);
        let upstream = self.upstreams.conn(conn).upstream;
        if self.upstreams.get(upstream).health == Health::Ejected
            && is_planted(Fault::ServesUnflushed)
        {
            self.come_back(upstream, ledger);
        }
        match self.upstreams.get(upstream).health {
            Health::Ejected if self.upstreams.is_first(conn) => self.begin_return(upstream, now),
            Health::Ejected => {}
            Health::Serves | Health::Gone => {
                self.upstreams.pay_or_wait(conn, now);
                if self.upstreams.end_of(upstream) == End::Server {
                    clusters::ask(conn, true, &mut self.upstreams, now);
                }
            }
        }
        let this = self.upstreams.conn_mut(conn);
        // What was asked meanwhile has its time from now on.
        this.asked.iter_mut().for_each(|asked| asked.at = now);
        if std::mem::take(&mut this.is_stood_for) {
            self.clusters.raise_barrier(&self.upstreams);
        }
    }

    /// A connection has ended: it may have had copies, or a home's items.
    fn connection_ends(&mut self, conn: usize, ledger: &mut Ledger) {
        self.upstreams.conn_mut(conn).ends();
        let may_be_wrong = match self.upstreams.end(conn) {
            End::Server => true,
            End::Passed(_) => false,
            End::Promises(place) => self.peering.lost(place),
        };
        if may_be_wrong {
            self.end_all_copies(ledger);
        }
    }

    /// A connection is gone by itself. True if it was made again, and those who wait for it still do.
    pub fn keeps(&mut self, conn: usize, ledger: &mut Ledger) -> bool {
        let keeps = self.upstreams.keeps(conn, ledger.now);
        if keeps {
            self.connection_ends(conn, ledger);
            self.upstreams.dial(conn, ledger);
        }
        keeps
    }

    /// A connection is given up: since when the upstream has not done what was wanted, if it is to blame. Who waits for it.
    pub fn fail(
        &mut self,
        conn: usize,
        failing_since: Option<Instant>,
        ledger: &mut Ledger,
    ) -> VecDeque<InFlight> {
        if self.switching.notes_writes() {
            self.switching.lost(self.upstreams.conn(conn).written_keys());
        }
        let upstream = self.upstreams.conn(conn).upstream;
        let was_of_use = self.upstreams.conn(conn).was_of_use(ledger.now);
        let waiting = self.upstreams.lose(conn, ledger);
        self.connection_ends(conn, ledger);
        if self.upstreams.count_failure(conn, failing_since, &waiting, ledger) {
            self.upstreams.get_mut(upstream).health = Health::Ejected;
            self.notes.goes_away(upstream, &mut self.upstreams);
            ledger.counters.ejections += 1;
            self.place_again(ledger);
        }
        self.upstreams.retry(conn, failing_since.is_some() || was_of_use, ledger);
        waiting
    }

    /// Nobody waits any more for a connection that was given up.
    pub fn failed(&mut self, conn: usize, ledger: &mut Ledger) {
        self.placing.move_debts(conn, &mut self.upstreams, ledger);
        self.clean_if_idle(self.upstreams.conn(conn).upstream, ledger);
    }

    /// What a server owes that is in its cluster no more, another one deletes in good time.
    pub fn settle_gone(&mut self, conn: usize, ledger: &mut Ledger) {
        let this = self.upstreams.conn(conn);
        let is_gone = self.upstreams.get(this.upstream).health == Health::Gone;
        if is_gone && this.doubts.owes() {
            self.placing.move_debts(conn, &mut self.upstreams, ledger);
        }
    }

    /// A firewall on the way may have forgotten connections that nobody used: those that have said nothing since are made again.
    pub fn refresh(&mut self, upstream: usize, since: Instant, ledger: &mut Ledger) {
        if !self.upstreams.get(upstream).serves() {
            return;
        }
        for conn in self.upstreams.conns_of(upstream) {
            if self.upstreams.conn(conn).is_silent_since(since) {
                ledger.hang_up(conn);
                self.upstreams.conn_mut(conn).keep();
                self.connection_ends(conn, ledger);
                self.upstreams.dial(conn, ledger);
            }
        }
    }

    pub fn ask_clusters_again(&mut self, now: Instant) {
        for upstream in 0..self.upstreams.all().len() {
            let first = self.upstreams.first_conn(upstream);
            let is_due = self.upstreams.get(upstream).asked_again_at <= now;
            if is_due && self.upstreams.conn(first).is_up() {
                clusters::ask(first, false, &mut self.upstreams, now);
            }
        }
    }

    /// What is known of any hot key may be wrong.
    pub fn end_all_copies(&mut self, ledger: &mut Ledger) {
        self.hot.end_all(&mut self.upstreams, ledger);
    }

    /// Other upstreams serve than before.
    pub fn place_again(&mut self, ledger: &mut Ledger) {
        self.end_all_copies(ledger);
        self.placing.place_again(&self.upstreams, &ledger.settings);
    }

    /// An upstream that is away can be reached again: it is asked what it is, and whether it was filled.
    pub fn begin_return(&mut self, upstream: usize, now: Instant) {
        let conn = self.upstreams.first_conn(upstream);
        self.upstreams.get_mut(upstream).returning = Return::InFlight;
        clusters::ask(conn, false, &mut self.upstreams, now);
        let (parts, kind): ([&[u8]; 3], _) = match self.upstreams.get(upstream).has_left {
            true => ([b"get ", FILLED.as_bytes(), b"\r\n"], ReplyKind::Values),
            false => ([b"version\r\n", b"", b""], ReplyKind::Line),
        };
        self.upstreams.ask_own(conn, &parts, (kind, Expect::Any), Who::Return, now);
    }

    /// It has said what it is; or that it is done.
    pub fn return_answered(&mut self, upstream: usize, reply: &[u8], ledger: &mut Ledger) {
        let this = self.upstreams.get_mut(upstream);
        if this.health != Health::Ejected {
            return;
        }
        match this.returning {
            Return::InFlight if this.cluster.is_some() => self.come_back(upstream, ledger),
            Return::InFlight
                if reply.starts_with(b"VALUE ") && !is_planted(Fault::FilledForgotten) =>
            {
                // What is owed was written before it was filled.
                for conn in self.upstreams.conns_of(upstream) {
                    self.upstreams.conn_mut(conn).doubts.forget();
                }
                self.come_back(upstream, ledger);
            }
            Return::InFlight => {
                this.returning = Return::Waits;
                self.clean_if_idle(upstream, ledger);
            }
            Return::Cleans(_) => self.come_back(upstream, ledger),
            Return::Away | Return::Waits => {}
        }
    }

    fn clean_if_idle(&mut self, upstream: usize, ledger: &mut Ledger) {
        self.notes.clean_if_idle(upstream, &mut self.upstreams, ledger);
    }

    /// A flush is done: nothing that was asked before is on its way.
    pub fn flushed(&mut self, conn: usize, ledger: &mut Ledger) {
        let upstream = self.upstreams.conn(conn).upstream;
        if self.upstreams.get(upstream).health == Health::Ejected {
            self.upstreams.flushed(upstream);
            self.come_back(upstream, ledger);
        }
    }

    /// It serves again, and has what it has to have.
    pub fn come_back(&mut self, upstream: usize, ledger: &mut Ledger) {
        // What was written since it began to clean goes first over its key's connection.
        for (key, base64) in self.notes.comes_back(upstream, &mut self.upstreams) {
            let mut decoded = [0; KEY_BYTES_MAX];
            let length = if base64 { base64_decode(&key, &mut decoded) } else { None };
            let key = length.map_or(key, |length| decoded[..length].into());
            let conn = self.upstreams.conn_of(upstream, &key);
            self.upstreams.owe(conn, key, length.is_some());
        }
        ledger.counters.returns += 1;
        self.place_again(ledger);
        for conn in self.upstreams.conns_of(upstream) {
            // One that was up all the time may have been asked something: that is answered first.
            match self.upstreams.conn(conn).is_idle() {
                true => self.upstreams.pay_or_wait(conn, ledger.now),
                false => self.upstreams.settle(conn, ledger.now),
            }
        }
    }

    /// An upstream that does not serve has answered something.
    #[cold]
    pub fn answered_late(&mut self, conn: usize, ledger: &mut Ledger) {
        let this = self.upstreams.conn(conn);
        match self.upstreams.get(this.upstream).health {
            Health::Gone if this.is_idle() => self.upstreams.retire(conn, ledger),
            Health::Ejected => self.clean_if_idle(this.upstream, ledger),
            Health::Gone | Health::Serves => {}
        }
    }

    /// An upstream has said which cluster it is of.
    pub fn cluster_answered(&mut self, upstream: usize, reply: &[u8], ledger: &mut Ledger) {
        if reply == b"END\r\n" {
            // One of MBal's that has heard of no map yet.
            let again_at = ledger.now + ledger.settings.retry;
            self.upstreams.ask_again(upstream, again_at);
            return;
        }
        let cluster = self.clusters.learn(reply, &self.upstreams);
        let this = self.upstreams.get_mut(upstream);
        (this.cluster, this.is_told, this.hung_up) = (cluster, true, 0);
        if cluster.is_none() {
            return;
        }
        this.missed = None;
        self.end_all_copies(ledger);
        // Those that cannot be asked are known by what the others tell.
        for number in self.placing.order().to_vec() {
            let this = self.upstreams.get_mut(number);
            if !this.is_told && this.cluster.is_none() {
                this.cluster = self.clusters.of_client(&this.name);
                if this.cluster == cluster && this.health == Health::Ejected {
                    self.come_back(number, ledger);
                }
            }
        }
    }

    /// Keys with a write that may be executed late; `None`: nobody knows which.
    pub fn in_doubt(&self) -> Option<Vec<Box<[u8]>>> {
        let mut keys = Vec::new();
        for conn in self.upstreams.conns() {
            keys.extend(conn.doubts.owed()?.map(Into::into));
        }
        Some(keys)
    }

    /// Writes of keys that move are under way.
    pub fn has_moving_writes(&self) -> bool {
        self.switching.touches_any()
            || self
                .upstreams
                .conns()
                .iter()
                .any(|conn| self.switching.any_moves(conn.written_keys()))
    }

    /// Everything is about to be flushed, at once or in so many seconds. Where that is asked for, and why some cannot be asked;
    /// also peers, if a client asks for it.
    pub fn flush(
        &mut self,
        exptime: i32,
        binary: bool,
        from_client: bool,
        ledger: &mut Ledger,
    ) -> (Vec<usize>, Option<Refusal>) {
        self.end_all_copies(ledger);
        if let Some(sampling) = ledger.sampling.as_mut().filter(|_| exptime == 0) {
            sampling.flush();
        }
        self.notes.miss_all(&mut self.upstreams);
        if exptime != 0 {
            // Until everything is flushed, and everybody's clock says so; a moment of the calendar is not known here.
            let until = match u64::try_from(exptime).unwrap_or(0) {
                seconds if seconds > RELATIVE_SECONDS_MAX => Instant::MAX,
                seconds => ledger.now + Duration::from_secs(seconds + 2),
            };
            self.hot.table.suspend(until);
        }
        let mut found = Vec::new();
        for upstream in 0..self.upstreams.all().len() {
            // A peer without a session has no copies of what this proxy may write.
            let takes = match self.upstreams.end_of(upstream) {
                End::Server => true,
                End::Passed(place) => from_client && self.peering.takes_flushes(place),
                End::Promises(_) => false,
            };
            let this = self.upstreams.get(upstream);
            // An upstream that is ejected is flushed when it comes back.
            if !takes || !this.serves() || this.cluster.is_some() {
                continue;
            }
            // Over each connection of its kind: it is in order with what was asked there before.
            for text in self.upstreams.texts_of(upstream) {
                let conn = if binary { self.upstreams.binary(text) } else { text };
                found.push(self.upstreams.admit(conn, ledger).map(|()| conn));
            }
        }
        found.extend(self.placing.flushes_of_clusters(binary, &mut self.upstreams, ledger));
        let refusal = found.iter().rev().find_map(|one| one.err());
        (found.into_iter().filter_map(Result::ok).collect(), refusal)
    }
}
