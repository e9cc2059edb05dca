//! The web page of a coordinator and of a server: what a browser loads, what it is sent over and over, and what was a day ago.
//!
//! ```text
//!   a look, the time ──► Live ──► Frame: one for all viewers, as server-sent events
//!                          └────► History: a day of points, in rings that do not grow
//!   assets: HTML, CSS, a script; fetched once, built into the program
//! ```
//! Called by whoever has the sockets: the coordinator and the server. Opens none, reads no clock, and decides nothing of a cluster.

#![forbid(unsafe_code)]

mod assets;
mod history;
mod live;
mod search;
mod shown;
mod sums;

pub use assets::{ASSETS, Asset, HEADERS, STREAM_HEADERS, asset};
pub use history::{History, Point, SPANS};
pub use live::{Live, Look, STUCK_AFTER, VIEWERS_MAX};
pub use search::{Found, search};
pub use shown::{EVENTS_SHOWN, EventTold, HOT_KEYS_SHOWN, Shown, Source};
pub use sums::point;
