//! Invariant 1 of docs/design/invariants.md: under one version, a key has one owner.
//!
//! The store is looked at after everything that may change an owner, and what clients are told of a version is
//! compared with what it said then.

use std::collections::BTreeMap;

use mbal_cachelet::Store;
use mbal_model::{MapVersion, Prefix, WorkerId};

use super::checks::Violation;

/// The map's version of a server alone.
const MAP: u64 = 1;
/// A cachelet can be split in two so often.
const SPLITS_MAX: u32 = 4;

pub struct Claims {
    /// Bits of the finest prefix.
    bits: u32,
    /// By local version: the owner of each of the finest prefixes.
    owners: BTreeMap<u64, Vec<WorkerId>>,
}

impl Claims {
    pub fn new(store: &Store) -> Claims {
        let bits = store.options().cachelets.trailing_zeros() + SPLITS_MAX;
        let mut claims = Claims { bits, owners: BTreeMap::new() };
        claims.look(store).expect("nothing was claimed before");
        claims
    }

    /// No cachelet is split into narrower ones.
    pub fn bits(&self) -> u32 {
        self.bits
    }

    /// Looks at the store; the number of changes since the last look.
    pub fn look(&mut self, store: &Store) -> Result<u64, Violation> {
        let mut owners = Vec::with_capacity(1 << self.bits);
        for held in store.held() {
            owners.resize(owners.len() + (1 << (self.bits - held.prefix.bits())), held.owner);
        }
        let version = store.version();
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

    /// A client was told that at `version` a prefix of the hash was a worker's.
    pub fn told(&self, version: MapVersion, hash: u64, worker: u16) -> Result<(), Violation> {
        let owners = self.owners.get(&version.local).filter(|_| version.map == MAP);
        let owner = owners.map(|owners| owners[(hash >> (64 - self.bits)) as usize]);
        if owner == Some(WorkerId(worker)) {
            return Ok(());
        }
        let what = format!(
            "a client was told that {hash:x} is worker {worker}'s at {version}; it is {owner:?}'s"
        );
        Err(Violation::new(1, what))
    }

    /// The same of all prefixes: the payload of `config get mbal`. The version that it is of.
    pub fn told_all(&self, payload: &str) -> Result<MapVersion, Violation> {
        let strange = || Violation::new(1, format!("no map of the server: {payload:?}"));
        let mut version = None;
        let mut covered = 0u64;
        for line in payload.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match (words.as_slice(), version) {
                (["version", text], None) => version = MapVersion::parse(text.as_bytes()),
                (["worker", ..], Some(_)) => {}
                (["cachelet", prefix, worker], Some(version)) => {
                    let prefix = Prefix::parse(prefix.as_bytes()).ok_or_else(strange)?;
                    let worker = worker.parse().map_err(|_| strange())?;
                    let first = prefix.first_hash() >> (64 - self.bits);
                    let run = 1 << (self.bits - prefix.bits());
                    if first != covered {
                        return Err(strange());
                    }
                    covered += run;
                    for place in first..first + run {
                        self.told(version, place << (64 - self.bits), worker)?;
                    }
                }
                _ => return Err(strange()),
            }
        }
        version.filter(|_| covered == 1 << self.bits).ok_or_else(strange)
    }
}
