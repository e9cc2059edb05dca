//! A worker and what is around it: what the event loop is in a server.

use std::sync::Arc;

use mbal_model::{ClusterMap, WorkerId};
use mbal_wire::PeerRequest;
use mbal_worker::{
    Action, Carried, ConnId, Event, NO_ROUTE, Now, OUTPUT_BYTES_MAX, Shared, Ticket, Worker,
};

use super::connection::End;
use super::coverage::Sight;
use super::history::{Micros, SECOND};
use super::hosts::host_of;
use super::world::{Happening, World};

/// One receive takes at most this much.
const RECEIVE_BYTES: usize = 64 << 10;
/// Wall clock at the start of a run.
const UNIX: u64 = 1_700_000_000;

/// What comes by mailbox.
pub enum Letter {
    Adopt {
        connection: usize,
        own_port: bool,
    },
    /// Another worker hands a connection over.
    Take {
        connection: usize,
        session: Carried,
    },
    /// An order.
    Tell(Event<'static>),
    Mapped {
        map: Arc<ClusterMap>,
    },
    LinkUp {
        link: usize,
    },
    LinkBroken {
        link: usize,
        life: usize,
    },
    /// A peer forwards a request.
    Asked {
        link: usize,
        life: usize,
        ticket: Ticket,
        request: Vec<u8>,
    },
    /// A peer has answered.
    Answered {
        link: usize,
        life: usize,
        ticket: Ticket,
        reply: Vec<u8>,
    },
    /// The link has gone over which a peer asked.
    AskerGone {
        link: usize,
        life: usize,
    },
    Ping {
        link: usize,
        life: usize,
    },
    Pong {
        link: usize,
        life: usize,
    },
}

/// What a worker does in a turn.
enum Job {
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
    conns: Vec<Option<usize>>,
    free: Vec<ConnId>,
    /// Something arrived, or may leave.
    pub ready: Vec<ConnId>,
    drained: Vec<ConnId>,
    letters: Vec<Letter>,
    /// When the newest of the letters that have come was sent.
    newest: Micros,
    /// What is left of this turn, and the clock that it goes by.
    turn: Vec<Job>,
    clock: Micros,
    /// It has lost its core in the middle of a batch: what it may look at is not reused.
    in_batch: bool,
    /// How long it has been at work in this turn.
    busy: Micros,
    next_tick: Micros,
    /// When it goes on, if that is in the queue.
    awake: Option<Micros>,
    /// Gets that it has counted as those whose owner could not be reached, and when it last did.
    unreachable: u64,
    unreachable_at: Option<Micros>,
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
            clock: 0,
            in_batch: false,
            busy: 0,
            next_tick: SECOND,
            awake: None,
            unreachable: 0,
            unreachable_at: None,
        }
    }
}

impl World {
    /// Sees to it that a worker that sleeps wakes now.
    pub fn wake(&mut self, seat: usize) {
        if self.seats[seat].turn.is_empty() {
            self.step_at(seat, self.now);
        }
    }

    fn step_at(&mut self, seat: usize, at: Micros) {
        if self.seats[seat].awake.is_none_or(|awake| at < awake) {
            self.seats[seat].awake = Some(at);
            self.at(at, Happening::Step { seat });
        }
    }

    pub fn post_to(&mut self, host: usize, worker: WorkerId, letter: Letter) {
        self.post(self.hosts[host].seats.start + usize::from(worker.0), letter);
    }

    /// Letters take their time, and overtake each other.
    pub fn post(&mut self, seat: usize, letter: Letter) {
        let longest = self.profile.delay;
        let delay = self.dice.skewed(1..=longest);
        self.after(delay, Happening::Letter { seat, letter, sent: self.now });
    }

    pub fn receive(&mut self, seat: usize, letter: Letter, sent: Micros) {
        if sent < self.seats[seat].newest {
            self.coverage.meet(Sight::Overtaken);
        }
        self.seats[seat].newest = sent.max(self.seats[seat].newest);
        self.seats[seat].letters.push(letter);
        self.wake(seat);
    }

