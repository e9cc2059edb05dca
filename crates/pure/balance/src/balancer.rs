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

use mbal_model::{Came, Move, Order, Outcome, Owner, Prefix, Reading};

use crate::cases::{Cases, Sign};
use crate::pour::Lighten;
use crate::proposal::{Nonsense, Proposal, Question};
use crate::rest::Size;
use crate::shares::{Shares, quotient};
use crate::trust::{Trust, came};
use crate::{Loans, Rest, Thresholds};

/// After so many epochs a remedy is judged; until then its case is nobody else's.
pub(crate) const JUDGED_EPOCHS: u64 = 2;

/// Decisions that are remembered.
const DECISIONS_MAX: usize = 256;

/// The later, the more cautious.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    On,
    /// Decides and tells, orders nothing.
    DryRun,
    /// Counts and obeys the operator, decides nothing; takes back what it has lent.
    Off,
}

/// Everything that can happen to a balancer.
#[derive(Debug)]
pub enum Event {
    Epoch(Reading),
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
    Move {
        cachelet: Prefix,
        to: Owner,
    },
    /// The cluster is balanced like that; who was started more cautious stays so.
    SetMode(Mode),
}

/// Everything that it can ask for.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    Ask(Question),
    Order { order: u64, what: Order },
}

/// Why something was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    Uneven,
    /// It had made the worst worker worse.
    Undone,
    /// The heat is gone, and home has room.
    LoanOver,
    /// [`Mode::Off`]: what was lent goes home.
    Withdrawn,
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
    /// By worker, share of the work / share of the capacity when it was taken.
    pub loads: Vec<f64>,
    /// By worker, as they were to be.
    pub expected: Vec<f64>,
    pub orders: Vec<Ordered>,
    /// By worker, as they were when it was judged, and what that says.
    pub came: Option<(Vec<f64>, Came)>,
}

impl Decision {
    /// The worker that is to be helped, by its place: the worst one.
    pub fn helped(&self) -> usize {
        worst(&self.loads)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Ordered {
    pub order: u64,
    pub what: Order,
    /// What goes, as a part of an average worker's work.
    pub load: f64,
    pub outcome: Option<Outcome>,
}

impl Ordered {
    /// What takes it back, of a cachelet that was lent.
    fn back(&self) -> Option<Move> {
        match (self.what, self.outcome) {
            (Order::Lend { step, .. }, Some(Outcome::Done)) => {
                Some(Move { from: step.to, to: step.from, ..step })
            }
            _ => None,
        }
    }
}

pub struct Balancer {
    mode: Mode,
    /// As it was started.
    mode_least: Mode,
    thresholds: Thresholds,
    epoch: u64,
    shares: Shares,
    cases: Cases,
    /// By worker that was to be helped.
    trust: Trust<Owner>,
    rest: Rest,
    loans: Loans,
    reading: Reading,
    /// The same by shares.
    demand: Reading,
    /// Epochs in a row in which requests stood waiting in a worker; by worker.
    waits: Vec<u32>,
    /// When a remedy for a worker's case has acted last.
    acted: BTreeMap<Owner, u64>,
    /// The question that the planner has, and the epoch in which it got it.
    asked: Option<(Question, u64)>,
    last_question: u64,
    last_order: u64,
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
            mode_least: mode,
            thresholds,
            epoch: 0,
            shares: Shares::default(),
            cases: Cases::default(),
            trust: Trust::default(),
            rest: Rest::default(),
            loans: Loans::default(),
            reading: Reading::default(),
            demand: Reading::default(),
            waits: Vec::new(),
            acted: BTreeMap::new(),
            asked: None,
            last_question: 0,
            last_order: 0,
            in_phase_two: false,
            decisions: Decisions::default(),
        }
    }

