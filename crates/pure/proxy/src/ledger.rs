//! What all parts of a proxy read and write while it handles an event.

use mbal_model::Instant;

use crate::buffers::Spare;
use crate::event::{Action, ConnId};
use crate::resting::Resting;
use crate::sampling::DistanceSampler;
use crate::settings::Settings;
use crate::stats::Counters;

pub(crate) struct Ledger {
    pub settings: Settings,
    /// Of the event.
    pub now: Instant,
    pub counters: Counters,
    pub resting: Resting,
    /// If stack distances are sampled.
    pub sampling: Option<Box<DistanceSampler>>,
    pub spare: Spare,
    /// What the driver is to do.
    pub actions: Vec<Action>,
}

impl Ledger {
    pub fn new(settings: Settings) -> Ledger {
        let started_at = settings.started_at;
        let sampling = settings.stack_distances.then(|| Box::new(DistanceSampler::new(started_at)));
        Ledger {
            settings,
            now: Instant::ZERO,
            counters: Counters::default(),
            resting: Resting::default(),
            sampling,
            spare: Spare::default(),
            actions: Vec::new(),
        }
    }

    pub fn hang_up(&mut self, conn: usize) {
        self.actions.push(Action::HangUp(ConnId(conn as u32)));
    }
}
