//! Phase 1 in the model: trackers at home workers, copies found by renaming.

use std::collections::BTreeMap;

use mbal_balance::{Demand, Prediction, choose_threshold, copies};
use mbal_sketch::{Access, Change, HotKeys, HotKeysConfig, Random, mix};

use super::cluster::{Arrival, SERVICES_PER_EPOCH, Size};

/// A key with this share of a worker's time is hot; it cools at half of it.
const HOT_SHARE: f32 = 0.05;

/// Copies are made until the predicted imbalance is under this (docs/design/balancing.md).
const TARGET: f64 = 1.25;

pub struct Replication {
    size: Size,
    trackers: Vec<HotKeys>,
    /// By key: copies beside the original, and who holds them.
    replicas: BTreeMap<u64, Vec<u32>>,
    filter: Vec<u64>,
    /// By worker: one of so many requests is looked at, and counts for as many; 0 is none.
    watching: Vec<u64>,
    pub replicated: u64,
    changes: Vec<Change>,
}

impl Replication {
    pub fn new(size: Size) -> Replication {
        let hot_score = HOT_SHARE * SERVICES_PER_EPOCH as f32;
        let config = HotKeysConfig {
            capacity: 64,
            hot_score,
            cool_score: hot_score / 2.0,
            smoothing: 0.3,
            ..HotKeysConfig::default()
        };
        Replication {
            size,
            trackers: vec![HotKeys::new(config); size.all_workers()],
            replicas: BTreeMap::new(),
            filter: vec![0; 1 << 10],
            watching: vec![0; size.all_workers()],
            replicated: 0,
            changes: Vec::new(),
        }
    }

    /// Sampling runs on workers whose own load says hotspot, and where copies exist. A simulated request stands for some
    /// hundred real ones: at `share` 1 a worker looks at each.
    pub fn watch(&mut self, worker: usize, hot: bool, share: f64) {
        let watches = hot || self.trackers[worker].hot().next().is_some();
        self.watching[worker] = if watches { (1.0 / share).round() as u64 } else { 0 };
    }

    pub fn hot_keys(&self, worker: usize) -> u32 {
        self.trackers[worker].hot().count() as u32
    }

    pub fn write_hot(&self, worker: usize) -> bool {
        self.trackers[worker].write_hot().next().is_some()
    }

    #[inline]
    pub fn route(&mut self, arrival: &Arrival, bits: u64) -> Option<u32> {
        let one_of = self.watching[arrival.home as usize];
        if one_of > 0 && mix(!bits) % one_of == 0 {
            for _ in 0..one_of {
                self.trackers[arrival.home as usize].observe(arrival.hash, arrival.access);
            }
        }
        if arrival.access == Access::Write || !self.filtered(arrival.hash) {
            return None;
        }
        let shadows = self.replicas.get(&arrival.hash)?;
        let pick = (u128::from(mix(bits)) * (shadows.len() as u128 + 1)) >> 64;
        shadows.get(pick as usize).copied()
    }

    /// Every write of a replicated key reaches each copy.
    pub fn written(&self, arrival: &Arrival, reach: &mut dyn FnMut(u32)) {
        if self.filtered(arrival.hash) {
            if let Some(shadows) = self.replicas.get(&arrival.hash) {
                shadows.iter().for_each(|shadow| reach(*shadow));
            }
        }
    }

    fn filtered(&self, hash: u64) -> bool {
        self.filter[(hash >> 6 & 0x3ff) as usize] >> (hash & 63) & 1 == 1
    }

    /// Ends an epoch: keys of servers in phase 1 get copies by the cluster's T, cool keys lose theirs. Workers
    /// that are `hot` take no new ones.
    pub fn plan(&mut self, in_phase: &[bool], requests: f64, hot: &[bool]) {
        for tracker in &mut self.trackers {
            self.changes.clear();
            tracker.tick(&mut self.changes);
            for change in &self.changes {
                if let Change::Cool(slot) = change {
                    self.replicas.remove(&tracker.hash(*slot));
                    tracker.release(*slot);
                }
            }
        }
        let keys: Vec<(usize, u64, f64)> = self
            .trackers
            .iter()
            .enumerate()
            .flat_map(|(worker, tracker)| {
                tracker
                    .hot()
                    .map(move |slot| (worker, tracker.hash(slot), f64::from(tracker.rate(slot))))
            })
            .collect();
        let demand = Demand {
            tracked: keys.iter().map(|key| key.2).collect(),
            requests,
            keys: requests,
            bins: self.size.all_workers(),
        };
        if keys.is_empty() {
            self.replicas.clear();
        } else {
            let threshold = choose_threshold(&demand, TARGET, Prediction::WeighedBalls);
            for (worker, hash, rate) in keys {
                if in_phase[worker / self.size.workers] || self.replicas.contains_key(&hash) {
                    let copies = copies(rate, threshold.requests_per_copy);
                    self.replicate(worker, hash, copies, hot);
                }
            }
        }
        self.filter.fill(0);
        for hash in self.replicas.keys() {
            self.filter[(hash >> 6 & 0x3ff) as usize] |= 1 << (hash & 63);
        }
    }

    /// A changed number of copies changes the last suffixes only; small changes are not worth a message.
    fn replicate(&mut self, home: usize, hash: u64, copies: u32, hot: &[bool]) {
        let wanted = (copies - 1).min(self.size.servers as u32 - 1) as usize;
        let held = self.replicas.entry(hash).or_default();
        if wanted > 0 && held.len().abs_diff(wanted) * 4 <= held.len() {
            return;
        }
        if held.is_empty() && wanted > 0 {
            self.replicated += 1;
        }
        // Rendezvous: servers by their score for this key, without the home's own.
        let score = |server: usize| mix(hash ^ mix(server as u64));
        let home_server = home / self.size.workers;
        let mut servers: Vec<usize> =
            (0..self.size.servers).filter(|server| *server != home_server).collect();
        servers.sort_by_key(|server| score(*server));
        let worker_of = |server: usize| {
            let worker = Random::new(score(server)).word() as usize % self.size.workers;
            server * self.size.workers + worker
        };
        let willing = servers.into_iter().map(worker_of).filter(|worker| !hot[*worker]);
        *held = willing.take(wanted).map(|worker| worker as u32).collect();
    }
}
