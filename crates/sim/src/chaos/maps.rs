//! New maps of the cluster: a cachelet goes to another server, where it begins empty.
//!
//! ```text
//!   Remap --> workers of the server that has it --> nothing of it is left there --> all other workers, late, in any order
//! ```
//! So no two servers have a key at a time; between, a request finds no route. Whoever orders maps has to see to that:
//! a server takes what a map gives it.

use std::sync::Arc;

use mbal_model::{ClusterMap, Owner, Prefix, WorkerId};
use mbal_worker::Event;

use super::coverage::Sight;
use super::history::{Asks, Micros, Op, Told};
use super::hosts::{host_of, id_of};
use super::profile::BITS_MAX;
use super::seat::Letter;
use super::world::{Happening, World};

/// Maps come so much later than other letters, at most.
const LATE: Micros = 20;

#[derive(Default)]
pub struct Maps {
    /// The last is the newest.
    all: Vec<Arc<ClusterMap>>,
    /// A cachelet that its server has to give up, before others hear of the newest map.
    leaving: Option<(Prefix, usize)>,
    /// Letters that have not arrived.
    underway: usize,
    /// How many maps have replaced another, and whether all servers are as the newest says.
    changes: u64,
    settled: bool,
}

impl Maps {
    pub fn new(first: Option<Arc<ClusterMap>>) -> Maps {
        let all = Vec::from_iter(first);
        Maps { all, leaving: None, underway: 0, changes: 0, settled: true }
    }

    pub fn newest(&self) -> Option<&Arc<ClusterMap>> {
        self.all.last()
    }

    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// What a request notes when it is asked: if this is not [`Maps::changes`] when it is answered, keys were between two servers.
    pub fn changes_known(&self) -> u64 {
        if self.settled { self.changes } else { u64::MAX }
    }

    /// Every server that a key has been with.
    pub fn homes(&self, hash: u64) -> Vec<usize> {
        let mut homes: Vec<usize> =
            self.all.iter().map(|map| host_of(map.at(hash).1.server)).collect();
        homes.sort_unstable();
        homes.dedup();
        // A server that is alone.
        if homes.is_empty() { vec![0] } else { homes }
    }
}

impl World {
    pub fn remap(&mut self) {
        if self.asked_all() {
            return;
        }
        if self.maps.leaving.is_none() {
            self.give_away();
        }
        let longest = self.profile.remap;
        let pause = self.dice.skewed(1..=longest);
        self.after(pause, Happening::Remap);
    }

    /// A new map, in which a cachelet, or half of one, is another server's.
    fn give_away(&mut self) {
        let newest = Arc::clone(self.maps.newest().expect("there are several servers"));
        let mut owners = newest.cachelets().to_vec();
        let at = self.dice.below(owners.len());
        let (mut prefix, owner) = owners[at];
        if owners.iter().filter(|(_, other)| other.server == owner.server).count() < 2 {
            return;
        }
        if self.dice.percent(25) && prefix.bits() < BITS_MAX {
            let (lower, upper) = prefix.halves().expect("it is wide enough");
            owners[at].0 = lower;
            owners.push((upper, owner));
            prefix = upper;
        }
        let from = host_of(owner.server);
        let to = (from + 1 + self.dice.below(self.hosts.len() - 1)) % self.hosts.len();
        let worker = WorkerId(self.dice.below(self.profile.workers) as u16);
        let moved = owners.iter_mut().find(|(other, _)| *other == prefix).expect("it is there");
        moved.1 = Owner { server: id_of(to), worker };
        let map = ClusterMap::new(newest.version() + 1, owners).expect("they cover what they did");
        self.maps.all.push(Arc::new(map));
        self.maps.leaving = Some((prefix, from));
        self.maps.changes += 1;
        self.maps.settled = false;
        self.coverage.meet(Sight::MapChanged);
        self.tell_workers_of(from);
    }

    fn tell_workers_of(&mut self, host: usize) {
        let map = Arc::clone(self.maps.newest().expect("there are several servers"));
        for seat in self.hosts[host].seats.clone() {
            let longest = LATE * self.profile.delay;
            let delay = self.dice.skewed(1..=longest);
            let letter = Letter::Mapped { map: Arc::clone(&map) };
            self.after(delay, Happening::Letter { seat, letter, sent: self.now });
            self.maps.underway += 1;
        }
    }

    pub fn mapped(&mut self, seat: usize, map: Arc<ClusterMap>) {
        self.maps.underway -= 1;
        let host = self.seats[seat].host;
        let claims = &mut self.hosts[host].claims;
        if map.version() < claims.map {
            self.coverage.meet(Sight::MapLate);
        }
        claims.map = claims.map.max(map.version());
        self.coverage.meet(Sight::EventMapped);
        self.handle_and_look(seat, Event::Mapped { here: id_of(host), map });
    }

    /// Hands over an event that may have a server follow its map, and looks at what came of it.
    pub fn handle_and_look(&mut self, seat: usize, event: Event<'_>) {
        let host = self.seats[seat].host;
        let before = self.hosts[host].store().prefixes();
        self.handle(seat, event);
        let after = self.hosts[host].store().prefixes();
        for gone in before.iter().filter(|prefix| !after.contains(prefix)) {
            self.drop_items(host, *gone);
        }
        self.look_at_owners(host);
        for other in (0..self.hosts.len()).filter(|other| *other != host) {
            let others = self.hosts[other].store().prefixes();
            let twice = after.iter().find(|prefix| others.iter().any(|at| at.overlaps(**prefix)));
            if let Some(twice) = twice {
                self.fail(1, format!("servers {host} and {other} both have {twice}"));
            }
        }
        if let Some((prefix, from)) = self.maps.leaving {
            let newest = self.maps.newest().expect("it moves by a map").version();
            let is_left = self.hosts[from].store().prefixes().iter().any(|at| at.overlaps(prefix));
            if self.hosts[from].claims.map == newest && !is_left {
                self.maps.leaving = None;
                for host in (0..self.hosts.len()).filter(|host| *host != from) {
                    self.tell_workers_of(host);
                }
            }
        }
        if self.maps.underway == 0 && self.maps.leaving.is_none() {
            let newest = self.maps.newest().expect("it is followed");
            self.maps.settled = newest
                .cachelets()
                .iter()
                .all(|(prefix, owner)| self.hosts[host_of(owner.server)].store().is_here(*prefix));
        }
    }

    /// For the checkers a cachelet that is dropped is flushed.
    fn drop_items(&mut self, host: usize, prefix: Prefix) {
        for key in 0..self.profile.keys.len() {
            if prefix.contains(self.profile.keys[key].hash()) {
                self.coverage.meet(Sight::Dropped);
                self.history.ops.push(Op {
                    key,
                    connection: usize::MAX / 2 - self.history.ops.len(),
                    place: 0,
                    host,
                    breaks: 0,
                    changes: 0,
                    unordered: false,
                    asked: self.now,
                    answered: self.now,
                    evictions: (0, 0),
                    asks: Asks::Flush { delay: 0 },
                    told: Told::Done { cas: 0 },
                    quiet: false,
                });
            }
        }
    }
}
