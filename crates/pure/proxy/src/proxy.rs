//! The state machine: what can happen, and what the driver is to do.

use std::time::Duration;

use mbal_model::Instant;
use mbal_model::planted::{Fault, is_planted};
use mbal_routing::ketama::RingServer;
use mbal_wire::{Limits as WireLimits, Login};

use crate::backend::Backend;
use crate::counting::ByClass;
use crate::event::{Action, ClientId, ConnId, Event, SwitchTask};
use crate::kernel::KernelChange;
use crate::ledger::Ledger;
use crate::mapped::{CopiedKey, PoolTold};
use crate::merge::Place;
use crate::sessions::Sessions;
use crate::settings::Settings;
use crate::stats::{Counters, Stats, UpstreamStats};
use crate::upstreams::Due;

/// The state machine. Its driver hands it events, and does what it asks for.
pub struct Proxy {
    pub(crate) ledger: Ledger,
    pub(crate) sessions: Sessions,
    pub(crate) backend: Backend,
    pub(crate) wire_limits: WireLimits,
    pub(crate) by_class: ByClass,
    /// The key of a write that was answered; reused.
    pub(crate) written: Vec<u8>,
    /// Where the keys of a `get` go; reused.
    pub(crate) places: Vec<Place>,
}

impl Proxy {
    pub fn new(settings: Settings) -> Proxy {
        let item_bytes_max = settings.limits.item_bytes_max;
        Proxy {
            backend: Backend::new(&settings),
            ledger: Ledger::new(settings),
            sessions: Sessions::default(),
            wire_limits: WireLimits { item_bytes_max, login: Login::NotAsked },
            by_class: ByClass::default(),
            written: Vec::new(),
            places: Vec::new(),
        }
    }

    /// Before [`Proxy::start`]: there is a data plane in the kernel, which takes answers of so many bytes. It answers hot keys
    /// if there is [`Settings::replication`]; there are no peers then.
    pub fn with_kernel(mut self, answer_bytes_max: usize) -> Proxy {
        self.backend.add_kernel(answer_bytes_max);
        self
    }

    /// Dials the upstreams.
    pub fn start(&mut self, now: Instant) {
        self.ledger.now = now;
        self.backend.start(&mut self.ledger);
    }

    /// The pool is this one from now on, its servers in their order; there is at least one. An upstream of the same host and port that has been
    /// here keeps its number, if `is_same(number, place)` says that it is dialed as before. The number of each.
    pub fn change(
        &mut self,
        now: Instant,
        pool: impl Into<PoolTold>,
        is_same: impl Fn(usize, usize) -> bool,
    ) -> Vec<usize> {
        self.ledger.now = now;
        let order = self.backend.change(pool.into(), is_same, &mut self.ledger);
        self.settle_switch();
        order
    }

    /// Of a cluster: these keys have copies now, and no others.
    pub fn know_copies(&mut self, copies: Vec<CopiedKey>) {
        self.backend.know_copies(copies);
    }

    /// A client has connected.
    pub fn open(&mut self) -> ClientId {
        self.ledger.counters.connections_total += 1;
        ClientId(self.sessions.open(false))
    }

    /// A peer has connected: a client whose requests are not passed on.
    pub fn open_peer(&mut self) -> ClientId {
        self.ledger.counters.connections_total += 1;
        ClientId(self.sessions.open(true))
    }

    #[inline]
    pub fn handle(&mut self, now: Instant, event: Event<'_>) {
        self.ledger.now = now;
        if self.backend.switching.is_active() && self.backend.switching.look(now) {
            self.sessions.let_all_go_on(&self.ledger);
        }
        match event {
            Event::Received { client, bytes } => {
                self.ledger.counters.bytes_read += bytes.len() as u64;
                self.received(client.0, bytes);
            }
            Event::Replied { conn, bytes } => self.replied(conn.0 as usize, bytes),
            Event::HalfClosed { client } => self.sessions.half_closed(client.0, &mut self.ledger),
            Event::Closed { client } => self.sessions.closed(client.0, &mut self.ledger),
            Event::Connected { conn } => self.connected(conn.0 as usize),
            Event::Lost { conn } => self.lost(conn.0 as usize),
            Event::Lingers { conn } => {
                self.backend.upstreams.conn_mut(conn.0 as usize).doubts.lingers();
            }
            Event::Ended { conn, closed } => {
                let conn = conn.0 as usize;
                self.backend.upstreams.conn_mut(conn).doubts.ended(closed);
                self.backend.upstreams.settle(conn, now);
            }
            Event::Woken => self.wake(),
            Event::KernelForgot { number } => {
                if let Some(kernel) = &mut self.backend.hot.kernel {
                    kernel.forgot(number);
                    self.sessions.let_all_go_on(&self.ledger);
                }
            }
            Event::Sampled { key } => self.backend.hot.sampled(key),
        }
        if self.backend.switching.is_active() {
            self.settle_switch();
        }
        if self.backend.peering.is_changing() {
            self.settle_promises();
        }
        let clusters = &mut self.backend.clusters;
        if clusters.holds_all() && clusters.settle_barrier(&self.backend.upstreams) {
            self.sessions.let_all_go_on(&self.ledger);
        }
        self.all_go_on();
    }

    /// What a switch waits for may be done, or is to be done by the driver.
    pub(crate) fn settle_switch(&mut self) {
        let is_in_flight = self.backend.has_moving_writes() && !is_planted(Fault::HeldInFlight);
        if self.backend.switching.drains() && !is_in_flight {
            self.backend.switching.drained();
        }
        for ((client, number), reply) in self.backend.switching.take_replies() {
            self.sessions.answer(client, number, &mut self.ledger, |out| reply.push(out));
        }
        if self.backend.switching.has_work() {
            self.ledger.actions.push(Action::Switch);
        }
    }

