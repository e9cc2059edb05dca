//! What a proxy counts.

use mbal_balance::Threshold;
use mbal_wire::Class;

use crate::counting::{ByClass, Latency};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Since the start.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Requests of clients, those included that were answered without an upstream.
    requests,
    /// What upstreams were asked for them; a multi-get counts once for each.
    forwarded,
    /// Replies of upstreams.
    replies,
    /// Requests that were answered by an error of the proxy's own.
    errors,
    /// Connections to upstreams that were lost, or could not be made.
    upstream_failures,
    /// Of them, since nobody answered in time.
    upstream_timeouts,
    /// How often keys of an upstream went to the others.
    ejections,
    /// How often an upstream came back.
    returns,
    /// Keys that were deleted since their upstream was away when they were written.
    deleted_missed,
    /// Requests that another server of a cluster was asked, since the key's own could not be reached.
    failovers,
    /// How often the pool was changed.
    pool_changes,
    /// Keys that were deleted since their last write had no known outcome.
    deleted_unsure,
    /// Reads of hot keys that went to copies.
    copy_reads,
    /// Reads of hot keys that were answered from the proxy's own cache.
    cache_hits,
    /// Reads of hot keys that waited for a write, and got what it brought.
    written_hits,
    /// Writes of hot keys whose values the proxy's own cache has taken.
    cache_writes,
    copies_stored,
    /// Requests that were passed on to their keys' coordinators.
    passed,
    /// How often a coordinator was silent for a lease.
    leases_ended,
    connections_total,
    /// Clients that were closed since they had most of the replies that were not taken.
    clients_cut_off,
    /// Keys that clients asked for and got, from upstreams or from the proxy's own cache.
    get_hits,
    get_misses,
    /// Keys of gets beyond the first one of each.
    further_keys,
    /// From clients, and to them.
    bytes_read,
    bytes_written,
}

/// Everything that a proxy counts, at one moment.
#[derive(Clone, Debug)]
pub struct Stats {
    pub counters: Counters,
    pub requests: ByClass,
    /// Upstreams that are in the pool no more, and have not answered all.
    pub leaving: usize,
    /// Connected now.
    pub clients: usize,
    /// If hot keys get copies.
    pub copies: Option<Copies>,
    pub upstreams: Vec<UpstreamStats>,
}

/// Hot keys by state.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Copies {
    pub keys: usize,
    /// Of them, read from copies.
    pub copied: usize,
    /// Of them, answered by the proxy itself.
    pub cached: usize,
    /// Copies on upstreams that have the value.
    pub items: usize,
    /// T in requests per second and copy, and the imbalance that it promises; none before anything was decided.
    pub threshold: Option<Threshold>,
}

/// Whether an upstream answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamState {
    Up,
    Down,
    /// Its keys are elsewhere until it has been flushed.
    Ejected,
}

impl UpstreamState {
    pub const ALL: [UpstreamState; 3] =
        [UpstreamState::Up, UpstreamState::Down, UpstreamState::Ejected];

    pub fn name(self) -> &'static str {
        match self {
            UpstreamState::Up => "up",
            UpstreamState::Down => "down",
            UpstreamState::Ejected => "ejected",
        }
    }
}

/// What is told of an upstream.
#[derive(Clone, Debug)]
pub struct UpstreamStats {
    pub name: String,
    pub state: UpstreamState,
    /// Connections that are up.
    pub connections: usize,
    /// Requests that are not answered.
    pub waiting: usize,
    /// In a row.
    pub failures: u32,
    pub failures_total: u64,
    pub latency: Latency,
}

impl Stats {
    /// What memcached tells under the same names, but for what [`Counters`] have.
    pub(crate) fn as_memcached(&self) -> [(&'static str, u64); 6] {
        let of = |class| self.requests.of(class);
        [
            ("total_connections", self.counters.connections_total),
            ("threads", 1),
            ("cmd_get", of(Class::Get) + self.counters.further_keys),
            ("cmd_set", of(Class::Set)),
            ("cmd_touch", of(Class::Touch)),
            ("cmd_flush", of(Class::Flush)),
        ]
    }
}
