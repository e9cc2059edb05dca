//! Phase 1 of all servers: which keys have copies. The policy is the product's; who counts and makes copies is not here, so an epoch's
//! looks are made at its end, one after the other.

use std::collections::BTreeMap;

use mbal_balance::hot::{CopyBackoff, Policy, STILL_HOT, Seen, Upkeep, Verdict, own_threshold};
use mbal_control::api::{HOT_KEYS_LISTED, HotReport, HotState};
use mbal_model::{Instant, Key, ServerId};
use mbal_random::Random;
use mbal_routing::{copies, place};
use mbal_sketch::Rates;

use super::demand::{Demand, HotKey};
use super::network::Served;
use super::placement::{CopyTerms, Laid, Placement, Ways, Writes};

/// Seconds of a core for a sample: 850 instructions (docs/results/hotkeys.md).
const SAMPLE: f64 = 0.3e-6;

/// Looks in an epoch.
const LOOKS: u32 = 5;
/// The newest look's part in what a tracker knows, and in what is told of it.
const SMOOTHING: f64 = 0.5;
const TOLD_SMOOTHING: f64 = 0.25;
/// Of a worker's requests: who has less is not told of.
const SHARE_LEAST: f64 = 1.0 / 256.0;
const VALUE_BYTES: u32 = 32;

pub struct Copier {
    servers: Vec<ServerId>,
    workers: usize,
    ways: Ways,
    now: Instant,
    /// By key.
    homes: BTreeMap<Vec<u8>, Home>,
    known: BTreeMap<Vec<u8>, Known>,
    /// By server: keys that are not to be copied for a while; and T, as it has heard.
    backoffs: Vec<CopyBackoff>,
    pub thresholds: Vec<f64>,
    /// T as each server itself knows it.
    own_thresholds: Vec<f64>,
    /// By key, the servers that forward so much of it that they want copies.
    wanted: BTreeMap<Vec<u8>, Vec<usize>>,
    /// By server: it looks for hot keys.
    looks: Vec<bool>,
    /// How often a key has got copies, or more of them.
    pub given: u64,
    random: Random,
}

struct Home {
    server: usize,
    upkeep: Upkeep,
    since: Instant,
    /// Nothing was asked for yet since it has copies, or more of them.
    is_new: bool,
}

#[derive(Clone, Copy, Default)]
struct Known {
    last: Rates,
    told: Rates,
}

impl Copier {
    pub fn new(servers: usize, workers: usize, ways: Ways, seed: u64) -> Copier {
        Copier {
            servers: (1..=servers as u16).map(ServerId).collect(),
            workers,
            ways,
            now: Instant::ZERO,
            homes: BTreeMap::new(),
            known: BTreeMap::new(),
            backoffs: (0..servers).map(|_| CopyBackoff::default()).collect(),
            thresholds: vec![f64::INFINITY; servers],
            own_thresholds: vec![f64::INFINITY; servers],
            wanted: BTreeMap::new(),
            looks: vec![false; servers],
            given: 0,
            random: Random::new(seed ^ 0x686f_7400),
        }
    }

    fn policy(&self, server: usize) -> Policy {
        let told = self.thresholds[server];
        let threshold = if told.is_finite() { told } else { self.own_thresholds[server] };
        Policy::new(threshold, self.ways.writes == Writes::Atomic)
    }

    /// Seconds of a core for each key that a worker of this server is asked for, since it looks for hot keys.
    pub fn sampling(&self, server: usize) -> f64 {
        if self.looks[server] { self.ways.terms.sampled * SAMPLE } else { 0.0 }
    }

    /// The looks of an epoch.
    pub fn end_epoch(
        &mut self,
        epoch: u64,
        placement: &mut Placement,
        demand: &Demand,
        laid: &Laid,
        served: &Served,
    ) {
        for server in 0..self.servers.len() {
            let own = server * self.workers..(server + 1) * self.workers;
            let (keys, busy) = own.fold((0.0, 0.0), |(keys, busy), worker| {
                (keys + served.keys[worker], busy + served.busy(worker))
            });
            self.own_thresholds[server] = own_threshold(keys, busy);
        }
        let is_hot = self.hotspots(placement, demand, served);
        self.looks.clone_from(&is_hot);
        self.homes.values_mut().for_each(|home| home.is_new = false);
        self.want(placement, demand, served, &is_hot);
        for look in 0..LOOKS {
            let now = Instant::from_micros(epoch * 1_000_000 + u64::from(look) * 200_000);
            self.now = now;
            self.keep(now, placement, demand, laid, served);
            self.copy(now, placement, demand, laid, served, &is_hot);
        }
        self.known.retain(|_, known| known.last.all() > 1.0);
    }

