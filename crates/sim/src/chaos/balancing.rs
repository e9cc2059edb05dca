//! The real balancer among the workers, with planners of every kind: prompt, slow, silent, broken, lying.

use std::sync::Arc;
use std::time::Duration;

use mbal_balance::{Cause, Decision, Lighten, Mode, Proposal, Question, Verdict, propose};
use mbal_control::api::WorkerReport;
use mbal_member::balancing::{self, Action, Event};
use mbal_model::{
    ClusterPlan, Instant, Move, Outlook, Owner, Prefix, ServerId, Why, WorkerId, WorkerLoad,
};
use mbal_worker::{Report, Shared};

use super::control::thresholds;
use super::coverage::Sight;
use super::dice::Dice;
use super::history::Micros;
use super::letters::Letter;
use super::profile::Profile;
use super::world::{Happening, World};

/// Orders of the operator are numbered from here, the balancer's below.
pub const OPERATOR: u64 = 1 << 32;

/// The driver that a server has, and what checkers know of it.
pub struct Balancing {
    pub driver: balancing::Balancing,
    /// Keys read and written: as its epochs have told them, one after the other.
    keys_told: u64,
}

impl Balancing {
    pub fn new(server: &Arc<Shared>, profile: &Profile) -> Balancing {
        let epoch = Duration::from_micros(profile.epoch);
        let server = Arc::clone(server);
        let driver = balancing::Balancing::new(Mode::On, thresholds(profile), epoch, server);
        Balancing { driver, keys_told: 0 }
    }
}

impl World {
    pub fn balancer_wakes(&mut self, host: usize) {
        self.coverage.meet(Sight::NewsEpoch);
        self.drive_balancer(host, Event::Woken);
        self.look_at_loads(host);
        let this = &self.hosts[host];
        let (at, life) = (this.balancing.driver.next_wake(), this.life);
        self.at(at.as_micros(), Happening::BalancerWakes { host, life });
    }

    /// Invariant 7: loads are those of the epoch that has ended. What epochs have counted, one after the other, is what was done.
    fn look_at_loads(&mut self, host: usize) {
        let Balancing { driver, keys_told } = &mut self.hosts[host].balancing;
        let keys = |worker: &WorkerReport| worker.reads + worker.writes;
        *keys_told += driver.loads().workers.iter().map(keys).sum::<u64>();
        let (told, server) = (*keys_told, &self.hosts[host].server);
        let sums = (0..self.profile.workers).map(|worker| server.sums_of(worker));
        let done: u64 = sums.map(|sums| sums.cmd_get + sums.cmd_set).sum();
        if told > done {
            self.fail(7, format!("epochs of server {host} have had {told} keys, of {done}"));
        }
    }

    pub fn drive_balancer(&mut self, host: usize, event: Event) {
        let mut actions = Vec::new();
        let now = Instant::from_micros(self.now);
        self.hosts[host].balancing.driver.handle(now, event, &mut actions);
        for action in actions {
            match action {
                Action::Plan(question) => self.ask_planner(host, question),
                Action::Order(order, worker, event) => {
                    let lends = matches!(event, mbal_worker::Event::Lend { .. });
                    let sight = if lends { Sight::DutyLend } else { Sight::DutyLighten };
                    self.coverage.meet(sight);
                    self.hosts[host].orders.waiting.insert(order, (self.now, lends));
                    self.post_to(host, worker, Letter::Tell(event));
                }
                Action::Decided(decision) => self.count_decision(&decision),
                Action::Judged(_) => {}
            }
        }
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
    pub fn report_to_balancer(&mut self, host: usize, report: Report) {
        if self.dice.percent(3) {
            return self.coverage.meet(Sight::ReportLost);
        }
        let longest = self.profile.delay;
        let (delay, life) = (self.dice.skewed(1..=longest), self.hosts[host].life);
        self.after(delay, Happening::Reported { host, life, report });
    }

    /// The operator asks the balancer, not the worker.
    pub fn ask_balancer(&mut self, host: usize) {
        let server = Arc::clone(&self.hosts[host].server);
        let prefixes = server.store.prefixes();
        // At times one that there is not.
        let cachelet = self.dice.pick(&[prefixes.as_slice(), &[Prefix::ALL]].concat());
        let to = WorkerId(self.dice.below(self.profile.workers) as u16);
        self.coverage.meet(Sight::NewsAsked);
        self.drive_balancer(host, Event::Asked { cachelet, to });
    }

    /// Invariant 7: what is even stays so. A plan takes from nobody, and splits nothing, while requests stand waiting nowhere.
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
        if let Some(planned) = plan.splits.first() {
            self.coverage.meet(Sight::SplitPlanned);
            if is_even {
                self.fail(7, format!("{planned:?}, though nobody waits"));
            }
        }
        match moved {
            Some(planned) if is_even && outlook.under_way.is_empty() => {
                self.fail(7, format!("{planned:?}, though loads are {mean:.2}, {most:.2} at most"));
            }
            Some(_) => self.coverage.meet(Sight::PlannedUneven),
            None if is_even => self.coverage.meet(Sight::EvenIsQuiet),
            None => {}
        }
    }

    fn count_decision(&mut self, decision: &Decision) {
        match (decision.cause, decision.verdict) {
            (Cause::Uneven, Verdict::Ordered) => self.coverage.meet(Sight::Evened),
            (Cause::LoanOver, Verdict::Ordered) => self.coverage.meet(Sight::LoanOver),
            (_, Verdict::Rejected(_)) => self.coverage.meet(Sight::NonsenseRejected),
            (_, Verdict::Slow(_)) => self.coverage.meet(Sight::AnswerTooLate),
            _ => {}
        }
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
