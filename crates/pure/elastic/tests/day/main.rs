//! The autoscaler over a day of load, in virtual time, with curves of real traces.

#[allow(dead_code, reason = "rates alone are used")]
#[path = "../../examples/demand/mod.rs"]
mod demand;
mod model;
#[path = "../../../sketch/examples/support/mod.rs"]
mod support;

use mbal_elastic::Policy;
use model::{Day, Load, Sized, peak, play};
use support::traces;

/// The large trace takes a debug build a minute.
fn loads() -> Vec<(&'static str, Load)> {
    let names = traces::NAMES.into_iter().filter(|name| !name.starts_with("cloudphysics"));
    let loads = names.filter_map(traces::load);
    loads.map(|trace| (trace.name, Load::of(&trace.requests))).collect()
}

/// Most days save 30% and more (docs/results/elastic.md); the load that is the flattest saves a fourth.
const SAVED_LEAST: f64 = 0.20;

/// What a day has to be like, or why it is not.
fn judge(day: &Day, peak: usize) -> Result<(), String> {
    let saved = 1.0 - day.servers_mean / peak as f64;
    match () {
        () if day.flaps > 0 => Err(format!("{} times servers left that had just come", day.flaps)),
        () if day.held_share < 0.99 => {
            Err(format!("p_min held in {:.4} of the seconds", day.held_share))
        }
        // Where one server bears the peak there is nothing to be saved.
        () if peak > 1 && saved < SAVED_LEAST => Err(format!("saved {saved:.3} of {peak} servers")),
        () => Ok(()),
    }
}

#[test]
fn a_day_holds_the_hit_ratio_saves_servers_and_does_not_flap() {
    for (name, load) in loads() {
        for seed in [1, 2, 3] {
            for policy in [Policy::Reactive, Policy::Predictive] {
                let day = play(&load, seed, Sized::By(policy));
                let peak = peak(&load, seed, day.held_share);
                let judged = judge(&day, peak);
                assert_eq!(
                    judged,
                    Ok(()),
                    "{name}, seed {seed}, {policy:?}, {} changes",
                    day.changes
                );
            }
        }
    }
}

#[cfg(feature = "planted")]
#[test]
fn planted_servers_that_leave_without_rest_are_caught() {
    use mbal_model::planted::{Fault, plant};
    plant(Some(Fault::LeavesWithoutRest));
    let loads = loads();
    let flaps = |load| play(load, 1, Sized::By(Policy::Predictive)).flaps > 0;
    let caught = loads.is_empty() || loads.iter().any(|(_, load)| flaps(load));
    plant(None);
    assert!(caught);
}
