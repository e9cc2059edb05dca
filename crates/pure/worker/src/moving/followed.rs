//! The cluster's map as a server follows it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use mbal_locks::{Mutex, MutexGuard, ranks};
use mbal_model::planted::{Fault, is_planted};
use mbal_model::{
    Address, Addresses, Chain, Cluster, ClusterMap, Difference, Owner, ServerId, WorkerId,
};

/// Of what has changed from map to map, for clients: servers and cachelets.
const CHANGES_MAX: usize = 16 << 10;

/// Shared by the workers: the first one that hears of a map has the server follow it.
///
/// Two locks: many ask for the map, for a moment; and what makes the store like it takes moves' locks, which may be held by somebody
/// who asks for the map.
pub(crate) struct FollowedMap {
    /// Whoever has this changes the map, or makes the store like it.
    settling: Mutex<ranks::Settling, ()>,
    map: Mutex<ranks::Following, Option<Followed>>,
    /// The store is not yet as the map says.
    unsettled: AtomicBool,
    /// By the newest map that any worker has heard of: its version, and whether no cachelet of it is another server's.
    version: AtomicU64,
    alone: AtomicBool,
}

struct Followed {
    here: ServerId,
    cluster: Arc<Cluster>,
    /// What the store is to be like: the cluster's map; or it without what was this server's, which its lease is over for.
    map: Arc<ClusterMap>,
    /// It is.
    settled: bool,
    /// How often something has happened for which it may not be any more.
    changes: u64,
    changed: Chain<Difference>,
}

impl Default for FollowedMap {
    fn default() -> FollowedMap {
        FollowedMap {
            settling: Mutex::default(),
            map: Mutex::default(),
            unsettled: AtomicBool::new(false),
            version: AtomicU64::new(1),
            alone: AtomicBool::new(true),
        }
    }
}

impl FollowedMap {
    pub fn version(&self) -> u64 {
        self.version.load(Acquire)
    }

    pub fn is_alone(&self) -> bool {
        self.alone.load(Acquire)
    }

    pub fn here(&self) -> ServerId {
        self.map.lock().as_ref().map_or(ServerId(0), |followed| followed.here)
    }

    pub fn cluster(&self) -> Option<(ServerId, Arc<Cluster>)> {
        let followed = self.map.lock();
        followed.as_ref().map(|followed| (followed.here, Arc::clone(&followed.cluster)))
    }

    /// What has changed from that map to the newest; `None` if nobody knows any more.
    pub fn changed_since(&self, version: u64) -> Option<Vec<Difference>> {
        if version == self.version() {
            return Some(Vec::new());
        }
        let followed = self.map.lock();
        Some(followed.as_ref()?.changed.since(version)?.cloned().collect())
    }

    /// The other servers: those that have cachelets, and those that may get some.
    pub fn others(&self) -> Vec<ServerId> {
        let followed = self.map.lock();
        let Some(Followed { here, cluster, .. }) = &*followed else { return Vec::new() };
        let owners = cluster.map.cachelets().iter().map(|(_, owner)| owner.server);
        let named = cluster.servers.keys().copied();
        let others: BTreeSet<ServerId> = owners.chain(named).filter(|one| one != here).collect();
        others.into_iter().collect()
    }

    /// All servers listen at one address, by different ports, for clients and for each other.
    pub fn is_on_one_machine(&self) -> bool {
        let Some((_, cluster)) = self.cluster() else { return false };
        let host = |address: &Address| {
            let is_open = address.ip().is_some_and(|ip| ip.is_unspecified());
            (!is_open).then(|| address.host.clone())
        };
        let hosts = |one: &Addresses| Some((host(&one.client)?, host(one.link.as_ref()?)?));
        let mut all = cluster.servers.values().map(hosts);
        let Some(Some(first)) = all.next() else { return false };
        all.all(|other| other.as_ref() == Some(&first))
    }

