//! What decides, as it is in servers and coordinator: their balancers, and what they are told and tell.
//!
//! ```text
//!   Served ──► Reading of each server, with an epoch's noise ──► Balancer ──orders──► Placement
//!                       └── heartbeat ──► Coordinator ◄──► Planning          ──map, moves──┘
//! ```

use std::collections::BTreeSet;

use mbal_balance::{Action, Balancer, Event, Mode, Thresholds, propose};
use mbal_control::api::{
    BalanceMode, Heartbeat, HotMode, HotReport, Incarnation, MoveReport, Progress, Registration,
    WorkerReport, cachelets_listed,
};
use mbal_control::{Coordinator, Request, Response, Settings};
use mbal_model::{
    CacheletLoad, ClusterMap, Instant, Order, Outcome, Owner, Prefix, Reading, ServerId, Service,
    Snapshot, WorkerId, WorkerLoad,
};
use mbal_planning::Planning;
use mbal_random::Random;

use super::copying::Copier;
use super::demand::Demand;
use super::network::Served;
use super::placement::{Laid, Moving, Placement, Ways, Writes};
use super::situation::Situation;

/// Work in a second of a core, as workers count it: nanoseconds that it took once.
const WORK: f64 = 1e9;

/// Which phases act.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    pub one: bool,
    pub two: bool,
    pub three: bool,
}

pub struct Brains {
    workers: usize,
    /// Of each virtual node.
    node_bytes: f64,
    allowed: Allowed,
    balancers: Vec<Balancer>,
    copier: Option<Copier>,
    coordinator: Coordinator,
    planning: Planning,
    /// In the map's order; those that servers have, which have not heard of the newest yet.
    prefixes: Vec<Prefix>,
    /// Moves that the placement has been told of.
    begun: BTreeSet<u32>,
    random: Random,
    epoch: u64,
    /// Orders carried out so far.
    pub done: Done,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Done {
    pub copied: u64,
    pub lent: u64,
    pub moved: u64,
    pub handed: u64,
    pub split: u64,
}

impl Brains {
    pub fn new(situation: &Situation, allowed: Allowed, ways: Ways) -> Brains {
        let hot_keys = match ways.writes {
            _ if !allowed.one => HotMode::Off,
            Writes::Atomic => HotMode::Atomic,
            Writes::Open => HotMode::Async,
        };
        let servers_first = situation.servers;
        let settings = Settings { servers_first, hot_keys, ..Settings::default() };
        let mut coordinator = Coordinator::new(settings);
        for id in 1..=situation.servers as u16 {
            let registration = Registration {
                id: Some(id),
                incarnation: Incarnation(u64::from(id)),
                cluster: "mbal".into(),
                client: format!("server{id}:11211"),
                link: format!("server{id}:11311"),
                workers: (0..situation.workers)
                    .map(|at| format!("server{id}:{}", 11300 + at))
                    .collect(),
                // Four times what is used: memory is no obstacle here.
                memory_bytes: situation.cachelet_bytes * 128 * situation.workers as u64,
                moves: true,
                ..Registration::default()
            };
            let done = coordinator.handle(Instant::ZERO, Request::Register(registration));
            done.answer.expect("nobody is in the way");
        }
        if !allowed.three {
            let done = coordinator.handle(Instant::ZERO, Request::Balance(BalanceMode::Off));
            done.answer.expect("nobody else has a say");
        }
        let mode = if allowed.two { Mode::On } else { Mode::Off };
        let map = coordinator.state().map.clone().expect("all servers have registered");
        let balancer = |_| Balancer::new(mode, Thresholds::default());
        let (servers, workers) = (situation.servers, situation.workers);
        let copier = || Copier::new(servers, workers, ways, situation.seed);
        let prefixes: Vec<Prefix> = map.cachelets().iter().map(|(prefix, _)| *prefix).collect();
        Brains {
            workers,
            node_bytes: situation.cachelet_bytes as f64 / prefixes[0].nodes() as f64,
            allowed,
            balancers: (0..servers).map(balancer).collect(),
            copier: allowed.one.then(copier),
            coordinator,
            planning: Planning::new(Thresholds::default(), 1),
            prefixes,
            begun: BTreeSet::new(),
            random: Random::new(situation.seed),
            epoch: 0,
            done: Done::default(),
        }
    }

