//! A worker and what is around it: what the event loop is in a server.

use std::sync::Arc;

use mbal_model::{Cluster, ClusterMap, Owner, Prefix, ServerId, WorkerId};
use mbal_worker::{Background, ConnId, Event, NO_ROUTE, Now, Shared, Worker};

use super::coverage::Sight;
use super::history::{Micros, SECOND};
use super::hosts::Host;
use super::letters::Letter;
use super::world::{Happening, World};

/// One receive takes at most this much.
const RECEIVE_BYTES: usize = 64 << 10;
/// A worker that has more to do for moves goes on so much later, if nothing else happens.
const HASTENED_EVERY: Micros = 20;
const BACKGROUND_EVERY: Micros = 1_000;

/// What a worker does in a turn.
pub enum Job {
    Serve(ConnId),
    Drained(ConnId),
    Letter(Letter),
    Woken,
    Tick,
    Background,
    Timing,
    Timed,
}

pub struct Seat {
    /// Its server, and which of that one's workers it is.
    pub host: usize,
    pub id: WorkerId,
    pub worker: Worker,
    /// By connection.
    pub conns: Vec<Option<usize>>,
    pub free: Vec<ConnId>,
    /// Something arrived, or may leave.
    pub ready: Vec<ConnId>,
    pub drained: Vec<ConnId>,
    pub letters: Vec<Letter>,
    /// When the newest of the letters that have come was sent.
    pub newest: Micros,
    /// What is left of this turn, when it began, and the clock that it goes by.
    pub turn: Vec<Job>,
    began: Micros,
    pub clock: Micros,
    is_in_turn: bool,
    /// It has lost its core in the middle of a batch: what it may look at is not reused.
    in_batch: bool,
    /// How long it has been at work in this turn; and in the one before, if this one began when that ended.
    busy: (Micros, Micros),
    next_tick: Micros,
    /// When it goes on, if that is in the queue.
    awake: Option<Micros>,
    /// Gets that it has counted as those whose owner could not be reached, and when it last did.
    unreachable: u64,
    pub unreachable_at: Option<Micros>,
    /// Of the newest map that it has heard of.
    pub map_version: u64,
    /// When it goes on with what can wait, if there is more of it.
    background_at: Option<Micros>,
}

impl Seat {
    pub fn new(host: usize, id: WorkerId, server: &Arc<Shared>) -> Seat {
        Seat {
            host,
            id,
            worker: Worker::new(id, Arc::clone(server)),
            conns: Vec::new(),
            free: Vec::new(),
            ready: Vec::new(),
            drained: Vec::new(),
            letters: Vec::new(),
            newest: 0,
            turn: Vec::new(),
            began: 0,
            clock: 0,
            is_in_turn: false,
            in_batch: false,
            busy: (0, 0),
            next_tick: SECOND,
            awake: None,
            unreachable: 0,
            unreachable_at: None,
            map_version: 0,
            background_at: None,
        }
    }

    /// Its thread begins.
    pub fn begins(&mut self, now: Micros) {
        self.next_tick = now + SECOND;
        (self.began, self.clock) = (now, now);
    }
}

impl World {
    /// Sees to it that a worker that sleeps wakes now.
    pub fn wake(&mut self, seat: usize) {
        if self.seats[seat].turn.is_empty() {
            self.step_at(seat, self.now);
        }
    }

    /// Its process was stopped, and goes on.
    pub fn wake_stopped(&mut self, seat: usize) {
        self.seats[seat].awake = None;
        self.step_at(seat, self.now);
    }

    /// What a server serves by until it has heard of a map: nothing, and it knows nobody who does.
    pub fn begin_without_map(&mut self, seat: usize) {
        let nobody = Owner { server: ServerId::NOBODY, worker: WorkerId(0) };
        let map = ClusterMap::new(0, vec![(Prefix::ALL, nobody)]).expect("one prefix covers all");
        let cluster = Arc::new(Cluster::without_addresses(map));
        self.handle(seat, Event::Mapped { here: ServerId(0), cluster });
    }

    fn step_at(&mut self, seat: usize, at: Micros) {
        if self.seats[seat].awake.is_none_or(|awake| at < awake) {
            self.seats[seat].awake = Some(at);
            self.at(at, Happening::Step { seat });
        }
    }

