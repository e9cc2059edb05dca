//! Workers as queues that measure themselves: what the three phases read and change.

use mbal_balance::Rest;
use mbal_model::{CacheletLoad, Move, Owner, Prefix, ServerId, Snapshot, WorkerId, WorkerLoad};
use mbal_sketch::{Access, Random, mix};

use super::Fleet;
use super::workloads::Workload;

/// Service times per epoch that a worker can do; a simulated request stands for some hundred real ones.
pub const SERVICES_PER_EPOCH: f64 = 400.0;

/// A worker with this much waiting refuses more.
const BACKLOG_MAX: f64 = 200.0;

/// A cachelet's move between servers costs both workers this many services.
const MIGRATION_SERVICES: f64 = 20.0;

/// Services of a move beside each request: the migrator's budget. Else a worker that gives
/// away twenty cachelets at once would serve nobody for an epoch.
const MIGRATION_PACE: f64 = 0.1;

/// Share of the newest epoch in the loads that planners read: a count of 16 cachelets is noisy.
const SMOOTHING: f64 = 0.3;

#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub servers: usize,
    pub workers: usize,
    pub cachelets_per_worker: usize,
    /// Mean load of a worker.
    pub load: f64,
    /// Share of requests that stay with their connection, whatever moves.
    pub immovable: f64,
}

impl Size {
    pub fn all_workers(&self) -> usize {
        self.servers * self.workers
    }

    pub fn cachelets(&self) -> usize {
        self.all_workers() * self.cachelets_per_worker
    }
}

/// Whose plan a snapshot is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Local,
    Global,
}

pub struct Cluster {
    pub size: Size,
    /// By cachelet: index of the worker that owns it.
    pub owner: Vec<u32>,
    first_owner: Vec<u32>,
    pub fleet: Fleet,
    pub refused: u64,
    epoch: u64,
    /// By worker: services of moves that are still to be done.
    migrating: Vec<f64>,
    cachelet_arrivals: Vec<u32>,
    fixed_arrivals: Vec<u32>,
    cachelet_loads: Vec<f64>,
    fixed_loads: Vec<f64>,
    /// Cachelets that moved, and those of them that changed servers.
    rest: Rest,
    rest_far: Rest,
    last_moves: Vec<(u64, u32, f64)>,
    /// Cachelets that came back within the rest though their load had not changed by half.
    pub restless: u64,
    bits: Random,
}

/// One request, as the policies see it.
pub struct Arrival {
    pub hash: u64,
    pub access: Access,
    /// The worker that owns its key.
    pub home: u32,
}

impl Cluster {
    pub fn new(size: Size, seed: u64) -> Cluster {
        // Cachelet c starts on worker c mod workers.
        let owner: Vec<u32> =
            (0..size.cachelets()).map(|at| (at % size.all_workers()) as u32).collect();
        Cluster {
            size,
            first_owner: owner.clone(),
            last_moves: vec![(0, u32::MAX, 0.0); owner.len()],
            migrating: vec![0.0; size.all_workers()],
            cachelet_arrivals: vec![0; owner.len()],
            cachelet_loads: vec![0.0; owner.len()],
            owner,
            fleet: Fleet::new(size.all_workers()),
            refused: 0,
            epoch: 0,
            fixed_arrivals: vec![0; size.all_workers()],
            fixed_loads: vec![0.0; size.all_workers()],
            rest: Rest::default(),
            rest_far: Rest::default(),
            restless: 0,
            bits: Random::new(seed),
        }
    }

    /// One epoch of requests. `route` names the worker that reads a replica, None for the owner;
    /// `written` names every worker that holds a copy of what was written.
    pub fn epoch(
        &mut self,
        workload: &Workload,
        mut route: impl FnMut(&Arrival, u64) -> Option<u32>,
        mut written: impl FnMut(&Arrival, &mut dyn FnMut(u32)),
    ) {
        self.fleet.delays.clear();
        let workers = self.size.all_workers();
        let requests = (self.size.load * SERVICES_PER_EPOCH * workers as f64) as u64;
        let start = self.epoch as f64 * SERVICES_PER_EPOCH;
        let spacing = SERVICES_PER_EPOCH / requests as f64;
        for index in 0..requests {
            let now = start + index as f64 * spacing;
            let bits = self.bits.word();
            let key = workload.keys.at((bits >> 32) as u32 % workload.keys.requests());
            let hash = mix(u64::from(key) ^ workload.salt);
            let cachelet = ((u128::from(hash) * self.owner.len() as u128) >> 64) as usize;
            let unit = |bits: u64| (bits & 0xffff) as f64 / 65_536.0;
            let access =
                if unit(bits) < workload.write_share { Access::Write } else { Access::Read };
            if unit(bits >> 16) < self.size.immovable {
                let server = self.first_owner[cachelet] as usize / self.size.workers;
                let worker = server * self.size.workers + (mix(bits) as usize % self.size.workers);
                self.fixed_arrivals[worker] += 1;
                self.serve(worker, now);
                continue;
            }
            let home = self.owner[cachelet];
            let arrival = Arrival { hash, access, home };
            match route(&arrival, bits) {
                Some(shadow) if shadow != home => {
                    self.fixed_arrivals[shadow as usize] += 1;
                    self.serve(shadow as usize, now);
                }
                _ => {
                    self.cachelet_arrivals[cachelet] += 1;
                    self.serve(home as usize, now);
                }
            }
            if access == Access::Write {
                let mut copies = Vec::new();
                written(&arrival, &mut |copy| copies.push(copy));
                for copy in copies {
                    self.fixed_arrivals[copy as usize] += 1;
                    self.serve(copy as usize, now);
                }
            }
        }
        self.epoch += 1;
        for (load, arrivals) in self.cachelet_loads.iter_mut().zip(&mut self.cachelet_arrivals) {
            *load += SMOOTHING * (f64::from(std::mem::take(arrivals)) / SERVICES_PER_EPOCH - *load);
        }
        for (load, arrivals) in self.fixed_loads.iter_mut().zip(&mut self.fixed_arrivals) {
            *load += SMOOTHING * (f64::from(std::mem::take(arrivals)) / SERVICES_PER_EPOCH - *load);
        }
    }

