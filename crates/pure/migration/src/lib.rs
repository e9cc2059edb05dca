//! One cachelet's move between two servers: the two sides as state machines. `docs/design/moves.md` is the protocol.
//!
//! Called by who has a server's store and links. Never opens a socket or reads a clock: times are arguments, of any clock that does not go back.
//!
//! ```text
//!   link, coordinator                             store
//!      |  handle(now, Event)                        ^
//!      v                                            | one bounded step
//!   Source, Destination --- next(now) --- Leaver, Arriver: advance(now, store) --> a message to be sent, or until when to wait
//! ```
//!
//! The two sides know slices by name only; `carry` knows the store.

#![forbid(unsafe_code)]

mod carry;
pub mod destination;
pub mod message;
mod order;
mod pace;
mod report;
pub mod source;
mod window;

pub use carry::{Advance, Arriver, Leaver};
pub use destination::{Destination, Met};
pub use message::{Begin, Malformed, Refusal, Request, Response};
pub use order::{Incarnation, MOVES_MAX, Order};
pub use pace::{Pace, Strain};
pub use report::{Progress, State, Why};
pub use source::Source;
pub use window::{BYTES_IN_FLIGHT_MAX, PART_BYTES, PARTS_IN_FLIGHT_MAX};
