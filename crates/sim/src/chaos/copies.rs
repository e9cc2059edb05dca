//! Hot keys: what servers report, and smart clients that ask copies by their leases.

use mbal_control::api::{self, HOT_KEYS_LISTED};
use mbal_model::{Hint, Instant, Key, Owner};
use mbal_replica::{Choice, HomeState, Leases};
use mbal_routing::place;
use mbal_worker::{HotHome, HotMode};

use super::client::{Kind, UNANSWERED_MAX};
use super::clock::Clock;
use super::coverage::Sight;
use super::history::{ALL_KEYS, Asks, Micros, Observed, Op};
use super::hosts::{host_of, id_of};
use super::profile::Profile;
use super::replies::{Form, Reply};
use super::world::World;

/// Of a hundred wake-ups of a client, those in which it asks for a hot key.
pub const HOT_WAKES_PERCENT: usize = 60;
/// Of a hundred requests for hot keys, those that may write.
pub const HOT_WRITES_PERCENT: usize = 4;
/// Sessions of smart clients, among those of connections.
const SMART_SESSIONS: usize = 1 << 40;

/// What a smart client knows of copies.
pub struct Copied {
    leases: Leases,
    clock: Clock,
    /// By key: when the last lease that it was told of ends.
    granted: Vec<Instant>,
    /// By key: the worker of its home, as far as it was told.
    homes: Vec<Option<usize>>,
    /// By worker of any server.
    connections: Vec<Option<usize>>,
}

impl Copied {
    pub fn new(profile: &Profile, client: usize) -> Copied {
        let keys = profile.keys.len();
        Copied {
            leases: Leases::new(16, 16, 0, Instant::ZERO),
            clock: Clock::new(0, profile.client_drifts[client]),
            granted: vec![Instant::ZERO; keys],
            homes: vec![None; keys],
            connections: vec![None; profile.servers * profile.workers],
        }
    }
}

/// How a session is named that is a smart client's, over all its connections.
pub fn session_of(client: usize) -> usize {
    SMART_SESSIONS + client
}

impl Profile {
    /// How far in the past a read may be: 0 where copies are as their home.
    pub fn stale(&self) -> Micros {
        match &self.hot {
            Some(hot) if hot.mode == api::HotMode::Async => hot.lease,
            _ => 0,
        }
    }
}

impl World {
    /// Counts what a heartbeat says of its hottest keys.
    pub fn meet_reported(&mut self, host: usize) {
        if self.profile.hot.is_none() {
            return;
        }
        let homes = self.hosts[host].server.hot_homes(HOT_KEYS_LISTED);
        let copied: Vec<&HotHome> = homes.iter().filter(|home| home.state.is_some()).collect();
        for home in &copied {
            self.coverage.meet(match home.state {
                Some(HomeState::Hot) => Sight::KeyHot,
                Some(HomeState::HotPending) => Sight::KeyPending,
                _ => Sight::KeyCools,
            });
        }
        if copied.len() < std::mem::replace(&mut self.hosts[host].copied, copied.len()) {
            self.coverage.meet(Sight::KeyRetired);
        }
    }

    /// Counts what clients ask while keys have copies.
    pub fn meet_hot(&mut self, key: usize, asks: Asks) {
        let Some(hot) = &self.profile.hot else { return };
        if let Asks::Flush { .. } = asks {
            for host in 0..self.hosts.len() {
                self.meet_if_hot(host, Sight::HotFlushed, |_| true);
            }
        } else if hot.keys.contains(&key) {
            let hash = self.profile.keys[key].hash();
            let Some(home) = self.owner_of(hash) else { return };
            if asks != Asks::Read {
                self.meet_if_hot(home, Sight::HotWritten, |other| other == hash);
            }
            let here = &self.hosts[home];
            if here.server.is_newborn(hash, here.clock.at(self.now)) {
                self.coverage.meet(Sight::NewbornWaits);
            }
        }
    }

    /// All servers know of the same flushes, and none is under way: the next one has a number of its own.
    pub fn agree_on_flushes(&self) -> bool {
        let mut numbers = self.up_hosts().map(|host| self.hosts[host].store().flush_number());
        let first = numbers.next();
        let is_under_way = |op: &Op| {
            let asked_before = op.asked < self.now || op.is_forgotten;
            op.key == ALL_KEYS && asked_before && op.told == Observed::Nothing
        };
        numbers.all(|number| Some(number) == first) && !self.history.ops.iter().any(is_under_way)
    }

    /// Counts what happens to a server, or to all of its cachelets that `includes` says, while keys have copies.
    pub fn meet_if_hot(&mut self, host: usize, sight: Sight, includes: impl Fn(u64) -> bool) {
        let server = &self.hosts[host].server;
        if self.profile.hot.is_none() || server.hot_terms().mode == HotMode::Off {
            return;
        }
        let is_hot = |home: &HotHome| {
            let hash = Key::new(&home.key).map(|key| key.hash());
            home.state == Some(HomeState::Hot) && hash.is_some_and(&includes)
        };
        if server.hot_homes(usize::MAX).iter().any(is_hot) {
            self.coverage.meet(sight);
        }
    }

