//! Events to sessions, sessions to batches.

use std::collections::BTreeMap;
use std::mem;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use mbal_cachelet::Ahead;
use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Outcome, Owner, Seconds, ServerId, WorkerId};
use mbal_sketch::Sampler;
use mbal_wire::streams;

use crate::batch::{Batch, Ended, GROUP, Pause};
use crate::conns::{Card, Endpoint};
use crate::counters::Counters;
use crate::datagram::Datagram;
use crate::held::Held;
use crate::latency::ByClass;
use crate::links::{Asker, Links};
use crate::load::turn_work;
use crate::log::{self, STATES};
use crate::room::Haste;
use crate::session::{Client, OUTPUT_BYTES_MAX, Session, Wait};
use crate::shared::Shared;
use crate::slots::{NO_ROUTE_LINE, Slots};
use crate::turn::Turn;
use crate::wakes::{Sleeper, Wakes};
use crate::walks::Walk;
use crate::watching::send_lines_to;
use crate::{Action, Actions, ConnId, Event, Now, OrderId, Report, Ticketed, verbose};

/// Steps of background work in a [`Event::Tick`], a part of a page each.
const BACKGROUND_STEPS: usize = 4;

/// One worker: its sessions, and its share of the server.
pub struct Worker {
    pub(crate) here: Owner,
    pub(crate) shared: Arc<Shared>,
    map_version: u64,
    alone: bool,
    links: Links,
    /// Peers' requests that are not executed yet.
    pub(crate) held: Held,
    pub(crate) wakes: Wakes,
    /// The store is not yet as the map says: it is looked at after this event.
    pub(crate) settles: bool,
    /// How often it has been looked at in vain.
    pub(crate) unsettled: u32,
    pub(crate) sessions: Vec<Option<Box<Session>>>,
    /// Those that watch.
    pub(crate) watching: Vec<ConnId>,
    /// Stands for a peer.
    nobody: Arc<Card>,
    last_serial: u64,
    /// Those whose reply has come in this event.
    replied: Vec<Client>,
    /// Datagrams whose replies have not all come.
    pub(crate) datagrams: BTreeMap<u64, Datagram>,
    sampler: Sampler,
    /// What had been served when the timed wake-up began.
    served: ByClass,
    /// Reused: see [`Turn::scratch`] and [`Batch::decoded`].
    scratch: Vec<u8>,
    decoded: Vec<u8>,
    /// What this event tells on standard error.
    pub(crate) said: Vec<u8>,
}

impl Worker {
    /// A worker of a server that has no peers.
    pub fn new(id: WorkerId, shared: Arc<Shared>) -> Worker {
        let here = Owner { server: ServerId(0), worker: id };
        let sampler = Sampler::new(shared.hot_sample(Seconds::MAX), id.0.into());
        Worker {
            here,
            shared,
            map_version: 1,
            alone: true,
            links: Links::default(),
            held: Held::default(),
            wakes: Wakes::default(),
            settles: false,
            unsettled: 0,
            sessions: Vec::new(),
            watching: Vec::new(),
            nobody: Arc::new(unknown(u32::MAX)),
            last_serial: 0,
            replied: Vec::new(),
            datagrams: BTreeMap::new(),
            sampler,
            served: ByClass::default(),
            scratch: Vec::new(),
            decoded: Vec::new(),
            said: Vec::new(),
        }
    }

