//! What people see of a cluster at once: its status, its hot keys, and how busy and how fast each server was in its last epoch.

use std::time::Duration;

use mbal_model::ServerId;

use crate::api::{Heartbeat, HotKeys, ScaleStatus, Status, VitalsReport, WorkerReport};
use crate::ledger::Ledger;

/// All of it is of one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overview {
    pub status: Status,
    pub hot: HotKeys,
    pub scaling: ScaleStatus,
    /// Of servers that were heard of lately.
    pub servers: Vec<ServerOverview>,
    /// Between two heartbeats.
    pub epoch: Duration,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerOverview {
    pub server: ServerId,
    pub workers: Vec<WorkerOverview>,
    /// Keys read and written a second.
    pub requests: f64,
    pub memory_bytes: u64,
    pub vitals: VitalsReport,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WorkerOverview {
    pub load: f64,
    /// Requests that stood waiting.
    pub waiting: f64,
    /// Keys of the epoch.
    pub reads: u64,
    pub hits: u64,
    pub writes: u64,
}

impl From<&WorkerReport> for WorkerOverview {
    fn from(report: &WorkerReport) -> WorkerOverview {
        WorkerOverview {
            load: report.load(),
            waiting: report.service().waiting.unwrap_or(0.0),
            reads: report.reads,
            hits: report.hits,
            writes: report.writes,
        }
    }
}

/// O(workers and their cachelets that are listed).
pub(crate) fn servers(ledger: &Ledger) -> Vec<ServerOverview> {
    let of = |(server, last): (ServerId, &Heartbeat)| ServerOverview {
        server,
        workers: last.workers.iter().map(WorkerOverview::from).collect(),
        requests: last.requests,
        memory_bytes: match last.memory_bytes {
            0 => ledger.state().members.get(&server).map_or(0, |member| member.memory_bytes),
            bytes => bytes,
        },
        vitals: last.vitals.clone().unwrap_or_default(),
    };
    ledger.recent().map(|(server, heard)| of((server, &heard.last))).collect()
}