    /// One job of a turn; the next one follows when it is done.
    pub fn step(&mut self, seat: usize) {
        if self.seats[seat].awake != Some(self.now) {
            return;
        }
        self.seats[seat].awake = None;
        if !self.hosts[self.seats[seat].host].runs() {
            return;
        }
        if std::mem::take(&mut self.seats[seat].in_batch) {
            let Seat { host, id, .. } = self.seats[seat];
            self.hosts[host].store().leave(id);
        }
        if self.seats[seat].turn.is_empty() {
            self.begin_turn(seat);
        }
        let Some(job) = self.seats[seat].turn.pop() else {
            let tick = Some(self.seats[seat].next_tick);
            let background = self.seats[seat].background_at;
            let moments = [tick, self.wakes_for_links(seat), self.next_wake(seat), background];
            let next = moments.into_iter().flatten().min().expect("there is a next tick");
            return self.step_at(seat, next);
        };
        let requests = self.do_job(seat, job);
        let slow = if self.dice.percent(self.profile.slow_percent) {
            self.coverage.meet(Sight::SlowWorker);
            let Seat { host, id, .. } = self.seats[seat];
            self.hosts[host].store().enter(id);
            self.seats[seat].in_batch = true;
            let longest = self.profile.slow;
            self.dice.skewed(1..=longest)
        } else {
            0
        };
        let cost = self.dice.between(1..=4) + requests / 100 + slow;
        self.seats[seat].busy.0 += cost;
        if self.seats[seat].turn.is_empty() {
            let (busy, before) = self.seats[seat].busy;
            let ns = |time: Micros| time * 1_000 * self.profile.heavy;
            let (busy_ns, before_ns) = (ns(busy), ns(before));
            self.coverage.meet(Sight::EventRests);
            if self.is_clustered() {
                self.do_what_is_due(seat);
            }
            // Nothing comes of it.
            let now = self.clock(seat);
            self.seats[seat].worker.handle(
                now,
                Event::Rests { busy_ns, before_ns },
                &mut self.actions,
            );
            self.seats[seat].is_in_turn = false;
        }
        self.step_at(seat, self.now + cost);
    }

    /// When a worker wants to be woken.
    pub fn next_wake(&self, seat: usize) -> Option<Micros> {
        let Seat { host, worker, .. } = &self.seats[seat];
        worker.next_wake().map(|moment| self.hosts[*host].clock.when(moment))
    }

    /// A worker that nothing has happened to looks at its links; when it has to do so again.
    fn wakes_for_links(&mut self, seat: usize) -> Option<Micros> {
        if !self.is_clustered() {
            return None;
        }
        if self.next_due(seat).is_some_and(|due| due <= self.now) {
            self.seats[seat].clock = self.now;
            self.do_what_is_due(seat);
        }
        self.next_due(seat)
    }

    fn begin_turn(&mut self, seat: usize) {
        let wakes = self.next_wake(seat).is_some_and(|wake| wake <= self.now);
        let works = self.seats[seat].background_at.is_some_and(|at| at <= self.now);
        let this = &mut self.seats[seat];
        // Empty, and so not allocated anew.
        let mut jobs = std::mem::take(&mut this.turn);
        jobs.extend(this.ready.drain(..).map(Job::Serve));
        self.dice.shuffle(&mut jobs);
        jobs.extend(this.drained.drain(..).map(Job::Drained));
        jobs.extend(this.letters.drain(..).map(Job::Letter));
        jobs.extend(wakes.then_some(Job::Woken));
        if this.next_tick <= self.now {
            this.next_tick = self.now + SECOND;
            jobs.push(Job::Tick);
        }
        if !jobs.is_empty() || works {
            jobs.push(Job::Background);
        }
        if !jobs.is_empty() && self.dice.percent(10) {
            jobs.insert(0, Job::Timing);
            jobs.push(Job::Timed);
        }
        jobs.reverse();
        this.is_in_turn = !jobs.is_empty();
        this.turn = jobs;
        let before = if this.began + this.busy.0 == self.now { this.busy.0 } else { 0 };
        this.busy = (0, before);
        (this.began, this.clock) = (self.now, self.now);
    }

    /// What the clocks of a server's workers show at least: one that is slow goes by what its clock showed when it was read last.
    pub fn earliest_clock(&self, host: usize) -> Now {
        let Host { seats, clock, .. } = &self.hosts[host];
        let in_turn = self.seats[seats.clone()].iter().filter(|seat| seat.is_in_turn);
        clock.at(in_turn.map(|seat| seat.clock).min().unwrap_or(self.now))
    }

