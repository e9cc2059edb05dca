//! The cluster map, followed: which cachelets this server has, and where the others are.
//!
//! What leaves by a new map is dropped, and what comes begins empty; items travel by a move. A cachelet that leaves or comes by one is
//! passed over here: its move is told of the map.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

use mbal_cachelet::Birth;
use mbal_locks::{Mutex, MutexGuard, ranks};
use mbal_model::planted::{Fault, is_planted};
use mbal_model::{
    Cluster, ClusterMap, Elsewhere, Instant, Owner, Prefix, Seconds, ServerId, WorkerId,
};

use crate::Now;
use crate::shared::Shared;
use crate::wakes::Sleeper;
use crate::worker::Worker;

/// Others' batches are over in a moment, unless one has lost its core; a journey may take long.
const SETTLE_AGAIN: Duration = Duration::from_millis(1);
const SETTLE_DOUBLINGS_MAX: u32 = 10;

/// Shared by the workers: the first one that hears of a map has the server follow it.
///
/// Two locks: many ask for the map, for a moment; and what makes the store like it takes moves' locks, which may be held by somebody
/// who asks for the map.
#[derive(Default)]
pub(crate) struct Following {
    /// Whoever has this changes the map, or makes the store like it.
    settling: Mutex<ranks::Settling, ()>,
    map: Mutex<ranks::Following, Option<Followed>>,
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
}

impl Following {
    fn map(&self) -> MutexGuard<'_, ranks::Following, Option<Followed>> {
        self.map.lock()
    }
}

impl Shared {
    /// Which server of its cluster this is; 0 without one.
    pub fn here(&self) -> ServerId {
        let followed = self.following.map();
        followed.as_ref().map_or(ServerId(0), |followed| followed.here)
    }

    /// Of the newest map that any worker has heard of.
    pub fn map_version(&self) -> u64 {
        self.map_version.load(Acquire)
    }

    /// Which server of which cluster this is; `None` without one.
    pub fn cluster(&self) -> Option<(ServerId, Arc<Cluster>)> {
        let followed = self.following.map();
        followed.as_ref().map(|followed| (followed.here, Arc::clone(&followed.cluster)))
    }

    /// The other servers: those that have cachelets, and those that may get some.
    pub(crate) fn others(&self) -> Vec<ServerId> {
        let followed = self.following.map();
        let Some(Followed { here, cluster, .. }) = &*followed else { return Vec::new() };
        let owners = cluster.map.cachelets().iter().map(|(_, owner)| owner.server);
        let named = cluster.servers.keys().copied();
        let others: BTreeSet<ServerId> = owners.chain(named).filter(|one| one != here).collect();
        others.into_iter().collect()
    }

    /// A worker of this server, as planners name it.
    pub fn address(&self, worker: WorkerId) -> Owner {
        Owner { server: self.here(), worker }
    }

    /// A map of the cluster, unless a newer one is known. The workers are to be told too ([`crate::Event::Mapped`]). Not in a batch.
    pub fn follow(&self, here: ServerId, cluster: Arc<Cluster>, now: Seconds) {
        let settling = self.following.settling.lock();
        let map = &cluster.map;
        let mut followed = self.following.map();
        let is_newer = |known: &Followed| {
            known.cluster.map.version() < map.version() || is_planted(Fault::OlderMapFollowed)
        };
        if followed.as_ref().is_none_or(is_newer) {
            // Before anything leaves: who does not see it has entered its batch before.
            self.alone.store(false, Release);
            self.map_version.store(map.version(), Release);
            let map = Arc::clone(map);
            *followed = Some(Followed { here, cluster, map, settled: false, changes: 0 });
            self.unsettled.store(true, Relaxed);
        }
        drop(followed);
        self.settle_alone(&settling, now);
    }

    /// What is this server's by the map is nobody's, until a newer map says otherwise. Clients are told of the map as it is.
    pub(crate) fn give_to_nobody(&self) {
        let _settling = self.following.settling.lock();
        let mut followed = self.following.map();
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
    pub(crate) fn look_whether_alone(&self) {
        if !self.moves.is_empty() {
            let _followed = self.following.map();
            self.alone.store(false, Release);
        }
    }

    /// A move is over: what the map says of its cachelet is to be done.
    pub(crate) fn look_at_map_again(&self) {
        let mut followed = self.following.map();
        if let Some(followed) = followed.as_mut() {
            followed.settled = false;
            followed.changes += 1;
            self.unsettled.store(true, Relaxed);
        }
    }

    /// True while there is more to do for the store to be as the map says.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.unsettled.load(Relaxed)
    }

