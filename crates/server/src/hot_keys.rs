//! What operators are told of hot keys, and the balancer.

use mbal_control::api::{self, HotKey, HotKeys, HotReport, HotState, HotStatus, HotTold};
use mbal_member::{hot_report, hot_reports, readable};
use mbal_model::{Instant, Key, Seconds};
use mbal_worker::{HotMode, HotTerms, Shared};

use crate::log;

/// Hot keys are copied by other terms than before.
pub(crate) fn log_terms(terms: &HotTerms) {
    let (name, lease_ms) = (name(terms.mode), terms.lease.as_millis());
    log::info("hot_keys", &format!("mbal: hot keys are copied: {name}, leases of {lease_ms} ms"));
}

fn name(mode: HotMode) -> &'static str {
    match mode {
        HotMode::Off => "off",
        HotMode::Async => "async",
        HotMode::Atomic => "atomic",
    }
}

/// What `mbal cluster hotkeys SERVER` is told: as the coordinator tells of a cluster, of this server alone.
pub(crate) fn told(shared: &Shared, here: u16, requests: f64, now: Instant) -> HotKeys {
    let terms = shared.hot_terms();
    let told = HotTold {
        mode: match terms.mode {
            HotMode::Off => api::HotMode::Off,
            HotMode::Async => api::HotMode::Async,
            HotMode::Atomic => api::HotMode::Atomic,
        },
        lease_ms: terms.lease.as_millis() as u64,
        threshold: Some(if terms.threshold.is_finite() { terms.threshold } else { 0.0 }),
    };
    let keys = hot_reports(shared, now).into_iter().map(|report| HotKey { server: here, report });
    let keys: Vec<HotKey> = keys.collect();
    let copied = keys.iter().filter(|key| key.report.gamma() > 0).count();
    let copies = keys.iter().map(|key| key.report.gamma()).sum();
    HotKeys { status: HotStatus { told, servers: 1, requests, copied, copies }, keys }
}

/// The keys with the most requests in the last second, whether or not keys are copied. Who asks is taken to watch for a while.
pub(crate) fn busiest(shared: &Shared, count: usize, second: Seconds) -> Vec<HotReport> {
    let report = |hot: mbal_worker::HotKey| HotReport {
        key: readable(&hot.key),
        reads: hot.reads.round(),
        writes: hot.writes.round(),
        ..HotReport::default()
    };
    shared.hottest(count, second).into_iter().map(report).collect()
}

/// What `mbal cluster explain KEY` says of a key of this server that is hot; nothing of others.
pub(crate) fn explained(shared: &Shared, key: &Key<'_>, now: Instant) -> Option<String> {
    let home = shared.hot_homes(usize::MAX).into_iter().find(|home| home.key == key.bytes())?;
    let name = readable(key.bytes());
    let HotReport { state, copies, copied_ms, .. } = hot_report(home, now);
    let state = match state? {
        HotState::HotPending => "copies are being made or renewed",
        HotState::Hot => "hot",
        HotState::ColdPending => "copies are being dropped",
    };
    let servers: Vec<String> = copies.iter().map(u16::to_string).collect();
    let most = match shared.hot_threshold() {
        threshold if threshold.is_finite() => format!("{threshold:.0} requests/s"),
        _ => "a quarter of a worker".into(),
    };
    Some(format!(
        "key {name}: {state}, with {} copies on servers {} since {} s; a copy is to have {most} at most\n",
        copies.len(),
        servers.join(", "),
        copied_ms / 1000,
    ))
}
