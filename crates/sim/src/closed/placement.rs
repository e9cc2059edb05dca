//! Where everything is: cachelets, connections, copies, and what moves are under way.

use std::collections::BTreeMap;

use super::demand::{Demand, HotKey};
use super::joining::BatchShares;
use super::network::{Network, Served};
use super::situation::Situation;

/// A second of a core sends so many bytes of a cachelet away.
const MOVED_BYTES: f64 = 1e8;
/// Part of its worker's time that giving takes while it lasts, and that taking takes.
const GIVING: f64 = 0.3;
const TAKING: f64 = 0.15;

/// How copies are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// Copies are read while a newer value is on its way.
    Open,
    /// Copies let go before each write.
    Atomic,
}

/// What phase 1 goes by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CopyTerms {
    /// Part of its requests that a worker samples while its server looks for hot keys.
    pub sampled: f64,
    /// From this load on a server looks for hot keys.
    pub hotspot: f64,
    /// Copies of a key beside the original, at most: SPORE's γ.
    pub gamma: usize,
    /// Seconds of a client's lease; means have none that ends.
    pub lease: f64,
    /// Which keys and servers are hot is known, not measured.
    pub is_known: bool,
}

impl CopyTerms {
    pub const AS_BUILT: CopyTerms =
        CopyTerms { sampled: 0.02, hotspot: 0.5, gamma: 255, lease: 1.0, is_known: false };
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ways {
    pub writes: Writes,
    pub terms: CopyTerms,
    /// Servers read copies for ordinary clients' batches as for their single keys. Else they ask owners, and if writes are atomic their own copies
    /// first.
    pub in_batches: bool,
}

impl Ways {
    pub const ATOMIC: Ways =
        Ways { writes: Writes::Atomic, terms: CopyTerms::AS_BUILT, in_batches: false };
    pub const ASYNC: Ways = Ways { writes: Writes::Open, ..Ways::ATOMIC };
    /// All that copies could do.
    pub const OPEN: Ways = Ways { in_batches: true, ..Ways::ASYNC };

    /// Whether servers that have no copy read one for requests of so many keys.
    pub fn forwards_to_copies(self, batch: u32) -> bool {
        batch == 1 || self.in_batches
    }

    /// Whether a server answers those from a copy of its own.
    pub fn answers_at_once(self, batch: u32) -> bool {
        self.forwards_to_copies(batch) || self.writes == Writes::Atomic
    }
}

#[derive(Clone, Debug)]
pub struct Placement {
    /// By cachelet, the worker that has it, of all servers' workers.
    pub owners: Vec<usize>,
    /// Connections of ordinary clients, by worker.
    pub ordinary: Vec<f64>,
    /// By the key's name: workers that have a copy.
    pub copied: BTreeMap<Vec<u8>, Vec<usize>>,
    pub moves: BTreeMap<u32, Moving>,
}

/// A cachelet on its way; it is served by its source until it has arrived.
#[derive(Clone, Copy, Debug)]
pub struct Moving {
    pub cachelet: usize,
    pub from: usize,
    pub to: usize,
    pub left_bytes: f64,
}

/// A network, and what of each worker's part comes from where.
pub struct Laid {
    pub network: Network,
    /// By cachelet: its part of all keys that its owner is asked for.
    pub asked: Vec<f64>,
    /// By worker: what it is asked for because it has copies.
    pub copies: Vec<f64>,
    /// By key: the part of all keys that its copies answer.
    pub answered: BTreeMap<Vec<u8>, f64>,
    /// By key: the part of the time in which writes wait for copies.
    pub waits: BTreeMap<Vec<u8>, f64>,
}

impl Placement {
    /// What moves take of each worker in a second; some have arrived after it.
    pub fn carry(&mut self, speeds: &[f64]) -> Vec<f64> {
        let mut left = vec![1.0f64; speeds.len()];
        let mut taken = vec![0.0; speeds.len()];
        // One after the other, in the order in which they were begun.
        for one in self.moves.values_mut() {
            let second = MOVED_BYTES * GIVING * speeds[one.from];
            let part = left[one.from].min(one.left_bytes / second);
            left[one.from] -= part;
            one.left_bytes = (one.left_bytes - part * second).max(0.0);
            taken[one.from] += part * GIVING;
            taken[one.to] += part * TAKING;
        }
        taken.into_iter().map(|taken| f64::min(taken, 0.5)).collect()
    }

