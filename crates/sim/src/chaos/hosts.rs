//! The servers of a run, each with what the run knows of it; their processes begin, stop, go on and die.

use std::ops::Range;
use std::sync::Arc;

use mbal_cachelet::Store;
use mbal_model::{MapVersion, Prefix, ServerId, WorkerId};
use mbal_worker::Shared;

use super::balancing::Balancing;
use super::checks::Violation;
use super::claims::Claims;
use super::clock::Clock;
use super::connection::End;
use super::control::Caller;
use super::coverage::Sight;
use super::faults::Mending;
use super::history::{ALL_KEYS, Asks, Micros, Observed, Op};
use super::member::Member;
use super::memory;
use super::migrator::Migrator;
use super::operator::Orders;
use super::profile::Profile;
use super::scaling::AgesTold;
use super::seat::Seat;
use super::world::{Happening, World};

/// A server's clock shows this when the run begins, and so much more for each server before it: clocks differ.
const FIRST_SECOND: u32 = 2;
const SECONDS_APART: u32 = 1_000;
/// When a process goes on that was stopped, its threads do not do so at once.
const LATE_THREADS: Micros = 10_000;

pub struct Host {
    pub server: Arc<Shared>,
    /// Its workers, among the seats of all.
    pub seats: Range<usize>,
    pub clock: Clock,
    /// Counts its processes.
    pub life: u32,
    pub is_up: bool,
    /// SIGSTOP: it does nothing, and what comes waits.
    pub is_stopped: bool,
    /// What its threads would have done meanwhile, in order.
    deferred: Vec<Happening>,
    pub member: Member,
    pub migrator: Migrator,
    pub ages: AgesTold,
    /// Cachelets that have been ordered to come here.
    pub coming: Vec<Prefix>,
    /// Cachelets that are being split.
    pub splitting: Vec<Prefix>,
    pub orders: Orders,
    pub claims: Claims,
    /// Of its processes before.
    pub claims_before: Vec<Claims>,
    pub balancing: Balancing,
    /// As far as they have been added to the run's.
    pub evictions: u64,
    /// How often a connection had its share of requests in a turn.
    pub yields: u64,
    /// Keys with copies, when it was last looked.
    pub copied: usize,
}

/// What stores that are no more have counted.
#[derive(Default)]
pub struct Past {
    pub evictions: u64,
    pub refused: u64,
}

impl Host {
    pub fn store(&self) -> &Store {
        &self.server.store
    }

    pub fn second(&self, now: Micros) -> u32 {
        self.clock.second(now)
    }

    /// A client was told by one of its processes who owns a key; see [`Claims::told`].
    pub fn told(&self, version: MapVersion, hash: u64, worker: WorkerId) -> Result<(), Violation> {
        let told = self.claims.told(version, hash, worker);
        match self.claims_before.iter().any(|before| before.told(version, hash, worker).is_ok()) {
            true => Ok(()),
            false => told,
        }
    }

    /// A client was told of a map by one of its processes.
    pub fn knows(&self, map: u64) -> Result<(), Violation> {
        match self.claims_before.iter().any(|before| before.knows(map).is_ok()) {
            true => Ok(()),
            false => self.claims.knows(map),
        }
    }

    /// The same of all prefixes; see [`Claims::told_all`].
    pub fn told_all(&self, here: ServerId, payload: &str) -> Result<MapVersion, Violation> {
        let told = self.claims.told_all(here, payload);
        let mut before = self.claims_before.iter().map(|before| before.told_all(here, payload));
        match before.find(Result::is_ok) {
            Some(before) => before,
            None => told,
        }
    }

    /// It has a process that does something.
    pub fn runs(&self) -> bool {
        self.is_up && !self.is_stopped
    }
}

/// The server's name in the cluster.
pub fn id_of(host: usize) -> ServerId {
    ServerId(host as u16 + 1)
}

pub fn host_of(id: ServerId) -> usize {
    usize::from(id.0) - 1
}

fn server(profile: &Profile) -> Arc<Shared> {
    let memory = memory::of(profile.memory_bytes);
    let store = match profile.servers {
        1 => Store::with_memory(profile.options(), memory),
        _ => Store::vacant(profile.options(), memory).expect("addresses can be had"),
    };
    Arc::new(Shared::new(profile.settings(), store))
}

