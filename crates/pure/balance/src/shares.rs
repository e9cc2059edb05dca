//! What is planned by: each cachelet's share of the work, each worker's share of the capacity.
//!
//! A saturated worker hides how much is asked of it: its clients wait instead of asking, and its load is at most 1. Shares stay true.
//! Clients draw their keys from the same distribution whatever servers do, and a share belongs to its cachelet, wherever that lies:
//! who has just given it away need not wait until loads have settled.

use std::collections::BTreeMap;

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Owner, Prefix, Snapshot, WorkerLoad};

/// The newest epoch's part in a worker's capacity, and in a share. What a move takes is no work: a capacity falls late.
const CAPACITY_NEWEST: f64 = 0.3;
const CAPACITY_FALLS: f64 = 0.1;
const SHARE_NEWEST: f64 = 0.5;
/// A share that differs by this part is taken anew: the load is another one.
const SHARE_ANEW: f64 = 0.5;
/// Below this, of an average worker's work, nothing differs but by chance.
const SHARE_FELT: f64 = 0.02;
/// So many keys show what a worker can do; fewer count for less.
const CAPACITY_KEYS: f64 = 1000.0;

/// Remembers from epoch to epoch what is smoothed. Work has no unit here: a worker does as much as is said of its capacity.
pub(crate) struct Shares {
    capacities: BTreeMap<Owner, f64>,
    least: f64,
    cachelets: BTreeMap<Prefix, f64>,
    /// What stays with each worker.
    fixed: BTreeMap<Owner, f64>,
    /// Epochs since much was taken anew.
    age: u32,
    /// Work for each key that was asked for; 0: nobody counts keys.
    work_per_key: f64,
}

impl Default for Shares {
    fn default() -> Shares {
        let (capacities, cachelets, fixed) = Default::default();
        Shares { capacities, least: 1.0, cachelets, fixed, age: 0, work_per_key: 0.0 }
    }
}

impl Shares {
    /// An epoch of all workers that were heard of. What is not among them is forgotten.
    /// `moves`: who gives or takes cachelets does less beside it. `rests`: what has just moved, or lies where something has moved, may cost
    /// otherwise, which is no other load.
    pub fn observe<'w>(
        &mut self,
        workers: impl Iterator<Item = &'w WorkerLoad> + Clone,
        moves: impl Fn(Owner) -> bool,
        rests: impl Fn(Owner, Prefix) -> bool,
    ) {
        for worker in workers.clone() {
            let (now, keys) = (worker.service.capacity, worker.service.keys as f64);
            if now > 0.0 && worker.load() > 0.0 {
                let known = self.capacities.entry(worker.at).or_insert(now);
                let newest = match (moves(worker.at), now < *known) {
                    (true, _) => 0.0,
                    (false, true) => CAPACITY_FALLS,
                    (false, false) => CAPACITY_NEWEST,
                };
                *known += newest * (keys / CAPACITY_KEYS).min(1.0) * (now - *known);
            }
        }
        let known = || workers.clone().filter_map(|worker| self.capacities.get(&worker.at));
        // Who has not shown what it can do can do as much as the weakest.
        let least = known().copied().fold(f64::INFINITY, f64::min);
        let least = if least.is_finite() { least } else { 1.0 };
        let capacity = |at: &Owner| self.capacities.get(at).copied().unwrap_or(least);
        let count = workers.clone().count().max(1) as f64;
        let all = workers.clone().map(|one| one.load() * capacity(&one.at)).sum::<f64>();
        let keys = workers.clone().map(|one| one.service.keys as f64).sum::<f64>();
        self.work_per_key = if keys > 0.0 { all / keys } else { 0.0 };
        // In units of an average worker's.
        let unit = if all > 0.0 { count / all } else { 0.0 };
        let capacities = workers.clone().map(|one| (one.at, capacity(&one.at)));
        let capacities: BTreeMap<Owner, f64> = capacities.collect();
        let (mut cachelets, mut fixed, mut anew) = (BTreeMap::new(), BTreeMap::new(), 0.0);
        for worker in workers {
            let per_load = capacities[&worker.at] * unit;
            let known = self.fixed.get(&worker.at).copied();
            fixed.insert(worker.at, smoothed(known, worker.fixed * per_load, &mut 0.0));
            for held in &worker.cachelets {
                let known = self.cachelets.get(&held.cachelet).copied();
                let mut change = 0.0;
                let share = smoothed(known, held.load * per_load, &mut change);
                anew += if rests(worker.at, held.cachelet) { 0.0 } else { change };
                cachelets.insert(held.cachelet, share);
            }
        }
        self.age = if anew > SHARE_ANEW { 0 } else { self.age.saturating_add(1) };
        (self.cachelets, self.fixed) = (cachelets, fixed);
        self.capacities.retain(|at, _| capacities.contains_key(at));
        self.least = least;
    }

    /// The same workers and cachelets, wherever they lie in `arranged`, by shares: on average a worker has a capacity of 1 and a load of
    /// 1, so that load / capacity says how much more than its part a worker has to do.
    pub fn demand(&self, arranged: &Snapshot) -> Snapshot {
        let mut demand = arranged.clone();
        let capacity = |at: Owner| self.capacities.get(&at).copied().unwrap_or(self.least);
        let all = arranged.workers.iter().map(|worker| capacity(worker.at));
        let mean = all.sum::<f64>() / arranged.workers.len().max(1) as f64;
        for worker in &mut demand.workers {
            worker.service.capacity = capacity(worker.at) / mean;
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
