//! How far quick plans are from proven ones, and what each costs, as CSV:
//! `cargo run --release -p mbal-exact --example planners [CLUSTERS]`.

#[path = "../../../pure/balance/tests/clusters/mod.rs"]
mod clusters;

use std::time::Instant;

use clusters::{Clusters, Recipe};
use mbal_balance::{Effort, Model, greedy, search};
use mbal_exact::{STEPS_MAX, solve};

fn main() {
    let count = std::env::args().nth(1).map_or(1_000, |count| count.parse().expect("a count"));
    println!(
        "recipe,clusters,greedy_within_1pct,search_within_1pct,search_over_optimum_p95,greedy_us_p50,\
         search_us_p50,search_us_p99,exact_ms_p50,exact_ms_p99,exact_ms_max,refused"
    );
    let small = Recipe::SMALL;
    compare("16x8 uniform", count, small);
    compare("16x8 uniform fixed 30%", count, Recipe { fixed_max: 0.3, ..small });
    compare("16x8 skew 1", count, Recipe { skew: 1.0, ..small });
    compare("16x8 skew 1 fixed 30%", count, Recipe { fixed_max: 0.3, skew: 1.0, ..small });
    println!(
        "\nrecipe,clusters,max_over_average_p50,max_over_average_max,deviation_over_load_max,moves_p50,ms_p50,ms_max"
    );
    let wide = Recipe { cachelets: 1_000, servers: 8, workers_per_server: 8, ..small };
    level("1000x64 uniform", 50, wide);
    level("1000x64 skew 0.5", 50, Recipe { skew: 0.5, ..wide });
    level("1000x64 uniform fixed 30%", 50, Recipe { fixed_max: 0.3, ..wide });
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let started = Instant::now();
    let done = work();
    (done, started.elapsed().as_secs_f64())
}

fn at(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * share).round() as usize]
}

fn compare(name: &str, count: usize, recipe: Recipe) {
    let mut clusters = Clusters(1);
    let mut columns = vec![Vec::new(); 5];
    let mut efforts = [5, 10, 20, 40, 80].map(|shakes| (shakes, Vec::new(), Vec::new()));
    let mut refused = 0;
    for _ in 0..count {
        let model = Model::evenest(&clusters.draw(&recipe), 0.75, 0.0);
        let (quick, greedy_s) = timed(|| greedy(&model));
        let (searched, search_s) = timed(|| search(&model, Effort::THOROUGH));
        match timed(|| solve(&model, STEPS_MAX)) {
            (Ok(proven), exact_s) => {
                let row = [
                    model.cost(&quick) / proven.cost,
                    model.cost(&searched) / proven.cost,
                    greedy_s * 1e6,
                    search_s * 1e6,
                    exact_s * 1e3,
                ];
                columns.iter_mut().zip(row).for_each(|(column, value)| column.push(value));
                for (shakes, ratios, micros) in &mut efforts {
                    let effort = Effort { shakes: *shakes, tolerance: 0.0 };
                    let (placement, seconds) = timed(|| search(&model, effort));
                    ratios.push(model.cost(&placement) / proven.cost);
                    micros.push(seconds * 1e6);
                }
            }
            (Err(_), _) => refused += 1,
        }
    }
    let within =
        |ratios: &[f64]| ratios.iter().filter(|r| **r <= 1.01).count() as f64 / count as f64;
    println!(
        "{name},{count},{:.3},{:.3},{:.4},{:.1},{:.1},{:.1},{:.2},{:.1},{:.1},{refused}",
        within(&columns[0]),
        within(&columns[1]),
        at(&mut columns[1], 0.95),
        at(&mut columns[2], 0.5),
        at(&mut columns[3], 0.5),
        at(&mut columns[3], 0.99),
        at(&mut columns[4], 0.5),
        at(&mut columns[4], 0.99),
        at(&mut columns[4], 1.0),
    );
    for (shakes, ratios, mut micros) in efforts {
        eprintln!(
            "{name}: {shakes} shakes: {:.3} within 1%, {:.1} us",
            within(&ratios),
            at(&mut micros, 0.5)
        );
    }
}

/// The linear relaxation can level everything, so its max load is the average.
fn level(name: &str, count: usize, recipe: Recipe) {
    let mut clusters = Clusters(2);
    let mut columns = vec![Vec::new(); 4];
    for _ in 0..count {
        let model = Model::evenest(&clusters.draw(&recipe), 0.75, 0.0);
        let (placement, seconds) = timed(|| search(&model, Effort::DESCENT));
        let loads = model.loads(&placement);
        let total: f64 = loads.iter().sum();
        let most = loads.iter().copied().fold(0.0, f64::max);
        let row = [
            most * loads.len() as f64 / total,
            model.objective(&placement) / total,
            model.moved(&placement) as f64,
            seconds * 1e3,
        ];
        columns.iter_mut().zip(row).for_each(|(column, value)| column.push(value));
    }
    println!(
        "{name},{count},{:.4},{:.4},{:.4},{:.0},{:.1},{:.1}",
        at(&mut columns[0], 0.5),
        at(&mut columns[0], 1.0),
        at(&mut columns[1], 1.0),
        at(&mut columns[2], 0.5),
        at(&mut columns[3], 0.5),
        at(&mut columns[3], 1.0),
    );
}
