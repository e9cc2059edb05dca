//! What the planner of a whole cluster reads, and what it returns: phase 3, and servers that are to be emptied.

use std::collections::BTreeMap;

use crate::{Move, Owner, Prefix, Remedy, ServerId, WorkerLoad};

/// Moves that a server takes part in at a time: so many as source, and so many as destination.
pub const MOVES_MAX: usize = 16;

/// How many of them a plan may have under way with the one of this many bytes. What takes milliseconds would else wait for an
/// epoch: a hot set is some ten cachelets of a server. 0 is unknown. Of who is about to end what has not begun in time is lost,
/// with its hottest items: there all go at once.
pub const fn moves_max(bytes: u64, ends: bool) -> usize {
    const SHORT_BYTES: u64 = 4 << 20;
    if ends || 0 < bytes && bytes <= SHORT_BYTES { MOVES_MAX } else { 4 }
}

/// A server that has so many cachelets splits none: a store has room for twice as many.
pub const SPLITS_UNTIL: usize = 2_048;

/// What a plan may do with a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It gives and takes.
    Serving,
    /// An operator wants it empty: it gives everything, and takes nothing.
    Draining,
    /// Its process is about to end: it gives everything, even to who will be overloaded, since what stays is lost.
    Ending,
    /// Of a version that takes part in no moves: it neither gives nor takes, but its load counts.
    Staying,
    /// It was not heard of lately, or is dead: it neither gives nor takes, and nothing is known of its load.
    Silent,
}

/// One server at the end of an epoch, by its last heartbeat and the map.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerOutlook {
    pub server: ServerId,
    pub standing: Standing,
    /// All that its items may have together.
    pub memory_bytes: u64,
    /// Its cachelets are those that it has by the map. `bytes_max` counts nothing here.
    pub workers: Vec<WorkerLoad>,
    /// Its own balancer has found no plan: phase 2 is at its end.
    pub helpless: bool,
    /// Moves to it came to nothing lately: for a while it is not given its share.
    pub refuses: bool,
    /// Its cachelets with a key that has just got copies: what these take has not shown yet.
    pub copying: Vec<Prefix>,
    /// Cachelets with a key that is hot, and what the hottest takes of its worker's time, which copies do not. Nobody knows of others.
    pub hottest: Vec<(Prefix, f64)>,
    /// Of a server that evicts nothing: bytes of its memory that are free, as they were told last. What does not fit there does not
    /// arrive.
    pub room_bytes: Option<u64>,
}

/// The whole cluster at the end of an epoch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outlook {
    /// Counts epochs since the coordinator's start.
    pub epoch: u64,
    /// By id.
    pub servers: Vec<ServerOutlook>,
    /// Moves under way. Their cachelets are still the source's in `servers`.
    pub under_way: Vec<Move>,
    /// Of these, bytes that their sources say have gone. Who has not begun says nothing.
    pub gone: BTreeMap<Prefix, u64>,
    /// Servers tell which keys are hot: what they say nothing of is not one key's. Else nothing is split.
    pub knows_hot_keys: bool,
    /// The coordinator has just begun, and servers have not said yet how they are and what they do about it.
    pub awaits: bool,
    /// What the last plan has told of remedies, maybe that of a coordinator before this one.
    pub remedies: Vec<Remedy>,
}

/// Why a cachelet is to change servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// Its worker is overloaded, and its server cannot help itself.
    Overload,
    /// It comes in exchange for one that leaves an overloaded worker.
    Exchange,
    /// Its server is to be emptied.
    Drain,
    /// Another server has come, or come back, and gets its even share.
    Share,
    /// It goes back: since it came the worst worker has had more to do.
    Undone,
}

/// A move with what it was decided on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlannedMove {
    pub step: Move,
    pub why: Why,
    /// The cachelet's, in fractions of a worker's time, and its bytes.
    pub load: f64,
    pub bytes: u64,
    /// Loads of the source's and the destination's worker before it.
    pub from_load: f64,
    pub to_load: f64,
}

/// A cachelet that is to be split, with what it was decided on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlannedSplit {
    pub cachelet: Prefix,
    pub at: Owner,
    /// Into 2 to the power of this.
    pub bits: u32,
    /// Its share of the work / its worker's share of the capacity.
    pub seen: f64,
    /// In fractions of its worker's time: all of it, and its hottest key.
    pub load: f64,
    pub hottest: f64,
}

/// What is to be done in a cluster in this epoch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterPlan {
    pub epoch: u64,
    /// In the order in which they are to be begun; within the bounds of moves per server.
    pub moves: Vec<PlannedMove>,
    /// What empties servers and has no place among `moves` yet: to be begun, in this order, as others end.
    pub later: Vec<PlannedMove>,
    pub splits: Vec<PlannedSplit>,
    /// Servers in phase 3.
    pub asking: Vec<ServerId>,
    /// So many more servers would bring every worker under its limit: the paper's NULL. 0 is none.
    pub servers_wanted: u32,
    /// Too heavy for any worker, and not to be split now: one key's, as narrow as cachelets get, or just split.
    pub too_heavy: Vec<Prefix>,
    /// Servers that are to be emptied, and nobody has room for what they hold.
    pub stuck: Vec<ServerId>,
    /// Servers with a worker that is overloaded by what stays with its connections: no move helps.
    pub by_connections: Vec<ServerId>,
    /// Servers that have given in vain: what has left them is their load still. They are helped less often.
    pub in_vain: Vec<ServerId>,
    /// Remedies that are pending, and what came of the last ones: for [`Outlook::remedies`].
    pub remedies: Vec<Remedy>,
    /// Over the workers of all servers that were heard of.
    pub load_mean: f64,
    pub load_max: f64,
}