    /// Goes on until the store is as the map says: what is leaving has to be gone before others come.
    /// Not between [`mbal_cachelet::Store::enter`] and its `leave`.
    pub(crate) fn settle(&self, now: Seconds) {
        if !self.unsettled.load(Relaxed) {
            return;
        }
        let settling = self.following.settling.lock();
        self.settle_alone(&settling, now);
    }

    /// Nobody else does it, or changes the map. The map itself is not locked meanwhile.
    fn settle_alone(&self, _settling: &MutexGuard<'_, ranks::Settling, ()>, now: Seconds) {
        let followed = self.following.map();
        let Some(unsettled) = followed.as_ref().filter(|followed| !followed.settled) else {
            return;
        };
        let (here, map, changes) = (unsettled.here, Arc::clone(&unsettled.map), unsettled.changes);
        drop(followed);
        let settled = self.is_settled(here, &map, now);
        let mut followed = self.following.map();
        // A move that has ended meanwhile may not have been over when it was looked at.
        let same = |followed: &&mut Followed| followed.changes == changes;
        if let Some(followed) = followed.as_mut().filter(same) {
            // Everything has come before anybody goes by that.
            let alone = settled && map.serves_all(here) && self.moves.is_empty();
            self.alone.store(alone, Release);
            followed.settled = settled;
            self.unsettled.store(!settled, Relaxed);
        }
    }

    fn is_settled(&self, here: ServerId, map: &ClusterMap, now: Seconds) -> bool {
        let store = &self.store;
        // Before the moves are listed: one that begins and comes whole meanwhile is not taken for what has no business here.
        let present = store.prefixes();
        // None begins before that is released: what has left since it was listed may be coming again, as another of its name.
        let moves = self.moves.with_all(|moves| {
            let is_still = |prefix: &Prefix| !moves.iter().any(|one| one.prefix.overlaps(*prefix));
            for prefix in present.into_iter().filter(is_still) {
                // One that is wider than the map's goes as a whole if a part of it has to.
                let mut others = map.overlapping(prefix).filter(|(_, owner)| owner.server != here);
                if let Some((_, owner)) = others.next() {
                    store.release(prefix, Elsewhere::Peer(owner.server));
                }
            }
            moves
        });
        let on_its_way = |prefix: Prefix| moves.iter().any(|one| one.prefix.overlaps(prefix));
        for one in &moves {
            one.follow(map.version(), map.at(one.prefix.first_hash()).1.server == here);
        }
        while store.drop_released(now) {}
        let mut settled = true;
        for prefix in store.prefixes().into_iter().filter(|prefix| !on_its_way(*prefix)) {
            // The map has it in parts. Its owner splits it, a slice at a time, and it is looked at again.
            if map.at(prefix.first_hash()).0.bits() > prefix.bits() {
                store.split(prefix, now);
                settled = false;
            }
        }
        for &(prefix, owner) in map.cachelets() {
            // The end of its move has the map looked at again.
            if on_its_way(prefix) {
                continue;
            }
            settled &= if owner.server == here {
                store.is_here(prefix) || self.bear(prefix, owner, map.version(), now)
            } else {
                store.point(prefix, Elsewhere::Peer(owner.server))
            };
        }
        settled
    }

    fn bear(&self, prefix: Prefix, owner: Owner, version: u64, now: Seconds) -> bool {
        // Of the first map nobody was an owner before.
        if version > 1 {
            self.copies.born(prefix, Instant::from_secs(now.into()));
        }
        let worker = WorkerId(owner.worker.0 % self.settings.workers);
        let generation = if is_planted(Fault::BornTooOld) { 0 } else { version as u16 };
        self.store.adopt(prefix, worker, Birth { generation, flush_number: 0 })
    }
}

