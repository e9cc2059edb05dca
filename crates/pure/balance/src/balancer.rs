//! Phase 2 of one server as a state machine: epochs in, orders out.
//!
//! ```text
//!   workers' counts ──Epoch──►┌──────────┐──Ask(question)──► planner, wherever the process runs it
//!   planner ────────Planned──►│ Balancer │◄─────┐                     (slow, wrong or broken: no matter)
//!   workers ───────Reported──►│          │──Order(lend, lighten)──► a worker, by its mailbox
//!   operator ──────────Asked─►└──────────┘      └── Reported ──┘
//! ```
//!
//! The process and the simulator drive the same code. It never waits: while a planner thinks, epochs
//! go on without a plan; an order that nobody reports is only never known to have been done.

use std::collections::{BTreeMap, VecDeque};

use mbal_model::{Move, Order, Outcome, Owner, Prefix, Reading};

use crate::pour::Lighten;
use crate::proposal::{Nonsense, Proposal, Question, propose};
use crate::{Loans, PhaseMachine, Rest, Thresholds, Vitals, deviation};

/// A difference between workers, in time, that no user can feel: below it a server is even.
pub(crate) const GAP_MIN: f64 = 0.05;

/// A plan aims at this much of the unevenness that calls for one, so that it need not be called again.
const AIM: f64 = 0.2;

/// Below this a cachelet's load, as a part of a worker's time, is noise: it has not changed.
const LOAD_FELT: f64 = 0.02;

/// Epochs after a plan in which what it has left over, or what it could not see, is evened out too:
/// a saturated worker does not show how much is asked of it.
const SETTLING_EPOCHS: u64 = 4;

/// What nothing can be done about is looked at every 4 << 3 epochs.
const IN_VAIN_MAX: u32 = 3;

/// Decisions that are remembered.
const DECISIONS_MAX: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    On,
    /// Counts and obeys the operator, decides nothing.
    Off,
    /// Decides and tells, orders nothing.
    DryRun,
}

/// Everything that can happen to a balancer.
#[derive(Debug)]
pub enum News {
    Epoch(Reading),
    /// Hot keys of the worker that has most, and whether one is hot by writes: what the next epoch counts.
    Hot {
        keys: u32,
        write_hot: bool,
    },
    /// The planner's answer to the question of that number; `None` if it failed.
    Planned {
        number: u64,
        proposal: Option<Proposal>,
    },
    /// A worker has obeyed an order, or has not.
    Reported {
        order: u64,
        outcome: Outcome,
    },
    /// The operator moves a cachelet.
    Asked {
        cachelet: Prefix,
        to: Owner,
    },
}

/// Everything that it can ask for.
#[derive(Clone, Debug, PartialEq)]
pub enum Duty {
    Ask(Question),
    Order { order: u64, what: Order },
}

/// Why something was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    Uneven,
    /// The heat is gone, and home has room.
    LoanOver,
    Operator,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Ordered,
    /// [`Mode::DryRun`].
    OnlySaid,
    Rejected(Nonsense),
    /// The planner broke.
    Failed,
    /// The planner found nothing that helps.
    NoPlan,
    /// The planner has not answered for so many epochs.
    Slow(u64),
}

/// One decision with its inputs, its plan and what came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    pub number: u64,
    pub epoch: u64,
    pub cause: Cause,
    pub verdict: Verdict,
    /// By worker, in the epoch that it was taken on.
    pub loads: Vec<f64>,
    /// By worker, as expected of it.
    pub expected: Vec<f64>,
    /// What the planner was asked with.
    pub deviation: f64,
    pub orders: Vec<Ordered>,
    /// By worker, in the epoch after it.
    pub came: Option<Vec<f64>>,
}

