//! A worker and what is around it: what the event loop is in a server.

use std::sync::Arc;

use mbal_model::WorkerId;
use mbal_worker::{Action, Carried, ConnId, Event, Now, OUTPUT_BYTES_MAX, Server, Worker};

use super::connection::End;
use super::coverage::Sight;
use super::history::{Micros, SECOND};
use super::world::{Happening, World};

/// One receive takes at most this much.
const RECEIVE_BYTES: usize = 64 << 10;
/// Wall clock at the start of a run.
const UNIX: u64 = 1_700_000_000;
const FIRST_SECOND: u64 = 2;

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
}

/// What a worker does in a turn.
enum Job {
    Serve(ConnId),
    Drained(ConnId),
    Letter(Letter),
    Tick,
    Background,
    Timing,
    Timed,
}

pub struct Seat {
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
    /// How long it has been at work in this turn.
    busy: Micros,
    next_tick: Micros,
    /// When it goes on, if that is in the queue.
    awake: Option<Micros>,
}

impl Seat {
    pub fn new(index: usize, server: &Arc<Server>) -> Seat {
        Seat {
            worker: Worker::new(WorkerId(index as u16), Arc::clone(server)),
            conns: Vec::new(),
            free: Vec::new(),
            ready: Vec::new(),
            drained: Vec::new(),
            letters: Vec::new(),
            newest: 0,
            turn: Vec::new(),
            clock: 0,
            busy: 0,
            next_tick: SECOND,
            awake: None,
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
        if self.seats[seat].turn.is_empty() {
            self.begin_turn(seat);
        }
        let Some(job) = self.seats[seat].turn.pop() else {
            let next = self.seats[seat].next_tick;
            return self.step_at(seat, next);
        };
        let requests = self.do_job(seat, job);
        let slow = if self.dice.percent(self.profile.slow_percent) {
            self.coverage.meet(Sight::SlowWorker);
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
            self.handle(seat, Event::Rests { busy_ns });
        }
        self.step_at(seat, self.now + cost);
    }

    fn begin_turn(&mut self, seat: usize) {
        let this = &mut self.seats[seat];
        let mut jobs: Vec<Job> = this.ready.drain(..).map(Job::Serve).collect();
        self.dice.shuffle(&mut jobs);
        jobs.extend(this.drained.drain(..).map(Job::Drained));
        jobs.extend(this.letters.drain(..).map(Job::Letter));
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
                self.handle(seat, Event::Tick);
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
                self.server.store.background(WorkerId(seat as u16), second, 1);
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
                let store = &self.server.store;
                let owner = store.owner(cachelet);
                self.coverage.meet(Sight::EventLend);
                self.handle(seat, Event::Lend { order, cachelet, to, seen });
                let changed = self.server.store.owner(cachelet) != owner;
                if changed && owner != Some(WorkerId(seat as u16)) {
                    self.fail(1, format!("worker {seat} gave away what was {owner:?}'s"));
                }
                self.look_at_owners();
            }
            Letter::Tell(event) => {
                self.coverage.meet(match event {
                    Event::Lighten { .. } => Sight::EventLighten,
                    _ => Sight::EventHandOver,
                });
                self.handle(seat, event);
            }
        }
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
        conn
    }

    fn notify_if_arrived(&mut self, connection: usize) {
        if !self.connections[connection].arrived.is_empty() || self.connections[connection].finished
        {
            self.notify(connection);
        }
    }

    fn clock(&self, seat: usize) -> Now {
        let elapsed = self.seats[seat].clock / SECOND;
        Now { second: (FIRST_SECOND + elapsed) as u32, unix: UNIX + elapsed, micros: 0 }
    }

    fn serve(&mut self, seat: usize, conn: ConnId) -> u64 {
        let Some(connection) = self.seats[seat].conns[conn.0 as usize] else { return 0 };
        if !self.connections[connection].output.is_empty() {
            self.flush(connection);
            return 0;
        }
        if self.connections[connection].stalled || self.connections[connection].closing {
            return 0;
        }
        if self.connections[connection].arrived.is_empty() {
            if self.connections[connection].finished {
                self.close(connection);
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

    /// Hands an event to the worker, and carries out what it asks for.
    fn handle(&mut self, seat: usize, event: Event<'_>) {
        let now = self.clock(seat);
        // Nobody's, while an event of an event is handled.
        let mut actions = std::mem::take(&mut self.actions);
        self.seats[seat].worker.handle(now, event, &mut actions);
        for action in actions.list.drain(..) {
            self.carry_out(seat, action, &actions.bytes);
        }
        actions.clear();
        self.actions = actions;
        if self.profile.tight {
            self.evictions = self.server.store.stats().evictions;
        }
    }

    fn carry_out(&mut self, seat: usize, action: Action, bytes: &[u8]) {
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
                self.count_bound(bytes.len());
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
            // Nobody looks.
            Action::Say { .. } => {}
            Action::Report(report) => {
                self.coverage.meet(Sight::ActionReport);
                self.reported(seat, report);
            }
            Action::Close { conn } => {
                self.coverage.meet(Sight::ActionClose);
                let Some(connection) = connection_of(self, conn) else { return };
                if !self.is_stranger(self.connections[connection].client) {
                    self.fail(
                        5,
                        format!(
                            "the server closed connection {connection}, which did nothing wrong"
                        ),
                    );
                }
                self.coverage.meet(Sight::StrangerClosed);
                self.connections[connection].closing = true;
                if self.connections[connection].output.is_empty() {
                    self.close(connection);
                }
            }
            other => self.fail(5, format!("nobody asked for this: {other:?}")),
        }
    }

    /// Which bound a connection has come to, that is not read until its output has left.
    fn count_bound(&mut self, replied_bytes: usize) {
        let yields = self.server.sums().conn_yields;
        let sight = if yields > std::mem::replace(&mut self.yields, yields) {
            Sight::TurnOfRequests
        } else if replied_bytes >= OUTPUT_BYTES_MAX {
            Sight::OutputFull
        } else {
            Sight::RoomInTurns
        };
        self.coverage.meet(sight);
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
        self.connections[connection].travels = true;
        self.seats[seat].conns[conn.0 as usize] = None;
        self.seats[seat].free.push(conn);
        self.post(usize::from(to.0), Letter::Take { connection, session });
    }

    fn close(&mut self, connection: usize) {
        let End::At { seat, conn } = self.connections[connection].end else { return };
        self.connections[connection].end = End::Closed;
        self.seats[seat].conns[conn.0 as usize] = None;
        self.coverage.meet(Sight::EventClosed);
        self.handle(seat, Event::Closed { conn });
        self.seats[seat].free.push(conn);
        // The client learns of it.
        self.connections[connection].open &= !self.is_stranger(self.connections[connection].client);
    }
}
