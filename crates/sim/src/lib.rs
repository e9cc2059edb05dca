//! A cluster in virtual time: many servers on one thread, deterministic from a seed.
//!
//! Called by `mbal sim`. [`model`] runs the policies of the pure crates over queues with service times; it
//! never opens a socket or reads a clock but to say how long it took.

#![forbid(unsafe_code)]

pub mod model;
