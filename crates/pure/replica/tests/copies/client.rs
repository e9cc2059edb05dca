//! Clients: smart ones, which hold leases, and ordinary ones, whose server does. What they are told is checked here.

use mbal_model::{Instant, ReplicaVersion};
use mbal_replica::{Announcement, Choice, Leases, over_after};

use crate::host::{Letter, hash};
use crate::profile::Clock;
use crate::world::{Event, World};

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Get,
    /// Seconds to live, if any.
    Set(Option<u32>),
    Delete,
    /// If nobody has written since this client has seen it.
    Cas(usize),
    Touch(Option<u32>),
}

/// A request on its way.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    pub client: usize,
    pub number: u64,
    pub key: usize,
    pub op: Op,
    /// Marked: it is for a copy that is no older than this.
    pub by_lease: Option<ReplicaVersion>,
    /// It was, when it left the server that holds leases.
    pub leased: bool,
    /// The server whose leases it was sent by, which process of it, and when.
    pub by: Option<(usize, u16)>,
    pub asked: Instant,
    pub hops: u32,
}

/// What comes back, with the place of what was read or written in the history.
#[derive(Clone, Debug)]
pub enum Outcome {
    Value(usize),
    Nothing(usize),
    /// `None`: the condition did not hold.
    Written(Option<usize>),
    NoRoute,
}

#[derive(Clone, Debug)]
pub struct Reply {
    pub outcome: Outcome,
    pub from_copy: Option<ReplicaVersion>,
    /// The text of the token.
    pub token: Option<String>,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    ask: Ask,
    sent: u64,
    /// What is older than this was overwritten for this client when it asked.
    floor: usize,
}

pub struct Client {
    pub clock: Clock,
    pub is_smart: bool,
    /// Of an ordinary client.
    pub server: usize,
    leases: Leases,
    pending: Vec<Pending>,
    /// By key: the newest that it has seen or written.
    seen: Vec<usize>,
    /// By key: the end of all leases that it was given.
    lease_end: Vec<Instant>,
}

impl Client {
    pub fn new(clock: Clock, is_smart: bool, server: usize, keys: usize) -> Client {
        Client {
            clock,
            is_smart,
            server,
            leases: Leases::new(2, 4, 1, Instant::ZERO),
            pending: Vec::new(),
            seen: vec![0; keys],
            lease_end: vec![Instant::ZERO; keys],
        }
    }

    pub fn waits_for(&self, number: u64) -> bool {
        self.pending.iter().any(|one| one.ask.number == number)
    }

    pub fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }
}

impl World {
    pub fn asks(&mut self) {
        let at = self.sim.random.below(self.clients.len() as u64) as usize;
        let key = self.sim.random.below(self.truth.len() as u64) as usize;
        // One connection each for smart clients' requests; an ordinary client waits for its reply.
        let limit = if self.clients[at].is_smart { 3 } else { 1 };
        if self.clients[at].pending.len() >= limit {
            return;
        }
        let seen = self.clients[at].seen[key];
        match self.sim.random.below(100) {
            0..6 => {
                let count = 1 + self.sim.random.below(4) as usize;
                self.heats(key, count);
            }
            6 | 7 => self.cools(key),
            _ => {}
        }
        let op = match self.sim.random.below(100) {
            n if n >= self.profile.writes => Op::Get,
            n if n % 8 < 4 => Op::Set(self.ttl()),
            n if n % 8 < 5 => Op::Delete,
            n if n % 8 < 6 => Op::Touch(self.ttl()),
            _ => Op::Cas(seen),
        };
        self.asks_for(at, key, op);
    }

    fn ttl(&mut self) -> Option<u32> {
        let dies = self.profile.ttl_max > 0 && self.sim.random.below(4) > 0;
        dies.then(|| 1 + self.sim.random.below(self.profile.ttl_max) as u32)
    }

    pub fn asks_for(&mut self, at: usize, key: usize, op: Op) {
        self.numbers += 1;
        let number = self.numbers;
        let asked = self.clients[at].clock.local(self.sim.now);
        let random = self.sim.random.word() as u32;
        let mut to = self.clients[at].server;
        let mut by_lease = None;
        if self.clients[at].is_smart {
            to = if self.sim.random.below(12) == 0 { self.host() } else { self.map.owners[key] };
            let client = &mut self.clients[at];
            let choice = match op {
                Op::Get => client.leases.route(hash(key), asked, random),
                _ => Choice::Home,
            };
            if let Choice::Copy { suffix, seen } = choice {
                if client.lease_end[key] <= asked {
                    self.fails(4, key, format!("client {at} asks for a copy after its lease"));
                }
                by_lease = Some(seen);
                to = self.place(key, suffix);
            }
        }
        let by = None;
        let ask = Ask {
            client: at,
            number,
            key,
            op,
            by_lease,
            leased: by_lease.is_some(),
            by,
            asked,
            hops: 0,
        };
        let client = &mut self.clients[at];
        let pending = Pending { ask, sent: self.sim.now, floor: client.seen[key] };
        client.pending.push(pending);
        self.tell(key, || {
            format!("client {at} asks server {to}: {op:?}, marked {by_lease:?} #{number}")
        });
        let patience = self.profile.patience;
        self.sim.after(patience, Event::GivesUp { client: at, number });
        if self.loses() {
            self.sim.met.count("request lost");
            return;
        }
        let delay = self.delay();
        self.sim.after(delay, Event::Letter { to, letter: Letter::Ask(ask) });
    }

