//! Phase 3: MBal (EuroSys 2015) §3.4, Algorithm 2. Cachelets leave an overloaded worker for other servers.

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Move, Plan, ServerId, Snapshot, WorkerLoad};

use crate::local::apply;
use crate::model::{EXCESS_WEIGHT, LOAD_EPSILON, Model, Objective, Placement};
use crate::{Thresholds, greedy};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Global {
    pub plan: Plan,
    /// The source is still too hot: the paper's NULL, which asks for more servers. What could be moved
    /// is in the plan all the same.
    pub all_hot: bool,
}

/// Of a full server's memory, what an exchange may bring it above that.
const SWAP_SLACK: f64 = 1.0 / 64.0;

/// Algorithm 2 for one source worker, on a snapshot of the whole cluster, which is brought up to date so
/// that the next source sees what this one did; what has moved is pinned there. `solve` is SolveLP, equation (8). `takes` says
/// which servers get anything. O(`max_iter` · (workers + SolveLP)), and once more for each server that cannot take.
///
/// Three differences: the paper asks the lightest server again and again, here one that cannot take is
/// followed by the next lightest; the paper's lightest server takes half of the difference, and the next one half of what is left,
/// here each takes no more than its even share, as long as that helps: loads of a saturated worker say what its cachelets ask for
/// beside each other, and who takes half of them is saturated next; and where nobody has memory free, which is a cache's usual state, a heavy cachelet
/// goes against a lighter one of about as many bytes (the "swap" of Table 2), so that (10) and (11) still hold.
pub fn relieve(
    snapshot: &mut Snapshot,
    source: usize,
    thresholds: &Thresholds,
    takes: impl Fn(ServerId) -> bool,
    mut solve: impl FnMut(&Model) -> Option<Placement>,
) -> Global {
    let home = snapshot.workers[source].at.server;
    let permissible = thresholds.permissible;
    let mut limit = even_share(snapshot, source, &takes).min(permissible);
    let mut done = Global::default();
    let mut full: Vec<ServerId> = Vec::new();
    let mut exchanges = false;
    let mut iterations = 0;
    while iterations < thresholds.max_iter {
        let load = snapshot.workers[source].load();
        let may = |server| server != home && !full.contains(&server) && takes(server);
        let lightest = lightest_server(snapshot, may);
        let lighter = lightest.filter(|(_, least)| load - least > thresholds.felt());
        // Two moves for one gain: only where nothing else helps, and as long as it is needed.
        if exchanges && !thresholds.is_over(load) {
            break;
        }
        let Some((destination, _)) = lighter else {
            if limit < permissible {
                // What is left is heavier than an even share.
                limit = permissible;
            } else if exchanges || !thresholds.is_over(load) {
                break;
            } else {
                exchanges = true;
            }
            full.clear();
            continue;
        };
        let mut workers = vec![source];
        workers.extend(
            (0..snapshot.workers.len()).filter(|&w| snapshot.workers[w].at.server == destination),
        );
        let objective = Objective::Closest { source: 0 };
        let takes = |w| w != source;
        let mut model =
            Model::new(snapshot, &workers, objective, permissible, |w| w == source, takes);
        model.bins.iter_mut().for_each(|bin| bin.limit = limit);
        let homes = model.homes();
        let better =
            |placement: &Placement| model.cost(placement) < model.cost(&homes) - LOAD_EPSILON;
        let placement = solve(&model)
            .filter(|placement| model.permits(placement) && better(placement))
            .unwrap_or_else(|| greedy(&model));
        let plan = model.plan(&placement);
        done.plan.too_heavy.clone_from(&plan.too_heavy);
        let moves = match plan.moves.is_empty() {
            true if exchanges => best_swap(snapshot, source, &workers[1..], thresholds),
            _ => plan.moves,
        };
        if moves.is_empty() {
            if is_planted(Fault::AsksTheLightestAlone) {
                break;
            }
            full.push(destination);
            continue;
        }
        if done.plan.moves.is_empty() {
            done.plan.objective_before = plan.objective_before;
        }
        carry_out(snapshot, &moves);
        let loads: Vec<f64> = workers.iter().map(|&at| snapshot.workers[at].load()).collect();
        done.plan.objective = model.closeness(&loads);
        done.plan.lower_bound = plan.lower_bound;
        done.plan.moves.extend(moves);
        iterations += 1;
    }
    let left = snapshot.workers[source].load();
    done.plan.excess = (left - permissible).max(0.0);
    done.all_hot = thresholds.is_over(left);
    done
}

