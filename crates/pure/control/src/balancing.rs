//! Balance between servers, as the coordinator sees it: what a planner reads, and what is made of its plan.
//!
//! ```text
//!   Request::Outlook ──► heartbeats, map, moves ──► Response::Outlook ──► a planner, wherever the process runs it
//!   Request::Planned ◄───────────────────────────── ClusterPlan ◄──────────┘
//!        └──► moves are begun, as an operator would; what is new is told
//! ```
//! Plans nothing itself. A plan is a wish: what does not fit the state any more is left out.

use std::collections::{BTreeMap, VecDeque};

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{
    ClusterPlan, Instant, Move, PlannedMove, PlannedSplit, Prefix, ServerId, Why, moves_max,
};

use crate::api::{BalanceMode, BalanceStatus, MoveCall};
use crate::draining::Drains;
use crate::ledger::Ledger;
use crate::moves;
use crate::remedies;
use crate::scaling::Resizing;

/// What came of plans since this process began.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Balanced {
    /// The last one.
    pub plan: ClusterPlan,
    /// Plans so far.
    pub plans: u64,
    /// Moves that were begun, by why.
    pub begun: BTreeMap<Why, u64>,
    /// Moves and splits of a plan that did not fit the state any more.
    pub outdated: u64,
    /// What a dry run has told last.
    only_said: Vec<(Prefix, ServerId)>,
    /// What empties servers and has no place yet, by the last plan.
    later: VecDeque<PlannedMove>,
    refusing: BTreeMap<ServerId, Refusing>,
    pub(crate) drains: Drains,
}

/// A server that moves did not reach, though they were to.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Refusing {
    /// In a row.
    times: u32,
    /// Until then it is not given its share.
    until: Instant,
}

/// A server that has refused a move is left alone for so long; each time in a row doubles that.
const REFUSED_EPOCHS: u32 = 4;
/// Up to 32 epochs.
const REFUSED_DOUBLED_MAX: u32 = 3;

pub(crate) fn set_mode(ledger: &mut Ledger, mode: BalanceMode) {
    if ledger.state().balance != mode {
        ledger.change().balance = mode;
        ledger.say(format!("balance between servers is {}", in_words(mode)));
        if mode == BalanceMode::Off {
            remedies::withdraw(ledger);
        }
    }
}

impl Balanced {
    /// A move to this server has come to nothing, and nobody wanted that. Others that fail meanwhile are the same refusal.
    pub(crate) fn has_refused(&mut self, ledger: &Ledger, server: ServerId) {
        if self.refuses(ledger.now, server) || is_planted(Fault::RefusalsAreForgotten) {
            return;
        }
        let before = self.refusing.get(&server).map_or(0, |refusing| refusing.times);
        let pause = ledger.epoch * (REFUSED_EPOCHS << before.min(REFUSED_DOUBLED_MAX));
        let until = ledger.now + pause;
        self.refusing.insert(server, Refusing { times: before + 1, until });
    }

    /// A move to it has arrived, or it is another process.
    pub(crate) fn refuses_no_more(&mut self, server: ServerId) {
        self.refusing.remove(&server);
    }

    pub(crate) fn refuses(&self, now: Instant, server: ServerId) -> bool {
        self.refusing.get(&server).is_some_and(|refusing| now < refusing.until)
    }

