//! Algorithm 2 with the planner of every day beside Algorithm 2 with an exact SolveLP, on random clusters: what the difference costs.
//!
//!     cargo run --release -p mbal-exact --example algorithm_2

#[path = "../../../pure/balance/tests/clusters/mod.rs"]
mod clusters;

use clusters::{Clusters, Recipe};
use mbal_balance::{Effort, Global, Model, Thresholds, greedy, relieve, search};
use mbal_exact::solve;
use mbal_model::{ServerId, Snapshot};

/// What the coordinator plans with.
const EFFORT: Effort = Effort::THOROUGH;

const CLUSTERS: usize = 1_000;
/// About a second each; more is not proven.
const STEPS_MAX: u64 = 1_000_000_000;

#[derive(Default)]
struct Compared {
    clusters: usize,
    /// The source ends as low, or lower, to a thousandth of a worker's time.
    as_low: usize,
    /// How much higher it ends, in a worker's time.
    higher_sum: f64,
    higher_max: f64,
    moves: usize,
    moves_exact: usize,
    /// SolveLP alone, equation (8): within 1% of the optimum.
    solved: usize,
    solved_near: usize,
    /// Load above the permissible that the optimum does not leave.
    excess_max: f64,
    unproven: usize,
}

/// The hottest worker of a random cluster, 0.8 to 1.2 hot.
fn hot(clusters: &mut Clusters, full: bool) -> (Snapshot, usize) {
    let recipe = Recipe {
        cachelets: 48,
        servers: 4,
        workers_per_server: 3,
        fixed_max: 0.2,
        skew: 0.5 * clusters.unit(),
        memory: if full { 1.0 } else { 2.0 },
        ..Recipe::SMALL
    };
    let mut snapshot = clusters.draw(&recipe);
    let source = clusters.below(snapshot.workers.len());
    let wanted = 0.8 + 0.4 * clusters.unit();
    let worker = &mut snapshot.workers[source];
    let held: f64 = worker.cachelets.iter().map(|held| held.load).sum();
    if held > 0.0 {
        let factor = (wanted - worker.fixed) / held;
        worker.cachelets.iter_mut().for_each(|held| held.load *= factor);
    }
    (snapshot, source)
}

fn end(
    snapshot: &Snapshot,
    source: usize,
    solve: impl FnMut(&Model) -> Option<Vec<u32>>,
) -> (f64, Global) {
    let mut after = snapshot.clone();
    let takes = |_: ServerId| true;
    let global = relieve(&mut after, source, &Thresholds::default(), takes, solve);
    (after.workers[source].load(), global)
}

fn compare(clusters: &mut Clusters, full: bool) -> Compared {
    let mut all = Compared::default();
    while all.clusters < CLUSTERS {
        let (snapshot, source) = hot(clusters, full);
        if snapshot.workers[source].load() <= 0.75 {
            continue;
        }
        let (load, quick) = end(&snapshot, source, |model| Some(search(model, EFFORT)));
        let mut unproven = false;
        let (best, exact) = end(&snapshot, source, |model| match solve(model, STEPS_MAX) {
            Ok(proven) => {
                let quick = search(model, EFFORT);
                assert!(model.cost(&greedy(model)) >= model.cost(&quick) - 1e-9);
                all.solved += 1;
                all.solved_near += usize::from(model.cost(&quick) <= proven.cost * 1.01 + 1e-9);
                let excess = model.excess(&quick) - model.excess(&proven.placement);
                all.excess_max = all.excess_max.max(excess);
                Some(proven.placement)
            }
            Err(_) => {
                unproven = true;
                None
            }
        });
        all.clusters += 1;
        all.unproven += usize::from(unproven);
        all.as_low += usize::from(load <= best + 1e-3);
        all.higher_sum += (load - best).max(0.0);
        all.higher_max = all.higher_max.max(load - best);
        all.moves += quick.plan.moves.len();
        all.moves_exact += exact.plan.moves.len();
    }
    all
}

fn main() {
    println!(
        "memory,clusters,source_as_low_pct,higher_mean,higher_max,moves,moves_exact,\
         solve_lp_within_1pct,solve_lp_excess_max,unproven"
    );
    for (name, full) in [("free", false), ("scarce", true)] {
        let all = compare(&mut Clusters::new(17), full);
        let percent = |part: usize, of: usize| 100.0 * part as f64 / of.max(1) as f64;
        println!(
            "{name},{},{:.1},{:.4},{:.3},{},{},{:.1},{:.3},{}",
            all.clusters,
            percent(all.as_low, all.clusters),
            all.higher_sum / all.clusters as f64,
            all.higher_max,
            all.moves,
            all.moves_exact,
            percent(all.solved_near, all.solved),
            all.excess_max,
            all.unproven
        );
    }
}
