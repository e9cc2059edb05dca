//! The world of one seed: what happens when.

use mbal_model::ServerId;
use mbal_replica::Grant;
use mbal_testkit::{Failed, Met, Sim};

use crate::client::{Client, Reply};
use crate::host::{Host, Letter, TICK, id_of};
use crate::profile::{Clock, Profile};
use crate::truth::Truth;

/// Times are in microseconds.
pub const MILLISECOND: u64 = 1_000;
pub const SECOND: u64 = 1_000 * MILLISECOND;
/// Trouble is over, and every request has been answered or given up.
const CALMS_WITHIN: u64 = 10 * SECOND;
/// Suffixes of a key.
const SUFFIXES: u8 = 9;

/// Who owns which key.
#[derive(Clone, Debug)]
pub struct Map {
    pub version: u64,
    pub owners: Vec<usize>,
    /// Servers that are not said to be dead.
    pub members: Vec<bool>,
}

pub enum Event {
    Op,
    Trouble,
    Tick {
        host: usize,
        process: u16,
    },
    Letter {
        to: usize,
        letter: Letter,
    },
    Reply {
        client: usize,
        number: u64,
        reply: Reply,
    },
    GivesUp {
        client: usize,
        number: u64,
    },
    /// A word has not been answered.
    Late {
        home: usize,
        process: u16,
        key: usize,
        grant: Grant,
        to: usize,
        ticket: u64,
    },
    /// The same of a fence.
    FenceLate {
        at: usize,
        process: u16,
        key: usize,
        grant: Grant,
        to: usize,
        ticket: u64,
    },
    GoesOn {
        host: usize,
        process: u16,
    },
    Restart {
        host: usize,
    },
    Reassign {
        host: usize,
    },
    FlushEnds {
        number: u32,
    },
    Heats {
        key: usize,
    },
}

pub struct World {
    pub sim: Sim<Event>,
    pub profile: Profile,
    pub hosts: Vec<Host>,
    pub clients: Vec<Client>,
    /// By key.
    pub truth: Vec<Truth>,
    /// By key: the servers in the order in which its suffixes find them.
    suffixes: Vec<Vec<usize>>,
    /// The coordinator's.
    pub map: Map,
    /// By key: to which server it is on its way.
    pub moving: Vec<Option<usize>>,
    pub silent_until: Vec<Vec<u64>>,
    pub lossy_until: u64,
    pub newest_flush: u32,
    pub is_flushing: bool,
    pub numbers: u64,
    pub lives: u16,
    ops_left: u64,
    broken: Option<Failed>,
}

impl World {
    pub fn new(seed: u64, tells: bool) -> World {
        let mut sim = Sim::new(seed, tells);
        let profile = Profile::new(&mut sim);
        let (hosts, keys) = (profile.hosts as usize, profile.keys as usize);
        let clients = profile.clients as usize;
        let owners = (0..keys).map(|_| sim.random.below(hosts as u64) as usize).collect();
        let map = Map { version: 1, owners, members: vec![true; hosts] };
        let none = Map { version: 0, owners: vec![0; keys], members: vec![true; hosts] };
        let all = (0..hosts).map(|at| {
            Host::new(Clock::new(&mut sim.random), none.clone(), keys, clients, at as u16 + 1)
        });
        let all: Vec<Host> = all.collect();
        let clients = (0..clients).map(|at| {
            let server = sim.random.below(hosts as u64) as usize;
            Client::new(Clock::new(&mut sim.random), at % 2 == 0, server, keys)
        });
        let clients = clients.collect();
        let suffixes = (0..keys)
            .map(|_| (0..SUFFIXES).map(|_| sim.random.below(hosts as u64) as usize).collect());
        let suffixes = suffixes.collect();
        World {
            sim,
            ops_left: profile.ops,
            lives: hosts as u16,
            profile,
            hosts: all,
            clients,
            truth: vec![Truth::new(); keys],
            suffixes,
            map,
            moving: vec![None; keys],
            silent_until: vec![vec![0; hosts]; hosts],
            lossy_until: 0,
            newest_flush: 0,
            is_flushing: false,
            numbers: 0,
            broken: None,
        }
    }

    pub fn tell(&self, key: usize, what: impl FnOnce() -> String) {
        self.sim.tell(|| format!("key {key}: {}", what()));
    }

    pub fn fails(&mut self, invariant: u8, key: usize, text: String) {
        self.tell(key, || format!("BROKEN: {text}"));
        let text = format!("at {} ms, key {key}: {text}", self.sim.now as f64 / 1e3);
        self.broken.get_or_insert(Failed { invariant, text });
    }

    pub fn delay(&mut self) -> u64 {
        self.sim.about(self.profile.delay)
    }

    pub fn host(&mut self) -> usize {
        self.sim.random.below(self.profile.hosts) as usize
    }

    pub fn is_trouble(&self) -> bool {
        self.ops_left > 0
    }

    pub fn loses(&mut self) -> bool {
        let lost = if self.sim.now < self.lossy_until { 300 } else { self.profile.lost };
        self.is_trouble() && self.sim.random.below(1_000) < lost
    }

    pub fn is_silent(&self, from: usize, to: usize) -> bool {
        self.sim.now < self.silent_until[from][to]
    }

    /// The server of a suffix.
    pub fn place(&self, key: usize, suffix: u8) -> usize {
        self.suffixes[key][usize::from(suffix) - 1]
    }

