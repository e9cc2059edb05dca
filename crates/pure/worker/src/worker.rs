//! Events to sessions, sessions to batches.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Instant, Outcome, Owner, Seconds, ServerId, WorkerId};
use mbal_random::Random;
use mbal_replica::Leases;
use mbal_sketch::Sampler;
use mbal_wire::streams;

use crate::batch::{Ended, GROUP};
use crate::conns::{ConnInfo, Endpoint};
use crate::copies::Ticks;
use crate::counters::Counters;
use crate::datagram::Late;
use crate::distances::Shown;
use crate::held::HeldRequests;
use crate::input::{go_on_walking, received, run_pending};
use crate::latency::ByClass;
use crate::links::Links;
use crate::log;
use crate::once::AnsweredOnce;
use crate::session::{Client, Session, Wait};
use crate::shared::Shared;
use crate::wakes::{Sleeper, Wakes};
use crate::{Action, Actions, ConnId, Event, Now, OrderId, Report, Ticketed};

/// Steps of background work in a [`Event::Tick`], a part of a page each.
const BACKGROUND_STEPS: usize = 4;

/// One worker: its sessions, and its share of the server.
pub struct Worker {
    pub(crate) here: Owner,
    pub(crate) shared: Arc<Shared>,
    pub(crate) map_version: u64,
    /// Since when it knows of that map.
    pub(crate) map_since: Instant,
    pub(crate) alone: bool,
    /// The lease by which this server owns is over.
    pub(crate) lapsed: bool,
    /// The clock that leases are counted by, and the event's time.
    pub(crate) lease_now: Instant,
    pub(crate) now: Now,
    /// Some cachelets that are here serve nothing yet.
    pub(crate) newborn: bool,
    /// Copies of hot keys that clients of this worker may read.
    pub(crate) leases: Option<Box<Leases>>,
    pub(crate) ticks: Ticks,
    pub(crate) random: Random,
    pub(crate) links: Links,
    /// Peers' requests that are not executed yet.
    pub(crate) held: HeldRequests,
    pub(crate) wakes: Wakes,
    /// When moves go on, if not before.
    pub(crate) carries_at: Option<Instant>,
    /// Clients leave it no time.
    pub(crate) is_strained: bool,
    /// The store is not yet as the map says: it is looked at after this event.
    pub(crate) settles: bool,
    /// How often it has been looked at in vain.
    pub(crate) unsettled: u32,
    pub(crate) sessions: Vec<Option<Box<Session>>>,
    /// Those that watch.
    pub(crate) watching: Vec<ConnId>,
    /// Stands for a peer.
    pub(crate) nobody: Arc<ConnInfo>,
    pub(crate) last_serial: u64,
    /// Those whose reply has come in this event.
    pub(crate) replied: Vec<Client>,
    pub(crate) once: AnsweredOnce,
    /// Datagrams that wait for a slice that moves.
    pub(crate) late: BTreeMap<u64, Late>,
    pub(crate) sampler: Sampler,
    pub(crate) shown: Shown,
    /// What had been served when the timed wake-up began.
    pub(crate) served: ByClass,
    /// Reused: see [`crate::turn::Turn::scratch`] and [`crate::batch::Batch::decoded`].
    pub(crate) scratch: Vec<u8>,
    pub(crate) decoded: Vec<u8>,
    /// What this event tells on standard error.
    pub(crate) said: Vec<u8>,
}

