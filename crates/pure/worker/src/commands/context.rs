//! What requests are executed with.

use mbal_model::{Instant, Key, MapVersion, Owner, Route, ServerId, WorkerId};
use mbal_wire::{Limits, Login};

use crate::moving::moves::{NO_MOVE, Owning, Whereabouts};
use crate::observing::conns::ConnInfo;
use crate::observing::counters::{ClassCounters, Counters};
use crate::shared::Shared;
use crate::time::Now;

/// What a worker knows as an event begins.
#[derive(Clone, Copy)]
pub(crate) struct Here {
    /// This worker of this server.
    pub owner: Owner,
    pub now: Now,
    pub map_version: u64,
    /// Since when it knows of that map.
    pub map_since: Instant,
    /// No cachelet of the map is another server's.
    pub alone: bool,
    /// The lease by which this server owns is over: what is here is nobody's.
    pub lapsed: bool,
    /// By the clock that leases are counted by.
    pub lease_now: Instant,
}

/// What the requests of one connection are executed with, as far as none of them changes it.
#[derive(Clone, Copy)]
pub(crate) struct Context<'w> {
    pub here: Here,
    pub shared: &'w Shared,
    pub counters: &'w Counters,
    /// By class of size.
    pub classes: &'w [ClassCounters],
    /// Streams of log lines that somebody watches.
    pub watched: u32,
    /// The connection that asks.
    pub info: &'w ConnInfo,
}

impl<'w> Context<'w> {
    #[inline]
    pub fn new(shared: &'w Shared, here: Here, info: &'w ConnInfo) -> Context<'w> {
        let worker = usize::from(here.owner.worker.0);
        Context {
            here,
            shared,
            counters: shared.counters(worker),
            classes: shared.class_counters(worker),
            watched: shared.log.watched(),
            info,
        }
    }

    #[inline]
    pub fn now(&self) -> Now {
        self.here.now
    }

    #[inline]
    pub fn route(&self, key: &Key<'_>) -> Route {
        let route = self.shared.store.route(self.here.owner.worker, key.hash());
        match route {
            Route::Peer(_) => route,
            _ if self.here.lapsed => Route::Peer(ServerId::NOBODY),
            // It serves in a round trip, most often: as a slice that is on its way.
            _ if self.shared.is_newborn(key.hash(), self.now()) => Route::Moving(NO_MOVE),
            _ => route,
        }
    }

    pub fn whereabouts(&self, key: &Key<'_>) -> Whereabouts {
        self.whereabouts_by(self.route(key), key)
    }

    /// Of a key whose route is known.
    pub fn whereabouts_by(&self, route: Route, key: &Key<'_>) -> Whereabouts {
        match route {
            Route::Own | Route::Neighbour(_) => Whereabouts::Here,
            Route::Peer(server) => Whereabouts::At(Owning { server, gone: None }),
            Route::Moving(id) => self.shared.moves.whereabouts(id, key.hash()),
        }
    }

    pub fn is_here(&self, key: &Key<'_>) -> bool {
        matches!(self.route(key), Route::Own | Route::Neighbour(_))
    }

    /// The version of what [`crate::commands::hints::view`] tells.
    pub fn version(&self) -> MapVersion {
        MapVersion { map: self.here.map_version, local: self.shared.store.version() }
    }

    /// Counts a key's request, by whose cachelet that is. `owner` is who was found ahead of it, which spares the way there.
    #[inline]
    pub fn count_executed(&self, key: Option<&Key<'_>>, owner: Option<WorkerId>) {
        match (owner, key) {
            (Some(owner), _) => self.count_owner(owner),
            (None, Some(key)) => match self.route(key) {
                Route::Own => self.count_owner(self.here.owner.worker),
                Route::Neighbour(owner) => self.count_owner(owner),
                // Counted where it is forwarded.
                Route::Peer(_) | Route::Moving(_) => {}
            },
            (None, None) => {}
        }
    }

    #[inline]
    fn count_owner(&self, owner: WorkerId) {
        match owner == self.here.owner.worker {
            true => self.counters.requests_own.add(1),
            false => self.counters.requests_neighbour.add(1),
        }
    }

    pub fn limits(&self, login: Login) -> Limits {
        Limits { item_bytes_max: self.shared.settings.item_bytes_max, login }
    }
}
