//! Hot keys between the coordinator and the workers: terms one way, reports the other; and what operators are told of them.

use std::collections::BTreeMap;
use std::time::Duration;

use mbal_control::api::{
    self, HOT_KEYS_LISTED, HotKey, HotKeys, HotReport, HotState, HotStatus, HotTold,
};
use mbal_model::{Instant, Key};
use mbal_replica::HomeState;
use mbal_worker::{HotHome, HotMode, HotTerms, Shared};

use crate::log;

/// Of `-m`, for copies of other servers' keys, if `--replica-memory` does not say otherwise.
const REPLICA_PART: u64 = 64;

/// Does as the coordinator says. What it does not say stays as it is, and so does all if it cannot be meant so.
pub(crate) fn obey(shared: &Shared, told: Option<&HotTold>, replica_memory: Option<u64>) {
    let Some(told) = told.filter(|told| told.is_sane()) else { return };
    let known = shared.hot_terms();
    let terms = HotTerms {
        mode: match told.mode {
            api::HotMode::Off => HotMode::Off,
            api::HotMode::Async => HotMode::Async,
            api::HotMode::Atomic => HotMode::Atomic,
        },
        lease: Duration::from_millis(told.lease_ms),
        threshold: match told.threshold {
            None => known.threshold,
            Some(rate) if rate > 0.0 => rate,
            Some(_) => f64::INFINITY,
        },
        memory_bytes: replica_memory.unwrap_or(shared.memory_limit() / REPLICA_PART),
    };
    if (terms.mode, terms.lease) != (known.mode, known.lease) {
        let (name, lease_ms) = (name(terms.mode), told.lease_ms);
        log::info(
            "hot_keys",
            &format!("mbal: hot keys are copied: {name}, leases of {lease_ms} ms"),
        );
    }
    if terms != known {
        shared.set_hot_terms(terms);
    }
}

fn name(mode: HotMode) -> &'static str {
    match mode {
        HotMode::Off => "off",
        HotMode::Async => "async",
        HotMode::Atomic => "atomic",
    }
}

/// For a heartbeat: the hottest keys of this server at that moment of the leases' clock.
pub(crate) fn reports(shared: &Shared, now: Instant) -> Vec<HotReport> {
    let homes = shared.hot_homes(HOT_KEYS_LISTED);
    homes.into_iter().map(|home| report(home, now)).collect()
}

fn report(home: HotHome, now: Instant) -> HotReport {
    let copied = home.state.map_or(Duration::ZERO, |_| now - home.since);
    HotReport {
        key: readable(&home.key),
        reads: rounded(home.reads),
        writes: rounded(home.writes),
        value_bytes: home.value_bytes,
        state: home.state.map(|state| match state {
            HomeState::HotPending => HotState::HotPending,
            HomeState::Hot => HotState::Hot,
            HomeState::ColdPending => HotState::ColdPending,
        }),
        copies: home.copies.iter().map(|server| server.0).collect(),
        copied_ms: copied.as_millis() as u64,
    }
}

/// To a tenth: rates are estimates.
fn rounded(rate: f64) -> f64 {
    (rate * 10.0).round() / 10.0
}

fn readable(key: &[u8]) -> String {
    let mut written = Vec::new();
    mbal_wire::push_readable(&mut written, key);
    String::from_utf8(written).expect("all of it is printed ASCII")
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
    let keys = reports(shared, now).into_iter().map(|report| HotKey { server: here, report });
    let keys: Vec<HotKey> = keys.collect();
    let copied = keys.iter().filter(|key| key.report.gamma() > 0).count();
    let copies = keys.iter().map(|key| key.report.gamma()).sum();
    HotKeys { status: HotStatus { told, servers: 1, requests, copied, copies }, keys }
}

/// What `mbal cluster explain KEY` says of a key of this server that is hot; nothing of others.
pub(crate) fn explained(shared: &Shared, key: &Key<'_>, now: Instant) -> Option<String> {
    let home = shared.hot_homes(usize::MAX).into_iter().find(|home| home.key == key.bytes())?;
    let name = readable(key.bytes());
    let HotReport { state, copies, copied_ms, .. } = report(home, now);
    let state = match state? {
        HotState::HotPending => "copies are being made or renewed",
        HotState::Hot => "hot",
        HotState::ColdPending => "copies are being dropped",
    };
    let servers: Vec<String> = copies.iter().map(u16::to_string).collect();
    let threshold = shared.hot_terms().threshold;
    Some(format!(
        "key {name}: {state}, with {} copies on servers {} since {} s; a copy is to have {threshold:.0} requests/s at most\n",
        copies.len(),
        servers.join(", "),
        copied_ms / 1000,
    ))
}

/// What phases 2 and 3 have to know of hot keys: how many the worker has that has most, and whether one is hot by writes.
pub(crate) fn vital(shared: &Shared) -> (u32, bool) {
    let threshold = shared.hot_terms().threshold;
    let mut by_worker: BTreeMap<u16, u32> = BTreeMap::new();
    let mut write_hot = false;
    let hot = shared.hot_homes(usize::MAX).into_iter();
    for home in hot.filter(|home| home.reads + home.writes > threshold) {
        let rates = HotReport { reads: home.reads, writes: home.writes, ..HotReport::default() };
        if rates.is_write_hot() {
            write_hot = true;
        } else if let Some((_, worker)) =
            Key::new(&home.key).and_then(|key| shared.store.cachelet_of(key.hash()))
        {
            *by_worker.entry(worker.0).or_default() += 1;
        }
    }
    (by_worker.into_values().max().unwrap_or(0), write_hot)
}
