//! Invariant 1 of docs/design/invariants.md: under one version, a key has one owner.
//!
//! The store is looked at after everything that may change an owner, and what clients are told of a version is
//! compared with what it said then.

use std::collections::BTreeMap;
use std::ops::Range;

use mbal_cachelet::Store;
use mbal_model::{ClusterView, MapVersion, Prefix, ServerId, WorkerId};

use super::checks::Violation;

/// Where each run of hashes begins that has one owner; `None` is no worker of this server.
type Owners = Vec<(u64, Option<WorkerId>)>;

pub struct Claims {
    /// The version of the newest map that the server has been told of.
    pub map: u64,
    /// By local version.
    owners: BTreeMap<u64, Owners>,
    /// Local versions at which it had no lease: it serves nothing, and tells of the map as it was.
    without_lease: Vec<Range<u64>>,
    /// At the last look: the version, and what the store said. Mostly it says the same again.
    last: (u64, Vec<(Prefix, WorkerId)>),
}

impl Claims {
    pub fn new(store: &Store) -> Claims {
        let mut claims = Claims {
            map: 1,
            owners: BTreeMap::new(),
            without_lease: Vec::new(),
            last: (u64::MAX, Vec::new()),
        };
        claims.look(store, &[]).expect("nothing was claimed before");
        claims
    }

    /// Something has changed its owner since the last look.
    pub fn is_behind(&self, store: &Store) -> bool {
        self.owners.last_key_value().is_none_or(|(newest, _)| *newest < store.version())
    }

    /// Looks at the store, to which some cachelets may be on their way; the number of changes since the last look.
    pub fn look(&mut self, store: &Store, coming: &[Prefix]) -> Result<u64, Violation> {
        let version = store.version();
        let comes = coming.iter().filter_map(|&one| Some((one, store.owner(one)?)));
        let known = self.last.1.iter().copied();
        if version == self.last.0 && store.owners().chain(comes.clone()).eq(known) {
            return Ok(0);
        }
        let mut held: Vec<_> = store.owners().collect();
        self.last.0 = version;
        self.last.1.clone_from(&held);
        self.last.1.extend(comes);
        for &prefix in coming {
            // Of its slices those that have arrived are told of.
            if let Some(owner) = store.owner(prefix) {
                held.retain(|(other, _)| *other != prefix);
                held.push((prefix, owner));
            }
        }
        held.sort_unstable_by_key(|(prefix, _)| *prefix);
        let owners = runs(held.iter().copied())
            .ok_or_else(|| Violation::new(1, format!("cachelets overlap: {held:?}")))?;
        let newest = self.owners.last_key_value().map_or(version, |(newest, _)| *newest);
        if version < newest {
            return Err(Violation::new(1, format!("version {version} after {newest}")));
        }
        let before = self.owners.entry(version).or_insert_with(|| owners.clone());
        if *before != owners {
            return Err(Violation::new(1, format!("two owners under version {version}")));
        }
        Ok(version - newest)
    }

    /// From this version on nothing is served.
    pub fn has_no_lease(&mut self, store: &Store) {
        self.without_lease.push(store.version()..u64::MAX);
    }

    pub fn has_a_lease(&mut self, store: &Store) {
        if let Some(last) = self.without_lease.last_mut() {
            last.end = last.end.min(store.version());
        }
    }

    fn at(&self, version: MapVersion) -> Option<&Owners> {
        self.owners.get(&version.local).filter(|_| (1..=self.map).contains(&version.map))
    }

    /// Several changes came at once, and this was one of the first of them.
    fn passed_by(&self, version: MapVersion) -> bool {
        let newest = self.owners.last_key_value().map_or(0, |(newest, _)| *newest);
        version.local < newest && !self.owners.contains_key(&version.local)
    }

    /// A client was told that at `version` a prefix of the hash was a worker's.
    pub fn told(&self, version: MapVersion, hash: u64, worker: WorkerId) -> Result<(), Violation> {
        let owner = self.at(version).and_then(|owners| owner_at(owners, hash));
        if owner == Some(worker) || self.passed_by(version) {
            return Ok(());
        }
        let what = format!(
            "a client was told that {hash:x} is {worker:?}'s at {version}; it is {owner:?}'s"
        );
        Err(Violation::new(1, what))
    }

    /// A client was told of a map.
    pub fn knows(&self, map: u64) -> Result<(), Violation> {
        let is_known = (1..=self.map).contains(&map);
        let what = || Violation::new(1, format!("a client was told of map {map}"));
        if is_known { Ok(()) } else { Err(what()) }
    }

    /// The same of all prefixes that the map gives to server `here`: the payload of `config get mbal`. The version that it is of.
    pub fn told_all(&self, here: ServerId, payload: &str) -> Result<MapVersion, Violation> {
        let strange = || Violation::new(1, format!("no map of the server: {payload:?}"));
        let view = ClusterView::parse(payload).map_err(|_| strange())?;
        let own = view.cluster.map.cachelets().iter();
        let own = own.filter(|(_, owner)| owner.server == here);
        let told = runs(own.map(|(prefix, owner)| (*prefix, owner.worker))).ok_or_else(strange)?;
        if self.without_lease.iter().any(|versions| versions.contains(&view.version().local)) {
            return Ok(view.version());
        }
        let known = self.at(view.version()).ok_or_else(strange)?;
        let starts = told.iter().chain(known).map(|(first, _)| *first);
        // While a cachelet travels the server may not have what the map gives to it, or the other way round.
        let agrees = |hash| match (owner_at(known, hash), owner_at(&told, hash)) {
            (Some(known), Some(told)) => known == told,
            _ => true,
        };
        if starts.into_iter().all(agrees) { Ok(view.version()) } else { Err(strange()) }
    }
}

fn owner_at(runs: &Owners, hash: u64) -> Option<WorkerId> {
    let after = runs.partition_point(|(first, _)| *first <= hash);
    runs[after - 1].1
}

/// From cachelets in the order of their prefixes; `None` if they are not, or overlap.
fn runs(cachelets: impl Iterator<Item = (Prefix, WorkerId)>) -> Option<Owners> {
    let mut runs = Owners::new();
    let mut add = |first, owner| {
        if runs.last().is_none_or(|(_, last)| *last != owner) {
            runs.push((first, owner));
        }
    };
    let mut next = Some(0);
    for (prefix, owner) in cachelets {
        let first = prefix.first_hash();
        let end = next.filter(|end| *end <= first)?;
        if end < first {
            add(end, None);
        }
        add(first, Some(owner));
        next = prefix.last_hash().checked_add(1);
    }
    if let Some(end) = next {
        add(end, None);
    }
    Some(runs)
}
