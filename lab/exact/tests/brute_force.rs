//! The exact solver against every placement there is, on tiny clusters.

mod clusters;

use clusters::{Clusters, Recipe};
use mbal_exact::{BALLS_MAX, Effort, Model, Objective, Refused, STEPS_MAX, search, solve};
use mbal_model::Snapshot;

fn brute_force(model: &Model) -> f64 {
    let bins = model.bins.len();
    let placements = bins.pow(model.balls.len() as u32);
    (0..placements)
        .map(|code| {
            let digit = |ball: u32| (code / bins.pow(ball) % bins) as u32;
            (0..model.balls.len() as u32).map(digit).collect::<Vec<u32>>()
        })
        .filter(|placement| model.permits(placement))
        .map(|placement| model.cost(&placement))
        .fold(f64::INFINITY, f64::min)
}

fn models(snapshot: &Snapshot, source: usize) -> [Model; 4] {
    let all: Vec<usize> = (0..snapshot.workers.len()).collect();
    let (from, to) = (|at| at == source, |at| at != source);
    [
        Model::evenest(snapshot, 0.75, 0.0),
        Model::evenest(snapshot, 0.75, 0.03),
        Model::new(snapshot, &all, Objective::FewestMoves, 0.75, |_| true, |_| true),
        Model::new(snapshot, &all, Objective::Closest { source }, 0.75, from, to),
    ]
}

#[test]
fn the_exact_solver_equals_brute_force_and_no_planner_beats_it() {
    let mut clusters = Clusters::new(3);
    for round in 0..400 {
        let recipe = Recipe {
            cachelets: 1 + clusters.below(6),
            workers_per_server: 1 + clusters.below(4),
            load: 0.2 + 0.7 * clusters.unit(),
            fixed_max: 0.5 * clusters.unit(),
            skew: clusters.unit(),
            memory: 1.0 + clusters.unit(),
            ..Recipe::SMALL
        };
        let snapshot = clusters.draw(&recipe);
        let source = clusters.below(snapshot.workers.len());
        for model in models(&snapshot, source) {
            let proven = solve(&model, STEPS_MAX).expect("tiny");
            assert!(model.permits(&proven.placement));
            assert!((model.cost(&proven.placement) - proven.cost).abs() < 1e-6);
            let best = brute_force(&model);
            assert!(
                (proven.cost - best).abs() < 1e-6,
                "round {round}: {} {best} {model:?}",
                proven.cost
            );
            assert!(model.cost(&search(&model, Effort::DESCENT)) >= best - 1e-6);
        }
    }
}

#[test]
fn what_is_too_large_is_refused() {
    let many = Recipe { cachelets: BALLS_MAX + 1, ..Recipe::SMALL };
    let snapshot = Clusters::new(1).draw(&many);
    assert_eq!(solve(&Model::evenest(&snapshot, 1e9, 0.0), STEPS_MAX), Err(Refused::TooManyBalls));
    let snapshot = Clusters::new(1).draw(&Recipe::SMALL);
    assert_eq!(solve(&Model::evenest(&snapshot, 1e9, 0.0), 1), Err(Refused::OutOfSteps));
}
