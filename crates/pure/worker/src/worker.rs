//! Events to sessions, sessions to batches.

use std::mem;
use std::sync::Arc;

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Instant, Outcome, Owner, Seconds, ServerId, WorkerId};
use mbal_random::Random;
use mbal_replica::Leases;
use mbal_sketch::Sampler;
use mbal_wire::streams;

use crate::commands::context::Here;
use crate::copies::{Sends, Ticks};
use crate::event::{Action, Actions, Event};
use crate::forwarding::everywhere::tell_of_flush;
use crate::forwarding::held::HeldRequests;
use crate::forwarding::links::Links;
use crate::forwarding::once::AnsweredOnce;
use crate::ids::{Client, OrderId, Report, Ticketed};
use crate::moving::carrying::Carrier;
use crate::moving::settling::Settling;
use crate::observing::chores;
use crate::observing::counters::Counters;
use crate::observing::distances::Shown;
use crate::observing::latency::ByClass;
use crate::observing::log;
use crate::observing::waiting::WaitEstimate;
use crate::sessions::datagram::LateDatagrams;
use crate::sessions::run::{Ended, go_on_walking, received, run_pending};
use crate::sessions::session::{Session, Wait};
use crate::sessions::table::Sessions;
use crate::sessions::wakes::{Sleeper, Wakes};
use crate::shared::Shared;
use crate::time::Now;

/// Steps of background work in a [`Event::Tick`], a part of a page each.
const BACKGROUND_STEPS: usize = 4;
/// Of those that are due, before others have their turn.
const TRIED_AT_ONCE: usize = 64;

/// What is left to do when everything that had arrived is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Background {
    /// Nothing.
    Rests,
    /// There is more, which can wait.
    GoesOn,
    /// There is more, and somebody waits for it.
    Hastens,
}

/// What is measured of a wake-up as a whole.
#[derive(Default)]
struct WakeUp {
    waiting: WaitEstimate,
    /// What had been served when the timed one began.
    served: ByClass,
    /// What was done last in the background, of [`chores::CHORES`].
    chore: Option<usize>,
}

/// One worker: its sessions, and its share of the server.
pub struct Worker {
    pub(crate) here: Here,
    pub(crate) shared: Arc<Shared>,
    pub(crate) sessions: Sessions,
    /// Copies of hot keys that clients of this worker may read.
    pub(crate) leases: Option<Box<Leases>>,
    ticks: Ticks,
    pub(crate) random: Random,
    pub(crate) links: Links,
    /// Peers' requests that are not executed yet.
    pub(crate) held: HeldRequests,
    pub(crate) wakes: Wakes,
    carrier: Carrier,
    settling: Settling,
    /// Those whose reply has come in this event.
    pub(crate) replied: Vec<Client>,
    pub(crate) once: AnsweredOnce,
    /// Datagrams that wait for a slice that moves.
    pub(crate) late: LateDatagrams,
    pub(crate) sampler: Sampler,
    pub(crate) shown: Shown,
    wakeup: WakeUp,
    /// Reused: see [`crate::commands::turn::Turn::scratch`] and [`crate::sessions::batch::Batch::decoded`].
    pub(crate) scratch: Vec<u8>,
    pub(crate) decoded: Vec<u8>,
    /// What this event tells on standard error.
    pub(crate) said: Vec<u8>,
}

