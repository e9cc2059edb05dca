//! Which worker of which server to ask for a key: the table of a smart client, and how it stays true.
//!
//! Called by the client library and by the benchmark. [`ketama`] is where clients of stock memcached look. Never dials, never waits, never reads a clock: maps and hints go in, owners
//! come out.
//!
//! ```text
//!   config get mbal ──► Routes::learn ─┐
//!                                      ├─► cachelet -> (server, worker) ──► Routes::route(hash) ──► owner, address
//!   L tokens of replies ► Routes::heed ┘
//! ```

#![forbid(unsafe_code)]

use std::collections::BTreeMap;

mod continuum;
mod copies;
pub mod ketama;
mod md5;

pub use continuum::{Continuum, ContinuumError, POINTS_MAX, Point, SLOTS_MAX, STEPS_MAX};
pub use copies::{Place, copies, place};

use mbal_model::{
    Address, Addresses, Changes, ClusterMap, ClusterView, Hint, Key, MapVersion, Owner, Prefix,
    ServerId, WorkerId,
};

/// Who has each cachelet, as far as a client knows.
#[derive(Clone, Debug)]
pub struct Routes {
    /// Of the map.
    version: u64,
    servers: BTreeMap<ServerId, Server>,
    /// In the prefixes' order, which cover all hashes.
    cachelets: Vec<Cachelet>,
}

#[derive(Clone, Debug)]
struct Server {
    addresses: Addresses,
    /// Of the newest document of its own that was learnt; `None` is none since it started, as far as is known.
    local: Option<u64>,
    /// The newest version that it has told in any way.
    heard: u64,
}

#[derive(Clone, Debug, PartialEq)]
struct Cachelet {
    prefix: Prefix,
    owner: Owner,
    /// By which its owner said so.
    said: MapVersion,
    /// What of it has gone, while it moves.
    gone: Option<Gone>,
    /// Who had it before, or a part of it, until nothing that was asked there is unanswered.
    before: Vec<Owner>,
}

/// Of a cachelet that moves, the hashes up to this one are at its new owner: slices go in the order of hashes (docs/design/moves.md).
#[derive(Clone, Copy, Debug, PartialEq)]
struct Gone {
    last: u64,
    owner: Owner,
}

/// A client follows a move in so many steps at most, since in each one it waits for what is unanswered.
const STEPS_FOLLOWED: u64 = 16;

impl Cachelet {
    /// Who is asked for this hash of it.
    fn at(&self, hash: u64) -> Owner {
        self.gone.filter(|gone| hash <= gone.last).map_or(self.owner, |gone| gone.owner)
    }

    /// Everybody who may have been asked for a hash of it: while somebody is waited for, not who comes after him.
    fn asked(&self) -> Vec<Owner> {
        match (self.before.is_empty(), self.gone) {
            (true, None) => vec![self.owner],
            (true, Some(gone)) => vec![self.owner, gone.owner],
            (false, _) => self.before.clone(),
        }
    }

    /// The reply to a request of this hash, which the owner was asked for, says that it is there: so is what is below it.
    fn has_gone(&mut self, hash: u64, to: Owner) -> bool {
        let step = (self.prefix.last_hash() - self.prefix.first_hash()) / STEPS_FOLLOWED;
        let known = self.gone.filter(|gone| gone.owner == to).map_or(0, |gone| gone.last);
        let from = known.max(self.prefix.first_hash());
        if hash < from || hash - from < step {
            return false;
        }
        self.before = self.asked();
        self.gone = Some(Gone { last: hash, owner: to });
        true
    }

    /// Who has got a part of it says that it is not there.
    fn came_back(&mut self) {
        self.before = self.asked();
        self.gone = None;
    }
}

/// Where a key's requests go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// A worker with a port; of a server whose workers have none, the first.
    pub owner: Owner,
    /// Where they went before. Who keeps the order of its requests waits until nothing is unanswered there, and says
    /// [`Routes::settled`]; then there may be another place.
    pub before: Option<Owner>,
}

/// What a hint was good for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heeded {
    /// The key's cachelet has a new route.
    pub moved: bool,
    /// There is a newer map: this server has it.
    pub ask: Option<ServerId>,
}

