//! Decides what moves, and how many copies a hot key gets: a snapshot in, a plan out.
//!
//! Called by the process around `control` (phase 3), by servers' balancers (phase 2), by workers and the proxy (hot keys) and by the
//! simulator. Never measures, moves, or asks what time it is.

#![forbid(unsafe_code)]

pub mod hot;
pub mod model;
mod state;

mod greedy;
mod pairs;
mod search;

mod cluster;
mod drain;
mod fill;
mod global;
mod local;

mod balancer;
mod balls;
mod phases;
mod pour;
mod proposal;
mod rest;
mod thresholds;
mod vain;

pub use balancer::{Balancer, Cause, Decision, Duty, Mode, News, Ordered, Verdict};
pub use balls::{
    Demand, Prediction, Threshold, choose_threshold, choose_threshold_placed, copies,
    copies_threshold, max_balls, predict,
};
pub use cluster::ClusterPlanner;
pub use global::{Global, relieve};
pub use greedy::greedy;
pub use local::{Local, deviation, rebalance_server};
pub use model::{Ball, Bin, Model, Objective, Placement};
pub use phases::{PhaseMachine, Phases, Vitals};
pub use pour::{Lighten, pour};
pub use proposal::{Nonsense, Proposal, Question, propose};
pub use rest::{Loans, Rest};
pub use search::{Effort, search};
pub use thresholds::Thresholds;
