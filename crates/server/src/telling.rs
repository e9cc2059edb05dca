//! What the balancer tells operators: tables and decisions.

use std::fmt::Write;

use mbal_balance::{Balancer, Cause, Decision, Mode, Nonsense, Verdict};
use mbal_control::api::CameReport;
use mbal_model::{Instant, Order, Outcome, Owner, Seconds, WorkerId};
use mbal_reactor::Tally;
use mbal_worker::Shared;

/// Decisions that `status` shows.
const DECISIONS_SHOWN: usize = 12;

/// All that `status` and `explain` look at.
pub(crate) struct Teller<'a> {
    pub balancer: &'a Balancer,
    pub server: &'a Shared,
    pub tally: &'a Tally,
    pub second: Seconds,
    /// By the clock of leases.
    pub lease_now: Instant,
}

impl Teller<'_> {
    pub(crate) fn status(&self) -> String {
        let balancer = self.balancer;
        let store = &self.server.store;
        let mut out = format!(
            "version 1.{}, epoch {}, balance {}, phase 2 {}, {} on loan, {} connections handed over\n",
            store.version(),
            balancer.epoch(),
            mode(balancer.mode()),
            if balancer.in_phase_two() { "open" } else { "closed" },
            balancer.loans().len(),
            self.server.sums().conns_handed_over,
        );
        out += "worker   load  fixed  waiting  cachelets  connections\n";
        for (index, worker) in balancer.reading().snapshot.workers.iter().enumerate() {
            writeln!(
                out,
                "{index:>6} {:>6.3} {:>6.3} {:>8.1} {:>10} {:>12}",
                worker.load(),
                worker.fixed,
                worker.waiting(),
                worker.cachelets.len(),
                self.tally.of_worker(index),
            )
            .expect("a String takes all");
        }
        for (cachelet, home, since) in balancer.loans().iter() {
            let Some(WorkerId(owner)) = store.owner(cachelet) else { continue };
            let home = home.worker.0;
            writeln!(
                out,
                "cachelet {} of worker {home} is lent to {owner} since epoch {since}",
                cachelet
            )
            .expect("a String takes all");
        }
        let decisions: Vec<&Decision> = balancer.decisions().rev().take(DECISIONS_SHOWN).collect();
        for decision in decisions.into_iter().rev() {
            out += &told(decision);
            out.push('\n');
        }
        out
    }

    /// As [`crate::balancing::OperatorCall::Ledger`] has it.
    pub(crate) fn ledger(&self) -> String {
        let line = |decision: &Decision| format!("{} {}\n", decision.number, told(decision));
        let lines: String = self.balancer.decisions().rev().map(line).collect();
        format!("{}\n{lines}", mode(self.balancer.mode()))
    }

    pub(crate) fn status_json(&self) -> String {
        let balancer = self.balancer;
        let store = &self.server.store;
        let workers = balancer.reading().snapshot.workers.iter().enumerate().map(|(index, worker)| {
            let cachelets = worker.cachelets.iter().map(|held| {
                let (number, load, rests) = (held.cachelet, held.load, held.pinned);
                format!(r#"{{"cachelet":"{number}","load":{load:.6},"rests":{rests}}}"#)
            });
            format!(
                r#"{{"worker":{index},"load":{:.6},"fixed":{:.6},"waiting":{:.3},"connections":{},"cachelets":[{}]}}"#,
                worker.load(),
                worker.fixed,
                worker.waiting(),
                self.tally.of_worker(index),
                joined(cachelets),
            )
        });
        let loans = balancer.loans().iter().map(|(cachelet, home, since)| {
            let (home, owner) =
                (home.worker.0, store.owner(cachelet).map_or(home.worker.0, |at| at.0));
            format!(r#"{{"cachelet":"{cachelet}","home":{home},"owner":{owner},"since":{since}}}"#)
        });
        let decisions = balancer.decisions().map(json);
        format!(
            concat!(
                r#"{{"version":"1.{}","epoch":{},"balance":"{}","phase_two":{},"workers":[{}],"#,
                r#""loans":[{}],"decisions":[{}]}}"#,
                "\n"
            ),
            store.version(),
            balancer.epoch(),
            mode(balancer.mode()),
            balancer.in_phase_two(),
            joined(workers),
            joined(loans),
            joined(decisions),
        )
    }
}

/// One decision as a line: why, from what, what was ordered, what came of it.
pub(crate) fn told(decision: &Decision) -> String {
    let Decision { number, epoch, cause, verdict, .. } = decision;
    let mut out = format!(
        "decision {number}, epoch {epoch}: {}, workers had {} of their part: {}",
        why(*cause),
        loads(&decision.loads),
        came_of(*verdict),
    );
    for (at, ordered) in decision.orders.iter().enumerate() {
        out += if at == 0 { ": " } else { ", " };
        let (from, to) = ends(ordered.what);
        let load = ordered.load;
        match ordered.what {
            Order::Lend { step, .. } => {
                let number = step.cachelet;
                write!(out, "cachelet {number} ({load:.3}) {from}>{to}")
            }
            Order::Lighten { .. } => write!(out, "connections ({load:.3}) {from}>{to}"),
        }
        .expect("a String takes all");
        match ordered.outcome {
            Some(outcome) => write!(out, " {}", outcome_of(outcome)),
            None => write!(out, " ordered"),
        }
        .expect("a String takes all");
    }
    if !decision.expected.is_empty() {
        write!(out, "; expected {}", loads(&decision.expected)).expect("a String takes all");
    }
    if let (Some((came, _)), Some(judged)) = (&decision.came, judged(decision)) {
        write!(out, "; came {}: {judged}", loads(came)).expect("a String takes all");
    }
    out
}

fn json(decision: &Decision) -> String {
    let orders = decision.orders.iter().map(|ordered| {
        let (from, to) = ends(ordered.what);
        let what = match ordered.what {
            Order::Lend { step, .. } => format!(r#""cachelet":"{}""#, step.cachelet),
            Order::Lighten { share, .. } => format!(r#""connections_share":{share:.3}"#),
        };
        let outcome = ordered.outcome.map_or("null".into(), |one| format!("{:?}", outcome_of(one)));
        format!(
            r#"{{{what},"from":{from},"to":{to},"load":{:.6},"outcome":{outcome}}}"#,
            ordered.load
        )
    });
    let list = |loads: &[f64]| joined(loads.iter().map(|load| format!("{load:.6}")));
    format!(
        r#"{{"number":{},"epoch":{},"cause":"{}","verdict":"{}","loads":[{}],"expected":[{}],"came":[{}],"judged":{},"orders":[{}]}}"#,
        decision.number,
        decision.epoch,
        why(decision.cause),
        came_of(decision.verdict),
        list(&decision.loads),
        list(&decision.expected),
        list(decision.came.as_ref().map_or(&[][..], |(came, _)| came)),
        judged(decision).map_or("null".into(), |judged| format!("{judged:?}")),
        joined(orders),
    )
}

fn joined(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(",")
}

fn ends(what: Order) -> (u16, u16) {
    let worker = |owner: Owner| owner.worker.0;
    match what {
        Order::Lend { step, .. } => (worker(step.from), worker(step.to)),
        Order::Lighten { from, to, .. } => (worker(from), worker(to)),
    }
}

fn loads(loads: &[f64]) -> String {
    loads.iter().map(|load| format!("{load:.2}")).collect::<Vec<_>>().join(" ")
}

pub(crate) fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::On => "on",
        Mode::Off => "off",
        Mode::DryRun => "dry-run",
    }
}

fn why(cause: Cause) -> &'static str {
    match cause {
        Cause::Uneven => "uneven",
        Cause::Undone => "undone",
        Cause::LoanOver => "loan over",
        Cause::Withdrawn => "withdrawn",
        Cause::Operator => "operator",
    }
}

