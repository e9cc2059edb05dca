//! The balancer's threads: one that has `mbal_member`'s [`balancing::Balancing`] and gives its orders, one that plans.
//!
//! ```text
//!   mbal-balancer: epochs, reports, the operator ──► Balancing ──orders──► workers' mailboxes
//!        ▲   │                                                                 │
//!        │   └─question──► mbal-planner: propose                               │
//!        └────answer, or that it broke ◄──┘       └──────────reports───────────┘
//! ```
//!
//! Nobody waits for either: the workers serve, whatever becomes of them.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;

use mbal_balance::{Balancer, Decision, Proposal, Question, Thresholds};
use mbal_control::api::BalanceMode;
use mbal_locks::{Mutex, ranks};
use mbal_member::balancing::{self, Action, Event, Loads};
use mbal_model::{Outcome, Prefix, WorkerId};
use mbal_reactor::{Letter, Mailbox, Tally, watchdog};
use mbal_worker::{OrderId, Report};

use crate::explaining::not_here;
use crate::started::Started;
use crate::telling::{CAUSES, Teller, VERDICTS, cause_of, outcome_of, told, verdict_of};
use crate::{BalanceConfig, chaos, hot_keys, log};

pub(crate) const PLANNER: &str = "mbal-planner";

/// What the balancer's thread is told.
pub(crate) enum Note {
    Reported(Report),
    /// By the coordinator.
    Told(BalanceMode),
    Planned {
        number: u64,
        proposal: Option<Proposal>,
    },
    /// Answered by text; one that begins with `error: ` says what is wrong.
    OperatorCall(OperatorCall, Sender<String>),
}

/// What an operator wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OperatorCall {
    Status {
        json: bool,
    },
    Move {
        cachelet: Prefix,
        to: WorkerId,
    },
    /// A cachelet's number, or a key.
    Explain(Vec<u8>),
    HotKeys,
    /// How it balances in a line, then the last decisions, each a number and what it was; the newest first.
    Ledger,
}

/// What the balancer has done so far, for whoever counts.
#[derive(Debug, Default)]
pub(crate) struct Balanced {
    /// By cause and verdict, if there has been one.
    decisions: Mutex<ranks::Decisions, BTreeMap<(&'static str, &'static str), u64>>,
    pub loans: AtomicU64,
    /// What heartbeats say of the last epoch.
    last: Mutex<ranks::LastEpoch, Loads>,
}

impl Balanced {
    /// Decisions by cause and verdict, all that there can be.
    pub(crate) fn decisions(&self) -> Vec<([&'static str; 2], u64)> {
        let counted = self.decisions.lock();
        let pairs = CAUSES.iter().flat_map(|cause| VERDICTS.map(|verdict| (*cause, verdict)));
        pairs.map(|pair| ([pair.0, pair.1], counted.get(&pair).copied().unwrap_or(0))).collect()
    }

    pub(crate) fn loads(&self) -> Loads {
        self.last.lock().clone()
    }

    fn count(&self, decision: &Decision) {
        let pair = (cause_of(decision.cause), verdict_of(decision.verdict));
        *self.decisions.lock().entry(pair).or_default() += 1;
    }
}

/// What plans: [`mbal_balance::propose`], or a test's.
pub type Planner = fn(&Question) -> Proposal;

pub(crate) struct Balancing {
    pub config: BalanceConfig,
    pub planner: Planner,
    pub server: Arc<mbal_worker::Shared>,
    pub tally: Arc<Tally>,
    pub workers: Arc<[Mailbox<Letter>]>,
    pub started: Started,
    pub balanced: Arc<Balanced>,
}

impl Balancing {
    /// Starts both threads. They end with the process.
    pub(crate) fn start(self, inbox: Receiver<Note>, outbox: Sender<Note>) -> std::io::Result<()> {
        let (questions, asked) = channel::<Question>();
        let planner = self.planner;
        thread::Builder::new().name(PLANNER.into()).spawn(move || {
            for question in asked {
                // A planner that breaks has no plan; see `panics::end_the_process`.
                let proposal = catch_unwind(AssertUnwindSafe(|| planner(&question))).ok();
                let number = question.number;
                if outbox.send(Note::Planned { number, proposal }).is_err() {
                    return;
                }
            }
        })?;
        if self.config.chaos > 0 {
            chaos::start(self.config.chaos, &self.server, &self.workers)?;
        }
        thread::Builder::new()
            .name("mbal-balancer".into())
            .spawn(move || self.balance(&inbox, &questions))?;
        Ok(())
    }

