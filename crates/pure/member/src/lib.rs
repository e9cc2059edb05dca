//! A server's part in a coordinated cluster: it registers, says each epoch how it is, follows the map, and does as it is told.
//!
//! [`Member`] drives it: events in, actions out, and what a server shares between its threads is told at once. A process gives it a thread, a
//! connection to the coordinator and a clock; the simulation gives it letters and virtual time. `docs/design/cluster.md` has the rules.
//!
//! ```text
//!             Registered            News: map, moves, hot keys           lease over, or refused
//!   registers ─────────────► lives ──────────────────────────┐ ──────────────────────────────► fences off ──► registers anew
//!                              ▲        a heartbeat, when due  │
//!                              └──────────────────────────────┘
//! ```

#![forbid(unsafe_code)]

mod ages;
pub mod balancing;
mod hot;
mod member;
mod moves;
mod pace;

pub use hot::{hot_report, hot_reports, readable};
pub use member::{Action, Call, Event, Heard, Member, Outside, Terms, Time};
