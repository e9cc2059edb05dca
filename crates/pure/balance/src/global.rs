//! Phase 3: MBal (EuroSys 2015) §3.4, Algorithm 2. Cachelets leave an overloaded worker for other servers.

use mbal_model::{Plan, ServerId, Snapshot};

use crate::model::{LOAD_EPSILON, Model, Objective, Placement};
use crate::{Thresholds, greedy};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Global {
    pub plan: Plan,
    /// The source is still too hot: the paper's NULL, which asks for more servers. What could be moved
    /// is in the plan all the same.
    pub all_hot: bool,
}

/// Algorithm 2 for one source worker, on a snapshot of the whole cluster, which is brought up to date so
/// that the next source sees what this one did. `solve` is SolveLP, equation (8).
/// O(`max_iter` · (workers + SolveLP)).
pub fn relieve(
    snapshot: &mut Snapshot,
    source: usize,
    thresholds: &Thresholds,
    mut solve: impl FnMut(&Model) -> Option<Placement>,
) -> Global {
    let limit = thresholds.permissible;
    let home = snapshot.workers[source].at.server;
    let mut done = Global::default();
    for _ in 0..thresholds.max_iter {
        let load = snapshot.workers[source].load();
        let Some((destination, lightest)) = lightest_server(snapshot, home) else { break };
        if (load - lightest).abs() <= thresholds.imbalance || load <= lightest {
            break;
        }
        let mut workers = vec![source];
        workers.extend(
            (0..snapshot.workers.len()).filter(|&w| snapshot.workers[w].at.server == destination),
        );
        let objective = Objective::Closest { source: 0 };
        let model =
            Model::new(snapshot, &workers, objective, limit, |w| w == source, |w| w != source);
        let homes = model.homes();
        let better =
            |placement: &Placement| model.cost(placement) < model.cost(&homes) - LOAD_EPSILON;
        let placement = solve(&model)
            .filter(|placement| model.permits(placement) && better(placement))
            .unwrap_or_else(|| greedy(&model));
        let plan = model.plan(&placement);
        if plan.moves.is_empty() {
            done.plan.too_heavy = plan.too_heavy;
            break;
        }
        carry_out(snapshot, source, &workers, &model, &placement);
        if done.plan.moves.is_empty() {
            done.plan.objective_before = plan.objective_before;
        }
        done.plan.moves.extend(plan.moves);
        done.plan.objective = plan.objective;
        done.plan.lower_bound = plan.lower_bound;
        done.plan.too_heavy = plan.too_heavy;
    }
    let left = snapshot.workers[source].load();
    done.plan.excess = (left - limit).max(0.0);
    done.all_hot = thresholds.is_over(left);
    done
}

/// The server with the lowest mean load of its workers, other than `home`.
fn lightest_server(snapshot: &Snapshot, home: ServerId) -> Option<(ServerId, f64)> {
    let mut lightest: Option<(ServerId, f64)> = None;
    for workers in snapshot.workers.chunk_by(|a, b| a.at.server == b.at.server) {
        let mean = workers.iter().map(|worker| worker.load()).sum::<f64>() / workers.len() as f64;
        if workers[0].at.server != home && lightest.is_none_or(|(_, least)| mean < least) {
            lightest = Some((workers[0].at.server, mean));
        }
    }
    lightest
}

fn carry_out(
    snapshot: &mut Snapshot,
    source: usize,
    workers: &[usize],
    model: &Model,
    placement: &[u32],
) {
    for (ball, &bin) in model.balls.iter().zip(placement) {
        if bin as usize == ball.home {
            continue;
        }
        let held = &mut snapshot.workers[source].cachelets;
        let index = held.iter().position(|held| held.cachelet == ball.cachelet);
        let cachelet = held.remove(index.expect("a model's balls are its source's cachelets"));
        snapshot.workers[workers[bin as usize]].cachelets.push(cachelet);
    }
}
