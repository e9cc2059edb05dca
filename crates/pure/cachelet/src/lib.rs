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
mod apart;
mod copy;
mod shim;
mod sync;

// Bytes, and what is known of pages.
mod access;
mod bucket;
mod eras;
mod item;
mod kinds;
mod memory;
mod pages;
mod policy;
mod pool;
mod zeroed;

// What workers see of a cachelet without its lock.
mod aged;
mod away;
mod dir;
mod entry;
mod front;
mod routes;
mod slice;
mod view;

// What all cachelets share.
mod chosen;
mod classes;
mod clock;
mod flushes;
mod shared;
mod types;
mod witness;

// What a writer remembers, part by part, and how it is at work.
mod adopting;
mod blocks;
mod cachelet;
mod cas;
mod chunks;
mod clean;
mod counts;
mod index;
mod items;
mod locked;
mod log;
mod places;
mod records;
mod site;
mod unfinished;

// Which cachelets are here, and what can be said of them.
mod ahead;
mod cachelets;
mod flush;
mod presence;
mod reading;
mod slots;
mod stats;
mod walk;

// Where memory comes from.
mod evict;
mod reserves;
mod room;
mod samples;
mod store;

// Cachelets that are split, or travel.
mod arriving;
mod importing;
mod leaving;
mod part;
mod split;

pub use ahead::Ahead;
pub use arriving::{Arriving, Due};
pub use cachelets::Cachelets;
pub use chosen::AgeThresholds;
pub use classes::{ClassStats, Classes};
pub use front::CacheletWork;
pub use importing::{Crowded, ImportStep};
pub use item::ITEM_OVERHEAD_BYTES;
pub use leaving::{Cursor, EXPORT_BYTES_MAX};
pub use locked::{Found, Locked};
pub use memory::{Memory, Region};
pub use part::{Broken, Heading, Part};
pub use presence::Held;
pub use reading::Miss;
pub use room::{Chore, Room};
pub use stats::ClassAges;
pub use store::Store;
pub use types::{Birth, Draft, Full, Meta, Options, StoreStats};
pub use view::View;
pub use walk::Dead;
pub use witness::Evicted;