    /// One job of a turn; the next one follows when it is done.
    pub fn step(&mut self, seat: usize) {
        if self.seats[seat].awake != Some(self.now) {
            return;
        }
        self.seats[seat].awake = None;
        if std::mem::take(&mut self.seats[seat].in_batch) {
            let Seat { host, id, .. } = self.seats[seat];
            self.hosts[host].store().leave(id);
        }
        if self.seats[seat].turn.is_empty() {
            self.begin_turn(seat);
        }
        let Some(job) = self.seats[seat].turn.pop() else {
            let tick = Some(self.seats[seat].next_tick);
            let moments = [tick, self.wakes_for_links(seat), self.next_wake(seat)];
            let next = moments.into_iter().flatten().min().expect("there is a next tick");
            return self.step_at(seat, next);
        };
        let requests = self.do_job(seat, job);
        let slow = if self.dice.percent(self.profile.slow_percent) {
            self.coverage.meet(Sight::SlowWorker);
            // Servers follow their first map before they have clients.
            if self.all_are_here() {
                let Seat { host, id, .. } = self.seats[seat];
                self.hosts[host].store().enter(id);
                self.seats[seat].in_batch = true;
            }
            let longest = self.profile.slow;
            self.dice.skewed(1..=longest)
        } else {
            0
        };
        let cost = self.dice.between(1..=4) + requests / 100 + slow;
        self.seats[seat].busy += cost;
        if self.seats[seat].turn.is_empty() {
            let busy_ns = std::mem::take(&mut self.seats[seat].busy) * 1_000 * self.profile.heavy;
            self.coverage.meet(Sight::EventRests);
            if self.is_clustered() {
                self.do_what_is_due(seat);
            }
            self.handle(seat, Event::Rests { busy_ns });
        }
        self.step_at(seat, self.now + cost);
    }

    /// When a worker wants to be woken.
    fn next_wake(&self, seat: usize) -> Option<Micros> {
        let Seat { host, worker, .. } = &self.seats[seat];
        let begin = u64::from(self.hosts[*host].first_second) * SECOND;
        worker.next_wake().map(|moment| moment.0 - begin)
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
        let this = &mut self.seats[seat];
        let mut jobs: Vec<Job> = this.ready.drain(..).map(Job::Serve).collect();
        self.dice.shuffle(&mut jobs);
        jobs.extend(this.drained.drain(..).map(Job::Drained));
        jobs.extend(this.letters.drain(..).map(Job::Letter));
        jobs.extend(wakes.then_some(Job::Woken));
        if this.next_tick <= self.now {
            this.next_tick = self.now + SECOND;
            jobs.push(Job::Tick);
        }
        if !jobs.is_empty() {
            jobs.push(Job::Background);
        }
        if !jobs.is_empty() && self.dice.percent(10) {
            jobs.insert(0, Job::Timing);
            jobs.push(Job::Timed);
        }
        jobs.reverse();
        this.turn = jobs;
        this.clock = self.now;
    }

