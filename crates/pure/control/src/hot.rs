//! Hot keys, as the coordinator sees them: what servers report, by what T is computed, what is told of it.
//!
//! ```text
//!   heartbeats: the hottest keys, all requests ──► Request::Rates ──► Response::Rates ──► balls and bins, wherever the process runs them
//!   answers: mode, lease, T ◄── Request::Threshold ◄───────────────────────── T ◄──────────┘
//! ```
//! Decides nothing of one key: its home does, by T.

use std::collections::BTreeMap;
use std::time::Duration;

use mbal_model::{Key, ServerId};
use mbal_wire::unescaped;

use crate::api::{self, HOT_KEYS_LISTED, HotKeys, HotMode, HotReport, HotStatus, HotTold};
use crate::ledger::Heard;
use crate::ledger::Ledger;
use crate::settings::Settings;
use crate::state::State;

/// Changes of hot keys that are told one by one in an epoch.
const CHANGES_TOLD: usize = 16;
/// Keys of an answer to `GET /v1/hotkeys`.
const KEYS_TOLD: usize = 1024;
/// Copies of a key that a report may name.
const COPIES_MAX: usize = 255;
/// A key has at most 250 bytes, each of them written as three.
const KEY_BYTES_MAX: usize = 750;
/// Requests a second that nobody counts: whoever reports more is ill.
const RATE_MAX: f64 = 1e12;
/// A new T counts if it differs by this part: samples jitter, and each T that counts may displace copies.
const THRESHOLD_FELT: f64 = 0.1;
/// Copies are wanted no more when so many epochs in a row have said so.
const PATIENCE: u32 = 4;

/// By what T is computed.
#[derive(Clone, Debug, PartialEq)]
pub struct Rates {
    /// Servers that were heard of.
    pub servers: usize,
    /// Of all of them, keys read and written a second.
    pub requests: f64,
    /// Requests a second of the hottest keys, the hottest first.
    pub hottest: Vec<f64>,
    /// The imbalance that is to be kept.
    pub target: f64,
}

/// What is known of hot keys since this process began.
#[derive(Debug)]
pub(crate) struct Hot {
    /// As the coordinator was started.
    mode: HotMode,
    copy_lease: Duration,
    imbalance_target: f64,
    /// None before it was computed once.
    threshold: Option<f64>,
    /// Epochs in a row, up to now, in which nothing was to be copied.
    calm_epochs: u32,
    /// Copies that were told of, by their home and key.
    told: BTreeMap<ServerId, BTreeMap<String, usize>>,
    /// Changes in this epoch.
    changes: usize,
}

impl Hot {
    pub fn new(settings: &Settings) -> Hot {
        let &Settings { hot_keys: mode, copy_lease, imbalance_target, .. } = settings;
        let (threshold, told) = (None, BTreeMap::new());
        Hot { mode, copy_lease, imbalance_target, threshold, calm_epochs: 0, told, changes: 0 }
    }

    /// Servers look for hot keys, and tell them.
    pub fn is_on(&self, state: &State) -> bool {
        self.mode(state) != HotMode::Off
    }

    fn mode(&self, state: &State) -> HotMode {
        state.hot_keys.unwrap_or(self.mode)
    }

    /// An operator wants hot keys to be copied like that.
    pub fn set_mode(&self, ledger: &mut Ledger, mode: HotMode) {
        if self.mode(ledger.state()) != mode {
            ledger.change().hot_keys = Some(mode);
            ledger.say(match mode {
                HotMode::Off => "hot keys are not copied any more".into(),
                HotMode::Async => "hot keys are copied: async".into(),
                HotMode::Atomic => "hot keys are copied: atomic".into(),
            });
        }
    }

    /// What servers are to obey.
    pub fn told(&self, state: &State) -> HotTold {
        HotTold {
            mode: self.mode(state),
            lease_ms: self.copy_lease.as_millis() as u64,
            threshold: self.threshold.map(finite),
        }
    }