impl Worker {
    /// What is to leave waits for batches of other workers: looks again a moment later.
    pub(crate) fn settle_later(&mut self, now: Now) {
        if !self.shared.is_unsettled() {
            self.unsettled = 0;
            return self.wakes.forget(Sleeper::Map);
        }
        let pause = SETTLE_AGAIN * (1 << self.unsettled.min(SETTLE_DOUBLINGS_MAX));
        self.unsettled += 1;
        self.wakes.forget(Sleeper::Map);
        self.wakes.set(now.instant() + pause, Sleeper::Map);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use mbal_cachelet::{Memory, Options, Store};
    use mbal_migration::{Ask, Begin, Incarnation, Order};
    use mbal_model::MoveId;

    use super::*;
    use crate::{MoveDecision, MoveLink, MoveMessage, MoveTold, Settings};

    const BYTES: usize = 64 << 20;
    const HERE: ServerId = ServerId(1);
    const PEER: ServerId = ServerId(2);

    /// Half of the hashes for each server.
    fn cluster(version: u64) -> Arc<Cluster> {
        let owners = [HERE, PEER].map(|server| Owner { server, worker: WorkerId(0) });
        let map = ClusterMap::new(version, Prefix::equal(1).zip(owners).collect());
        Arc::new(Cluster::without_addresses(map.expect("they cover all")))
    }

    fn shared() -> Shared {
        let options = Options {
            memory_bytes: BYTES,
            workers: 1,
            cachelets: 16,
            item_bytes_max: 1 << 20,
            evict: true,
            generation: 0,
        };
        let store = Store::vacant(options, Memory::heap(BYTES)).expect("there is memory");
        let settings = Settings { workers: 1, memory_bytes: BYTES as u64, ..Settings::default() };
        let shared = Shared::new(settings, store);
        shared.set_incarnation(Incarnation(1));
        shared.follow(HERE, cluster(1), 0);
        shared
    }

    /// Server 2 begins to move its half here.
    fn begins(shared: &Shared, id: MoveId, prefix: Prefix) -> Option<(u8, Vec<u8>)> {
        let begin = Begin {
            prefix,
            source: Incarnation(2),
            destination: Incarnation(1),
            worker: WorkerId(0),
            generation: 1,
            gone: None,
        };
        let mut payload = Vec::new();
        let kind = Ask::Begin(begin).encode(&mut payload);
        let message = MoveMessage { from: PEER, link: MoveLink(1), id, kind, payload: &payload };
        shared.move_asked(now(), &message).expect("it can be meant so").answer
    }

    fn now() -> Now {
        Now { second: 100, unix: 1_700_000_000, micros: 0 }
    }

    /// Server 2's half comes here whole.
    fn arrives(shared: &Shared, id: MoveId, prefix: Prefix) {
        assert_eq!(begins(shared, id, prefix), None);
        let birth = Birth { generation: 1, flush_number: 0 };
        assert!(shared.store.begin_to_arrive(prefix, WorkerId(0), birth, PEER));
        shared.store.serve_until(prefix, prefix.last_hash());
    }

    /// `meanwhile` is done while somebody follows a map, and waits for the lock of a move of the first half.
    fn while_a_map_is_followed(shared: &Shared, prefix: Prefix, meanwhile: impl FnOnce() + Send) {
        let order = Order {
            id: MoveId(1),
            prefix,
            source: Incarnation(1),
            destination: Incarnation(2),
            worker: WorkerId(0),
            generation: 1,
        };
        let told =
            MoveTold { order, from: HERE, to: PEER, word: MoveDecision::Go, age_thresholds: None };
        shared.moves_told(now(), &[told], 1);
        let leaving = shared.moves_here().remove(0);
        let held = leaving.lock();
        thread::scope(|scope| {
            let follows = scope.spawn(|| shared.follow(HERE, cluster(2), 0));
            // The moves and this test know it. Whoever follows has it too, when moves have been listed.
            while Arc::strong_count(&leaving) < 3 {
                thread::yield_now();
            }
            scope.spawn(meanwhile).join().expect("nobody is in its way");
            drop(held);
            follows.join().expect("it can be followed");
        });
    }

    #[test]
    fn what_comes_whole_while_a_map_is_followed_is_not_dropped() {
        let shared = shared();
        let halves: Vec<Prefix> = Prefix::equal(1).collect();
        while_a_map_is_followed(&shared, halves[0], || arrives(&shared, MoveId(2), halves[1]));
        assert!(shared.store.is_here(halves[1]), "its source has it no more");
    }

    #[test]
    fn what_comes_again_while_a_map_is_followed_is_not_taken_for_what_had_left() {
        let shared = shared();
        let halves: Vec<Prefix> = Prefix::equal(1).collect();
        // It was here, and nothing of it moves any more.
        arrives(&shared, MoveId(2), halves[1]);
        shared.moves.remove(MoveId(2));
        while_a_map_is_followed(&shared, halves[0], || {
            // By whoever is faster.
            shared.store.release(halves[1], Elsewhere::Peer(PEER));
            while shared.store.drop_released(0) {}
            arrives(&shared, MoveId(3), halves[1]);
        });
        assert!(shared.store.is_here(halves[1]), "its source has it no more");
    }

    #[test]
    fn who_is_about_to_end_refuses_what_has_not_begun() {
        let shared = shared();
        let other = Prefix::equal(1).nth(1).expect("two halves");
        assert_eq!(begins(&shared, MoveId(1), other), None);
        shared.takes_no_more_moves();
        assert_eq!(begins(&shared, MoveId(1), other), None, "it has begun, and the link broke");
        let (quarter, _) = Prefix::equal(1).next().and_then(|half| half.halves()).expect("wide");
        let refused = mbal_migration::Answer::Refused(mbal_migration::Refusal::NoRoom);
        let mut payload = Vec::new();
        let kind = refused.encode(&mut payload);
        assert_eq!(begins(&shared, MoveId(2), quarter), Some((kind, payload)));
    }
}