    /// `taken`: parts of workers' time that are not theirs; `last`: how it was a moment ago, by which copies are open or closed.
    pub fn lay(
        &self,
        situation: &Situation,
        demand: &Demand,
        taken: &[f64],
        last: &Served,
        ways: Ways,
    ) -> Laid {
        let count = situation.all_workers();
        let speeds = situation.speeds.iter().zip(taken);
        let mut network = Network {
            workers: situation.workers,
            capacity: speeds.map(|(speed, taken)| speed * (1.0 - taken)).collect(),
            costs: situation.costs,
            batch: f64::from(situation.batch),
            pause: situation.clients.think + situation.round_trip,
            pause_trip: situation.round_trip,
            link_trip: situation.round_trip,
            smart_clients: situation.clients.smart,
            ordinary_clients: self.ordinary.clone(),
            smart: BatchShares::default(),
            forwarded: vec![0.0; count],
            spared: Vec::new(),
            upkeep: vec![0.0; count],
        };
        // Of all requests, what smart clients ask for, and ordinary ones by server.
        let all = last.smart.0 + last.ordinary.iter().map(|one| one.0).sum::<f64>();
        let smart_part = if all > 0.0 { last.smart.0 / all } else { 1.0 };
        let ordinary_parts: Vec<f64> = last.ordinary.iter().map(|one| one.0 / all).collect();
        let mut asked = demand.shares.clone();
        let mut copies = vec![0.0; count];
        let (mut answered, mut waits) = (BTreeMap::new(), BTreeMap::new());
        for (share, owner) in demand.shares.iter().zip(&self.owners) {
            network.forwarded[*owner] += share;
        }
        let mut smart = network.forwarded.clone();
        let mut copied_reads = Vec::new();
        for key in &demand.hottest {
            let Some(shadows) = self.copied.get(&key.name) else { continue };
            let home = self.owners[key.cachelet];
            let copied = Copying::new(situation, (key.share, key.sets), home, shadows, last, ways);
            waits.insert(key.name.clone(), copied.waits);
            let reads = key.share * (1.0 - key.sets) * copied.answer;
            let each = reads / (shadows.len() + 1) as f64;
            smart[home] = (smart[home] - reads).max(0.0);
            let places: Vec<usize> = [home].into_iter().chain(shadows.iter().copied()).collect();
            copied_reads.push((key, places, reads));
            if ways.forwards_to_copies(situation.batch) {
                let ordinary_part = 1.0 - smart_part;
                network.forwarded[home] -= each * shadows.len() as f64;
                shadows.iter().for_each(|shadow| network.forwarded[*shadow] += each);
                asked[key.cachelet] -= ordinary_part * each * shadows.len() as f64;
                *answered.entry(key.name.clone()).or_default() +=
                    ordinary_part * each * shadows.len() as f64;
                shadows.iter().for_each(|shadow| copies[*shadow] += ordinary_part * each);
                spare(&mut network, home, shadows, each);
            } else if ways.answers_at_once(situation.batch) {
                let servers = shadows.iter().map(|shadow| shadow / situation.workers);
                for server in servers {
                    network.spared.push((server, home, reads));
                    let part = ordinary_parts.get(server).copied().unwrap_or(0.0);
                    asked[key.cachelet] -= part * reads;
                    *answered.entry(key.name.clone()).or_default() += part * reads;
                }
            }
            for shadow in shadows {
                network.upkeep[*shadow] += copied.told;
                network.upkeep[home] += copied.told;
            }
            network.pause += copied.pause;
            network.pause_trip += copied.pause;
        }
        network.smart = BatchShares::by_chance(smart, network.batch);
        for (key, places, reads) in copied_reads {
            let parts = network.smart.join(&places, reads, network.batch);
            let elsewhere = smart_part * reads * (1.0 - parts[0]);
            asked[key.cachelet] -= elsewhere;
            *answered.entry(key.name.clone()).or_default() += elsewhere;
            for (shadow, part) in places.iter().zip(&parts).skip(1) {
                copies[*shadow] += smart_part * reads * part;
            }
        }
        Laid { network, asked, copies, answered, waits }
    }
}

impl Laid {
    /// Puts what was counted of a key's copies in the place of what means say.
    pub fn count(&mut self, key: &HotKey, shadows: &[usize], answered: f64, waits: f64) {
        let more = answered - self.answered.insert(key.name.clone(), answered).unwrap_or(0.0);
        self.asked[key.cachelet] -= more;
        shadows.iter().for_each(|shadow| self.copies[*shadow] += more / shadows.len() as f64);
        self.waits.insert(key.name.clone(), waits);
    }
}

/// A server with a copy asks nobody for it; what it would have asked others for are `each` of every other place.
fn spare(network: &mut Network, home: usize, shadows: &[usize], each: f64) {
    let server = |worker: usize| worker / network.workers;
    let places: Vec<usize> = shadows.iter().copied().chain([home]).collect();
    let mut spared = Vec::new();
    for asker in shadows.iter().map(|shadow| server(*shadow)) {
        let others = places.iter().filter(|place| server(**place) != asker);
        spared.extend(others.map(|place| (asker, *place, each)));
    }
    network.spared.extend(spared);
}

/// What copies of one key do.
pub struct Copying {
    /// Part of its reads that are asked of home and copies alike.
    pub answer: f64,
    /// Seconds of a core for each key that anyone asks for, at home and at the shadow, to tell one shadow of writes.
    pub told: f64,
    /// Seconds that a request waits longer, on average, since writes do.
    pub pause: f64,
    /// The part of the time in which one does.
    pub waits: f64,
}

impl Copying {
    pub fn new(
        situation: &Situation,
        (share, sets): (f64, f64),
        home: usize,
        shadows: &[usize],
        last: &Served,
        ways: Ways,
    ) -> Copying {
        let link = situation.costs.link;
        let stay = |worker: &usize| {
            let backlog = last.backlog.get(*worker).copied().unwrap_or(0.0);
            link / situation.speeds[*worker] + backlog
        };
        let slowest = shadows.iter().map(stay).fold(0.0, f64::max);
        // Told and answered.
        let round = situation.round_trip + 2.0 * stay(&home) + slowest;
        let rounds = if ways.writes == Writes::Atomic { 2.0 } else { 1.0 };
        let writes = last.throughput * share * sets;
        let copies = shadows.len() as f64;
        // What is written faster than shadows answer is told them together.
        let told = share * sets * rounds * link / (1.0 + writes * round);
        let open = 1.0 / (1.0 + writes * round * rounds);
        // A client has a lease, or gets one when home is open; it loses it by its own write.
        let (answer, passed_on) = match ways.writes {
            Writes::Open => (1.0 / (1.0 + sets), 0.0),
            // A shadow that has let go passes the read on.
            Writes::Atomic => {
                let leased = open / (1.0 + sets);
                (leased * open, leased * (1.0 - open))
            }
        };
        let on = share * (1.0 - sets) * passed_on / (copies + 1.0) * link;
        let waits = 1.0 - (1.0 - share * sets).powf(f64::from(situation.batch));
        let (pause, waits) = match ways.writes {
            Writes::Atomic => (waits * round, writes * round * open),
            _ => (0.0, 0.0),
        };
        Copying { answer, told: told + on, pause, waits }
    }
}
