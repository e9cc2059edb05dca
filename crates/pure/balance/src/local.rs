//! Phase 2: MBal (EuroSys 2015) §3.3, Algorithm 1. Cachelets change workers inside one server.

use mbal_model::{Move, Plan, Snapshot};

use crate::model::{LOAD_EPSILON, Model, Objective, Placement};
use crate::{Thresholds, greedy};

#[derive(Clone, Debug, PartialEq)]
pub enum Local {
    /// Nothing to gain: an even server gets no plan.
    Even,
    Moves(Plan),
    /// More than `server_load_thresh` of the workers are overloaded, or nothing helps: phase 3.
    Beyond,
}

/// At most two sources and two destinations an iteration, so that a solver's search stays small.
const SIDE_MAX: usize = 2;

/// Algorithm 1. `solve` is SolveLP1 and SolveLP2: [`crate::search()`] every day, an exact solver on request;
/// None stands for the paper's NULL.
///
/// Two differences: the paper's loop ends with the first schedule and leaves the other workers to
/// the next epoch, this one goes on with what the schedule leaves; and a NULL goes to the greedy
/// planner at once, because the same question asked `max_iter` times has the same answer.
pub fn rebalance_server(
    snapshot: &Snapshot,
    thresholds: &Thresholds,
    mut solve: impl FnMut(&Model) -> Option<Placement>,
) -> Local {
    let limit = thresholds.permissible;
    let whole = Model::evenest(snapshot, limit, 0.0);
    let Objective::Evenest { average, .. } = whole.objective else {
        unreachable!("Model::evenest has that objective");
    };
    let mut now = snapshot.clone();
    for _ in 0..thresholds.max_iter {
        let loads: Vec<f64> = now.workers.iter().map(|worker| worker.load()).collect();
        let overloaded = loads.iter().filter(|load| **load > limit + LOAD_EPSILON).count();
        if overloaded as f64 > thresholds.server_load * loads.len() as f64 {
            return Local::Beyond;
        }
        if overloaded == 0 && deviation(&loads) <= thresholds.imbalance {
            break;
        }
        let model = if overloaded == 1 {
            lightening(&now, &loads, limit)
        } else {
            evening(&now, &loads, limit, average, thresholds.move_price)
        };
        let homes = model.homes();
        let better =
            |placement: &Placement| model.cost(placement) < model.cost(&homes) - LOAD_EPSILON;
        let placement = solve(&model)
            .filter(|placement| model.permits(placement) && better(placement))
            .unwrap_or_else(|| greedy(&model));
        if placement == homes {
            break;
        }
        apply(&mut now, &model.plan(&placement).moves);
    }
    let plan = joined(snapshot, &now, &whole);
    match plan.moves.is_empty() {
        false => Local::Moves(plan),
        true if plan.excess > LOAD_EPSILON => Local::Beyond,
        true => Local::Even,
    }
}

/// Mean deviation in units of the average load (NetKV's Eq. 6): 0 is even.
pub fn deviation(loads: &[f64]) -> f64 {
    let total: f64 = loads.iter().sum();
    let average = total / loads.len() as f64;
    if total <= 0.0 {
        return 0.0;
    }
    loads.iter().map(|load| (load - average).abs()).sum::<f64>() / total
}

/// SolveLP1: equation (1), one source, everybody else a destination.
fn lightening(now: &Snapshot, loads: &[f64], limit: f64) -> Model {
    let source = ranked(loads)[0];
    let all: Vec<usize> = (0..loads.len()).collect();
    Model::new(now, &all, Objective::FewestMoves, limit, |at| at == source, |at| at != source)
}

/// SolveLP2: equation (4) over the two heaviest and the two lightest workers.
fn evening(now: &Snapshot, loads: &[f64], limit: f64, average: f64, move_price: f64) -> Model {
    let ranked = ranked(loads);
    let side = SIDE_MAX.min(ranked.len() / 2);
    let mut chosen: Vec<usize> = ranked[..side].to_vec();
    chosen.extend(&ranked[ranked.len() - side..]);
    let objective = Objective::Evenest { average, move_price };
    Model::new(now, &chosen, objective, limit, |_| true, |_| true)
}

fn ranked(loads: &[f64]) -> Vec<usize> {
    let mut ranked: Vec<usize> = (0..loads.len()).collect();
    ranked.sort_by(|&a, &b| loads[b].total_cmp(&loads[a]).then(a.cmp(&b)));
    ranked
}

/// Carries moves out on a snapshot.
pub(crate) fn apply(snapshot: &mut Snapshot, moves: &[Move]) {
    for step in moves {
        let from = snapshot.workers.iter_mut().find(|worker| worker.at == step.from);
        let from = from.expect("a plan names workers of its snapshot");
        let index = from.cachelets.iter().position(|held| held.cachelet == step.cachelet);
        let cachelet = from.cachelets.remove(index.expect("a plan moves what its source holds"));
        let to = snapshot.workers.iter_mut().find(|worker| worker.at == step.to);
        to.expect("a plan names workers of its snapshot").cachelets.push(cachelet);
    }
}

/// Several iterations as one plan: where each cachelet was, and where it ended.
fn joined(before: &Snapshot, after: &Snapshot, whole: &Model) -> Plan {
    let place = |snapshot: &Snapshot| {
        let mut place: Vec<_> = snapshot
            .workers
            .iter()
            .enumerate()
            .flat_map(|(index, worker)| worker.cachelets.iter().map(move |c| (c.cachelet, index)))
            .collect();
        place.sort();
        place
    };
    let after = place(after);
    let ended = |cachelet| {
        let index = after.binary_search_by_key(&cachelet, |(id, _)| *id);
        after[index.expect("moves lose no cachelet")].1 as u32
    };
    debug_assert_eq!(place(before).len(), after.len());
    let placement: Placement = whole.balls.iter().map(|ball| ended(ball.cachelet)).collect();
    whole.plan(&placement)
}