/// Servers without their clients, and the workers of all.
pub fn all(profile: &Profile) -> (Vec<Host>, Vec<Seat>) {
    let mut hosts = Vec::new();
    let mut seats = Vec::new();
    for host in 0..profile.servers {
        let server = server(profile);
        let first = seats.len();
        seats.extend(
            (0..profile.workers).map(|worker| Seat::new(host, WorkerId(worker as u16), &server)),
        );
        let first_second = FIRST_SECOND + host as u32 * SECONDS_APART;
        hosts.push(Host {
            seats: first..seats.len(),
            clock: Clock::new(first_second, profile.drifts[host]),
            life: 0,
            is_up: host < profile.servers_first,
            is_stopped: false,
            deferred: Vec::new(),
            member: Member::new(profile, host, 0, &server),
            migrator: Migrator::new(profile),
            ages: AgesTold::default(),
            coming: Vec::new(),
            splitting: Vec::new(),
            orders: Orders::default(),
            claims: Claims::new(&server.store),
            claims_before: Vec::new(),
            balancing: Balancing::new(&server, profile),
            evictions: 0,
            yields: 0,
            copied: 0,
            server,
        });
    }
    (hosts, seats)
}

impl World {
    /// Servers begin, and everything around them.
    pub fn begin_cluster(&mut self) {
        self.note_owners();
        self.begin_links();
        for host in 0..self.hosts.len() {
            if self.hosts[host].is_up {
                self.begin_process(host);
            } else {
                let longest = 40 * self.profile.think;
                let pause = self.dice.between(1..=longest);
                self.mend_after(pause, Mending::ServerBegins { host, life: 0 });
            }
        }
        let pilot = Happening::PilotWakes { life: 0 };
        for happening in [Happening::Plan, pilot, Happening::Wish, Happening::Trouble] {
            self.after(0, happening);
        }
        if self.profile.autoscales {
            let (caller, ask) = (Caller::Operator, Box::new(self.autoscale()));
            self.after(1, Happening::Called { caller, ask });
        }
        if self.profile.ownership.is_some() {
            self.after(0, Happening::LookAtKeys);
        }
    }

    pub fn is_clustered(&self) -> bool {
        self.hosts.len() > 1
    }

