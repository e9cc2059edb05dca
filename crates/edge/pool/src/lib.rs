//! Resizes a pool of stock memcacheds that clients share by a ketama ring: warm, and without a change to any of them.
//!
//! Called by `mbal pool resize`, stage by stage. Decides nothing: what travels is
//! [`mbal_elastic::pool::plan`]'s word. Never writes to a server but copies, and deletes of copies.
//!
//! ```text
//!   survey ──► choose ──► plan ──► Move::clear ──► Move::carry ──► Move::check ──► (clients change their list)
//!   all listings  who retires        strays go        copies           written since?       Move::check, sweep
//!                                                        └── stopped, failed ──► Move::undo
//! ```
//!
//! Behind proxies, with writers running, [`Leases`] copies instead, as [`mbal_elastic::switch::Pilot`] says.

#![forbid(unsafe_code)]

mod choosing;
mod connection;
mod counts;
mod filling;
mod leasing;
mod moving;
mod pace;
mod survey;
mod sweeping;

pub use choosing::choose;
pub use connection::{Dial, Failed, Stream, stats};
pub use counts::Counts;
pub use filling::{Life, lives, tell_filled, untell_filled};
pub use leasing::Leases;
pub use moving::Move;
pub use pace::{Pace, Progress};
pub use survey::{Surveyed, survey};
pub use sweeping::sweep;
