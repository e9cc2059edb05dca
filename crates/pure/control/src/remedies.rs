//! The ledger of balance: what is to help which worker, what was expected of it, what came. The planner's part is in the state, and with that
//! a coordinator's that comes after; servers tell theirs with each heartbeat.

use mbal_model::{Came, ClusterPlan, MoveId, Owner, Remedy, ServerId};

use crate::api::{BalanceMode, CameReport, MoveDecision, RemedyReport, reported};
use crate::ledger::Ledger;
use crate::moves;

/// Cachelets that an event names.
const NAMED_MAX: usize = 8;
/// In an epoch, and in an answer.
const REMEDIES_TOLD_MAX: usize = 32;
/// A remedy came true if it brought this part of the relief that was expected. The balancer goes on with less, which is no reason to say so.
const CAME_TRUE_MIN: f64 = 0.9;

/// Keeps what a plan says of remedies, and tells what is new. Without balance nothing of it is begun.
pub(crate) fn keep(ledger: &mut Ledger, plan: &ClusterPlan) {
    let before = &ledger.state().remedies;
    if ledger.state().balance != BalanceMode::On || *before == plan.remedies {
        return;
    }
    let begins = |one: &&Remedy| {
        let is_known =
            |known: &Remedy| (known.at, known.split) == (one.at, one.split) && known.came.is_none();
        one.came.is_none() && !before.iter().any(is_known)
    };
    let ends = |one: &&Remedy| one.came.is_some() && !is_among(one, before);
    let new = plan.remedies.iter();
    let mut said: Vec<String> = new.clone().filter(ends).map(in_words).collect();
    said.extend(new.filter(begins).map(in_words));
    said.truncate(REMEDIES_TOLD_MAX);
    said.into_iter().for_each(|what| ledger.say(what));
    ledger.change().remedies.clone_from(&plan.remedies);
}

/// Whether that was known already; that nothing is in vain any more is no news.
fn is_among(one: &Remedy, before: &[Remedy]) -> bool {
    before.iter().any(|known| *one == Remedy { vain: one.vain, ..known.clone() })
}

/// Balance is off: what remedies have under way stays where it is, and none is pending.
pub(crate) fn withdraw(ledger: &mut Ledger) {
    let pending = ledger.state().remedies.iter().filter(|one| one.came.is_none());
    let steps = pending.flat_map(|one| &one.moves).map(|one| one.step);
    let cachelets: Vec<_> = steps.map(|step| (step.cachelet, step.to.server)).collect();
    let moves = ledger.state().moves.iter();
    let ordered = moves.filter(|(_, one)| {
        one.word == MoveDecision::Go && cachelets.contains(&(one.prefix, one.to.server))
    });
    let ordered: Vec<MoveId> = ordered.map(|(number, _)| *number).collect();
    for number in ordered {
        moves::cancel(ledger, number.0).expect("it is under way");
    }
    if !cachelets.is_empty() {
        ledger.change().remedies.retain(|one| one.came.is_some());
    }
}

/// Tells what a server does by itself, and what came of it. `before`: what it has said last; nothing of a process that is new here.
pub(crate) fn heard(
    ledger: &mut Ledger,
    server: ServerId,
    before: &[RemedyReport],
    now: &[RemedyReport],
) {
    let newest = before.iter().map(|one| one.number).max();
    for one in now.iter().take(REMEDIES_TOLD_MAX) {
        let known = before.iter().find(|known| known.number == one.number);
        let is_new = known.is_none() && newest.is_none_or(|newest| newest < one.number);
        let is_judged = known.is_some_and(|known| known.came.is_none()) && one.came.is_some();
        if is_new || is_judged {
            ledger.say(format!("server {}: {}", server.0, one.told()));
        }
    }
}

/// The coordinator's and the servers', those that are pending first.
pub(crate) fn status(ledger: &Ledger) -> Vec<RemedyReport> {
    let own = ledger.state().remedies.iter().rev().map(report);
    let servers = ledger.recent().flat_map(|(_, heard)| heard.last.remedies.iter().rev());
    let mut all: Vec<RemedyReport> = own.chain(servers.cloned()).collect();
    all.sort_by_key(|one| one.came.is_some());
    all.truncate(REMEDIES_TOLD_MAX);
    all
}

fn report(one: &Remedy) -> RemedyReport {
    RemedyReport {
        number: 0,
        server: one.at.server.0,
        worker: one.at.worker.0,
        seen: one.seen,
        expected: one.expected,
        steps: one.moves.len() as u32,
        is_inside: false,
        split: one.split.map(|whole| whole.to_string()),
        came: one.came.map(|(now, came)| (now, came.into())),
    }
}

