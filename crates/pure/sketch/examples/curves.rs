//! Sampled miss-ratio curves against Mattson's exact ones, on every trace of the data folder.
//!
//!     cargo run --release -p mbal-sketch --example curves
//!
//! Writes `docs/results/deciders/curves.csv` (errors and state) and `curves-points.csv` (plots).

#[path = "../tests/mattson/mod.rs"]
mod mattson;
mod support;

use mbal_sketch::{Curve, StackDistances};
use std::fmt::Write;

const SIZES: u64 = 1_000;

fn main() {
    let mut table =
        String::from("trace,requests,samples_most,unit,rate,state_bytes,mae,mae_log,max\n");
    let mut points = String::from("trace,unit,size,exact,sampled\n");
    for name in support::traces::NAMES {
        let Some(trace) = support::traces::load(name) else { continue };
        let (by_items, by_bytes) = mattson::exact(&trace.requests);
        for samples_most in [2_048, 4_096, 8_192, 16_384] {
            let mut distances = StackDistances::new(samples_most);
            trace.requests.iter().for_each(|&(key, bytes)| distances.observe(key, bytes));
            for (unit, curve, exact) in [
                ("items", distances.by_items(), &by_items),
                ("bytes", distances.by_bytes(), &by_bytes),
            ] {
                let (mae, max) = errors(&curve, exact, |i| exact.size_most() * i / SIZES);
                let (mae_log, _) = errors(&curve, exact, |i| {
                    (exact.size_most() as f64).powf(i as f64 / SIZES as f64) as u64
                });
                writeln!(
                    table,
                    "{},{},{samples_most},{unit},{:.4},{},{mae:.5},{mae_log:.5},{max:.4}",
                    trace.name,
                    trace.requests.len(),
                    distances.rate(),
                    distances.state_bytes(),
                )
                .expect("a string grows");
                if samples_most == 16_384 {
                    for i in 1..=200 {
                        let size = exact.size_most() * i / 200;
                        writeln!(
                            points,
                            "{},{unit},{size},{:.5},{:.5}",
                            trace.name,
                            exact.miss_ratio(size),
                            curve.miss_ratio(size)
                        )
                        .expect("a string grows");
                    }
                }
            }
        }
    }
    print!("{table}");
    support::write_result("curves.csv", &table);
    support::write_result("curves-points.csv", &points);
}

// Mean and largest absolute error over `SIZES` sizes.
fn errors(curve: &Curve, exact: &mattson::ExactCurve, size: impl Fn(u64) -> u64) -> (f64, f64) {
    let errors: Vec<f64> = (1..=SIZES)
        .map(|i| (curve.miss_ratio(size(i)) - exact.miss_ratio(size(i))).abs())
        .collect();
    (errors.iter().sum::<f64>() / SIZES as f64, errors.iter().fold(0.0, |max, &e| e.max(max)))
}
