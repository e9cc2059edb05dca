//! Keeps the balancer from restlessness: what has moved stays, and what was lent goes home late.

use std::collections::{BTreeMap, BTreeSet};

use mbal_model::{Move, Owner, Prefix, Snapshot};

struct Moved {
    epoch: u64,
    size: Size,
}

/// How heavy a cachelet is: its part of its worker's time, and its share of all work. Of a saturated worker the one does not show how much
/// is asked, and the other changes with what else is asked for: what has changed has changed in both.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub load: f64,
    pub share: f64,
}

/// Below this either is noise.
const FELT: f64 = 0.02;

impl Size {
    fn has_changed(self, now: Size) -> bool {
        let differs = |then: f64, now: f64| {
            let (then, now) = (then.max(FELT), now.max(FELT));
            (now - then).abs() >= 0.5 * then
        };
        differs(self.load, now.load) && differs(self.share, now.share)
    }
}

/// Remembers the moves of the last `rest_epochs`.
#[derive(Default)]
pub struct Rest {
    moved: BTreeMap<Prefix, Moved>,
}

impl Rest {
    pub(crate) fn note(&mut self, cachelet: Prefix, size: Size, epoch: u64) {
        self.moved.insert(cachelet, Moved { epoch, size });
    }

    /// A cachelet that moved rests, unless its load has since changed by half.
    pub(crate) fn pinned(&self, cachelet: Prefix, now: Size, epoch: u64, rest_epochs: u32) -> bool {
        self.moved.get(&cachelet).is_some_and(|moved| {
            epoch < moved.epoch + u64::from(rest_epochs) && !moved.size.has_changed(now)
        })
    }

    /// It has moved lately.
    pub fn has(&self, cachelet: Prefix) -> bool {
        self.moved.contains_key(&cachelet)
    }

    /// Epochs since it has moved.
    pub(crate) fn since(&self, cachelet: Prefix, epoch: u64) -> u64 {
        self.moved.get(&cachelet).map_or(u64::MAX, |moved| epoch - moved.epoch)
    }

    pub fn forget_before(&mut self, epoch: u64, rest_epochs: u32) {
        self.moved.retain(|_, moved| epoch < moved.epoch + u64::from(rest_epochs));
    }
}

/// Of its part of the work, what home may have with what comes back.
const HOME_MAX: f64 = 1.05;

/// Loans of phase 2: which cachelets are away from their home worker, and since when.
#[derive(Default)]
pub struct Loans {
    lent: BTreeMap<Prefix, (Owner, u64)>,
    /// Of these, what operators have moved: nobody else takes that back.
    by_operators: BTreeSet<Prefix>,
}

impl Loans {
    /// A phase 2 move: a loan begins, goes on elsewhere, or ends at home.
    pub fn note(&mut self, step: &Move, epoch: u64, by_operator: bool) {
        if by_operator {
            self.by_operators.insert(step.cachelet);
        } else {
            self.by_operators.remove(&step.cachelet);
        }
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
        self.by_operators.retain(|cachelet| present.contains(cachelet));
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

    /// All that the balancer has lent goes home, from wherever it is now.
    pub(crate) fn withdrawal(&self, now: &Snapshot) -> Vec<Move> {
        let mut moves = Vec::new();
        for worker in &now.workers {
            for held in &worker.cachelets {
                let lent = self.lent.get(&held.cachelet);
                let lent = lent.filter(|_| !self.by_operators.contains(&held.cachelet));
                if let Some((home, _)) = lent.filter(|(home, _)| *home != worker.at) {
                    moves.push(Move { cachelet: held.cachelet, from: worker.at, to: *home });
                }
            }
        }
        moves
    }

    /// Cachelets that can go home: their lease is over and home, with them, has no more than its part of this server's work, so that going
    /// home cannot bring them back out. `demand` is by shares. O(loans · workers).
    pub(crate) fn homecoming(&self, demand: &Snapshot, epoch: u64, rest_epochs: u32) -> Vec<Move> {
        let mut loads: Vec<f64> = demand.workers.iter().map(|worker| worker.load()).collect();
        let mut moves = Vec::new();
        for (&cachelet, &(home, since)) in &self.lent {
            if epoch < since + u64::from(rest_epochs) {
                continue;
            }
            let place = |at| demand.workers.iter().position(|worker| worker.at == at);
            let held = demand.workers.iter().enumerate().find_map(|(index, worker)| {
                let held = worker.cachelets.iter().find(|held| held.cachelet == cachelet)?;
                Some((index, held.load))
            });
            let (Some(to), Some((from, load))) = (place(home), held) else { continue };
            let room = demand.workers[to].service.capacity * HOME_MAX;
            if from != to && loads[to] + load <= room {
                loads[to] += load;
                loads[from] -= load;
                moves.push(Move { cachelet, from: demand.workers[from].at, to: home });
            }
        }
        moves
    }
}