    /// Begins what may be begun: everything if balance is on, else only what empties servers.
    pub(crate) fn planned(&mut self, ledger: &mut Ledger, scaling: &Resizing, plan: ClusterPlan) {
        self.tell_changes(ledger, &plan);
        remedies::keep(ledger, &plan);
        let mut only_said = Vec::new();
        for planned in &plan.moves {
            let (from, to) = (planned.step.from.server, planned.step.to.server);
            if !scaling.may_be_carried(ledger.state(), from, to) {
                continue;
            }
            let wanted = planned.why == Why::Drain
                || ledger.state().balance == BalanceMode::On
                || is_planted(Fault::OffIsIgnored);
            if !wanted {
                only_said.push((planned.step.cachelet, planned.step.to.server));
                let is_new = !self.only_said.contains(only_said.last().expect("pushed"));
                if ledger.state().balance == BalanceMode::DryRun && is_new {
                    ledger.say(format!("would move {}", told(planned)));
                }
                continue;
            }
            self.begin(ledger, planned);
        }
        for planned in &plan.splits {
            let balance = ledger.state().balance;
            if balance == BalanceMode::On || is_planted(Fault::OffIsIgnored) {
                self.split(ledger, planned);
                continue;
            }
            only_said.push((planned.cachelet, planned.at.server));
            let is_new = !self.only_said.contains(only_said.last().expect("pushed"));
            if balance == BalanceMode::DryRun && is_new {
                let (whole, server) = (planned.cachelet, planned.at.server.0);
                ledger.say(format!("would split {whole} of server {server}: {}", why(planned)));
            }
        }
        self.only_said = only_said;
        self.plans += 1;
        self.later = plan.later.iter().copied().collect();
        self.plan = plan;
        self.drains.update(ledger.state());
    }

    /// Begins what was planned ahead as far as there are places for it by now.
    pub(crate) fn begin_later(&mut self, ledger: &mut Ledger, scaling: &Resizing) {
        for planned in std::mem::take(&mut self.later) {
            let (from, to) = (planned.step.from.server, planned.step.to.server);
            let under_way = || ledger.state().moves.values();
            let gives = under_way().filter(|one| one.from.server == from).count();
            let takes = under_way().filter(|one| one.to.server == to).count();
            let most = moves_max(planned.bytes, ledger.ends(from));
            if gives.max(takes) >= most || !scaling.may_be_carried(ledger.state(), from, to) {
                self.later.push_back(planned);
            } else if ledger.is_heard(to) && self.is_still_wanted(ledger, &planned) {
                self.begin(ledger, &planned);
            }
        }
    }

    /// Of what was planned ahead: its server is to be emptied still; or the cluster is to be balanced, it is well, and who gets its
    /// share takes it.
    fn is_still_wanted(&self, ledger: &Ledger, planned: &PlannedMove) -> bool {
        let (from, to) = (planned.step.from.server, planned.step.to.server);
        match planned.why {
            Why::Share => {
                let is_on = ledger.state().balance == BalanceMode::On;
                is_on && ledger.is_heard(from) && !self.refuses(ledger.now, to)
            }
            _ => ledger.state().draining.contains(&from),
        }
    }

    fn begin(&mut self, ledger: &mut Ledger, planned: &PlannedMove) {
        let Move { cachelet, from, to } = planned.step;
        let mut map = ledger.state().cachelets();
        let is_there = map.any(|(held, owner)| *held == cachelet && owner.server == from.server);
        let member = ledger.state().members.get(&to.server);
        let worker = member.filter(|member| to.worker.0 < member.workers()).map(|_| to.worker.0);
        let call = MoveCall { prefix: cachelet.to_string(), server: to.server.0, worker };
        drop(map);
        match is_there.then(|| moves::order(ledger, &call)) {
            Some(Ok(number)) => {
                *self.begun.entry(planned.why).or_default() += 1;
                ledger.say(format!("move {number}: {}", told(planned)));
            }
            // Something has changed since the outlook; the next one knows.
            Some(Err(_)) | None => self.outdated += 1,
        }
    }

    fn split(&mut self, ledger: &mut Ledger, planned: &PlannedSplit) {
        let (whole, server) = (planned.cachelet, planned.at.server);
        let mut map = ledger.state().cachelets();
        let is_there = map.any(|(held, owner)| *held == whole && owner.server == server);
        drop(map);
        match is_there.then(|| moves::divide(ledger, whole, planned.bits)) {
            Some(Ok(_)) => {
                let parts: Vec<String> =
                    whole.parts(planned.bits).map(|part| part.to_string()).collect();
                let (parts, why) = (parts.join(", "), why(planned));
                ledger.say(format!("{whole} of server {} is split into {parts}: {why}", server.0));
            }
            Some(Err(_)) | None => self.outdated += 1,
        }
    }

