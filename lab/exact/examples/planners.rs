//! How far quick plans are from proven ones, and what each costs, into
//! `docs/results/deciders/planners*.csv`: `cargo run --release -p mbal-exact --example planners [CLUSTERS]`.
//! CLUSTERS with uniform loads, 1,000 unless told, and a quarter as many of each harder recipe.

#[path = "../tests/clusters/mod.rs"]
mod clusters;

use std::time::Instant;

use clusters::{Clusters, Recipe};
use mbal_exact::{Effort, Model, greedy, search, solve};

/// Joins of subsets, about a third of a second: so many clusters must end in minutes. Whatever is not proven
/// by then is judged by the linear relaxation's bound.
const STEPS_MAX: u64 = 300_000_000;

const SHAKES: [u32; 5] = [5, 10, 20, 40, 80];

fn main() {
    let count = std::env::args().nth(1).map_or(1_000, |count| count.parse().expect("a count"));
    let mut rows = vec![
        "recipe,clusters,greedy_within_1pct,search_within_1pct,search_over_optimum_p95,greedy_us_p50,\
         search_us_p50,search_us_p99,exact_ms_p50,exact_ms_p99,exact_ms_max,unproven"
            .to_owned(),
    ];
    let mut shakes = vec!["recipe,shakes,within_1pct,us_p50".to_owned()];
    let small = Recipe::SMALL;
    for (name, count, recipe) in [
        ("16x8 uniform", count, small),
        ("16x8 uniform fixed 30%", count / 4, Recipe { fixed_max: 0.3, ..small }),
        ("16x8 skew 1", count / 4, Recipe { skew: 1.0, ..small }),
        ("16x8 skew 1 fixed 30%", count / 4, Recipe { fixed_max: 0.3, skew: 1.0, ..small }),
    ] {
        compare(name, count, recipe, &mut rows, &mut shakes);
    }
    write("planners.csv", &rows);
    write("planners-shakes.csv", &shakes);
    let mut rows = vec![
        "recipe,clusters,max_over_average_max,max_over_bound_p50,max_over_bound_max,\
         deviation_over_bound_max,moves_p50,ms_p50,ms_max"
            .to_owned(),
    ];
    let wide = Recipe { cachelets: 1_000, servers: 8, workers_per_server: 8, ..small };
    for (name, recipe) in [
        ("1000x64 uniform", wide),
        ("1000x64 skew 0.5", Recipe { skew: 0.5, ..wide }),
        ("1000x64 uniform fixed 30%", Recipe { fixed_max: 0.3, ..wide }),
    ] {
        rows.push(level(name, 50, recipe));
    }
    write("planners-wide.csv", &rows);
}

