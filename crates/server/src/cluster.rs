//! What a server is told of its cluster.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use mbal_model::{CLUSTER_NAME_BYTES_MAX, Cluster, ClusterMap, Owner, Prefix, ServerId, WorkerId};

const _: () = assert!(CLUSTER_NAME_BYTES_MAX == mbal_link::CLUSTER_BYTES_MAX);

/// What a server is told of its cluster.
#[derive(Clone, PartialEq)]
pub struct ClusterConfig {
    pub map: MapFrom,
    pub secret: Vec<u8>,
    /// Where other servers dial, if not at the port of the map's own address.
    pub link_port: Option<u16>,
    /// A request that another server has not answered for so long has failed.
    pub link_timeout: Duration,
}

/// Who says which server has what.
#[derive(Clone, Debug, PartialEq)]
pub enum MapFrom {
    /// A file, for as long as the process lives.
    File {
        cluster: Arc<Cluster>,
        here: ServerId,
    },
    Coordinator(CoordinatorConfig),
}

#[derive(Clone, PartialEq)]
pub struct CoordinatorConfig {
    /// `http://host:port`, of all coordinators, separated by commas.
    pub urls: String,
    pub token: Option<String>,
    /// The cluster's name.
    pub cluster: String,
    /// The coordinator gives one to a server without.
    pub id: Option<ServerId>,
    /// The host by which others reach this server; without, the one by which it reaches the coordinator.
    pub advertise: Option<String>,
    /// At SIGTERM its cachelets are given to others for so long; zero is not at all.
    pub drain_timeout: Duration,
    /// Bytes for copies of other servers' hot keys; without, a part of the memory limit.
    pub replica_memory: Option<u64>,
}

/// Not the token.
impl fmt::Debug for CoordinatorConfig {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CoordinatorConfig { urls, cluster, id, advertise, .. } = self;
        write!(out, "CoordinatorConfig {:?}", (urls, cluster, id, advertise))
    }
}

/// Not the secret.
impl fmt::Debug for ClusterConfig {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ClusterConfig { map, link_port, link_timeout, .. } = self;
        write!(out, "ClusterConfig {:?}", (map, link_port, link_timeout))
    }
}

impl ClusterConfig {
    /// What a server serves by until it has heard of a map: nothing, and it knows nobody who does.
    pub(crate) fn first_map(&self) -> (ServerId, Arc<Cluster>) {
        match &self.map {
            MapFrom::File { cluster, here } => (*here, resolved(cluster)),
            MapFrom::Coordinator(config) => {
                let nobody = Owner { server: ServerId::NOBODY, worker: WorkerId(0) };
                let map = ClusterMap::new(0, vec![(Prefix::ALL, nobody)]);
                let map = Arc::new(map.expect("one prefix covers all"));
                let name = config.cluster.clone();
                (ServerId(0), Arc::new(Cluster { name, map, servers: BTreeMap::new() }))
            }
        }
    }
}

/// Looks up the IPv4 addresses of servers that are given by name, for clients that want them. What is not found is left out.
pub(crate) fn resolved(cluster: &Arc<Cluster>) -> Arc<Cluster> {
    let mut resolved = Cluster::clone(cluster);
    for addresses in resolved.servers.values_mut() {
        let client = &addresses.client;
        if client.ip().is_some() {
            continue;
        }
        let found = (client.host.as_str(), client.port).to_socket_addrs();
        addresses.resolved = found.into_iter().flatten().find_map(|address| match address {
            SocketAddr::V4(address) => Some(*address.ip()),
            SocketAddr::V6(_) => None,
        });
    }
    Arc::new(resolved)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_gets_its_ipv4_address() {
        let text = "version 1\nserver 1 link localhost:1 client localhost:2\n\
            server 2 link a:1 client no-such-host.invalid:2\nequal 0\n";
        let cluster = Arc::new(Cluster::parse(text).expect("well formed"));
        let resolved = resolved(&cluster);
        let ip = |id| resolved.servers[&ServerId(id)].client_ipv4();
        assert_eq!(ip(1).map(|ip| ip.is_loopback()), Some(true));
        assert_eq!(ip(2), None);
        assert_eq!(resolved.to_string(), cluster.to_string());
    }
}
