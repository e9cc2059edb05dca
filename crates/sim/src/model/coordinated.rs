//! Phases 2 and 3 of a whole cluster: the servers' own balancers, the coordinator and its planner as they are, over loads that
//! are made up.
//!
//! ```text
//!   requests of an epoch ──► loads by cachelet ──► Server: mbal_balance::Balancer lends, handing in what is asked of it
//!                                                    │ heartbeat, as JSON's types
//!                     ClusterPlanner ◄──outlook── mbal_control::Coordinator ──orders──► cachelets on their way
//! ```
//! No request is served here: a load is what was asked of a cachelet in an epoch, and a worker shows at most all of its time.

use std::collections::BTreeMap;

use mbal_balance::{Balancer, ClusterPlanner, Duty, Mode, News, Thresholds, propose};
use mbal_control::api::{
    Heartbeat, Incarnation, MoveReport, Progress, Registration, WorkerReport, cachelets_listed,
};
use mbal_control::{Answer, Ask, Coordinator, Settings};
use mbal_model::{
    CacheletLoad, Instant, Order, Outcome, Owner, Prefix, Reading, ServerId, Service, Snapshot,
    WorkerId, WorkerLoad,
};
use mbal_sketch::{Random, mix};

use super::workloads::Workload;

/// Requests of an epoch that keep a worker busy; a simulated one stands for some hundred real ones.
const REQUESTS_PER_WORKER: f64 = 4_000.0;

/// A cachelet is on its way for so many epochs at most.
const JOURNEY_EPOCHS_MAX: u64 = 3;

/// What a move takes of both workers' time while it lasts.
const MOVE_LOAD: f64 = 0.02;

const CACHELET_BYTES: u64 = 1 << 20;

#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub servers: usize,
    pub workers: usize,
    /// Mean load of a worker.
    pub load: f64,
    /// Share of requests that stay with their connection, whatever moves.
    pub immovable: f64,
    /// Part of the memory that cachelets have when a run begins.
    pub full: f64,
}

/// Which balancers run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowed {
    pub two: bool,
    pub three: bool,
}

pub struct Cluster {
    size: Size,
    coordinator: Coordinator,
    planner: ClusterPlanner,
    allowed: Allowed,
    balancers: Vec<Balancer>,
    /// In the order of prefixes.
    cachelets: Vec<Cachelet>,
    /// By worker of all servers: load that no cachelet brings.
    fixed: Vec<f64>,
    /// By move under way, the epoch in which its source is done.
    done_at: BTreeMap<u32, u64>,
    random: Random,
    epoch: u64,
    pub lent: u64,
    pub moved: u64,
    /// Cachelets that came back to a server within ten epochs, though their load had not changed by half.
    pub restless: u64,
}

struct Cachelet {
    prefix: Prefix,
    owner: Owner,
    load: f64,
    /// When it left a server, which one, and its load then.
    left: Option<(u64, ServerId, f64)>,
}

impl Cluster {
    pub fn new(size: Size, allowed: Allowed, seed: u64) -> Cluster {
        let settings = Settings { servers_first: size.servers, ..Settings::default() };
        let mut coordinator = Coordinator::new(settings);
        let cachelets = (size.servers * size.workers * 16).next_power_of_two();
        let memory = cachelets.div_ceil(size.servers) as u64 * CACHELET_BYTES;
        for id in 1..=size.servers as u16 {
            let registration = Registration {
                id: Some(id),
                incarnation: Incarnation(u64::from(id)),
                cluster: "mbal".into(),
                client: format!("server{id}:11211"),
                link: format!("server{id}:11311"),
                workers: (0..size.workers).map(|at| format!("server{id}:{}", 11300 + at)).collect(),
                memory_bytes: (memory as f64 / size.full) as u64,
                moves: true,
                ..Registration::default()
            };
            let done = coordinator.handle(Instant::ZERO, Ask::Register(registration));
            done.answer.expect("nobody is in the way");
        }
        let mode = if allowed.two { Mode::On } else { Mode::Off };
        let map = coordinator.state().map.clone().expect("all servers have registered");
        let cachelet =
            |&(prefix, owner): &(Prefix, Owner)| Cachelet { prefix, owner, load: 0.0, left: None };
        Cluster {
            size,
            planner: ClusterPlanner::new(Thresholds::default()),
            allowed,
            balancers: (0..size.servers)
                .map(|_| Balancer::new(mode, Thresholds::default()))
                .collect(),
            cachelets: map.cachelets().iter().map(cachelet).collect(),
            coordinator,
            fixed: vec![0.0; size.servers * size.workers],
            done_at: BTreeMap::new(),
            random: Random::new(seed),
            epoch: 0,
            lent: 0,
            moved: 0,
            restless: 0,
        }
    }