    /// A smart client asks for a hot key: a copy of which it has a lease, or the home. True if it did.
    pub fn asks_for_hot(&mut self, client: usize) -> bool {
        let Some(hot) = &self.profile.hot else { return false };
        if self.clients[client].copied.is_none() || !self.dice.percent(HOT_WAKES_PERCENT) {
            return false;
        }
        let key = self.dice.pick(&hot.keys);
        let random = self.dice.bits() as u32;
        let hash = self.profile.keys[key].hash();
        let version = self.map_version();
        let copied = self.clients[client].copied.as_mut().expect("just looked at");
        let now = copied.clock.lease_now(self.now);
        copied.leases.follow(version, now);
        let home = copied.homes[key];
        let (seat, by_lease) = match copied.leases.route(hash, now, random) {
            Choice::Copy { suffix, seen } => (self.seat_of_copy(key, suffix), Some(seen)),
            Choice::Home => (home, None),
        };
        if by_lease.is_some() && self.granted(client, key) <= now {
            self.fail(4, format!("client {client} asks for a copy of key {key} after its lease"));
        }
        // Who knows nobody asks any worker of its server.
        let own = self.hosts[self.clients[client].host].seats.clone();
        let seat = seat.unwrap_or_else(|| own.start + self.dice.below(own.len()));
        if let Some(connection) = self.connection_to(client, seat) {
            self.burst_of_hot(client, connection, key, by_lease);
        }
        true
    }

    fn granted(&self, client: usize, key: usize) -> Instant {
        self.clients[client].copied.as_ref().map_or(Instant::ZERO, |copied| copied.granted[key])
    }

    /// Smart clients of hot keys go by the newest map.
    fn map_version(&self) -> u64 {
        self.control.file.map.as_ref().map_or(0, |map| map.version())
    }

    fn seat_of_copy(&self, key: usize, suffix: u8) -> Option<usize> {
        let name = Key::new(self.profile.keys[key].name.as_bytes()).expect("short enough");
        let place = place(&name, suffix, self.control.file.members.keys().copied())?;
        let worker = place.worker(self.profile.workers);
        Some(self.hosts[host_of(place.server)].seats.start + usize::from(worker.0))
    }

    /// The client's connection to a worker's own port, if it is open and not full.
    fn connection_to(&mut self, client: usize, seat: usize) -> Option<usize> {
        let copied = self.clients[client].copied.as_ref()?;
        let known = copied.connections[seat].filter(|known| self.connections[*known].open);
        let Some(connection) = known else {
            if self.hosts[self.seats[seat].host].is_up {
                let connection = self.connect_by_name(client, seat);
                let copied = self.clients[client].copied.as_mut().expect("just looked at");
                copied.connections[seat] = Some(connection);
            }
            return None;
        };
        (self.connections[connection].asked.len() < UNANSWERED_MAX).then_some(connection)
    }

    /// What a smart client learns of copies from a reply; before the request is settled.
    pub fn heed(&mut self, connection: usize, replied: usize, reply: &Reply) {
        let client = self.connections[connection].client;
        if self.connections[connection].session != session_of(client) {
            return;
        }
        let version = self.map_version();
        let World { clients, connections, history, hosts, profile, coverage, now, .. } = self;
        let Some(copied) = clients[client].copied.as_mut() else { return };
        let here = copied.clock.lease_now(*now);
        copied.leases.follow(version, here);
        for (at, asked) in connections[connection].asked.iter().take(replied + 1).enumerate() {
            for op in &history.ops[asked.ops.0..asked.ops.0 + asked.ops.1] {
                if op.key == ALL_KEYS {
                    continue;
                }
                let hash = profile.keys[op.key].hash();
                let is_answered = at == replied;
                let is_hit = matches!(reply.told.first(), Some(Observed::Hit { .. }));
                let by_lease = matches!(asked.form, Form::Copy { .. });
                match &reply.copies {
                    Some(told) if is_answered => {
                        coverage.meet(Sight::ToldCopies);
                        let sent = copied.clock.lease_now(asked.at);
                        copied.leases.answered(hash, (sent, by_lease), Some(told), here);
                        copied.granted[op.key] = copied.granted[op.key].max(sent + told.lease);
                    }
                    _ if is_answered && by_lease && is_hit && reply.hint.is_none() => {
                        coverage.meet(Sight::CopyAsked);
                        if let Some(replica_version) = reply.replica_version {
                            copied.leases.saw(hash, replica_version, here);
                        }
                    }
                    _ => {
                        if by_lease {
                            coverage.meet(Sight::CopyPassedOn);
                        }
                        copied.leases.without(hash, here);
                    }
                }
                let host = connections[connection].host;
                let seat_at =
                    |host: usize, worker: u16| hosts[host].seats.start + usize::from(worker);
                match reply.hint {
                    Some(Hint::Worker { worker, .. }) if is_answered => {
                        copied.homes[op.key] = Some(seat_at(host, worker.0));
                    }
                    Some(Hint::Server { server, worker, .. }) if is_answered => {
                        copied.homes[op.key] = Some(seat_at(host_of(server), worker.0));
                    }
                    _ => {}
                }
            }
        }
    }

    /// Whom a client of the cluster's map would ask, at first.
    pub fn know_homes(&mut self, client: usize) {
        let Some(map) = self.control.file.map.clone() else { return };
        for key in 0..self.profile.keys.len() {
            let Owner { server, worker } = map.at(self.profile.keys[key].hash()).1;
            let is_one = (0..self.hosts.len()).any(|host| id_of(host) == server);
            if let Some(copied) = self.clients[client].copied.as_mut().filter(|_| is_one) {
                let seats = &self.hosts[host_of(server)].seats;
                copied.homes[key] = Some(seats.start + usize::from(worker.0) % seats.len());
            }
        }
    }

    /// Reads that a server's copies have answered, where some have.
    pub fn copies_read(&self, host: usize) -> u64 {
        match self.profile.hot {
            Some(_) => self.hosts[host].server.copies_here().reads,
            None => 0,
        }
    }

    /// True if the client has no part in leases: its server has it read copies.
    pub fn is_ordinary(&self, connection: usize) -> bool {
        self.clients[self.connections[connection].client].kind == Kind::Ordinary
    }
}
