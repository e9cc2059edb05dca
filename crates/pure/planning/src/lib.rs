//! What a coordinator's threads do beside its transactions: a planner's epoch, and an autoscaler's look. Which questions they ask one after the
//! other, and what they make of the answers.
//!
//! A process gives each a thread, the simulation virtual time. Callers of the coordinator wait for neither: each question is a short
//! transaction, and what is planned begins, is saved and told by the coordinator, as far as it fits.

#![forbid(unsafe_code)]

pub mod autoscaling;
mod machines;
mod planner;

pub use machines::{Leaver, Stoppable};
pub use planner::Planning;