impl Server {
    /// `at`: what it leaves open of its addresses is there.
    fn new(addresses: &Addresses, at: Option<&Address>) -> Server {
        let mut addresses = addresses.clone();
        if let Some(at) = at {
            addresses.client = addresses.client.or(at);
            addresses.workers.iter_mut().for_each(|worker| *worker = worker.or(at));
        }
        Server { addresses, local: None, heard: 0 }
    }
}

impl Routes {
    /// By the document that was got `at` this address. What it leaves open of addresses is there too.
    pub fn new(view: &ClusterView, at: &Address) -> Routes {
        let mut routes = Routes { version: 0, servers: BTreeMap::new(), cachelets: Vec::new() };
        routes.learn(view, server_at(view, at), at);
        routes
    }

    /// What `from` answered, whom the client reached `at` this address; `None` is not known to be any of the servers. True if it
    /// was news.
    ///
    /// A newer map replaces all that is known. Of the same map, the cachelets of the answering server count, since nobody else
    /// knows of its loans.
    pub fn learn(&mut self, view: &ClusterView, from: Option<ServerId>, at: &Address) -> bool {
        let MapVersion { map, local } = view.version();
        let all = view.cluster.map.cachelets();
        if map > self.version {
            let open = from.or_else(|| server_at(view, at));
            let server = |(id, addresses): (&ServerId, &Addresses)| {
                let mut server = Server::new(addresses, (Some(*id) == open).then_some(at));
                if Some(*id) == from {
                    (server.local, server.heard) = (Some(local), local);
                }
                (*id, server)
            };
            self.servers = view.cluster.servers.iter().map(server).collect();
            self.version = map;
            let owners = all.iter().map(|(prefix, owner)| {
                let known = if Some(owner.server) == from { local } else { 0 };
                (*prefix, *owner, MapVersion { map, local: known })
            });
            self.replace(owners.collect());
            return true;
        }
        let Some(server) = from.and_then(|from| self.servers.get_mut(&from)) else { return false };
        if map < self.version || server.local.is_some_and(|known| local <= known) {
            return false;
        }
        (server.local, server.heard) = (Some(local), server.heard.max(local));
        let from = from.expect("its server is known");
        let others = self.cachelets.iter().filter(|one| one.owner.server != from);
        let others = others.map(|one| (one.prefix, one.owner, one.said));
        let own = all.iter().filter(|(_, owner)| owner.server == from);
        let own = own.map(|(prefix, owner)| (*prefix, *owner, MapVersion { map, local }));
        let owners: Vec<_> = others.chain(own).collect();
        let covered = owners.iter().map(|(prefix, owner, _)| (*prefix, *owner)).collect();
        // A hint may have told of a map that is newer than this one: then the two do not fit, and that map will come.
        if ClusterMap::new(map, covered).is_ok() {
            self.replace(owners);
        }
        true
    }

    /// What has changed since what is known, by `from`, whom the client reached `at` this address. False: it does not fit, and the whole has
    /// to be asked for.
    pub fn change(&mut self, changes: &Changes, from: ServerId, at: &Address) -> bool {
        let version = changes.version;
        if changes.from.map != self.version || version.map < self.version {
            return false;
        }
        let mut servers = self.servers.clone();
        changes.change_servers(&mut servers, |id, addresses| {
            Server::new(addresses, (id == from).then_some(at))
        });
        let said = |owner: &Owner| MapVersion {
            map: version.map,
            local: if owner.server == from { version.local } else { 0 },
        };
        let kept = self.cachelets.iter().filter(|one| !changes.replaces(one.prefix));
        let kept = kept.map(|one| (one.prefix, one.owner, one.said.max(said(&one.owner))));
        let told = changes.cachelets.iter();
        let told = told.map(|(prefix, owner)| (*prefix, *owner, said(owner)));
        let owners: Vec<_> = kept.chain(told).collect();
        let covered = owners.iter().map(|(prefix, owner, _)| (*prefix, *owner)).collect();
        let is_known = owners.iter().all(|(_, owner, _)| servers.contains_key(&owner.server));
        if !is_known || ClusterMap::new(version.map, covered).is_err() {
            return false;
        }
        for (id, server) in &mut servers {
            if version.map > self.version {
                (server.local, server.heard) = (None, 0);
            }
            if *id == from {
                (server.local, server.heard) =
                    (Some(version.local), server.heard.max(version.local));
            }
        }
        (self.servers, self.version) = (servers, version.map);
        self.replace(owners);
        true
    }

