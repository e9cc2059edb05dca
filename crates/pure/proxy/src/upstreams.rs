//! Upstreams, servers and peers, and the connections to them.

mod dialing;
mod settling;

pub(crate) use dialing::Due;

use std::time::Duration;

use mbal_model::Instant;
use mbal_model::planted::{Fault, is_planted};
use mbal_routing::ketama::{KeyHash, RingServer};

use crate::buffers::Spare;
use crate::conn::Conn;
use crate::counting::Latency;
use crate::encode::push_flush;
use crate::event::{Action, ConnId};
use crate::expect::Expect;
use crate::inflight::{InFlight, Who};
use crate::settings::Settings;
use crate::stats::{UpstreamState, UpstreamStats};
use mbal_wire::ReplyKind;

/// So many upstreams are remembered, those that are gone included. Beyond that whoever comes may have been here before.
const REMEMBERED_MAX: usize = 1024;

pub(crate) struct Upstream {
    /// What people call it.
    pub name: String,
    pub health: Health,
    /// While it does not serve: what it would have got.
    pub missed: Option<Missed>,
    pub returning: Return,
    /// It is away since it left the pool, not since it failed.
    pub has_left: bool,
    /// Which cluster it is of.
    pub cluster: Option<u16>,
    /// It has told which, or that it is of none.
    pub is_told: bool,
    /// How often it hung up when it was asked that.
    pub hung_up: u8,
    /// It did not know, and is asked again.
    pub asked_again_at: Instant,
    /// In a row.
    pub failures: u32,
    /// When the last of them was counted.
    failed_at: Option<Instant>,
    /// Since the start.
    failures_total: u64,
    pub latency: Latency,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    Serves,
    /// Its keys are elsewhere until it has been flushed.
    Ejected,
    /// It is in the pool no more. Its connections answer what they were asked, and end.
    Gone,
}

/// What an upstream has missed since it was away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missed {
    /// What was noted under this number or later.
    Since(u64),
    All,
}

/// How far an upstream's return is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Return {
    Away,
    /// It is asked what it is.
    InFlight,
    /// What it was asked before is to be answered first.
    Waits,
    /// It deletes what was noted below this number, or flushes.
    Cleans(u64),
}

/// Whom a connection leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Server,
    /// Peer number so much of the others: its answers to requests that are passed on.
    Passed(usize),
    /// Its promises.
    Promises(usize),
}

pub(crate) struct Upstreams {
    /// Servers, then each peer for what is passed on to it, then each peer for promises.
    all: Vec<Upstream>,
    servers: usize,
    /// Those of each upstream follow each other: so many for text, then as many for binary.
    conns: Vec<Conn>,
    conns_each: usize,
    /// Connections with requests that have not left.
    gathering: Vec<u32>,
    timeout: Duration,
    /// No connection is to be looked at before this, but those in `gathering`; `None`: it is to be found out.
    quiet_until: Option<Instant>,
    /// Some deletion is owed.
    owing: bool,
    /// There were more upstreams than are remembered.
    forgot: bool,
    /// They are workers of one cluster, whose map is known.
    is_mapped: bool,
    doubt: Duration,
}

impl Upstream {
    fn new(name: String) -> Upstream {
        Upstream {
            name,
            health: Health::Serves,
            missed: None,
            returning: Return::Away,
            has_left: false,
            cluster: None,
            is_told: false,
            hung_up: 0,
            asked_again_at: Instant::MAX,
            failures: 0,
            failed_at: None,
            failures_total: 0,
            latency: Latency::default(),
        }
    }

    pub fn serves(&self) -> bool {
        self.health == Health::Serves
    }
}

impl Upstreams {
    /// The settings' servers, and `peers`.
    pub fn new(settings: &Settings, peers: Vec<String>) -> Upstreams {
        let (servers, conns_each) = (settings.servers.len(), settings.conns_per_server);
        let names = settings.servers.iter().map(ToString::to_string);
        let cluster = settings.slots.as_ref().map(|_| 0);
        let of_pool = |name| Upstream { cluster, ..Upstream::new(name) };
        let peers = peers.clone().into_iter().chain(peers).map(Upstream::new);
        let all: Vec<Upstream> = names.map(of_pool).chain(peers).collect();
        // What an earlier life of the proxy has sent may still be executed.
        let doubt = settings.replication.map(|_| Instant::MAX);
        let conn = |at: usize| {
            let (upstream, in_text) = (at / (2 * conns_each), at % (2 * conns_each) < conns_each);
            Conn::new(upstream, doubt.filter(|_| upstream < servers && in_text))
        };
        let conns = (0..2 * conns_each * all.len()).map(conn).collect();
        Upstreams {
            all,
            servers,
            conns,
            conns_each,
            gathering: Vec::new(),
            timeout: settings.timeout,
            quiet_until: None,
            owing: false,
            forgot: false,
            is_mapped: settings.slots.is_some(),
            doubt: settings.doubt,
        }
    }

