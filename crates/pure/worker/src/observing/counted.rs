//! What the workers of a server count.

use std::sync::atomic::AtomicU64;

use mbal_cachelet::{ClassStats, Classes, StoreStats};
use mbal_locks::{Mutex, ranks};
use mbal_model::CLASSES;

use crate::observing::chores::StepTimes;
use crate::observing::counters::{ClassCounters, ClassSums, Counters, Sums};
use crate::observing::latency::{Histograms, Latency};

/// Each worker's own, by worker.
pub(crate) struct Counted {
    pub workers: Box<[Counters]>,
    /// By class of size.
    pub classes: Box<[Box<[ClassCounters]>]>,
    pub latency: Box<[Latency]>,
    pub steps: Box<[StepTimes]>,
    /// The balancer's epochs so far.
    pub epoch: AtomicU64,
    /// What `stats reset` subtracts: counters are their workers' to write. Locked before they are read: what is
    /// subtracted must not be younger than what it is subtracted from.
    pub reset: Mutex<ranks::Reset, (Totals, Histograms)>,
}

impl Counted {
    pub fn new(workers: u16) -> Counted {
        let classes = |_| (0..CLASSES).map(|_| ClassCounters::default()).collect();
        Counted {
            workers: (0..workers).map(|_| Counters::default()).collect(),
            classes: (0..workers).map(classes).collect(),
            latency: (0..workers).map(|_| Latency::default()).collect(),
            steps: (0..workers).map(|_| StepTimes::default()).collect(),
            epoch: AtomicU64::new(0),
            reset: Mutex::default(),
        }
    }
}

/// What is counted over the whole server.
#[derive(Clone)]
pub(crate) struct Totals {
    pub sums: Sums,
    pub classes: Box<[ClassSums; CLASSES]>,
    pub class_stats: Box<Classes>,
    /// Gauges and counters both.
    pub store: StoreStats,
    pub total_connections: u64,
    pub rejected_connections: u64,
    pub log: [u64; 3],
}

impl Default for Totals {
    fn default() -> Totals {
        Totals {
            sums: Sums::default(),
            classes: Box::new([ClassSums::default(); CLASSES]),
            class_stats: Box::new([ClassStats::default(); CLASSES]),
            store: StoreStats::default(),
            total_connections: 0,
            rejected_connections: 0,
            log: [0; 3],
        }
    }
}