    /// A hint that `asked` gave with its reply to a request of this hash.
    pub fn heed(&mut self, hash: u64, asked: ServerId, hint: Hint) -> Heeded {
        let (version, owner) = match hint {
            Hint::Newer { map } => {
                return Heeded { moved: false, ask: (map > self.version).then_some(asked) };
            }
            Hint::Worker { version, worker } => (version, Owner { server: asked, worker }),
            Hint::Server { version, server, worker } => (version, Owner { server, worker }),
        };
        let ask = (version.map > self.version).then_some(owner.server);
        let Some(server) = self.servers.get_mut(&owner.server) else {
            return Heeded { moved: false, ask: ask.map(|_| asked) };
        };
        if version.map == self.version {
            server.heard = server.heard.max(version.local);
        }
        let at = self.index(hash);
        // What has gone is not there: it has come back.
        let has_gone_there = |gone: Gone| gone.owner.server == asked && hash <= gone.last;
        let is_back = owner.server != asked && self.cachelets[at].gone.is_some_and(has_gone_there);
        if is_back {
            self.cachelets[at].came_back();
        }
        let known = self.cachelets[at].clone();
        let counts = match known.owner.server == owner.server {
            true => known.said <= version,
            // Under one map a cachelet is one server's. Who says otherwise takes part in a move that has not ended, and may
            // have a part of it.
            false => known.said.map < version.map,
        };
        let moved = match counts {
            true => {
                self.cachelets[at] = self.moved(&known, known.prefix, owner, version);
                self.with_port(known.at(hash)) != self.with_port(self.cachelets[at].at(hash))
            }
            // By the map by which the cachelet is known: it is on its way.
            false if known.said.map == version.map && asked == known.owner.server => {
                owner.server != asked && self.cachelets[at].has_gone(hash, owner)
            }
            false => false,
        };
        Heeded { moved: moved || is_back, ask }
    }

    /// The server has started anew, for all that is known: its local versions begin again.
    pub fn forget(&mut self, server: ServerId) {
        if let Some(known) = self.servers.get_mut(&server) {
            (known.local, known.heard) = (None, 0);
        }
        for cachelet in self.cachelets.iter_mut().filter(|one| one.owner.server == server) {
            cachelet.said.local = 0;
        }
    }

    pub fn route(&self, hash: u64) -> Route {
        let cachelet = &self.cachelets[self.index(hash)];
        let owner = self.with_port(cachelet.at(hash));
        let mut before = cachelet.before.iter().map(|before| self.with_port(*before));
        Route { owner, before: before.find(|before| *before != owner) }
    }

    /// Nothing of this hash's cachelet is unanswered at `before`.
    pub fn settled(&mut self, hash: u64, before: Owner) {
        let at = self.index(hash);
        let mut left = std::mem::take(&mut self.cachelets[at].before);
        left.retain(|owner| self.with_port(*owner) != before);
        self.cachelets[at].before = left;
    }

    /// The hash's cachelet, as far as it is known.
    pub fn cachelet(&self, hash: u64) -> Prefix {
        self.cachelets[self.index(hash)].prefix
    }

    /// Who has the copy of this suffix, if that is another server than the key's owner.
    pub fn copy(&self, key: &Key<'_>, suffix: u8) -> Option<Owner> {
        let place = place(key, suffix, self.servers())?;
        let workers =
            self.servers.get(&place.server).map_or(0, |known| known.addresses.workers.len());
        let home = self.route(key.hash()).owner.server;
        (place.server != home)
            .then(|| Owner { server: place.server, worker: place.worker(workers) })
    }