fn in_words(one: &Remedy) -> String {
    let named = one.moves.iter().take(NAMED_MAX).map(|one| one.step.cachelet.to_string());
    let mut named: Vec<String> = named.collect();
    let more = one.moves.len().saturating_sub(NAMED_MAX);
    if more > 0 {
        named.push(format!("{more} more"));
    }
    match named.is_empty() {
        true => report(one).told(),
        false => format!("{}: {}", report(one).told(), named.join(", ")),
    }
}

impl RemedyReport {
    /// Of a server, by number.
    pub fn of_server(
        number: u64,
        at: Owner,
        (seen, expected): (f64, f64),
        steps: usize,
        came: Option<(f64, Came)>,
    ) -> RemedyReport {
        let (server, worker, steps) = (at.server.0, at.worker.0, steps as u32);
        let [seen, expected] = [seen, expected].map(reported);
        let came = came.map(|(now, came)| (reported(now), came.into()));
        let (is_inside, split) = (true, None);
        RemedyReport { number, server, worker, seen, expected, steps, is_inside, split, came }
    }

    /// What was seen, what is done, what is expected, what came.
    pub fn told(&self) -> String {
        let RemedyReport { server, worker, seen, expected, steps, is_inside, split, came, .. } =
            self;
        if let Some(whole) = split {
            return self.told_of_split(whole);
        }
        let what = match (is_inside, steps) {
            (true, 1) => "1 step inside the server",
            (true, steps) => &format!("{steps} steps inside the server"),
            (false, 1) => "1 move",
            (false, steps) => &format!("{steps} moves"),
        };
        let begin = format!("worker {server}/{worker} had {seen:.2} of its part, {what}");
        match came {
            None => format!("{begin} to leave it {expected:.2}"),
            Some((now, judged)) => {
                let judged = judged.in_words(*seen, *expected, *now);
                format!("{begin}: expected {expected:.2}, came {now:.2}: {judged}")
            }
        }
    }

    /// What was judged of it, in words, and whether it came true; `None` while it is pending.
    pub fn judged(&self) -> Option<(String, bool)> {
        let RemedyReport { seen, expected, came, .. } = self;
        let (now, judged) = (*came)?;
        let came_true = judged == CameReport::True && has_come_true(*seen, *expected, now);
        Some((judged.in_words(*seen, *expected, now), came_true))
    }

    fn told_of_split(&self, whole: &str) -> String {
        let RemedyReport { server, worker, seen, expected, came, .. } = self;
        let begin = format!("{whole} alone had {seen:.2} of the part of worker {server}/{worker}");
        match came {
            None => format!("{begin}, its parts are to have {expected:.2} each"),
            Some((now, judged)) => {
                let judged = judged.in_words(*seen, *expected, *now);
                format!(
                    "{begin}: expected {expected:.2} for each of its parts, came {now:.2} for the heaviest: {judged}"
                )
            }
        }
    }
}

fn has_come_true(seen: f64, expected: f64, now: f64) -> bool {
    (seen - expected).max(0.0) * CAME_TRUE_MIN <= seen - now
}

impl CameReport {
    /// What came beside what was expected: which part of the relief, and what follows.
    pub fn in_words(self, seen: f64, expected: f64, now: f64) -> String {
        let (promised, brought) = (seen - expected, seen - now);
        let came_true = has_come_true(seen, expected, now);
        let part = match brought / promised {
            part if promised > 0.0 && part >= 0.005 => {
                format!("{:.0}% of the relief", 100.0 * part)
            }
            _ => "nothing of the relief".into(),
        };
        match self {
            CameReport::True if came_true => "it came true".into(),
            CameReport::True => format!("{part} came"),
            CameReport::Short if came_true => {
                format!("{part} came, but others pay for it, so it is tried less often")
            }
            CameReport::Short => format!("{part} came, so it is tried less often"),
            CameReport::Worse => "worse, so it goes back".into(),
        }
    }
}

impl From<CameReport> for Came {
    fn from(judged: CameReport) -> Came {
        match judged {
            CameReport::True => Came::True,
            CameReport::Short => Came::Short,
            CameReport::Worse => Came::Worse,
        }
    }
}

impl From<Came> for CameReport {
    fn from(came: Came) -> CameReport {
        match came {
            Came::True => CameReport::True,
            Came::Short => CameReport::Short,
            Came::Worse => CameReport::Worse,
        }
    }
}
