//! What must hold of every plan, over random clusters.

mod clusters;

use std::collections::BTreeMap;

use clusters::{Clusters, Recipe};
use mbal_exact::{Effort, Model, Objective, Plan, greedy, search};
use mbal_model::{CacheletLoad, Owner, Prefix, ServerId, Service, Snapshot, WorkerId, WorkerLoad};

fn recipes(clusters: &mut Clusters) -> Recipe {
    Recipe {
        cachelets: 1 + clusters.below(80),
        workers_per_server: 1 + clusters.below(8),
        load: 0.1 + clusters.unit(),
        fixed_max: 0.6 * clusters.unit(),
        skew: 1.5 * clusters.unit(),
        memory: 1.0 + clusters.unit(),
        ..Recipe::SMALL
    }
}

/// Each cachelet moves at most once, from where it is; nobody within a limit ends above it; nobody
/// above it gets more; nobody's memory overflows because of the plan.
fn check(snapshot: &Snapshot, plan: &Plan, limit: f64) {
    let mut after: BTreeMap<Owner, WorkerLoad> =
        snapshot.workers.iter().map(|worker| (worker.at, worker.clone())).collect();
    let mut moved = Vec::new();
    for step in &plan.moves {
        let from = after.get_mut(&step.from).expect("a worker of the snapshot");
        let index = from.cachelets.iter().position(|held| held.cachelet == step.cachelet);
        let cachelet = from.cachelets.remove(index.expect("its owner by the snapshot"));
        assert!(!cachelet.pinned, "{:?} rests", step.cachelet);
        assert_ne!(step.from, step.to);
        after.get_mut(&step.to).expect("a worker of the snapshot").cachelets.push(cachelet);
        moved.push(step.cachelet);
    }
    moved.sort();
    assert!(moved.windows(2).all(|pair| pair[0] != pair[1]), "moved twice: {moved:?}");
    for before in &snapshot.workers {
        let now = &after[&before.at];
        assert!(now.load() <= before.load().max(limit) + 1e-6, "{:?} is overloaded", before.at);
        // An exchange of two cachelets may bring a little more than it takes away.
        let swaps = plan.moves.iter().any(|step| step.from == before.at)
            && plan.moves.iter().any(|step| step.to == before.at);
        let slack = if swaps { before.bytes_max / 64 } else { 0 };
        let bytes_max = before.bytes().max(before.bytes_max) + slack;
        assert!(now.bytes() <= bytes_max, "{:?} overflows", before.at);
    }
}

#[test]
fn no_planner_breaks_a_constraint_and_a_descent_never_loses_to_greedy() {
    let mut clusters = Clusters::new(7);
    for _ in 0..2_000 {
        let recipe = recipes(&mut clusters);
        let mut snapshot = clusters.draw(&recipe);
        for worker in &mut snapshot.workers {
            for cachelet in &mut worker.cachelets {
                cachelet.pinned = clusters.below(10) == 0;
            }
        }
        let all: Vec<usize> = (0..snapshot.workers.len()).collect();
        let source = clusters.below(all.len());
        let models = [
            Model::evenest(&snapshot, 0.75, 0.0),
            Model::evenest(&snapshot, 0.75, 0.02),
            Model::new(&snapshot, &all, Objective::FewestMoves, 0.75, |_| true, |_| true),
            Model::new(
                &snapshot,
                &all,
                Objective::Closest { source },
                0.75,
                |at| at == source,
                |at| at != source,
            ),
        ];
        for model in models {
            let quick = greedy(&model);
            let better = search(&model, Effort { shakes: 5, tolerance: 0.0 });
            assert!(model.permits(&quick) && model.permits(&better));
            assert!(model.cost(&better) <= model.cost(&model.homes()) + 1e-9);
            let descended = search(&model, Effort { shakes: 0, tolerance: 0.0 });
            assert!(model.permits(&descended));
            assert!(model.cost(&descended) <= model.cost(&quick) + 1e-9);
            assert!(model.cost(&quick) <= model.cost(&model.homes()) + 1e-9);
            let plan = model.plan(&better);
            check(&snapshot, &plan, 0.75);
            if plan.excess == 0.0 {
                assert!(plan.gap() >= -1e-6, "{:?}: {plan:?}", model.objective);
            }
        }
    }
}

/// Workers of one server, by the loads of their cachelets.
fn server(workers: &[&[f64]]) -> Snapshot {
    let mut id = 0;
    Snapshot {
        workers: workers
            .iter()
            .enumerate()
            .map(|(index, loads)| WorkerLoad {
                at: Owner { server: ServerId(0), worker: WorkerId(index as u16) },
                service: Service::default(),
                fixed: 0.0,
                bytes_max: 1_000,
                cachelets: loads
                    .iter()
                    .map(|&load| {
                        id += 1;
                        let cachelet = Prefix::nth(id, 15);
                        CacheletLoad { cachelet, load, bytes: 1, pinned: false }
                    })
                    .collect(),
            })
            .collect(),
    }
}

#[test]
fn an_even_server_stays_as_it_is() {
    let even = server(&[&[0.2, 0.2], &[0.25, 0.15], &[0.3, 0.1]]);
    assert_eq!(greedy(&Model::evenest(&even, 0.75, 0.0)), [0, 0, 1, 1, 2, 2]);
}

#[test]
fn one_overloaded_worker_loses_as_few_cachelets_as_possible() {
    let hot = server(&[&[0.1, 0.1, 0.1, 0.3, 0.3], &[0.2], &[0.3]]);
    let model =
        Model::new(&hot, &[0, 1, 2], Objective::FewestMoves, 0.75, |at| at == 0, |at| at != 0);
    let plan = model.plan(&search(&model, Effort::DESCENT));
    assert_eq!((plan.excess, plan.moves.len()), (0.0, 1));
    assert_eq!((plan.objective, plan.lower_bound), (1.0, 1.0));
}