    /// By server: it looks for hot keys.
    fn hotspots(&self, placement: &Placement, demand: &Demand, served: &Served) -> Vec<bool> {
        let CopyTerms { hotspot, is_known, .. } = self.ways.terms;
        let servers = self.servers.len();
        let mut shares = vec![0.0; servers];
        for (share, owner) in demand.shares.iter().zip(&placement.owners) {
            shares[owner / self.workers] += share;
        }
        let is_busy = |server: usize| {
            let mut own = server * self.workers..(server + 1) * self.workers;
            own.any(|worker| served.busy(worker) >= hotspot)
        };
        let has_more = |server: usize| shares[server] * servers as f64 > 1.0;
        (0..servers).map(|one| if is_known { has_more(one) } else { is_busy(one) }).collect()
    }

    /// Which servers want copies of others' keys, since they forward so much of them.
    fn want(&mut self, placement: &Placement, demand: &Demand, served: &Served, is_hot: &[bool]) {
        self.wanted.clear();
        let keys = served.throughput / self.requests(served).max(1e-9);
        for key in &demand.hottest {
            let home = placement.owners[key.cachelet] / self.workers;
            let shadows = placement.copied.get(&key.name).map_or(&[][..], Vec::as_slice);
            for (server, (rate, _)) in served.ordinary.iter().enumerate() {
                let forwards = rate * keys * key.share;
                let is_copied = shadows.iter().any(|shadow| shadow / self.workers == server);
                let own = self.own_thresholds[server];
                let at_least = if is_copied { own * STILL_HOT } else { own };
                if server != home && forwards >= at_least && (is_hot[server] || is_copied) {
                    self.wanted.entry(key.name.clone()).or_default().push(server);
                }
            }
        }
    }

    fn requests(&self, served: &Served) -> f64 {
        served.smart.0 + served.ordinary.iter().map(|one| one.0).sum::<f64>()
    }

    /// What is to become of those that there are.
    fn keep(
        &mut self,
        now: Instant,
        placement: &mut Placement,
        demand: &Demand,
        laid: &Laid,
        served: &Served,
    ) {
        let seconds = 1.0 / f64::from(LOOKS);
        let mut homes = std::mem::take(&mut self.homes);
        homes.retain(|name, home| {
            let key = demand.hottest.iter().find(|key| key.name == *name);
            let shadows = placement.copied.get(name).map_or(0, Vec::len);
            // What has moved away takes its copies' lives with it.
            let is_here =
                key.is_none_or(|key| placement.owners[key.cachelet] / self.workers == home.server);
            if home.is_new {
                return true;
            }
            let server = home.server;
            let policy = self.policy(server);
            let asked = key.map_or(0.0, |key| key.share * served.throughput);
            let sets = key.map_or(0.0, |key| key.sets);
            let elsewhere = laid.answered.get(name).copied().unwrap_or(0.0) * served.throughput;
            let reads = (asked * (1.0 - sets) - elsewhere).max(0.0);
            let sample = self.sample();
            let seen = Seen {
                seconds,
                reads: self.sampled(reads, sample),
                answered: elsewhere * seconds,
                written: asked * sets * seconds,
                waited: laid.waits.get(name).copied().unwrap_or(0.0) * seconds,
                value_bytes: VALUE_BYTES,
                copies: shadows,
                is_wanted: self.wanted.contains_key(name),
            };
            let verdict = home.upkeep.look(&policy, &seen);
            let wanted = match verdict {
                Verdict::Copies(wanted) if is_here => wanted.min(self.ways.terms.gamma + 1),
                Verdict::Cools { back_off: true } => {
                    let hash = Key::new(name).expect("it was a key").hash();
                    self.backoffs[server].add(hash, home.upkeep.writes_bearable(), now);
                    0
                }
                _ => 0,
            };
            if wanted == 0 {
                placement.copied.remove(name);
            } else {
                let copied = placement.copied.entry(name.clone()).or_default();
                for place in self.places(name, server, wanted - 1) {
                    if !copied.contains(&place) {
                        copied.push(place);
                        home.is_new = true;
                    }
                }
                self.given += u64::from(home.is_new);
            }
            wanted > 0
        });
        self.homes = homes;
    }

