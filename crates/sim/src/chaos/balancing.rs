//! The real balancer among the workers, with planners of every kind: prompt, slow, silent, broken, lying.

use std::sync::Arc;

use mbal_balance::{
    Balancer, Cause, Duty, Lighten, Mode, News, Proposal, Question, Verdict, propose,
};
use mbal_control::api::{Heartbeat, WorkerReport, cachelets_listed};
use mbal_model::{
    ClusterPlan, Move, Order, Outcome, Outlook, Owner, Prefix, ServerId, Why, WorkerId, WorkerLoad,
};
use mbal_worker::{OrderId, Shared, Tallies, order_event};

use super::control::thresholds;
use super::coverage::Sight;
use super::dice::Dice;
use super::history::{Micros, SECOND};
use super::letters::Letter;
use super::profile::Profile;
use super::world::{Happening, World};

/// Orders of the operator are numbered from here, the balancer's below.
pub const OPERATOR: u64 = 1 << 32;

/// The balancer, and what it knows of the epoch before.
pub struct Balancing {
    pub balancer: Balancer,
    before: Tallies,
    /// Decisions that have been counted.
    counted: u64,
    /// Keys read and written, in its last epoch a second, and ever.
    requests: f64,
    keyed: u64,
    /// What heartbeats say of the last epoch, once one has asked for it.
    heartbeat: Option<Heartbeat>,
}

impl Balancing {
    pub fn new(server: &Shared, profile: &Profile) -> Balancing {
        let balancer = Balancer::new(Mode::On, thresholds(profile));
        Balancing {
            balancer,
            before: server.end_epoch(0),
            counted: 0,
            requests: 0.0,
            keyed: 0,
            heartbeat: None,
        }
    }
}

impl Balancing {
    /// As `server/balancing.rs` tells it.
    pub fn heartbeat(&mut self) -> Heartbeat {
        if self.heartbeat.is_none() {
            self.heartbeat = Some(self.report());
        }
        self.heartbeat.clone().expect("it has just been written")
    }

    fn report(&self) -> Heartbeat {
        let workers = &self.balancer.reading().snapshot.workers;
        let listed = cachelets_listed(workers.len());
        let report = |worker: &WorkerLoad| WorkerReport::of(worker, listed);
        Heartbeat {
            workers: workers.iter().map(report).collect(),
            memory_bytes: workers.first().map_or(0, |worker| worker.bytes_max),
            helpless: self.balancer.is_helpless(),
            requests: self.requests,
            ..Heartbeat::default()
        }
    }
}

impl World {
    pub fn end_epoch(&mut self, host: usize) {
        let epoch = self.profile.epoch;
        self.after(epoch, Happening::Epoch { host });
        let this = &mut self.hosts[host];
        if !this.runs() {
            return;
        }
        let now = this.server.end_epoch(self.now * 1_000);
        let reading = now.since(&this.balancing.before);
        this.balancing.before = now;
        self.coverage.meet(Sight::NewsEpoch);
        self.tell_balancer(host, News::Epoch(reading));
        let this = &mut self.hosts[host];
        this.balancing.heartbeat = None;
        if self.profile.hot.is_some() {
            let sums = this.server.sums();
            let keyed = sums.cmd_get + sums.cmd_set;
            let before = std::mem::replace(&mut this.balancing.keyed, keyed);
            this.balancing.requests = (keyed - before) as f64 * SECOND as f64 / epoch as f64;
        }
    }

    pub fn tell_balancer(&mut self, host: usize, news: News) {
        let mut duties = Vec::new();
        self.hosts[host].balancing.balancer.handle(news, &mut duties);
        for duty in duties {
            match duty {
                Duty::Ask(question) => self.ask_planner(host, question),
                Duty::Order { order, what } => self.send_order(host, OrderId(order), what),
            }
        }
        self.count_decisions(host);
    }

    fn send_order(&mut self, host: usize, order: OrderId, what: Order) {
        let (sight, lends) = match what {
            Order::Lend { .. } => (Sight::DutyLend, true),
            Order::Lighten { .. } => (Sight::DutyLighten, false),
        };
        self.coverage.meet(sight);
        self.hosts[host].orders.waiting.insert(order, (self.now, lends));
        let (worker, event) = order_event(order, what);
        self.post_to(host, worker, Letter::Tell(event));
    }

