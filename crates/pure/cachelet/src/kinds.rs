//! The kinds of logs: by policy's temper, and by the time that their items still have.

use std::ops::Range;

use mbal_model::Seconds;

use crate::policy::Temper;

/// Upper ends of the classes of remaining time, in seconds, for items with a deadline: items that die
/// together lie together, so that whole pages expire.
const TTL_CLASSES: [Seconds; 8] = [16, 64, 256, 1024, 4096, 16_384, 65_536, Seconds::MAX];

/// Of each temper a log without deadline, and logs by class of remaining time.
const LOGS_PER_TEMPER: usize = 1 + TTL_CLASSES_MAX;
pub const TTL_CLASSES_MAX: usize = TTL_CLASSES.len();
pub const LOGS: usize = 2 * LOGS_PER_TEMPER;

/// Where a record goes.
#[derive(Clone, Copy)]
pub struct Target {
    pub log: usize,
    /// When it dies; 0 is never.
    pub deadline: Seconds,
}

pub fn temper_of(log: usize) -> Temper {
    if log < LOGS_PER_TEMPER { Temper::Main } else { Temper::New }
}

pub fn logs_of(temper: Temper) -> Range<usize> {
    let first = temper as usize * LOGS_PER_TEMPER;
    first..first + LOGS_PER_TEMPER
}

/// The log for an item that dies at `deadline`, where there are so many by remaining time.
pub fn log_for(temper: Temper, deadline: Seconds, now: Seconds, ttl_classes: usize) -> usize {
    let first = logs_of(temper).start;
    if deadline == 0 || ttl_classes == 0 {
        return first;
    }
    let remaining = deadline.saturating_sub(now);
    let class = TTL_CLASSES.iter().position(|&end| remaining <= end).expect("the last has no end");
    first + 1 + class * ttl_classes / TTL_CLASSES_MAX
}
