//! Who serves which key, seen from above: no two servers serve one, and while they do not agree about it answers may fail.

use mbal_model::{Prefix, Route, ServerId, WorkerId};

use super::history::Micros;
use super::hosts::{host_of, id_of};
use super::world::World;

/// Of each key: whether servers may disagree about who serves it.
#[derive(Default)]
pub struct Flux {
    in_flux: Vec<bool>,
    /// When they agreed at last.
    agreed: Vec<Micros>,
    /// How often it has begun to travel.
    journeys: Vec<u64>,
    /// The server that has had it by all maps and moves.
    homes: Vec<Home>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Home {
    Unknown,
    One(usize),
    Several,
}

impl Flux {
    pub fn new(keys: usize) -> Flux {
        Flux {
            in_flux: vec![false; keys],
            agreed: vec![0; keys],
            journeys: vec![0; keys],
            homes: vec![Home::Unknown; keys],
        }
    }

    pub fn journeys(&self, key: usize) -> u64 {
        self.journeys[key]
    }

    /// The server that has had a key all the time; `None` if there were several.
    pub fn home(&self, key: usize) -> Option<usize> {
        match self.homes[key] {
            Home::One(host) => Some(host),
            Home::Unknown | Home::Several => None,
        }
    }
}

impl World {
    /// The server that has a key, by the newest map.
    pub fn owner_of(&self, hash: u64) -> Option<usize> {
        let owner = self.control.file.map.as_ref()?.at(hash).1.server;
        (owner != ServerId::NOBODY).then(|| host_of(owner))
    }

    /// True if a process executes requests for this key.
    pub fn serves(&self, host: usize, hash: u64) -> bool {
        self.has(host, hash) && self.hosts[host].is_up && self.owns(host)
    }

    fn has(&self, host: usize, hash: u64) -> bool {
        let route = self.hosts[host].store().route(WorkerId(0), hash);
        matches!(route, Route::Own | Route::Neighbour(_))
    }

    pub fn begin_flux(&mut self, prefix: Prefix, travels: bool) {
        for key in 0..self.profile.keys.len() {
            if prefix.contains(self.profile.keys[key].hash()) {
                self.flux.in_flux[key] = true;
                self.flux.journeys[key] += u64::from(travels);
                if travels {
                    // A slice that has gone is another server's, whatever becomes of the move.
                    self.flux.homes[key] = Home::Several;
                }
            }
        }
    }

    /// A new map says who has each key.
    pub fn note_owners(&mut self) {
        for key in 0..self.profile.keys.len() {
            let Some(owner) = self.owner_of(self.profile.keys[key].hash()) else { continue };
            let home = &mut self.flux.homes[key];
            *home = match *home {
                Home::Unknown => Home::One(owner),
                Home::One(known) if known == owner => Home::One(owner),
                Home::One(_) | Home::Several => Home::Several,
            };
        }
    }

    /// A process is gone: its keys are nobody's for a while.
    pub fn begin_flux_at(&mut self, host: usize) {
        for key in 0..self.profile.keys.len() {
            let hash = self.profile.keys[key].hash();
            let is_its = self.owner_of(hash) == Some(host);
            let is_present = self.hosts[host].store().cachelet_of(hash).is_some();
            self.flux.in_flux[key] |= is_its || is_present;
        }
    }

    /// A process begins that knows of nobody.
    pub fn begin_flux_of_all(&mut self) {
        self.flux.in_flux.fill(true);
    }

    /// True if servers may have disagreed about who serves a key, at some moment after `since`.
    pub fn in_flux(&mut self, key: usize, since: Micros) -> bool {
        if self.flux.in_flux[key] && self.agree(key) {
            self.flux.in_flux[key] = false;
            self.flux.agreed[key] = self.now;
        }
        self.flux.in_flux[key] || self.flux.agreed[key] > since
    }

    pub fn any_in_flux(&mut self, since: Micros) -> bool {
        (0..self.profile.keys.len()).any(|key| self.in_flux(key, since)) || self.any_newborn()
    }

    /// A cachelet has begun empty, and serves nothing yet, be it that strangers alone ask for its keys.
    fn any_newborn(&self) -> bool {
        let Some(map) = self.control.file.map.as_ref() else { return false };
        let mut first = Some(0);
        std::iter::from_fn(|| {
            let (prefix, owner) = map.at(first?);
            first = prefix.last_hash().checked_add(1);
            Some((prefix, host_of(owner.server)))
        })
        .any(|(prefix, host)| {
            let here = self.hosts.get(host).filter(|here| here.is_up);
            here.is_some_and(|here| {
                here.server.is_newborn(prefix.first_hash(), self.earliest_clock(host))
            })
        })
    }

    /// All processes know who serves it, who does, and does not move it.
    fn agree(&self, key: usize) -> bool {
        let hash = self.profile.keys[key].hash();
        let Some(owner) = self.owner_of(hash) else { return false };
        let moves = self.control.file.moves.values().any(|one| one.prefix.contains(hash));
        let begins = self.earliest_clock(owner);
        !moves
            && self.serves(owner, hash)
            && !self.hosts[owner].server.is_newborn(hash, begins)
            && self.up_hosts().filter(|host| *host != owner).all(|host| {
                let route = self.hosts[host].store().route(WorkerId(0), hash);
                route == Route::Peer(id_of(owner))
            })
    }

    /// What is known of a key's place, for whoever looks for a fault.
    pub fn whereabouts(&self, key: usize) -> String {
        let hash = self.profile.keys[key].hash();
        let routes: Vec<_> = self
            .up_hosts()
            .map(|host| (host, self.hosts[host].store().route(WorkerId(0), hash)))
            .collect();
        format!("owner {:?}, routes {routes:?}", self.owner_of(hash))
    }

    /// Invariant 1, across servers.
    pub fn look_at_places(&mut self, all_keys: bool) {
        if !self.is_clustered() {
            return;
        }
        let owning: Vec<usize> = self.up_hosts().filter(|host| self.owns(*host)).collect();
        if owning.len() < 2 {
            return;
        }
        for key in 0..self.profile.keys.len() {
            if !all_keys && !self.flux.in_flux[key] {
                continue;
            }
            let hash = self.profile.keys[key].hash();
            let mut serving = owning.iter().copied().filter(|host| self.has(*host, hash));
            if let (Some(one), Some(other)) = (serving.next(), serving.next()) {
                let what = format!(
                    "servers {one} and {other} both serve key {key}, {hash:x}: {}",
                    self.whereabouts(key)
                );
                return self.fail(1, what);
            }
        }
    }
}
