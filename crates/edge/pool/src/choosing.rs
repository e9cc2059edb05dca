//! Which servers retire.

use mbal_elastic::pool::{Plan, Resize, class_ages, plan};
use mbal_elastic::{SHORTLIST, choose_retiring};
use mbal_model::ServerId;
use mbal_routing::ketama::{Dialect, KeyHash, Ring, RingServer};

use crate::survey::Surveyed;

/// The `count` servers of the pool that retire, by number: the coldest by their medians, and of those the ones of which the fewest
/// items would travel if each retired alone.
pub fn choose(
    pool: &[Surveyed],
    count: usize,
    dialect: Dialect,
    hash: Option<KeyHash>,
) -> Vec<usize> {
    let members: Vec<_> = pool.iter().map(Surveyed::member).collect();
    let scores: Vec<_> = members
        .iter()
        .enumerate()
        .map(|(number, member)| (ServerId(number as u16), class_ages(member)))
        .collect();
    let servers = |members: &[usize]| -> Vec<RingServer> {
        members.iter().map(|&member| pool[member].server.clone()).collect()
    };
    let all: Vec<usize> = (0..pool.len()).collect();
    let old = Ring::new(dialect, hash, &servers(&all));
    let travels = |retiring: usize| {
        let kept: Vec<usize> = all.iter().copied().filter(|&member| member != retiring).collect();
        let new = Ring::new(dialect, hash, &servers(&kept));
        let resize = Resize { old: old.clone(), old_members: all.clone(), new, new_members: kept };
        let Plan { carried, .. } = plan(&members, &resize);
        carried.iter().map(Vec::len).sum::<usize>()
    };
    let mut shortlist: Vec<(usize, usize)> = choose_retiring(&scores, count + SHORTLIST)
        .into_iter()
        .map(|server| usize::from(server.0))
        .map(|server| (travels(server), server))
        .collect();
    // Stable: of two that are as cheap the colder one goes.
    shortlist.sort_by_key(|&(items, _)| items);
    let mut retiring: Vec<usize> =
        shortlist.into_iter().take(count).map(|(_, server)| server).collect();
    retiring.sort_unstable();
    retiring
}
