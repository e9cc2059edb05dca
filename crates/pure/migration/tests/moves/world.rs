//! The world of one seed: what happens when, and what goes wrong.

use std::time::Duration;

use mbal_cachelet::{Birth, Draft, Memory, Options, Store};
use mbal_migration::{Incarnation, State};
use mbal_model::{Instant, Key, MoveId, Prefix, Route, WorkerId};
use mbal_testkit::{Failed, Met, Sim};

use crate::clients::Request;
use crate::coordinator::{Coordinator, Map, Word};
use crate::host::{Host, elsewhere};
use crate::links::Link;
use crate::truth::{KEYS, Op, Truth, hash};

/// What clients say for the second, at any time: nothing here goes by it.
pub const NOW: u32 = 100;
const BEGIN: Instant = Instant::from_secs(NOW as u64);
pub const CLIENT: WorkerId = WorkerId(0);
pub const MOVER: WorkerId = WorkerId(1);
pub const SLOW: WorkerId = WorkerId(2);

pub const MILLISECOND: u64 = 1_000_000;
pub const SECOND: u64 = 1_000 * MILLISECOND;
/// When nothing goes wrong any more, everything ends within this.
const SETTLES_WITHIN: u64 = 60 * SECOND;
const OPS: u64 = 2_500;

/// What the clock of all servers shows so many nanoseconds after the beginning.
pub fn instant(now: u64) -> Instant {
    BEGIN + Duration::from_nanos(now)
}

/// How many nanoseconds after the beginning it shows that.
pub fn when(instant: Instant) -> u64 {
    (instant - BEGIN).as_nanos() as u64
}

/// What differs from seed to seed.
pub struct Profile {
    pub hosts: usize,
    pub bits: u32,
    pub fillers: u64,
    /// Memory is short, so that pages are cleaned and items evicted.
    pub is_short: bool,
    pub part_bytes: usize,
    pub op_gap: u64,
    pub trouble_gap: u64,
    pub delay: u64,
    pub pause: u64,
    pub heartbeat: u64,
    pub link_timeout: u64,
}

impl Profile {
    fn new(sim: &mut Sim<Event>) -> Profile {
        let mut one_of = |choices: &[u64]| sim.one_of(choices);
        let op_gap = one_of(&[20_000, 100_000, 400_000, 4_000_000]);
        let is_short = one_of(&[0, 0, 0, 1]) == 1;
        let fillers = if is_short { 12_000 } else { one_of(&[0, 1_000, 6_000]) };
        Profile {
            is_short,
            fillers,
            hosts: one_of(&[2, 3, 3]) as usize,
            bits: one_of(&[1, 2, 3]) as u32,
            part_bytes: one_of(&[400, 4_000, 64 << 10]) as usize,
            op_gap,
            trouble_gap: op_gap * one_of(&[8, 25, 100]),
            delay: one_of(&[20_000, 200_000, 3_000_000]),
            pause: one_of(&[2_000, 30_000, 300_000]),
            heartbeat: one_of(&[2, 10, 50]) * MILLISECOND,
            link_timeout: one_of(&[30, 1_000]) * MILLISECOND,
        }
    }
}

pub enum Event {
    Op,
    Trouble,
    Request(Request),
    SlowEnds {
        host: usize,
        life: Incarnation,
        n: u64,
    },
    PumpSource {
        host: usize,
        life: Incarnation,
        id: MoveId,
    },
    PumpDestination {
        host: usize,
        life: Incarnation,
        id: MoveId,
    },
    /// A frame arrives: way 0 is to the destination.
    Frame {
        from: usize,
        to: usize,
        way: usize,
        number: u64,
        id: MoveId,
        kind: u8,
        bytes: Vec<u8>,
    },
    /// The dialing side hears that its link has broken; the accepting side does.
    LinkDown {
        from: usize,
        to: usize,
        way: usize,
        number: u64,
    },
    LinkUp {
        from: usize,
        to: usize,
    },
    Heartbeat {
        host: usize,
        life: Incarnation,
    },
    Word {
        host: usize,
        life: Incarnation,
        word: Box<Word>,
    },
    Restart {
        host: usize,
    },
    Flush {
        host: usize,
        number: u32,
    },
    FlushEnds,
}

pub struct World {
    pub sim: Sim<Event>,
    pub profile: Profile,
    pub hosts: Vec<Host>,
    /// By who dials, and who accepts.
    pub links: Vec<Vec<Link>>,
    pub coordinator: Coordinator,
    pub truth: Truth,
    /// The cas that somebody saw last.
    pub seen: Vec<Option<u64>>,
    pub broken: Option<Failed>,
    /// What a server that begins is told by its peers.
    pub newest_flush: u32,
    pub ops_left: u64,
    /// Last: a cachelet's place in the map, and a host.
    pub ordered: (usize, usize),
    pub lives: u64,
}

