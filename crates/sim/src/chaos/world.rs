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
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use mbal_balance::Proposal;
use mbal_control::{Request, api};
use mbal_election::{KeySeen, OwnerRequest, OwnerResponse};
use mbal_member::balancing::Event;
use mbal_model::ServerId;
use mbal_worker::{Actions, Report};

use super::Run;
use super::checks::Violation;
use super::client::{self, Client};
use super::connection::{Connection, End};
use super::control::{Caller, Control, Heard};
use super::coverage::{Coverage, Sight};
use super::dice::Dice;
use super::faults::Mending;
use super::history::{History, Micros, SECOND};
use super::hosts::Past;
use super::hosts::{self, Host};
use super::letters::Letter;
use super::links::{Crossing, Links};
use super::memory;
use super::migrator::{Frame, Wires};
use super::net::Net;
use super::owning::Etcd;
use super::places::Flux;
use super::profile::Profile;
use super::scaling::Cut;
use super::seat::Seat;
use super::settling::Phase;
use super::wishes::Undertaker;

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
    Arrival {
        connection: usize,
        bytes: Vec<u8>,
    },
    /// The client sends no more, or has broken the connection off.
    Finished {
        connection: usize,
        reset: bool,
    },
    /// The client learns that the server has closed.
    Ended {
        connection: usize,
    },
    /// Bytes reach the client.
    Delivery {
        connection: usize,
        bytes: Vec<u8>,
    },
    /// A letter reaches a worker's mailbox; when it was sent.
    Letter {
        seat: usize,
        life: u32,
        letter: Letter,
        sent: Micros,
    },
    /// A worker goes on.
    Step {
        seat: usize,
    },
    /// The client learns that its server has died.
    Broken {
        connection: usize,
    },
    /// A client asks something.
    Client {
        client: usize,
    },
    /// An epoch of a server's balancer ends.
    BalancerWakes {
        host: usize,
        life: u32,
    },
    /// A planner answers the balancer.
    Planned {
        host: usize,
        life: u32,
        number: u64,
        proposal: Option<Proposal>,
    },
    /// A worker's report reaches the balancer.
    Reported {
        host: usize,
        life: u32,
        report: Report,
    },
    /// The operator changes something.
    Operator,
    /// Something comes to the other end of a link.
    Crossed {
        link: usize,
        life: usize,
        crossing: Crossing,
    },
    /// A link is dialed.
    Dialed {
        link: usize,
    },
    /// A call comes to the coordinator.
    Called {
        caller: Caller,
        ask: Box<Request>,
    },
    /// Its answer comes back.
    Answered {
        host: usize,
        life: u32,
        call: u64,
        heard: Box<Heard>,
    },
    /// The coordinator has saved its state, or failed to.
    Saved {
        life: u32,
    },
    /// An epoch of the coordinator's planner ends.
    Plan,
    /// The thread of a server that is in touch with the coordinator goes on.
    MemberWakes {
        host: usize,
        life: u32,
    },
    MemberTimesOut {
        host: usize,
        life: u32,
        call: u64,
    },
    /// A server's threads for links of moves go on; a frame comes to an end of one.
    MigratorWakes {
        host: usize,
        life: u32,
    },
    Framed {
        wire: usize,
        to: usize,
        frame: Option<Frame>,
    },
    /// A server's thread that renews its lease goes on; etcd gets its question; and the answer comes back, or none does in time.
    OwnerWakes {
        host: usize,
        life: u32,
        at: Micros,
    },
    EtcdAsked {
        host: usize,
        life: u32,
        call: u64,
        question: OwnerRequest,
    },
    EtcdAnswered {
        host: usize,
        life: u32,
        call: u64,
        answer: OwnerResponse,
    },
    /// By a server's clock its lease is over, unless it was renewed.
    LeaseEnds {
        host: usize,
        life: u32,
    },
    /// The coordinator looks at servers' keys.
    LookAtKeys,
    KeysSeen {
        life: u32,
        at: mbal_model::Instant,
        keys: BTreeMap<ServerId, (api::Incarnation, KeySeen)>,
    },
    /// The coordinator's thread that scales goes on; an order to machines is done; a server is stopped.
    PilotWakes {
        life: u32,
    },
    MachinesDone {
        life: u32,
        done: Result<(), String>,
    },
    MachineStops {
        host: usize,
        life: u32,
    },
    /// Operators want something of the cluster.
    Wish,
    /// What went wrong is mended.
    Mended {
        mending: Mending,
    },
    /// Something goes wrong.
    Trouble,
}

