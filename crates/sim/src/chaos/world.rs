//! The world of one run: a queue of what happens next, and everybody in it.
//!
//! ```text
//!  client ── bytes, delayed, in pieces ──▶ arrived ─▶ seat: a turn of events ─▶ Worker::handle
//!    ▲                                                                              │ actions
//!    └────── replies, delayed, as the window lets them ◀── output ◀─────────────────┘
//! ```
//! A worker's event is executed as a whole, at one moment of virtual time; workers take their turns in any
//! order. (What happens when their threads meet in the middle of an event is for the loom models and the torture test
//! of `cachelet`.)

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use mbal_balance::{News, Proposal};
use mbal_cachelet::Store;
use mbal_worker::{Actions, Server};

use mbal_model::{Outcome, Prefix};

use super::balancing::Balancing;
use super::checks::{Facts, Violation, check};
use super::claims::Claims;
use super::client::{self, Client};
use super::connection::{Connection, End};
use super::coverage::{Coverage, Sight};
use super::dice::Dice;
use super::history::{History, Micros, SECOND};
use super::memory;
use super::operator::Orders;
use super::profile::Profile;
use super::seat::{Letter, Seat};

/// A request that is not answered for so long never will be.
const PATIENCE: Micros = 60 * SECOND;

/// What a run came to.
pub struct Ran {
    pub operations: usize,
    pub coverage: Coverage,
    pub verdict: Result<(), Violation>,
}

/// What is about to happen.
pub enum Happening {
    /// Bytes reach the server.
    Arrival { connection: usize, bytes: Vec<u8> },
    /// The client's end of a connection is closed.
    Finished { connection: usize },
    /// Bytes reach the client.
    Delivery { connection: usize, bytes: Vec<u8> },
    /// A letter reaches a worker's mailbox; when it was sent.
    Letter { seat: usize, letter: Letter, sent: Micros },
    /// A worker goes on.
    Step { seat: usize },
    /// A client asks something.
    Client { client: usize },
    /// The balancer's epoch ends.
    Epoch,
    /// A planner answers the balancer.
    Planned { number: u64, proposal: Option<Proposal> },
    /// A worker's report reaches the balancer.
    Reported { order: u64, outcome: Outcome },
    /// The operator changes something.
    Operator,
}

pub struct World {
    pub now: Micros,
    pub dice: Dice,
    pub profile: Profile,
    pub coverage: Coverage,
    pub history: History,
    pub server: Arc<Server>,
    pub seats: Vec<Seat>,
    pub connections: Vec<Connection>,
    pub clients: Vec<Client>,
    /// Cachelets that are being split.
    pub splitting: Vec<Prefix>,
    pub orders: Orders,
    pub claims: Claims,
    pub balancing: Balancing,
    pub operations_wanted: usize,
    pub evictions: u64,
    /// The longest that a worker's clock was behind.
    pub lag: Micros,
    /// How often a connection had its share of requests in a turn.
    pub yields: u64,
    /// When a client got its last answer.
    pub answered: Micros,
    pub broken: Option<Violation>,
    /// For the next burst, what is received next, and what comes of it: so that not everything is allocated anew.
    pub scratch: Vec<u8>,
    pub received: Vec<u8>,
    pub actions: Actions,
    queue: BinaryHeap<Reverse<(Micros, u32, u32)>>,
    /// What the queue's numbers stand for, and numbers that are free.
    happenings: Vec<Option<Happening>>,
    free: Vec<u32>,
}

impl World {
    pub fn new(seed: u64, operations: usize) -> World {
        let mut dice = Dice::new(seed);
        let profile = Profile::roll(&mut dice);
        let memory = memory::of(profile.memory_bytes);
        let store = Store::with_memory(profile.options(), memory);
        let server = Arc::new(Server::new(profile.settings(), store));
        let seats = (0..profile.workers).map(|index| Seat::new(index, &server)).collect();
        let mut world = World {
            now: 0,
            dice,
            claims: Claims::new(&server.store),
            balancing: Balancing::new(&server, &profile),
            coverage: Coverage::default(),
            history: History::default(),
            server,
            seats,
            connections: Vec::new(),
            clients: Vec::new(),
            splitting: Vec::new(),
            orders: Orders::default(),
            operations_wanted: operations,
            evictions: 0,
            lag: 0,
            yields: 0,
            answered: 0,
            broken: None,
            scratch: Vec::new(),
            received: Vec::new(),
            actions: Actions::default(),
            queue: BinaryHeap::new(),
            happenings: Vec::new(),
            free: Vec::new(),
            profile,
        };
        for seat in 0..world.seats.len() {
            world.wake(seat);
        }
        for client in 0..world.profile.clients + world.profile.strangers {
            let stranger = client >= world.profile.clients;
            let kind = match client {
                _ if stranger => client::Kind::Stranger,
                smart if smart < world.profile.smart => client::Kind::Smart,
                _ => client::Kind::Ordinary,
            };
            world.clients.push(Client::new(&mut world.dice, &world.profile, kind));
            let connections = if kind == client::Kind::Smart { world.seats.len() } else { 1 };
            for slot in 0..connections {
                world.connect(client, slot);
            }
            world.after(0, Happening::Client { client });
        }
        world.after(0, Happening::Operator);
        world.after(0, Happening::Epoch);
        world
    }

