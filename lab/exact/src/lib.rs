//! MBal's equations as a model, and planners of it: a greedy one, a search, and one that proves optima within limits given in steps.
//!
//! Called by experiments that want to know how good a quick plan is; nothing that is shipped plans so.
//! Never measures time; a model that is too large is refused rather than half solved.

#![forbid(unsafe_code)]

mod model;
mod state;

mod greedy;
mod pairs;
mod search;

mod cover;

pub use cover::BALLS_MAX;
use cover::{Cover, CoverBin, Searched, cover};
pub use greedy::greedy;
use model::LOAD_EPSILON;
pub use model::{Ball, Bin, Model, Objective, Placement, Plan};
pub use search::{Effort, search};

/// A good bound is worth more to a proof than the time that it takes.
const HARDEST: Effort = Effort { shakes: 200, tolerance: 0.0 };

/// Joins of subsets; about 1 ns each.
pub const STEPS_MAX: u64 = 2_000_000_000;

#[derive(Clone, Debug, PartialEq)]
pub struct Proven {
    pub placement: Placement,
    /// As [`Model::cost`] counts: no permitted placement costs less.
    pub cost: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// More than [`BALLS_MAX`] cachelets may move.
    TooManyBalls,
    /// The proof would have taken longer than the caller allows.
    OutOfSteps,
}

/// The cheapest permitted placement. Starts from [`search()`]'s, so it is never worse.
pub fn solve(model: &Model, steps_max: u64) -> Result<Proven, Refused> {
    if model.balls.len() > BALLS_MAX {
        return Err(Refused::TooManyBalls);
    }
    let known = search(model, HARDEST);
    let cost = model.cost(&known);
    let known = Proven { placement: known, cost };
    match model.objective {
        Objective::Closest { source } => closest(model, source, known, steps_max),
        Objective::FewestMoves | Objective::Evenest { .. } => separable(model, known, steps_max),
    }
}

/// Objectives (1) and (4): every worker's cost depends on its own load alone.
fn separable(model: &Model, known: Proven, steps_max: u64) -> Result<Proven, Refused> {
    let problem = Cover {
        loads: model.balls.iter().map(|ball| ball.load).collect(),
        bytes: model.balls.iter().map(|ball| ball.bytes).collect(),
        bins: (0..model.bins.len()).map(|bin| cover_bin(model, bin)).collect(),
        move_price: model.move_price(),
        cost: &|bin, load| model.bin_cost(bin, load),
        level: match model.objective {
            Objective::Evenest { average, .. } => Some(average),
            _ => None,
        },
    };
    match cover(&problem, known.cost - LOAD_EPSILON, steps_max) {
        Searched::NothingBelow => Ok(known),
        Searched::Best(sets, cost) => Ok(Proven { placement: placement(&sets, &known), cost }),
        Searched::OutOfSteps => Err(Refused::OutOfSteps),
    }
}

/// Objective (8): separable once it is known what the source keeps, so all that it may keep is tried,
/// most even first, as long as the load that leaves could still beat the best.
fn closest(model: &Model, source: usize, known: Proven, steps_max: u64) -> Result<Proven, Refused> {
    let own = cover_bin(model, source);
    let destinations: Vec<usize> = (0..model.bins.len()).filter(|bin| *bin != source).collect();
    let fixed: f64 = destinations.iter().map(|&bin| model.bins[bin].fixed).sum();
    let total: f64 = model.balls.iter().map(|ball| ball.load).sum();
    let mut best = known;
    let mut kept: Vec<(f64, f64, u32)> = (0..1u32 << model.balls.len())
        .map(|set| {
            let load: f64 = members(set).map(|ball| model.balls[ball].load).sum();
            let at_source = own.fixed + load;
            let elsewhere = fixed + total - load;
            let bound = (elsewhere - at_source * destinations.len() as f64).abs()
                + model.bin_cost(source, at_source);
            (bound, at_source, set)
        })
        .filter(|(bound, at_source, set)| {
            let bytes: u64 = members(*set).map(|ball| model.balls[ball].bytes).sum();
            *bound < best.cost
                && *at_source <= own.load_cap
                && own.bytes_fixed + bytes <= own.bytes_cap
        })
        .collect();
    kept.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.2.cmp(&b.2)));
    for (bound, at_source, keeps) in kept {
        if bound >= best.cost - LOAD_EPSILON {
            break;
        }
        let given: Vec<usize> =
            (0..model.balls.len()).filter(|ball| keeps >> ball & 1 == 0).collect();
        let at_home = model.bin_cost(source, at_source);
        let problem = Cover {
            loads: given.iter().map(|&ball| model.balls[ball].load).collect(),
            bytes: given.iter().map(|&ball| model.balls[ball].bytes).collect(),
            bins: destinations
                .iter()
                .map(|&bin| CoverBin {
                    allowed: if model.bins[bin].takes { u32::MAX } else { 0 },
                    home: 0,
                    ..cover_bin(model, bin)
                })
                .collect(),
            move_price: 0.0,
            cost: &|bin, load| model.bin_cost(destinations[bin], load) + (at_source - load).abs(),
            level: Some(at_source),
        };
        match cover(&problem, best.cost - at_home - LOAD_EPSILON, steps_max) {
            Searched::NothingBelow => {}
            Searched::OutOfSteps => return Err(Refused::OutOfSteps),
            Searched::Best(sets, cost) => {
                let mut at = vec![source as u32; model.balls.len()];
                for (bin, &set) in sets.iter().enumerate() {
                    for ball in members(set) {
                        at[given[ball]] = destinations[bin] as u32;
                    }
                }
                best = Proven { placement: at, cost: cost + at_home };
            }
        }
    }
    Ok(best)
}

fn cover_bin(model: &Model, bin: usize) -> CoverBin {
    let home = model
        .balls
        .iter()
        .enumerate()
        .filter(|(_, ball)| ball.home == bin)
        .fold(0u32, |set, (ball, _)| set | 1 << ball);
    CoverBin {
        fixed: model.bins[bin].fixed,
        bytes_fixed: model.bins[bin].bytes_fixed,
        load_cap: model.load_caps()[bin],
        bytes_cap: model.byte_caps()[bin],
        allowed: if model.bins[bin].takes { u32::MAX } else { home },
        home,
    }
}

fn placement(sets: &[u32], known: &Proven) -> Placement {
    let mut at = vec![0; known.placement.len()];
    for (bin, &set) in sets.iter().enumerate() {
        for ball in members(set) {
            at[ball] = bin as u32;
        }
    }
    at
}

fn members(set: u32) -> impl Iterator<Item = usize> {
    (0..32).filter(move |ball| set >> ball & 1 == 1)
}