impl Decision {
    /// There was something to be done, and nothing has changed by it.
    fn was_in_vain(&self) -> bool {
        let done = |ordered: &Ordered| match ordered.outcome {
            Some(Outcome::Done | Outcome::Due) | None => true,
            Some(Outcome::Leaving(count)) => count > 0,
            Some(Outcome::Stale | Outcome::Refused) => false,
        };
        matches!(self.verdict, Verdict::Ordered | Verdict::NoPlan) && !self.orders.iter().any(done)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Ordered {
    pub order: u64,
    pub what: Order,
    /// The cachelet's load.
    pub load: f64,
    pub outcome: Option<Outcome>,
}

pub struct Balancer {
    mode: Mode,
    thresholds: Thresholds,
    epoch: u64,
    machine: PhaseMachine,
    rest: Rest,
    /// In this epoch.
    just_moved: Vec<Prefix>,
    loans: Loans,
    reading: Reading,
    /// Epochs in a row in which the server was uneven.
    uneven_epochs: u32,
    /// Decisions in a row that changed nothing: each doubles the patience.
    in_vain: u32,
    /// How uneven it was then: another unevenness is another matter.
    in_vain_gap: f64,
    settles_until: u64,
    /// The question that the planner has, and the epoch in which it got it.
    asked: Option<(Question, u64)>,
    last_question: u64,
    last_order: u64,
    no_local_plan: bool,
    hot_keys: u32,
    write_hot: bool,
    in_phase_two: bool,
    decisions: Decisions,
}

/// The last ones, oldest first; they are numbered.
#[derive(Default)]
struct Decisions {
    all: VecDeque<Decision>,
    last: u64,
}

impl Decisions {
    fn push(&mut self, decision: Decision) {
        // Once is enough to be told that nothing helps.
        let again = self.all.back().is_some_and(|last| {
            (last.cause, last.verdict) == (decision.cause, decision.verdict)
                && decision.verdict == Verdict::NoPlan
        });
        if again {
            self.all.pop_back();
        }
        if self.all.len() == DECISIONS_MAX {
            self.all.pop_front();
        }
        self.last += 1;
        self.all.push_back(Decision { number: self.last, ..decision });
    }
}

impl Balancer {
    pub fn new(mode: Mode, thresholds: Thresholds) -> Balancer {
        Balancer {
            mode,
            thresholds,
            epoch: 0,
            machine: PhaseMachine::default(),
            rest: Rest::default(),
            just_moved: Vec::new(),
            loans: Loans::default(),
            reading: Reading::default(),
            uneven_epochs: 0,
            in_vain: 0,
            in_vain_gap: 0.0,
            settles_until: 0,
            asked: None,
            last_question: 0,
            last_order: 0,
            no_local_plan: false,
            hot_keys: 0,
            write_hot: false,
            in_phase_two: false,
            decisions: Decisions::default(),
        }
    }

    /// Takes one piece of news; appends to `duties` what is to be done about it.
    pub fn handle(&mut self, news: News, duties: &mut Vec<Duty>) {
        match news {
            News::Epoch(reading) => self.end_epoch(reading, duties),
            News::Hot { keys, write_hot } => (self.hot_keys, self.write_hot) = (keys, write_hot),
            News::Planned { number, proposal } => self.planned(number, proposal, duties),
            News::Reported { order, outcome } => self.reported(order, outcome),
            News::Asked { cachelet, to } => self.operate(cachelet, to, duties),
        }
    }

    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Epochs so far.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    pub fn in_phase_two(&self) -> bool {
        self.in_phase_two
    }

    /// Epochs in a row, up to now, in which workers differed and some had room.
    pub fn uneven_epochs(&self) -> u32 {
        self.uneven_epochs
    }

    pub fn thresholds(&self) -> &Thresholds {
        &self.thresholds
    }

    /// The last epoch's loads; cachelets that rest are pinned.
    pub fn reading(&self) -> &Reading {
        &self.reading
    }

    pub fn loans(&self) -> &Loans {
        &self.loans
    }

    /// A worker is overloaded, and this server does nothing about it: it may not, all its workers are about as busy, or its
    /// planner has found no way, or would find none if it were asked now. Phase 3 has a patience of its own, which need
    /// not begin when that of phase 2 ends. Runs a planner, where a worker is overloaded.
    pub fn is_helpless(&self) -> bool {
        let vitals = self.vitals(&self.reading.loads());
        let is_even = vitals.deviation <= self.thresholds.imbalance;
        let finds_none = || {
            let (reading, thresholds) = (self.reading.clone(), self.thresholds);
            propose(&Question { number: 0, reading, thresholds }).beyond
        };
        vitals.hotspot && (self.mode != Mode::On || is_even || self.no_local_plan || finds_none())
    }

    /// The last decisions, oldest first.
    pub fn decisions(&self) -> impl DoubleEndedIterator<Item = &Decision> {
        self.decisions.all.iter()
    }

    fn end_epoch(&mut self, mut reading: Reading, duties: &mut Vec<Duty>) {
        self.epoch += 1;
        let rest_epochs = self.thresholds.rest_epochs;
        self.rest.forget_before(self.epoch, rest_epochs);
        self.loans.forget_absent(&reading.snapshot);
        let just_moved = std::mem::take(&mut self.just_moved);
        for held in reading.snapshot.workers.iter_mut().flat_map(|worker| &mut worker.cachelets) {
            let load = held.load.max(LOAD_FELT);
            // What it is like where it is now: where it came from may have been saturated.
            if just_moved.contains(&held.cachelet) {
                self.rest.note(held.cachelet, load, self.epoch - 1);
            }
            held.pinned = self.rest.pinned(held.cachelet, load, self.epoch, rest_epochs);
        }
        let loads = reading.loads();
        let before = self.epoch - 1;
        for decision in self.decisions.all.iter_mut().rev().take_while(|past| past.epoch == before)
        {
            decision.came = Some(loads.clone());
            if decision.cause == Cause::Uneven && decision.was_in_vain() {
                self.in_vain = (self.in_vain + 1).min(IN_VAIN_MAX);
                self.in_vain_gap = gap(&decision.loads);
                self.settles_until = 0;
            }
        }
        self.reading = reading;
        let vitals = self.vitals(&loads);
        let uneven = vitals.deviation > self.thresholds.imbalance && vitals.headroom;
        self.uneven_epochs = if uneven { self.uneven_epochs + 1 } else { 0 };
        let other_gap = (gap(&loads) - self.in_vain_gap).abs() > 0.5 * self.in_vain_gap;
        if !uneven || other_gap {
            self.in_vain = 0;
        }
        let patience = self.thresholds.patience.max(1) << self.in_vain;
        self.in_phase_two = self.machine.observe(&vitals, &self.thresholds).two;
        if self.mode == Mode::Off || !self.in_phase_two {
            return;
        }
        if let Some((_, since)) = self.asked {
            let waited = self.epoch - since;
            if waited == u64::from(self.thresholds.patience) {
                self.decide(Cause::Uneven, Verdict::Slow(waited), Vec::new(), Vec::new(), duties);
            }
            return;
        }
        let settles = self.epoch <= self.settles_until && gap(&loads) >= GAP_MIN;
        if settles || self.uneven_epochs >= patience {
            self.ask(duties);
        } else if !uneven {
            self.send_home(duties);
        }
    }

    fn vitals(&self, loads: &[f64]) -> Vitals {
        let thresholds = &self.thresholds;
        let most = loads.iter().copied().fold(0.0, f64::max);
        let least = loads.iter().copied().fold(f64::INFINITY, f64::min);
        let hotspot = thresholds.is_over(most);
        let felt = gap(loads) >= GAP_MIN;
        // One hot worker among many hardly shows in the mean.
        let uneven = if hotspot { gap(loads) / (most - gap(loads)) } else { deviation(loads) };
        let over = loads.iter().filter(|load| thresholds.is_over(**load)).count();
        Vitals {
            hotspot,
            hot_keys: self.hot_keys,
            write_hot: hotspot && self.write_hot,
            deviation: if felt { uneven } else { 0.0 },
            headroom: least < thresholds.permissible,
            overloaded_share: over as f64 / loads.len().max(1) as f64,
            no_local_plan: self.no_local_plan,
            loans: self.loans.len() as u32,
            ..Vitals::default()
        }
    }

    fn aim(&self) -> f64 {
        self.thresholds.imbalance * AIM
    }

    fn ask(&mut self, duties: &mut Vec<Duty>) {
        self.last_question += 1;
        let thresholds = Thresholds { imbalance: self.aim(), ..self.thresholds };
        let reading = self.reading.clone();
        let question = Question { number: self.last_question, reading, thresholds };
        self.asked = Some((question.clone(), self.epoch));
        duties.push(Duty::Ask(question));
    }

    fn planned(&mut self, number: u64, proposal: Option<Proposal>, duties: &mut Vec<Duty>) {
        let Some((question, since)) = self.asked.take_if(|(asked, _)| asked.number == number)
        else {
            return;
        };
        // What was true then may not be now: nobody trusts an old answer.
        let late = self.epoch - since;
        let (verdict, proposal, expected) = match proposal {
            None => (Verdict::Failed, Proposal::default(), Vec::new()),
            Some(_) if late >= u64::from(self.thresholds.patience.max(1)) => {
                (Verdict::Slow(late), Proposal::default(), Vec::new())
            }
            Some(proposal) => match proposal.check(&question.reading) {
                Err(nonsense) => (Verdict::Rejected(nonsense), Proposal::default(), Vec::new()),
                Ok(expected) => (Verdict::Ordered, proposal, expected),
            },
        };
        self.no_local_plan = proposal.beyond;
        let orders = orders_of(&proposal, &question.reading);
        let verdict = match verdict {
            Verdict::Ordered if orders.is_empty() => {
                if self.epoch <= self.settles_until {
                    return;
                }
                Verdict::NoPlan
            }
            verdict => verdict,
        };
        if verdict == Verdict::Ordered && self.epoch > self.settles_until {
            self.settles_until = self.epoch + SETTLING_EPOCHS;
        }
        self.uneven_epochs = 0;
        self.decide(Cause::Uneven, verdict, expected, orders, duties);
    }

    fn send_home(&mut self, duties: &mut Vec<Duty>) {
        let home = self.loans.homecoming(&self.reading.snapshot, self.epoch, &self.thresholds);
        let proposal = Proposal { moves: home, ..Proposal::default() };
        let orders = orders_of(&proposal, &self.reading);
        if !orders.is_empty() {
            self.decide(Cause::LoanOver, Verdict::Ordered, Vec::new(), orders, duties);
        }
    }

    fn operate(&mut self, cachelet: Prefix, to: Owner, duties: &mut Vec<Duty>) {
        let mut workers = self.reading.snapshot.workers.iter();
        let owner = workers.find(|worker| worker.cachelets.iter().any(|c| c.cachelet == cachelet));
        let Some(from) = owner.map(|worker| worker.at) else { return };
        let proposal = Proposal { moves: vec![Move { cachelet, from, to }], ..Proposal::default() };
        let mut orders = orders_of(&proposal, &self.reading);
        for order in &mut orders {
            if let (_, Order::Lend { seen, .. }) = order {
                *seen = u64::MAX;
            }
        }
        self.decide(Cause::Operator, Verdict::Ordered, Vec::new(), orders, duties);
    }

    fn decide(
        &mut self,
        cause: Cause,
        verdict: Verdict,
        expected: Vec<f64>,
        orders: Vec<(f64, Order)>,
        duties: &mut Vec<Duty>,
    ) {
        let silent = self.mode == Mode::DryRun && cause != Cause::Operator;
        let verdict =
            if silent && verdict == Verdict::Ordered { Verdict::OnlySaid } else { verdict };
        let orders: Vec<Ordered> = orders
            .into_iter()
            .map(|(load, what)| {
                self.last_order += 1;
                Ordered { order: self.last_order, what, load, outcome: None }
            })
            .collect();
        if verdict == Verdict::Ordered {
            let order =
                |ordered: &Ordered| Duty::Order { order: ordered.order, what: ordered.what };
            duties.extend(orders.iter().map(order));
        }
        let loads = self.reading.loads();
        self.decisions.push(Decision {
            number: 0,
            epoch: self.epoch,
            cause,
            verdict,
            deviation: deviation(&loads),
            loads,
            expected,
            orders,
            came: None,
        });
    }

    fn reported(&mut self, order: u64, outcome: Outcome) {
        let mut decisions = self.decisions.all.iter_mut().rev();
        let ordered = decisions.find_map(|decision| {
            let at = decision.orders.binary_search_by_key(&order, |ordered| ordered.order).ok()?;
            Some(&mut decision.orders[at])
        });
        let Some(ordered) = ordered.filter(|ordered| ordered.outcome.is_none()) else { return };
        ordered.outcome = Some(outcome);
        if let (Order::Lend { step, .. }, Outcome::Done) = (ordered.what, outcome) {
            self.loans.note(&step, self.epoch);
            self.rest.note(step.cachelet, ordered.load.max(LOAD_FELT), self.epoch);
            self.just_moved.push(step.cachelet);
        }
    }
}

/// How far the heaviest worker is above the average.
fn gap(loads: &[f64]) -> f64 {
    let average = loads.iter().sum::<f64>() / loads.len().max(1) as f64;
    loads.iter().copied().fold(0.0, f64::max) - average
}

/// The orders that carry a proposal out, with the cachelets' loads.
fn orders_of(proposal: &Proposal, reading: &Reading) -> Vec<(f64, Order)> {
    let workers = &reading.snapshot.workers;
    let held = workers.iter().flat_map(|worker| &worker.cachelets);
    let loads: BTreeMap<Prefix, f64> = held.map(|held| (held.cachelet, held.load)).collect();
    let lend = |step: &Move| {
        let load = loads.get(&step.cachelet).copied().unwrap_or(0.0);
        (load, Order::Lend { step: *step, seen: reading.seen })
    };
    let lighten = |step: &Lighten| {
        let all = reading.handable[step.from];
        let (from, to) = (workers[step.from].at, workers[step.to].at);
        let (share, share_max) = ((step.load / all).min(1.0), step.load_max / all);
        (step.load, Order::Lighten { from, to, share, share_max })
    };
    proposal.moves.iter().map(lend).chain(proposal.lighten.iter().map(lighten)).collect()
}