/// Causes and verdicts as labels, all of them.
pub(crate) const CAUSES: [&str; 5] = ["uneven", "undone", "loan_over", "withdrawn", "operator"];
pub(crate) const VERDICTS: [&str; 6] =
    ["ordered", "would_order", "refused", "failed", "no_plan", "slow"];

pub(crate) fn cause_of(cause: Cause) -> &'static str {
    let [uneven, undone, loan_over, withdrawn, operator] = CAUSES;
    match cause {
        Cause::Uneven => uneven,
        Cause::Undone => undone,
        Cause::LoanOver => loan_over,
        Cause::Withdrawn => withdrawn,
        Cause::Operator => operator,
    }
}

pub(crate) fn verdict_of(verdict: Verdict) -> &'static str {
    let [ordered, would_order, refused, failed, no_plan, slow] = VERDICTS;
    match verdict {
        Verdict::Ordered => ordered,
        Verdict::OnlySaid => would_order,
        Verdict::Rejected(_) => refused,
        Verdict::Failed => failed,
        Verdict::NoPlan => no_plan,
        Verdict::Slow(_) => slow,
    }
}

/// What came for the worker that was to be helped.
fn judged(decision: &Decision) -> Option<String> {
    let (now, came) = decision.came.as_ref()?;
    let of = |loads: &[f64]| loads.get(decision.helped()).copied().unwrap_or_default();
    let (seen, expected, now) = (of(&decision.loads), of(&decision.expected), of(now));
    Some(CameReport::from(*came).in_words(seen, expected, now))
}

fn came_of(verdict: Verdict) -> String {
    match verdict {
        Verdict::Ordered => "ordered".into(),
        Verdict::OnlySaid => "would order".into(),
        Verdict::Rejected(nonsense) => format!("the plan is refused, {}", wrong(nonsense)),
        Verdict::Failed => "the planner failed".into(),
        Verdict::NoPlan => "no plan helps".into(),
        Verdict::Slow(epochs) => format!("no answer of the planner for {epochs} epochs"),
    }
}

fn wrong(nonsense: Nonsense) -> String {
    match nonsense {
        Nonsense::Cachelet(id) => format!("it moves cachelet {} from where it is not", id),
        Nonsense::Restless(id) => format!("it moves cachelet {}, which rests", id),
        Nonsense::Worker => "it names a wrong worker".into(),
        Nonsense::Load => "its loads are impossible".into(),
        Nonsense::NoGain => "it gains nothing".into(),
    }
}

pub(crate) fn outcome_of(outcome: Outcome) -> String {
    match outcome {
        Outcome::Done => "done".into(),
        Outcome::Due => "due between two requests".into(),
        Outcome::Leaving(1) => "1 leaves".into(),
        Outcome::Leaving(count) => format!("{count} leave"),
        Outcome::Stale => "too late".into(),
        Outcome::Refused => "refused".into(),
    }
}
