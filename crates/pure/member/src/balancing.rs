//! What drives a server's balancer: epochs and what they counted go in, orders for workers and questions for a planner come out, and what
//! heartbeats say of loads.
//!
//! ```text
//!   epochs, workers' reports, the operator ──► Balancing ──► orders, decisions to tell of
//!                                               │    ▲
//!                                      question ▼    │ answer, or that it broke
//!                                      a planner, wherever it runs
//! ```

use std::sync::Arc;
use std::time::Duration;

use mbal_balance::{
    self as balance, Balancer, Cause, Decision, Mode, Proposal, Question, Thresholds, Verdict,
};
use mbal_control::api::{
    BalanceMode, LATENCIES_LISTED, REMEDIES_LISTED, RemedyReport, VitalsReport, WorkerReport,
    cachelets_listed,
};
use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Instant, Prefix, WorkerId, WorkerLoad};
use mbal_worker::{Histograms, OrderId, Report, Shared, Sums, Tallies, order_event};

/// What heartbeats say of the last epoch; nothing before one has ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Loads {
    pub workers: Vec<WorkerReport>,
    pub memory_bytes: u64,
    pub helpless: bool,
    /// Keys read and written a second.
    pub requests: f64,
    /// What the balancer has done last, and what came of it.
    pub remedies: Vec<RemedyReport>,
    pub vitals: VitalsReport,
}

pub enum Event {
    /// The moment of [`Balancing::next_wake`] has come.
    Woken,
    /// The planner's answer to the question of that number; `None` if it broke.
    Planned {
        number: u64,
        proposal: Option<Proposal>,
    },
    Reported(Report),
    /// The operator moves a cachelet.
    Asked {
        cachelet: Prefix,
        to: WorkerId,
    },
    /// The coordinator says how the cluster is balanced.
    Told(BalanceMode),
}

pub enum Action {
    Plan(Question),
    /// For this worker, which reports what came of it.
    Order(OrderId, WorkerId, mbal_worker::Event<'static>),
    /// A decision was taken.
    Decided(Decision),
    /// An epoch has shown what came of one.
    Judged(Decision),
}

pub struct Balancing {
    balancer: Balancer,
    shared: Arc<Shared>,
    epoch: Duration,
    ends: Instant,
    /// What had been counted when the last epoch ended.
    before: Option<Counted>,
    loads: Loads,
    /// The last decisions that were told when they were taken, and when they were judged.
    decided: u64,
    judged: u64,
}

#[derive(Default)]
struct Counted {
    at: Instant,
    tallies: Tallies,
    /// By worker.
    keys: Vec<Keys>,
    latencies: Histograms,
}

#[derive(Clone, Copy, Default)]
struct Keys {
    reads: u64,
    hits: u64,
    writes: u64,
}

impl Balancing {
    pub fn new(
        mode: Mode,
        thresholds: Thresholds,
        epoch: Duration,
        shared: Arc<Shared>,
    ) -> Balancing {
        Balancing {
            balancer: Balancer::new(mode, thresholds),
            shared,
            epoch,
            ends: Instant::ZERO,
            before: None,
            loads: Loads::default(),
            decided: 0,
            judged: 0,
        }
    }

    pub fn balancer(&self) -> &Balancer {
        &self.balancer
    }

    pub fn loads(&self) -> &Loads {
        &self.loads
    }

    /// When the epoch ends.
    pub fn next_wake(&self) -> Instant {
        self.ends
    }

    /// `now` by any clock that does not jump.
    pub fn handle(&mut self, now: Instant, event: Event, actions: &mut Vec<Action>) {
        let mut decided = Vec::new();
        match event {
            Event::Woken if now < self.ends => {}
            Event::Woken => self.end_epoch(now, &mut decided),
            Event::Planned { number, proposal } => {
                self.balancer.handle(balance::Event::Planned { number, proposal }, &mut decided);
            }
            Event::Reported(Report { order, outcome, .. }) => {
                self.balancer
                    .handle(balance::Event::Reported { order: order.0, outcome }, &mut decided);
            }
            Event::Asked { cachelet, to } => {
                let to = self.shared.address(to);
                self.balancer.handle(balance::Event::Move { cachelet, to }, &mut decided);
            }
            Event::Told(mode) => {
                let mode = match mode {
                    BalanceMode::On => Mode::On,
                    BalanceMode::DryRun => Mode::DryRun,
                    BalanceMode::Off => Mode::Off,
                };
                self.balancer.handle(balance::Event::SetMode(mode), &mut decided);
            }
        }
        actions.extend(decided.into_iter().map(|one| match one {
            balance::Action::Ask(question) => Action::Plan(question),
            balance::Action::Order { order, what } => {
                let (worker, event) = order_event(OrderId(order), what);
                Action::Order(OrderId(order), worker, event)
            }
        }));
        self.tell_decisions(actions);
    }