pub fn store(is_short: bool) -> Store {
    let memory_bytes = if is_short { 2 << 20 } else { 24 << 20 };
    let options = Options {
        memory_bytes,
        workers: 3,
        cachelets: 8,
        item_bytes_max: 1 << 20,
        evict: is_short,
        generation: 1,
    };
    Store::vacant(options, Memory::heap(memory_bytes)).expect("memory")
}

impl World {
    pub fn new(seed: u64, tells: bool) -> World {
        let mut sim = Sim::new(seed, tells);
        let profile = Profile::new(&mut sim);
        let count = profile.hosts;
        let owners = Prefix::equal(profile.bits).enumerate().map(|(at, one)| (one, at % count));
        let map = Map { version: 1, owners: owners.collect() };
        let hosts = (0..count).map(|at| Host {
            incarnation: Incarnation(at as u64 + 1),
            store: Some(store(profile.is_short)),
            map: Some(map.clone()),
            leaving: Vec::new(),
            coming: Vec::new(),
            in_slow_batch: false,
            is_slow: false,
            strained: false,
        });
        let hosts: Vec<Host> = hosts.collect();
        let members = hosts.iter().map(|host| host.incarnation).collect();
        let is_short = profile.is_short;
        let mut world = World {
            sim,
            profile,
            hosts,
            links: vec![vec![Link::default(); count]; count],
            coordinator: Coordinator::new(map, members),
            truth: Truth::new(is_short),
            seen: vec![None; KEYS as usize],
            broken: None,
            newest_flush: 0,
            ops_left: OPS,
            ordered: (0, 0),
            lives: count as u64,
        };
        world.fill();
        world
    }

    fn fill(&mut self) {
        for (prefix, owner) in self.coordinator.map.owners.clone() {
            for (at, host) in self.hosts.iter().enumerate() {
                let store = host.store.as_ref().expect("it lives");
                let birth = Birth { generation: 1, flush_number: 0 };
                let is_mine = at == owner;
                assert!(!is_mine || store.adopt(prefix, CLIENT, birth));
                assert!(is_mine || store.point(prefix, elsewhere(owner)));
            }
        }
        let bytes = if self.profile.is_short { 500 } else { 30 };
        for n in 0..self.profile.fillers {
            let text = format!("filler:{n}");
            let key = Key::new(text.as_bytes()).expect("short");
            for host in &self.hosts {
                let store = host.store.as_ref().expect("it lives");
                store.enter(CLIENT);
                if store.route(CLIENT, key.hash()) == Route::Own {
                    let draft = Draft { parts: &[&[7; 500][..bytes]], ..Draft::default() };
                    let _room = store.reserve_at_once(CLIENT, key.hash(), bytes, NOW);
                    let put = store.lock(key.hash(), NOW).put(&key, &draft);
                    assert!(put.is_ok() || self.profile.is_short, "memory suffices");
                }
                store.leave(CLIENT);
            }
        }
    }

    pub fn delay(&mut self) -> u64 {
        self.sim.about(self.profile.delay)
    }

    pub fn pause(&mut self) -> u64 {
        self.sim.about(self.profile.pause)
    }

    pub fn host(&mut self) -> usize {
        self.sim.random.below(self.profile.hosts as u64) as usize
    }

    pub fn is_quiet(&self) -> bool {
        self.ops_left == 0
    }

    pub fn run(mut self) -> Result<Met, Failed> {
        for host in 0..self.profile.hosts {
            let life = self.hosts[host].incarnation;
            self.sim.after(1, Event::Heartbeat { host, life });
            for to in (0..self.profile.hosts).filter(|to| *to != host) {
                self.sim.after(1, Event::LinkUp { from: host, to });
            }
        }
        self.sim.after(1, Event::Op);
        self.sim.after(1, Event::Trouble);
        let mut deadline = None;
        while let Some(event) = self.sim.advance() {
            let now = self.sim.now;
            let changes_places = !matches!(event, Event::Request(Request { moved: None, .. }));
            self.happens(event)?;
            if changes_places {
                self.check_places()?;
            }
            if let Some(failed) = self.broken.take() {
                return Err(failed);
            }
            if self.is_quiet() {
                let deadline = *deadline.get_or_insert(now + SETTLES_WITHIN);
                if self.is_settled() {
                    return self.ends();
                }
                if now > deadline {
                    let moves = &self.coordinator.moves;
                    return Err(Failed::new(5, format!("moves do not end: {moves:?}")));
                }
            }
        }
        Err(Failed::new(5, "nothing happens any more".to_owned()))
    }

    fn is_settled(&self) -> bool {
        self.coordinator.moves.is_empty()
            && self.hosts.iter().all(Host::is_settled)
            && !self.truth.is_flushing()
            && self.sim.events().all(|event| !matches!(event, Event::Request(_)))
            && (0..KEYS).all(|n| self.home(n).is_some())
    }