    fn ask_planner(&mut self, host: usize, question: Question) {
        self.coverage.meet(Sight::DutyAsk);
        let number = question.number;
        let epochs = |count: Micros, world: &World| count * world.profile.epoch;
        let (sight, delay, proposal) = match self.dice.below(10) {
            0 => return self.coverage.meet(Sight::PlannerSilent),
            1 => (Sight::PlannerBroken, 1, None),
            2 | 3 => {
                let late = epochs(self.dice.between(1..=8), self);
                (Sight::PlannerSlow, late, Some(propose(&question)))
            }
            4 | 5 => {
                let lie = lie(&mut self.dice, &question);
                (Sight::PlannerLies, self.dice.between(1..=500), Some(lie))
            }
            _ => (Sight::PlannerPrompt, self.dice.between(1..=500), Some(propose(&question))),
        };
        self.coverage.meet(sight);
        let life = self.hosts[host].life;
        self.after(delay, Happening::Planned { host, life, number, proposal });
    }

    /// A worker has reported to the balancer; at times that gets lost.
    pub fn report_to_balancer(&mut self, host: usize, order: u64, outcome: Outcome) {
        if self.dice.percent(3) {
            return self.coverage.meet(Sight::ReportLost);
        }
        let longest = self.profile.delay;
        let (delay, life) = (self.dice.skewed(1..=longest), self.hosts[host].life);
        self.after(delay, Happening::Reported { host, life, order, outcome });
    }

    /// The operator asks the balancer, not the worker.
    pub fn ask_balancer(&mut self, host: usize) {
        let server = Arc::clone(&self.hosts[host].server);
        let prefixes = server.store.prefixes();
        // At times one that there is not.
        let cachelet = self.dice.pick(&[prefixes.as_slice(), &[Prefix::ALL]].concat());
        let to = server.address(WorkerId(self.dice.below(self.profile.workers) as u16));
        self.coverage.meet(Sight::NewsAsked);
        self.tell_balancer(host, News::Asked { cachelet, to });
    }

    /// Invariant 7: what is even stays so. A plan takes from nobody while requests stand waiting nowhere.
    pub fn look_at_plan(&mut self, outlook: &Outlook, plan: &ClusterPlan) {
        let thresholds = thresholds(&self.profile);
        let workers = outlook.servers.iter().flat_map(|server| &server.workers);
        let loads: Vec<f64> = workers.map(WorkerLoad::load).collect();
        let mean = loads.iter().sum::<f64>() / loads.len().max(1) as f64;
        let most = loads.iter().copied().fold(0.0, f64::max);
        let mut workers = outlook.servers.iter().flat_map(|server| &server.workers);
        let is_even = !workers.any(|worker| thresholds.waits(worker));
        // What empties a server, or gives one its share, is no answer to loads.
        let evens_out = |why| !matches!(why, Why::Drain | Why::Share | Why::Undone);
        let moved = plan.moves.iter().find(|planned| evens_out(planned.why));
        match moved {
            Some(planned) if is_even && outlook.under_way.is_empty() => {
                self.fail(7, format!("{planned:?}, though loads are {mean:.2}, {most:.2} at most"));
            }
            Some(_) => self.coverage.meet(Sight::PlannedUneven),
            None if is_even => self.coverage.meet(Sight::EvenIsQuiet),
            None => {}
        }
    }

    fn count_decisions(&mut self, host: usize) {
        let Balancing { balancer, counted, .. } = &mut self.hosts[host].balancing;
        for decision in balancer.decisions().rev().take_while(|past| past.number > *counted) {
            let sight = match (decision.cause, decision.verdict) {
                (Cause::Uneven, Verdict::Ordered) => Sight::Evened,
                (Cause::LoanOver, Verdict::Ordered) => Sight::LoanOver,
                (_, Verdict::Rejected(_)) => Sight::NonsenseRejected,
                (_, Verdict::Slow(_)) => Sight::AnswerTooLate,
                _ => continue,
            };
            self.coverage.meet(sight);
        }
        *counted = balancer.decisions().next_back().map_or(*counted, |last| last.number);
    }
}

/// A proposal that nobody should carry out.
fn lie(dice: &mut Dice, question: &Question) -> Proposal {
    let workers = question.demand.snapshot.workers.len();
    let server = ServerId(dice.below(2) as u16);
    let worker =
        |dice: &mut Dice| Owner { server, worker: WorkerId(dice.below(workers + 1) as u16) };
    let step = |dice: &mut Dice| Move {
        cachelet: Prefix::nth(dice.below(40), 6),
        from: worker(dice),
        to: worker(dice),
    };
    let lighten = |dice: &mut Dice| Lighten {
        from: dice.below(workers + 1),
        to: dice.below(workers + 1),
        load: [f64::NAN, f64::INFINITY, -1.0, 0.0, 0.3, 1e300][dice.below(6)],
        load_max: [f64::NAN, f64::INFINITY, 0.5][dice.below(3)],
    };
    Proposal {
        moves: (0..dice.below(6)).map(|_| step(dice)).collect(),
        lighten: (0..dice.below(3)).map(|_| lighten(dice)).collect(),
    }
}
