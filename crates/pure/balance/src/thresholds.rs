//! The numbers of balancing.

use mbal_model::{WorkerLoad, waiting_at};

/// When balancing starts and how hard it tries: the starting values of docs/design/balancing.md.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// T_j: the load that a worker may have, as a fraction of its time.
    pub permissible: f64,
    /// Epochs in a row in which a worker is over until that is a case.
    pub patience: u32,
    /// Epochs for which a cachelet that moved stays where it is.
    pub rest_epochs: u32,
}

impl Thresholds {
    /// Whether a load is more than a worker may have. A millionth of its time is no overload.
    pub fn is_over(&self, load: f64) -> bool {
        load > self.permissible + 1e-6
    }

    /// Whether requests stand waiting in a worker: as many as would at T, if they were as long and came by chance; at 0.75 that is one.
    /// Where nobody has measured it, the load says it.
    pub fn waits(&self, worker: &WorkerLoad) -> bool {
        match worker.service.waiting {
            Some(waiting) => waiting >= waiting_at(self.permissible),
            None => self.is_over(worker.load()),
        }
    }
}

impl Default for Thresholds {
    fn default() -> Thresholds {
        Thresholds { permissible: 0.75, patience: 2, rest_epochs: 10 }
    }
}