    /// A map of the cluster, unless a newer one is known. `make`: see [`FollowedMap::settle`].
    pub fn follow(
        &self,
        here: ServerId,
        cluster: Arc<Cluster>,
        make: impl FnOnce(ServerId, &ClusterMap) -> bool,
        nothing_moves: impl FnOnce() -> bool,
    ) {
        let settling = self.settling.lock();
        let map = &cluster.map;
        // Nobody else changes the map meanwhile.
        let before = self.cluster().filter(|(_, known)| known.map.version() < map.version());
        let difference = before.map(|(_, known)| (known.map.version(), cluster.difference(&known)));
        let mut followed = self.map.lock();
        let is_newer = |known: &Followed| {
            known.cluster.map.version() < map.version() || is_planted(Fault::OlderMapFollowed)
        };
        if followed.as_ref().is_none_or(is_newer) {
            // Before anything leaves: who does not see it has entered its batch before.
            self.alone.store(false, Release);
            self.version.store(map.version(), Release);
            let map = Arc::clone(map);
            let mut changed = followed.take().map(|known| known.changed).unwrap_or_default();
            if let Some((from, difference)) = difference {
                let size = |one: &Difference| one.servers.len() + one.cachelets.len();
                changed.push(from, difference, size, CHANGES_MAX);
            }
            *followed = Some(Followed { here, cluster, map, settled: false, changes: 0, changed });
            self.unsettled.store(true, Relaxed);
        }
        drop(followed);
        self.settle_alone(&settling, make, nothing_moves);
    }

    /// What is this server's by the map is nobody's, until a newer map says otherwise. Clients are told of the map as it is.
    pub fn give_to_nobody(&self) {
        let _settling = self.settling.lock();
        let mut followed = self.map.lock();
        let Some(Followed { here, map, settled, .. }) = &mut *followed else { return };
        let has = |owner: &Owner| owner.server == *here;
        if !map.cachelets().iter().any(|(_, owner)| has(owner)) {
            return;
        }
        let nobody = Owner { server: ServerId::NOBODY, worker: WorkerId(0) };
        let owners = map.cachelets().iter();
        let owners =
            owners.map(|(prefix, owner)| (*prefix, if has(owner) { nobody } else { *owner }));
        let emptied = ClusterMap::new(map.version(), owners.collect());
        *map = Arc::new(emptied.expect("the same prefixes cover as much"));
        self.alone.store(false, Release);
        *settled = false;
        self.unsettled.store(true, Relaxed);
    }

    /// Before a cachelet begins to leave. Its end has the map looked at again.
    pub fn something_moves(&self) {
        let _followed = self.map.lock();
        self.alone.store(false, Release);
    }

    /// A move is over: what the map says of its cachelet is to be done.
    pub fn look_again(&self) {
        let mut followed = self.map.lock();
        if let Some(followed) = followed.as_mut() {
            followed.settled = false;
            followed.changes += 1;
            self.unsettled.store(true, Relaxed);
        }
    }

    /// True while there is more to do for the store to be as the map says.
    pub fn is_unsettled(&self) -> bool {
        self.unsettled.load(Relaxed)
    }

    /// Lets `make` do something for the store to be as the map says, unless it is; true if it is then. What is leaving has to be gone before
    /// others come, so it is to be called again.
    pub fn settle(
        &self,
        make: impl FnOnce(ServerId, &ClusterMap) -> bool,
        nothing_moves: impl FnOnce() -> bool,
    ) {
        if self.is_unsettled() {
            let settling = self.settling.lock();
            self.settle_alone(&settling, make, nothing_moves);
        }
    }

    /// Nobody else does it, or changes the map. The map itself is not locked meanwhile.
    fn settle_alone(
        &self,
        _settling: &MutexGuard<'_, ranks::Settling, ()>,
        make: impl FnOnce(ServerId, &ClusterMap) -> bool,
        nothing_moves: impl FnOnce() -> bool,
    ) {
        let followed = self.map.lock();
        let Some(unsettled) = followed.as_ref().filter(|followed| !followed.settled) else {
            return;
        };
        let (here, map, changes) = (unsettled.here, Arc::clone(&unsettled.map), unsettled.changes);
        drop(followed);
        let settled = make(here, &map);
        let mut followed = self.map.lock();
        // A move that has ended meanwhile may not have been over when it was looked at.
        let same = |followed: &&mut Followed| followed.changes == changes;
        if let Some(followed) = followed.as_mut().filter(same) {
            // Everything has come before anybody goes by that.
            let alone = settled && map.serves_all(here) && nothing_moves();
            self.alone.store(alone, Release);
            followed.settled = settled;
            self.unsettled.store(!settled, Relaxed);
        }
    }
}