    /// About how many bytes it carried.
    fn do_job(&mut self, seat: usize, job: Job) -> u64 {
        let lag = self.now - self.seats[seat].began;
        self.lag = self.lag.max(lag);
        match job {
            Job::Serve(conn) => return self.serve(seat, conn),
            Job::Drained(conn) => {
                let Some(connection) = self.seats[seat].conns[conn.0 as usize] else { return 0 };
                if std::mem::take(&mut self.connections[connection].stalled) {
                    self.coverage.meet(Sight::EventDrained);
                    self.handle(seat, Event::Drained { conn });
                    self.notify_if_arrived(connection);
                }
            }
            Job::Letter(letter) => self.open_letter(seat, letter),
            Job::Tick => {
                self.coverage.meet(Sight::EventTick);
                if self.is_clustered() {
                    self.handle_and_look(seat, Event::Tick);
                    self.ask_idle_links(seat);
                } else {
                    self.handle(seat, Event::Tick);
                    // A split may be done.
                    self.look_at_owners(self.seats[seat].host);
                }
            }
            Job::Woken => {
                self.coverage.meet(Sight::EventWoken);
                self.seats[seat].clock = self.now;
                if self.is_clustered() {
                    self.handle_and_look(seat, Event::Woken);
                } else {
                    self.handle(seat, Event::Woken);
                }
            }
            Job::Timing => {
                self.coverage.meet(Sight::EventTiming);
                self.handle(seat, Event::Timing);
            }
            Job::Timed => {
                self.coverage.meet(Sight::EventTimed);
                let elapsed_ns = lag * 1_000;
                self.handle(seat, Event::Timed { elapsed_ns, stands_for: 10 });
            }
            Job::Background => self.work_in_background(seat),
        }
        0
    }

    pub fn notify_if_arrived(&mut self, connection: usize) {
        if !self.connections[connection].arrived.is_empty() || self.connections[connection].finished
        {
            self.notify(connection);
        }
    }

    fn clock(&self, seat: usize) -> Now {
        let Seat { host, clock, .. } = self.seats[seat];
        self.hosts[host].clock.at(clock)
    }

    /// Some of what can wait, and of the moves that the worker carries.
    fn work_in_background(&mut self, seat: usize) {
        let host = self.seats[seat].host;
        // It goes by the clock as it is then.
        let now = self.hosts[host].clock.at(self.now);
        let version = self.hosts[host].store().version();
        let had_moves = self.hosts[host].server.moves_under_way() > 0;
        let mut actions = std::mem::take(&mut self.actions);
        let is_idle = self.dice.percent(80);
        self.look_at_leases(seat, None);
        let more = self.seats[seat].worker.background(now, is_idle, &mut actions);
        for action in actions.list.drain(..) {
            self.carry_out(seat, action, &actions.bytes, &actions.requests);
        }
        actions.clear();
        self.actions = actions;
        self.count_evictions(host);
        self.seats[seat].background_at = match more {
            Background::Hastens => Some(self.now + HASTENED_EVERY),
            Background::GoesOn => Some(self.now + BACKGROUND_EVERY),
            Background::Rests => None,
        };
        if self.hosts[host].store().version() != version || had_moves {
            // A split may be done, or a cachelet have gone.
            self.look_at_owners(host);
            self.look_at_places(false);
        }
    }

    fn serve(&mut self, seat: usize, conn: ConnId) -> u64 {
        let Some(connection) = self.seats[seat].conns[conn.0 as usize] else { return 0 };
        let this = &self.connections[connection];
        if this.reset && this.leaving.is_none() {
            self.close(connection);
            return 0;
        }
        if !this.output.is_empty() {
            self.flush(connection);
            return 0;
        }
        if this.stalled || this.paused || this.closing || this.half_closed {
            return 0;
        }
        if this.arrived.is_empty() {
            if this.finished {
                self.half_close(seat, conn, connection);
            }
            return 0;
        }
        let take = self.connections[connection].arrived.len().min(RECEIVE_BYTES);
        let mut received = std::mem::take(&mut self.received);
        self.connections[connection].arrived.take(take, &mut received);
        self.coverage.meet(Sight::EventReceived);
        let host = self.seats[seat].host;
        let before = self.copies_read(host);
        self.handle(seat, Event::Received { conn, bytes: &received });
        if self.copies_read(host) > before && self.is_ordinary(connection) {
            self.coverage.meet(Sight::CopyReadForOther);
        }
        received.clear();
        self.received = received;
        self.notify_if_arrived(connection);
        take as u64
    }

