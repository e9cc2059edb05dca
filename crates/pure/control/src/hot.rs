//! Hot keys, as the coordinator sees them: what servers report, by what T is computed, what is told of it.
//!
//! ```text
//!   heartbeats: the hottest keys, all requests ──► Ask::Rates ──► Answer::Rates ──► balls and bins, wherever the process runs them
//!   answers: mode, lease, T ◄── Ask::Threshold ◄───────────────────────── T ◄──────────┘
//! ```
//! Decides nothing of one key: its home does, by T.

use std::collections::BTreeMap;

use mbal_model::{Key, ServerId};
use mbal_wire::unescaped;

use crate::api::{self, HOT_KEYS_LISTED, HotKeys, HotMode, HotReport, HotStatus, HotTold};
use crate::coordinator::{Answer, Coordinator, Micros};

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
    /// Reads a second of the keys that copies would help, the hottest first.
    pub hottest: Vec<f64>,
    /// The imbalance that is to be kept.
    pub target: f64,
}

/// What is known of hot keys since this process began.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Hot {
    /// None before it was computed once.
    threshold: Option<f64>,
    /// Epochs in a row, up to now, in which nothing was to be copied.
    calm_epochs: u32,
    /// Copies that were told of, by their home and key.
    told: BTreeMap<ServerId, BTreeMap<String, usize>>,
    /// Changes in this epoch.
    changes: usize,
}

impl Coordinator {
    /// What servers are to obey.
    pub(crate) fn hot_told(&self) -> HotTold {
        HotTold {
            mode: self.settings.hot_keys,
            lease_ms: self.settings.copy_lease.as_millis() as u64,
            threshold: self.hot.threshold.map(finite),
        }
    }

    /// The hottest of what a server reports, as far as it can be meant so; tells what is new.
    pub(crate) fn hot_reported(
        &mut self,
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
        self.tell_changes_of_copies(server, &reports, is_full);
        reports
    }

    /// `is_full`: a key that is not listed may have copies all the same.
    fn tell_changes_of_copies(&mut self, server: ServerId, reports: &[HotReport], is_full: bool) {
        let before = self.hot.told.remove(&server).unwrap_or_default();
        let mut changes = Vec::new();
        for report in reports {
            let (was, is) = (before.get(&report.key).copied().unwrap_or(0), report.gamma());
            let what = match (was, is) {
                _ if was == is => continue,
                (0, _) => format!("is hot: {}", self.in_words(report)),
                (_, 0) => format!("cools: {}", self.in_words(report)),
                _ => format!("goes from {was} copies to {is}: {}", self.in_words(report)),
            };
            changes.push(format!("key {} of server {} {what}", report.key, server.0));
        }
        let is_listed = |key: &String| reports.iter().any(|report| report.key == *key);
        for key in before.keys().filter(|key| !is_full && !is_listed(key)) {
            let at = self.threshold_in_words();
            changes.push(format!(
                "key {key} of server {} cools: it is hardly asked for, {at}",
                server.0
            ));
        }
        let copied = reports.iter().map(|report| (report.key.clone(), report.gamma()));
        let copied: BTreeMap<String, usize> = copied.filter(|(_, gamma)| *gamma > 0).collect();
        if !copied.is_empty() {
            self.hot.told.insert(server, copied);
        }
        for change in changes {
            self.hot.changes += 1;
            if self.hot.changes <= CHANGES_TOLD {
                self.said.push(change);
            }
        }
    }

    /// On what a key's home has decided.
    fn in_words(&self, report: &HotReport) -> String {
        let (reads, writes) = (report.reads, report.writes);
        let inputs =
            format!("{reads:.0} reads/s, {writes:.0} writes/s, {}", self.threshold_in_words());
        match report.gamma() {
            0 => inputs,
            1 => format!("{inputs}; a copy on server {}", report.copies[0]),
            gamma => {
                let servers: Vec<String> = report.copies.iter().map(u16::to_string).collect();
                format!("{inputs}; {gamma} copies on servers {}", servers.join(", "))
            }
        }
    }

    fn threshold_in_words(&self) -> String {
        let alive = self.state.members.values().filter(|member| member.is_alive()).count();
        match self.hot.threshold {
            Some(threshold) if threshold.is_finite() => {
                format!("T is {threshold:.0}/s, {alive} servers")
            }
            Some(_) => format!("nothing is to be copied, {alive} servers"),
            None => format!("T is that of another coordinator, {alive} servers"),
        }
    }

    /// A process has ended, and its copies with it.
    pub(crate) fn copies_are_gone(&mut self, server: ServerId) {
        self.hot.told.remove(&server);
    }

