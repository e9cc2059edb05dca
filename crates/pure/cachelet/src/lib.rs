//! The storage engine: the cachelets of one server, their index, memory, eviction and expiry.
//!
//! Called by `worker`, from every worker's thread. Never blocks on a peer, never reads a clock,
//! never knows the network.
//!
//! ```text
//! hash -> route -> cachelet -> directory -> block of a slice -> bucket -> item in a page
//!                  (lock)      1 line                          1 line     1-2 lines
//! ```
//!
//! Read in this order: [`sync`](sync) has the agreements between threads and their proof, `copy` what they need assembly for, `bucket` and
//! `item` the bytes, `slice` what readers and writers share of the index, `index`, `blocks`, `log` and `clean` what a writer does under its lock, `samples` and `policy` whom to
//! evict, `store` how it all meets.

mod copy;
mod shim;
mod sync;

mod bucket;
mod item;
mod memory;

mod arriving;
mod blocks;
mod cachelet;
mod classes;
mod clean;
mod index;
mod leaving;
mod limit;
mod log;
mod part;
mod policy;
mod pool;
mod presence;
mod routes;
mod samples;
mod slice;
mod split;
mod store;
mod types;
mod view;
mod walk;

pub use arriving::{Arriving, Due};
pub use cachelet::{Found, Locked};
pub use classes::{ClassStats, Classes, Evicted};
pub use leaving::Cursor;
pub use memory::{Memory, Region};
pub use part::{Broken, Heading, Part};
pub use presence::Held;
pub use store::{Ahead, Miss, Store};
pub use types::{Birth, Draft, Full, Meta, Options, StoreStats};
pub use view::View;
pub use walk::Dead;
