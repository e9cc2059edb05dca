//! What is planned by: each cachelet's share of the work, each worker's share of the capacity.
//!
//! A saturated worker hides how much is asked of it: its clients wait instead of asking, and its load is at most 1. Shares stay true.
//! Clients draw their keys from the same distribution whatever servers do, and a share belongs to its cachelet, wherever that lies:
//! who has just given it away need not wait until loads have settled.

use std::collections::{BTreeMap, BTreeSet};

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{CacheletLoad, Owner, Prefix, Snapshot, WorkerLoad};

use crate::capacity::Capacities;

/// The newest epoch's part in a share.
const SHARE_NEWEST: f64 = 0.5;
/// A share that differs by this part is taken anew: the load is another one.
const SHARE_ANEW: f64 = 0.5;
/// Below this, of an average worker's work, nothing differs but by chance.
const SHARE_FELT: f64 = 0.02;
/// Of all work, as much as that is measured in any epoch.
const MEASURED_LEAST: f64 = 0.05;
/// For so many epochs parts of what was one cachelet count as even: its server splits it in one of them, and counts all of it for the first part.
const PARTS_EVEN: u32 = 2;

/// Remembers from epoch to epoch what is smoothed.
#[derive(Default)]
pub(crate) struct Shares {
    capacities: Capacities,
    cachelets: BTreeMap<Prefix, f64>,
    /// What stays with each worker.
    fixed: BTreeMap<Owner, f64>,
    /// Parts of what was one cachelet, and the epochs since it was; and workers that have got such parts in the last epoch.
    parts: BTreeMap<Prefix, u32>,
    divided: BTreeSet<Owner>,
    /// Epochs since much was taken anew.
    age: u32,
    /// Work for each key that was asked for; 0: nobody counts keys.
    work_per_key: f64,
}

