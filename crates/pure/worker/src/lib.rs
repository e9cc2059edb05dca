//! One worker as a state machine: events and a time go in, actions come out.
//!
//! Knows no socket, thread or clock: the reactor drives it in a server, the simulator in virtual
//! time. Construct a [`Shared`], give it to every [`Worker`], and hand over what arrives:
//!
//! ```
//! use mbal_cachelet::{Options, Store};
//! use mbal_model::{Outcome, WorkerId};
//! use mbal_worker::{Actions, ConnId, Event, Now, Settings, Shared, Worker};
//! use std::sync::Arc;
//!
//! let options = Options {
//!     memory_bytes: 64 << 20,
//!     workers: 1,
//!     cachelets: 16,
//!     item_bytes_max: 1 << 20,
//!     evict: true,
//!     generation: 1,
//! };
//! let shared = Arc::new(Shared::new(Settings::default(), Store::new(options)));
//! let mut worker = Worker::new(WorkerId(0), shared);
//! let (now, mut actions) = (Now { second: 2, unix: 1_700_000_000, micros: 0 }, Actions::default());
//! worker.handle(now, Event::Opened { conn: ConnId(0), own_port: false }, &mut actions);
//! let bytes = b"set k 0 0 1\r\nv\r\nget k\r\n";
//! worker.handle(now, Event::Received { conn: ConnId(0), bytes }, &mut actions);
//! assert_eq!(actions.bytes, b"STORED\r\nVALUE k 0 1\r\nv\r\nEND\r\n");
//! ```

#![forbid(unsafe_code)]

mod answers;
mod commands;
mod copies;
mod event;
mod forwarding;
mod ids;
mod moving;
mod observing;
mod orders;
mod passwords;
mod serving;
mod sessions;
mod settings;
mod shared;
mod time;
mod turns;
mod watching;
mod worker;

pub use copies::{CopiesHere, HotHome, HotMode, HotTerms};
pub use event::{Action, Actions, Event};
pub use forwarding::peers::GATHER_KEYS_MAX;
pub use forwarding::unreachable::NO_ROUTE;
pub use ids::{ConnId, OrderId, Report, Sender, Ticket, Ticketed};
pub use mbal_cachelet::{AgeThresholds, ClassAges};
pub use moving::quota::Quota;
pub use moving::scaling::Rescued;
pub use moving::told::{BrokenLink, Heard, MoveDecision, MoveMessage, MoveReport, MoveTold};
pub use observing::chores::CHORES;
pub use observing::conns::{ConnInfo, Conns, Endpoint};
pub use observing::counters::{ClassSums, Sums};
pub use observing::details::PREFIXES_MAX;
pub use observing::distances::CurveTold;
pub use observing::hot::{Heat, HotKey};
pub use observing::latency::{Histogram, Histograms, TIMED, quantile_ns};
pub use observing::load::Tallies;
pub use orders::order_event;
pub use passwords::{Authenticator, Passwords};
pub use sessions::room::ROOM_WAIT_MAX;
pub use sessions::session::{Carried, OUTPUT_BYTES_MAX};
pub use settings::{Echoed, Protocol, Settings, TlsSettings};
pub use shared::{Gauges, Shared};
pub use time::{Now, UNLIMITED};
pub use worker::{Background, Worker};
