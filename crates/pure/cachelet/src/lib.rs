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
//! Files are grouped below as they are best read. `sync` has the agreements between threads, and their proof.

// What threads agree on, and what that needs assembly for.
mod copy;
mod shim;
mod sync;

// Bytes.
mod access;
mod ages;
mod bucket;
mod item;
mod memory;

// What readers see of the index, without a lock.
mod entry;
mod reading;
mod slice;
mod view;

// What a writer does under its lock: to items, to the index, to pages.
mod blocks;
mod cachelet;
mod cas;
mod chunks;
mod flush;
mod index;
mod locked;
mod log;
mod records;

// Where memory comes from: whom to evict, and how, and what came of it.
mod background;
mod chosen;
mod clean;
mod evict;
mod limit;
mod policy;
mod pool;
mod room;
mod samples;

// How it all meets: the store, and which cachelets it has.
mod classes;
mod presence;
mod routes;
mod store;
mod types;
mod walk;

// Cachelets that are split, or travel.
mod arriving;
mod importing;
mod leaving;
mod part;
mod split;
mod unfinished;

pub use ages::ClassAges;
pub use arriving::{Arriving, Due};
pub use chosen::AgeThresholds;
pub use classes::{ClassStats, Classes, Evicted};
pub use importing::{Crowded, ImportStep};
pub use item::ITEM_OVERHEAD_BYTES;
pub use leaving::Cursor;
pub use locked::{Found, Locked};
pub use memory::{Memory, Region};
pub use part::{Broken, Heading, Part};
pub use presence::Held;
pub use reading::{Ahead, Miss};
pub use room::Room;
pub use store::Store;
pub use types::{Birth, Draft, Full, Meta, Options, StoreStats};
pub use view::View;
pub use walk::Dead;
