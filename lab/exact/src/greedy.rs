//! The planner that always ends: MBal (EuroSys 2015) §3.3, `Greedy`.

use crate::model::{LOAD_EPSILON, Model, Placement};
use crate::state::State;

/// Takes the worst worker's best single move until none helps. O(moves · cachelets of a worker · workers).
pub fn greedy(model: &Model) -> Placement {
    let mut state = State::new(model, &model.homes());
    descend_by_moves(&mut state);
    state.at
}

pub(crate) fn descend_by_moves(state: &mut State) {
    while let Some((from, ball, to)) = best_move(state) {
        state.apply(from, ball, to, None);
    }
}

fn best_move(state: &State) -> Option<(usize, u32, usize)> {
    // Lightest first, so that of equal gains the emptiest worker gets it.
    let mut takers: Vec<usize> =
        (0..state.loads.len()).filter(|&bin| state.model.bins[bin].takes).collect();
    takers.sort_by(|&a, &b| state.loads[a].total_cmp(&state.loads[b]).then(a.cmp(&b)));
    for from in state.givers(0.0) {
        let mut best = (-LOAD_EPSILON, None);
        for &ball in &state.held[from] {
            for &to in takers.iter().filter(|to| **to != from) {
                match state.exchange(from, ball, to, None) {
                    Some(change) if change < best.0 - LOAD_EPSILON => {
                        best = (change, Some((from, ball, to)));
                    }
                    _ => {}
                }
            }
        }
        if best.1.is_some() {
            return best.1;
        }
    }
    None
}