    /// Of the map.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// What an `L` token says to this server: the newest version that was heard of it.
    pub fn heard(&self, server: ServerId) -> MapVersion {
        let heard = self.servers.get(&server).map_or(0, |server| server.heard);
        MapVersion { map: self.version, local: heard }
    }

    /// What to ask this server for news with.
    pub fn known(&self, server: ServerId) -> MapVersion {
        // No server is of version 0 that has, or has ever had, a cachelet.
        let local = self.servers.get(&server).and_then(|known| known.local).unwrap_or(0);
        MapVersion { map: self.version, local }
    }

    pub fn servers(&self) -> impl Iterator<Item = ServerId> {
        self.servers.keys().copied()
    }

    /// All that can be asked.
    pub fn owners(&self) -> impl Iterator<Item = Owner> {
        self.servers.iter().flat_map(|(server, known)| {
            let workers = known.addresses.workers.len().max(1) as u16;
            (0..workers).map(|worker| Owner { server: *server, worker: WorkerId(worker) })
        })
    }

    /// Where it listens; any client's port, if the workers of its server have none of their own.
    pub fn address(&self, owner: Owner) -> Option<&Address> {
        let Addresses { client, workers, .. } = &self.servers.get(&owner.server)?.addresses;
        match workers.is_empty() {
            true => Some(client),
            false => workers.get(usize::from(owner.worker.0)),
        }
    }

    fn with_port(&self, Owner { server, worker: WorkerId(worker) }: Owner) -> Owner {
        let workers = self.servers.get(&server).map_or(0, |known| known.addresses.workers.len());
        Owner { server, worker: WorkerId(worker % workers.max(1) as u16) }
    }

    /// What was known of a cachelet, or of the whole that it was a part of, once it has this owner.
    fn moved(&self, old: &Cachelet, prefix: Prefix, owner: Owner, said: MapVersion) -> Cachelet {
        if prefix == old.prefix && owner.server == old.owner.server {
            // It may still be on its way.
            let is_there = self.with_port(owner) == self.with_port(old.owner);
            let before = if is_there { old.before.clone() } else { old.asked() };
            let gone = old.gone.filter(|gone| self.servers.contains_key(&gone.owner.server));
            return Cachelet { prefix, owner, said, gone, before };
        }
        Cachelet { prefix, owner, said, gone: None, before: old.asked() }
    }

    fn index(&self, hash: u64) -> usize {
        self.cachelets.partition_point(|one| one.prefix.first_hash() <= hash) - 1
    }

    /// From cachelets in any order, which cover all hashes.
    fn replace(&mut self, mut owners: Vec<(Prefix, Owner, MapVersion)>) {
        owners.sort_unstable_by_key(|(prefix, ..)| *prefix);
        let old = std::mem::take(&mut self.cachelets);
        for (prefix, mut owner, mut said) in owners {
            let first = old.partition_point(|one| one.prefix.last_hash() < prefix.first_hash());
            let rest = old[first..].iter();
            let parts: Vec<&Cachelet> =
                rest.take_while(|one| one.prefix.first_hash() <= prefix.last_hash()).collect();
            // A hint that came while the document was on its way.
            if let [part] = parts[..] {
                if part.owner.server == owner.server && said < part.said {
                    (owner, said) = (part.owner, part.said);
                }
            }
            // Each piece has one owner before, so that it is known what to wait for.
            let new = match parts[..] {
                [] => vec![Cachelet { prefix, owner, said, gone: None, before: Vec::new() }],
                [one] => vec![self.moved(one, prefix, owner, said)],
                _ => parts.iter().map(|part| self.moved(part, part.prefix, owner, said)).collect(),
            };
            self.cachelets.extend(new);
        }
    }
}

/// The server that listens there, if the document says so; the only one does.
fn server_at(view: &ClusterView, at: &Address) -> Option<ServerId> {
    let servers = &view.cluster.servers;
    if let (1, Some(only)) = (servers.len(), servers.keys().next()) {
        return Some(*only);
    }
    let listens = |known: &Addresses| known.client == *at || known.workers.contains(at);
    servers.iter().find(|(_, known)| listens(known)).map(|(server, _)| *server)
}

#[cfg(test)]
#[path = "../tests/unit/routes.rs"]
mod tests;