fn write(name: &str, rows: &[String]) {
    let text = rows.join("\n") + "\n";
    println!("# {name}\n{text}");
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/deciders");
    std::fs::write(format!("{folder}/{name}"), text).expect("the results' folder is there");
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

fn compare(
    name: &str,
    count: usize,
    recipe: Recipe,
    rows: &mut Vec<String>,
    by_shakes: &mut Vec<String>,
) {
    let mut clusters = Clusters::new(1);
    let models: Vec<Model> =
        (0..count).map(|_| Model::evenest(&clusters.draw(&recipe), 0.75, 0.0)).collect();
    let mut columns = vec![Vec::new(); 5];
    let mut efforts = SHAKES.map(|shakes| (shakes, Vec::new(), Vec::new()));
    let mut unproven = 0;
    // Quick plans first and together: the machine need be quiet for a blink only.
    let quick: Vec<_> = models.iter().map(|model| timed(|| greedy(model))).collect();
    let searched: Vec<_> =
        models.iter().map(|model| timed(|| search(model, Effort::THOROUGH))).collect();
    let by_effort = SHAKES.map(|shakes| -> Vec<_> {
        let effort = Effort { shakes, tolerance: 0.0 };
        models.iter().map(|model| timed(|| search(model, effort))).collect()
    });
    for (at, model) in models.iter().enumerate() {
        let index = at + 1;
        let (proven, exact_s) = timed(|| solve(model, STEPS_MAX));
        let least = proven.map_or_else(
            |_| {
                unproven += 1;
                model.lower_bound()
            },
            |proven| proven.cost,
        );
        let row = [
            model.cost(&quick[at].0) / least,
            model.cost(&searched[at].0) / least,
            quick[at].1 * 1e6,
            searched[at].1 * 1e6,
            exact_s * 1e3,
        ];
        columns.iter_mut().zip(row).for_each(|(column, value)| column.push(value));
        for ((_, ratios, micros), plans) in efforts.iter_mut().zip(&by_effort) {
            ratios.push(model.cost(&plans[at].0) / least);
            micros.push(plans[at].1 * 1e6);
        }
        if index % 100 == 0 {
            eprintln!("{name}: {index} of {count}");
        }
    }
    let within =
        |ratios: &[f64]| ratios.iter().filter(|r| **r <= 1.01).count() as f64 / count as f64;
    rows.push(format!(
        "{name},{count},{:.3},{:.3},{:.4},{:.1},{:.1},{:.1},{:.2},{:.1},{:.1},{unproven}",
        within(&columns[0]),
        within(&columns[1]),
        at(&mut columns[1], 0.95),
        at(&mut columns[2], 0.5),
        at(&mut columns[3], 0.5),
        at(&mut columns[3], 0.99),
        at(&mut columns[4], 0.5),
        at(&mut columns[4], 0.99),
        at(&mut columns[4], 1.0),
    ));
    for (shakes, ratios, mut micros) in efforts {
        by_shakes.push(format!(
            "{name},{shakes},{:.3},{:.1}",
            within(&ratios),
            at(&mut micros, 0.5)
        ));
    }
}

/// The least that the fullest worker can have, were all other cachelets cut to any size: the average, what
/// cannot leave a worker, and the heaviest cachelet on the emptiest.
fn fullest_at_least(model: &Model) -> f64 {
    let loads = model.loads(&model.homes());
    let average = loads.iter().sum::<f64>() / loads.len() as f64;
    let fixed =
        |pick: fn(f64, f64) -> f64, from| model.bins.iter().map(|bin| bin.fixed).fold(from, pick);
    let heaviest = model.balls.iter().map(|ball| ball.load).fold(0.0, f64::max);
    average.max(fixed(f64::max, 0.0)).max(heaviest + fixed(f64::min, f64::INFINITY))
}

fn level(name: &str, count: usize, recipe: Recipe) -> String {
    let mut clusters = Clusters::new(2);
    let mut columns = vec![Vec::new(); 5];
    for _ in 0..count {
        let model = Model::evenest(&clusters.draw(&recipe), 0.75, 0.0);
        let (placement, seconds) = timed(|| search(&model, Effort::DESCENT));
        let loads = model.loads(&placement);
        let total: f64 = loads.iter().sum();
        let most = loads.iter().copied().fold(0.0, f64::max);
        let row = [
            most * loads.len() as f64 / total,
            most / fullest_at_least(&model),
            (model.objective(&placement) - model.lower_bound()) / total,
            model.moved(&placement) as f64,
            seconds * 1e3,
        ];
        columns.iter_mut().zip(row).for_each(|(column, value)| column.push(value));
    }
    format!(
        "{name},{count},{:.4},{:.4},{:.4},{:.4},{:.0},{:.1},{:.1}",
        at(&mut columns[0], 1.0),
        at(&mut columns[1], 0.5),
        at(&mut columns[1], 1.0),
        at(&mut columns[2], 1.0),
        at(&mut columns[3], 0.5),
        at(&mut columns[4], 0.5),
        at(&mut columns[4], 1.0),
    )
}