    /// Copies of what is hot and has none.
    fn copy(
        &mut self,
        now: Instant,
        placement: &mut Placement,
        demand: &Demand,
        laid: &Laid,
        served: &Served,
        is_hot: &[bool],
    ) {
        for key in &demand.hottest {
            let home = placement.owners[key.cachelet];
            let server = home / self.workers;
            let known = self.look(key, laid, served);
            let share = (known.last.all()) / served.keys[home].max(1.0);
            // Samples by chance, and what helps nobody.
            if known.last.all() < known.last.sample / SMOOTHING || share < SHARE_LEAST {
                continue;
            }
            let hash = Key::new(&key.name).expect("a short name").hash();
            let moves = placement.moves.values().any(|one| one.cachelet == key.cachelet);
            if self.homes.contains_key(&key.name)
                || !(is_hot[server] || self.wanted.contains_key(&key.name))
                || moves
                || self.backoffs[server].has(hash, known.last.writes.max(known.told.writes), now)
            {
                continue;
            }
            let policy = self.policy(server);
            let wanted = match is_hot[server] {
                true => policy.copies_for_new(&known.last, Some(&known.told), VALUE_BYTES),
                false => 1,
            };
            let wanted = wanted.min(self.ways.terms.gamma + 1);
            let is_wanted = self.wanted.contains_key(&key.name) && policy.allows(&known.last);
            let places = match wanted > 1 || is_wanted {
                true => self.places(&key.name, server, wanted - 1),
                false => vec![],
            };
            if !places.is_empty() {
                let upkeep = Upkeep::new(known.last);
                self.homes
                    .insert(key.name.clone(), Home { server, upkeep, since: now, is_new: true });
                placement.copied.insert(key.name.clone(), places);
                self.given += 1;
            }
        }
    }

    /// What a tracker knows of a key after another look.
    fn look(&mut self, key: &HotKey, laid: &Laid, served: &Served) -> Known {
        let elsewhere = laid.answered.get(&key.name).copied().unwrap_or(0.0);
        let asked = key.share * served.throughput;
        let sample = self.sample();
        let reads = self.sampled(asked * (1.0 - key.sets) - elsewhere * served.throughput, sample);
        let writes = self.sampled(asked * key.sets, sample);
        let known = self.known.entry(key.name.clone()).or_default();
        if self.ways.terms.is_known {
            let exact = Rates { reads, writes, sample: 0.0 };
            *known = Known { last: exact, told: exact };
            return *known;
        }
        let smooth = |old: f64, new: f64, part: f64| old + part * (new - old);
        let last = Rates {
            reads: smooth(known.last.reads, reads, SMOOTHING),
            writes: smooth(known.last.writes, writes, SMOOTHING),
            sample: SMOOTHING * sample,
        };
        let told = Rates {
            reads: smooth(known.told.reads, last.reads, TOLD_SMOOTHING),
            writes: smooth(known.told.writes, last.writes, TOLD_SMOOTHING),
            sample: TOLD_SMOOTHING * last.sample,
        };
        *known = Known { last, told };
        *known
    }

    /// Requests a second that one sample of a look stands for.
    fn sample(&self) -> f64 {
        f64::from(LOOKS) / self.ways.terms.sampled
    }

    /// A rate as samples show it.
    fn sampled(&mut self, rate: f64, sample: f64) -> f64 {
        if self.ways.terms.is_known {
            return rate.max(0.0);
        }
        let count = rate.max(0.0) / sample;
        let normal = (0..12).map(|_| self.random.unit()).sum::<f64>() - 6.0;
        (count + normal * count.sqrt()).round().max(0.0) * sample
    }

    fn places(&self, name: &[u8], home: usize, count: usize) -> Vec<usize> {
        let key = Key::new(name).expect("a short name");
        let mut all = copies(&key, self.servers[home], &self.servers, count);
        let servers = self.wanted.get(name).into_iter().flatten();
        for server in servers.map(|server| self.servers[*server]) {
            let others = copies(&key, self.servers[home], &self.servers, self.servers.len());
            let place = others.into_iter().find(|(_, at)| *at == server);
            all.extend(place.filter(|place| !all.contains(place)));
        }
        let worker = |(suffix, server): &(u8, ServerId)| {
            let place = place(&key, *suffix, [*server]).expect("there is one server");
            let worker = usize::from(place.worker(self.workers).0);
            (usize::from(server.0) - 1) * self.workers + worker
        };
        all.iter().map(worker).collect()
    }

    /// For a heartbeat.
    pub fn reports(&self, server: usize, placement: &Placement, demand: &Demand) -> Vec<HotReport> {
        let mut reports = Vec::new();
        for key in &demand.hottest {
            if placement.owners[key.cachelet] / self.workers != server {
                continue;
            }
            let home = self.homes.get(&key.name);
            let known = self.known.get(&key.name).map(|known| known.told);
            let Some(rates) = home.map(|home| home.upkeep.rates).or(known) else { continue };
            let shadows = placement.copied.get(&key.name);
            let of = |worker: &usize| (worker / self.workers) as u16 + 1;
            reports.push(HotReport {
                key: String::from_utf8(key.name.clone()).expect("a name of letters"),
                reads: rates.reads,
                // For people to see.
                copy_reads: 0.0,
                writes: rates.writes,
                value_bytes: VALUE_BYTES,
                state: home.map(|_| HotState::Hot),
                copies: shadows.into_iter().flatten().map(of).collect(),
                copied_ms: home.map_or(0, |home| (self.now - home.since).as_millis() as u64),
            });
        }
        reports.sort_by(|a, b| b.rate().total_cmp(&a.rate()));
        reports.truncate(HOT_KEYS_LISTED);
        reports
    }
}