impl Worker {
    /// A worker of a server that has no peers.
    pub fn new(id: WorkerId, shared: Arc<Shared>) -> Worker {
        let here = Owner { server: ServerId(0), worker: id };
        let sampler = Sampler::new(shared.hot_sample(Seconds::MAX, id), id.0.into());
        Worker {
            here,
            shared,
            map_version: 1,
            map_since: Instant::default(),
            alone: true,
            lapsed: false,
            lease_now: Instant::ZERO,
            now: Now { second: 0, unix: 0, micros: 0 },
            newborn: false,
            leases: None,
            ticks: Ticks::default(),
            random: Random::new(id.0.into()),
            links: Links::default(),
            held: HeldRequests::default(),
            wakes: Wakes::default(),
            carries_at: None,
            is_strained: false,
            settles: false,
            unsettled: 0,
            sessions: Vec::new(),
            watching: Vec::new(),
            nobody: Arc::new(unknown(u32::MAX)),
            last_serial: 0,
            replied: Vec::new(),
            once: AnsweredOnce::default(),
            late: BTreeMap::new(),
            sampler,
            shown: Shown::default(),
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
                self.settle_later(now);
                // Moves may have been told of the map.
                self.carry(now, actions);
                return;
            }
            Event::Rests { busy_ns } => return self.counters().busy_ns.add(busy_ns),
            Event::Timing => return self.time(None),
            Event::Timed { elapsed_ns, stands_for } => {
                return self.time(Some((elapsed_ns, stands_for)));
            }
            _ => {}
        }
        let ticks = matches!(event, Event::Tick);
        let carries = match event {
            Event::Carry => true,
            Event::Woken => self.carries_at.is_some_and(|at| at <= now.instant()),
            _ => false,
        };
        let watched = self.shared.log.watched();
        self.shared.store.enter(self.here.worker);
        self.now = now;
        self.newborn = self.shared.copies.any_newborn();
        // Any worker may have heard of a newer map first.
        // A server without cachelets may have copies, which a flush has to reach.
        let has_copies = self.shared.copies.in_use();
        self.alone =
            self.shared.alone.load(Acquire) && !self.lapsed && !self.newborn && !has_copies;
        let map_version = self.shared.map_version.load(Acquire);
        if self.map_version != map_version {
            (self.map_version, self.map_since) = (map_version, now.instant());
        }
        match event {
            Event::Opened { conn, own_port } => {
                let info = Some(Arc::new(unknown(conn.0)));
                let settings = &self.shared.settings;
                let (protocol, login) = (settings.protocol, settings.login());
                let session = Session { own_port, protocol, login, info, ..Session::default() };
                self.open(conn, Box::new(session));
            }
            Event::Adopted { conn, session } => self.open(conn, session.arrive()),
            Event::Introduced { conn, info } => self.introduce(now, conn, info),
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
                    session.unsent = 0;
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
            Event::LinkUp { server, credits } => {
                self.shared.links_up.came(server);
                self.links.up(server, credits);
                self.tell_of_flush(now, server, actions);
            }
            Event::LinkBroken { server } => self.link_broken(now, server, actions),
            Event::Answered { server, replies } => {
                for Ticketed { ticket, bytes, .. } in replies {
                    let asker = self.links.answered(server, *ticket, Some(bytes.len()));
                    asker.into_iter().for_each(|asker| self.fill(asker, Some(bytes), actions));
                }
                self.credits_came(now, server, actions);
            }
            Event::Unanswered { .. } if is_planted(Fault::LateAreForgotten) => {}
            Event::Unanswered { server, ticket } => {
                let asker = self.links.answered(server, ticket, None);
                asker.into_iter().for_each(|asker| self.fill(asker, None, actions));
                self.credits_came(now, server, actions);
            }
            Event::Forwarded { server, requests } => self.asked(now, server, requests, actions),
            Event::AskerGone { server, tickets } => self.drop_held(now, server, &tickets, actions),
            Event::Woken => self.woken(now, actions),
            Event::Tick => {
                self.shared.look_at_flushes(now.instant());
                self.close_idle(now, actions);
                self.tick_copies_from_now(now);
            }
            Event::Carry
            | Event::Mapped { .. }
            | Event::Rests { .. }
            | Event::Timing
            | Event::Timed { .. } => {}
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
        if carries {
            self.carry(now, actions);
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

/// A connection that its driver has not introduced.
fn unknown(fd: u32) -> ConnInfo {
    let nowhere = || Endpoint::Unix(String::new());
    ConnInfo::new(fd, nowhere(), nowhere())
}
