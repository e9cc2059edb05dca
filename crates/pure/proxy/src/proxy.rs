//! What can happen to a proxy, and what it asks for.

use std::collections::VecDeque;

use mbal_model::planted::{Fault, is_planted};
use mbal_wire::{Limits as WireLimits, Login};

use crate::buffers::Spare;
use crate::client::{Client, Slot};
use crate::control::Control;
use crate::counting::{ByClass, Latency};
use crate::hot::{HotTable, Left};
use crate::pool::Pool;
use crate::stats::Counters;
use crate::upstream::{Conn, Health, State, Upstream};
use crate::{Nanos, Settings};

/// Replies wait so long for others that were asked in the same turn.
const HELD_NS_MAX: Nanos = 500_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientId(pub u32);

/// A connection to an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnId(pub u32);

/// What can happen.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// Bytes of a client.
    Received { client: ClientId, bytes: &'a [u8] },
    /// It sends no more, and may still read.
    HalfClosed { client: ClientId },
    /// Its connection is gone.
    Closed { client: ClientId },
    /// What [`Action::Dial`] asked for is there.
    Connected { conn: ConnId },
    /// Bytes of an upstream.
    Replied { conn: ConnId, bytes: &'a [u8] },
    /// A connection is gone, or could not be made.
    Lost { conn: ConnId },
    /// It is as late as [`Proxy::next_wake`] said.
    Woken,
}

/// What a driver is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// There is output for a client: [`Proxy::client_output`].
    ToClient(ClientId),
    ToUpstream(ConnId),
    Dial {
        conn: ConnId,
        upstream: usize,
    },
    /// Give a connection up. Nothing of it is told any more.
    HangUp(ConnId),
    /// All output has been taken.
    Close(ClientId),
    /// Do not read this client until [`Action::Resume`].
    Pause(ClientId),
    Resume(ClientId),
}

/// The state machine. Its driver hands it events, and does what it asks for.
pub struct Proxy {
    pub(crate) settings: Settings,
    pub(crate) wire_limits: WireLimits,
    /// All upstreams, and those that serve.
    pub(crate) full: Pool,
    pub(crate) present: Pool,
    pub(crate) all_present: bool,
    /// Numbers of the upstreams in the pool, in its order.
    pub(crate) order: Vec<usize>,
    /// There were more upstreams than are remembered.
    pub(crate) forgot: bool,
    pub(crate) upstreams: Vec<Upstream>,
    pub(crate) conns: Vec<Conn>,
    pub(crate) clients: Vec<Client>,
    free: Vec<u32>,
    pub(crate) spare: Spare,
    pub(crate) actions: Vec<Action>,
    /// Clients that were paused and may go on.
    pub(crate) going_on: Vec<u32>,
    pub(crate) counters: Counters,
    pub(crate) by_class: ByClass,
    pub(crate) now: Nanos,
    pub(crate) control: Option<Control>,
    pub(crate) hot: HotTable,
    /// Copies that are not read any more, on their way to be deleted.
    pub(crate) left: Vec<Left>,
    /// The key of a write that was answered; reused.
    pub(crate) written: Vec<u8>,
    /// Names of keys that are not where their hash says end with it.
    pub(crate) epoch: u64,
    /// Connections with requests that have not left.
    gathering: Vec<u32>,
    /// Clients with replies that wait for others of their turn, and until when.
    held: VecDeque<(Nanos, u32)>,
    /// Where the keys of a `get` go; reused.
    pub(crate) places: Vec<(u32, Option<u64>)>,
}

impl Proxy {
    pub fn new(settings: Settings) -> Proxy {
        let members: Vec<_> = settings.servers.iter().enumerate().collect();
        let pool = || Pool::new(settings.distribution, &members);
        let (full, present) = (pool(), pool());
        let conns_each = 2 * settings.conns_per_server;
        let upstreams = settings.servers.iter().enumerate().map(|(at, server)| Upstream {
            name: server.to_string(),
            health: Health::Serves,
            was_member: false,
            failures: 0,
            failures_total: 0,
            latency: Latency::default(),
            first_conn: at * conns_each,
        });
        let conns = (0..settings.servers.len() * conns_each).map(|at| Conn::new(at / conns_each));
        let settings_seed = settings.seed;
        let item_bytes_max = settings.limits.item_bytes_max;
        Proxy {
            upstreams: upstreams.collect(),
            conns: conns.collect(),
            wire_limits: WireLimits { item_bytes_max, login: Login::NotAsked },
            full,
            present,
            all_present: true,
            order: (0..settings.servers.len()).collect(),
            forgot: false,
            settings,
            clients: Vec::new(),
            free: Vec::new(),
            spare: Spare::default(),
            actions: Vec::new(),
            going_on: Vec::new(),
            counters: Counters::default(),
            by_class: ByClass::default(),
            now: 0,
            control: None,
            hot: HotTable::new(settings_seed),
            left: Vec::new(),
            written: Vec::new(),
            epoch: settings_seed,
            gathering: Vec::new(),
            held: VecDeque::new(),
            places: Vec::new(),
        }
    }