    /// What is new since the last plan, with what it was found in.
    fn tell_changes(&mut self, ledger: &mut Ledger, plan: &ClusterPlan) {
        let before = std::mem::take(&mut self.plan);
        let loads =
            format!("loads are {:.2} on average, {:.2} at most", plan.load_mean, plan.load_max);
        if plan.asking != before.asking {
            ledger.say(match plan.asking.as_slice() {
                [] => format!("no server asks for help any more: {loads}"),
                asking => format!("phase 3 for {}: {loads}", servers(asking)),
            });
        }
        if plan.servers_wanted != before.servers_wanted {
            ledger.say(match plan.servers_wanted {
                0 => format!("no more servers are wanted: {loads}"),
                wanted => format!("{wanted} more servers wanted: {loads}"),
            });
        }
        for prefix in plan.too_heavy.iter().filter(|prefix| !before.too_heavy.contains(prefix)) {
            ledger.say(format!("{prefix} is too heavy for any worker: {loads}"));
        }
        let connections = plan.by_connections.iter();
        for server in connections.filter(|server| !before.by_connections.contains(server)) {
            ledger.say(format!(
                "server {} is overloaded by its connections, which no move takes away: {loads}",
                server.0
            ));
        }
        for server in plan.in_vain.iter().filter(|server| !before.in_vain.contains(server)) {
            ledger.say(format!(
                "server {} gives in vain, clients do not follow its cachelets: {loads}",
                server.0
            ));
        }
        for server in plan.stuck.iter().filter(|server| !before.stuck.contains(server)) {
            ledger.say(format!("server {} cannot be emptied, nobody has room: {loads}", server.0));
        }
    }

    pub(crate) fn status(&self, ledger: &Ledger) -> BalanceStatus {
        let plan = &self.plan;
        BalanceStatus {
            mode: ledger.state().balance,
            remedies: remedies::status(ledger),
            asking: plan.asking.iter().map(|server| server.0).collect(),
            servers_wanted: plan.servers_wanted,
            too_heavy: plan.too_heavy.iter().map(Prefix::to_string).collect(),
            by_connections: plan.by_connections.iter().map(|server| server.0).collect(),
            load_mean: plan.load_mean,
            load_max: plan.load_max,
        }
    }
}

fn servers(ids: &[ServerId]) -> String {
    let numbers: Vec<String> = ids.iter().map(|id| id.0.to_string()).collect();
    match numbers.as_slice() {
        [one] => format!("server {one}"),
        all => format!("servers {}", all.join(", ")),
    }
}

/// A move and what it was decided on.
fn told(planned: &PlannedMove) -> String {
    let PlannedMove { step, why, load, bytes, from_load, to_load } = planned;
    let (from, to) = (step.from, step.to);
    let why = match why {
        Why::Overload => "to lighten its worker".to_owned(),
        Why::Exchange => "in exchange".to_owned(),
        Why::Drain => format!("server {} is to be emptied", from.server.0),
        Why::Share => format!("server {} gets its share", to.server.0),
        Why::Undone => "back, since it has made the worst worker worse".to_owned(),
    };
    format!(
        "{} from server {} to {}: {why}; it has load {load:.3} and {bytes} bytes, worker {}/{} had {from_load:.2}, worker {}/{} {to_load:.2}",
        step.cachelet,
        from.server.0,
        to.server.0,
        from.server.0,
        from.worker.0,
        to.server.0,
        to.worker.0
    )
}

/// Why a cachelet is split.
fn why(planned: &PlannedSplit) -> String {
    let PlannedSplit { at, seen, load, hottest, .. } = planned;
    format!(
        "it alone has {seen:.2} of the part of worker {}/{}, which nobody has a place for; load {load:.3}, of which its hottest key has {hottest:.3}",
        at.server.0, at.worker.0
    )
}

fn in_words(mode: BalanceMode) -> &'static str {
    match mode {
        BalanceMode::On => "on",
        BalanceMode::Off => "off",
        BalanceMode::DryRun => "a dry run",
    }
}
