//! The balancer's threads: one that counts epochs and gives orders, one that plans.
//!
//! ```text
//!   mbal-balancer: epochs, reports, the operator ──► Balancer ──orders──► workers' mailboxes
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
use std::time::Duration;

use mbal_balance::{Balancer, Decision, Duty, News, Proposal, Question, Thresholds};
use mbal_control::api::{Heartbeat, WorkerReport, cachelets_listed};
use mbal_locks::{Mutex, ranks};
use mbal_model::{Outcome, Prefix, WorkerId, WorkerLoad};
use mbal_reactor::{Letter, Mailbox, Tally, watchdog};
use mbal_worker::{OrderId, Report, Sums, Tallies, order_event};

use crate::explaining::not_here;
use crate::started::Started;
use crate::telling::{CAUSES, Teller, VERDICTS, cause_of, outcome_of, told, verdict_of};
use crate::{BalanceConfig, chaos, hot_keys, log};

pub(crate) const PLANNER: &str = "mbal-planner";

/// What the balancer's thread is told.
pub(crate) enum Note {
    Reported(Report),
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
}

/// The last decisions that the log knows of, by number.
#[derive(Default)]
struct Logged {
    taken: u64,
    over: u64,
}

/// What the balancer has done so far, for whoever counts.
#[derive(Debug, Default)]
pub(crate) struct Balanced {
    /// By cause and verdict, if there has been one.
    decisions: Mutex<ranks::Decisions, BTreeMap<(&'static str, &'static str), u64>>,
    pub loans: AtomicU64,
    /// What heartbeats say of the last epoch.
    last: Mutex<ranks::LastEpoch, LastEpoch>,
}

#[derive(Clone, Debug, Default)]
struct LastEpoch {
    workers: Vec<WorkerReport>,
    memory_bytes: u64,
    helpless: bool,
    /// Keys read and written a second.
    requests: f64,
    /// By worker, all that was counted up to its end.
    sums: Vec<Sums>,
}