    /// At the end of an epoch: says how many changes were left out.
    pub(crate) fn rates(&mut self, now: Micros) -> Option<Rates> {
        let untold = std::mem::take(&mut self.hot.changes).saturating_sub(CHANGES_TOLD);
        if untold > 0 {
            self.said.push(format!("{untold} more hot keys have changed"));
        }
        let mut alive = self.state.members.iter().filter(|(_, member)| member.is_alive());
        let knows_all = !self.awaits(now) || alive.all(|(id, _)| self.has_reported(now, *id));
        if self.settings.hot_keys == HotMode::Off || !knows_all {
            return None;
        }
        let HotStatus { servers, requests, .. } = self.hot_status(now);
        let keys = self.hot_reports(now).filter(|(_, report)| !report.is_write_hot());
        let mut hottest: Vec<f64> = keys.map(|(_, report)| report.reads).collect();
        hottest.sort_by(|a, b| b.total_cmp(a));
        Some(Rates { servers, requests, hottest, target: self.settings.imbalance_target })
    }

    /// A registration alone says nothing of keys.
    fn has_reported(&self, now: Micros, server: ServerId) -> bool {
        let has_workers = |heard: &crate::members::Heard| !heard.workers.is_empty();
        self.is_heard(now, server) && self.heard.get(&server).is_some_and(has_workers)
    }

    /// What was computed of [`Rates`].
    pub(crate) fn set_threshold(&mut self, threshold: f64) -> Answer {
        let hot = &mut self.hot;
        hot.calm_epochs = if threshold == f64::INFINITY { hot.calm_epochs + 1 } else { 0 };
        let is_felt = match hot.threshold {
            Some(known) if known.is_infinite() => threshold.is_finite(),
            Some(_) if threshold.is_infinite() => hot.calm_epochs >= PATIENCE,
            Some(known) => (threshold - known).abs() > THRESHOLD_FELT * known,
            None => true,
        };
        if is_felt && threshold > 0.0 {
            hot.threshold = Some(threshold);
        }
        Answer::Done
    }

    /// What servers that were heard of lately have said.
    fn hot_reports(&self, now: Micros) -> impl Iterator<Item = (ServerId, &HotReport)> {
        let heard = self.heard.iter().filter(move |(id, _)| self.is_heard(now, **id));
        heard.flat_map(|(id, heard)| heard.hot.iter().map(|report| (*id, report)))
    }

    /// Hashes of the keys that have copies, in order.
    pub(crate) fn copied_hashes(&self, now: Micros) -> Vec<u64> {
        let copied = self.hot_reports(now).filter(|(_, report)| report.gamma() > 0);
        let hash = |report: &HotReport| {
            let key = unescaped(report.key.as_bytes());
            Key::new(&key).map(|key| key.hash())
        };
        let mut hashes: Vec<u64> = copied.filter_map(|(_, report)| hash(report)).collect();
        hashes.sort_unstable();
        hashes
    }

    pub(crate) fn hot_status(&self, now: Micros) -> HotStatus {
        let heard = self.heard.iter().filter(|(id, _)| self.is_heard(now, **id));
        let (servers, requests) = heard.fold((0, 0.0), |(servers, requests), (_, heard)| {
            (servers + 1, requests + sane(heard.requests))
        });
        let copied = self.hot_reports(now).map(|(_, report)| report.gamma());
        let copied = copied.filter(|gamma| *gamma > 0);
        let (copied, copies) = copied.fold((0, 0), |(keys, all), gamma| (keys + 1, all + gamma));
        HotStatus { told: self.hot_told(), servers, requests, copied, copies }
    }

    pub(crate) fn hot_keys(&self, now: Micros) -> HotKeys {
        let mut keys: Vec<(ServerId, &HotReport)> = self.hot_reports(now).collect();
        keys.sort_by(|a, b| b.1.rate().total_cmp(&a.1.rate()).then_with(|| a.1.key.cmp(&b.1.key)));
        keys.truncate(KEYS_TOLD);
        let key = |(server, report): (ServerId, &HotReport)| api::HotKey {
            server: server.0,
            report: report.clone(),
        };
        HotKeys { status: self.hot_status(now), keys: keys.into_iter().map(key).collect() }
    }
}

/// A heartbeat may say anything.
fn sane(rate: f64) -> f64 {
    if rate.is_finite() { rate.clamp(0.0, RATE_MAX) } else { 0.0 }
}

/// JSON knows no infinity: 0 is that nothing is to be copied.
fn finite(threshold: f64) -> f64 {
    if threshold.is_finite() { threshold } else { 0.0 }
}
