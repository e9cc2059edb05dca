//! The kernel's data plane of the proxy: a packet program at a network interface, which sends reads of one key by UDP on to the
//! key's upstream, or answers them if the key is hot.
//!
//! Called by the proxy. Decides nothing: the ring, the hot keys and their values come from the proxy's control, which is the
//! write coordinator of the keys that are answered here. docs/design/xdp.md says what keeps an answer coherent.
//!
//! ```text
//!            packet ──► bpf/plane.c ──► not a get of one key: up to the sockets
//!                          │  │  └────► hot: the answer, back to the client
//!   Plane::update_ring ──► ring, hot    └► else: on to the upstream, which answers the client
//!   Plane::put, remove ──►  keys
//! ```
//!
//! Empty without the feature `kernel`, for which clang has to be there.

#![cfg(feature = "kernel")]

mod hot;
mod layout;
mod map;
mod plane;

pub mod neighbours;
#[cfg(feature = "planted")]
pub mod planted;

pub use hot::{ANSWER_BYTES_MAX, Rule};
pub use plane::{Counters, Error, Mode, Plane, Ran, Sample, Service, Upstream, now_ns};