impl Balanced {
    /// Decisions by cause and verdict, all that there can be.
    pub(crate) fn decisions(&self) -> Vec<([&'static str; 2], u64)> {
        let counted = self.decisions.lock();
        let pairs = CAUSES.iter().flat_map(|cause| VERDICTS.map(|verdict| (*cause, verdict)));
        pairs.map(|pair| ([pair.0, pair.1], counted.get(&pair).copied().unwrap_or(0))).collect()
    }

    /// How the server was in its last epoch; nothing else is said.
    pub(crate) fn heartbeat(&self) -> Heartbeat {
        let last = self.last.lock().clone();
        let LastEpoch { workers, memory_bytes, helpless, requests, .. } = last;
        Heartbeat { workers, memory_bytes, helpless, requests, ..Heartbeat::default() }
    }

    /// Of an epoch of so many seconds.
    fn end_epoch(&self, balancer: &Balancer, sums: Vec<Sums>, seconds: f64) {
        let workers = &balancer.reading().snapshot.workers;
        let mut last = self.last.lock();
        let listed = cachelets_listed(workers.len());
        let report = |(at, worker): (usize, &WorkerLoad)| {
            let now = &sums[at];
            let before = last.sums.get(at).copied().unwrap_or_default();
            WorkerReport {
                reads: now.cmd_get - before.cmd_get,
                hits: now.get_hits - before.get_hits,
                writes: now.cmd_set - before.cmd_set,
                ..WorkerReport::of(worker, listed)
            }
        };
        let workers_told: Vec<WorkerReport> = workers.iter().enumerate().map(report).collect();
        let keys = workers_told.iter().map(|worker| worker.reads + worker.writes).sum::<u64>();
        *last = LastEpoch {
            workers: workers_told,
            requests: keys as f64 / seconds,
            memory_bytes: workers.first().map_or(0, |worker| worker.bytes_max),
            helpless: balancer.is_helpless(),
            sums,
        };
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

    /// Counts a decision and tells it when it is taken; tells it once more when an epoch has shown what came of it.
    fn log(&self, balancer: &Balancer, logged: &mut Logged) {
        self.balanced.loans.store(balancer.loans().len() as u64, Relaxed);
        let loud = self.server.gauges.verbosity.load(Relaxed) > 0;
        for decision in balancer.decisions() {
            let is_new = decision.number > logged.taken;
            if is_new {
                self.balanced.count(decision);
            }
            let is_over = decision.number > logged.over && decision.came.is_some();
            if loud && (is_new || is_over) {
                log::info("balanced", &format!("mbal: {}", told(decision)));
            }
            logged.taken = logged.taken.max(decision.number);
            logged.over = if is_over { decision.number } else { logged.over };
        }
    }

    fn tell(&self, balancer: &Balancer, asked: &OperatorCall) -> String {
        let second = self.started.at(self.started.clock.now_ns()).second;
        let lease_now = self.started.lease_clock.now();
        let told = Teller { balancer, server: &self.server, tally: &self.tally, second, lease_now };
        match asked {
            OperatorCall::Status { json: false } => told.status(),
            OperatorCall::Status { json: true } => told.status_json(),
            OperatorCall::Explain(what) => told.explain(what),
            OperatorCall::HotKeys => {
                let here = self.server.address(WorkerId(0)).server.0;
                let requests = self.balanced.heartbeat().requests;
                let told = hot_keys::told(&self.server, here, requests, lease_now);
                serde_json::to_string(&told).expect("strings and numbers have a JSON form") + "\n"
            }
            OperatorCall::Move { .. } => unreachable!("it is answered when it is done"),
        }
    }

    fn balance(self, inbox: &Receiver<Note>, questions: &Sender<Question>) {
        let BalanceConfig { mode, epoch, load_max, patience, .. } = self.config;
        let thresholds = Thresholds { permissible: load_max, patience, ..Thresholds::default() };
        let mut balancer = Balancer::new(mode, thresholds);
        let mut duties = Vec::new();
        let mut before = self.server.end_epoch(self.started.clock.now_ns());
        balancer.handle(News::Epoch(before.since(&Tallies::default())), &mut duties);
        let mut waiting: BTreeMap<u64, Sender<String>> = BTreeMap::new();
        let mut logged = Logged::default();
        let epoch_ns = epoch.as_nanos() as u64;
        let mut began_ns = self.started.clock.now_ns();
        let mut ends_ns = began_ns + epoch_ns;
        // Nobody rings it: epochs end.
        let pulse = watchdog::watch(|| {});
        loop {
            let left = Duration::from_nanos(ends_ns.saturating_sub(self.started.clock.now_ns()));
            match pulse.rests(|| inbox.recv_timeout(left)) {
                Ok(Note::Reported(Report { order, outcome, .. })) => {
                    balancer.handle(News::Reported { order: order.0, outcome }, &mut duties);
                    if let Some(asker) = waiting.remove(&order.0) {
                        drop(asker.send(in_words(outcome)));
                    }
                }
                Ok(Note::Planned { number, proposal }) => {
                    balancer.handle(News::Planned { number, proposal }, &mut duties);
                }
                Ok(Note::OperatorCall(OperatorCall::Move { cachelet, to }, asker)) => {
                    balancer
                        .handle(News::Asked { cachelet, to: self.server.address(to) }, &mut duties);
                    match duties.last() {
                        Some(Duty::Order { order, .. }) => drop(waiting.insert(*order, asker)),
                        _ => drop(asker.send(not_here(&self.server, cachelet))),
                    }
                }
                Ok(Note::OperatorCall(asked, asker)) => {
                    drop(asker.send(self.tell(&balancer, &asked)))
                }
                Err(RecvTimeoutError::Timeout) => {
                    let now_ns = self.started.clock.now_ns();
                    let tallies = self.server.end_epoch(now_ns);
                    let reading = tallies.since(&before);
                    before = tallies;
                    ends_ns = (ends_ns + epoch_ns).max(now_ns);
                    let (hot_keys, write_hot) = hot_keys::vital(&self.server);
                    balancer.handle(News::Hot { keys: hot_keys, write_hot }, &mut duties);
                    balancer.handle(News::Epoch(reading), &mut duties);
                    self.server.set_phase_two(balancer.in_phase_two());
                    let seconds = (now_ns - began_ns).max(1) as f64 / 1e9;
                    began_ns = now_ns;
                    let workers = balancer.reading().snapshot.workers.len();
                    let sums = (0..workers).map(|worker| self.server.sums_of(worker)).collect();
                    self.balanced.end_epoch(&balancer, sums, seconds);
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
            for duty in duties.drain(..) {
                match duty {
                    // A planner that has gone answers nothing, which the balancer can live with.
                    Duty::Ask(question) => drop(questions.send(question)),
                    Duty::Order { order, what } => {
                        let (worker, event) = order_event(OrderId(order), what);
                        self.workers[usize::from(worker.0)].post(Letter::Tell(event));
                    }
                }
            }
            self.log(&balancer, &mut logged);
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
