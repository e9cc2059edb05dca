//! A cluster whose clients wait for replies, in virtual time: servers' balancers and the cluster's planner as they are, over a
//! mean-value model of queues. One call is an epoch of a second.
//!
//! A saturated worker shows no load above 1, as a real one; how many requests wait in it, and whose they are, is seen.

use std::collections::BTreeMap;

use mbal_balance::{Action, Balancer, ClusterPlanner, Event, Mode, Thresholds, propose};
use mbal_model::{
    CacheletLoad, Move, Order, Outcome, Outlook, Owner, Prefix, Reading, ServerId, ServerOutlook,
    Service, Snapshot, Standing, WorkerId, WorkerLoad,
};
use mbal_random::Random;

/// Keys a second of a worker of capacity 1.
pub const KEYS: f64 = 20_000.0;
/// What a move takes of both its workers in an epoch: 0.3 of a fifth of a second.
const MOVE_COST: f64 = 0.06;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowed {
    pub two: bool,
    pub three: bool,
}

pub struct World {
    pub allowed: Allowed,
    workers: usize,
    pub capacities: Vec<f64>,
    /// By cachelet: its share of the keys, and the worker that has it.
    pub shares: Vec<f64>,
    pub owners: Vec<usize>,
    /// Of each cachelet's work, what stays with the worker of the connections: ordinary clients'.
    pub clients: f64,
    balancers: Vec<Balancer>,
    planner: ClusterPlanner,
    under_way: BTreeMap<usize, (usize, u64)>,
    pub epoch: u64,
    pub lent: Vec<u64>,
    /// Moves between servers: when they were ordered.
    pub moved: Vec<u64>,
    pub restless: u64,
    left: BTreeMap<usize, (u64, usize)>,
    noise: Random,
}

impl World {
    pub fn new(servers: usize, workers: usize, allowed: Allowed, seed: u64) -> World {
        let all = servers * workers;
        let mode = if allowed.two { Mode::On } else { Mode::Off };
        World {
            allowed,
            workers,
            capacities: vec![1.0; all],
            shares: vec![1.0 / (16 * all) as f64; 16 * all],
            owners: (0..16 * all).map(|cachelet| cachelet / 16).collect(),
            clients: 16.0 * all as f64,
            balancers: (0..servers).map(|_| Balancer::new(mode, Thresholds::default())).collect(),
            planner: ClusterPlanner::new(Thresholds::default()),
            under_way: BTreeMap::new(),
            epoch: 0,
            lent: Vec::new(),
            moved: Vec::new(),
            restless: 0,
            left: BTreeMap::new(),
            noise: Random::new(seed),
        }
    }

    fn all(&self) -> usize {
        self.capacities.len()
    }

    fn at(&self, worker: usize) -> Owner {
        let server = ServerId((worker / self.workers) as u16);
        Owner { server, worker: WorkerId((worker % self.workers) as u16) }
    }

    fn place(&self, at: Owner) -> usize {
        usize::from(at.server.0) * self.workers + usize::from(at.worker.0)
    }

    /// Seconds of each worker's time for a request, on average over all requests.
    fn demands(&self) -> Vec<f64> {
        let mut demands = vec![0.0; self.all()];
        for (owner, share) in self.owners.iter().zip(&self.shares) {
            demands[*owner] += share / KEYS;
        }
        let mut free = self.capacities.clone();
        let ends = self.under_way.iter().flat_map(|(at, (to, _))| [self.owners[*at], *to]);
        let busy: std::collections::BTreeSet<usize> = ends.collect();
        busy.into_iter().for_each(|worker| free[worker] *= 1.0 - MOVE_COST);
        demands.iter().zip(free).map(|(demand, free)| demand / free).collect()
    }

    /// Requests a second, and how many are at each worker: Schweitzer's approximation of a closed network of queues.
    fn solve(&self) -> (f64, Vec<f64>) {
        let demands = self.demands();
        let n = self.clients;
        let mut queues = vec![n / self.all() as f64; self.all()];
        let mut rate = 0.0;
        for _ in 0..200 {
            let times = demands
                .iter()
                .zip(&queues)
                .map(|(demand, queue)| demand * (1.0 + queue * (n - 1.0) / n));
            let times: Vec<f64> = times.collect();
            // A round trip.
            rate = n / (0.0001 + times.iter().sum::<f64>());
            queues = times.iter().map(|time| rate * time).collect();
        }
        (rate, queues)
    }

    /// Of what all workers could do together.
    pub fn throughput(&self) -> f64 {
        self.solve().0 / (KEYS * self.capacities.iter().sum::<f64>())
    }

    /// Share of the work / share of the capacity.
    pub fn quotients(&self) -> Vec<f64> {
        let mut shares = vec![0.0; self.all()];
        self.owners.iter().zip(&self.shares).for_each(|(owner, share)| shares[*owner] += share);
        let all: f64 = self.capacities.iter().sum();
        shares.iter().zip(&self.capacities).map(|(share, one)| share * all / one).collect()
    }