    /// By cachelet.
    pub fn map(&self) -> Vec<(Prefix, Owner)> {
        let map = self.coordinator.state().map.as_ref().expect("there is a map");
        map.cachelets().to_vec()
    }

    pub fn prefixes(&self) -> &[Prefix] {
        &self.prefixes
    }

    fn bytes(&self, cachelet: usize) -> f64 {
        self.node_bytes * self.prefixes[cachelet].nodes() as f64
    }

    /// By worker, seconds of a core for each key: what looking for hot keys costs.
    pub fn sampling(&self) -> Vec<f64> {
        let count = self.balancers.len() * self.workers;
        let of =
            |worker| self.copier.as_ref().map_or(0.0, |one| one.sampling(worker / self.workers));
        (0..count).map(of).collect()
    }

    /// An epoch is over: what all servers have measured, and what comes of it.
    pub fn end_epoch(
        &mut self,
        placement: &mut Placement,
        demand: &Demand,
        laid: &Laid,
        served: &Served,
    ) {
        self.epoch += 1;
        if let Some(copier) = &mut self.copier {
            copier.end_epoch(self.epoch, placement, demand, laid, served);
            self.done.copied = copier.given;
        }
        let mut held: Vec<Vec<usize>> = vec![Vec::new(); placement.ordinary.len()];
        for (cachelet, owner) in placement.owners.iter().enumerate() {
            held[*owner].push(cachelet);
        }
        for server in 0..self.balancers.len() {
            let copier = self.copier.as_ref();
            let hot = copier.map_or(Vec::new(), |one| one.reports(server, placement, demand));
            let reading = self.reading(server, &held, laid, served);
            self.balance_server(server, vec![Event::Epoch(reading)], placement);
            self.beat(server, hot, placement, served);
        }
        self.follow_map(placement);
        if self.allowed.one || self.allowed.three {
            self.plan(placement);
        }
    }

    /// As the server measures it: time that was spent, and what of it each cachelet caused.
    fn reading(
        &mut self,
        server: usize,
        held: &[Vec<usize>],
        laid: &Laid,
        served: &Served,
    ) -> Reading {
        let mut reading = Reading::default();
        let own = server * self.workers..(server + 1) * self.workers;
        for (at, held) in own.clone().zip(&held[own]) {
            let busy = self.noisy(served.busy(at), served.turns[at]);
            let per_time = busy / (served.followed[at] + served.own[at]).max(1e-9);
            let asked: f64 = held.iter().map(|one| laid.asked[*one]).sum();
            let copies = laid.copies[at];
            let followed = served.followed[at] * per_time;
            let per_share = followed / (asked + copies).max(1e-12);
            let keys_per_share = served.keys[at] / (asked + copies).max(1e-12);
            let mut cachelets = Vec::new();
            for &one in held {
                let share = laid.asked[one];
                cachelets.push(CacheletLoad {
                    cachelet: self.prefixes[one],
                    load: self.noisy(share * per_share, share * keys_per_share),
                    bytes: self.bytes(one) as u64,
                    pinned: false,
                });
            }
            let sum: f64 = cachelets.iter().map(|one| one.load).sum();
            // Noise shifts load from one cachelet to another; the sum was measured.
            let even = asked * per_share / sum.max(1e-12);
            cachelets.iter_mut().for_each(|one| one.load *= even);
            let own = served.own[at] * per_time;
            let keys = self.noisy(served.keys[at], served.keys[at]);
            let followed_turns = self.noisy(served.followed_turns[at], served.followed_turns[at]);
            // A server counts the keys of the very turns that it counts: single keys are one a turn, and chance is in how many more there are.
            let keys_a_turn = served.followed_keys[at] / served.followed_turns[at].max(1e-9);
            let more = self.noisy(keys_a_turn - 1.0, (keys_a_turn - 1.0) * followed_turns);
            let service = Service {
                waiting: Some(self.noisy(served.waiting(at), served.turns[at])),
                capacity: WORK * self.noisy(laid.network.capacity[at], keys),
                // Unequal workers have unequal cores, and no quotas.
                part: Some(1.0),
                keys: (followed_turns * (1.0 + more)) as u64,
                turns: followed_turns as u64,
            };
            reading.snapshot.workers.push(WorkerLoad {
                at: self.owner(at),
                service,
                fixed: own + copies * per_share,
                bytes_max: u64::MAX,
                cachelets,
            });
            reading.handable.push(own);
        }
        reading
    }

