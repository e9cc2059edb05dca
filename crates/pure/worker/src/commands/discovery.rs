//! Where clients reach the servers of the cluster, as ElastiCache's auto-discovery tells it: for clients that know that,
//! and nothing of MBal.

use mbal_model::Cluster;
use mbal_wire::{DISCOVERY_KEY, Frame, Head, Status, push_line, push_value};

use crate::commands::context::Context;
use crate::shared::Shared;

/// `config get cluster`
pub(crate) fn discover(on: &Context<'_>, out: &mut Vec<u8>) {
    let Some(listed) = listed(on.shared) else { return push_line(out, b"ERROR") };
    config(out, b"cluster", &listed);
    push_line(out, b"END");
}

/// A payload as `config get` frames it: the length counts all its lines, but not the line end that follows.
pub(crate) fn config(out: &mut Vec<u8>, name: &[u8], payload: &str) {
    out.extend_from_slice(b"CONFIG ");
    out.extend_from_slice(name);
    push_line(out, format!(" 0 {}", payload.len()).as_bytes());
    push_line(out, payload.as_bytes());
}

/// A `get` of the key that older clients ask for; false where there is no cluster: then it is a key like any other.
#[cold]
pub(crate) fn get(on: &Context<'_>, out: &mut Vec<u8>) -> bool {
    let Some(listed) = listed(on.shared) else { return false };
    // Without ElastiCache's last line feed. Who asks for the key, though the version is new enough for `config get`,
    // splits at the one line feed (pylibmc's autoconf).
    let listed = listed.trim_end();
    push_value(out, DISCOVERY_KEY, 0, listed.len() as u32, None);
    push_line(out, listed.as_bytes());
    push_line(out, b"END");
    true
}

pub(crate) fn discover_binary(on: &Context<'_>, frame: &Frame, out: &mut Vec<u8>) {
    match listed(on.shared) {
        Some(listed) => {
            // Flags, as before any value.
            let (extras, value_bytes) = (&[0; 4], listed.len() as u32);
            let head = Head { extras, value_bytes, ..Head::default() };
            frame.push_head(out, Status::Success, &head);
            out.extend_from_slice(listed.as_bytes());
        }
        None => frame.push_error(out, Status::UnknownCommand),
    }
}

/// `None` without a cluster, or before its first map has come: nobody is to take that for a cluster of no servers.
fn listed(shared: &Shared) -> Option<String> {
    let (_, cluster) = shared.cluster()?;
    (cluster.map.version() > 0).then(|| list(&cluster))
}

/// The map's version, and `name|IPv4 address|port` of each server. What is no IPv4 address leaves the middle empty.
fn list(cluster: &Cluster) -> String {
    let mut listed = format!("{}\n", cluster.map.version());
    for (at, addresses) in cluster.servers.values().enumerate() {
        let ip = addresses.client_ipv4().map(|ip| ip.to_string()).unwrap_or_default();
        let client = &addresses.client;
        let blank = if at == 0 { "" } else { " " };
        listed += &format!("{blank}{}|{ip}|{}", client.host, client.port);
    }
    listed + "\n"
}
