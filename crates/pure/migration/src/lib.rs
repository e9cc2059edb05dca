//! One cachelet's move between two servers: the two sides as state machines. `docs/design/moves.md` is the protocol.
//!
//! Called by each server's migrator, which has the store and the links. Never touches an item, a socket or a clock: whatever is to be done
//! to the store is a [`Step`](source::Step) that the caller carries out, and times are arguments, in nanoseconds of any clock that does not go back.
//!
//! ```text
//!   link, coordinator                    store
//!      |  handle(now, Event)               ^
//!      v                                   | one bounded step
//!   Source, Destination --- next(now) -----+--> or a message to be sent, or until when to wait
//! ```

#![forbid(unsafe_code)]

pub mod destination;
pub mod message;
mod order;
mod pace;
mod report;
pub mod source;
mod window;

pub use destination::Destination;
pub use message::{Answer, Ask, Begin, Malformed, Refusal};
pub use order::{Incarnation, MOVES_MAX, Order};
pub use report::{Progress, State, Why};
pub use source::Source;
pub use window::{BYTES_IN_FLIGHT_MAX, PART_BYTES, PARTS_IN_FLIGHT_MAX};