    /// Dials the upstreams.
    pub fn start(&mut self, now: Nanos) {
        self.now = now;
        self.control = Proxy::control_of(&self.settings, now);
        for conn in 0..self.conns.len() {
            if !self.is_binary(conn) {
                self.dial(conn);
            }
        }
    }

    /// A client has connected.
    pub fn open(&mut self) -> ClientId {
        let id = self.free.pop().unwrap_or_else(|| {
            self.clients.push(Client::default());
            self.clients.len() as u32 - 1
        });
        self.clients[id as usize].is_open = true;
        self.counters.connections_total += 1;
        ClientId(id)
    }

    #[inline]
    pub fn handle(&mut self, now: Nanos, event: Event<'_>) {
        self.now = now;
        match event {
            Event::Received { client, bytes } => self.received(client.0, bytes),
            Event::Replied { conn, bytes } => self.replied(conn.0 as usize, bytes),
            Event::HalfClosed { client } => self.half_closed(client.0),
            Event::Closed { client } => self.closed(client.0),
            Event::Connected { conn } => self.connected(conn.0 as usize),
            Event::Lost { conn } => self.lost(conn.0 as usize),
            Event::Woken => self.wake(),
        }
        while let Some(client) = self.going_on.pop() {
            self.go_on(client);
        }
    }

    /// What has been asked for since, in order. What upstreams are asked leaves now, or gathers for a moment.
    #[inline]
    pub fn take_actions(&mut self, into: &mut Vec<Action>) {
        self.release_held();
        self.send_gathered();
        into.clear();
        std::mem::swap(into, &mut self.actions);
    }

    pub fn client_output(&self, client: ClientId) -> &[u8] {
        self.clients[client.0 as usize].out.unsent()
    }

    /// The client's socket has taken `count` bytes; it is told again of more when there is more, or was told that it took not all.
    #[inline]
    pub fn client_took(&mut self, client: ClientId, count: usize) {
        let this = &mut self.clients[client.0 as usize];
        this.out.sent(count, &mut self.spare);
        this.out.told = !this.out.unsent().is_empty();
        if this.out.len() > 0 {
            return;
        }
        if this.has_ended() {
            self.actions.push(Action::Close(client));
        } else if this.paused {
            self.let_go_on(client.0);
        }
    }

    /// Requests that upstreams have not answered.
    #[inline]
    pub fn unanswered(&self) -> usize {
        self.conns.iter().map(|conn| conn.asked.len()).sum()
    }

    pub fn conn_output(&self, conn: ConnId) -> &[u8] {
        self.conns[conn.0 as usize].out.unsent()
    }

    #[inline]
    pub fn conn_took(&mut self, conn: ConnId, count: usize) {
        let this = &mut self.conns[conn.0 as usize];
        this.out.sent(count, &mut self.spare);
        this.out.told = this.out.len() > 0;
        this.gathering.sent(self.now);
    }

    /// When [`Event::Woken`] is due.
    pub fn next_wake(&self) -> Option<Nanos> {
        let of_conn = |conn: &Conn| match conn.state {
            State::Closed { retry_at } => (retry_at > 0).then_some(retry_at),
            State::Dialing { since } => Some(since + self.settings.timeout),
            State::Up => {
                let late = conn.asked.front().map(|asked| asked.at + self.settings.timeout);
                late.into_iter().chain(conn.gathers_until).min()
            }
        };
        let interval = self.control.as_ref().map(|control| control.ends_at);
        let held = self.held.front().map(|(until, _)| *until);
        self.conns.iter().filter_map(of_conn).chain(held).chain(interval).min()
    }

    pub(crate) fn is_binary(&self, conn: usize) -> bool {
        let first = self.upstreams[self.conns[conn].upstream].first_conn;
        first + self.settings.conns_per_server <= conn
    }

    pub(crate) fn dial(&mut self, conn: usize) {
        let this = &mut self.conns[conn];
        this.state = State::Dialing { since: self.now };
        this.has_answered = false;
        let upstream = this.upstream;
        self.actions.push(Action::Dial { conn: ConnId(conn as u32), upstream });
    }

    fn connected(&mut self, conn: usize) {
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
        self.tell_conn(conn);
    }

