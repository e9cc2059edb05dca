//! The servers of a run, each with what the run knows of it.

use std::ops::Range;
use std::sync::Arc;

use mbal_cachelet::Store;
use mbal_model::{Prefix, ServerId, WorkerId};
use mbal_worker::{Event, Shared};

use super::balancing::Balancing;
use super::claims::Claims;
use super::coverage::Sight;
use super::history::{Micros, SECOND};
use super::maps::without_addresses;
use super::memory;
use super::operator::Orders;
use super::profile::Profile;
use super::seat::Seat;
use super::world::{Happening, World};

/// A server's clock shows this when the run begins, and so much more for each server before it: clocks differ.
const FIRST_SECOND: u32 = 2;
const SECONDS_APART: u32 = 1_000;

pub struct Host {
    pub server: Arc<Shared>,
    /// Its workers, among the seats of all.
    pub seats: Range<usize>,
    pub first_second: u32,
    /// Cachelets that are being split.
    pub splitting: Vec<Prefix>,
    pub orders: Orders,
    pub claims: Claims,
    pub balancing: Balancing,
    /// As far as they have been added to the run's.
    pub evictions: u64,
    /// How often a connection had its share of requests in a turn.
    pub yields: u64,
}

impl Host {
    pub fn store(&self) -> &Store {
        &self.server.store
    }

    pub fn second(&self, now: Micros) -> u32 {
        self.first_second + (now / SECOND) as u32
    }
}

/// The server's name in the cluster.
pub fn id_of(host: usize) -> ServerId {
    ServerId(host as u16 + 1)
}

pub fn host_of(id: ServerId) -> usize {
    usize::from(id.0) - 1
}

/// Servers without their clients, and the workers of all.
pub fn all(profile: &Profile) -> (Vec<Host>, Vec<Seat>) {
    let mut hosts = Vec::new();
    let mut seats = Vec::new();
    for host in 0..profile.servers {
        let memory = memory::of(profile.memory_bytes);
        let store = Store::with_memory(profile.options(), memory);
        let server = Arc::new(Shared::new(profile.settings(), store));
        let first = seats.len();
        seats.extend(
            (0..profile.workers).map(|worker| Seat::new(host, WorkerId(worker as u16), &server)),
        );
        hosts.push(Host {
            seats: first..seats.len(),
            first_second: FIRST_SECOND + host as u32 * SECONDS_APART,
            splitting: Vec::new(),
            orders: Orders::default(),
            claims: Claims::new(&server.store),
            balancing: Balancing::new(&server, profile),
            evictions: 0,
            yields: 0,
            server,
        });
    }
    (hosts, seats)
}

impl World {
    /// Every worker is told the map before anything else happens.
    pub fn begin_cluster(&mut self) {
        let Some(map) = self.maps.newest().cloned() else { return };
        for seat in 0..self.seats.len() {
            let here = id_of(self.seats[seat].host);
            self.coverage.meet(Sight::EventMapped);
            self.handle(seat, Event::Mapped { here, cluster: without_addresses(&map) });
        }
        for host in &mut self.hosts {
            host.claims = Claims::new(&host.server.store);
            host.claims.map = map.version();
            host.balancing = Balancing::new(&host.server, &self.profile);
        }
        self.begin_links();
        if self.profile.remap > 0 {
            self.after(0, Happening::Remap);
        }
    }

    pub fn is_clustered(&self) -> bool {
        self.hosts.len() > 1
    }
}