    /// Who has no other servers has sent all replies already.
    fn half_close(&mut self, seat: usize, conn: ConnId, connection: usize) {
        if !self.is_clustered() {
            return self.close(connection);
        }
        self.coverage.meet(Sight::EventHalfClosed);
        self.connections[connection].half_closed = true;
        self.handle(seat, Event::HalfClosed { conn });
        if !self.connections[connection].closing {
            self.coverage.meet(Sight::HalfClosedWaits);
        }
    }

    /// Hands an event to the worker, and carries out what it asks for.
    pub fn handle(&mut self, seat: usize, event: Event<'_>) {
        let now = self.clock(seat);
        let tells_no_route = match event {
            Event::Answered { replies, .. } => replies.iter().any(|reply| is_no_route(reply.bytes)),
            _ => false,
        };
        let asked = match event {
            Event::Forwarded { requests, .. } => requests.len(),
            _ => 0,
        };
        // Nobody's, while an event of an event is handled.
        let mut actions = std::mem::take(&mut self.actions);
        self.look_at_leases(seat, Some(&event));
        self.seats[seat].worker.handle(now, event, &mut actions);
        if actions.list.len() < asked {
            self.coverage.meet(Sight::PeerHeld);
        }
        let host = &self.hosts[self.seats[seat].host];
        if host.claims.is_behind(host.store()) {
            // Before a client is told of it.
            self.look_at_owners(self.seats[seat].host);
        }
        if self.is_clustered() {
            self.look_at_unreachable(seat, tells_no_route);
        }
        for action in actions.list.drain(..) {
            self.carry_out(seat, action, &actions.bytes, &actions.requests);
        }
        actions.clear();
        self.actions = actions;
        self.count_evictions(self.seats[seat].host);
    }

    /// As `server/serving.rs` does before each event, and before what is done in the background.
    fn look_at_leases(&mut self, seat: usize, event: Option<&Event<'_>>) {
        let Seat { host, worker, .. } = &mut self.seats[seat];
        let host = &self.hosts[*host];
        let counts = match event {
            Some(event) => host.server.counts_leases(event),
            None => host.server.counts_leases_now(),
        };
        if counts {
            worker.look_at_lease(host.clock.lease_now(self.now));
        }
    }

    pub fn count_evictions(&mut self, host: usize) {
        if self.profile.tight {
            let host = &mut self.hosts[host];
            let evictions = host.server.store.stats().evictions;
            self.evictions += evictions - std::mem::replace(&mut host.evictions, evictions);
        }
    }

    /// Gets are counted as unreachable only where a link is missing, or a server on the way has none.
    fn look_at_unreachable(&mut self, seat: usize, told_no_route: bool) {
        let Seat { host, id, unreachable, .. } = self.seats[seat];
        let count = self.hosts[host].server.sums_of(id.0.into()).get_unreachable;
        if count == unreachable {
            return;
        }
        self.seats[seat].unreachable = count;
        self.seats[seat].unreachable_at = Some(self.now);
        let mut others = (0..self.hosts.len()).filter(|other| *other != host);
        // One that changes something is given up at its deadline, when the link may be there again. By this server's clock, and after
        // the turn that the deadline fell into.
        let slow = if self.profile.slow_percent > 0 { self.profile.slow } else { 0 };
        let lost = self.now.saturating_sub(self.profile.link_timeout * 17 / 16 + slow);
        let is_missing = others.any(|other| self.was_missing(seat, other, lost));
        // One without a lease asks nobody.
        let told_no_route = told_no_route || is_missing || !self.owns(host);
        // The answer may have been on its way for so long.
        let asked = self.now.saturating_sub(self.profile.link_timeout);
        if !told_no_route && !self.any_in_flux(asked) {
            self.fail(5, format!("worker {seat} reached nobody, though all links were there"));
        }
    }

    /// True if a worker has counted a get as unreachable since then.
    pub fn counted_unreachable(&self, seat: usize, since: Micros) -> bool {
        self.seats[seat].unreachable_at.is_some_and(|at| at >= since)
    }
}

pub fn is_no_route(reply: &[u8]) -> bool {
    reply.strip_suffix(b"\r\n") == Some(NO_ROUTE.as_bytes())
}
