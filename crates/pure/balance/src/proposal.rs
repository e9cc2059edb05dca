//! What the planner of phase 2 is asked, what it answers, and what is wrong with an answer.

use mbal_model::{CacheletLoad, Move, Prefix, Reading};

use crate::evening::{Field, Rules};
use crate::pour::{Lighten, pour};

/// Sums of the same loads in another order differ by less than this.
const LOAD_EPSILON: f64 = 1e-9;

/// For a planner, who may take its time.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    pub number: u64,
    /// By shares of the server's work and capacity: on average a worker has 1 of each.
    pub demand: Reading,
}

/// A planner's answer: cachelets that move, then connections that are handed over.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Proposal {
    pub moves: Vec<Move>,
    pub lighten: Vec<Lighten>,
}

/// What a loan costs, in workers' seconds: its clients have to be told, and small change is left alone.
const LOAN_COST: f64 = 0.3;
/// In which it has to be earned back.
const EARNED_SECONDS: f64 = 20.0;
/// Who has no more than this many times its part is left alone.
const NEAR_BEST: f64 = 1.05;
/// In one plan.
const LOANS_MAX: usize = 64;

struct Lending {
    workers: f64,
}

impl Rules for Lending {
    fn price(&self, _: &CacheletLoad, quotient: f64) -> f64 {
        LOAN_COST / EARNED_SECONDS / self.workers * quotient.powi(4)
    }

    fn may_take(&self, _: usize) -> bool {
        true
    }
}

/// Takes from the worst worker, step by step, what gains most; where nothing of it can go, from the next. Then connections, where those
/// carry the load.
pub fn propose(question: &Question) -> Proposal {
    let demand = &question.demand;
    let mut field = Field::new(demand.snapshot.clone());
    let rules = Lending { workers: field.workers().len() as f64 };
    let (mut moves, mut aside) = (Vec::new(), vec![false; field.workers().len()]);
    while moves.len() < LOANS_MAX {
        let above = (0..aside.len()).filter(|&at| !aside[at] && field.quotient(at) > NEAR_BEST);
        let worst = above.max_by(|&a, &b| field.quotient(a).total_cmp(&field.quotient(b)));
        let Some(worst) = worst else { break };
        match field.best_step(worst, &rules) {
            Some(step) => {
                field.take(&step.moves);
                moves.extend(step.moves);
            }
            None => aside[worst] = true,
        }
    }
    let lighten = pour(&field.quotients(), &demand.handable, f64::INFINITY);
    Proposal { moves, lighten }
}

/// Why a proposal is not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nonsense {
    /// It names a cachelet that is not where it says, or one twice.
    Cachelet(Prefix),
    /// It moves what rests.
    Restless(Prefix),
    /// It names a worker that there is not, or moves something to where it is.
    Worker,
    /// A load that is no number, or more than there is.
    Load,
    /// The server is no better off.
    NoGain,
}

impl Proposal {
    pub fn is_empty(&self) -> bool {
        self.moves.is_empty() && self.lighten.is_empty()
    }

    /// Quotients once it is carried out; or why it must not be. Whoever made it is not trusted.
    pub fn check(&self, demand: &Reading) -> Result<Vec<f64>, Nonsense> {
        let workers = &demand.snapshot.workers;
        let mut moved: Vec<Prefix> = Vec::new();
        for step in &self.moves {
            let held = workers.iter().find(|worker| worker.at == step.from).and_then(|worker| {
                worker.cachelets.iter().find(|held| held.cachelet == step.cachelet)
            });
            match held {
                Some(_) if moved.contains(&step.cachelet) => {
                    return Err(Nonsense::Cachelet(step.cachelet));
                }
                Some(held) if held.pinned => return Err(Nonsense::Restless(step.cachelet)),
                Some(_) => moved.push(step.cachelet),
                None => return Err(Nonsense::Cachelet(step.cachelet)),
            }
            if step.to == step.from || !workers.iter().any(|worker| worker.at == step.to) {
                return Err(Nonsense::Worker);
            }
        }
        let mut field = Field::new(demand.snapshot.clone());
        let before = strain_of(&field.quotients());
        field.take(&self.moves);
        let mut quotients = field.quotients();
        let mut handable = demand.handable.clone();
        for step in &self.lighten {
            if step.from == step.to || quotients.len() <= step.from.max(step.to) {
                return Err(Nonsense::Worker);
            }
            let possible = step.load > 0.0 && step.load <= handable[step.from] + LOAD_EPSILON;
            if !possible || !step.load_max.is_finite() {
                return Err(Nonsense::Load);
            }
            handable[step.from] -= step.load;
            quotients[step.from] -= step.load;
            quotients[step.to] += step.load;
        }
        if self.is_empty() || strain_of(&quotients) < before - LOAD_EPSILON {
            Ok(quotients)
        } else {
            Err(Nonsense::NoGain)
        }
    }
}

/// Of workers that can do as much.
fn strain_of(quotients: &[f64]) -> f64 {
    quotients.iter().map(|quotient| quotient.powi(4)).sum()
}

#[cfg(test)]
mod tests {
    use mbal_model::{Owner, ServerId, Service, Snapshot, WorkerId, WorkerLoad};

    use super::*;

    /// How many cachelets of a twenty-fifth of a worker's part each leave the first worker, which has so many.
    fn lent(first: usize) -> usize {
        let mut places = 0..50;
        let mut worker = |at: usize, count: usize| WorkerLoad {
            at: Owner { server: ServerId(1), worker: WorkerId(at as u16) },
            service: Service { capacity: 1.0, ..Service::default() },
            fixed: 0.0,
            bytes_max: u64::MAX,
            cachelets: (places.by_ref().take(count))
                .map(|place| CacheletLoad {
                    cachelet: Prefix::nth(place, 8),
                    load: 0.04,
                    bytes: 1,
                    pinned: false,
                })
                .collect(),
        };
        let workers = vec![worker(0, first), worker(1, 50 - first)];
        let demand = Reading {
            snapshot: Snapshot { workers },
            handable: vec![0.0; 2],
            ..Reading::default()
        };
        propose(&Question { number: 1, demand }).moves.len()
    }

    #[test]
    fn who_is_near_its_part_is_left_alone() {
        assert_eq!([26, 27, 30].map(lent), [0, 1, 4]);
    }
}
