use crate::{CacheletId, ServerId, WorkerId};

/// A worker of a server: an address of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    pub server: ServerId,
    pub worker: WorkerId,
}

/// Who has each cachelet by the coordinator's word; never empty, never edited: a change is a new
/// map with a higher version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterMap {
    version: u64,
    /// By cachelet; a power of two.
    owners: Vec<Owner>,
    /// What to shift a hash by to leave the cachelet's bits, less one so that one cachelet works.
    shift: u32,
}

impl ClusterMap {
    /// Panics unless there are 2^n ≤ 65,536 owners.
    pub fn new(version: u64, owners: Vec<Owner>) -> ClusterMap {
        assert!(owners.len().is_power_of_two() && owners.len() <= 1 << 16);
        let shift = 63 - owners.len().trailing_zeros();
        ClusterMap { version, owners, shift }
    }

    /// The map of a server without peers: its workers take the cachelets in turn.
    pub fn alone(server: ServerId, workers: u16, cachelets: usize) -> ClusterMap {
        let owner = |at| Owner { server, worker: WorkerId((at % workers as usize) as u16) };
        ClusterMap::new(1, (0..cachelets).map(owner).collect())
    }

    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn cachelets(&self) -> usize {
        self.owners.len()
    }

    #[inline]
    pub fn cachelet_of(&self, hash: u64) -> CacheletId {
        CacheletId((hash >> 1 >> self.shift) as u16)
    }

    /// True if no cachelet is another server's.
    pub fn serves_all(&self, server: ServerId) -> bool {
        self.owners.iter().all(|owner| owner.server == server)
    }

    #[inline]
    pub fn owner(&self, cachelet: CacheletId) -> Owner {
        self.owners[cachelet.0 as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_belongs_to_the_cachelet_of_its_highest_bits() {
        let one = ClusterMap::alone(ServerId(0), 1, 1);
        assert_eq!(one.cachelet_of(u64::MAX), CacheletId(0));
        let many = ClusterMap::alone(ServerId(0), 3, 1 << 16);
        assert_eq!(many.cachelet_of(0xabcd_0000_0000_0000), CacheletId(0xabcd));
        assert_eq!(many.owner(CacheletId(5)).worker, WorkerId(2));
    }
}