impl Worker {
    /// A worker of a server that has no peers.
    pub fn new(id: WorkerId, shared: Arc<Shared>) -> Worker {
        let here = Here {
            owner: Owner { server: ServerId(0), worker: id },
            now: Now { second: 0, unix: 0, micros: 0 },
            map_version: 1,
            map_since: Instant::default(),
            alone: true,
            lapsed: false,
            lease_now: Instant::ZERO,
        };
        let move_budget = shared.settings.move_budget;
        let sampler = Sampler::new(shared.hot_sample(Seconds::MAX, id), id.0.into());
        Worker {
            here,
            shared,
            sessions: Sessions::default(),
            leases: None,
            ticks: Ticks::default(),
            random: Random::new(id.0.into()),
            links: Links::default(),
            held: HeldRequests::default(),
            wakes: Wakes::default(),
            carrier: Carrier::new(move_budget),
            settling: Settling::default(),
            replied: Vec::new(),
            once: AnsweredOnce::default(),
            late: LateDatagrams::default(),
            sampler,
            shown: Shown::default(),
            wakeup: WakeUp::default(),
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
                self.here.owner.server = here;
                self.shared.follow(here, cluster, now.second);
                self.settle_later(now);
                self.ticks.hasten(&self.shared, now, &mut self.wakes);
                // Moves may have been told of the map.
                self.carry(now, actions);
                return;
            }
            Event::Rests { busy_ns, before_ns } => return self.rests(busy_ns, before_ns),
            Event::Unseen { busy_ns, delay_ns, ran_ns } => {
                let counters = self.shared.counters(self.here.owner.worker.0.into());
                counters.busy_ns.add(busy_ns);
                counters.ran_ns.add(ran_ns);
                return self.wakeup.waiting.delayed(counters, delay_ns);
            }
            Event::Timing => return self.time(None),
            Event::Timed { elapsed_ns, stands_for } => {
                return self.time(Some((elapsed_ns, stands_for)));
            }
            _ => {}
        }
        let ticks = matches!(event, Event::Tick);
        let carries = match event {
            Event::Carry => true,
            Event::Woken => self.carrier.at.is_some_and(|at| at <= now.instant()),
            _ => false,
        };
        let watched = self.shared.log.watched();
        self.shared.store.enter(self.here.owner.worker);
        self.here.now = now;
        // Any worker may have heard of a newer map first.
        // A server without cachelets may have copies, which a flush has to reach.
        let has_copies = self.shared.copies.in_use();
        let keeps_all = !self.here.lapsed && !self.shared.copies.newborns.any() && !has_copies;
        self.here.alone = self.shared.map.is_alone() && keeps_all;
        let map_version = self.shared.map_version();
        if self.here.map_version != map_version {
            (self.here.map_version, self.here.map_since) = (map_version, now.instant());
        }
        match event {
            Event::Opened { conn, own_port } => {
                let settings = &self.shared.settings;
                let (protocol, login) = (settings.protocol, settings.login());
                let session = Session { own_port, protocol, login, ..Session::default() };
                self.sessions.open(conn, Box::new(session));
            }
            Event::Adopted { conn, session } => self.sessions.open(conn, session.arrive()),
            Event::Introduced { conn, info } => self.introduce(conn, info),
            Event::TlsBroke { fd, why } => {
                if watched & streams::CONNECTIONS != 0 {
                    log::tls_error(&self.shared.log, now, fd, &why);
                }
            }
            Event::Nudged => self.send_lines(actions),
            Event::CertsRefreshed { conn, refreshed } => {
                self.certs_refreshed(conn, refreshed, actions);
            }
            Event::Closed { conn } => {
                self.part_from(conn);
                self.links.forget(conn);
                self.wakes.forget(Sleeper::Conn(conn));
            }
            Event::Received { conn, bytes } => {
                self.counters().bytes_read.add(bytes.len() as u64);
                if self.turn(conn, bytes.len(), actions, |batch, session| {
                    received(batch, session, bytes)
                }) {
                    self.leave_if_due(conn, actions);
                }
            }
            Event::HalfClosed { conn } => {
                match self.sessions.of(conn).slots.is_empty()
                    || is_planted(Fault::HalfClosedIsClosed)
                {
                    true => actions.list.push(Action::Close { conn }),
                    false => {
                        self.turn(conn, 0, actions, |_, _| Ended::closed(None));
                    }
                }
            }
            Event::Datagram { from, bytes } => self.datagram(from, bytes, actions),
            Event::Drained { conn } => {
                self.turn(conn, 0, actions, |batch, session| {
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
                tell_of_flush(&self.shared, &self.here, &mut self.links, server, actions);
                self.ticks.hasten(&self.shared, now, &mut self.wakes);
            }
            Event::LinkBroken { server } => self.link_broken(server, actions),
            Event::Answered { server, replies } => {
                for Ticketed { ticket, bytes, .. } in replies {
                    let asker = self.links.answered(server, *ticket, Some(bytes.len()));
                    asker.into_iter().for_each(|asker| self.fill(asker, Some(bytes), actions));
                }
                self.credits_came(server, actions);
            }
            Event::Unanswered { .. } if is_planted(Fault::LateAreForgotten) => {}
            Event::Unanswered { server, ticket } => {
                let asker = self.links.answered(server, ticket, None);
                asker.into_iter().for_each(|asker| self.fill(asker, None, actions));
                self.credits_came(server, actions);
            }
            Event::Forwarded { server, requests } => self.asked(server, requests, actions),
            Event::AskerGone { server, tickets } => self.drop_held(server, &tickets, actions),
            Event::Woken => self.woken(actions),
            Event::Tick => {
                let Shared { newest_flush, store, settings, .. } = &*self.shared;
                newest_flush.look(store, settings.link_timeout, now.instant());
                self.close_idle(actions);
                self.ticks.begin(&self.shared, now, &mut self.wakes);
            }
            Event::Carry
            | Event::Mapped { .. }
            | Event::Rests { .. }
            | Event::Unseen { .. }
            | Event::Timing
            | Event::Timed { .. } => {}
        }
        if watched != 0 {
            self.pass_lines_on(actions);
        }
        self.shared.store.leave(self.here.owner.worker);
        let settles = mem::take(&mut self.settling.is_due);
        if ticks || settles {
            self.shared.settle(now.second);
            self.settle_later(now);
            self.ticks.hasten(&self.shared, now, &mut self.wakes);
        }
        if carries {
            self.carry(now, actions);
        }
        if ticks {
            self.shared.store.background(self.here.owner.worker, now.second, BACKGROUND_STEPS);
        }
    }

    fn report(&self, order: OrderId, outcome: Outcome, actions: &mut Actions) {
        if order != OrderId(0) {
            let worker = self.here.owner.worker;
            actions.list.push(Action::Report(Report { order, worker, outcome }));
        }
    }

    pub(crate) fn counters(&self) -> &Counters {
        self.shared.counters(self.here.owner.worker.0.into())
    }

    #[inline]
    fn rests(&mut self, busy_ns: u64, before_ns: u64) {
        let counters = self.shared.counters(self.here.owner.worker.0.into());
        counters.busy_ns.add(busy_ns);
        self.wakeup.waiting.rests(counters, busy_ns, before_ns);
    }

    /// Reads the counters, and at the end of a timed wake-up says how long that took.
    #[cold]
    fn time(&mut self, took: Option<(u64, u32)>) {
        let served = self.counters().served();
        if let Some((elapsed_ns, stands_for)) = took {
            let latency = self.shared.latency(self.here.owner.worker.0.into());
            latency.record(&self.wakeup.served, &served, elapsed_ns, stands_for);
        }
        self.wakeup.served = served;
    }

    /// Goes on with the moves that this worker carries; true if one of them has more to do at once. In no batch.
    fn carry(&mut self, now: Now, actions: &mut Actions) -> bool {
        let carried = self.carrier.carry(&self.shared, &self.here, now, actions);
        if carried.ended {
            self.settle_later(now);
        }
        carried.hastens
    }

    fn settle_later(&mut self, now: Now) {
        self.settling.later(&self.shared.map, now, &mut self.wakes);
    }

    fn tick_copies(&mut self, actions: &mut Actions) {
        let Actions { requests, list, .. } = actions;
        let (shared, links, here) = (&*self.shared, &mut self.links, self.here);
        let mut sends = Sends { shared, links, requests, actions: list, here };
        self.ticks.tick(shared, &mut self.sampler, &mut sends, &mut self.wakes);
    }

    /// When the worker wants to be woken ([`crate::Event::Woken`]), at the latest; `None` is never. To be asked after every event.
    /// In whole microseconds, as the clock that workers are told ([`Now`]).
    #[inline]
    pub fn next_wake(&self) -> Option<Instant> {
        match (self.wakes.next(), self.carrier.at) {
            (Some(wake), Some(carries)) => Some(wake.min(carries)),
            (wake, carries) => wake.or(carries),
        }
    }

    /// Tries again for those whose moment has come.
    fn woken(&mut self, actions: &mut Actions) {
        for sleeper in self.wakes.due(self.here.now.instant(), TRIED_AT_ONCE) {
            match sleeper {
                Sleeper::Conn(conn) => self.go_on(conn, actions),
                Sleeper::Lost => self.tell_lost(actions),
                Sleeper::Held(number) => self.try_held(number, actions),
                Sleeper::Datagram(serial) => self.try_datagram(serial, actions),
                Sleeper::Map => self.settling.is_due = true,
                Sleeper::Copies => self.tick_copies(actions),
            }
        }
    }

    /// Does some of what can wait: a step of the store's, and some of each move's. Between two events.
    /// `is_idle`: clients have left this worker some time since the last call. Moves slow down while they do not.
    pub fn background(&mut self, now: Now, is_idle: bool, actions: &mut Actions) -> Background {
        self.carrier.observe(&self.shared, &self.here, now, is_idle);
        let hastens = self.carry(now, actions);
        let (chore, goes_on) =
            self.shared.store.background_step(self.here.owner.worker, now.second);
        self.wakeup.chore = chores::number_of(self.carrier.went_on, chore);
        match (hastens, goes_on) {
            (true, _) => Background::Hastens,
            (false, true) => Background::GoesOn,
            (false, false) => Background::Rests,
        }
    }

    /// What the last call of [`Self::background`] did kept clients waiting for so long.
    #[inline]
    pub fn background_took(&self, ns: u64) {
        if let Some(chore) = self.wakeup.chore {
            self.shared.steps(self.here.owner.worker.0.into()).record(chore, ns);
        }
    }

    /// Before each event that came later than this moment was read: whether what is here may be served.
    #[inline]
    pub fn look_at_lease(&mut self, now: Instant) {
        self.here.lapsed = self.shared.lease.is_over(now) && !is_planted(Fault::ServesWithoutLease);
        self.here.lease_now = now;
    }
}