    /// An epoch's requests, and what all balancers make of them.
    pub fn epoch(&mut self, workload: &Workload) {
        self.epoch += 1;
        self.request(workload);
        for server in 0..self.size.servers {
            self.balance_server(server);
            self.beat(server);
        }
        self.notice_map();
        if self.allowed.three {
            self.plan();
        }
    }

    fn request(&mut self, workload: &Workload) {
        let workers = self.fixed.len();
        let requests = (self.size.load * REQUESTS_PER_WORKER * workers as f64) as u64;
        let one = 1.0 / REQUESTS_PER_WORKER;
        self.cachelets.iter_mut().for_each(|cachelet| cachelet.load = 0.0);
        self.fixed.fill(0.0);
        for _ in 0..requests {
            let bits = self.random.word();
            let key = workload.keys.at((bits >> 32) as u32 % workload.keys.requests());
            let hash = mix(u64::from(key) ^ workload.salt);
            let unit = (bits & 0xffff) as f64 / 65_536.0;
            if unit < self.size.immovable {
                // Clients that know no workers spread over them.
                self.fixed[mix(bits) as usize % workers] += one;
            } else {
                let at = self.cachelet_of(hash);
                self.cachelets[at].load += one;
            }
        }
        for one in self.coordinator.state().moves.values() {
            for owner in [one.from, one.to] {
                self.fixed[index(self.size, owner)] += MOVE_LOAD;
            }
        }
    }

    /// What is asked of each worker, more than it has time for included.
    fn asked(&self) -> Vec<f64> {
        let mut loads = self.fixed.clone();
        for cachelet in &self.cachelets {
            loads[index(self.size, cachelet.owner)] += cachelet.load;
        }
        loads
    }

    /// What `workload` asks of the busiest worker, without the chance of an epoch.
    pub fn expected_most(&self, workload: &Workload) -> f64 {
        let all = self.size.load * self.fixed.len() as f64;
        let movable = all * (1.0 - self.size.immovable);
        let one = movable / f64::from(workload.keys.requests());
        let mut loads = vec![all * self.size.immovable / self.fixed.len() as f64; self.fixed.len()];
        for (key, count) in workload.keys.counts().into_iter().enumerate() {
            let at = self.cachelet_of(mix(key as u64 ^ workload.salt));
            loads[index(self.size, self.cachelets[at].owner)] += f64::from(count) * one;
        }
        loads.into_iter().fold(0.0, f64::max)
    }

    fn cachelet_of(&self, hash: u64) -> usize {
        self.cachelets.partition_point(|one| one.prefix.first_hash() <= hash) - 1
    }

    /// As the server measures it: a worker that is saturated shows all of its time, and divides that.
    fn reading(&self, server: usize) -> Reading {
        let asked = self.asked();
        let worker = |at: usize| {
            let owner = owner(server, at);
            let place = index(self.size, owner);
            let shown = 1.0 / asked[place].max(1.0);
            let held = self.cachelets.iter().filter(|one| one.owner == owner);
            let cachelets = held.map(|one| CacheletLoad {
                cachelet: one.prefix,
                load: one.load * shown,
                bytes: CACHELET_BYTES,
                pinned: false,
            });
            WorkerLoad {
                at: owner,
                service: Service::default(),
                fixed: self.fixed[place] * shown,
                bytes_max: u64::MAX,
                cachelets: cachelets.collect(),
            }
        };
        let workers: Vec<WorkerLoad> = (0..self.size.workers).map(worker).collect();
        Reading { handable: vec![0.0; workers.len()], snapshot: Snapshot { workers }, seen: 0 }
    }

