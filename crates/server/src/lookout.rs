//! This server as a cluster of one: what its page shows.

use std::sync::Arc;
use std::time::Duration;

use mbal_control::api::{
    BalanceMode, BalanceStatus, HotKey, HotKeys, ScaleStatus, ServerStatus, Status,
};
use mbal_control::{Overview, ServerOverview, WorkerOverview};
use mbal_model::{ServerId, WorkerId};
use mbal_webpage::HOT_KEYS_SHOWN;

use crate::balancing::Balanced;
use crate::hot_keys;
use crate::started::Started;

/// What is looked at. Nobody is kept waiting by it.
pub(crate) struct Lookout {
    pub server: Arc<mbal_worker::Shared>,
    pub balanced: Arc<Balanced>,
    pub started: Started,
    /// Where clients reach it.
    pub client: String,
    pub epoch: Duration,
}

impl Lookout {
    /// `mode` is the balancer's, by name. While somebody watches, keys are counted as for `stats hot`: all requests are looked at.
    pub(crate) fn overview(&self, mode: &str, is_watched: bool) -> Overview {
        let loads = self.balanced.loads();
        let here = self.server.address(WorkerId(0)).server;
        let hot = self.hot(here, loads.requests, is_watched);
        let workers: Vec<WorkerOverview> = loads.workers.iter().map(WorkerOverview::from).collect();
        // Not the sum of nothing, which is -0.
        let sum = workers.iter().fold(0.0, |sum, worker| sum + worker.load);
        let load_max = workers.iter().map(|worker| worker.load).fold(0.0, f64::max);
        let load_mean = sum / workers.len().max(1) as f64;
        let balance = BalanceStatus {
            mode: match mode {
                "off" => BalanceMode::Off,
                "dry-run" => BalanceMode::DryRun,
                _ => BalanceMode::On,
            },
            load_mean,
            load_max,
            remedies: loads
                .remedies
                .into_iter()
                .map(|remedy| mbal_control::api::RemedyReport { server: here.0, ..remedy })
                .collect(),
            ..BalanceStatus::default()
        };
        let memory_bytes = self.server.memory_limit();
        let (name, map_version, share) = self.in_cluster(here);
        let server = ServerStatus {
            id: here.0,
            client: self.client.clone(),
            workers: self.server.settings.workers.into(),
            memory_bytes,
            cachelets: self.server.store.prefixes().len(),
            share,
            load: load_mean,
            map_version,
            version: env!("CARGO_PKG_VERSION").into(),
            silent_ms: Some(0),
            state: "serving".into(),
            ..ServerStatus::default()
        };
        Overview {
            status: Status {
                cluster: name,
                map_version,
                servers: vec![server],
                balance,
                hot: Some(hot.status),
                ..Status::default()
            },
            hot,
            scaling: ScaleStatus::default(),
            servers: vec![ServerOverview {
                server: here,
                workers,
                requests: loads.requests,
                memory_bytes,
                vitals: loads.vitals,
            }],
            epoch: self.epoch,
        }
    }

    /// Those that may have copies, and of a server whose keys have none those with the most requests.
    fn hot(&self, here: ServerId, requests: f64, is_watched: bool) -> HotKeys {
        let lease_now = self.started.lease_clock.now();
        let mut hot = hot_keys::told(&self.server, here.0, requests, lease_now);
        if is_watched {
            let second = self.started.at(self.started.clock.now_ns()).second;
            for report in hot_keys::busiest(&self.server, HOT_KEYS_SHOWN, second) {
                if !hot.keys.iter().any(|one| one.report.key == report.key) {
                    hot.keys.push(HotKey { server: here.0, report });
                }
            }
            let rate = |key: &HotKey| key.report.reads + key.report.writes;
            hot.keys.sort_by(|one, other| rate(other).total_cmp(&rate(one)));
        }
        hot
    }

    /// Its cluster's name, the map that it follows, its part of all hashes. Alone it has all of them.
    fn in_cluster(&self, here: ServerId) -> (String, u64, f64) {
        let Some((_, cluster)) = self.server.cluster() else { return (String::new(), 0, 1.0) };
        let own = cluster.map.cachelets().iter().filter(|(_, owner)| owner.server == here);
        let nodes: usize = own.map(|(prefix, _)| prefix.nodes()).sum();
        (cluster.name.clone(), cluster.map.version(), nodes as f64 / 65_536.0)
    }
}