impl Shares {
    /// An epoch of all workers that were heard of. What is not among them is forgotten.
    /// `moves`: who gives or takes cachelets does less beside it. `rests`: what has just moved, or lies where something has
    /// moved, may cost otherwise, which is no other load. `is_between`: what was at two places in this epoch has as much as before, whatever
    /// either has seen of it.
    pub fn observe<'w>(
        &mut self,
        workers: impl Iterator<Item = &'w WorkerLoad> + Clone,
        moves: impl Fn(Owner) -> bool,
        rests: impl Fn(Owner, Prefix) -> bool,
        is_between: impl Fn(Prefix) -> bool,
    ) {
        self.capacities.observe(workers.clone(), moves);
        self.divide(workers.clone());
        let count = workers.clone().count().max(1) as f64;
        let kept = |held: &CacheletLoad| {
            let known = self.cachelets.get(&held.cachelet).copied();
            let is_even = self.parts.get(&held.cachelet).is_some_and(|age| *age < PARTS_EVEN);
            known.filter(|_| is_even || is_between(held.cachelet))
        };
        let (mut all, mut all_kept, mut work, mut keys) = (0.0, 0.0, 0.0, 0);
        for worker in workers.clone() {
            let rate = self.capacities.rate(worker.at);
            (work, keys) = (work + worker.load() * rate, keys + worker.service.keys);
            all += worker.fixed * rate;
            for held in &worker.cachelets {
                match kept(held) {
                    Some(share) => all_kept += share,
                    None => all += held.load * rate,
                }
            }
        }
        self.work_per_key = if keys > 0 { work / keys as f64 } else { 0.0 };
        // In units of an average worker's.
        let unit = match all > 0.0 {
            true => (count - all_kept).max(MEASURED_LEAST * count) / all,
            false => 0.0,
        };
        let (mut cachelets, mut fixed, mut anew) = (BTreeMap::new(), BTreeMap::new(), 0.0);
        for worker in workers {
            let per_load = self.capacities.rate(worker.at) * unit;
            let known = self.fixed.get(&worker.at).copied();
            fixed.insert(worker.at, smoothed(known, worker.fixed * per_load, &mut 0.0));
            for held in &worker.cachelets {
                if let Some(share) = kept(held) {
                    cachelets.insert(held.cachelet, share);
                    continue;
                }
                let is_part = self.parts.contains_key(&held.cachelet);
                let known = self.cachelets.get(&held.cachelet).copied().filter(|_| !is_part);
                let mut change = 0.0;
                let share = smoothed(known, held.load * per_load, &mut change);
                anew += if rests(worker.at, held.cachelet) { 0.0 } else { change };
                cachelets.insert(held.cachelet, share);
            }
        }
        self.age = if anew > SHARE_ANEW { 0 } else { self.age.saturating_add(1) };
        (self.cachelets, self.fixed) = (cachelets, fixed);
    }

    /// What is a part of a cachelet that was known has its part of that one's share, until it has been measured.
    fn divide<'w>(&mut self, workers: impl Iterator<Item = &'w WorkerLoad>) {
        self.divided.clear();
        self.parts.values_mut().for_each(|age| *age += 1);
        self.parts.retain(|_, age| *age <= PARTS_EVEN);
        let mut fresh = BTreeMap::new();
        for worker in workers {
            for held in &worker.cachelets {
                if let Some(share) = self.share_of_part(held.cachelet) {
                    fresh.insert(held.cachelet, share);
                    self.divided.insert(worker.at);
                }
            }
        }
        self.parts.extend(fresh.keys().map(|part| (*part, 0)));
        self.cachelets.extend(fresh);
    }

    /// Of what is not known itself, and of which a wider one is.
    fn share_of_part(&self, part: Prefix) -> Option<f64> {
        if self.cachelets.is_empty() || self.cachelets.contains_key(&part) {
            return None;
        }
        let mut wider = (0..part.bits()).rev().map(|bits| Prefix::of(part.first_hash(), bits));
        let (share, whole) = wider.find_map(|whole| Some((*self.cachelets.get(&whole)?, whole)))?;
        Some(share * part.nodes() as f64 / whole.nodes() as f64)
    }

    /// Workers that have got parts of what was one cachelet in the last epoch: what was in vain before may help now.
    pub fn divided(&self) -> impl Iterator<Item = Owner> + '_ {
        self.divided.iter().copied()
    }

    /// The same workers and cachelets, wherever they lie in `arranged`, by shares: on average a worker has a capacity of 1 and a load of
    /// 1, so that load / capacity says how much more than its part a worker has to do.
    pub fn demand(&self, arranged: &Snapshot) -> Snapshot {
        let mut demand = arranged.clone();
        let all = arranged.workers.iter().map(|worker| self.capacities.of(worker.at));
        let mean = all.sum::<f64>() / arranged.workers.len().max(1) as f64;
        for worker in &mut demand.workers {
            worker.service.capacity = self.capacities.of(worker.at) / mean;
            worker.fixed = self.fixed.get(&worker.at).copied().unwrap_or(0.0);
            for held in &mut worker.cachelets {
                held.load = self.share(held.cachelet);
            }
            if is_planted(Fault::LoadsAreCapped) {
                let most = (worker.service.capacity / worker.load().max(1e-9)).min(1.0);
                worker.fixed *= most;
                worker.cachelets.iter_mut().for_each(|held| held.load *= most);
            }
        }
        demand
    }

    /// Of an average worker's work.
    pub fn share(&self, cachelet: Prefix) -> f64 {
        self.cachelets.get(&cachelet).copied().unwrap_or(0.0)
    }

    /// In the last epoch: what each key costs all workers together. In batches that depends on where cachelets lie.
    pub fn work_per_key(&self) -> f64 {
        self.work_per_key
    }

    /// Epochs in which the load has been the same.
    pub fn age(&self) -> u32 {
        self.age
    }
}