    /// Takes one event; appends to `actions` what is to be done about it.
    pub fn handle(&mut self, event: Event, actions: &mut Vec<Action>) {
        match event {
            Event::Epoch(reading) => self.end_epoch(reading, actions),
            Event::Planned { number, proposal } => self.planned(number, proposal, actions),
            Event::Reported { order, outcome } => self.reported(order, outcome),
            Event::Move { cachelet, to } => self.operate(cachelet, to, actions),
            Event::SetMode(mode) => {
                self.mode = mode.max(self.mode_least);
                if self.mode == Mode::Off {
                    self.asked = None;
                }
            }
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

    /// Share of the work / share of the capacity, by worker.
    pub fn quotients(&self) -> Vec<f64> {
        self.demand.snapshot.workers.iter().map(quotient).collect()
    }

    /// Requests stand waiting in a worker, and this server does nothing about it: it may not, its workers have as much to do, what was to
    /// help has not helped, or nothing helps.
    pub fn is_helpless(&self) -> bool {
        let workers = self.reading.snapshot.workers.iter().zip(&self.waits);
        let mut waiting = workers
            .filter(|(_, epochs)| self.thresholds.patience <= **epochs)
            .map(|(worker, _)| worker.at);
        waiting.any(|at| self.mode != Mode::On || !self.is_own(at))
    }

    /// A worker's case is this server's: it has one, and what was to help may help yet.
    fn is_own(&self, at: Owner) -> bool {
        let acted = self.acted.get(&at);
        self.cases.open(at) > 0
            && !self.trust.waits(&at, self.epoch)
            && acted.is_none_or(|epoch| self.epoch < epoch + JUDGED_EPOCHS)
    }

    /// The last decisions, oldest first.
    pub fn decisions(&self) -> impl DoubleEndedIterator<Item = &Decision> {
        self.decisions.all.iter()
    }

    fn end_epoch(&mut self, mut reading: Reading, actions: &mut Vec<Action>) {
        self.epoch += 1;
        let rest_epochs = self.thresholds.rest_epochs;
        self.rest.forget_before(self.epoch, rest_epochs);
        self.loans.forget_absent(&reading.snapshot);
        let rests = |_, cachelet| self.rest.has(cachelet);
        self.shares.observe(reading.snapshot.workers.iter(), |_| false, rests, |_| false);
        if self.shares.age() == 0 {
            self.trust.clear();
            self.acted.clear();
        }
        for at in self.shares.divided() {
            self.trust.note(at, Came::True, self.epoch);
            self.acted.remove(&at);
        }
        for held in reading.snapshot.workers.iter_mut().flat_map(|worker| &mut worker.cachelets) {
            let size = Size { load: held.load, share: self.shares.share(held.cachelet) };
            held.pinned = self.rest.pinned(held.cachelet, size, self.epoch, rest_epochs);
        }
        self.demand = demand_of(&self.shares, &reading);
        self.reading = reading;
        let workers = self.demand.snapshot.workers.iter().zip(&self.reading.snapshot.workers);
        let signs = workers.map(|(demand, worker)| Sign {
            at: worker.at,
            waits: self.thresholds.waits(worker),
            quotient: quotient(demand),
            keys: worker.service.keys,
        });
        let signs: Vec<Sign> = signs.collect();
        self.waits.resize(signs.len(), 0);
        for (epochs, sign) in self.waits.iter_mut().zip(&signs) {
            *epochs = if sign.waits { *epochs + 1 } else { 0 };
        }
        let patience = self.thresholds.patience;
        self.cases.observe(signs.into_iter(), patience);
        // Another case is another matter; and what is still over after a while, though others had their turn, may be helped again.
        let (now, patience) = (self.epoch, 2 * u64::from(patience));
        self.acted.retain(|at, epoch| {
            let is_judged = *epoch + JUDGED_EPOCHS <= now;
            now < *epoch + patience && (self.cases.open(*at) > 0 || !is_judged)
        });
        self.trust.forget(self.epoch);
        self.judge(actions);
        self.in_phase_two = self.cases.any_open() || !self.loans.is_empty();
        if self.mode == Mode::Off {
            self.withdraw(actions);
            return;
        }
        if let Some((_, since)) = self.asked {
            let waited = self.epoch - since;
            if waited == patience {
                self.decide(Cause::Uneven, Verdict::Slow(waited), Vec::new(), Vec::new(), actions);
            }
            return;
        }
        if self.pressing().next().is_some() {
            self.ask(actions);
        } else if !self.cases.any_open() {
            self.send_home(actions);
        }
    }

    /// Workers whose cases are this server's, and for which nothing is pending.
    fn pressing(&self) -> impl Iterator<Item = Owner> + '_ {
        let all = self.demand.snapshot.workers.iter().map(|worker| worker.at);
        all.filter(|at| {
            self.cases.is_pressing(*at) && self.is_own(*at) && !self.acted.contains_key(at)
        })
    }

    /// What came of remedies whose time is over.
    fn judge(&mut self, actions: &mut Vec<Action>) {
        // What was taken back has shown nothing.
        if self.mode == Mode::Off {
            return;
        }
        let now = self.quotients();
        let most = |all: &[f64]| all.iter().copied().fold(0.0, f64::max);
        let due = self.epoch.saturating_sub(JUDGED_EPOCHS);
        let mut undone = Vec::new();
        for decision in self.decisions.all.iter_mut().rev().take_while(|past| due <= past.epoch) {
            let is_due = decision.epoch == due && decision.verdict == Verdict::Ordered;
            if !is_due || decision.loads.len() != now.len() || decision.expected.len() != now.len()
            {
                continue;
            }
            let source = decision.helped();
            let (seen, expected) = (decision.loads[source], decision.expected[source]);
            let came = came(seen, expected, now[source], most(&decision.loads), most(&now));
            // Another load is nobody's fault.
            let came =
                if self.shares.age() < 2 && came == Came::Worse { Came::Short } else { came };
            if decision.cause == Cause::Uneven {
                let at = self.demand.snapshot.workers[source].at;
                self.trust.note(at, came, self.epoch);
                if came == Came::Worse {
                    undone.extend(decision.orders.iter().filter_map(Ordered::back));
                }
            }
            decision.came = Some((now.clone(), came));
        }
        if !undone.is_empty() && self.mode == Mode::On {
            let there = |step: &Move| {
                let mut workers = self.demand.snapshot.workers.iter();
                let from = workers.find(|worker| worker.at == step.from);
                from.is_some_and(|from| {
                    from.cachelets.iter().any(|one| one.cachelet == step.cachelet)
                })
            };
            undone.retain(there);
            let proposal = Proposal { moves: undone, ..Proposal::default() };
            let orders = orders_of(&proposal, &self.demand);
            self.decide(Cause::Undone, Verdict::Ordered, Vec::new(), orders, actions);
        }
    }

    fn ask(&mut self, actions: &mut Vec<Action>) {
        self.last_question += 1;
        let question = Question { number: self.last_question, demand: self.demand.clone() };
        self.asked = Some((question.clone(), self.epoch));
        actions.push(Action::Ask(question));
    }

    fn planned(&mut self, number: u64, proposal: Option<Proposal>, actions: &mut Vec<Action>) {
        let Some((question, since)) = self.asked.take_if(|(asked, _)| asked.number == number)
        else {
            return;
        };
        // What was true then may not be now: nobody trusts an old answer.
        let late = self.epoch - since;
        let (verdict, proposal, expected) = match proposal {
            None => (Verdict::Failed, Proposal::default(), Vec::new()),
            Some(_) if late >= 2 * u64::from(self.thresholds.patience) => {
                (Verdict::Slow(late), Proposal::default(), Vec::new())
            }
            Some(proposal) => match proposal.check(&question.demand) {
                Err(nonsense) => (Verdict::Rejected(nonsense), Proposal::default(), Vec::new()),
                Ok(expected) => (Verdict::Ordered, proposal, expected),
            },
        };
        let orders = orders_of(&proposal, &question.demand);
        let verdict = match verdict {
            Verdict::Ordered if orders.is_empty() => Verdict::NoPlan,
            verdict => verdict,
        };
        let pressing: Vec<Owner> = self.pressing().collect();
        for at in pressing {
            match verdict {
                Verdict::Ordered => drop(self.acted.insert(at, self.epoch)),
                _ => self.trust.note(at, Came::Short, self.epoch),
            }
        }
        self.decide(Cause::Uneven, verdict, expected, orders, actions);
    }

    fn send_home(&mut self, actions: &mut Vec<Action>) {
        let rest_epochs = self.thresholds.rest_epochs;
        let home = self.loans.homecoming(&self.demand.snapshot, self.epoch, rest_epochs);
        let proposal = Proposal { moves: home, ..Proposal::default() };
        let orders = orders_of(&proposal, &self.demand);
        if !orders.is_empty() {
            self.decide(Cause::LoanOver, Verdict::Ordered, Vec::new(), orders, actions);
        }
    }

    /// What a worker does not report, or cannot do now, is ordered anew in the next epoch.
    fn withdraw(&mut self, actions: &mut Vec<Action>) {
        let moves = self.loans.withdrawal(&self.reading.snapshot);
        let orders = orders_of(&Proposal { moves, ..Proposal::default() }, &self.demand);
        if !orders.is_empty() {
            self.decide(Cause::Withdrawn, Verdict::Ordered, Vec::new(), orders, actions);
        }
    }

    fn operate(&mut self, cachelet: Prefix, to: Owner, actions: &mut Vec<Action>) {
        let mut workers = self.reading.snapshot.workers.iter();
        let owner = workers.find(|worker| worker.cachelets.iter().any(|c| c.cachelet == cachelet));
        let Some(from) = owner.map(|worker| worker.at) else { return };
        let proposal = Proposal { moves: vec![Move { cachelet, from, to }], ..Proposal::default() };
        let mut orders = orders_of(&proposal, &self.demand);
        for order in &mut orders {
            if let (_, Order::Lend { seen, .. }) = order {
                *seen = u64::MAX;
            }
        }
        self.decide(Cause::Operator, Verdict::Ordered, Vec::new(), orders, actions);
    }

    fn decide(
        &mut self,
        cause: Cause,
        verdict: Verdict,
        expected: Vec<f64>,
        orders: Vec<(f64, Order)>,
        actions: &mut Vec<Action>,
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
                |ordered: &Ordered| Action::Order { order: ordered.order, what: ordered.what };
            actions.extend(orders.iter().map(order));
        }
        self.decisions.push(Decision {
            number: 0,
            epoch: self.epoch,
            cause,
            verdict,
            loads: self.quotients(),
            expected,
            orders,
            came: None,
        });
    }

