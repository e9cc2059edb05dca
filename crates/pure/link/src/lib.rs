//! The link between a worker and another server, without its socket: frames, the handshake, deadlines, pauses
//! between two attempts. `docs/design/links.md` describes the protocol.
//!
//! Called by the reactor, which moves the bytes. Never opens a socket, reads a clock or looks into a request:
//! times and random bits are arguments.

#![forbid(unsafe_code)]

mod backoff;
mod frame;
mod gathering;
mod handshake;
mod peer_clock;
mod waiting;

pub use backoff::{Backoff, PAUSE_NS_MAX};
pub use frame::{
    Frame, HEADER_BYTES, Kind, MOMENT_BYTES, Malformed, next_frame, push_frame, push_timed,
    take_moment,
};
pub use gathering::Gathering;
pub use handshake::{
    Accepting, CLUSTER_BYTES_MAX, Cluster, DEADLINES, Dialing, Established,
    HANDSHAKE_FRAME_BYTES_MAX, NONCE_BYTES, Refused, Step, VERSIONS,
};
pub use peer_clock::PeerClock;
pub use waiting::{Due, Waiting};