    /// Runs to the end: so many operations, and then until all are answered.
    pub fn run(mut self) -> Ran {
        while let Some(Reverse((at, _, number))) = self.queue.pop() {
            self.now = at;
            let happening = self.happenings[number as usize].take().expect("queued once");
            self.free.push(number);
            self.happen(happening);
            let stuck = self.answered + PATIENCE < self.now;
            if self.broken.is_some() || stuck || (self.asked_all() && self.all_answered()) {
                break;
            }
        }
        let verdict = self.judge();
        let World { server, seats, history, coverage, .. } = self;
        drop(seats);
        let server = Arc::into_inner(server).expect("nobody else has it");
        memory::keep(server.store.into_memory());
        Ran { operations: history.ops.len(), coverage, verdict }
    }

    fn judge(&mut self) -> Result<(), Violation> {
        if let Some(broken) = self.broken.take() {
            return Err(broken);
        }
        let waiting = |connection: &&Connection| connection.open && !connection.asked.is_empty();
        if let Some(connection) = self
            .connections
            .iter()
            .find(|connection| waiting(connection) && !self.is_stranger(connection.client))
        {
            let asked = &connection.asked[0];
            let what = format!(
                "no answer at {} to what was asked at {}: {:?}; the connection is {:?}, stalled: {}",
                self.now,
                asked.at,
                self.history.ops[asked.ops.0],
                connection.end,
                connection.stalled
            );
            return Err(Violation::new(5, what));
        }
        if let Some((order, (sent, _))) = self.orders.waiting.first_key_value() {
            let what = format!("no report at {} of order {order:?}, sent at {sent}", self.now);
            return Err(Violation::new(5, what));
        }
        let stats = self.server.store.stats();
        let evictions = stats.evictions;
        if stats.expired > 0 {
            self.coverage.meet(Sight::Expired);
        }
        if !self.profile.tight && evictions > 0 {
            // They were not looked at on the way: any item may have been among them.
            self.history.ops.iter_mut().for_each(|op| op.evictions = (0, 1));
        }
        if evictions > 0 {
            self.coverage.meet(Sight::MemoryFull);
        }
        let kinds: Vec<_> = self.profile.keys.iter().map(|key| key.kind).collect();
        // Memory may be short without an eviction: while what has been replaced waits for a worker that lost its core.
        let refused: u64 = (0..self.profile.workers)
            .map(|worker| self.server.sums_of(worker).store_no_memory)
            .sum();
        let calm = evictions == 0 && refused == 0;
        check(&mut self.history, &Facts { kinds: &kinds, lag: self.lag, calm })
    }

    /// So many requests, and a move at least.
    pub fn asked_all(&self) -> bool {
        self.history.ops.len() >= self.operations_wanted
            && self.coverage.of(Sight::OwnerChanged) > 0
    }

    fn all_answered(&self) -> bool {
        let answered = |connection: &Connection| {
            !connection.open || connection.asked.is_empty() || self.is_stranger(connection.client)
        };
        self.connections.iter().all(answered) && self.orders.waiting.is_empty()
    }

    pub fn is_stranger(&self, client: usize) -> bool {
        client >= self.profile.clients
    }

    pub fn at(&mut self, at: Micros, happening: Happening) {
        let number = self.free.pop().unwrap_or_else(|| {
            self.happenings.push(None);
            self.happenings.len() as u32 - 1
        });
        self.happenings[number as usize] = Some(happening);
        // At one moment, any order.
        self.queue.push(Reverse((at, self.dice.bits() as u32, number)));
    }

    pub fn after(&mut self, delay: Micros, happening: Happening) {
        self.at(self.now + delay, happening);
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Arrival { connection, bytes } => {
                if self.connections[connection].travels {
                    self.coverage.meet(Sight::ArrivedUnderWay);
                }
                self.connections[connection].arrived.push(bytes);
                self.notify(connection);
            }
            Happening::Finished { connection } => {
                if self.connections[connection].travels {
                    self.coverage.meet(Sight::ClosedUnderWay);
                }
                self.connections[connection].finished = true;
                self.notify(connection);
            }
            Happening::Delivery { connection, bytes } => self.delivered(connection, &bytes),
            Happening::Letter { seat, letter, sent } => self.receive(seat, letter, sent),
            Happening::Step { seat } => self.step(seat),
            Happening::Client { client } => self.client_wakes(client),
            Happening::Epoch => self.end_epoch(),
            Happening::Planned { number, proposal } => {
                self.coverage.meet(Sight::NewsPlanned);
                self.tell_balancer(News::Planned { number, proposal });
            }
            Happening::Reported { order, outcome } => {
                self.coverage.meet(Sight::NewsReported);
                self.tell_balancer(News::Reported { order, outcome });
            }
            Happening::Operator => self.operate(),
        }
    }

    /// Tells the worker that has the connection that there is something to do.
    pub fn notify(&mut self, connection: usize) {
        if let End::At { seat, conn } = self.connections[connection].end {
            if !self.seats[seat].ready.contains(&conn) {
                self.seats[seat].ready.push(conn);
            }
            self.wake(seat);
        }
    }

    /// Looks at who owns what, after what may have changed it.
    pub fn look_at_owners(&mut self) {
        match self.claims.look(&self.server.store) {
            Ok(0) => {}
            Ok(_) => {
                self.coverage.meet(Sight::OwnerChanged);
                if self.connections.iter().any(|connection| !connection.asked.is_empty()) {
                    self.coverage.meet(Sight::ChangedUnderWay);
                }
            }
            Err(violation) => self.broken = Some(violation),
        }
    }

    pub fn fail(&mut self, invariant: u8, what: impl Into<String>) {
        if self.broken.is_none() {
            self.broken = Some(Violation::new(invariant, what));
        }
    }
}
