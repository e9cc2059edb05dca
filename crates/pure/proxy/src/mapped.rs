//! A cluster of MBal's whose map the proxy is told: each worker is an upstream, and a key is asked of the worker that has it. The
//! servers decide what is right, as for any client: a map that is old, or a copy that has gone, costs a hop between two of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use mbal_model::Key;
use mbal_random::Random;
use mbal_routing::ketama::RingServer;

/// Hashes are told apart by so many of their highest bits.
const SLOT_BITS: u32 = 16;
pub const SLOTS: usize = 1 << SLOT_BITS;

/// Which member of a pool has which hashes: [`SLOTS`] of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slots(Arc<[u16]>);

impl Slots {
    /// `member`: who has the hashes of a slot, by the first of them.
    pub fn new(member: impl Fn(u64) -> u16) -> Slots {
        Slots((0..SLOTS as u64).map(|slot| member(slot << (64 - SLOT_BITS))).collect())
    }

    #[inline]
    pub fn member(&self, key: &[u8]) -> usize {
        let hash = Key::new(key).map_or(0, |key| key.hash());
        self.0[(hash >> (64 - SLOT_BITS)) as usize].into()
    }

    /// Who of `before` has lost hashes by this map, as both name members by `numbers`.
    pub(crate) fn losers(&self, before: (&Slots, &[usize]), numbers: &[usize]) -> Vec<usize> {
        let mut losers = Vec::new();
        let (before, old_numbers) = before;
        for (was, is) in before.0.iter().zip(self.0.iter()) {
            let (was, is) = (old_numbers[usize::from(*was)], numbers[usize::from(*is)]);
            if was != is && losers.last() != Some(&was) {
                losers.push(was);
            }
        }
        losers.sort_unstable();
        losers.dedup();
        losers
    }
}

/// A pool as its source tells it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PoolTold {
    pub servers: Vec<RingServer>,
    /// Of a cluster: who has which keys. Without, keys are placed by their hash.
    pub slots: Option<Slots>,
    /// Of a cluster: keys that have copies.
    pub copies: Vec<CopiedKey>,
}

impl From<Vec<RingServer>> for PoolTold {
    fn from(servers: Vec<RingServer>) -> PoolTold {
        PoolTold { servers, ..PoolTold::default() }
    }
}

/// A key that more than one server answers.
#[derive(Clone, Debug, PartialEq)]
pub struct CopiedKey {
    pub key: Vec<u8>,
    /// Members of the pool, one for each server that answers it, its own included.
    pub members: Vec<u16>,
}

/// Where reads of copied keys may go: upstreams by key.
pub(crate) struct CopiedKeys {
    keys: BTreeMap<Vec<u8>, Vec<usize>>,
    random: Random,
}

impl CopiedKeys {
    pub fn new(seed: u64) -> CopiedKeys {
        CopiedKeys { keys: BTreeMap::new(), random: Random::new(seed) }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// `number`: of a member of the pool.
    pub fn know(&mut self, told: Vec<CopiedKey>, number: impl Fn(u16) -> Option<usize>) {
        let upstreams = |one: CopiedKey| {
            (one.key, one.members.into_iter().filter_map(&number).collect::<Vec<_>>())
        };
        self.keys = told.into_iter().map(upstreams).filter(|(_, those)| those.len() > 1).collect();
    }

    /// All that answer reads of the key; nobody if its own alone does.
    pub fn of(&self, key: &[u8]) -> &[usize] {
        self.keys.get(key).map_or(&[], |upstreams| upstreams)
    }

    /// An upstream that answers a read of the key; none if its own alone does.
    pub fn choose(&mut self, key: &[u8]) -> Option<usize> {
        let upstreams = self.keys.get(key)?;
        Some(upstreams[self.random.below(upstreams.len() as u64) as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_where_the_map_has_its_hash() {
        let slots = Slots::new(|hash| u16::from(hash >> 63 == 1));
        for number in 0..1_000 {
            let key = format!("key-{number}");
            let hash = Key::new(key.as_bytes()).expect("short").hash();
            assert_eq!(slots.member(key.as_bytes()), (hash >> 63) as usize);
        }
    }

    #[test]
    fn losers_are_those_that_have_less_than_before() {
        let halves = Slots::new(|hash| (hash >> 63) as u16);
        let quarters = Slots::new(|hash| (hash >> 62) as u16);
        assert_eq!(quarters.losers((&halves, &[4, 5]), &[4, 6, 5, 5]), [4]);
        assert_eq!(quarters.losers((&halves, &[4, 5]), &[4, 4, 5, 5]), [0; 0]);
        // Members change their places in the list.
        assert_eq!(halves.losers((&halves, &[4, 5]), &[5, 4]), [4, 5]);
    }

    #[test]
    fn reads_of_a_copied_key_are_spread() {
        let mut known = CopiedKeys::new(1);
        let copied = |key: &[u8], members: &[u16]| CopiedKey {
            key: key.to_vec(),
            members: members.to_vec(),
        };
        let told = vec![copied(b"hot", &[0, 2, 9]), copied(b"alone", &[1, 9])];
        known.know(told, |member| (member < 4).then_some(usize::from(member) + 10));
        let mut chosen = [0; 2];
        for _ in 0..1_000 {
            match known.choose(b"hot") {
                Some(10) => chosen[0] += 1,
                Some(12) => chosen[1] += 1,
                other => panic!("{other:?}"),
            }
        }
        assert!(chosen.iter().all(|count| *count > 400), "{chosen:?}");
        assert_eq!((known.choose(b"cold"), known.choose(b"alone")), (None, None));
    }
}