    /// The hottest of what a server reports, as far as it can be meant so; tells what is new.
    pub fn reported(
        &mut self,
        ledger: &mut Ledger,
        server: ServerId,
        mut reports: Vec<HotReport>,
    ) -> Vec<HotReport> {
        let is_full = reports.len() >= HOT_KEYS_LISTED;
        let is_key = |key: &str| {
            (1..=KEY_BYTES_MAX).contains(&key.len())
                && key.bytes().all(|byte| byte.is_ascii_graphic())
        };
        reports.retain(|report| is_key(&report.key));
        for report in &mut reports {
            (report.reads, report.writes) = (sane(report.reads), sane(report.writes));
            report.copies.truncate(COPIES_MAX);
        }
        reports.sort_by(|a, b| b.rate().total_cmp(&a.rate()).then_with(|| a.key.cmp(&b.key)));
        reports.truncate(HOT_KEYS_LISTED);
        self.tell_changes(ledger, server, &reports, is_full);
        reports
    }

    /// `is_full`: a key that is not listed may have copies all the same.
    fn tell_changes(
        &mut self,
        ledger: &mut Ledger,
        server: ServerId,
        reports: &[HotReport],
        is_full: bool,
    ) {
        let at = self.threshold_in_words(ledger.state());
        let hot_from = self.threshold.unwrap_or(f64::INFINITY);
        let before = self.told.remove(&server).unwrap_or_default();
        let mut changes = Vec::new();
        for report in reports {
            let (was, is) = (before.get(&report.key).copied().unwrap_or(0), report.gamma());
            let what = match (was, is) {
                _ if was == is => continue,
                (0, _) => format!("is hot: {}", in_words(report, &at)),
                (_, 0) if report.rate() >= hot_from => {
                    format!("is hot and has no copies any more: {}", in_words(report, &at))
                }
                (_, 0) => format!("cools: {}", in_words(report, &at)),
                _ => format!("goes from {was} copies to {is}: {}", in_words(report, &at)),
            };
            changes.push(format!("key {} of server {} {what}", report.key, server.0));
        }
        let is_listed = |key: &String| reports.iter().any(|report| report.key == *key);
        for key in before.keys().filter(|key| !is_full && !is_listed(key)) {
            changes.push(format!(
                "key {key} of server {} cools: it is hardly asked for, {at}",
                server.0
            ));
        }
        let copied = reports.iter().map(|report| (report.key.clone(), report.gamma()));
        let copied: BTreeMap<String, usize> = copied.filter(|(_, gamma)| *gamma > 0).collect();
        if !copied.is_empty() {
            self.told.insert(server, copied);
        }
        for change in changes {
            self.changes += 1;
            if self.changes <= CHANGES_TOLD {
                ledger.say(change);
            }
        }
    }

    fn threshold_in_words(&self, state: &State) -> String {
        let alive = state.alive().count();
        match self.threshold {
            Some(threshold) if threshold.is_finite() => {
                format!("T is {threshold:.0}/s, {alive} servers")
            }
            Some(_) => format!("T is each server's own, {alive} servers"),
            None => format!("T is that of another coordinator, {alive} servers"),
        }
    }

    /// A process has ended, and its copies with it.
    pub fn copies_are_gone(&mut self, server: ServerId) {
        self.told.remove(&server);
    }

    /// At the end of an epoch: says how many changes were left out.
    pub fn rates(&mut self, ledger: &mut Ledger) -> Option<Rates> {
        let untold = std::mem::take(&mut self.changes).saturating_sub(CHANGES_TOLD);
        if untold > 0 {
            ledger.say(format!("{untold} more hot keys have changed"));
        }
        // A registration alone says nothing of keys.
        let has_workers = |heard: &Heard| !heard.last.workers.is_empty();
        let has_reported = |id| ledger.is_heard(id) && ledger.heard(id).is_some_and(has_workers);
        let mut alive = ledger.state().alive();
        let knows_all = !ledger.awaits() || alive.all(|(id, _)| has_reported(id));
        if !self.is_on(ledger.state()) || !knows_all {
            return None;
        }
        let HotStatus { servers, requests, .. } = self.status(ledger);
        // Those that are hot by writes, too: by T they are known to be.
        let mut hottest: Vec<f64> = reports(ledger).map(|(_, report)| report.rate()).collect();
        hottest.sort_by(|a, b| b.total_cmp(a));
        Some(Rates { servers, requests, hottest, target: self.imbalance_target })
    }

