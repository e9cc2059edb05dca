//! Decides what moves, and how many copies a hot key gets: a snapshot in, a plan out.
//!
//! Called by the process around `control` (phase 3), by servers' balancers (phase 2), by workers and the proxy (hot keys) and by the
//! simulator. Never measures, moves, or asks what time it is.

#![forbid(unsafe_code)]

pub mod hot;

mod capacity;
mod cases;
mod evening;
mod gate;
mod pace;
mod remedies;
mod shares;
mod splits;
mod steps;
mod trust;

mod cluster;
mod drain;
mod fill;

mod balancer;
mod balls;
mod pour;
mod proposal;
mod rest;
mod thresholds;

pub use balancer::{Action, Balancer, Cause, Decision, Event, Mode, Ordered, Verdict};
pub use balls::{
    Demand, Prediction, Threshold, choose_threshold, copies, copies_threshold, predict,
};
pub use cluster::ClusterPlanner;
pub use mbal_model::Came;
pub use pour::{Lighten, pour};
pub use proposal::{Nonsense, Proposal, Question, propose};
pub use rest::{Loans, Rest};
pub use thresholds::Thresholds;