    pub fn is_mapped(&self) -> bool {
        self.is_mapped
    }

    pub fn all(&self) -> &[Upstream] {
        &self.all
    }

    pub fn all_mut(&mut self) -> &mut [Upstream] {
        &mut self.all
    }

    #[inline]
    pub fn get(&self, upstream: usize) -> &Upstream {
        &self.all[upstream]
    }

    pub fn get_mut(&mut self, upstream: usize) -> &mut Upstream {
        &mut self.all[upstream]
    }

    #[inline]
    pub fn conn(&self, conn: usize) -> &Conn {
        &self.conns[conn]
    }

    #[inline]
    pub fn conn_mut(&mut self, conn: usize) -> &mut Conn {
        &mut self.conns[conn]
    }

    pub fn conns(&self) -> &[Conn] {
        &self.conns
    }

    /// Numbers of connections, by upstream.
    pub fn conns_of(&self, upstream: usize) -> std::ops::Range<usize> {
        let first = self.first_conn(upstream);
        first..first + 2 * self.conns_each
    }

    fn to(&self, upstream: usize) -> &[Conn] {
        &self.conns[self.conns_of(upstream)]
    }

    /// Those for text.
    pub fn texts_of(&self, upstream: usize) -> std::ops::Range<usize> {
        let first = self.first_conn(upstream);
        first..first + self.conns_each
    }

    #[inline]
    pub fn first_conn(&self, upstream: usize) -> usize {
        2 * self.conns_each * upstream
    }

    pub fn is_first(&self, conn: usize) -> bool {
        conn == self.first_conn(self.conns[conn].upstream)
    }

    pub fn is_binary(&self, conn: usize) -> bool {
        self.first_conn(self.conns[conn].upstream) + self.conns_each <= conn
    }

    /// The connection for binary beside one for text.
    #[inline]
    pub fn binary(&self, text: usize) -> usize {
        text + self.conns_each
    }

    /// The connection over which an upstream is asked for a key: always the same, so that its requests stay in order.
    #[inline]
    pub fn conn_of(&self, upstream: usize, key: &[u8]) -> usize {
        let conns = self.conns_each;
        let among = if conns == 1 { 0 } else { KeyHash::OneAtATime.place(key) as usize % conns };
        self.first_conn(upstream) + among
    }

    /// That, and the one for binary.
    pub fn both_of(&self, upstream: usize, key: &[u8]) -> [usize; 2] {
        let text = self.conn_of(upstream, key);
        [text, self.binary(text)]
    }

    pub fn servers(&self) -> usize {
        self.servers
    }

    fn peers(&self) -> usize {
        (self.all.len() - self.servers) / 2
    }

    pub fn end_of(&self, upstream: usize) -> End {
        match upstream.checked_sub(self.servers) {
            None => End::Server,
            Some(place) if place < self.peers() => End::Passed(place),
            Some(place) => End::Promises(place - self.peers()),
        }
    }

    /// Of the server or peer that a connection leads to.
    pub fn end(&self, conn: usize) -> End {
        self.end_of(self.conns[conn].upstream)
    }

    /// The upstream that gets what is passed on to one of the other proxies.
    pub fn passed_to(&self, place: usize) -> usize {
        self.servers + place
    }

    /// The connection for the promises of one of the others.
    pub fn promises_of(&self, place: usize) -> usize {
        self.first_conn(self.servers + self.peers() + place)
    }

    /// A server that is not known, under a number of its own.
    pub fn add(&mut self, server: &RingServer, cluster: Option<u16>) -> usize {
        let number = self.oldest_gone().unwrap_or(self.all.len());
        let is_new = number == self.all.len();
        let mut upstream = Upstream::new(server.to_string());
        upstream.missed = (self.forgot || !is_new).then_some(Missed::All);
        (upstream.has_left, upstream.cluster) = (true, cluster);
        let conns = (0..2 * self.conns_each).map(|_| Conn::new(number, None));
        if is_new {
            self.conns.extend(conns);
            self.all.push(upstream);
            self.servers += 1;
        } else {
            self.forgot = true;
            let own = self.conns_of(number);
            self.conns.splice(own, conns);
            self.all[number] = upstream;
        }
        number
    }

    /// Where so many are remembered that one has to be forgotten: one that is gone, and has answered all.
    fn oldest_gone(&self) -> Option<usize> {
        if self.all.len() < REMEMBERED_MAX {
            return None;
        }
        let is_over = |number: &usize| {
            self.all[*number].health == Health::Gone && self.to(*number).iter().all(Conn::is_over)
        };
        (0..self.all.len()).find(is_over)
    }