    /// What was computed of [`Rates`].
    pub fn set_threshold(&mut self, threshold: f64) {
        self.calm_epochs = if threshold == f64::INFINITY { self.calm_epochs + 1 } else { 0 };
        let is_felt = match self.threshold {
            Some(known) if known.is_infinite() => threshold.is_finite(),
            Some(_) if threshold.is_infinite() => self.calm_epochs >= PATIENCE,
            Some(known) => (threshold - known).abs() > THRESHOLD_FELT * known,
            None => true,
        };
        if is_felt && threshold > 0.0 {
            self.threshold = Some(threshold);
        }
    }

    pub fn status(&self, ledger: &Ledger) -> HotStatus {
        let heard = ledger.recent();
        let (servers, requests) = heard.fold((0, 0.0), |(servers, requests), (_, heard)| {
            (servers + 1, requests + sane(heard.last.requests))
        });
        let copied = reports(ledger).map(|(_, report)| report.gamma());
        let copied = copied.filter(|gamma| *gamma > 0);
        let (copied, copies) = copied.fold((0, 0), |(keys, all), gamma| (keys + 1, all + gamma));
        HotStatus { told: self.told(ledger.state()), servers, requests, copied, copies }
    }

    pub fn keys(&self, ledger: &Ledger) -> HotKeys {
        let mut keys: Vec<(ServerId, &HotReport)> = reports(ledger).collect();
        keys.sort_by(|a, b| b.1.rate().total_cmp(&a.1.rate()).then_with(|| a.1.key.cmp(&b.1.key)));
        keys.truncate(KEYS_TOLD);
        let key = |(server, report): (ServerId, &HotReport)| api::HotKey {
            server: server.0,
            report: report.clone(),
        };
        HotKeys { status: self.status(ledger), keys: keys.into_iter().map(key).collect() }
    }
}

/// On what a key's home has decided.
fn in_words(report: &HotReport, threshold: &str) -> String {
    let (reads, writes) = (report.reads, report.writes);
    let inputs = format!("{reads:.0} reads/s, {writes:.0} writes/s, {threshold}");
    match report.gamma() {
        0 => inputs,
        1 => format!("{inputs}; a copy on server {}", report.copies[0]),
        gamma => {
            let servers: Vec<String> = report.copies.iter().map(u16::to_string).collect();
            format!("{inputs}; {gamma} copies on servers {}", servers.join(", "))
        }
    }
}

/// What servers that were heard of lately have said.
fn reports(ledger: &Ledger) -> impl Iterator<Item = (ServerId, &HotReport)> {
    let recent = ledger.recent();
    recent.flat_map(|(id, heard)| heard.last.hot.iter().map(move |report| (id, report)))
}

/// After so many epochs it has shown what copies take.
const COPIES_SHOW: u32 = 3;

/// What a plan has to know of a hot key.
pub(crate) struct HotHash {
    pub hash: u64,
    /// It has copies; and it has just got them.
    pub is_copied: bool,
    pub is_new: bool,
    /// Requests a second that are its home's.
    pub rate: f64,
}

/// In the order of their hashes.
pub(crate) fn hot_hashes(ledger: &Ledger) -> Vec<HotHash> {
    let shows_ms = u128::from(COPIES_SHOW) * ledger.epoch.as_millis();
    let hot = |report: &HotReport| {
        let key = unescaped(report.key.as_bytes());
        let is_copied = report.gamma() > 0;
        Some(HotHash {
            hash: Key::new(&key)?.hash(),
            is_copied,
            is_new: is_copied && u128::from(report.copied_ms) < shows_ms,
            rate: report.reads / (report.gamma() + 1) as f64 + report.writes,
        })
    };
    let mut hashes: Vec<HotHash> = reports(ledger).filter_map(|(_, report)| hot(report)).collect();
    hashes.sort_by_key(|one| one.hash);
    hashes
}

/// A heartbeat may say anything.
fn sane(rate: f64) -> f64 {
    if rate.is_finite() { rate.clamp(0.0, RATE_MAX) } else { 0.0 }
}

/// JSON knows no infinity: 0 is that the cluster is even without copies.
fn finite(threshold: f64) -> f64 {
    if threshold.is_finite() { threshold } else { 0.0 }
}
