//! The links between servers, without their sockets: frames, the handshake, deadlines, which is dialed when, and who may say what on those that
//! carry moves. `docs/design/links.md` describes the protocol.
//!
//! Called by the reactor, which moves the bytes. Never opens a socket, reads a clock or looks into a request:
//! times and random bits are arguments.

#![forbid(unsafe_code)]

mod backoff;
mod dials;
mod frame;
mod gathering;
mod handshake;
mod move_links;
mod peer_clock;
mod waiting;

pub use backoff::{Backoff, PAUSE_NS_MAX};
pub use dials::{Dial, Dials};
pub use frame::{
    Frame, HEADER_BYTES, Kind, MOMENT_BYTES, Malformed, next_frame, push_frame, push_timed,
    take_moment,
};
pub use gathering::Gathering;
pub use handshake::{
    Accepting, CLUSTER_BYTES_MAX, Cluster, DEADLINES, Dialing, Established,
    HANDSHAKE_FRAME_BYTES_MAX, NONCE_BYTES, Refused, Step, VERSIONS,
};
pub use move_links::{Down, MoveLinkDue, MoveLinks, Taken};
pub use peer_clock::PeerClock;
pub use waiting::{Due, Waiting};