    /// Chance of an epoch in which so many came.
    fn noisy(&mut self, value: f64, count: f64) -> f64 {
        // Twelve of these are as good as normal.
        let normal = (0..12).map(|_| self.random.unit()).sum::<f64>() - 6.0;
        (value * (1.0 + normal / count.max(1.0).sqrt())).max(0.0)
    }

    fn owner(&self, worker: usize) -> Owner {
        let server = ServerId((worker / self.workers) as u16 + 1);
        Owner { server, worker: WorkerId((worker % self.workers) as u16) }
    }

    fn place(&self, owner: Owner) -> usize {
        (usize::from(owner.server.0) - 1) * self.workers + usize::from(owner.worker.0)
    }

    fn cachelet(&self, prefix: Prefix) -> Option<usize> {
        self.prefixes.binary_search(&prefix).ok()
    }

    /// The server's own balancer, whose planner answers at once.
    /// `events`: the last first.
    fn balance_server(&mut self, server: usize, mut events: Vec<Event>, placement: &mut Placement) {
        while let Some(event) = events.pop() {
            let mut actions = Vec::new();
            self.balancers[server].handle(event, &mut actions);
            for action in actions {
                match action {
                    Action::Ask(question) => {
                        let proposal = Some(propose(&question));
                        events.push(Event::Planned { number: question.number, proposal });
                    }
                    Action::Order { order, what } => {
                        let outcome = self.obey(what, placement);
                        events.push(Event::Reported { order, outcome });
                    }
                }
            }
        }
    }

    fn obey(&mut self, order: Order, placement: &mut Placement) -> Outcome {
        match order {
            Order::Lend { step, .. } => {
                let (from, to) = (self.place(step.from), self.place(step.to));
                match self.cachelet(step.cachelet).filter(|at| placement.owners[*at] == from) {
                    Some(cachelet) => {
                        placement.owners[cachelet] = to;
                        self.done.lent += 1;
                        Outcome::Done
                    }
                    None => Outcome::Stale,
                }
            }
            Order::Lighten { from, to, share, .. } => {
                let (from, to) = (self.place(from), self.place(to));
                // Whole connections, though clients are divided into parts of one at first.
                let of = placement.ordinary[from];
                let count = (of * share).round().min(of);
                placement.ordinary[from] -= count;
                placement.ordinary[to] += count;
                self.done.handed += count as u64;
                Outcome::Leaving(count as u32)
            }
        }
    }