/// Adds to `anew` how much is another load now.
fn smoothed(known: Option<f64>, now: f64, anew: &mut f64) -> f64 {
    let Some(known) = known else { return now };
    let change = (now - known).abs();
    let felt = SHARE_ANEW * known.max(SHARE_FELT);
    if change >= felt && change >= SHARE_FELT {
        *anew += change;
        return now;
    }
    known + SHARE_NEWEST * (now - known)
}

/// Share of the work / share of the capacity, by worker of a demand.
pub(crate) fn quotient(worker: &WorkerLoad) -> f64 {
    worker.load() / worker.service.capacity
}

/// To thousandths: what is saved as text reads as it was.
pub(crate) fn rounded(part: f64) -> f64 {
    (part * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use mbal_model::{ServerId, Service, WorkerId};

    use super::*;

    fn at(server: u16) -> Owner {
        Owner { server: ServerId(server), worker: WorkerId(0) }
    }

    /// A server of one worker: what it does for each load, what part of that it runs, and its cachelets' loads by their places.
    type Lone<'a> = (f64, f64, &'a [(usize, f64)]);

    fn workers(all: &[Lone]) -> Vec<WorkerLoad> {
        let worker = |(server, (capacity, part, held)): (usize, &Lone)| WorkerLoad {
            at: at(server as u16),
            service: Service {
                capacity: *capacity,
                part: Some(*part),
                keys: held.iter().map(|(_, load)| (100_000.0 * load * capacity) as u64).sum(),
                ..Service::default()
            },
            fixed: 0.0,
            bytes_max: 0,
            cachelets: held
                .iter()
                .map(|(place, load)| CacheletLoad {
                    cachelet: Prefix::nth(*place, 4),
                    load: *load,
                    bytes: 0,
                    pinned: false,
                })
                .collect(),
        };
        all.iter().enumerate().map(worker).collect()
    }

    fn quotients(shares: &Shares, all: &[WorkerLoad]) -> Vec<f64> {
        let demand = shares.demand(&Snapshot { workers: all.to_vec() });
        demand.workers.iter().map(|one| (quotient(one) * 100.0).round() / 100.0).collect()
    }

    #[test]
    fn a_quota_that_is_not_used_up_makes_nobody_strong() {
        // All have 15% of a core; the second and third use a third of that or less, and one of them wakes up for each request.
        let all =
            [(0.15, 0.15, &[(0, 1.0)][..]), (0.3, 1.0, &[(1, 0.05)]), (1.0, 1.0, &[(2, 0.05)])];
        let all = workers(&all);
        let mut shares = Shares::default();
        shares.observe(all.iter(), |_| false, |_, _| false, |_| false);
        assert_eq!(quotients(&shares, &all), [2.09, 0.21, 0.7]);
    }

    #[test]
    fn cores_of_different_speed_are_known_without_being_busy() {
        let all =
            workers(&[(0.4, 1.0, &[(0, 1.0)]), (1.0, 1.0, &[(1, 0.4)]), (1.0, 1.0, &[(2, 0.4)])]);
        let mut shares = Shares::default();
        shares.observe(all.iter(), |_| false, |_, _| false, |_| false);
        assert_eq!(quotients(&shares, &all), [2.0, 0.8, 0.8]);
    }

    #[test]
    fn what_moved_in_an_epoch_has_as_much_as_before_and_so_have_the_others() {
        let before = workers(&[(1.0, 1.0, &[(0, 0.25), (1, 0.25), (2, 0.5)]), (1.0, 1.0, &[])]);
        let mut shares = Shares::default();
        shares.observe(before.iter(), |_| false, |_, _| false, |_| false);
        // It was away for the most of this epoch: its new place has seen a tenth of it.
        let after = workers(&[(1.0, 1.0, &[(0, 0.25), (1, 0.25)]), (1.0, 1.0, &[(2, 0.05)])]);
        shares.observe(after.iter(), |_| false, |_, _| true, |one| one == Prefix::nth(2, 4));
        assert_eq!(quotients(&shares, &after), [1.0, 1.0]);
    }
}