    pub fn up_hosts(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.hosts.len()).filter(|host| self.hosts[*host].is_up)
    }

    /// A thread of a process does something now; or later, since the process is stopped; or never, since it is dead.
    pub fn may_do(&mut self, host: usize, life: u32, happening: Happening) -> Option<Happening> {
        let this = &mut self.hosts[host];
        if this.life != life || !this.is_up {
            return None;
        }
        if this.is_stopped {
            this.deferred.push(happening);
            return None;
        }
        Some(happening)
    }

    pub fn stop(&mut self, host: usize) {
        if self.hosts[host].runs() {
            self.coverage.meet(Sight::ServerStopped);
            self.tell(|| format!("server {host} is stopped"));
            self.hosts[host].is_stopped = true;
        }
    }

    pub fn go_on(&mut self, host: usize) {
        if !self.hosts[host].is_up || !self.hosts[host].is_stopped {
            return;
        }
        self.tell(|| format!("server {host} goes on"));
        self.hosts[host].is_stopped = false;
        for happening in std::mem::take(&mut self.hosts[host].deferred) {
            match self.profile.ownership {
                // Other threads may look at the lease later than workers serve.
                Some(_) => {
                    let pause = self.dice.skewed(1..=LATE_THREADS);
                    self.after(pause, happening);
                }
                None => self.happen(happening),
            }
        }
        for seat in self.hosts[host].seats.clone() {
            self.wake_stopped(seat);
        }
    }

    /// The process is gone, with all that it held.
    pub fn die(&mut self, host: usize) {
        if !self.hosts[host].is_up {
            return;
        }
        self.coverage.meet(Sight::ServerDied);
        self.tell(|| format!("server {host} dies"));
        self.meet_if_hot(host, Sight::HotHomeDied, |_| true);
        if self.profile.hot.is_some() && self.hosts[host].server.copies_here().keys > 0 {
            self.coverage.meet(Sight::ShadowDied);
        }
        self.count_what_dies(host);
        self.lose_items(host);
        self.hosts[host].is_up = false;
        self.begin_flux_at(host);
        self.drop_connections(host);
        self.links_die(host);
        self.move_links_die(host);
        let server = server(&self.profile);
        for seat in self.hosts[host].seats.clone() {
            let id = self.seats[seat].id;
            // Answers that it has given may still be on their way.
            let unreachable_at = self.seats[seat].unreachable_at;
            self.seats[seat] = Seat::new(host, id, &server);
            self.seats[seat].unreachable_at = unreachable_at;
        }
        let this = &mut self.hosts[host];
        (this.life, this.is_stopped) = (this.life + 1, false);
        this.deferred.clear();
        this.coming.clear();
        this.splitting.clear();
        this.orders.waiting.clear();
        (this.evictions, this.yields, this.copied) = (0, 0, 0);
        this.member = Member::new(&self.profile, host, this.life, &server);
        this.ages = AgesTold::default();
        let claims = std::mem::replace(&mut this.claims, Claims::new(&server.store));
        this.claims_before.push(claims);
        this.balancing = Balancing::new(&server, &self.profile);
        let old = std::mem::replace(&mut this.server, server);
        let old = Arc::into_inner(old).expect("its workers are gone");
        memory::keep(old.store.into_memory());
    }

    /// A new process begins, and knows nothing.
    pub fn begin(&mut self, host: usize) {
        if self.hosts[host].is_up {
            return;
        }
        self.coverage.meet(if self.hosts[host].life == 0 {
            Sight::ServerJoined
        } else {
            Sight::ServerReturned
        });
        self.tell(|| format!("server {host} begins"));
        self.hosts[host].is_up = true;
        self.begin_process(host);
    }

    /// What a process does first.
    pub fn begin_process(&mut self, host: usize) {
        self.begin_flux_of_all();
        for seat in self.hosts[host].seats.clone() {
            self.seats[seat].begins(self.now);
            self.begin_without_map(seat);
            self.wake(seat);
        }
        self.begin_member(host);
        let life = self.hosts[host].life;
        self.after(0, Happening::BalancerWakes { host, life });
        self.links_begin(host);
    }

    fn count_what_dies(&mut self, host: usize) {
        let stats = self.hosts[host].store().stats();
        if stats.expired > 0 {
            self.coverage.meet(Sight::Expired);
        }
        self.count_evictions(host);
        self.past.evictions += stats.evictions;
        let sums = |at: usize| self.hosts[host].server.sums_of(at).store_no_memory;
        self.past.refused += (0..self.profile.workers).map(sums).sum::<u64>();
    }

    /// For the checkers, what dies with a process, or is fenced off by it, is flushed; perhaps, of a key that was on its way between two.
    pub fn lose_items(&mut self, host: usize) {
        for key in 0..self.profile.keys.len() {
            let hash = self.profile.keys[key].hash();
            let here = self.hosts[host].store();
            let is_present = here.cachelet_of(hash).is_some();
            let mut others = self.up_hosts().filter(|other| *other != host);
            let is_elsewhere = others.any(|other| self.serves(other, hash));
            drop(others);
            if !is_present || is_elsewhere {
                continue;
            }
            let is_certain = !self.in_flux(key, self.now);
            let told = if is_certain { Observed::Done { cas: 0 } } else { Observed::Nothing };
            self.coverage.meet(Sight::Dropped);
            let connection = usize::MAX / 2 - self.history.ops.len();
            self.history.ops.push(Op {
                key,
                connection,
                place: 0,
                session: connection,
                stale: 0,
                host,
                unordered: false,
                is_forgotten: false,
                asked: self.now,
                // Copies are read on until their leases are over.
                answered: self.now + self.profile.hot.as_ref().map_or(0, |hot| hot.lease),
                evictions: (0, 0),
                asks: Asks::Flush { delay: 0 },
                told,
                quiet: false,
            });
        }
        // A flush that is still to come is nothing that a new process knows of.
        let now = self.now;
        let flushes = self.history.ops.iter_mut().filter(|op| op.key == ALL_KEYS);
        for op in flushes {
            if let Asks::Flush { delay } = op.asks {
                op.is_forgotten |= delay > 0 && op.effect_ends(delay) >= now;
            }
        }
    }

    fn drop_connections(&mut self, host: usize) {
        for connection in 0..self.connections.len() {
            let this = &mut self.connections[connection];
            if this.host != host || this.end == End::Closed {
                continue;
            }
            this.end = End::Closed;
            // What the kernel had may still come.
            let at = match self.dice.percent(50) {
                true => this.last_down.max(self.now) + 1,
                false => self.now,
            };
            self.at(at, Happening::Broken { connection });
        }
    }
}
