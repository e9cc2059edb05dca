//! The autoscaler over a day of load, in virtual time, with curves of real traces: a table for docs/results/elastic.md.
//!
//!     cargo run --release -p mbal-elastic --example day

#[allow(dead_code, reason = "rates alone are used")]
mod demand;
#[path = "../tests/day/model.rs"]
mod model;
#[path = "../../sketch/examples/support/mod.rs"]
mod support;

use mbal_elastic::Policy;
use model::{Load, Sized, peak, play};
use support::traces;

fn main() {
    println!(
        "| trace | seed | policy | p_min held, % of seconds | servers, mean | peak | saved, % | changes | flaps | forecast off, points |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for trace in traces::NAMES.into_iter().filter_map(traces::load) {
        let load = Load::of(&trace.requests);
        for seed in [1, 2, 3] {
            for policy in [Policy::Reactive, Policy::Predictive] {
                let day = play(&load, seed, Sized::By(policy));
                let peak = peak(&load, seed, day.held_share);
                println!(
                    "| {} | {seed} | {policy:?} | {:.2} | {:.2} | {peak} | {:.1} | {} | {} | {:.2} |",
                    trace.name,
                    100.0 * day.held_share,
                    day.servers_mean,
                    100.0 * (1.0 - day.servers_mean / peak as f64),
                    day.changes,
                    day.flaps,
                    100.0 * day.error_mean,
                );
            }
        }
    }
}
