//! Notices that giving cachelets away does not help: their load has left, and is back as load that stays, since clients go on asking
//! the server that they know, which has to ask the new owner for them.

use std::collections::BTreeMap;

use mbal_model::ServerId;
use mbal_model::planted::{Fault, is_planted};

/// So much of what has left comes back, and giving was in vain.
const BACK_SHARE: f64 = 0.5;

/// Less than this, in a worker's time, has not shown anything.
const GIVEN_MIN: f64 = 0.25;

/// What a move may cost its source while it is under way.
const MOVE_LOAD: f64 = 0.03;

/// In a row: a client needs a moment to follow.
const EPOCHS: u32 = 2;

/// Each time doubles the pause, up to 4 << 3 epochs.
const TIMES_MAX: u32 = 3;

/// By server that is being helped.
#[derive(Default)]
pub(crate) struct Vain(BTreeMap<ServerId, Watch>);

struct Watch {
    /// Load that stays, when watching began; of all workers.
    fixed: f64,
    /// Load that has left since.
    given: f64,
    epochs: u32,
    times: u32,
    waits_until: u64,
}

impl Vain {
    /// Forgets servers that are not helped any more.
    pub fn keep(&mut self, helped: &[ServerId]) {
        self.0.retain(|server, _| helped.contains(server));
    }

    /// Once an epoch, of a server that is helped: what stays with it, without what moves cost that are `under_way`, and what
    /// has left it in this epoch.
    pub fn observe(
        &mut self,
        server: ServerId,
        (fixed, under_way): (f64, usize),
        left: f64,
        epoch: u64,
        patience: u32,
    ) {
        let without_moves = fixed - MOVE_LOAD * under_way as f64;
        let fresh = Watch { fixed, given: 0.0, epochs: 0, times: 0, waits_until: 0 };
        let watch = self.0.entry(server).or_insert(fresh);
        watch.given += left;
        let is_back = without_moves - watch.fixed >= BACK_SHARE * watch.given;
        watch.epochs = if is_back && watch.given >= GIVEN_MIN { watch.epochs + 1 } else { 0 };
        if watch.epochs >= EPOCHS && !is_planted(Fault::VainGoesOn) {
            let times = (watch.times + 1).min(TIMES_MAX);
            let waits_until = epoch + u64::from(patience << times);
            *watch = Watch { fixed, given: 0.0, epochs: 0, times, waits_until };
        }
    }

    /// It is not helped in this epoch.
    pub fn waits(&self, server: ServerId, epoch: u64) -> bool {
        self.0.get(&server).is_some_and(|watch| epoch < watch.waits_until)
    }
}
