//! Greedy with local search: the daily driver.

use mbal_random::Random;

use crate::greedy::descend_by_moves;
use crate::model::{LOAD_EPSILON, Model, Placement};
use crate::pairs::Pairs;
use crate::state::State;

/// Of the shakes: the same snapshot gives the same plan.
pub(crate) const SEED: u64 = 1;

/// How long the search goes on after the first optimum in sight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    /// Times that the best placement is shaken and improved again.
    pub shakes: u32,
    /// Under equation (4), a worker this close above the average is left alone; a fraction of the average.
    pub tolerance: f64,
}

impl Effort {
    /// The first optimum in sight: what a cluster's plan needs.
    pub const DESCENT: Effort = Effort { shakes: 0, tolerance: 0.002 };
    /// For one server's few cachelets, where the first optimum is often a poor one.
    pub const THOROUGH: Effort = Effort { shakes: 12, tolerance: 0.0 };
}

/// Deterministic, and never worse than moving nothing. Without shakes: greedy, then moves and swaps, so never
/// worse than [`crate::greedy()`]. With shakes and at most 64 cachelets: best splits of pairs of workers.
///
/// A descent is O(steps · cachelets of a worker · (workers + cachelets)).
pub fn search(model: &Model, effort: Effort) -> Placement {
    if effort.shakes > 0 {
        if let Some(mut pairs) = Pairs::new(model, &model.homes()) {
            return pairs.search(effort.shakes);
        }
    }
    let mut state = State::new(model, &model.homes());
    descend_by_moves(&mut state);
    descend(&mut state, effort.tolerance);
    let mut best = state.at.clone();
    let mut best_cost = model.cost(&best);
    let mut random = Random::new(SEED);
    for _ in 0..effort.shakes {
        if !shake(&mut state, &mut random) {
            continue;
        }
        descend(&mut state, effort.tolerance);
        let cost = model.cost(&state.at);
        if cost < best_cost - LOAD_EPSILON {
            best_cost = cost;
            best.clone_from(&state.at);
        } else {
            state = State::new(model, &best);
        }
    }
    best
}

/// The worst worker's best move or swap, until no worker has one.
fn descend(state: &mut State, tolerance: f64) {
    let mut givers = state.givers(tolerance);
    let mut next = 0;
    while next < givers.len() {
        match best_exchange(state, givers[next]) {
            Some((from, given, to, taken)) => {
                state.apply(from, given, to, taken);
                givers = state.givers(tolerance);
                next = 0;
            }
            None => next += 1,
        }
    }
}

type Exchange = (usize, u32, usize, Option<u32>);

fn best_exchange(state: &State, from: usize) -> Option<Exchange> {
    let mut best = (-LOAD_EPSILON, None);
    let mut consider = |given, to, taken| match state.exchange(from, given, to, taken) {
        Some(change) if change < best.0 - LOAD_EPSILON => {
            best = (change, Some((from, given, to, taken)));
        }
        _ => {}
    };
    for &given in &state.held[from] {
        for to in (0..state.loads.len()).filter(|to| *to != from) {
            consider(given, to, None);
            for &taken in &state.held[to] {
                consider(given, to, Some(taken));
            }
        }
    }
    best.1
}

fn shake(state: &mut State, random: &mut Random) -> bool {
    let bins = state.loads.len();
    let balls = state.at.len();
    if bins < 2 || balls < 2 {
        return false;
    }
    for _ in 0..3 {
        let given = random.below(balls as u64) as u32;
        let taken = random.below(balls as u64) as u32;
        let (from, to) = (state.at[given as usize] as usize, state.at[taken as usize] as usize);
        if from != to && state.exchange(from, given, to, Some(taken)).is_some() {
            state.apply(from, given, to, Some(taken));
        }
    }
    true
}
