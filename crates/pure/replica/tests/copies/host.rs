//! A server: keys that are its own, copies of others', and requests for either. What `pure/worker` does with copies, without bytes of clients.

use std::collections::{BTreeMap, BTreeSet};

use mbal_model::{Instant, Prefix, ServerId};
use mbal_replica::{Grant, Held, Hold, Home, HomeState, Leases, Newborn};

use crate::client::{Ask, Reply};
use crate::copies::Copy;
use crate::profile::Clock;
use crate::world::{MILLISECOND, Map, World};

pub const TICK: u64 = 20 * MILLISECOND;

pub fn hash(key: usize) -> u64 {
    // Two keys share a mark of a client's leases.
    key as u64 * 2 + 1
}

pub fn name(key: usize) -> [u8; 2] {
    [b'k', b'0' + key as u8]
}

/// A key's cachelet.
pub fn prefix(key: usize) -> Prefix {
    Prefix::nth(key, 2)
}

/// What stands in a home's store.
#[derive(Clone, Copy, Debug)]
pub struct Stored {
    pub place: usize,
    /// In seconds of its server's clock.
    pub deadline: Option<u64>,
    pub flush_number: u32,
}

/// A key that is here.
pub struct Here {
    pub stored: Option<Stored>,
    pub home: Option<Home>,
    /// It serves nothing before that is over.
    pub newborn: Option<Newborn>,
    pub leaves_to: Option<usize>,
    /// Shadows were told to let go of what is there.
    pub invalidates: bool,
    /// When a shadow has answered last, or copies began.
    pub heard: Instant,
}

/// A request that waits until shadows have let go.
pub struct Waiting {
    pub ask: Ask,
    pub since: Instant,
}

pub enum Letter {
    Ask(Ask),
    /// To the server whose leases the request was sent by.
    Answer {
        ask: Ask,
        reply: Reply,
    },
    Hold {
        from: usize,
        ticket: u64,
        bytes: Vec<u8>,
    },
    Held {
        from: usize,
        key: usize,
        grant: Grant,
        ticket: u64,
        bytes: Vec<u8>,
    },
    /// A key's later owner asks for its copies to be gone; and the answer.
    Fence {
        from: usize,
        process: u16,
        ticket: u64,
        bytes: Vec<u8>,
    },
    Fenced {
        from: usize,
        process: u16,
        key: usize,
        grant: Grant,
        ticket: u64,
        bytes: Vec<u8>,
    },
    Map(Map),
    /// A key has changed its server, and what was stored of it.
    Moved {
        key: usize,
        map: Map,
        stored: Option<Stored>,
        seconds: Option<u64>,
    },
    Flush(u32),
}

pub struct Host {
    pub clock: Clock,
    pub process: u16,
    pub lives: bool,
    pub stopped: bool,
    /// What has come since it was stopped.
    pub inbox: Vec<Letter>,
    /// Keys that others have got since: its own lease is over. Some may be on their way back.
    pub lost: BTreeSet<usize>,
    pub map: Map,
    /// Since when it follows that map.
    pub map_since: Instant,
    pub keys: BTreeMap<usize, Here>,
    pub copies: Vec<Option<Copy>>,
    pub flush_number: u32,
    grants: u32,
    pub waiting: Vec<Waiting>,
    /// Of all its clients, atomic.
    pub leases: Option<Leases>,
    /// Of each of its clients, async.
    pub sessions: Vec<Option<Leases>>,
    /// It has no room for further copies.
    pub is_full: bool,
    pub tickets: BTreeSet<u64>,
}

impl Host {
    pub fn new(clock: Clock, map: Map, keys: usize, clients: usize, process: u16) -> Host {
        Host {
            clock,
            process,
            lives: true,
            stopped: false,
            inbox: Vec::new(),
            lost: BTreeSet::new(),
            map,
            map_since: Instant::ZERO,
            keys: BTreeMap::new(),
            copies: (0..keys).map(|_| None).collect(),
            flush_number: 0,
            grants: 0,
            waiting: Vec::new(),
            leases: None,
            sessions: vec![None; clients],
            is_full: false,
            tickets: BTreeSet::new(),
        }
    }

    /// Another process begins.
    pub fn restarted(&mut self) {
        self.grants = 0;
        self.lost.clear();
    }

    pub fn is_alive(&self, stored: &Stored, now: Instant) -> bool {
        stored.deadline.is_none_or(|deadline| now.as_secs() < deadline)
            && self.flush_number <= stored.flush_number
    }
}

pub fn id_of(host: usize) -> ServerId {
    ServerId(host as u16 + 1)
}

pub fn host_of(id: ServerId) -> usize {
    usize::from(id.0) - 1
}

pub fn state_name(state: Option<HomeState>) -> &'static str {
    match state {
        Some(HomeState::HotPending) => "HotPending",
        Some(HomeState::Hot) => "Hot",
        Some(HomeState::ColdPending) => "ColdPending",
        None => "Cold",
    }
}

impl World {
    pub fn local(&self, host: usize) -> Instant {
        self.hosts[host].clock.local(self.sim.now)
    }

    pub fn arrives(&mut self, to: usize, letter: Letter) {
        if !self.hosts[to].lives {
            if let Letter::Moved { key, map, .. } = letter {
                self.sim.met.count("a move found its destination dead");
                self.truth[key].is_lost = true;
                self.moving[key] = None;
                self.follows(to, map);
            }
            return;
        }
        if self.hosts[to].stopped {
            self.hosts[to].inbox.push(letter);
            return;
        }
        self.handles(to, letter);
    }

