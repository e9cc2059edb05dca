//! Phase 2: MBal (EuroSys 2015) §3.3, Algorithm 1. Cachelets change workers inside one server.

use mbal_model::planted::{Fault, is_planted};
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
/// Three differences: the paper's loop ends with the first schedule and leaves the other workers to
/// the next epoch, this one goes on with what the schedule leaves; a NULL goes to the greedy
/// planner at once, because the same question asked `max_iter` times has the same answer; and sources that
/// cannot be helped are set aside, so that the next heaviest are.
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
    // Workers that have nothing to give: what they hold cannot move, or fits nowhere.
    let mut aside = vec![false; now.workers.len()];
    let mut iterations = 0;
    while iterations < thresholds.max_iter {
        let loads: Vec<f64> = now.workers.iter().map(|worker| worker.load()).collect();
        let over = |worker: &&usize| thresholds.is_over(loads[**worker]);
        let ranked = ranked(&loads);
        if ranked.iter().filter(over).count() as f64 > thresholds.server_load * loads.len() as f64 {
            return Local::Beyond;
        }
        let givers: Vec<usize> = ranked.iter().copied().filter(|worker| !aside[*worker]).collect();
        let overloaded = givers.iter().filter(over).count();
        let nothing_left = givers.first().is_none_or(|heaviest| loads[*heaviest] <= average);
        if nothing_left || overloaded == 0 && deviation(&loads) <= thresholds.imbalance {
            break;
        }
        let sources: Vec<usize> =
            givers[..if overloaded == 1 { 1 } else { SIDE_MAX.min(givers.len()) }].to_vec();
        let model = if overloaded == 1 {
            lightening(&now, sources[0], limit)
        } else {
            evening(&now, &sources, &ranked, limit, average, thresholds.move_price)
        };
        let homes = model.homes();
        let better =
            |placement: &Placement| model.cost(placement) < model.cost(&homes) - LOAD_EPSILON;
        let placement = solve(&model)
            .filter(|placement| model.permits(placement) && better(placement))
            .unwrap_or_else(|| greedy(&model));
        if placement == homes {
            if is_planted(Fault::StopsAtTheHeaviest) {
                break;
            }
            sources.iter().for_each(|source| aside[*source] = true);
            continue;
        }
        apply(&mut now, &model.plan(&placement).moves);
        aside.fill(false);
        iterations += 1;
    }
    let plan = joined(snapshot, &now, &whole);
    let over = now.workers.iter().any(|worker| thresholds.is_over(worker.load()));
    match plan.moves.is_empty() {
        false => Local::Moves(plan),
        true if over => Local::Beyond,
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
fn lightening(now: &Snapshot, source: usize, limit: f64) -> Model {
    let all: Vec<usize> = (0..now.workers.len()).collect();
    Model::new(now, &all, Objective::FewestMoves, limit, |at| at == source, |at| at != source)
}

/// SolveLP2: equation (4) over the sources and the two lightest workers beside them.
fn evening(
    now: &Snapshot,
    sources: &[usize],
    ranked: &[usize],
    limit: f64,
    average: f64,
    move_price: f64,
) -> Model {
    let mut chosen = sources.to_vec();
    let lightest = ranked.iter().rev().filter(|worker| !sources.contains(worker));
    chosen.extend(lightest.take(SIDE_MAX));
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
