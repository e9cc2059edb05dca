//! What a server is told of its cluster.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use mbal_model::{CLUSTER_NAME_BYTES_MAX, Cluster, ServerId};

const _: () = assert!(CLUSTER_NAME_BYTES_MAX == mbal_link::CLUSTER_BYTES_MAX);

/// What a server is told of its cluster.
#[derive(Clone, PartialEq)]
pub struct ClusterConfig {
    pub cluster: Arc<Cluster>,
    pub here: ServerId,
    pub secret: Vec<u8>,
    /// Where other servers dial, if not at the port of the map's own address.
    pub link_port: Option<u16>,
    /// A request that another server has not answered for so long has failed.
    pub link_timeout: Duration,
}

/// Not the secret.
impl fmt::Debug for ClusterConfig {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ClusterConfig { cluster, here, link_port, link_timeout, .. } = self;
        let fields = (cluster, here, link_port, link_timeout);
        write!(out, "ClusterConfig {fields:?}")
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