    fn tell(&self, balancer: &Balancer, asked: &OperatorCall) -> String {
        let second = self.started.at(self.started.clock.now_ns()).second;
        let lease_now = self.started.lease_clock.now();
        let told = Teller { balancer, server: &self.server, tally: &self.tally, second, lease_now };
        match asked {
            OperatorCall::Status { json: false } => told.status(),
            OperatorCall::Status { json: true } => told.status_json(),
            OperatorCall::Explain(what) => told.explain(what),
            OperatorCall::Ledger => told.ledger(),
            OperatorCall::HotKeys => {
                let here = self.server.address(WorkerId(0)).server.0;
                let requests = self.balanced.loads().requests;
                let told = hot_keys::told(&self.server, here, requests, lease_now);
                serde_json::to_string(&told).expect("strings and numbers have a JSON form") + "\n"
            }
            OperatorCall::Move { .. } => unreachable!("it is answered when it is done"),
        }
    }

    fn balance(self, inbox: &Receiver<Note>, questions: &Sender<Question>) {
        let BalanceConfig { mode, epoch, load_max, patience, .. } = self.config;
        let thresholds = Thresholds { permissible: load_max, patience, ..Thresholds::default() };
        let shared = Arc::clone(&self.server);
        let mut balancing = balancing::Balancing::new(mode, thresholds, epoch, shared);
        let mut actions = Vec::new();
        let mut waiting: BTreeMap<OrderId, Sender<String>> = BTreeMap::new();
        // Nobody rings it: epochs end.
        let pulse = watchdog::watch(|| {});
        loop {
            let left = balancing.next_wake() - self.started.clock.now();
            let (event, asker) = match pulse.rests(|| inbox.recv_timeout(left)) {
                Ok(Note::Reported(report)) => {
                    if let Some(asker) = waiting.remove(&report.order) {
                        drop(asker.send(in_words(report.outcome)));
                    }
                    (Event::Reported(report), None)
                }
                Ok(Note::Planned { number, proposal }) => {
                    (Event::Planned { number, proposal }, None)
                }
                Ok(Note::Told(mode)) => (Event::Told(mode), None),
                Ok(Note::OperatorCall(OperatorCall::Move { cachelet, to }, asker)) => {
                    (Event::Asked { cachelet, to }, Some((cachelet, asker)))
                }
                Ok(Note::OperatorCall(asked, asker)) => {
                    drop(asker.send(self.tell(balancing.balancer(), &asked)));
                    continue;
                }
                Err(RecvTimeoutError::Timeout) => (Event::Woken, None),
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let ends = matches!(event, Event::Woken);
            balancing.handle(self.started.clock.now(), event, &mut actions);
            if ends {
                *self.balanced.last.lock() = balancing.loads().clone();
            }
            if let Some((cachelet, asker)) = asker {
                let order = actions.iter().find_map(|action| match action {
                    Action::Order(order, ..) => Some(*order),
                    _ => None,
                });
                match order {
                    Some(order) => drop(waiting.insert(order, asker)),
                    None => drop(asker.send(not_here(&self.server, cachelet))),
                }
            }
            self.balanced.loans.store(balancing.balancer().loans().len() as u64, Relaxed);
            actions.drain(..).for_each(|action| self.act(action, questions));
        }
    }

    fn act(&self, action: Action, questions: &Sender<Question>) {
        let say = |decision: &Decision| {
            if self.server.gauges.verbosity.load(Relaxed) > 0 {
                log::info("balanced", &format!("mbal: {}", told(decision)));
            }
        };
        match action {
            // A planner that has gone answers nothing, which the balancer can live with.
            Action::Plan(question) => drop(questions.send(question)),
            Action::Order(_, worker, event) => {
                self.workers[usize::from(worker.0)].post(Letter::Tell(event));
            }
            Action::Decided(decision) => {
                self.balanced.count(&decision);
                say(&decision);
            }
            Action::Judged(decision) => say(&decision),
        }
    }
}

fn in_words(outcome: Outcome) -> String {
    match outcome {
        Outcome::Stale => "error: it has just changed its owner; try again\n".into(),
        Outcome::Refused => "error: no such worker, or it is there already\n".into(),
        _ => format!("{}\n", outcome_of(outcome)),
    }
}
