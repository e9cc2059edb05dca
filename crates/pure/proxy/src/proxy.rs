//! What can happen to a proxy, and what it asks for.

use std::collections::{BTreeSet, VecDeque};

use mbal_wire::{Limits as WireLimits, Login};

use crate::buffers::Spare;
use crate::client::Client;
use crate::clusters::Clusters;
use crate::control::Control;
use crate::counting::{ByClass, Latency};
use crate::health::USE_NS_MIN;
use crate::hot::{HotTable, Left};
use crate::kernel::KernelTable;
use crate::merge::Place;
use crate::missed::{Notes, Return};
use crate::passing::End;
use crate::peers::PeerTable;
use crate::pool::Pool;
use crate::promises::Promises;
use crate::resting::Resting;
use crate::stats::Counters;
use crate::upstream::{Conn, Health, State, Upstream};
use crate::{Nanos, Settings};

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
    /// All that was sent over an abandoned connection has arrived, and it is half-closed now. Directly behind [`Action::Abandon`].
    Lingers { conn: ConnId },
    /// The upstream has closed that connection too, or it was `closed` without waiting any longer.
    Ended { conn: ConnId, closed: bool },
    /// It is as late as [`Proxy::next_wake`] said.
    Woken,
    /// Nothing that the kernel answered by what it was told to forget up to this number is on its way.
    KernelForgot { number: u64 },
    /// The kernel's data plane has seen a read of this key.
    Sampled { key: &'a [u8] },
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
    /// Give a connection up, by reset: the machine must not go on sending. Nothing of it is told any more.
    HangUp(ConnId),
    /// Likewise; but if the upstream's machine has all that was sent, close this side alone, and tell when the other closes:
    /// then all of it has been executed. [`Event::Lingers`], [`Event::Ended`].
    Abandon(ConnId),
    /// All output has been taken.
    Close(ClientId),
    /// Close it now, whatever it has not taken.
    CutOff(ClientId),
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
    pub(crate) free: Vec<u32>,
    pub(crate) spare: Spare,
    pub(crate) actions: Vec<Action>,
    /// Bytes of upstreams since it was looked how much is kept for clients.
    pub(crate) came_unlooked: usize,
    /// Clients that were paused and may go on.
    pub(crate) going_on: Vec<u32>,
    /// Clients that ask for several values before their first has come.
    pub(crate) opening: usize,
    pub(crate) counters: Counters,
    pub(crate) by_class: ByClass,
    pub(crate) resting: Resting,
    pub(crate) now: Nanos,
    pub(crate) control: Option<Control>,
    pub(crate) hot: HotTable,
    pub(crate) kernel: Option<KernelTable>,
    pub(crate) peers: Option<PeerTable>,
    pub(crate) promises: Promises,
    /// Clients that wait for promises to change.
    pub(crate) on_hold: BTreeSet<u32>,
    /// Copies that are not read any more, on their way to be deleted.
    pub(crate) left: Vec<Left>,
    pub(crate) clusters: Clusters,
    pub(crate) notes: Notes,
    /// Some deletion is owed.
    pub(crate) owing: bool,
    /// The key of a write that was answered; reused.
    pub(crate) written: Vec<u8>,
    /// Names of keys that are not where their hash says end with it.
    pub(crate) epoch: u64,
    /// Connections with requests that have not left.
    pub(crate) gathering: Vec<u32>,
    /// Clients with replies that wait for others of their turn, and until when.
    pub(crate) held: VecDeque<(Nanos, u32)>,
    /// Where the keys of a `get` go; reused.
    pub(crate) places: Vec<Place>,
}