    fn serve(&mut self, worker: usize, now: f64) {
        if self.fleet.backlog(worker, now) > BACKLOG_MAX {
            self.refused += 1;
            self.fleet.delays.note(BACKLOG_MAX);
            return;
        }
        let service = (self.bits.word() >> 32) as f64 / f64::from(u32::MAX) + 0.5;
        self.fleet.serve(worker, now, service);
        let paced = self.migrating[worker].min(MIGRATION_PACE);
        if paced > 0.0 {
            self.migrating[worker] -= paced;
            self.fleet.occupy(worker, now, paced);
        }
    }

    /// The whole cluster, workers of a server side by side. O(cachelets).
    ///
    /// What changed servers rests from everything; what changed workers rests from phase 2 alone, lest a
    /// local remedy stand in the way of phase 3, which cannot bring it back.
    pub fn snapshot(&self, for_phase: Phase, rest_epochs: u32) -> Snapshot {
        let rest = match for_phase {
            Phase::Local => &self.rest,
            Phase::Global => &self.rest_far,
        };
        let mut snapshot = Snapshot {
            workers: (0..self.size.all_workers())
                .map(|worker| WorkerLoad {
                    at: self.at(worker),
                    fixed: self.fixed_loads[worker],
                    bytes_max: 4 * self.size.cachelets_per_worker as u64,
                    cachelets: Vec::with_capacity(self.size.cachelets_per_worker),
                })
                .collect(),
        };
        for (id, (&owner, &load)) in self.owner.iter().zip(&self.cachelet_loads).enumerate() {
            let cachelet = Prefix::nth(id, Prefix::BITS_MAX);
            let pinned = rest.pinned(cachelet, load, self.epoch, rest_epochs);
            let held = CacheletLoad { cachelet, load, bytes: 1, pinned };
            snapshot.workers[owner as usize].cachelets.push(held);
        }
        snapshot
    }

    fn at(&self, worker: usize) -> Owner {
        Owner {
            server: ServerId((worker / self.size.workers) as u16),
            worker: WorkerId((worker % self.size.workers) as u16),
        }
    }

    /// By worker: load that no cachelet brings.
    pub fn fixed_loads(&self) -> &[f64] {
        &self.fixed_loads
    }

    /// The busiest worker's load.
    pub fn most_load(&self) -> f64 {
        let mut loads = self.fixed_loads.clone();
        for (&owner, load) in self.owner.iter().zip(&self.cachelet_loads) {
            loads[owner as usize] += load;
        }
        loads.into_iter().fold(0.0, f64::max)
    }

    pub fn index(&self, at: Owner) -> usize {
        at.server.0 as usize * self.size.workers + at.worker.0 as usize
    }

    pub fn forget_rested(&mut self, rest_epochs: u32) {
        self.rest.forget_before(self.epoch, rest_epochs);
        self.rest_far.forget_before(self.epoch, rest_epochs);
    }

    pub fn now(&self) -> u64 {
        self.epoch
    }

    pub fn carry_out(&mut self, step: &Move, rest_epochs: u32) {
        let id = step.cachelet.place();
        let (from, to) = (self.owner[id], self.index(step.to) as u32);
        let load = self.cachelet_loads[id];
        let (when, left, load_then) = self.last_moves[id];
        let changed = (load - load_then).abs() >= 0.5 * load_then;
        if left == to && self.epoch < when + u64::from(rest_epochs) && !changed {
            self.restless += 1;
        }
        self.last_moves[id] = (self.epoch, from, load);
        self.owner[id] = to;
        self.rest.note(step.cachelet, load, self.epoch);
        if step.from.server != step.to.server {
            self.rest_far.note(step.cachelet, load, self.epoch);
            self.migrating[from as usize] += MIGRATION_SERVICES;
            self.migrating[to as usize] += MIGRATION_SERVICES;
        }
    }
}