    pub fn gives_up(&mut self, at: usize, number: u64) {
        let client = &mut self.clients[at];
        let Some(place) = client.pending.iter().position(|one| one.ask.number == number) else {
            return;
        };
        client.pending.remove(place);
        self.sim.met.count("a client gave up");
        // Its connection is closed, and it opens another one.
        self.changes_server(at);
    }

    pub fn changes_server(&mut self, at: usize) {
        if self.clients[at].is_smart {
            return;
        }
        self.sim.met.count("a client changed its server");
        let before = self.clients[at].server;
        self.clients[at].pending.clear();
        self.hosts[before].sessions[at] = None;
        let server = self.host();
        self.clients[at].server = server;
        self.hosts[server].sessions[at] = None;
    }

    pub fn is_told(&mut self, at: usize, number: u64, reply: &Reply) {
        let client = &mut self.clients[at];
        let Some(place) = client.pending.iter().position(|one| one.ask.number == number) else {
            return;
        };
        let Pending { ask, sent, floor } = client.pending.remove(place);
        let key = ask.key;
        self.tell(key, || format!("client {at} is told {reply:?} #{number}"));
        let client = &mut self.clients[at];
        if client.is_smart {
            let now = client.clock.local(self.sim.now);
            match (reply.token.as_deref(), reply.from_copy) {
                (Some(text), _) => {
                    let told = Announcement::parse(text.as_bytes()).expect("a token");
                    client.lease_end[key] = client.lease_end[key].max(ask.asked + told.lease);
                    let asked = (ask.asked, ask.by_lease.is_some());
                    client.leases.answered(hash(key), asked, Some(&told), now);
                    if ask.by_lease.is_some() {
                        self.sim.met.count("passed on, and told of copies");
                    }
                }
                (None, Some(replica_version)) => client.leases.saw(hash(key), replica_version, now),
                (None, None) => client.leases.answered(hash(key), (ask.asked, false), None, now),
            }
        }
        let place = match reply.outcome {
            Outcome::NoRoute | Outcome::Written(None) => return,
            Outcome::Value(place) | Outcome::Nothing(place) | Outcome::Written(Some(place)) => {
                place
            }
        };
        let client = &mut self.clients[at];
        client.seen[key] = client.seen[key].max(place);
        if place < floor {
            self.fails(3, key, format!("client {at} goes back from {floor} to {place}, #{number}"));
        }
        match reply.outcome {
            Outcome::Value(_) => self.looks_at_read(key, place, sent, number),
            // As a cache is filled.
            Outcome::Nothing(_) if self.sim.random.below(2) == 0 && self.is_trouble() => {
                let ttl = self.ttl();
                self.asks_for(at, key, Op::Set(ttl));
            }
            _ => {}
        }
    }

    /// A value that was read by somebody who had asked at this time.
    fn looks_at_read(&mut self, key: usize, place: usize, asked: u64, number: u64) {
        let state = self.truth[key].at(place);
        if state.flushed.is_some_and(|flushed| flushed < asked) {
            self.fails(3, key, format!("{place} was flushed before it was asked for, #{number}"));
        }
        let lease = over_after(self.profile.terms.lease).as_micros() as u64;
        let oldest = if self.profile.terms.atomic { 0 } else { lease };
        if state.to.is_some_and(|to| to + oldest < asked) {
            let invariant = if self.profile.terms.atomic { 3 } else { 4 };
            let text =
                format!("{place} had ended at {:?} when it was asked for, #{number}", state.to);
            self.fails(invariant, key, text);
        }
        if state.to.is_none() && state.dies.is_some_and(|dies| dies < asked) {
            self.fails(3, key, format!("{place} had died when it was asked for, #{number}"));
        }
    }

    /// Every key is written once more.
    pub fn writes_all(&mut self) {
        for key in 0..self.truth.len() {
            self.asks_for(key % self.clients.len(), key, Op::Set(None));
        }
    }
}
