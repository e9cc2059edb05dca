//! Who owns what, for clients that know the workers. Others never see any of it.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use mbal_cachelet::Held;
use mbal_model::{
    Address, Addresses, Cluster, ClusterMap, ClusterView, Hint, Key, MapVersion, Owner, Prefix,
    Route, ServerId, WorkerId,
};
use mbal_wire::{Request, push_line};

use crate::commands::context::Context;
use crate::commands::discovery::config;
use crate::commands::turn::Turn;
use crate::observing::load::key_work;
use crate::shared::Shared;

/// The cluster's map, with the cachelets of this server at the workers that have them now.
pub(crate) fn view(shared: &Shared) -> (ServerId, ClusterView) {
    // Read before the owners: they may be newer than it says, which the next question finds out.
    let local = shared.store.version();
    let held = shared.store.held();
    let (here, cluster) = shared.cluster().unwrap_or_else(|| (ServerId(0), alone(shared)));
    let mut owners = Vec::new();
    for &(prefix, owner) in cluster.map.cachelets() {
        match owner.server == here {
            true => push_held(shared.settings.workers, &mut owners, &held, prefix, owner),
            false => owners.push((prefix, owner)),
        }
    }
    let map = ClusterMap::new(cluster.map.version(), owners);
    let map = Arc::new(map.expect("each cachelet stands for itself or for its parts"));
    let (name, servers) = (cluster.name.clone(), cluster.servers.clone());
    (here, ClusterView { cluster: Cluster { name, map, servers }, local })
}

/// A cachelet of the map's as the store has it: whole, as a part of a wider one, or in parts. While the store is not yet as the
/// map says, it stands as in the map.
fn push_held(
    workers: u16,
    owners: &mut Vec<(Prefix, Owner)>,
    held: &[Held],
    prefix: Prefix,
    by_map: Owner,
) {
    let parts = || held.iter().filter(|held| held.prefix.overlaps(prefix));
    let covered: usize = parts().map(|part| part.prefix.nodes().min(prefix.nodes())).sum();
    if covered != prefix.nodes() {
        let worker = WorkerId(by_map.worker.0 % workers);
        return owners.push((prefix, Owner { worker, ..by_map }));
    }
    for part in parts() {
        let shown = if part.prefix.nodes() > prefix.nodes() { prefix } else { part.prefix };
        owners.push((shown, Owner { worker: part.owner, ..by_map }));
    }
}

/// What a server that is alone takes for its cluster.
fn alone(shared: &Shared) -> Arc<Cluster> {
    let workers: Vec<Address> = shared
        .settings
        .worker_addresses
        .iter()
        .map(|address| Address::at(address.ip(), address.port()))
        .collect();
    let ip = shared.settings.worker_addresses.first().map(|address| address.ip());
    let ip = ip.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let client = Address::at(ip, shared.settings.tcp_port);
    let addresses = Addresses { link: None, client, workers, resolved: None };
    let map = ClusterMap::alone(ServerId(0), shared.settings.workers, 0);
    let servers = BTreeMap::from([(ServerId(0), addresses)]);
    Arc::new(Cluster { servers, ..Cluster::without_addresses(map) })
}

impl Context<'_> {
    /// Such a request found nobody who could be reached; the client may know an older map, by which it chose this server.
    pub fn tell_newer_map(&self, request: &Request<'_>, told: &mut Vec<u8>) {
        let known = match request {
            Request::MetaGet(meta) if request.follows() => meta.version(),
            _ => None,
        };
        if known.is_some_and(|known| known.map < self.here.map_version) {
            push_hint(told, 0, Hint::Newer { map: self.here.map_version });
        }
    }

    /// Who owns the key's cachelet, for a client that has named one that is not this worker's. `None`: it is on its way.
    pub fn owner_elsewhere(&self, key: &Key<'_>) -> Option<Hint> {
        match self.route(key) {
            Route::Own => {
                Some(Hint::Worker { version: self.version(), worker: self.here.owner.worker })
            }
            Route::Neighbour(worker) => Some(Hint::Worker { version: self.version(), worker }),
            Route::Peer(_) => {
                let (_, cluster) = self.shared.cluster()?;
                let Owner { server, worker } = cluster.map.at(key.hash()).1;
                // Of loans in another server nothing is known here.
                let version = MapVersion { map: cluster.map.version(), local: 0 };
                (server != self.shared.here()).then_some(Hint::Server { version, server, worker })
            }
            Route::Moving(_) => None,
        }
    }
}