    fn reported(&mut self, order: u64, outcome: Outcome) {
        let mut decisions = self.decisions.all.iter_mut().rev();
        let ordered = decisions.find_map(|decision| {
            let at = decision.orders.binary_search_by_key(&order, |ordered| ordered.order).ok()?;
            Some((&mut decision.orders[at], decision.cause))
        });
        let ordered = ordered.filter(|(ordered, _)| ordered.outcome.is_none());
        let Some((ordered, cause)) = ordered else { return };
        ordered.outcome = Some(outcome);
        if let (Order::Lend { step, .. }, Outcome::Done) = (ordered.what, outcome) {
            self.loans.note(&step, self.epoch, cause == Cause::Operator);
            let workers = self.reading.snapshot.workers.iter();
            let mut held = workers.flat_map(|worker| &worker.cachelets);
            let held = held.find(|held| held.cachelet == step.cachelet);
            let load = held.map_or(0.0, |held| held.load);
            self.rest.note(step.cachelet, Size { load, share: ordered.load }, self.epoch);
        }
    }
}

/// The first of the largest.
fn worst(quotients: &[f64]) -> usize {
    let mut at = 0;
    for (index, quotient) in quotients.iter().enumerate() {
        at = if *quotient > quotients[at] { index } else { at };
    }
    at
}

/// A reading by shares; what connections make up of it, by quotients.
fn demand_of(shares: &Shares, reading: &Reading) -> Reading {
    let snapshot = shares.demand(&reading.snapshot);
    let workers = snapshot.workers.iter().zip(&reading.snapshot.workers).zip(&reading.handable);
    let handable = workers.map(|((demand, worker), handable)| {
        let part = if worker.fixed > 0.0 { (handable / worker.fixed).min(1.0) } else { 0.0 };
        part * demand.fixed / demand.service.capacity
    });
    let handable = handable.collect();
    Reading { handable, snapshot, seen: reading.seen }
}

/// The orders that carry a proposal out, with the cachelets' shares.
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