    fn home(&self, n: u64) -> Option<&Store> {
        let mut stores = self.hosts.iter().filter_map(|host| host.store.as_ref());
        stores.find(|store| serves(store, hash_of(n)))
    }

    /// All is there: every key is served, and is what was written last.
    fn ends(mut self) -> Result<Met, Failed> {
        for n in 0..KEYS {
            let stores = self.hosts.iter().filter_map(|host| host.store.as_ref());
            let store = stores.into_iter().find(|store| serves(store, hash_of(n)));
            let store = store.expect("every key has a home");
            store.enter(CLIENT);
            let looked = self.truth.execute(store, CLIENT, n, Op::Get);
            store.leave(CLIENT);
            looked?;
        }
        Ok(self.sim.met)
    }

    /// No key is served by two servers.
    fn check_places(&self) -> Result<(), Failed> {
        for n in 0..KEYS {
            let hash = hash_of(n);
            let stores = self.hosts.iter().filter_map(|host| host.store.as_ref());
            if stores.filter(|store| serves(store, hash)).count() > 1 {
                return Err(Failed::new(1, format!("key {n} is served by two servers")));
            }
        }
        Ok(())
    }

    fn happens(&mut self, event: Event) -> Result<(), Failed> {
        match event {
            Event::Op => self.op(),
            Event::Trouble => self.trouble(),
            Event::Request(request) => return self.asked(request),
            Event::SlowEnds { host, life, n } if self.lives(host, life) => {
                return self.slow_batch_ends(host, n);
            }
            Event::PumpSource { host, life, id } if self.lives(host, life) => {
                return self.pump_source(host, id);
            }
            Event::PumpDestination { host, life, id } if self.lives(host, life) => {
                return self.pump_destination(host, id);
            }
            Event::SlowEnds { .. } | Event::PumpSource { .. } | Event::PumpDestination { .. } => {}
            Event::Frame { from, to, way, number, id, kind, bytes } => {
                self.arrives(from, to, way, number, id, kind, &bytes);
            }
            Event::LinkDown { from, to, way, number } => self.link_down(from, to, way, number),
            Event::LinkUp { from, to } => self.link_up(from, to),
            Event::Heartbeat { host, life } => self.heartbeat(host, life),
            Event::Word { host, life, word } if self.lives(host, life) => self.hears(host, &word),
            Event::Word { .. } => {}
            Event::Restart { host } => self.restart(host),
            Event::Flush { host, number } => {
                if let Some(store) = &self.hosts[host].store {
                    store.flush_as(number, 0, NOW);
                }
            }
            Event::FlushEnds => {
                self.sim.tell(|| "flush ends".to_owned());
                self.truth.flush_ends();
            }
        }
        Ok(())
    }

    pub fn lives(&self, host: usize, life: Incarnation) -> bool {
        let here = &self.hosts[host];
        here.store.is_some() && here.incarnation == life
    }

    fn op(&mut self) {
        if self.is_quiet() {
            return;
        }
        self.ops_left -= 1;
        self.ask();
        if self.sim.random.below(10) == 0 {
            self.order();
        }
        // Where memory is short, who needs some would wait for this batch, on the same thread.
        if self.sim.random.below(6) == 0 && !self.profile.is_short {
            let host = self.host();
            self.slow_batch(host);
        }
        if self.is_quiet() {
            return self.quiet();
        }
        let gap = self.sim.about(self.profile.op_gap);
        self.sim.after(gap, Event::Op);
    }

    fn heartbeat(&mut self, host: usize, life: Incarnation) {
        if !self.lives(host, life) {
            return;
        }
        let store = self.hosts[host].store.as_ref().expect("it lives");
        if store.stats().evictions > 0 {
            self.sim.met.count("evicted something");
        }
        for worker in [CLIENT, MOVER] {
            store.background(worker, NOW, 2);
        }
        let wait = self.sim.about(self.profile.heartbeat);
        self.sim.after(wait, Event::Heartbeat { host, life });
        if self.sim.now < self.coordinator.down_until {
            return;
        }
        let report = self.report(host);
        let is_sealed = |(_, state): &(MoveId, State)| *state == State::Sealed;
        if report.states.iter().any(is_sealed) {
            self.sim.met.count("sealed");
        }
        let word = Box::new(self.coordinator.heartbeat(&report));
        // The next one leaves when this one was answered.
        let delay = self.sim.random.below(wait.min(2 * self.profile.delay)).max(1) - 1;
        self.sim.after(delay, Event::Word { host, life, word });
    }
}

pub fn serves(store: &Store, hash: u64) -> bool {
    matches!(store.route(CLIENT, hash), Route::Own | Route::Neighbour(_))
}

/// Hashes of the keys, worked out once.
pub fn hash_of(n: u64) -> u64 {
    static HASHES: std::sync::OnceLock<Vec<u64>> = std::sync::OnceLock::new();
    HASHES.get_or_init(|| (0..KEYS).map(hash).collect())[n as usize]
}