    /// The server's own balancer, whose planner answers at once.
    fn balance_server(&mut self, server: usize) {
        let mut news = vec![News::Epoch(self.reading(server))];
        while let Some(one) = news.pop() {
            let mut duties = Vec::new();
            self.balancers[server].handle(one, &mut duties);
            for duty in duties {
                match duty {
                    Duty::Ask(question) => {
                        let proposal = Some(propose(&question));
                        news.push(News::Planned { number: question.number, proposal });
                    }
                    Duty::Order { order, what: Order::Lend { step, .. } } => {
                        let held = self.cachelets.iter_mut();
                        let held = held.into_iter().find(|one| one.prefix == step.cachelet);
                        let held = held.expect("a balancer lends what its server has");
                        held.owner = step.to;
                        self.lent += 1;
                        news.push(News::Reported { order, outcome: Outcome::Done });
                    }
                    Duty::Order { order, .. } => {
                        news.push(News::Reported { order, outcome: Outcome::Refused });
                    }
                }
            }
        }
    }

    fn beat(&mut self, server: usize) {
        let id = server_id(server);
        let listed = cachelets_listed(self.size.workers);
        let report = |worker: &WorkerLoad| WorkerReport::of(worker, listed);
        let moves = self.coordinator.state().moves.iter();
        let moves = moves.filter(|(_, one)| one.from.server == id).map(|(number, _)| {
            let is_done = self.done_at.get(&number.0).is_some_and(|at| *at <= self.epoch);
            let progress = if is_done { Progress::Sealed } else { Progress::Moving };
            MoveReport { number: number.0, progress, ..MoveReport::default() }
        });
        let heartbeat = Heartbeat {
            incarnation: Incarnation(u64::from(id.0)),
            workers: self.reading(server).snapshot.workers.iter().map(report).collect(),
            helpless: self.balancers[server].is_helpless(),
            moves: moves.collect(),
            ..Heartbeat::default()
        };
        self.ask(Ask::Heartbeat(id, heartbeat));
    }

    fn ask(&mut self, ask: Ask) -> Answer {
        let now = Instant::from_micros(self.epoch * 1_000_000);
        self.coordinator.handle(now, ask).answer.expect("these servers are known")
    }

    /// What has arrived is its new owner's; what a server has lent stays lent.
    fn notice_map(&mut self) {
        let map = self.coordinator.state().map.clone().expect("there is a map");
        for (cachelet, (_, owner)) in self.cachelets.iter_mut().zip(map.cachelets()) {
            let from = cachelet.owner.server;
            if from == owner.server {
                continue;
            }
            if let Some((when, left, load)) = cachelet.left {
                let changed = (cachelet.load - load).abs() >= 0.5 * load;
                let soon = self.epoch < when + u64::from(Thresholds::default().rest_epochs);
                self.restless += u64::from(left == owner.server && soon && !changed);
            }
            cachelet.left = Some((self.epoch, from, cachelet.load));
            cachelet.owner = *owner;
            self.moved += 1;
        }
    }

    fn plan(&mut self) {
        let Answer::Outlook(outlook) = self.ask(Ask::Outlook(self.epoch)) else {
            unreachable!("an outlook is answered by one");
        };
        let plan = self.planner.plan(&outlook);
        self.ask(Ask::Planned(plan));
        for number in self.coordinator.state().moves.keys() {
            let takes = 1 + self.random.below(JOURNEY_EPOCHS_MAX);
            self.done_at.entry(number.0).or_insert(self.epoch + takes);
        }
    }
}

fn server_id(server: usize) -> ServerId {
    ServerId(server as u16 + 1)
}

fn owner(server: usize, worker: usize) -> Owner {
    Owner { server: server_id(server), worker: WorkerId(worker as u16) }
}

fn index(size: Size, owner: Owner) -> usize {
    (usize::from(owner.server.0) - 1) * size.workers + usize::from(owner.worker.0)
}