impl Proxy {
    pub fn new(settings: Settings) -> Proxy {
        let members: Vec<_> = settings.servers.iter().enumerate().collect();
        let pool = || Pool::new(settings.distribution, &members);
        let (full, present) = (pool(), pool());
        let conns_each = 2 * settings.conns_per_server;
        let peers = settings.peers.clone().map(|peers| {
            let pool = format!("{:?} {:?}", settings.distribution, settings.servers);
            PeerTable::new(peers, &pool)
        });
        let mut names: Vec<String> = settings.servers.iter().map(ToString::to_string).collect();
        // Each peer twice: for what is passed on, and for promises.
        for _ in 0..2 {
            let others = peers.iter().flat_map(|all| {
                all.others().map(|member| format!("peer {}", all.peers.names[member]))
            });
            names.extend(others);
        }
        let upstream = |(at, name)| Upstream {
            name,
            health: Health::Serves,
            missed: None,
            returning: Return::Away,
            has_left: false,
            cluster: None,
            is_told: false,
            hung_up: 0,
            asked_again_at: Nanos::MAX,
            failures: 0,
            failed_at: None,
            failures_total: 0,
            latency: Latency::default(),
            first_conn: at * conns_each,
        };
        let count = names.len() * conns_each;
        let servers = settings.servers.len();
        // What an earlier life of the proxy has sent may still be executed.
        let doubt = settings.replication.map(|_| Nanos::MAX);
        let conn = |at: usize| {
            let (upstream, in_text) = (at / conns_each, 2 * (at % conns_each) < conns_each);
            Conn::new(upstream, doubt.filter(|_| upstream < servers && in_text))
        };
        let upstreams: Vec<Upstream> = names.into_iter().enumerate().map(upstream).collect();
        let conns: Vec<Conn> = (0..count).map(conn).collect();
        let lease = settings.peers.as_ref().map_or(0, |peers| peers.lease);
        let members = settings.peers.as_ref().map_or(0, |peers| peers.names.len());
        let promises = Promises::new(members, lease, settings.seed);
        let settings_seed = settings.seed;
        let item_bytes_max = settings.limits.item_bytes_max;
        Proxy {
            upstreams,
            conns,
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
            came_unlooked: 0,
            going_on: Vec::new(),
            opening: 0,
            counters: Counters::default(),
            by_class: ByClass::default(),
            resting: Resting::default(),
            now: 0,
            control: None,
            hot: HotTable::new(settings_seed),
            kernel: None,
            peers,
            promises,
            on_hold: BTreeSet::new(),
            left: Vec::new(),
            clusters: Clusters::default(),
            notes: Notes::default(),
            owing: false,
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
        self.promises.start(now);
        for conn in 0..self.conns.len() {
            let upstream = self.conns[conn].upstream;
            let is_first = conn == self.upstreams[upstream].first_conn;
            let is_used = is_first || !matches!(self.end_of(upstream), End::Promises(_));
            if !self.is_binary(conn) && is_used {
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

    /// A peer has connected: a client whose requests are not passed on.
    pub fn open_peer(&mut self) -> ClientId {
        let id = self.open();
        self.clients[id.0 as usize].is_peer = true;
        id
    }

    #[inline]
    pub fn handle(&mut self, now: Nanos, event: Event<'_>) {
        self.now = now;
        match event {
            Event::Received { client, bytes } => {
                self.counters.bytes_read += bytes.len() as u64;
                self.received(client.0, bytes);
            }
            Event::Replied { conn, bytes } => self.replied(conn.0 as usize, bytes),
            Event::HalfClosed { client } => self.half_closed(client.0),
            Event::Closed { client } => self.closed(client.0),
            Event::Connected { conn } => self.connected(conn.0 as usize),
            Event::Lost { conn } => self.lost(conn.0 as usize),
            Event::Lingers { conn } => self.lingers(conn.0 as usize),
            Event::Ended { conn, closed } => self.ended(conn.0 as usize, closed),
            Event::Woken => self.wake(),
            Event::KernelForgot { number } => self.kernel_forgot(number),
            Event::Sampled { key } => self.sampled(key),
        }
        if self.promises.is_changing() {
            self.settle_promises();
        }
        if self.clusters.holds_all() {
            self.settle_barrier();
        }
        self.all_go_on();
    }

    /// Reads on from those who have room again.
    #[inline]
    fn all_go_on(&mut self) {
        while let Some(client) = self.going_on.pop() {
            self.go_on(client);
        }
    }

    /// What has been asked for since, in order. What upstreams are asked leaves now, or gathers for a moment.
    #[inline]
    pub fn take_actions(&mut self, into: &mut Vec<Action>) {
        // Who took the last replies since the last event has room too, and there may be no other event.
        self.all_go_on();
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
        self.counters.bytes_written += count as u64;
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

    /// For so long the driver rests before it waits for events.
    #[inline]
    pub fn rest(&self) -> Nanos {
        self.resting.rest()
    }

    /// For so long, up to `now`, the driver has rested and waited for events.
    #[inline]
    pub fn idled(&mut self, now: Nanos, idle: Nanos) {
        self.resting.idled(now, idle);
    }

    pub fn conn_output(&self, conn: ConnId) -> &[u8] {
        self.conns[conn.0 as usize].out.unsent()
    }

    #[inline]
    pub fn conn_took(&mut self, conn: ConnId, count: usize) {
        let this = &mut self.conns[conn.0 as usize];
        let idle = this.heard_at + USE_NS_MIN <= self.now;
        this.took(count, idle, &mut self.spare);
        this.gathering.sent(self.now);
    }

    /// When [`Event::Woken`] is due.
    pub fn next_wake(&self) -> Option<Nanos> {
        let of_conn = |conn: &Conn| match conn.state {
            State::Closed { retry_at } => (retry_at > 0).then_some(retry_at),
            State::Dialing { since } => Some(since + self.timeout_of(conn)),
            State::Up => {
                let late = conn.waits_since().map(|since| since + self.timeout_of(conn));
                let settles = if self.owing { self.settles_at(conn) } else { None };
                late.into_iter().chain(conn.gathers_until).chain(settles).min()
            }
        };
        let interval = self.control.as_ref().map(|control| control.ends_at);
        let again = self.upstreams.iter().map(|one| one.asked_again_at).min();
        let again = again.filter(|at| *at < Nanos::MAX);
        let held = self.held.front().map(|(until, _)| *until);
        let own = held.into_iter().chain(interval).chain(again).chain(self.next_of_peers());
        self.conns.iter().filter_map(of_conn).chain(own).min()
    }

    /// A peer that waits for an upstream may take as long as that, and answers still.
    fn timeout_of(&self, conn: &Conn) -> Nanos {
        match self.end_of(conn.upstream) {
            End::Server => self.settings.timeout,
            End::Passed(_) | End::Promises(_) => 2 * self.settings.timeout,
        }
    }

    pub(crate) fn is_binary(&self, conn: usize) -> bool {
        let first = self.upstreams[self.conns[conn].upstream].first_conn;
        first + self.settings.conns_per_server <= conn
    }

    fn wake(&mut self) {
        self.end_interval();
        self.tell_peers();
        for upstream in 0..self.upstreams.len() {
            let Upstream { asked_again_at, first_conn, .. } = self.upstreams[upstream];
            if asked_again_at <= self.now && self.conns[first_conn].state == State::Up {
                self.ask_cluster(first_conn, false);
            }
        }
        for conn in 0..self.conns.len() {
            let timeout = self.timeout_of(&self.conns[conn]);
            let late = |since: Nanos| since + timeout <= self.now;
            match self.conns[conn].state {
                State::Closed { retry_at } if retry_at > 0 && retry_at <= self.now => {
                    self.dial(conn);
                }
                State::Dialing { since } if late(since) => self.time_out(conn),
                State::Up if self.conns[conn].waits_since().is_some_and(late) => {
                    self.time_out(conn);
                }
                _ => {}
            }
            if self.owing {
                self.settle(conn);
            }
        }
    }
}