    fn end_epoch(&mut self, now: Instant, decided: &mut Vec<balance::Action>) {
        let tallies = self.shared.end_epoch(now.as_nanos());
        let workers = 0..usize::from(self.shared.settings.workers);
        let keys = workers.map(|worker| Keys::of(&self.shared.sums_of(worker))).collect();
        let latencies = self.shared.latencies_ever();
        let counted = Counted { at: now, tallies, keys, latencies };
        let nothing = Counted::default();
        let (before, is_first) = match &self.before {
            Some(_) if is_planted(Fault::EpochCountsAll) => (&nothing, false),
            Some(before) => (before, false),
            None => (&nothing, true),
        };
        let reading = counted.tallies.since(&before.tallies);
        self.balancer.handle(balance::Event::Epoch(reading), decided);
        self.shared.set_phase_two(self.balancer.in_phase_two());
        // What was counted before there was a balancer is no epoch.
        if !is_first {
            let vitals = vitals(&self.shared, before, &counted);
            self.loads = Loads { vitals, ..loads(&self.balancer, before, &counted) };
        }
        // A thread that woke too late begins a whole epoch: loads of a short one are noise.
        let next = self.ends + self.epoch;
        self.ends = if is_first || next <= now { now + self.epoch } else { next };
        self.before = Some(counted);
    }

    /// A decision is told when it is taken, and once more when an epoch has shown what came of it.
    fn tell_decisions(&mut self, actions: &mut Vec<Action>) {
        for decision in self.balancer.decisions() {
            if decision.number > self.decided {
                self.decided = decision.number;
                actions.push(Action::Decided(decision.clone()));
            }
            if decision.number > self.judged && decision.came.is_some() {
                self.judged = decision.number;
                actions.push(Action::Judged(decision.clone()));
            }
        }
    }
}

impl Counted {
    fn of(&self, worker: usize) -> Keys {
        self.keys.get(worker).copied().unwrap_or_default()
    }
}

impl Keys {
    fn of(sums: &Sums) -> Keys {
        Keys { reads: sums.cmd_get, hits: sums.get_hits, writes: sums.cmd_set }
    }
}

fn loads(balancer: &Balancer, before: &Counted, counted: &Counted) -> Loads {
    let workers = counted.tallies.leaves_since(&before.tallies);
    let listed = cachelets_listed(workers.len());
    let report = |(at, worker): (usize, &WorkerLoad)| {
        let (now, before) = (counted.of(at), before.of(at));
        WorkerReport {
            reads: now.reads - before.reads,
            hits: now.hits - before.hits,
            writes: now.writes - before.writes,
            ..WorkerReport::of(worker, listed)
        }
    };
    let reports: Vec<WorkerReport> = workers.iter().enumerate().map(report).collect();
    let keys = reports.iter().map(|worker| worker.reads + worker.writes).sum::<u64>();
    Loads {
        workers: reports,
        memory_bytes: workers.first().map_or(0, |worker| worker.bytes_max),
        helpless: balancer.is_helpless(),
        requests: keys as f64 / (counted.at - before.at).as_secs_f64().max(1e-9),
        remedies: remedies(balancer),
        vitals: VitalsReport::default(),
    }
}

fn vitals(shared: &Shared, before: &Counted, counted: &Counted) -> VitalsReport {
    let of_epoch = counted.latencies.clone().since(&before.latencies);
    VitalsReport {
        used_bytes: shared.store.used_bytes(),
        latency_ns: of_epoch.all_buckets().take(LATENCIES_LISTED).collect(),
    }
}

/// For the coordinator's ledger.
fn remedies(balancer: &Balancer) -> Vec<RemedyReport> {
    let is_off = balancer.mode() == Mode::Off;
    let is_remedy = |one: &&Decision| {
        (one.cause, one.verdict) == (Cause::Uneven, Verdict::Ordered)
            && !(is_off && one.came.is_none())
    };
    let workers = &balancer.reading().snapshot.workers;
    let report = |one: &Decision| {
        let at = one.helped();
        let came = one.came.as_ref().map(|(now, came)| (now[at], *came));
        let parts = (one.loads[at], one.expected[at]);
        RemedyReport::of_server(one.number, workers[at].at, parts, one.orders.len(), came)
    };
    let last = balancer.decisions().rev().filter(is_remedy).take(REMEDIES_LISTED);
    let fits =
        |one: &&Decision| one.loads.len() == workers.len() && one.expected.len() == workers.len();
    let mut reports: Vec<RemedyReport> = last.filter(fits).map(report).collect();
    reports.reverse();
    reports
}
