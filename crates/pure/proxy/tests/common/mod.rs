//! What tests of proxies share: memcacheds of few commands, histories of keys against which reads are held, links, and transcripts.

#![allow(dead_code, reason = "each test uses some of it")]

use std::time::Duration;

use mbal_proxy::{
    Action, ClientId, ConnId, Dialect, Distribution, KeyHash, Limits, Proxy, Replication,
    RingServer, Settings,
};

pub mod history;
pub mod links;
pub mod memcached;
pub mod transcript;

pub const MS: u64 = 1_000_000;
pub const KETAMA: Distribution = Distribution::Ketama(Dialect::Twemproxy, None);

pub fn server(at: usize) -> RingServer {
    RingServer { host: format!("s{at}"), port: 11211, weight: 1, name: None }
}

/// Of a proxy before so many upstreams.
pub fn settings(upstreams: usize) -> Settings {
    Settings {
        servers: (0..upstreams).map(server).collect(),
        distribution: Distribution::Modula(KeyHash::Fnv1a64),
        slots: None,
        conns_per_server: 1,
        timeout: Duration::from_millis(100),
        eject: false,
        failures_max: 1,
        retry: Duration::from_secs(1),
        limits: Limits::default(),
        replication: None,
        peers: None,
        switch: None,
        stack_distances: false,
        doubt: Duration::ZERO,
        pid: 1,
        started_at: 0,
        version: "1".into(),
        seed: 7,
    }
}

pub fn replication(interval_ms: u64, target: f64) -> Option<Replication> {
    Some(Replication { interval: Duration::from_millis(interval_ms), target, sampling: 1.0 })
}

/// In half of the runs a client may leave little untaken: each of its multi-gets is asked for key by key.
pub fn limits(is_narrow: bool) -> Limits {
    let usual = Limits::default();
    let client_output_bytes_max = if is_narrow { 8 } else { usual.client_output_bytes_max };
    Limits { client_output_bytes_max, ..usual }
}

/// What a proxy wants done, until it wants nothing.
pub fn actions(proxy: &mut Proxy) -> Option<Vec<Action>> {
    let mut actions = Vec::new();
    proxy.take_actions(&mut actions);
    Some(actions).filter(|actions| !actions.is_empty())
}

pub fn to_client(proxy: &mut Proxy, client: ClientId) -> Vec<u8> {
    let out = proxy.client_output(client).to_vec();
    proxy.client_took(client, out.len());
    out
}

pub fn to_upstream(proxy: &mut Proxy, conn: ConnId) -> Vec<u8> {
    let out = proxy.conn_output(conn).to_vec();
    proxy.conn_took(conn, out.len());
    out
}
