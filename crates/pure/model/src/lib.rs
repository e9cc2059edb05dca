//! The words of MBal that every floor shares: keys, ids, the cluster map.
//!
//! No I/O, no clock, no policy. No dependencies but one: the hash that every
//! language and every server must agree on, `xxh3_64` with seed 0.

#![forbid(unsafe_code)]

mod address;
mod changes;
mod class;
mod cluster;
mod hint;
mod key;
mod map;
mod order;
mod outlook;
pub mod planted;
mod prefix;
mod remedy;
mod replica_version;
mod route;
mod snapshot;
mod time;
mod version;

pub use address::Address;
pub use changes::{Chain, Changes, Difference};
pub use class::{CLASS_PAGE_BYTES, CLASSES, LAST_CLASS, class_bytes, item_bytes, size_class};
pub use cluster::{Addresses, CLUSTER_NAME_BYTES_MAX, Cluster, ClusterView, MAP_VERSION_MAX};
pub use hint::Hint;
pub use key::{KEY_BYTES_MAX, Key, renamed_hash};
pub use map::{ClusterMap, Owner, Uncovered};
pub use order::{Order, Outcome, Reading};
pub use outlook::{
    ClusterPlan, MOVES_MAX, Outlook, PlannedMove, PlannedSplit, SPLITS_UNTIL, ServerOutlook,
    Standing, Why, moves_max,
};
pub use prefix::Prefix;
pub use remedy::{Came, Relief, Remedy};
pub use replica_version::ReplicaVersion;
pub use route::{Elsewhere, MoveId, MoveLink, Route};
pub use snapshot::{CacheletLoad, Move, Service, Snapshot, WorkerLoad, waiting_at};
pub use time::Instant;
pub use version::MapVersion;

/// False where a server is built without latencies and hot keys, which is done only to see what they cost.
pub const METRICS: bool = !cfg!(feature = "without-metrics");

/// Seconds on the server's own monotonic clock; 0 is before the process started.
///
/// Like memcached, the server tells time in whole seconds. A deadline of 0 means "never".
pub type Seconds = u32;

/// One of the threads of a server: owns a core, connections and some cachelets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub u16);

/// A process on a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerId(pub u16);

impl ServerId {
    /// No server has this id, and there is no link to it.
    pub const NOBODY: ServerId = ServerId(u16::MAX);
}
