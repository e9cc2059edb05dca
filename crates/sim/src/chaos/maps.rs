//! New maps of the cluster: a cachelet goes to another server, where it begins empty.
//!
//! ```text
//!   Remap --> workers of the server that has it --> nothing of it is left there --> all other workers, late, in any order
//! ```
//! So no two servers have a key at a time; between, a request finds no route. Whoever orders maps has to see to that:
//! a server takes what a map gives it.

use std::sync::Arc;

use mbal_model::{Cluster, ClusterMap, Owner, Prefix, WorkerId};
use mbal_worker::Event;

use super::coverage::Sight;
use super::history::{Asks, Micros, NEVER, Op, Told};
use super::hosts::{host_of, id_of};
use super::journeys::Journey;
use super::profile::BITS_MAX;
use super::seat::Letter;
use super::world::{Happening, World};

/// Maps come so much later than other letters, at most.
const LATE: Micros = 20;

#[derive(Default)]
pub struct Maps {
    /// The last is the newest.
    all: Vec<Arc<ClusterMap>>,
    /// A cachelet on its way, with its items; then there is no other change.
    pub journey: Option<Journey>,
    /// Cachelets that have travelled with their items, or still do.
    travelled: Vec<Prefix>,
    /// A cachelet that its server has to give up, before others hear of the newest map.
    leaving: Option<(Prefix, usize)>,
    /// Letters that have not arrived.
    underway: usize,
    /// In the order in which they began.
    changes: Vec<Change>,
}

/// A cachelet of which something goes to another server, and when the last server had heard of it.
struct Change {
    prefix: Prefix,
    settled: Micros,
}

impl Maps {
    pub fn new(first: Option<Arc<ClusterMap>>) -> Maps {
        let all = Vec::from_iter(first);
        Maps { all, ..Maps::default() }
    }

    pub fn newest(&self) -> Option<&Arc<ClusterMap>> {
        self.all.last()
    }

    /// Those that some server had not heard of at some moment since then.
    fn unsettled(&self, since: Micros) -> impl Iterator<Item = &Change> {
        self.changes.iter().rev().take_while(move |change| change.settled >= since)
    }

    pub fn begin_change(&mut self, prefix: Prefix) {
        self.changes.push(Change { prefix, settled: NEVER });
    }

    /// A cachelet begins to travel with its items.
    pub fn travels(&mut self, prefix: Prefix) {
        self.travelled.push(prefix);
    }

    /// A map that nobody has heard of.
    pub fn add(&mut self, map: ClusterMap) {
        self.all.push(Arc::new(map));
    }

    /// How often a key has travelled with its item.
    pub fn journeys(&self, hash: u64) -> usize {
        self.travelled.iter().filter(|prefix| prefix.contains(hash)).count()
    }

    pub fn is_changing(&self, since: Micros) -> bool {
        self.unsettled(since).next().is_some()
    }

    /// True if servers disagreed about who has the key, at some moment since then.
    pub fn moves(&self, hash: u64, since: Micros) -> bool {
        self.unsettled(since).any(|change| change.prefix.contains(hash))
    }

    /// The server that has a key, by the newest map.
    pub fn host(&self, hash: u64) -> Option<usize> {
        self.newest().map(|map| host_of(map.at(hash).1.server))
    }

    /// The server that has had a key all the time; `None` if there were several.
    pub fn home(&self, hash: u64) -> Option<usize> {
        let mut homes = self.all.iter().map(|map| host_of(map.at(hash).1.server));
        // A server that is alone has no map.
        let first = homes.next().unwrap_or(0);
        homes.all(|home| home == first).then_some(first)
    }
}

/// What a worker is told: nobody dials here.
pub fn without_addresses(map: &ClusterMap) -> Arc<Cluster> {
    Arc::new(Cluster::without_addresses(map.clone()))
}

impl World {
    pub fn remap(&mut self) {
        if self.asked_all() {
            return;
        }
        if self.maps.leaving.is_none() && self.maps.journey.is_none() {
            let travels = self.dice.percent(50) && self.begin_journey();
            if !travels {
                self.give_away();
            }
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
        let from = host_of(owner.server);
        // All of it is dropped, be it half of it that leaves; and what there is may be wider than the map's.
        let cachelets = self.hosts[from].store().prefixes();
        let wide =
            cachelets.into_iter().find(|at| at.overlaps(prefix) && at.bits() < prefix.bits());
        let whole = wide.unwrap_or(prefix);
        if owners.iter().filter(|(_, other)| other.server == owner.server).count() < 2 {
            return;
        }
        if self.dice.percent(25) && prefix.bits() < BITS_MAX {
            let (lower, upper) = prefix.halves().expect("it is wide enough");
            owners[at].0 = lower;
            owners.push((upper, owner));
            prefix = upper;
        }
        let to = (from + 1 + self.dice.below(self.hosts.len() - 1)) % self.hosts.len();
        let worker = WorkerId(self.dice.below(self.profile.workers) as u16);
        let moved = owners.iter_mut().find(|(other, _)| *other == prefix).expect("it is there");
        moved.1 = Owner { server: id_of(to), worker };
        let map = ClusterMap::new(newest.version() + 1, owners).expect("they cover what they did");
        self.maps.all.push(Arc::new(map));
        self.maps.leaving = Some((prefix, from));
        self.maps.begin_change(whole);
        self.coverage.meet(Sight::MapChanged);
        self.tell_workers_of(from);
    }

    pub fn tell_workers_of(&mut self, host: usize) {
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
        let cluster = without_addresses(&map);
        self.handle_and_look(seat, Event::Mapped { here: id_of(host), cluster });
    }

    /// Hands over an event that may have a server follow its map, and looks at what came of it.
    pub fn handle_and_look(&mut self, seat: usize, event: Event<'_>) {
        let host = self.seats[seat].host;
        let before = self.hosts[host].store().prefixes();
        self.handle(seat, event);
        let after = self.hosts[host].store().prefixes();
        for prefix in before {
            // One that has been split is here by other names.
            if !self.hosts[host].store().is_here(prefix) {
                self.drop_items(host, prefix);
            }
        }
        self.look_at_owners(host);
        for other in (0..self.hosts.len()).filter(|other| *other != host) {
            let others = self.hosts[other].store().prefixes();
            // Of one that travels, each has slices that the other does not serve.
            let travels = self.maps.journey.as_ref().map(Journey::prefix);
            let mut both = after.iter().filter(|prefix| Some(**prefix) != travels);
            let twice = both.find(|prefix| others.iter().any(|at| at.overlaps(**prefix)));
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
        let Maps { underway, leaving, journey, .. } = &self.maps;
        if *underway == 0 && leaving.is_none() && journey.is_none() && self.all_are_here() {
            let changes = self.maps.changes.iter_mut().rev();
            for change in changes.take_while(|change| change.settled == NEVER) {
                change.settled = self.now;
            }
        }
    }

    /// Every cachelet is where the newest map says.
    pub fn all_are_here(&self) -> bool {
        let Some(newest) = self.maps.newest() else { return true };
        let mut cachelets = newest.cachelets().iter();
        cachelets.all(|(prefix, owner)| self.hosts[host_of(owner.server)].store().is_here(*prefix))
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