/// `config get mbal`, in the framing of ElastiCache's auto-discovery. Who has not heard of a map yet knows no newer one.
pub(crate) fn tell_view(
    on: &Context<'_>,
    out: &mut Vec<u8>,
    known: Option<MapVersion>,
    takes_changes: bool,
) {
    // Of an older map a client that goes by changes has no use.
    let is_newer = takes_changes && known.is_some_and(|known| on.here.map_version < known.map);
    if known != Some(on.version()) && on.here.map_version > 0 && !is_newer {
        let (here, view) = view(on.shared);
        let changes = known.filter(|_| takes_changes).and_then(|known| {
            // A newer map than the view's may be followed meanwhile: then more is told than has changed.
            Some(view.changes(here, known, &on.shared.map.changed_since(known.map)?))
        });
        config(out, b"mbal", &changes.unwrap_or_else(|| view.to_string()));
    }
    push_line(out, b"END");
}

/// `config get mbal servers`: what a proxy wants to know, whose upstreams answer for any key.
pub(crate) fn tell_servers(on: &Context<'_>, out: &mut Vec<u8>) {
    if on.here.map_version > 0 {
        let cluster = on.shared.cluster().map_or_else(|| alone(on.shared), |(_, cluster)| cluster);
        config(out, b"mbal", &cluster.without_cachelets());
    }
    push_line(out, b"END");
}

/// Of a client that knows the workers, a request is done whose reply begins at `before`.
pub(crate) fn followed(turn: &mut Turn<'_>, before: usize, request_bytes: usize, key: &Key<'_>) {
    turn.follows = true;
    match turn.on.route(key) {
        Route::Own => {
            let bytes = request_bytes + turn.out.len() - before;
            let work = key_work(1, bytes as u64);
            turn.on.shared.store.count_work(key.hash(), work);
            turn.on.counters.caused_followed.add(work);
        }
        Route::Neighbour(worker) => {
            let version = turn.on.version();
            push_hint(turn.out, before, Hint::Worker { version, worker });
        }
        Route::Peer(_) | Route::Moving(_) => {}
    }
}

/// A request of another server is done whose reply begins at `before`. All its keys count for the first one's cachelet: which of them comes
/// first is chance.
#[inline]
pub(crate) fn linked(turn: &mut Turn<'_>, before: usize, request_bytes: usize, key: &Key<'_>) {
    if turn.on.route(key) == Route::Own {
        let bytes = request_bytes + turn.out.len() - before;
        let keys = 1 + turn.further_keys;
        turn.linked += 1;
        let work = key_work(keys as u64, bytes as u64);
        turn.on.shared.store.count_linked(key.hash(), work);
        turn.on.counters.caused_linked.add(work);
    }
}

/// Such a request was done for another server, which its client has asked: here, and by whom, is news to the client.
#[cold]
pub(crate) fn followed_from_afar(turn: &mut Turn<'_>, before: usize, key: &Key<'_>) {
    let worker = match turn.on.route(key) {
        Route::Own => turn.on.here.owner.worker,
        Route::Neighbour(worker) => worker,
        Route::Peer(_) | Route::Moving(_) => return,
    };
    // A worker may not have heard yet which server it is of.
    let (version, server) = (turn.on.version(), turn.on.shared.here());
    push_hint(turn.out, before, Hint::Server { version, server, worker });
}

/// Adds to the meta reply that begins at `before`, if it is one that has tokens.
#[cold]
pub(crate) fn push_hint(out: &mut Vec<u8>, before: usize, hint: impl fmt::Display) {
    const STATUSES: [&[u8]; 6] = [b"HD", b"VA", b"EN", b"NF", b"NS", b"EX"];
    let reply = &out[before..];
    let Some(end) = memchr::memchr(b'\n', reply).filter(|end| *end > 2) else { return };
    if !STATUSES.contains(&&reply[..2]) {
        return;
    }
    let rest = out.split_off(before + end - 1);
    out.extend_from_slice(format!(" L{hint}").as_bytes());
    out.extend_from_slice(&rest);
}