    /// What [`Action::Switch`] is about. None: it has been taken.
    pub fn take_switch_task(&mut self) -> Option<SwitchTask> {
        self.backend.switching.take_work()
    }

    /// A task is done, or why it is not.
    pub fn switch_done(&mut self, now: Instant, number: u64, result: Result<(), String>) {
        self.ledger.now = now;
        let order = self.backend.placing.order().iter();
        let list: Vec<RingServer> =
            order.map(|at| self.ledger.settings.servers[*at].clone()).collect();
        self.backend.switching.done(number, result, &list, now);
        self.settle_switch();
        self.sessions.let_all_go_on(&self.ledger);
        self.all_go_on();
    }

    fn settle_promises(&mut self) {
        if self.backend.peering.settle(&self.backend.upstreams, self.ledger.now) {
            self.sessions.let_all_go_on(&self.ledger);
        }
    }

    fn wake(&mut self) {
        self.backend.end_interval(&mut self.ledger);
        self.tell_peers();
        self.backend.ask_clusters_again(self.ledger.now);
        self.backend.upstreams.looked();
        for conn in 0..self.backend.upstreams.conns().len() {
            match self.backend.upstreams.due(conn, &self.ledger) {
                Due::Nothing => {}
                Due::Dial => self.backend.upstreams.dial(conn, &mut self.ledger),
                Due::TimedOut => self.time_out(conn),
            }
            if self.backend.upstreams.is_owing() {
                self.backend.upstreams.settle(conn, self.ledger.now);
                self.backend.settle_gone(conn, &mut self.ledger);
            }
        }
    }

    /// When [`Event::Woken`] is due, or earlier.
    #[inline]
    pub fn next_wake(&mut self) -> Option<Instant> {
        let Backend { upstreams, peering, hot, switching, .. } = &mut self.backend;
        let mut next = upstreams.next_wake();
        let mut by = |at: Option<Instant>| next = at.map_or(next, |at| at.min(next));
        by(self.sessions.next_release());
        by(switching.next_wake());
        by(hot.control().map(|control| control.ends_at));
        by(peering.next_wake(self.sessions.holds_any(), self.ledger.now));
        Some(next).filter(|at| *at < Instant::MAX)
    }

    /// Reads on from those who have room again.
    #[inline]
    fn all_go_on(&mut self) {
        while let Some(client) = self.sessions.next_going_on() {
            self.go_on(client);
        }
    }

    /// False if [`Proxy::take_actions`] would find nothing. Mostly it would not, where nothing has happened since.
    #[inline]
    pub fn may_act(&self) -> bool {
        !self.ledger.actions.is_empty()
            || self.backend.upstreams.gathers_any()
            || self.sessions.has_any_to_do()
    }

    /// The time of the last event.
    #[inline]
    pub fn now(&self) -> Instant {
        self.ledger.now
    }

    /// What has been asked for since, in order. What upstreams are asked leaves now, or gathers for a moment.
    #[inline]
    pub fn take_actions(&mut self, into: &mut Vec<Action>) {
        // Who took the last replies since the last event has room too, and there may be no other event.
        self.all_go_on();
        self.sessions.release_held(&mut self.ledger);
        self.backend.upstreams.send_gathered(self.ledger.now, &mut self.ledger.actions);
        into.clear();
        std::mem::swap(into, &mut self.ledger.actions);
    }

    /// What the kernel is to do, in this order, before what [`Proxy::take_actions`] says. O(connections).
    pub fn take_kernel_changes(&mut self) -> Vec<KernelChange> {
        self.backend.take_kernel_changes(self.ledger.counters.pool_changes)
    }

    pub fn client_output(&self, client: ClientId) -> &[u8] {
        self.sessions.get(client.0).replies.out.unsent()
    }

    /// The client's socket has taken `count` bytes; it is told again of more when there is more, or was told that it took not all.
    #[inline]
    pub fn client_took(&mut self, client: ClientId, count: usize) {
        self.sessions.took(client.0, count, &mut self.ledger);
    }

    pub fn conn_output(&self, conn: ConnId) -> &[u8] {
        self.backend.upstreams.conn(conn.0 as usize).out.unsent()
    }

    #[inline]
    pub fn conn_took(&mut self, conn: ConnId, count: usize) {
        let this = self.backend.upstreams.conn_mut(conn.0 as usize);
        this.took(count, self.ledger.now, &mut self.ledger.spare);
    }

    /// For so long the driver rests before it waits for events.
    #[inline]
    pub fn rest(&self) -> Duration {
        self.ledger.resting.rest()
    }

    /// For so long, up to `now`, the driver has rested and waited for events.
    #[inline]
    pub fn idled(&mut self, now: Instant, idle: Duration) {
        self.ledger.resting.idled(now, idle);
    }

    pub fn counters(&self) -> Counters {
        self.ledger.counters
    }

    /// Each upstream, in the order of the pool.
    pub fn upstreams(&self) -> impl Iterator<Item = UpstreamStats> {
        let Backend { placing, upstreams, .. } = &self.backend;
        placing.order().iter().map(|number| upstreams.stats(*number))
    }

    /// All that is counted.
    pub fn stats(&self) -> Stats {
        Stats {
            counters: self.ledger.counters,
            requests: self.by_class,
            leaving: self.backend.upstreams.leaving(),
            clients: self.sessions.count(),
            copies: self.backend.hot.stats(),
            upstreams: self.upstreams().collect(),
        }
    }
}