    pub fn most(&self) -> f64 {
        self.quotients().into_iter().fold(0.0, f64::max)
    }

    fn worker_loads(&mut self) -> Vec<WorkerLoad> {
        let (rate, queues) = self.solve();
        let mut loads: Vec<WorkerLoad> = (0..self.all())
            .map(|worker| WorkerLoad {
                at: self.at(worker),
                service: Service { capacity: KEYS * self.capacities[worker], ..Service::default() },
                fixed: 0.0,
                bytes_max: u64::MAX / 4096,
                cachelets: Vec::new(),
            })
            .collect();
        for (cachelet, (&owner, &share)) in self.owners.iter().zip(&self.shares).enumerate() {
            let keys = rate * share;
            let chance = (self.noise.unit() + self.noise.unit() + self.noise.unit() - 1.5) * 2.0;
            let keys = (keys + chance * keys.sqrt()).max(0.0);
            loads[owner].service.keys += keys as u64;
            loads[owner].cachelets.push(CacheletLoad {
                cachelet: Prefix::nth(cachelet, 15),
                load: keys / (KEYS * self.capacities[owner]),
                bytes: 1 << 20,
                pinned: false,
            });
        }
        for (worker, queue) in loads.iter_mut().zip(queues) {
            // Nobody runs for longer than the time that passes.
            let load = worker.load();
            if load > 1.0 {
                worker.cachelets.iter_mut().for_each(|held| held.load /= load);
            }
            worker.service.waiting = Some((queue - worker.load()).max(0.0));
        }
        loads
    }

    pub fn epoch(&mut self) {
        self.epoch += 1;
        let loads = self.worker_loads();
        let arrived: Vec<usize> = self
            .under_way
            .iter()
            .filter(|(_, (_, at))| *at <= self.epoch)
            .map(|(one, _)| *one)
            .collect();
        for server in 0..self.balancers.len() {
            let own = &loads[server * self.workers..(server + 1) * self.workers];
            let snapshot = Snapshot { workers: own.to_vec() };
            let handable = vec![0.0; own.len()];
            self.tell(server, Event::Epoch(Reading { snapshot, handable, seen: 0 }));
        }
        if self.allowed.three {
            self.plan(loads);
        }
        for cachelet in arrived {
            if let Some((to, _)) = self.under_way.remove(&cachelet) {
                let from = self.owners[cachelet] / self.workers;
                if let Some((when, left)) = self.left.insert(cachelet, (self.epoch, from)) {
                    self.restless += u64::from(left == to / self.workers && self.epoch < when + 10);
                }
                self.owners[cachelet] = to;
            }
        }
    }

    fn tell(&mut self, server: usize, event: Event) {
        let mut actions = Vec::new();
        self.balancers[server].handle(event, &mut actions);
        for action in actions {
            match action {
                Action::Ask(question) => {
                    let proposal = Some(propose(&question));
                    self.tell(server, Event::Planned { number: question.number, proposal });
                }
                Action::Order { order, what } => {
                    let outcome = match what {
                        Order::Lend { step, .. } => self.lend(step),
                        Order::Lighten { .. } => Outcome::Refused,
                    };
                    self.tell(server, Event::Reported { order, outcome });
                }
            }
        }
    }

    fn lend(&mut self, step: Move) -> Outcome {
        let cachelet = step.cachelet.place();
        if self.under_way.contains_key(&cachelet) || self.owners[cachelet] != self.place(step.from)
        {
            return Outcome::Stale;
        }
        self.owners[cachelet] = self.place(step.to);
        self.lent.push(self.epoch);
        Outcome::Done
    }

    fn plan(&mut self, loads: Vec<WorkerLoad>) {
        let servers =
            loads.chunks(self.workers).zip(&self.balancers).map(|(own, balancer)| ServerOutlook {
                server: own[0].at.server,
                standing: Standing::Serving,
                memory_bytes: 1 << 40,
                workers: own.to_vec(),
                helpless: balancer.is_helpless(),
                refuses: false,
                copying: Vec::new(),
                hottest: Vec::new(),
                room_bytes: None,
            });
        let step = |(cachelet, (to, _)): (&usize, &(usize, u64))| Move {
            cachelet: Prefix::nth(*cachelet, 15),
            from: self.at(self.owners[*cachelet]),
            to: self.at(*to),
        };
        let under_way = self.under_way.iter().map(step).collect();
        let outlook = Outlook {
            epoch: self.epoch,
            servers: servers.collect(),
            under_way,
            ..Outlook::default()
        };
        for planned in self.planner.plan(&outlook).moves {
            let takes = 1 + self.noise.below(2);
            let to = self.place(planned.step.to);
            self.under_way.insert(planned.step.cachelet.place(), (to, self.epoch + takes));
            self.moved.push(self.epoch);
        }
    }
}