pub struct World {
    pub now: Micros,
    pub dice: Dice,
    pub profile: Profile,
    pub coverage: Coverage,
    pub history: History,
    pub hosts: Vec<Host>,
    pub seats: Vec<Seat>,
    pub links: Links,
    pub wires: Wires,
    pub net: Net,
    pub control: Control,
    pub etcd: Etcd,
    pub flux: Flux,
    pub undertaker: Undertaker,
    pub phase: Phase,
    /// Moves that carry what was chosen.
    pub cuts: Vec<Cut>,
    /// Somebody has heard of the coordinator.
    pub has_news: bool,
    /// How often a cachelet was seen to have moved.
    pub moved: u64,
    pub past: Past,
    /// Tells what happens: for who replays a seed.
    pub tells: bool,
    pub connections: Vec<Connection>,
    pub clients: Vec<Client>,
    pub operations_wanted: usize,
    pub evictions: u64,
    /// The longest that a worker's clock was behind.
    pub lag: Micros,
    /// When a client got its last answer.
    pub answered: Micros,
    pub broken: Option<Violation>,
    /// For the next burst, what is received next, and what comes of it: so that not everything is allocated anew.
    pub scratch: Vec<u8>,
    pub received: Vec<u8>,
    pub actions: Actions,
    /// When, in which order at one moment, and a number: from the highest bits.
    queue: BinaryHeap<Reverse<u128>>,
    /// What the queue's numbers stand for, and numbers that are free.
    happenings: Vec<Option<Happening>>,
    free: Vec<u32>,
}

