//! Drives two servers with the same random commands and compares their replies byte for byte.
//!
//! ```text
//! seed ─► epoch: empty servers, new connections, some hundred commands
//!            └─► batch: commands of one connection, written in random pieces, then a sync
//!                   └─► command: bytes, with cas values named by what each server answered before
//! ```
//!
//! One connection's batch is answered before the next one begins, except that a batch may begin with
//! half a command and let another connection go first. An epoch that fails is played again on fresh
//! servers, with less and less in it, and what is left is printed as a script.
//!
//! The binary protocol and UDP have rounds of their own: some packets and a no-op, or one datagram. What
//! differs is printed as the round's bytes.

mod campaign;
mod cells;
mod command;
mod epoch;
mod generate;
mod packets;
mod random;
mod reply;
mod rounds;
mod shrink;

pub use campaign::{Campaign, Plan, Report};
pub use epoch::Fault;
pub use reply::Allowed;
pub use rounds::{Rounds, RoundsReport};