/// Mean load of the source and of all workers that may take something.
fn even_share(snapshot: &Snapshot, source: usize, takes: impl Fn(ServerId) -> bool) -> f64 {
    let home = snapshot.workers[source].at.server;
    let others = snapshot.workers.iter();
    let others = others.filter(|worker| worker.at.server != home && takes(worker.at.server));
    let (sum, count) = others.fold((snapshot.workers[source].load(), 1.0), |(sum, count), one| {
        (sum + one.load(), count + 1.0)
    });
    sum / count
}

/// The server with the lowest mean load of its workers, of those that may take.
fn lightest_server(snapshot: &Snapshot, may: impl Fn(ServerId) -> bool) -> Option<(ServerId, f64)> {
    let mut lightest: Option<(ServerId, f64)> = None;
    for workers in snapshot.workers.chunk_by(|a, b| a.at.server == b.at.server) {
        let mean = workers.iter().map(|worker| worker.load()).sum::<f64>() / workers.len() as f64;
        if may(workers[0].at.server) && lightest.is_none_or(|(_, least)| mean < least) {
            lightest = Some((workers[0].at.server, mean));
        }
    }
    lightest
}

/// The one exchange of a cachelet for a lighter one that brings source and destination closest. Nobody ends above its limit
/// because of it, or above its memory by more than the slack. O(cachelets of the source · of the destination).
fn best_swap(
    snapshot: &Snapshot,
    source: usize,
    destinations: &[usize],
    thresholds: &Thresholds,
) -> Vec<Move> {
    let limit = thresholds.permissible;
    let from = &snapshot.workers[source];
    let room = |worker: &WorkerLoad| {
        let slack = worker.bytes_max as f64 * SWAP_SLACK;
        worker.bytes().max(worker.bytes_max + slack as u64)
    };
    let cost = |a: f64, b: f64| EXCESS_WEIGHT * (a - limit).max(0.0) + (a - b).abs();
    let (from_load, from_bytes) = (from.load(), from.bytes());
    let mut best = (f64::INFINITY, Vec::new());
    for &destination in destinations {
        let to = &snapshot.workers[destination];
        let (to_load, to_bytes) = (to.load(), to.bytes());
        let now = cost(from_load, to_load);
        for out in from.cachelets.iter().filter(|out| !out.pinned && out.load <= limit) {
            for back in to.cachelets.iter().filter(|back| !back.pinned && back.load < out.load) {
                let gain = out.load - back.load;
                let after = cost(from_load - gain, to_load + gain);
                let fits = to_load + gain <= limit
                    && to_bytes + out.bytes <= room(to) + back.bytes
                    && from_bytes + back.bytes <= room(from) + out.bytes;
                if fits && after < best.0 && after < now - 2.0 * thresholds.move_price {
                    let step = |cachelet, from, to| Move { cachelet, from, to };
                    best = (
                        after,
                        vec![
                            step(out.cachelet, from.at, to.at),
                            step(back.cachelet, to.at, from.at),
                        ],
                    );
                }
            }
        }
    }
    best.1
}

fn carry_out(snapshot: &mut Snapshot, moves: &[Move]) {
    for step in moves {
        apply(snapshot, &[*step]);
        let to = snapshot.workers.iter_mut().find(|worker| worker.at == step.to);
        let to = to.expect("a plan names workers of its snapshot");
        to.cachelets.last_mut().expect("something has just come").pinned = true;
    }
}
