//! The cluster map: which worker has which cachelet.

use crate::{Prefix, ServerId, WorkerId};

/// A worker of a server: an address of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    pub server: ServerId,
    pub worker: WorkerId,
}

/// Who has each cachelet by the coordinator's word. Never edited: a change is a new map with a higher version.
///
/// Its prefixes differ in width, and cover the hashes without a gap or an overlap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterMap {
    version: u64,
    /// In the prefixes' order.
    owners: Vec<(Prefix, Owner)>,
}

/// From this hash on the prefixes leave a gap, or overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uncovered(pub u64);

impl ClusterMap {
    /// From prefixes in any order. O(n log n).
    pub fn new(version: u64, mut owners: Vec<(Prefix, Owner)>) -> Result<ClusterMap, Uncovered> {
        owners.sort_unstable_by_key(|(prefix, _)| *prefix);
        let mut next = Some(0);
        for (prefix, _) in &owners {
            let expected = next.ok_or(Uncovered(prefix.first_hash()))?;
            if prefix.first_hash() != expected {
                return Err(Uncovered(expected.min(prefix.first_hash())));
            }
            next = prefix.last_hash().checked_add(1);
        }
        match next {
            None => Ok(ClusterMap { version, owners }),
            Some(gap) => Err(Uncovered(gap)),
        }
    }

    /// The map of a server without peers: each worker has a run of equally wide cachelets, 2^`bits` in all.
    pub fn alone(server: ServerId, workers: u16, bits: u32) -> ClusterMap {
        let all = 1usize << bits;
        let worker = |at: usize| WorkerId((at * usize::from(workers) / all) as u16);
        let owner = |at| Owner { server, worker: worker(at) };
        let owners = Prefix::equal(bits).enumerate().map(|(at, prefix)| (prefix, owner(at)));
        ClusterMap::new(1, owners.collect()).expect("equal prefixes cover the hashes")
    }

    pub fn version(&self) -> u64 {
        self.version
    }

    /// True if no cachelet is another server's.
    pub fn serves_all(&self, server: ServerId) -> bool {
        self.owners.iter().all(|(_, owner)| owner.server == server)
    }

    /// The cachelets that share hashes with `prefix`, and their owners.
    pub fn overlapping(&self, prefix: Prefix) -> impl Iterator<Item = (Prefix, Owner)> {
        let first =
            self.owners.partition_point(|(other, _)| other.last_hash() < prefix.first_hash());
        let rest = self.owners[first..].iter().copied();
        rest.take_while(move |(other, _)| other.first_hash() <= prefix.last_hash())
    }

    /// Every cachelet and its owner, in the prefixes' order.
    pub fn cachelets(&self) -> &[(Prefix, Owner)] {
        &self.owners
    }

    /// The cachelet that serves `hash`, and its owner. O(log cachelets): a server asks its store instead.
    pub fn at(&self, hash: u64) -> (Prefix, Owner) {
        let after = self.owners.partition_point(|(prefix, _)| prefix.first_hash() <= hash);
        self.owners[after - 1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(server: u16, worker: u16) -> Owner {
        Owner { server: ServerId(server), worker: WorkerId(worker) }
    }

    fn prefix(text: &str) -> Prefix {
        Prefix::parse(text.as_bytes()).expect("a prefix")
    }

    #[test]
    fn a_hash_belongs_to_the_cachelet_of_its_first_bits_however_many() {
        let owners = [("8000/1", at(1, 0)), ("0000/2", at(2, 1)), ("4000/2", at(2, 0))];
        let owners = owners.map(|(text, owner)| (prefix(text), owner));
        let map = ClusterMap::new(7, owners.to_vec()).expect("it covers all");
        assert_eq!(map.at(0), (prefix("0000/2"), at(2, 1)));
        assert_eq!(map.at(0x4000 << 48), (prefix("4000/2"), at(2, 0)));
        assert_eq!(map.at((0x8000 << 48) - 1), (prefix("4000/2"), at(2, 0)));
        assert_eq!(map.at(u64::MAX), (prefix("8000/1"), at(1, 0)));
        let narrow = ClusterMap::alone(ServerId(0), 3, 15);
        assert_eq!(narrow.at(0xabcd_0000_0000_0000).0, prefix("abcc/15"));
    }

    #[test]
    fn gaps_and_overlaps_are_refused_and_named() {
        let uncovered = |texts: &[&str]| {
            let owners = texts.iter().map(|text| (prefix(text), at(0, 0))).collect();
            ClusterMap::new(1, owners).err().map(|Uncovered(hash)| hash >> 48)
        };
        assert_eq!(uncovered(&[]), Some(0));
        assert_eq!(uncovered(&["0000/1"]), Some(0x8000));
        assert_eq!(uncovered(&["8000/1"]), Some(0));
        assert_eq!(uncovered(&["0000/1", "8000/2"]), Some(0xc000));
        assert_eq!(uncovered(&["0000/1", "4000/2", "8000/1"]), Some(0x4000));
        assert_eq!(uncovered(&["0000/0", "c000/2"]), Some(0xc000));
        assert_eq!(uncovered(&["0000/1", "8000/1"]), None);
    }

    #[test]
    fn alone_every_worker_has_a_run() {
        let map = ClusterMap::alone(ServerId(4), 3, 4);
        let workers: Vec<u16> = map.cachelets().iter().map(|(_, owner)| owner.worker.0).collect();
        assert_eq!(workers, [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2]);
    }
}
