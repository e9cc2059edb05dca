//! What the planner of phase 2 is asked, what it answers, and what is wrong with an answer.

use mbal_model::{Move, Prefix, Reading};

use crate::local::apply;
use crate::model::LOAD_EPSILON;
use crate::pour::{Lighten, pour};
use crate::{Effort, Local, Thresholds, rebalance_server, search};

/// For a planner, who may take its time.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    pub number: u64,
    pub reading: Reading,
    pub thresholds: Thresholds,
}

/// A planner's answer: cachelets that move, then connections that are handed over.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Proposal {
    pub moves: Vec<Move>,
    pub lighten: Vec<Lighten>,
    /// This server cannot help itself.
    pub beyond: bool,
}

/// Algorithm 1 on the cachelets that clients follow; then connections, where those carry the load.
pub fn propose(question: &Question) -> Proposal {
    let (reading, thresholds) = (&question.reading, &question.thresholds);
    let solve = |model: &_| Some(search(model, Effort::THOROUGH));
    let local = rebalance_server(&reading.snapshot, thresholds, solve);
    let moves = match local {
        Local::Moves(plan) => plan.moves,
        Local::Even | Local::Beyond => Vec::new(),
    };
    let mut after = reading.snapshot.clone();
    apply(&mut after, &moves);
    let loads: Vec<f64> = after.workers.iter().map(|worker| worker.load()).collect();
    let lighten = pour(&loads, &reading.handable, thresholds.permissible);
    let mut left = loads;
    for step in &lighten {
        left[step.from] -= step.load;
        left[step.to] += step.load;
    }
    // A plan that leaves a worker above its limit is the paper's NULL: (5) cannot be held here.
    let beyond = left.iter().any(|load| thresholds.is_over(*load));
    Proposal { moves, lighten, beyond }
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

    /// Loads once it is carried out; or why it must not be. Whoever made it is not trusted.
    pub fn check(&self, reading: &Reading) -> Result<Vec<f64>, Nonsense> {
        let workers = &reading.snapshot.workers;
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
        let mut after = reading.snapshot.clone();
        apply(&mut after, &self.moves);
        let mut loads: Vec<f64> = after.workers.iter().map(|worker| worker.load()).collect();
        let mut handable = reading.handable.clone();
        for step in &self.lighten {
            if step.from == step.to || loads.len() <= step.from.max(step.to) {
                return Err(Nonsense::Worker);
            }
            let possible = step.load > 0.0 && step.load <= handable[step.from] + LOAD_EPSILON;
            if !possible || !step.load_max.is_finite() {
                return Err(Nonsense::Load);
            }
            handable[step.from] -= step.load;
            loads[step.from] -= step.load;
            loads[step.to] += step.load;
        }
        let before = reading.loads();
        let most = |loads: &[f64]| loads.iter().copied().fold(0.0, f64::max);
        let unevenness = |loads: &[f64]| {
            let average = loads.iter().sum::<f64>() / loads.len() as f64;
            loads.iter().map(|load| (load - average).abs()).sum::<f64>()
        };
        let gains = unevenness(&loads) < unevenness(&before) - LOAD_EPSILON;
        if self.is_empty() || (gains && most(&loads) <= most(&before) + LOAD_EPSILON) {
            Ok(loads)
        } else {
            Err(Nonsense::NoGain)
        }
    }
}
