//! What a proxy counts.

use crate::Proxy;
use crate::upstream::{Health, State};

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
    /// How often an upstream came back, flushed.
    returns,
    /// Keys that were deleted since their last write had no known outcome.
    deleted_unsure,
    /// Reads of hot keys that went to copies.
    copy_reads,
    /// Reads of hot keys that were answered from the proxy's own cache.
    cache_hits,
    copies_stored,
    connections_total,
}

impl Proxy {
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Of each upstream: its name, whether it serves, its connections that are up, requests that are not answered, bytes that wait.
    pub fn upstreams(&self) -> impl Iterator<Item = UpstreamStats<'_>> {
        self.upstreams.iter().map(|upstream| {
            let conns = &self.conns[upstream.first_conn..][..2 * self.settings.conns_per_server];
            UpstreamStats {
                name: &upstream.name,
                serves: upstream.health == Health::Serves
                    && conns.iter().any(|conn| conn.state == State::Up),
                ejected: upstream.health == Health::Ejected,
                connections: conns.iter().filter(|conn| conn.state == State::Up).count(),
                waiting: conns.iter().map(|conn| conn.asked.len()).sum(),
                failures: upstream.failures,
            }
        })
    }

    /// The reply to `stats`.
    pub(crate) fn push_stats(&self, out: &mut Vec<u8>) {
        let mut stat = |name: &str, value: &str| {
            out.extend_from_slice(format!("STAT {name} {value}\r\n").as_bytes());
        };
        stat("version", &self.settings.version);
        stat("uptime", &(self.now / 1_000_000_000).to_string());
        let open = self.clients.iter().filter(|client| client.is_open).count();
        stat("curr_connections", &open.to_string());
        stat("hot_keys", &self.hot.len().to_string());
        for (name, value) in self.counters.each() {
            stat(name, &value.to_string());
        }
        for upstream in self.upstreams() {
            let name = upstream.name;
            let state = match (upstream.ejected, upstream.serves) {
                (true, _) => "ejected",
                (false, true) => "up",
                (false, false) => "down",
            };
            stat(&format!("upstream:{name}:state"), state);
            stat(&format!("upstream:{name}:connections"), &upstream.connections.to_string());
            stat(&format!("upstream:{name}:waiting"), &upstream.waiting.to_string());
            stat(&format!("upstream:{name}:failures_in_a_row"), &upstream.failures.to_string());
        }
        out.extend_from_slice(b"END\r\n");
    }
}

/// What is told of an upstream.
#[derive(Clone, Copy, Debug)]
pub struct UpstreamStats<'a> {
    pub name: &'a str,
    pub serves: bool,
    pub ejected: bool,
    pub connections: usize,
    /// Requests that are not answered.
    pub waiting: usize,
    /// In a row.
    pub failures: u32,
}