    /// About how many bytes it carried.
    fn do_job(&mut self, seat: usize, job: Job) -> u64 {
        let lag = self.now - self.seats[seat].clock;
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
            Job::Background => {
                let second = self.clock(seat).second;
                let Seat { host, id, .. } = self.seats[seat];
                let store = &self.hosts[host].server.store;
                let version = store.version();
                store.background(id, second, 1);
                if store.version() != version {
                    // A split may be done.
                    self.look_at_owners(host);
                }
            }
        }
        0
    }

    fn open_letter(&mut self, seat: usize, letter: Letter) {
        match letter {
            Letter::Adopt { connection, own_port } => {
                let conn = self.admit(seat, connection);
                self.coverage.meet(Sight::EventOpened);
                self.handle(seat, Event::Opened { conn, own_port });
                self.notify(connection);
            }
            Letter::Take { connection, session } => {
                let conn = self.admit(seat, connection);
                self.connections[connection].travels = false;
                self.coverage.meet(Sight::EventAdopted);
                self.handle(seat, Event::Adopted { conn, session });
                self.notify(connection);
            }
            Letter::Tell(Event::Lend { order, cachelet, to, seen }) => {
                let Seat { host, id, .. } = self.seats[seat];
                let owner = self.hosts[host].store().owner(cachelet);
                self.coverage.meet(Sight::EventLend);
                self.handle(seat, Event::Lend { order, cachelet, to, seen });
                let changed = self.hosts[host].store().owner(cachelet) != owner;
                if changed && owner != Some(id) {
                    self.fail(1, format!("worker {seat} gave away what was {owner:?}'s"));
                }
                self.look_at_owners(host);
            }
            Letter::Mapped { map } => self.mapped(seat, map),
            Letter::LinkUp { link } => self.link_up(link),
            Letter::LinkBroken { link, life } => self.link_broken(link, life),
            Letter::Asked { link, life, ticket, request } => {
                let mut together = vec![(ticket, request)];
                while let Some(next) = self.next_of(seat, |letter| match letter {
                    Letter::Asked { link: at, life: of, ticket, request }
                        if (*at, *of) == (link, life) =>
                    {
                        Some((*ticket, std::mem::take(request)))
                    }
                    _ => None,
                }) {
                    together.push(next);
                }
                self.asked(seat, link, life, &together);
            }
            Letter::Answered { link, life, ticket, reply } => {
                let mut together = vec![(ticket, reply)];
                while let Some(next) = self.next_of(seat, |letter| match letter {
                    Letter::Answered { link: at, life: of, ticket, reply }
                        if (*at, *of) == (link, life) =>
                    {
                        Some((*ticket, std::mem::take(reply)))
                    }
                    _ => None,
                }) {
                    together.push(next);
                }
                self.answered_by_peer(seat, (link, life), &together);
            }
            Letter::AskerGone { link, life } => self.asker_gone(seat, link, life),
            Letter::Ping { link, life } => self.pinged(link, life),
            Letter::Pong { link, life } => self.ponged(link, life),
            Letter::Tell(event) => {
                self.coverage.meet(match event {
                    Event::Lighten { .. } => Sight::EventLighten,
                    _ => Sight::EventHandOver,
                });
                self.handle(seat, event);
            }
        }
    }

    /// What is next in a worker's turn, if it is what `take` looks for: it has arrived together with what is being done.
    fn next_of<T>(
        &mut self,
        seat: usize,
        take: impl FnOnce(&mut Letter) -> Option<T>,
    ) -> Option<T> {
        let Some(Job::Letter(letter)) = self.seats[seat].turn.last_mut() else { return None };
        let taken = take(letter)?;
        self.seats[seat].turn.pop();
        self.coverage.meet(Sight::FramesTogether);
        Some(taken)
    }

    /// A name for a connection that a worker gets.
    fn admit(&mut self, seat: usize, connection: usize) -> ConnId {
        let this = &mut self.seats[seat];
        let conn = this.free.pop().unwrap_or_else(|| {
            this.conns.push(None);
            ConnId(this.conns.len() as u32 - 1)
        });
        this.conns[conn.0 as usize] = Some(connection);
        self.connections[connection].end = End::At { seat, conn };
        self.connections[connection].came = self.now;
        conn
    }

    fn notify_if_arrived(&mut self, connection: usize) {
        if !self.connections[connection].arrived.is_empty() || self.connections[connection].finished
        {
            self.notify(connection);
        }
    }

    fn clock(&self, seat: usize) -> Now {
        let clock = self.seats[seat].clock;
        let elapsed = clock / SECOND;
        let second = self.hosts[self.seats[seat].host].first_second + elapsed as u32;
        Now { second, unix: UNIX + elapsed, micros: (clock % SECOND) as u32 }
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
        self.handle(seat, Event::Received { conn, bytes: &received });
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
            Event::Asked { requests, .. } => requests.len(),
            _ => 0,
        };
        // Nobody's, while an event of an event is handled.
        let mut actions = std::mem::take(&mut self.actions);
        self.seats[seat].worker.handle(now, event, &mut actions);
        if actions.list.len() < asked {
            self.coverage.meet(Sight::PeerHeld);
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
        let is_missing = others.any(|other| self.was_missing(seat, other, self.now));
        if !told_no_route && !is_missing && !self.maps.is_changing(self.now) {
            self.fail(5, format!("worker {seat} reached nobody, though all links were there"));
        }
    }

    /// True if a worker has counted a get as unreachable since then.
    pub fn counted_unreachable(&self, seat: usize, since: Micros) -> bool {
        self.seats[seat].unreachable_at.is_some_and(|at| at >= since)
    }

    fn carry_out(&mut self, seat: usize, action: Action, bytes: &[u8], requests: &[u8]) {
        let connection_of = |world: &World, conn: ConnId| world.seats[seat].conns[conn.0 as usize];
        match action {
            Action::Send { conn, bytes: range } => {
                self.coverage.meet(Sight::ActionSend);
                let Some(connection) = connection_of(self, conn) else { return };
                self.connections[connection].output.push(bytes[range].to_vec());
                self.flush(connection);
            }
            Action::Stall { conn } => {
                self.coverage.meet(Sight::ActionStall);
                self.count_bound(self.seats[seat].host, bytes.len());
                let Some(connection) = connection_of(self, conn) else { return };
                self.connections[connection].stalled = true;
                if self.connections[connection].output.is_empty() {
                    self.seats[seat].drained.push(conn);
                }
            }
            Action::HandOver { conn, to, session } => {
                self.coverage.meet(Sight::ActionHandOver);
                let Some(connection) = connection_of(self, conn) else { return };
                self.connections[connection].leaving = Some((to, session));
                if self.connections[connection].output.is_empty() {
                    self.go(connection);
                } else {
                    self.coverage.meet(Sight::LeftWithOutput);
                }
            }
            Action::Pause { conn } => {
                self.coverage.meet(Sight::ActionPause);
                if let Some(wake) = self.next_wake(seat) {
                    let now = self.seats[seat].clock;
                    self.coverage.meet(if wake <= now {
                        Sight::RoomInTurns
                    } else {
                        Sight::RoomInUse
                    });
                }
                let Some(connection) = connection_of(self, conn) else { return };
                if std::mem::replace(&mut self.connections[connection].paused, true) {
                    self.fail(5, format!("connection {connection} was to pause twice"));
                }
            }
            Action::Resume { conn } => {
                self.coverage.meet(Sight::ActionResume);
                let Some(connection) = connection_of(self, conn) else { return };
                if !std::mem::replace(&mut self.connections[connection].paused, false) {
                    self.fail(5, format!("connection {connection} was to go on, and did not wait"));
                }
                self.notify_if_arrived(connection);
            }
            Action::Forward { server, ticket, request } => {
                self.coverage.meet(Sight::ActionForward);
                let request = requests[request].to_vec();
                if PeerRequest::decode(&request).is_some_and(|request| request.hops > 1) {
                    self.coverage.meet(Sight::PassedOn);
                }
                self.forward(seat, host_of(server), ticket, request);
            }
            Action::Answer { server, ticket, reply } => {
                self.coverage.meet(Sight::ActionAnswer);
                self.answer(seat, host_of(server), ticket, bytes[reply].to_vec());
            }
            // Nobody looks.
            Action::Say { .. } => {}
            Action::Report(report) => {
                self.coverage.meet(Sight::ActionReport);
                self.reported(seat, report);
            }
            Action::Close { conn } => {
                self.coverage.meet(Sight::ActionClose);
                let Some(connection) = connection_of(self, conn) else { return };
                let this = &self.connections[connection];
                if self.is_stranger(this.client) && !this.half_closed {
                    self.coverage.meet(Sight::StrangerClosed);
                } else if !this.half_closed {
                    let what = "the server closed a connection that did nothing wrong";
                    self.fail(5, format!("{what}: {connection}"));
                }
                self.connections[connection].closing = true;
                if self.connections[connection].output.is_empty() {
                    self.close(connection);
                }
            }
            other => self.fail(5, format!("nobody asked for this: {other:?}")),
        }
    }

    /// Which bound a connection has come to, that is not read until its output has left.
    fn count_bound(&mut self, host: usize, replied_bytes: usize) {
        let host = &mut self.hosts[host];
        let yields = host.server.sums().conn_yields;
        if yields > std::mem::replace(&mut host.yields, yields) {
            self.coverage.meet(Sight::TurnOfRequests);
        } else if replied_bytes >= OUTPUT_BYTES_MAX {
            self.coverage.meet(Sight::OutputFull);
        }
    }

    /// Gives the socket what it takes.
    fn flush(&mut self, connection: usize) {
        let this = &mut self.connections[connection];
        let room = this.window.saturating_sub(this.in_flight).min(this.output.len());
        if room < this.output.len() {
            self.coverage.meet(Sight::SocketFull);
        }
        if room == 0 {
            return;
        }
        let this = &mut self.connections[connection];
        let mut bytes = Vec::with_capacity(room);
        this.output.take(room, &mut bytes);
        let left = this.output.is_empty();
        self.send_down(connection, bytes);
        if !left {
            return;
        }
        let End::At { seat, conn } = self.connections[connection].end else { return };
        if self.connections[connection].leaving.is_some() {
            self.go(connection);
        } else if self.connections[connection].closing {
            self.close(connection);
        } else if self.connections[connection].stalled {
            self.seats[seat].drained.push(conn);
        } else {
            self.notify_if_arrived(connection);
        }
    }

    /// A connection leaves for another worker.
    fn go(&mut self, connection: usize) {
        let End::At { seat, conn } = self.connections[connection].end else { return };
        let (to, session) =
            self.connections[connection].leaving.take().expect("it was asked to leave");
        self.connections[connection].end = End::Underway;
        self.connections[connection].came = self.now;
        self.connections[connection].travels = true;
        self.seats[seat].conns[conn.0 as usize] = None;
        self.seats[seat].free.push(conn);
        self.post_to(self.seats[seat].host, to, Letter::Take { connection, session });
    }

    fn close(&mut self, connection: usize) {
        let End::At { seat, conn } = self.connections[connection].end else { return };
        self.connections[connection].end = End::Closed;
        self.seats[seat].conns[conn.0 as usize] = None;
        self.coverage.meet(Sight::EventClosed);
        self.handle(seat, Event::Closed { conn });
        self.seats[seat].free.push(conn);
        // The client learns of it.
        let this = &mut self.connections[connection];
        if this.client >= self.profile.clients {
            this.open = false;
        } else if this.half_open {
            let at = this.last_down.max(self.now) + 1;
            self.at(at, Happening::Ended { connection });
        }
    }
}

fn is_no_route(reply: &[u8]) -> bool {
    reply.strip_suffix(b"\r\n") == Some(NO_ROUTE.as_bytes())
}