    /// The first suffixes that count.
    pub fn places(&self, key: usize, home: usize, count: usize) -> Vec<(u8, ServerId)> {
        let mut found: Vec<(u8, ServerId)> = Vec::new();
        for suffix in 1..=SUFFIXES {
            let server = self.place(key, suffix);
            let is_new = found.iter().all(|(_, other)| *other != id_of(server));
            if server != home && is_new && found.len() < count {
                found.push((suffix, id_of(server)));
            }
        }
        found
    }

    /// Runs to its end.
    ///
    /// # Errors
    /// An invariant is broken.
    pub fn run(mut self) -> Result<Met, Failed> {
        for host in 0..self.hosts.len() {
            let map = self.map.clone();
            self.begins(host, map);
        }
        self.sim.after(1, Event::Op);
        self.sim.after(1, Event::Trouble);
        while self.ops_left > 0 {
            let event = self.sim.advance().expect("servers tick");
            self.step(event)?;
        }
        self.calms()?;
        Ok(self.sim.met)
    }

    /// The first map: nobody has owned anything before.
    fn begins(&mut self, host: usize, map: Map) {
        self.follows(host, map);
        self.hosts[host].keys.values_mut().for_each(|here| here.newborn = None);
        let process = self.hosts[host].process;
        let wait = self.sim.random.below(TICK);
        self.sim.after(wait, Event::Tick { host, process });
    }

    fn step(&mut self, event: Event) -> Result<(), Failed> {
        self.happens(event);
        self.broken.take().map_or(Ok(()), Err)
    }

    fn steps_until(&mut self, until: u64) -> Result<(), Failed> {
        while let Some(event) = self.sim.advance_until(until) {
            self.step(event)?;
        }
        Ok(())
    }

    /// Nothing goes wrong any more: writes are executed, copies end, and come again.
    fn calms(&mut self) -> Result<(), Failed> {
        self.heals();
        self.steps_until(self.sim.now + CALMS_WITHIN)?;
        for key in 0..self.truth.len() {
            self.looks_at_told(key);
            let state = self.state_of(key);
            let home = &self.hosts[self.map.owners[key]];
            let is_there = home.keys.get(&key).is_some_and(|here| {
                here.stored
                    .is_some_and(|stored| home.is_alive(&stored, home.clock.local(self.sim.now)))
            });
            let all_out = home.keys.get(&key).and_then(|here| here.home.as_ref());
            let all_out = all_out.is_some_and(|home| home.shadows().count() == 0);
            let is_settled = matches!(state, "Hot" | "Cold") || !is_there || all_out;
            if !home.keys.contains_key(&key) || !is_settled {
                self.fails(5, key, format!("it is {state} when trouble is over"));
            }
            self.cools(key);
        }
        self.steps_until(self.sim.now + 2 * SECOND)?;
        for key in 0..self.truth.len() {
            if self.state_of(key) != "Cold" {
                self.fails(5, key, format!("it does not cool: {}", self.state_of(key)));
            }
        }
        self.writes_all();
        self.steps_until(self.sim.now + SECOND)?;
        for key in 0..self.truth.len() {
            let has_places = !self.places(key, self.map.owners[key], 9).is_empty();
            self.heats(key, 9);
            if !has_places {
                self.tell(key, || "it has no place for copies".to_owned());
            }
        }
        self.steps_until(self.sim.now + 2 * SECOND)?;
        for key in 0..self.truth.len() {
            self.looks_at_told(key);
            let has_places = !self.places(key, self.map.owners[key], 9).is_empty();
            if has_places && self.state_of(key) != "Hot" {
                self.fails(5, key, format!("it is not copied: {}", self.state_of(key)));
            }
        }
        if let Some(at) = self.clients.iter().position(|client| !client.is_idle()) {
            self.fails(5, 0, format!("client {at} waits still"));
        }
        self.broken.take().map_or(Ok(()), Err)
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Op if self.is_trouble() => {
                self.asks();
                self.ops_left -= 1;
                let gap = self.sim.about(self.profile.op_gap);
                self.sim.after(gap, Event::Op);
            }
            Event::Op => {}
            Event::Trouble => self.trouble(),
            Event::Tick { host, process } => {
                let here = &self.hosts[host];
                if here.lives && here.process == process {
                    self.sim.after(TICK, Event::Tick { host, process });
                    if !self.hosts[host].stopped {
                        self.ticks(host);
                    }
                }
            }
            Event::Letter { to, letter } => self.arrives(to, letter),
            Event::Reply { client, number, reply } => self.is_told(client, number, &reply),
            Event::GivesUp { client, number } => self.gives_up(client, number),
            Event::Late { home, process, key, grant, to, ticket } => {
                let here = &self.hosts[home];
                // A stopped one finds out when it goes on.
                if here.lives && here.process == process && here.stopped {
                    self.sim.after(TICK, Event::Late { home, process, key, grant, to, ticket });
                } else if here.lives && here.process == process {
                    self.is_late(home, key, grant, to, ticket);
                }
            }
            Event::FenceLate { at, process, key, grant, to, ticket } => {
                let here = &mut self.hosts[at];
                if here.lives && here.process == process && here.tickets.remove(&ticket) {
                    self.hears_of_fence(at, to, key, grant, None);
                }
            }
            Event::GoesOn { host, process } => {
                let here = &self.hosts[host];
                if here.lives && here.process == process && here.stopped {
                    self.goes_on(host);
                }
            }
            Event::Restart { host } => self.restarts(host),
            Event::Reassign { host } => self.reassigns(host),
            Event::FlushEnds { number } => self.flush_ends(number),
            Event::Heats { key } => self.heats(key, 9),
        }
    }
}