    /// Takes one event; appends to `actions` what is to be done about it.
    pub fn handle(&mut self, now: Now, event: Event<'_>, actions: &mut Actions) {
        // What touches no item, or what waits for others to have left the cachelets that they were in.
        match event {
            Event::Mapped { here, cluster } => {
                self.here.server = here;
                self.shared.follow(here, cluster, now.second);
                return self.settle_later(now);
            }
            Event::Rests { busy_ns } => return self.counters().busy_ns.add(busy_ns),
            Event::Timing => return self.time(None),
            Event::Timed { elapsed_ns, stands_for } => {
                return self.time(Some((elapsed_ns, stands_for)));
            }
            _ => {}
        }
        let ticks = matches!(event, Event::Tick);
        let watched = self.shared.log.watched();
        self.shared.store.enter(self.here.worker);
        // Any worker may have heard of a newer map first.
        self.alone = self.shared.alone.load(Acquire);
        self.map_version = self.shared.map_version.load(Acquire);
        match event {
            Event::Opened { conn, own_port } => {
                let card = Some(Arc::new(unknown(conn.0)));
                let settings = &self.shared.settings;
                let (protocol, login) = (settings.protocol, settings.login());
                let session = Session { own_port, protocol, login, card, ..Session::default() };
                self.open(conn, Box::new(session));
            }
            Event::Adopted { conn, session } => self.open(conn, session.arrive()),
            Event::Introduced { conn, card } => self.introduce(now, conn, card),
            Event::TlsBroke { fd, why } => {
                if watched & streams::CONNECTIONS != 0 {
                    log::tls_error(&self.shared.log, now, fd, &why);
                }
            }
            Event::Nudged => self.send_lines(actions),
            Event::CertsRefreshed { conn, refreshed } => {
                self.certs_refreshed(now, conn, refreshed, actions);
            }
            Event::Closed { conn } => {
                self.part_from(now, conn);
                self.links.forget(conn);
                self.wakes.forget(Sleeper::Conn(conn));
            }
            Event::Received { conn, bytes } => {
                let counters = self.shared.counters(self.here.worker.0.into());
                counters.bytes_read.add(bytes.len() as u64);
                if self.turn(now, conn, bytes.len(), actions, |batch, session| {
                    received(batch, session, bytes)
                }) {
                    self.leave_if_due(conn, actions);
                }
            }
            Event::HalfClosed { conn } => {
                let session = self.sessions[conn.0 as usize].as_ref().expect("opened before");
                match session.slots.is_empty() || is_planted(Fault::HalfClosedIsClosed) {
                    true => actions.list.push(Action::Close { conn }),
                    false => {
                        self.turn(now, conn, 0, actions, |_, _| Ended::closed(None));
                    }
                }
            }
            Event::Datagram { from, bytes } => self.datagram(now, from, bytes, actions),
            Event::Drained { conn } => {
                self.turn(now, conn, 0, actions, |batch, session| {
                    match std::mem::take(&mut session.wait) {
                        Wait::Walk(walk) => go_on_walking(batch, session, walk),
                        Wait::Output => run_pending(batch, session),
                        Wait::Watching { watcher, .. } => {
                            session.wait = Wait::Watching { watcher, full: false };
                            Ended::Hungry
                        }
                        // It has found something else to wait for meanwhile.
                        other => {
                            session.wait = other;
                            Ended::Hungry
                        }
                    }
                });
                self.leave_if_due(conn, actions);
            }
            Event::Lend { order, cachelet, to, seen } => {
                let outcome = self.lend(cachelet, to, seen);
                self.report(order, outcome, actions);
            }
            Event::Lighten { order, to, share, share_max } => {
                let outcome = self.lighten(to, share, share_max, actions);
                self.report(order, outcome, actions);
            }
            Event::HandOver { order, conn, to } => {
                let outcome = self.hand_over(conn, to, actions);
                self.report(order, outcome, actions);
            }
            Event::LinkUp { server, credits } => self.links.up(server, credits),
            Event::LinkBroken { server } => self.link_broken(now, server, actions),
            Event::Answered { server, replies } => {
                for Ticketed { ticket, bytes } in replies {
                    let asker = self.links.answered(server, *ticket);
                    asker.into_iter().for_each(|asker| self.fill(asker, Some(bytes), actions));
                }
                self.credits_came(now, server, actions);
            }
            Event::Unanswered { .. } if is_planted(Fault::LateAreForgotten) => {}
            Event::Unanswered { server, ticket } => {
                let asker = self.links.answered(server, ticket);
                asker.into_iter().for_each(|asker| self.fill(asker, None, actions));
                self.credits_came(now, server, actions);
            }
            Event::Asked { server, requests } => self.asked(now, server, requests, actions),
            Event::AskerGone { server, tickets } => self.drop_held(now, server, &tickets, actions),
            Event::Woken => self.woken(now, actions),
            Event::Tick => self.close_idle(now, actions),
            Event::Mapped { .. } | Event::Rests { .. } | Event::Timing | Event::Timed { .. } => {}
        }
        if watched != 0 {
            self.pass_lines_on(now, actions);
        }
        self.shared.store.leave(self.here.worker);
        let settles = mem::take(&mut self.settles);
        if ticks || settles {
            self.shared.settle(now.second);
            self.settle_later(now);
        }
        if ticks {
            self.shared.store.background(self.here.worker, now.second, BACKGROUND_STEPS);
        }
    }

    fn report(&self, order: OrderId, outcome: Outcome, actions: &mut Actions) {
        if order != OrderId(0) {
            let worker = self.here.worker;
            actions.list.push(Action::Report(Report { order, worker, outcome }));
        }
    }

    pub(crate) fn counters(&self) -> &Counters {
        self.shared.counters(self.here.worker.0.into())
    }