    pub fn handles(&mut self, at: usize, letter: Letter) {
        match letter {
            Letter::Ask(ask) => self.is_asked(at, ask),
            Letter::Answer { ask, reply } => self.is_answered(at, ask, reply),
            Letter::Hold { from, ticket, bytes } => self.holds(at, from, ticket, &bytes),
            Letter::Held { from, key, grant, ticket, bytes } => {
                self.hosts[at].tickets.remove(&ticket);
                let now = self.local(at);
                let held = Held::decode(&bytes).expect("it was encoded");
                let here = self.hosts[at].keys.get_mut(&key);
                let home = here
                    .filter(|here| here.home.as_ref().is_some_and(|home| home.grant() == grant));
                let Some(here) = home else { return };
                here.heard = now;
                here.home.as_mut().expect("it is").heard(now, id_of(from), &held);
                self.tell(key, || format!("home {at} hears of {from}: {held:?}"));
                self.says(at, key);
                self.retries(at);
            }
            Letter::Fence { from, process, ticket, bytes } => {
                let hold = Hold::decode(&bytes).expect("it was encoded");
                self.is_fenced(at, (from, process), ticket, &hold);
            }
            Letter::Fenced { from, process, key, grant, ticket, bytes } => {
                if self.hosts[at].process == process && self.hosts[at].tickets.remove(&ticket) {
                    let held = Held::decode(&bytes).expect("it was encoded");
                    self.hears_of_fence(at, from, key, grant, Some(&held));
                }
            }
            Letter::Map(map) => self.follows(at, map),
            Letter::Moved { key, map, stored, seconds } => {
                if self.moving[key] != Some(at) {
                    return;
                }
                self.moving[key] = None;
                let second = self.local(at).as_secs();
                let deadline = seconds.map(|seconds| second + seconds);
                let stored = stored.map(|stored| Stored { deadline, ..stored });
                self.adopts(at, key, stored, None);
                let dies = deadline.map(|deadline| self.hosts[at].clock.when(deadline * 1_000_000));
                self.truth[key].dies_at(dies);
                self.follows(at, map);
            }
            Letter::Flush(number) => {
                let host = &mut self.hosts[at];
                host.flush_number = host.flush_number.max(number);
            }
        }
    }

    fn adopts(&mut self, at: usize, key: usize, stored: Option<Stored>, newborn: Option<Newborn>) {
        self.tell(key, || format!("server {at} owns it, {stored:?}"));
        let here = Here {
            stored,
            home: None,
            newborn,
            leaves_to: None,
            invalidates: false,
            heard: Instant::ZERO,
        };
        self.hosts[at].keys.insert(key, here);
        if self.hosts[at].copies[key].is_some() {
            self.sim.met.count("a shadow becomes home");
            if self.is_trouble() && self.sim.random.below(3) == 0 {
                let to = self.host();
                let here = self.hosts[at].keys.get_mut(&key).expect("it is here");
                here.leaves_to = Some(to).filter(|to| *to != at);
            }
        }
    }

    /// Follows a map: what is new begins empty, and what is another server's any more is forgotten.
    pub fn follows(&mut self, at: usize, map: Map) {
        if map.version <= self.hosts[at].map.version || !self.hosts[at].lives {
            return;
        }
        self.hosts[at].keys.retain(|key, _| map.owners[*key] == at);
        for key in 0..map.owners.len() {
            let is_mine = map.owners[key] == at && self.map.owners[key] == at;
            if is_mine && !self.hosts[at].keys.contains_key(&key) && self.moving[key].is_none() {
                let newborn = self.profile.terms.atomic.then(|| self.newborn(at, key, &map));
                self.adopts(at, key, None, newborn);
            }
        }
        let now = self.local(at);
        (self.hosts[at].map, self.hosts[at].map_since) = (map, now);
        self.asks_for_fences(at);
    }

    /// Gives a key copies on so many other servers.
    pub fn heats(&mut self, key: usize, count: usize) {
        let at = self.map.owners[key];
        if !self.hosts[at].lives || self.hosts[at].stopped || self.moving[key].is_some() {
            return;
        }
        let places: Vec<(u8, ServerId)> = self.places(key, at, count);
        let (terms, now, host) = (self.profile.terms, self.local(at), &mut self.hosts[at]);
        let Some(here) = host.keys.get_mut(&key) else { return };
        if places.is_empty() || here.leaves_to.is_some() || here.newborn.is_some() {
            return;
        }
        if let Some(home) = &mut here.home {
            let before = home.shadows().count();
            places.iter().for_each(|(suffix, server)| home.widen(*suffix, *server));
            if home.shadows().count() > before {
                self.sim.met.count("widened");
            }
        } else {
            // What is not there gets no copies.
            if here.stored.is_none() {
                return;
            }
            let grant = Grant::new(host.map.version, host.grants);
            host.grants += 1;
            here.home = Some(Home::new(terms, grant, &places));
            (here.invalidates, here.heard) = (false, now);
            self.tell(key, || format!("home {at} copies it to {places:?}, {grant:?}"));
        }
        self.says(at, key);
    }

    pub fn cools(&mut self, key: usize) {
        let at = self.map.owners[key];
        if !self.hosts[at].lives || self.hosts[at].stopped {
            return;
        }
        let here = self.hosts[at].keys.get_mut(&key);
        if let Some(home) = here.and_then(|here| here.home.as_mut()) {
            home.cools();
            self.tell(key, || format!("home {at} cools it"));
            self.says(at, key);
        }
    }
}
