//! Resizing a pool of stock memcacheds: what their listings say, how they cut their memory, and what travels.
//!
//! ```text
//!   lru_crawler metadump ─► Line ─► Listing, sorted ─┐
//!   stats settings ─► SlabSettings ─► Slabs ─┐        ├─► plan ─► Plan: strays to delete, items to carry
//!   stats slabs ─► SlabPages ─────────────────────┴─ Member┘
//! ```
//!
//! How many servers there are to be, [`Autopilot`] says.

mod autoscaling;
mod evidence;
mod listing;
mod planning;
mod slabs;

pub use autoscaling::{Autopilot, Change, DatabaseRate, PoolLook, ProxyTold, Report, agreed};
pub use evidence::{Evidence, Fit};
pub use listing::{Line, Listed, Listing};
pub use planning::{Member, Plan, Resize, SlabPages, class_ages, plan};
pub use slabs::{PAGE_BYTES, SlabSettings, Slabs};