    fn beat(&mut self, server: usize, hot: Vec<HotReport>, placement: &Placement, served: &Served) {
        let id = ServerId(server as u16 + 1);
        let listed = cachelets_listed(self.workers);
        let report = |worker: &WorkerLoad| WorkerReport::of(worker, listed);
        let moves = self.coordinator.state().moves.iter();
        let moves = moves.filter(|(_, one)| one.from.server == id).map(|(number, _)| {
            let Some(one) = placement.moves.get(&number.0) else {
                return MoveReport { number: number.0, ..MoveReport::default() };
            };
            let is_here = one.left_bytes == 0.0;
            let progress = if is_here { Progress::Sealed } else { Progress::Moving };
            let bytes = (self.bytes(one.cachelet) - one.left_bytes) as u64;
            MoveReport { number: number.0, progress, bytes, ..MoveReport::default() }
        });
        let Snapshot { workers } = &self.balancers[server].reading().snapshot;
        let own = server * self.workers..(server + 1) * self.workers;
        let map = self.coordinator.state().map.as_ref();
        let heartbeat = Heartbeat {
            incarnation: Incarnation(u64::from(id.0)),
            map_version: map.map_or(0, |map| map.version()),
            takes_changes: true,
            workers: workers.iter().map(report).collect(),
            helpless: self.balancers[server].is_helpless(),
            moves: moves.collect(),
            hot,
            requests: served.keys[own].iter().sum(),
            ..Heartbeat::default()
        };
        let answer = self.ask(Request::Heartbeat(id, heartbeat));
        let told = match answer {
            Some(Response::News(news)) => news.hot.and_then(|told| told.threshold),
            _ => None,
        };
        if let (Some(copier), Some(threshold)) = (&mut self.copier, told) {
            copier.thresholds[server] = if threshold > 0.0 { threshold } else { f64::INFINITY };
        }
    }

    fn ask(&mut self, ask: Request) -> Option<Response> {
        let now = Instant::from_micros(self.epoch * 1_000_000);
        self.coordinator.handle(now, ask).answer.ok()
    }

    /// What has arrived is its new owner's; what a server has lent stays lent.
    fn follow_map(&mut self, placement: &mut Placement) {
        let map = self.coordinator.state().map.clone().expect("there is a map");
        self.follow_splits(&map, placement);
        for (at, (_, owner)) in map.cachelets().iter().enumerate() {
            if placement.owners[at] / self.workers + 1 != usize::from(owner.server.0) {
                placement.owners[at] = self.place(*owner);
                self.done.moved += 1;
            }
        }
        let moves = &self.coordinator.state().moves;
        placement.moves.retain(|number, _| moves.keys().any(|known| known.0 == *number));
    }

    /// Servers split what they have between two epochs. The parts stay where the whole was, lent or not.
    fn follow_splits(&mut self, map: &ClusterMap, placement: &mut Placement) {
        if map.cachelets().len() == self.prefixes.len() {
            return;
        }
        let prefixes: Vec<Prefix> = map.cachelets().iter().map(|(prefix, _)| *prefix).collect();
        let before = |prefix: &Prefix| {
            self.prefixes.partition_point(|known| known.first_hash() <= prefix.first_hash()) - 1
        };
        placement.owners = prefixes.iter().map(|prefix| placement.owners[before(prefix)]).collect();
        for one in placement.moves.values_mut() {
            let moving = prefixes.binary_search(&self.prefixes[one.cachelet]);
            one.cachelet = moving.expect("what moves is not split");
        }
        let is_new = |prefix: &&Prefix| self.prefixes.binary_search(prefix).is_err();
        self.done.split += prefixes.iter().filter(is_new).count() as u64;
        self.prefixes = prefixes;
    }

    fn plan(&mut self, placement: &mut Placement) {
        let mut ask = Some(self.planning.epoch());
        while let Some(asked) = ask {
            let answer = self.ask(asked);
            ask = self.planning.answered(answer);
        }
        for (number, one) in &self.coordinator.state().moves {
            let cachelet = self.cachelet(one.prefix).expect("what moves is in the map");
            if self.begun.insert(number.0) {
                let (from, to) = (self.place(one.from), self.place(one.to));
                let left_bytes = self.bytes(cachelet);
                placement.moves.insert(number.0, Moving { cachelet, from, to, left_bytes });
            }
        }
    }
}