    /// Reads the counters, and at the end of a timed wake-up says how long that took.
    #[cold]
    fn time(&mut self, took: Option<(u64, u32)>) {
        let served = self.counters().served();
        if let Some((elapsed_ns, stands_for)) = took {
            let latency = self.shared.latency(self.here.worker.0.into());
            latency.record(&self.served, &served, elapsed_ns, stands_for);
        }
        self.served = served;
    }

    fn open(&mut self, conn: ConnId, mut session: Box<Session>) {
        let index = conn.0 as usize;
        if self.sessions.len() <= index {
            self.sessions.resize_with(index + 1, || None);
        }
        let serial = self.next_serial();
        session.client = Client::Conn { conn, serial };
        self.sessions[index] = Some(session);
    }

    pub(crate) fn next_serial(&mut self) -> u64 {
        self.last_serial += 1;
        self.last_serial
    }

    /// What requests are executed with, and how many keys were asked for before.
    #[inline]
    fn batch<'w>(
        &'w mut self,
        now: Now,
        card: &'w Card,
        out: &'w mut Vec<u8>,
        to_peers: &'w mut Vec<u8>,
        actions: &'w mut Vec<Action>,
    ) -> (Batch<'w>, u64) {
        let worker = usize::from(self.here.worker.0);
        let counters = self.shared.counters(worker);
        let start = out.len();
        let turn = Turn {
            shared: &self.shared,
            counters,
            classes: self.shared.class_counters(worker),
            watched: self.shared.log.watched(),
            card,
            fd: card.fd,
            has_waiting: false,
            map_version: self.map_version,
            here: self.here,
            alone: self.alone,
            now,
            sampler: &mut self.sampler,
            ahead: Ahead::NONE,
            made_room: false,
            haste: Haste::None,
            no_room: None,
            scratch: &mut self.scratch,
            out,
            start,
            further_keys: 0,
            follows: false,
        };
        let batch = Batch {
            turn,
            links: &mut self.links,
            to_peers,
            actions,
            held: &mut self.held,
            again: None,
            wakes: &mut self.wakes,
            decoded: &mut self.decoded,
            requests: 0,
            said: &mut self.said,
        };
        (batch, counters.keyed())
    }

    /// Lets `run` execute on a connection, unless that is closing, and sends what comes of it.
    /// True if the connection is due to leave for another worker.
    fn turn(
        &mut self,
        now: Now,
        conn: ConnId,
        arrived_bytes: usize,
        actions: &mut Actions,
        run: impl FnOnce(&mut Batch<'_>, &mut Session) -> Ended,
    ) -> bool {
        let mut session = self.sessions[conn.0 as usize].take().expect("opened before");
        let start = actions.bytes.len();
        let card = session.card.take().expect("no turn within a turn");
        let Actions { bytes, requests, list } = actions;
        let (mut batch, keys_before) = self.batch(now, &card, bytes, requests, list);
        let began_empty = session.slots.is_empty();
        let ended = run(&mut batch, &mut session);
        if !session.slots.is_empty() {
            if began_empty {
                session.slots.keep_ahead(start, batch.turn.out);
            }
            session.slots.release(batch.turn.out);
        }
        let (follows, counters) = (batch.turn.follows, batch.turn.counters);
        if batch.requests > 0 {
            card.commanded(now.second);
        }
        let end = batch.turn.out.len();
        let work = turn_work(counters.keyed() - keys_before, (arrived_bytes + end - start) as u64);
        counters.work.add(work);
        if follows {
            counters.work_followed.add(work);
        } else if !session.own_port {
            counters.work_handable.add(work);
        }
        session.work.add(work, batch.turn.shared.epoch.load(Relaxed));
        if start < end {
            counters.bytes_written.add((end - start) as u64);
            batch.actions.push(Action::Send { conn, bytes: start..end });
        }
        match ended {
            Ended::Hungry => {}
            Ended::Waits(mut wait) => {
                let held = session.slots.held_bytes();
                if matches!(wait, Wait::Peers(Pause::Order)) && held < OUTPUT_BYTES_MAX {
                    // All that was to leave first has just left.
                    wait = Wait::Output;
                }
                match wait {
                    Wait::Output | Wait::Walk(_) => actions.list.push(Action::Stall { conn }),
                    Wait::Peers(_) => actions.list.push(Action::Pause { conn }),
                    Wait::Room(at) => {
                        actions.list.push(Action::Pause { conn });
                        if !is_planted(Fault::NobodyIsWoken) {
                            self.wakes.set(at, Sleeper::Conn(conn));
                        }
                    }
                    Wait::End { .. } => session.pending = Vec::new(),
                    Wait::No | Wait::Certificates | Wait::Watching { .. } => {}
                }
                session.wait = wait;
            }
        }
        if session.slots.is_empty() {
            close(conn, &mut session, actions);
        }
        let due = session.due.is_some();
        if session.wait.watcher().is_some() {
            if !self.watching.contains(&conn) {
                self.watching.push(conn);
            }
            send_lines_to(conn, &mut session, actions);
        }
        let state = session.state();
        if self.shared.log.watched() & STATES != 0 {
            verbose::changed(&mut self.said, card.fd, card.state_name(), state.name());
        }
        card.set_state(state);
        session.card = Some(card);
        self.sessions[conn.0 as usize] = Some(session);
        due
    }

    fn certs_refreshed(
        &mut self,
        now: Now,
        conn: ConnId,
        refreshed: Result<(), String>,
        actions: &mut Actions,
    ) {
        let waits = self.sessions.get(conn.0 as usize).and_then(Option::as_ref);
        if !waits.is_some_and(|session| matches!(session.wait, Wait::Certificates)) {
            return;
        }
        if refreshed.is_ok() {
            self.shared.gauges.certs_read.store(now.second.into(), Relaxed);
        }
        self.turn(now, conn, 0, actions, |batch, session| {
            session.wait = Wait::No;
            let before = batch.turn.out.len();
            batch.turn.line(refreshed.err().unwrap_or("OK".into()).as_bytes());
            session.order(before, batch.turn.out);
            run_pending(batch, session)
        });
        self.leave_if_due(conn, actions);
    }

    /// A connection that waited for peers or for room, perhaps no longer does.
    pub(crate) fn go_on(&mut self, now: Now, conn: ConnId, actions: &mut Actions) {
        let at = actions.list.len();
        self.turn(now, conn, 0, actions, |batch, session| {
            session.wait = Wait::No;
            run_pending(batch, session)
        });
        // To wait again is no news.
        match actions.list[at..].iter().position(|action| *action == Action::Pause { conn }) {
            Some(pause) => drop(actions.list.remove(at + pause)),
            None => actions.list.push(Action::Resume { conn }),
        }
        self.leave_if_due(conn, actions);
    }

    /// A reply has come, or will not: it is kept until those before it have left.
    fn fill(&mut self, asker: Asker, reply: Option<&[u8]>, actions: &mut Actions) {
        let (client, place) = match asker {
            Asker::Client { client, place } => (client, place),
            Asker::Peer { server, ticket } => {
                let reply = append(&mut actions.bytes, reply.unwrap_or(NO_ROUTE_LINE));
                return actions.list.push(Action::Answer { server, ticket, reply });
            }
        };
        let Some(slots) = self.slots_of(client) else { return };
        let missed = match reply {
            Some(reply) => slots.fill(place, reply),
            None => slots.fail(place),
        };
        if !is_planted(Fault::MissNotCounted) {
            self.counters().get_unreachable.add(missed);
        }
        if !self.replied.contains(&client) {
            self.replied.push(client);
        }
    }

    /// `None` once the client has gone.
    fn slots_of(&mut self, client: Client) -> Option<&mut Slots> {
        match client {
            Client::Conn { conn, .. } => {
                let session = self.sessions.get_mut(conn.0 as usize)?.as_mut()?;
                (session.client == client).then_some(&mut session.slots)
            }
            Client::Datagram { serial } => {
                self.datagrams.get_mut(&serial).map(|datagram| &mut datagram.slots)
            }
        }
    }

    /// Sends what may leave, once for everybody who got something.
    fn release_replied(&mut self, now: Now, actions: &mut Actions) {
        let mut replied = std::mem::take(&mut self.replied);
        for client in replied.drain(..) {
            match client {
                Client::Conn { conn, .. } => self.release(now, conn, actions),
                Client::Datagram { serial } => self.release_datagram(serial, actions),
            }
        }
        self.replied = replied;
    }

    fn release(&mut self, now: Now, conn: ConnId, actions: &mut Actions) {
        // The end of every turn sends what may leave.
        self.turn(now, conn, 0, actions, |_, _| Ended::Hungry);
        let session = self.sessions[conn.0 as usize].as_ref().expect("its turn is over");
        let held = session.slots.held_bytes();
        let in_order = matches!(session.wait, Wait::Peers(Pause::Order));
        if in_order && held < OUTPUT_BYTES_MAX {
            self.go_on(now, conn, actions);
        } else {
            self.leave_if_due(conn, actions);
        }
    }

    /// Replies have come over this link, and made room for requests.
    fn credits_came(&mut self, now: Now, server: ServerId, actions: &mut Actions) {
        self.release_replied(now, actions);
        // One that waited goes on, and the next while there is credit left.
        while let Some(conn) = self.links.next_waiting(server) {
            self.go_on(now, conn, actions);
        }
    }

    fn link_broken(&mut self, now: Now, server: ServerId, actions: &mut Actions) {
        let (askers, waiting) = self.links.broken(server);
        for asker in askers {
            self.fill(asker, None, actions);
        }
        self.release_replied(now, actions);
        for conn in waiting {
            self.go_on(now, conn, actions);
        }
    }

    /// Executes requests that come from no connection. What they append to `out` is theirs to send.
    pub(crate) fn turn_of_nobody(
        &mut self,
        now: Now,
        arrived_bytes: usize,
        out: &mut Vec<u8>,
        to_peers: &mut Vec<u8>,
        actions: &mut Vec<Action>,
        run: impl FnOnce(&mut Batch<'_>, &mut Vec<u8>),
    ) {
        let mut decoded = std::mem::take(&mut self.decoded);
        let nobody = Arc::clone(&self.nobody);
        let (mut batch, keys_before) = self.batch(now, &nobody, out, to_peers, actions);
        run(&mut batch, &mut decoded);
        let counters = batch.turn.counters;
        counters.work.add(turn_work(counters.keyed() - keys_before, arrived_bytes as u64));
        self.decoded = decoded;
    }

    fn asked(
        &mut self,
        now: Now,
        from: ServerId,
        requests: &[Ticketed<'_>],
        actions: &mut Actions,
    ) {
        self.bound_held(now, actions);
        let bytes = requests.iter().map(|request| request.bytes.len()).sum();
        let Actions { bytes: out, requests: to_peers, list } = actions;
        self.turn_of_nobody(now, bytes, out, to_peers, list, |batch, decoded| {
            for requests in requests.chunks(GROUP) {
                batch.serve(from, requests, decoded);
            }
        });
    }
}

/// Where what was appended stands.
pub(crate) fn append(to: &mut Vec<u8>, bytes: &[u8]) -> Range<usize> {
    let start = to.len();
    to.extend_from_slice(bytes);
    start..to.len()
}

fn close(conn: ConnId, session: &mut Session, actions: &mut Actions) {
    let Wait::End { shutdown, asked: asked @ false } = &mut session.wait else { return };
    *asked = true;
    actions.list.push(Action::Close { conn });
    if let Some(graceful) = *shutdown {
        actions.list.push(Action::Shutdown { graceful });
    }
}

fn received(batch: &mut Batch<'_>, session: &mut Session, mut bytes: &[u8]) -> Ended {
    if session.wait.drops_input() {
        return Ended::Hungry;
    }
    if !session.wait.is_no() {
        session.pending.extend_from_slice(bytes);
        return Ended::Hungry;
    }
    while !session.pending.is_empty() && !bytes.is_empty() {
        if !session.complete(&mut bytes) {
            return Ended::Hungry;
        }
        match run_pending(batch, session) {
            Ended::Hungry => {}
            Ended::Waits(wait) if wait.drops_input() => return Ended::Waits(wait),
            bound => {
                session.pending.extend_from_slice(bytes);
                return bound;
            }
        }
    }
    if bytes.is_empty() {
        return Ended::Hungry;
    }
    let ran = batch.run(session, bytes);
    session.pending.extend_from_slice(&ran.rewritten);
    session.pending.extend_from_slice(&bytes[ran.used..]);
    ran.ended
}

/// One step of the command that has not ended.
fn go_on_walking(batch: &mut Batch<'_>, session: &mut Session, mut walk: Box<Walk>) -> Ended {
    let before = batch.turn.out.len();
    let more = batch.turn.step(&mut walk);
    session.order(before, batch.turn.out);
    if more { Ended::Waits(Wait::Walk(walk)) } else { run_pending(batch, session) }
}

/// A connection that its driver has not introduced.
fn unknown(fd: u32) -> Card {
    let nowhere = || Endpoint::Unix(String::new());
    Card::new(fd, nowhere(), nowhere())
}

/// Executes what is there, if nothing stands in the way.
fn run_pending(batch: &mut Batch<'_>, session: &mut Session) -> Ended {
    if !session.wait.is_no() {
        return Ended::Hungry;
    }
    let pending = std::mem::take(&mut session.pending);
    let ran = batch.run(session, &pending);
    if ran.rewritten.is_empty() {
        session.keep(pending, ran.used);
    } else {
        session.pending = ran.rewritten;
        session.pending.extend_from_slice(&pending[ran.used..]);
    }
    ran.ended
}
