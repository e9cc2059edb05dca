//! The cluster map, followed: which cachelets this server has, and where the others are.
//!
//! What leaves by a new map is dropped, and what comes begins empty; items travel by a move. A cachelet that leaves or comes by one is
//! passed over here: its move is told of the map.

use std::sync::Arc;

use mbal_cachelet::Birth;
use mbal_migration::{Incarnation, destination, source};
use mbal_model::planted::{Fault, is_planted};
use mbal_model::{
    Cluster, ClusterMap, Elsewhere, Instant, Owner, Prefix, Seconds, ServerId, WorkerId,
};

use crate::moving::moves::Side;
use crate::shared::Shared;
use crate::time::Now;

impl Shared {
    /// Which server of its cluster this is; 0 without one.
    pub fn here(&self) -> ServerId {
        self.map.here()
    }

    /// Of the newest map that any worker has heard of.
    pub fn map_version(&self) -> u64 {
        self.map.version()
    }

    /// Which server of which cluster this is; `None` without one.
    pub fn cluster(&self) -> Option<(ServerId, Arc<Cluster>)> {
        self.map.cluster()
    }

    /// A worker of this server, as planners name it.
    pub fn address(&self, worker: WorkerId) -> Owner {
        Owner { server: self.here(), worker }
    }

    /// A map of the cluster, unless a newer one is known. The workers are to be told too ([`crate::Event::Mapped`]). Not in a batch.
    pub fn follow(&self, here: ServerId, cluster: Arc<Cluster>, now: Seconds) {
        let make = |here, map: &ClusterMap| self.is_settled(here, map, now);
        self.map.follow(here, cluster, make, || self.moves.is_empty());
    }

    /// Goes on until the store is as the map says. Not between [`mbal_cachelet::Cachelets::enter`] and its `leave`.
    pub(crate) fn settle(&self, now: Seconds) {
        let make = |here, map: &ClusterMap| self.is_settled(here, map, now);
        self.map.settle(make, || self.moves.is_empty());
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
            self.copies.born(prefix, version, self.map.others(), Instant::from_secs(now.into()));
        }
        let worker = WorkerId(owner.worker.0 % self.settings.workers);
        let generation = if is_planted(Fault::BornTooOld) { 0 } else { version as u16 };
        self.store.adopt(prefix, worker, Birth { generation, flush_number: 0 })
    }

    /// This server owns what is here before that moment, and never then, by a clock that goes on while the machine sleeps. Zero: it
    /// owns nothing.
    pub fn own_until(&self, until: Instant) {
        self.lease.own_until(until);
    }

    /// It owns by a lease, so workers have to look at it.
    #[inline]
    pub fn owns_by_lease(&self) -> bool {
        self.lease.is_there()
    }

    /// Gives up all that is here, since the lease is over: moves end, cachelets are dropped. To be called until nothing is left, which is
    /// `None`; else whom to tell that there is something to carry. Not in a batch.
    pub fn fence_off(&self, now: Now) -> Option<Vec<WorkerId>> {
        // No move begins any more.
        self.set_incarnation(Incarnation(0));
        self.map.give_to_nobody();
        let mut wake = Vec::new();
        for one in self.moves_here() {
            let has_ended = match &mut one.lock().side {
                Side::Leaves(leaver) => {
                    let heard = leaver.source.handle(Instant::ZERO, source::Event::HandedOver);
                    heard.expect("a map is no answer");
                    leaver.source.is_over()
                }
                Side::Comes(arriver) => {
                    let heard = arriver.destination.handle(destination::Event::Ended);
                    heard.expect("a word is no message");
                    false
                }
            };
            match has_ended {
                true => self.move_has_ended(one.id),
                false => wake.push(one.worker),
            }
        }
        self.settle(now.second);
        let is_left = self.moves_under_way() > 0 || !self.store.prefixes().is_empty();
        is_left.then_some(wake)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use mbal_cachelet::{Memory, Options, Store};
    use mbal_migration::{Begin, Incarnation, Order, Request};
    use mbal_model::{MoveId, MoveLink};

    use super::*;
    use crate::{MoveDecision, MoveMessage, MoveTold, Settings};

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
        let kind = Request::Begin(begin).encode(&mut payload);
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
        let refused = mbal_migration::Response::Refused(mbal_migration::Refusal::NoRoom);
        let mut payload = Vec::new();
        let kind = refused.encode(&mut payload);
        assert_eq!(begins(&shared, MoveId(2), quarter), Some((kind, payload)));
    }
}