    fn lost(&mut self, conn: usize) {
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
        self.end_all_copies();
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
        for asked in waiting {
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

    fn wake(&mut self) {
        self.end_interval();
        for conn in 0..self.conns.len() {
            let late = |since: Nanos| since + self.settings.timeout <= self.now;
            match self.conns[conn].state {
                State::Closed { retry_at } if retry_at > 0 && retry_at <= self.now => {
                    self.dial(conn);
                }
                State::Dialing { since } if late(since) => self.time_out(conn),
                State::Up if self.conns[conn].asked.front().is_some_and(|a| late(a.at)) => {
                    self.time_out(conn);
                }
                _ => {}
            }
        }
    }

    fn time_out(&mut self, conn: usize) {
        self.counters.upstream_timeouts += 1;
        self.actions.push(Action::HangUp(ConnId(conn as u32)));
        self.fail(conn, b"SERVER_ERROR upstream timed out\r\n");
    }

    fn half_closed(&mut self, client: u32) {
        match self.clients[client as usize].paused {
            true => self.clients[client as usize].half_closed = true,
            false => self.end(client),
        }
    }

    /// The client sends no more.
    pub(crate) fn end(&mut self, client: u32) {
        let this = &mut self.clients[client as usize];
        if !this.is_open || this.ending {
            return;
        }
        this.ending = true;
        this.input.clear();
        if this.is_idle() {
            self.tell_ended(client);
        } else {
            this.push(Slot::End);
        }
    }

    /// All replies before a client's end are there.
    pub(crate) fn tell_ended(&mut self, client: u32) {
        let out = &mut self.clients[client as usize].out;
        out.free();
        match out.len() {
            0 => self.actions.push(Action::Close(ClientId(client))),
            _ => self.tell_client(client),
        }
    }

    fn closed(&mut self, client: u32) {
        let this = &mut self.clients[client as usize];
        this.gone = true;
        this.is_open = false;
        this.out.free();
        this.out.sent(this.out.len(), &mut self.spare);
        self.free_if_done(client);
    }

    /// A client that is gone goes for good when no reply to it is on its way.
    pub(crate) fn free_if_done(&mut self, client: u32) {
        let this = &mut self.clients[client as usize];
        if this.gone && (this.is_idle() || this.has_ended()) {
            let input = std::mem::take(&mut this.input);
            self.spare.give(input);
            // It stays in the list that it is in.
            let is_listed = this.is_listed;
            *this = Client::default();
            this.is_listed = is_listed;
            self.free.push(client);
        }
    }

    #[inline]
    pub(crate) fn tell_client(&mut self, client: u32) {
        let this = &mut self.clients[client as usize];
        let free = this.out.unsent().len();
        if !this.out.told && free > 0 {
            this.out.told = true;
            self.actions.push(Action::ToClient(ClientId(client)));
        }
        if free == this.out.len() {
            this.held_until = None;
        } else if this.held_until.is_none() {
            let until = self.now + HELD_NS_MAX;
            this.held_until = Some(until);
            if !std::mem::replace(&mut this.is_listed, true) {
                self.held.push_back((until, client));
            }
        }
    }

    /// There is something for an upstream: it leaves when the event loop has handled what has arrived.
    #[inline]
    pub(crate) fn tell_conn(&mut self, conn: usize) {
        let this = &mut self.conns[conn];
        if !this.is_gathering && this.state == State::Up {
            this.is_gathering = true;
            self.gathering.push(conn as u32);
        }
    }

    #[inline]
    fn send_gathered(&mut self) {
        let mut at = 0;
        while at < self.gathering.len() {
            let conn = self.gathering[at];
            let this = &mut self.conns[conn as usize];
            let bytes = this.out.len();
            this.gathers_until = match this.state == State::Up && !this.out.told && bytes > 0 {
                true => this.gathering.waits_until(this.asked.len(), bytes, self.now),
                false => None,
            };
            if this.gathers_until.is_some() {
                at += 1;
                continue;
            }
            self.gathering.swap_remove(at);
            this.is_gathering = false;
            if this.state == State::Up && !this.out.told && bytes > 0 {
                this.out.told = true;
                self.actions.push(Action::ToUpstream(ConnId(conn)));
            }
        }
    }

    /// Replies that wait for others of their turn leave without them when they have waited long enough.
    fn release_held(&mut self) {
        while let Some((until, client)) = self.held.front().copied() {
            let this = &mut self.clients[client as usize];
            match this.held_until {
                // Others are held than were when it was listed.
                Some(later) if until < later => self.held.push_back((later, client)),
                Some(_) if self.now < until => return,
                Some(_) => {
                    this.out.free();
                    this.is_listed = false;
                    self.tell_client(client);
                }
                None => this.is_listed = false,
            }
            self.held.pop_front();
        }
    }
}
