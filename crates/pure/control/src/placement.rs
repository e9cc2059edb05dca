//! Which worker gets which cachelet: the first map, and the map without a server that has died.

use std::collections::BTreeMap;

use mbal_model::{Owner, Prefix, ServerId, WorkerId};

/// Cachelets that a worker begins with, at least: enough to even loads out by moving whole ones.
const CACHELETS_PER_WORKER: usize = 16;

/// Equal cachelets, dealt to all workers in turn: 16 a worker or more, and none has two more than another. Neighbouring
/// prefixes lie on different servers, so that a split leaves its halves apart from most of what is hot.
///
/// # Panics
/// If nobody has a worker.
pub fn deal(workers: &BTreeMap<ServerId, u16>) -> Vec<(Prefix, Owner)> {
    let most = workers.values().copied().max().unwrap_or(0);
    // All first workers, then all second ones.
    let owners: Vec<Owner> = (0..most)
        .flat_map(|worker| {
            let having = workers.iter().filter(move |(_, count)| worker < **count);
            having.map(move |(server, _)| Owner { server: *server, worker: WorkerId(worker) })
        })
        .collect();
    assert!(!owners.is_empty(), "somebody has to have the cachelets");
    let least = (owners.len() * CACHELETS_PER_WORKER).next_power_of_two();
    let bits = least.trailing_zeros().min(Prefix::BITS_MAX);
    Prefix::equal(bits)
        .enumerate()
        .map(|(at, prefix)| (prefix, owners[at % owners.len()]))
        .collect()
}

/// The same cachelets, those of `gone` dealt to whoever of `workers` has the smallest part of the hashes at that moment.
/// Nothing else moves. O(cachelets of `gone` · workers).
pub fn redeal(
    owners: &[(Prefix, Owner)],
    gone: ServerId,
    workers: &BTreeMap<ServerId, u16>,
) -> Vec<(Prefix, Owner)> {
    let all = workers.iter().filter(|(server, _)| **server != gone).flat_map(|(server, count)| {
        (0..*count).map(|worker| Owner { server: *server, worker: WorkerId(worker) })
    });
    let mut nodes: BTreeMap<Owner, usize> = all.map(|owner| (owner, 0)).collect();
    for (prefix, owner) in owners {
        if let Some(nodes) = nodes.get_mut(owner) {
            *nodes += prefix.nodes();
        }
    }
    let mut dealt = owners.to_vec();
    for (prefix, owner) in dealt.iter_mut().filter(|(_, owner)| owner.server == gone) {
        let Some((lightest, held)) = nodes.iter_mut().min_by_key(|(owner, held)| (**held, **owner))
        else {
            break;
        };
        *held += prefix.nodes();
        *owner = *lightest;
    }
    dealt
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(workers: &[u16]) -> BTreeMap<ServerId, u16> {
        (1..).map(ServerId).zip(workers.iter().copied()).collect()
    }

    fn counts(owners: &[(Prefix, Owner)]) -> Vec<usize> {
        let mut counts = BTreeMap::<Owner, usize>::new();
        for (_, owner) in owners {
            *counts.entry(*owner).or_default() += 1;
        }
        counts.into_values().collect()
    }

    #[test]
    fn every_worker_gets_sixteen_or_more_and_as_many_as_every_other() {
        for workers in [&[1][..], &[2, 2, 2], &[4, 1, 3], &[64; 8]] {
            let counts = counts(&deal(&servers(workers)));
            assert_eq!(
                counts.len(),
                workers.iter().map(|count| usize::from(*count)).sum::<usize>()
            );
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(*least >= 16 && most - least <= 1, "{counts:?}");
        }
    }

    #[test]
    fn neighbours_lie_on_different_servers() {
        let dealt = deal(&servers(&[2, 2, 2]));
        assert!(dealt.windows(2).all(|pair| pair[0].1.server != pair[1].1.server));
    }

    #[test]
    fn what_a_dead_server_had_is_dealt_evenly_and_nothing_else_moves() {
        let three = servers(&[2, 2, 2]);
        let before = deal(&three);
        let after = redeal(&before, ServerId(2), &three);
        for ((prefix, was), (same, is)) in before.iter().zip(&after) {
            assert_eq!(prefix, same);
            assert!(was == is || was.server == ServerId(2) && is.server != ServerId(2));
        }
        let counts = counts(&after);
        assert_eq!(counts.len(), 4);
        assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{counts:?}");
    }

    #[test]
    fn with_nobody_left_they_stay_where_they_are() {
        let one = servers(&[2]);
        let before = deal(&one);
        assert_eq!(redeal(&before, ServerId(1), &one), before);
    }
}
