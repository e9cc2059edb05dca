//! Keeps the balancer from restlessness: what has moved stays, and what was lent goes home late.

use std::collections::{BTreeMap, BTreeSet};

use mbal_model::{Move, Owner, Prefix, Snapshot};

use crate::Thresholds;

struct Moved {
    epoch: u64,
    load: f64,
}

/// Remembers the moves of the last `rest_epochs`.
#[derive(Default)]
pub struct Rest {
    moved: BTreeMap<Prefix, Moved>,
}

impl Rest {
    pub fn note(&mut self, cachelet: Prefix, load: f64, epoch: u64) {
        self.moved.insert(cachelet, Moved { epoch, load });
    }

    /// A cachelet that moved rests, unless its load has since changed by half.
    pub fn pinned(&self, cachelet: Prefix, load: f64, epoch: u64, rest_epochs: u32) -> bool {
        self.moved.get(&cachelet).is_some_and(|moved| {
            let changed = (load - moved.load).abs() >= 0.5 * moved.load;
            epoch < moved.epoch + u64::from(rest_epochs) && !changed
        })
    }

    pub fn forget_before(&mut self, epoch: u64, rest_epochs: u32) {
        self.moved.retain(|_, moved| epoch < moved.epoch + u64::from(rest_epochs));
    }
}

/// Loans of phase 2: which cachelets are away from their home worker, and since when.
#[derive(Default)]
pub struct Loans {
    lent: BTreeMap<Prefix, (Owner, u64)>,
}

impl Loans {
    /// A phase 2 move: a loan begins, goes on elsewhere, or ends at home.
    pub fn note(&mut self, step: &Move, epoch: u64) {
        let home = self.lent.get(&step.cachelet).map_or(step.from, |(home, _)| *home);
        if home == step.to {
            self.lent.remove(&step.cachelet);
        } else {
            self.lent.insert(step.cachelet, (home, epoch));
        }
    }

    /// A cachelet that has changed servers has a new home.
    pub fn forget_absent(&mut self, snapshot: &Snapshot) {
        if self.lent.is_empty() {
            return;
        }
        let held = snapshot.workers.iter().flat_map(|worker| &worker.cachelets);
        let present: BTreeSet<Prefix> = held.map(|held| held.cachelet).collect();
        self.lent.retain(|cachelet, _| present.contains(cachelet));
    }

    /// Cachelet, home and the epoch of its last move, by cachelet.
    pub fn iter(&self) -> impl Iterator<Item = (Prefix, Owner, u64)> + '_ {
        self.lent.iter().map(|(cachelet, (home, since))| (*cachelet, *home, *since))
    }

    pub fn len(&self) -> usize {
        self.lent.len()
    }

    pub fn is_empty(&self) -> bool {
        self.lent.is_empty()
    }

    /// Cachelets that can go home: their lease is over and home, with them, stays under the average of this
    /// server's workers, so that going home cannot bring them back out. O(loans · workers).
    pub fn homecoming(
        &self,
        snapshot: &Snapshot,
        epoch: u64,
        thresholds: &Thresholds,
    ) -> Vec<Move> {
        let mut loads: Vec<f64> = snapshot.workers.iter().map(|worker| worker.load()).collect();
        let average = loads.iter().sum::<f64>() / loads.len().max(1) as f64;
        let mut moves = Vec::new();
        for (&cachelet, &(home, since)) in &self.lent {
            if epoch < since + u64::from(thresholds.rest_epochs) {
                continue;
            }
            let place = |at| snapshot.workers.iter().position(|worker| worker.at == at);
            let held = snapshot.workers.iter().enumerate().find_map(|(index, worker)| {
                let held = worker.cachelets.iter().find(|held| held.cachelet == cachelet)?;
                Some((index, held.load))
            });
            let (Some(to), Some((from, load))) = (place(home), held) else { continue };
            let room = average.min(thresholds.permissible) * (1.0 + thresholds.imbalance / 2.0);
            if from != to && loads[to] + load <= room {
                loads[to] += load;
                loads[from] -= load;
                moves.push(Move { cachelet, from: snapshot.workers[from].at, to: home });
            }
        }
        moves
    }
}