impl World {
    pub fn new(Run { seed, operations, servers, tells }: Run) -> World {
        let mut dice = Dice::new(seed);
        let profile = Profile::roll(&mut dice, servers.map(usize::from));
        let (hosts, seats) = hosts::all(&profile);
        let mut world = World {
            now: 0,
            dice,
            coverage: Coverage::default(),
            history: History::default(),
            hosts,
            seats,
            links: Links::default(),
            wires: Wires::default(),
            net: Net::new(profile.servers),
            control: Control::new(&profile),
            etcd: Etcd::default(),
            flux: Flux::new(profile.keys.len()),
            undertaker: Undertaker::default(),
            phase: Phase::Asks,
            cuts: Vec::new(),
            has_news: false,
            moved: 0,
            past: Past::default(),
            tells,
            connections: Vec::new(),
            clients: Vec::new(),
            // Keys become hot, and servers come and go, after a while.
            operations_wanted: match profile.hot.is_some() || profile.autoscales {
                true => operations * 3,
                false => operations,
            },
            evictions: 0,
            lag: 0,
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
        if world.is_clustered() {
            world.begin_cluster();
        }
        if !world.is_clustered() {
            (0..world.seats.len()).for_each(|seat| world.wake(seat));
            world.after(0, Happening::BalancerWakes { host: 0, life: 0 });
        }
        for client in 0..world.profile.clients + world.profile.strangers {
            let stranger = client >= world.profile.clients;
            let kind = match client {
                _ if stranger => client::Kind::Stranger,
                smart if smart < world.profile.smart => client::Kind::Smart,
                _ => client::Kind::Ordinary,
            };
            world.clients.push(Client::new(&mut world.dice, &world.profile, kind, client));
            world.know_homes(client);
            let connections = if kind == client::Kind::Smart { world.profile.workers } else { 1 };
            for slot in 0..connections {
                world.connect(client, slot);
            }
            world.after(0, Happening::Client { client });
        }
        world.after(0, Happening::Operator);
        world
    }

    /// Somebody has waited for too long. What was asked or ordered this very moment has not, though nobody asked anything for a while.
    fn is_stuck(&self) -> bool {
        let is_late = |since: Micros| since + PATIENCE < self.now;
        let mut orders = self.hosts.iter().flat_map(|host| host.orders.waiting.values());
        let waits = |connection: &Connection| {
            self.waits(connection) && connection.asked.front().is_none_or(|asked| is_late(asked.at))
        };
        is_late(self.answered)
            && (self.connections.iter().any(waits) || orders.any(|(sent, _)| is_late(*sent)))
    }

    /// Runs to the end: so many operations, and then until all are answered.
    pub fn run(mut self) -> Ran {
        while let Some(Reverse(next)) = self.queue.pop() {
            let number = next as u32;
            self.now = (next >> 64) as Micros;
            let happening = self.happenings[number as usize].take().expect("queued once");
            self.free.push(number);
            self.happen(happening);
            if self.broken.is_some() || self.is_stuck() {
                break;
            }
            if self.asked_all()
                && !self.awaits_rest()
                && self.all_answered()
                && !self.goes_on_settling()
            {
                break;
            }
        }
        let verdict = self.judge();
        let World { hosts, seats, history, coverage, .. } = self;
        drop(seats);
        for host in hosts {
            let Host { server, member, balancing, .. } = host;
            drop((member, balancing));
            let server = Arc::into_inner(server).expect("nobody else has it");
            memory::keep(server.store.into_memory());
        }
        Ran { operations: history.ops.len(), coverage, verdict }
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
        let order = self.dice.bits() as u32;
        self.queue
            .push(Reverse(u128::from(at) << 64 | u128::from(order) << 32 | u128::from(number)));
    }

    pub fn after(&mut self, delay: Micros, happening: Happening) {
        self.at(self.now + delay, happening);
    }

    pub fn happen(&mut self, happening: Happening) {
        let Some(happening) = self.unless_stopped(happening) else { return };
        match happening {
            Happening::Arrival { connection, bytes } => {
                if self.connections[connection].travels {
                    self.coverage.meet(Sight::ArrivedUnderWay);
                }
                self.connections[connection].arrived.push(bytes);
                self.notify(connection);
            }
            Happening::Finished { connection, reset } => {
                if self.connections[connection].travels {
                    self.coverage.meet(Sight::ClosedUnderWay);
                }
                self.connections[connection].finished = true;
                self.connections[connection].reset |= reset;
                self.notify(connection);
            }
            Happening::Ended { connection } => self.ended(connection),
            Happening::Delivery { connection, bytes } => self.delivered(connection, &bytes),
            Happening::Letter { seat, life, letter, sent } => {
                let host = &self.hosts[self.seats[seat].host];
                if host.life == life && host.is_up {
                    self.receive(seat, letter, sent);
                }
            }
            Happening::Broken { connection } => self.broken_off(connection),
            Happening::Step { seat } => self.step(seat),
            Happening::Client { client } => self.client_wakes(client),
            Happening::BalancerWakes { host, .. } => self.balancer_wakes(host),
            Happening::Planned { host, number, proposal, .. } => {
                self.coverage.meet(Sight::NewsPlanned);
                self.drive_balancer(host, Event::Planned { number, proposal });
            }
            Happening::Reported { host, report, .. } => {
                self.coverage.meet(Sight::NewsReported);
                self.drive_balancer(host, Event::Reported(report));
            }
            Happening::Operator => self.operate(),
            Happening::Crossed { link, life, crossing } => self.crossed(link, life, crossing),
            Happening::Dialed { link } => self.dialed(link),
            Happening::Called { caller, ask } => {
                if let Caller::Member { host, life, .. } = caller {
                    // What a process has sent dies with it, unless it has arrived.
                    if self.hosts[host].life != life || !self.hosts[host].is_up {
                        return;
                    }
                }
                self.called(caller, *ask);
            }
            Happening::Answered { host, call, heard, .. } => {
                self.has_news = true;
                self.member_hears(host, call, *heard);
            }
            Happening::Saved { life } => self.saved(life),
            Happening::Plan => self.plan(),
            Happening::MemberWakes { host, .. } => self.member_wakes(host),
            Happening::MemberTimesOut { host, call, .. } => self.member_times_out(host, call),
            Happening::MigratorWakes { host, .. } => self.migrator_wakes(host),
            Happening::Framed { wire, to, frame } => self.framed(wire, to, frame),
            Happening::OwnerWakes { host, at, .. } => self.owner_wakes(host, at),
            Happening::EtcdAsked { host, life, call, question } => {
                self.etcd_asked(host, life, call, question);
            }
            Happening::EtcdAnswered { host, call, answer, .. } => {
                self.etcd_answered(host, call, answer);
            }
            Happening::LeaseEnds { host, life } => self.lease_ends(host, life),
            Happening::LookAtKeys => self.look_at_keys(),
            Happening::KeysSeen { life, at, keys } => self.keys_seen(life, at, keys),
            Happening::PilotWakes { life } => self.pilot_wakes(life),
            Happening::MachinesDone { life, done } => self.machines_done(life, done),
            Happening::MachineStops { host, life } => self.machine_stops(host, life),
            Happening::Wish => self.wish(),
            Happening::Mended { mending } => self.mended(mending),
            Happening::Trouble => self.trouble(),
        }
    }

    /// What a thread of a server was to do: nothing while its process is stopped, or when it is gone.
    fn unless_stopped(&mut self, happening: Happening) -> Option<Happening> {
        let (host, life) = match happening {
            Happening::BalancerWakes { host, life }
            | Happening::Planned { host, life, .. }
            | Happening::Reported { host, life, .. }
            | Happening::Answered { host, life, .. }
            | Happening::MemberWakes { host, life }
            | Happening::MigratorWakes { host, life }
            | Happening::OwnerWakes { host, life, .. }
            | Happening::EtcdAnswered { host, life, .. }
            | Happening::MemberTimesOut { host, life, .. } => (host, life),
            _ => return Some(happening),
        };
        self.may_do(host, life, happening)
    }

    pub fn tell(&self, what: impl FnOnce() -> String) {
        if self.tells {
            println!("{:>12.6} s {}", self.now as f64 / SECOND as f64, what());
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
    pub fn look_at_owners(&mut self, host: usize) {
        let host = &mut self.hosts[host];
        let changed = host.claims.look(&host.server.store, &host.coming);
        match changed {
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
