//! What worlds that a seed decides are built from: time and what is to happen, random bits, what was met, many seeds. For tests alone; it knows
//! nothing of what is tested.
//!
//! ```text
//!   Seeds ── run(seed) ──► a world: Sim (now, events, random, met) and what it is about ──► Met, or Failed
//!     └─ MBAL_NAME_SEEDS=N runs so many, MBAL_NAME_SEED=N tells what happens in one
//! ```

#![forbid(unsafe_code)]

mod met;
mod seeds;
mod sim;

pub use met::{Failed, Met};
pub use seeds::Seeds;
pub use sim::Sim;