    /// What is asked next over a connection is appended to this.
    #[inline]
    pub fn out(&mut self, conn: usize) -> &mut Vec<u8> {
        &mut self.conns[conn].out.bytes
    }

    /// Likewise, where many requests may gather.
    #[inline]
    pub fn filled_out(&mut self, conn: usize, spare: &mut Spare) -> &mut Vec<u8> {
        let out = self.out(conn);
        if out.capacity() == 0 {
            *out = spare.take();
        }
        out
    }

    /// What was appended is a request; it leaves when the event loop has handled what has arrived.
    #[inline]
    pub fn ask(&mut self, conn: usize, asked: InFlight, written: Option<(&[u8], bool)>) {
        self.conns[conn].ask(asked, written);
        self.tell(conn);
    }

    /// A request of the proxy's own.
    pub fn ask_own(
        &mut self,
        conn: usize,
        parts: &[&[u8]],
        (kind, expect): (ReplyKind, Expect),
        who: Who,
        now: Instant,
    ) {
        let out = self.out(conn);
        parts.iter().for_each(|part| out.extend_from_slice(part));
        self.ask(conn, InFlight::own(who, kind, expect, now), None);
    }

    /// Tells an upstream to flush, behind all that this connection was asked.
    pub fn ask_fence(&mut self, conn: usize, now: Instant) {
        let binary = self.is_binary(conn);
        push_flush(self.out(conn), binary);
        let kind = if binary { ReplyKind::Binary } else { ReplyKind::Line };
        // The reply is looked at when it comes.
        self.ask_own(conn, &[], (kind, Expect::Any), Who::Fence, now);
    }

    /// There is something for an upstream.
    #[inline]
    pub fn tell(&mut self, conn: usize) {
        let this = &mut self.conns[conn];
        if !this.is_gathering && this.is_up() {
            this.is_gathering = true;
            self.gathering.push(conn as u32);
            if let Some(asked) = this.asked.front() {
                let late_at = asked.at + self.timeout;
                self.quiet_until = self.quiet_until.map(|until| until.min(late_at));
            }
        }
    }

    #[inline]
    pub fn gathers_any(&self) -> bool {
        !self.gathering.is_empty()
    }

    #[inline]
    pub fn send_gathered(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let mut at = 0;
        while at < self.gathering.len() {
            let conn = self.gathering[at];
            let this = &mut self.conns[conn as usize];
            if this.gathers_until(now).is_some() {
                at += 1;
                continue;
            }
            self.gathering.swap_remove(at);
            this.is_gathering = false;
            if this.is_up() && !this.out.told && this.out.len() > 0 {
                this.out.told = true;
                actions.push(Action::ToUpstream(ConnId(conn)));
            }
        }
    }

    /// True if what is passed on reaches a peer.
    pub fn reaches(&self, upstream: usize) -> bool {
        self.conns[self.texts_of(upstream)].iter().all(Conn::is_up)
    }

    pub fn is_idle(&self, upstream: usize) -> bool {
        self.to(upstream).iter().all(Conn::is_idle)
    }

    /// Reads may go to this upstream past the proxy: it has its keys, and owes no deletion.
    pub fn is_sure(&self, upstream: usize) -> bool {
        let owes = self.to(upstream).iter().any(|conn| conn.doubts.owes());
        self.all[upstream].serves() && (!owes || is_planted(Fault::KernelReadsUnsure))
    }

    pub fn begin_interval(&mut self) {
        self.conns.iter_mut().for_each(Conn::begin_interval);
    }

    /// Upstreams that are in the pool no more, and have not answered all.
    pub fn leaving(&self) -> usize {
        let is_leaving =
            |number: &usize| self.all[*number].health == Health::Gone && !self.is_idle(*number);
        (0..self.all.len()).filter(is_leaving).count()
    }

    pub fn stats(&self, number: usize) -> UpstreamStats {
        let (upstream, conns) = (&self.all[number], self.to(number));
        let connections = conns.iter().filter(|conn| conn.is_up()).count();
        UpstreamStats {
            name: upstream.name.clone(),
            state: match (upstream.health, connections) {
                (Health::Ejected, _) => UpstreamState::Ejected,
                (_, 0) => UpstreamState::Down,
                (_, _) => UpstreamState::Up,
            },
            connections,
            waiting: conns.iter().map(|conn| conn.asked.len()).sum(),
            failures: upstream.failures,
            failures_total: upstream.failures_total,
            latency: upstream.latency,
        }
    }
}
