//! The storage engine: the cachelets of one server, their index, memory, eviction and expiry.
//!
//! Called by `worker`, from every worker's thread. Never blocks on a peer, never reads a clock,
//! never knows the network.
//!
//! THE BODY OF THIS FILE IS THE NAIVE VERSION: the interface is what stays.

mod naive;
mod types;

pub use naive::{Found, Locked, Store, View};
pub use types::{Draft, Full, Meta, Options, StoreStats};
