//! From a key's hash to whoever serves it.
//!
//! `worker` asks it for every request of a server that has peers: one load and two compares. A server that is
//! alone knows its workers' cachelets from the store. Never sends anything.

#![forbid(unsafe_code)]

use mbal_model::{ClusterMap, Owner, ServerId, WorkerId};

/// Who serves a key, seen from one worker (DESIGN §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    Own,
    /// Another worker of this server: executed here all the same.
    Neighbour(WorkerId),
    Peer(ServerId),
}

/// Where `hash` is served by `map`, for a request that reached `here`.
#[inline]
pub fn route(map: &ClusterMap, here: Owner, hash: u64) -> Route {
    let owner = map.owner(map.cachelet_of(hash));
    if owner.server != here.server {
        Route::Peer(owner.server)
    } else if owner.worker != here.worker {
        Route::Neighbour(owner.worker)
    } else {
        Route::Own
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_ways() {
        let at = |server, worker| Owner { server: ServerId(server), worker: WorkerId(worker) };
        let map = ClusterMap::new(7, vec![at(1, 0), at(1, 1), at(2, 0), at(2, 1)]);
        let routes = [0u64, 1, 2, 3].map(|prefix| route(&map, at(1, 0), prefix << 62));
        let [peer, neighbour] = [Route::Peer(ServerId(2)), Route::Neighbour(WorkerId(1))];
        assert_eq!(routes, [Route::Own, neighbour, peer, peer]);
    }
}
