//! The numbers of balancing.

use mbal_model::planted::{Fault, is_planted};

use crate::model::{EXCESS_MIN, LOAD_EPSILON};

/// When balancing starts and how hard it tries: the starting values of docs/design/balancing.md.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// T_j: the load that a worker may have, as a fraction of its time.
    pub permissible: f64,
    /// `server_load_thresh`: overloaded workers / workers, above which a server does not help itself.
    pub server_load: f64,
    /// `imb_thresh`: of mean deviation in phase 2, of load in phase 3.
    pub imbalance: f64,
    /// `repl_high`: hot keys per worker.
    pub hot_keys_high: u32,
    /// Iterations of Algorithms 1 and 2.
    pub max_iter: u32,
    /// Epochs in a row.
    pub patience: u32,
    /// Deviation that a move must take away, in load.
    pub move_price: f64,
    /// Epochs for which a cachelet that moved stays where it is.
    pub rest_epochs: u32,
    /// Part of its requests that a worker looks at for hot keys; the same while phase 2 is open.
    pub sampled: f64,
    pub sampled_in_two: f64,
}

impl Thresholds {
    /// Whether a worker is overloaded, by the one measure: what is above its limit is worth a move to every planner.
    pub fn is_over(&self, load: f64) -> bool {
        let least = if is_planted(Fault::TwoMeasuresOfOver) { LOAD_EPSILON } else { EXCESS_MIN };
        load > self.permissible + least
    }

    /// A difference that is worth a move, where nobody is overloaded any more.
    pub(crate) fn felt(&self) -> f64 {
        if is_planted(Fault::LevelsTheLastPercent) { 0.0 } else { self.imbalance }
    }
}

impl Default for Thresholds {
    fn default() -> Thresholds {
        Thresholds {
            permissible: 0.75,
            server_load: 0.75,
            imbalance: 0.15,
            hot_keys_high: 32,
            max_iter: 8,
            patience: 4,
            move_price: 0.01,
            rest_epochs: 10,
            sampled: 0.03,
            sampled_in_two: 0.01,
        }
    }
}
