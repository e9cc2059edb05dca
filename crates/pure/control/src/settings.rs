//! What does not change while a coordinator runs.

use std::time::Duration;

use mbal_election::Terms;

use crate::api::HotMode;

#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The cluster's name.
    pub cluster: String,
    /// Servers that have to register before the first map is made.
    pub servers_first: usize,
    /// Time between two heartbeats of a server.
    pub epoch: Duration,
    /// Where the state is in etcd, servers own by leases.
    pub leases: Option<Leases>,
    /// How hot keys are copied.
    pub hot_keys: HotMode,
    /// How long a copy may be read without word of its home.
    pub copy_lease: Duration,
    /// The busiest server's requests by those of the average one, which copies are to keep.
    pub imbalance_target: f64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            cluster: "mbal".into(),
            servers_first: 1,
            epoch: Duration::from_secs(1),
            leases: None,
            hot_keys: HotMode::Atomic,
            copy_lease: Duration::from_secs(1),
            imbalance_target: 1.25,
        }
    }
}

/// What the leases of a cluster are.
#[derive(Clone, Debug, PartialEq)]
pub struct Leases {
    pub terms: Terms,
    /// Members of etcd, as servers reach them.
    pub etcd: Vec<String>,
    /// This coordinator's URL, as servers name it.
    pub address: String,
}
