//! Hot keys, as the coordinator and a server's workers speak of them.

use std::time::Duration;

use mbal_control::api::{self, HOT_KEYS_LISTED, HotReport, HotState, HotTold};
use mbal_model::Instant;
use mbal_replica::HomeState;
use mbal_worker::{HotHome, HotMode, HotTerms, Shared};

/// Of `-m`, for copies of other servers' keys, if nothing else is said.
const REPLICA_PART: u64 = 64;

/// Does as the coordinator says. What it does not say stays as it is, and so does all if it cannot be meant so. The new terms, if they are others.
pub(crate) fn obey(
    shared: &Shared,
    told: Option<&HotTold>,
    replica_memory: Option<u64>,
) -> Option<HotTerms> {
    let told = told.filter(|told| told.is_sane())?;
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
    if terms != known {
        shared.set_hot_terms(terms);
    }
    ((terms.mode, terms.lease) != (known.mode, known.lease)).then_some(terms)
}

/// The hottest keys of a server, for a heartbeat; `now` by the leases' clock.
pub fn hot_reports(shared: &Shared, now: Instant) -> Vec<HotReport> {
    let homes = shared.hot_homes(HOT_KEYS_LISTED);
    homes.into_iter().map(|home| hot_report(home, now)).collect()
}

pub fn hot_report(home: HotHome, now: Instant) -> HotReport {
    let copied = home.state.map_or(Duration::ZERO, |_| now - home.since);
    HotReport {
        key: readable(&home.key),
        reads: rounded(home.reads),
        copy_reads: rounded(home.copy_reads),
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

/// As `stats hot` writes a key.
pub fn readable(key: &[u8]) -> String {
    let mut written = Vec::new();
    mbal_wire::push_readable(&mut written, key);
    String::from_utf8(written).expect("all of it is printed ASCII")
}

#[cfg(test)]
mod tests {
    use mbal_balance::hot::Policy;

    use super::*;

    #[test]
    fn operators_are_told_of_keys_hot_by_writes_by_the_policys_own_bound() {
        for (mode, writes_wait) in [(api::HotMode::Async, false), (api::HotMode::Atomic, true)] {
            assert_eq!(mode.reads_a_write(), Policy::new(1.0, writes_wait).reads_per_write);
        }
    }
}
