//! Balance between servers, as the coordinator sees it: what a planner reads, and what is made of its plan.
//!
//! ```text
//!   Ask::Outlook ──► heartbeats, map, moves ──► Answer::Outlook ──► a planner, wherever the process runs it
//!   Ask::Planned ◄───────────────────────────── ClusterPlan ◄──────────┘
//!        └──► moves are begun, as an operator would; what is new is told
//! ```
//! Plans nothing itself. A plan is a wish: what does not fit the state any more is left out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{
    CacheletLoad, ClusterPlan, Move, Outlook, Owner, PlannedMove, Prefix, ServerId, ServerOutlook,
    Standing, Why, WorkerId, WorkerLoad, moves_max,
};

use crate::api::{BalanceMode, BalanceStatus, Drain, MoveCall, RestReport};
use crate::coordinator::{Answer, Coordinator, Micros, Refusal, known};

/// What came of plans since this process began.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Balanced {
    /// The last one.
    pub plan: ClusterPlan,
    /// Plans so far.
    pub plans: u64,
    /// Moves that were begun, by why.
    pub begun: BTreeMap<Why, u64>,
    /// Moves of a plan that did not fit the state any more.
    pub outdated: u64,
    /// What a dry run has told last.
    only_said: Vec<(Prefix, ServerId)>,
    /// What empties servers and has no place yet, by the last plan.
    later: VecDeque<PlannedMove>,
    /// Servers of which was told that they may be stopped, and the map by which they have nothing.
    drained: BTreeMap<ServerId, u64>,
    /// Of these, those that all others know to have nothing.
    unasked: BTreeSet<ServerId>,
    refusing: BTreeMap<ServerId, Refusing>,
    /// See [`crate::Done::is_pressing`].
    pub(crate) is_pressing: bool,
}

/// A server that moves did not reach, though they were to.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Refusing {
    /// In a row.
    times: u32,
    /// Until then it is not given its share.
    until: Micros,
}

/// A server that has refused a move is left alone for so long; each time in a row doubles that.
const REFUSED_EPOCHS: u32 = 4;
/// Up to 32 epochs.
const REFUSED_DOUBLED_MAX: u32 = 3;

/// One cachelet as a server reports it: its worker there, load, bytes.
type Report = (usize, f64, u64);

impl Coordinator {
    pub fn balanced(&self) -> &Balanced {
        &self.balanced
    }

    pub(crate) fn set_balance(&mut self, mode: BalanceMode) -> Result<Answer, Refusal> {
        if self.state.balance != mode {
            self.changing().balance = mode;
            self.said.push(format!("balance between servers is {}", in_words(mode)));
        }
        Ok(Answer::Done)
    }

    /// Moves from it go on in either case. It is given nothing any more.
    pub(crate) fn drain(&mut self, server: ServerId, wanted: bool) -> Result<Answer, Refusal> {
        let member = known(&self.state, server)?;
        if wanted && !member.is_alive() {
            return Err(Refusal::Conflict(format!("server {} is dead", server.0)));
        }
        if wanted && !member.moves {
            return Err(cannot_give(server));
        }
        if wanted && self.serving() == [server] {
            let why =
                format!("no other server than {} serves: nobody could take what it has", server.0);
            return Err(Refusal::Conflict(why));
        }
        let changed = match wanted {
            true => self.changing().draining.insert(server),
            false => self.is_drained_no_more(server),
        };
        if changed {
            let what = if wanted { "is to be emptied" } else { "is not to be emptied any more" };
            self.said.push(format!("server {} {what}", server.0));
            if wanted {
                self.withdraw_moves_to(server);
            }
        }
        Ok(Answer::Done)
    }

    pub(crate) fn draining_state(&self, server: ServerId, cachelets: usize) -> &'static str {
        let is_stuck = self.balanced.plan.stuck.contains(&server);
        match () {
            () if self.may_be_stopped(server) && self.is_empty(server, cachelets) => "drained",
            () if is_stuck => "stuck",
            () => "draining",
        }
    }

    /// It has nothing, and no other server that is heard of would send it requests.
    pub(crate) fn may_be_stopped(&self, server: ServerId) -> bool {
        self.balanced.unasked.contains(&server)
    }

    /// It has no cachelet, and none is on its way to it.
    fn is_empty(&self, server: ServerId, cachelets: usize) -> bool {
        let comes = self.state.moves.values().any(|one| one.to.server == server);
        cachelets == 0 && !comes && self.state.map.is_some()
    }

    /// By the map and the last heartbeats. A cachelet that its server has not reported yet is as another one has seen it
    /// last; what nobody lists has its part of what workers report as the rest.
    pub(crate) fn outlook(&self, now: Micros, epoch: u64) -> Outlook {
        let mut reports: BTreeMap<Prefix, BTreeMap<ServerId, Report>> = BTreeMap::new();
        for (server, heard) in &self.heard {
            for (index, worker) in heard.workers.iter().enumerate() {
                for one in &worker.cachelets {
                    if let Some(prefix) = Prefix::parse(one.prefix.as_bytes()) {
                        let report = (index, sane(one.load), one.bytes);
                        reports.entry(prefix).or_default().insert(*server, report);
                    }
                }
            }
        }
        let mut servers: BTreeMap<ServerId, ServerOutlook> = self
            .state
            .members
            .iter()
            .filter(|(_, member)| member.is_alive())
            .map(|(id, _)| (*id, self.server_outlook(now, *id)))
            .collect();
        // Phase 1 helps those. A move would end their copies, and for a second or more all of their reads would be the destination's.
        let copied = self.copied_hashes(now);
        let is_copied = |prefix: &Prefix| {
            let at = copied.partition_point(|hash| *hash < prefix.first_hash());
            copied.get(at).is_some_and(|hash| prefix.contains(*hash))
        };
        for (prefix, owner) in self.state.map.iter().flat_map(|map| map.cachelets()) {
            let Some(server) = servers.get_mut(&owner.server) else { continue };
            let listed = reports.get(prefix);
            let own = listed.and_then(|listed| listed.get(&owner.server)).copied();
            let elsewhere = || listed.and_then(|listed| listed.values().next()).copied();
            let home = usize::from(owner.worker.0) % server.workers.len().max(1);
            let (at, load, bytes) = own
                .or_else(|| elsewhere().map(|(_, load, bytes)| (home, load, bytes)))
                .unwrap_or_else(|| {
                    let (load, bytes) = self.unlisted(owner.server, home);
                    (home, load, bytes)
                });
            let at = at.min(server.workers.len().saturating_sub(1));
            if let Some(worker) = server.workers.get_mut(at) {
                let held =
                    CacheletLoad { cachelet: *prefix, load, bytes, pinned: is_copied(prefix) };
                worker.cachelets.push(held);
            }
        }
        let step = |one: &crate::Move| Move { cachelet: one.prefix, from: one.from, to: one.to };
        Outlook {
            epoch,
            servers: servers.into_values().collect(),
            under_way: self.state.moves.values().map(step).collect(),
        }
    }

    fn server_outlook(&self, now: Micros, id: ServerId) -> ServerOutlook {
        let member = &self.state.members[&id];
        let heard = self.heard.get(&id).filter(|heard| !heard.workers.is_empty());
        let standing = match heard {
            Some(_) if !self.is_heard(now, id) => Standing::Silent,
            Some(_) if !member.moves => Standing::Staying,
            Some(heard) if heard.ending => Standing::Ending,
            Some(_) if self.state.draining.contains(&id) => Standing::Draining,
            Some(_) => Standing::Serving,
            None => Standing::Silent,
        };
        let reported = heard.map_or(&[][..], |heard| &heard.workers);
        let worker = |index: usize| WorkerLoad {
            at: Owner { server: id, worker: WorkerId(index as u16) },
            fixed: reported.get(index).map_or(0.0, |report| sane(report.fixed)),
            bytes_max: 0,
            cachelets: Vec::new(),
        };
        let workers = reported.len().max(usize::from(member.workers()));
        let memory_bytes = heard.map_or(0, |heard| heard.memory_bytes);
        ServerOutlook {
            server: id,
            standing,
            memory_bytes: if memory_bytes > 0 { memory_bytes } else { member.memory_bytes },
            workers: (0..workers).map(worker).collect(),
            helpless: heard.is_some_and(|heard| heard.helpless),
            refuses: self.refuses(now, id),
            room_bytes: heard.and_then(|heard| heard.room_bytes),
        }
    }

    /// A move to this server has come to nothing, and nobody wanted that. Others that fail meanwhile are the same refusal.
    pub(crate) fn has_refused(&mut self, now: Micros, server: ServerId) {
        if self.refuses(now, server) || is_planted(Fault::RefusalsAreForgotten) {
            return;
        }
        let before = self.balanced.refusing.get(&server).map_or(0, |refusing| refusing.times);
        let pause = self.settings.epoch * (REFUSED_EPOCHS << before.min(REFUSED_DOUBLED_MAX));
        let until = Micros(now.0 + pause.as_micros() as u64);
        self.balanced.refusing.insert(server, Refusing { times: before + 1, until });
    }

    /// A move to it has arrived, or it is another process.
    pub(crate) fn refuses_no_more(&mut self, server: ServerId) {
        self.balanced.refusing.remove(&server);
    }

    fn refuses(&self, now: Micros, server: ServerId) -> bool {
        self.balanced.refusing.get(&server).is_some_and(|refusing| now.0 < refusing.until.0)
    }

    /// Load and bytes of a cachelet that its worker does not list.
    fn unlisted(&self, server: ServerId, worker: usize) -> (f64, u64) {
        let heard = self.heard.get(&server).and_then(|heard| heard.workers.get(worker));
        let rest = heard.map_or(RestReport::default(), |worker| worker.rest);
        match u64::from(rest.cachelets) {
            0 => (0.0, 0),
            count => (sane(rest.load) / count as f64, rest.bytes / count),
        }
    }

    /// Begins what may be begun: everything if balance is on, else only what empties servers.
    pub(crate) fn planned(&mut self, plan: ClusterPlan) -> Result<Answer, Refusal> {
        self.tell_changes(&plan);
        let mut only_said = Vec::new();
        for planned in &plan.moves {
            let (from, to) = (planned.step.from.server, planned.step.to.server);
            if !self.may_be_carried(from, to) {
                continue;
            }
            let wanted = planned.why == Why::Drain
                || self.state.balance == BalanceMode::On
                || is_planted(Fault::OffIsIgnored);
            if !wanted {
                only_said.push((planned.step.cachelet, planned.step.to.server));
                let is_new = !self.balanced.only_said.contains(only_said.last().expect("pushed"));
                if self.state.balance == BalanceMode::DryRun && is_new {
                    self.said.push(format!("would move {}", told(planned)));
                }
                continue;
            }
            self.begin_planned(planned);
        }
        self.balanced.only_said = only_said;
        self.balanced.plans += 1;
        self.balanced.later = plan.later.iter().copied().collect();
        self.balanced.plan = plan;
        self.tell_drained();
        Ok(Answer::Done)
    }

    /// Of what was planned ahead: its server is to be emptied still; or the cluster is to be balanced, it is well, and who gets its
    /// share takes it.
    fn is_still_wanted(&self, now: Micros, planned: &PlannedMove) -> bool {
        let (from, to) = (planned.step.from.server, planned.step.to.server);
        match planned.why {
            Why::Share => {
                let is_on = self.state.balance == BalanceMode::On;
                is_on && self.is_heard(now, from) && !self.refuses(now, to)
            }
            _ => self.state.draining.contains(&from),
        }
    }

    /// Begins what was planned ahead as far as there are places for it by now.
    fn begin_later(&mut self, now: Micros) {
        for planned in std::mem::take(&mut self.balanced.later) {
            let (from, to) = (planned.step.from.server, planned.step.to.server);
            let under_way = || self.state.moves.values();
            let gives = under_way().filter(|one| one.from.server == from).count();
            let takes = under_way().filter(|one| one.to.server == to).count();
            let most = moves_max(planned.bytes, self.ends(from));
            if gives.max(takes) >= most || !self.may_be_carried(from, to) {
                self.balanced.later.push_back(planned);
            } else if self.is_heard(now, to) && self.is_still_wanted(now, &planned) {
                self.begin_planned(&planned);
            }
        }
    }

    /// A server that says for the first time that it is about to end has no time to wait for the end of an epoch.
    pub(crate) fn look_whether_pressing(&mut self, server: ServerId, is_ending: bool) {
        self.balanced.is_pressing |= is_ending && !self.ends(server);
    }

    /// Of a server that has just been heard of: takes note that it is to end, and says how far it is emptied.
    pub(crate) fn look_at_drain(
        &mut self,
        now: Micros,
        server: ServerId,
        is_ending: bool,
    ) -> Option<Drain> {
        if is_ending && self.drain(server, true).is_err() {
            return Some(Drain::Nobody);
        }
        self.begin_later(now);
        if !self.state.draining.contains(&server) {
            return None;
        }
        self.tell_drained();
        let others =
            || self.state.members.iter().filter(|(id, one)| **id != server && one.is_alive());
        if let Some(emptied) = self.balanced.drained.get(&server) {
            let knows = |id| self.heard.get(id).is_none_or(|heard| *emptied <= heard.map_version);
            let mut heard_of = others().filter(|(id, _)| self.is_heard(now, **id));
            if !heard_of.all(|(id, _)| knows(id)) {
                return Some(Drain::Draining);
            }
            if self.balanced.unasked.insert(server) {
                self.said.push(format!("server {} is empty, and may be stopped", server.0));
            }
            return Some(Drain::Drained);
        }
        let mut takers =
            others().filter(|(id, one)| one.moves && !self.state.draining.contains(id));
        Some(if takers.next().is_some() { Drain::Draining } else { Drain::Nobody })
    }

    fn begin_planned(&mut self, planned: &PlannedMove) {
        let Move { cachelet, from, to } = planned.step;
        let map = self.state.map.iter().flat_map(|map| map.cachelets());
        let is_there =
            map.clone().any(|(held, owner)| *held == cachelet && owner.server == from.server);
        let member = self.state.members.get(&to.server);
        let worker = member.filter(|member| to.worker.0 < member.workers()).map(|_| to.worker.0);
        let call = MoveCall { prefix: cachelet.to_string(), server: to.server.0, worker };
        let said = self.said.len();
        match is_there.then(|| self.begin_move(&call)) {
            Some(Ok(number)) => {
                *self.balanced.begun.entry(planned.why).or_default() += 1;
                self.said.truncate(said);
                self.said.push(format!("move {number}: {}", told(planned)));
            }
            // Something has changed since the outlook; the next one knows.
            Some(Err(_)) | None => self.balanced.outdated += 1,
        }
    }

    /// What is new since the last plan, with what it was found in.
    fn tell_changes(&mut self, plan: &ClusterPlan) {
        let before = std::mem::take(&mut self.balanced.plan);
        let loads =
            format!("loads are {:.2} on average, {:.2} at most", plan.load_mean, plan.load_max);
        if plan.asking != before.asking {
            self.said.push(match plan.asking.as_slice() {
                [] => format!("no server asks for help any more: {loads}"),
                asking => format!("phase 3 for {}: {loads}", servers(asking)),
            });
        }
        if plan.servers_wanted != before.servers_wanted {
            self.said.push(match plan.servers_wanted {
                0 => format!("no more servers are wanted: {loads}"),
                wanted => format!("{wanted} more servers wanted: {loads}"),
            });
        }
        for prefix in plan.too_heavy.iter().filter(|prefix| !before.too_heavy.contains(prefix)) {
            self.said.push(format!("{prefix} is too heavy for any worker: {loads}"));
        }
        let connections = plan.by_connections.iter();
        for server in connections.filter(|server| !before.by_connections.contains(server)) {
            self.said.push(format!(
                "server {} is overloaded by its connections, which no move takes away: {loads}",
                server.0
            ));
        }
        for server in plan.in_vain.iter().filter(|server| !before.in_vain.contains(server)) {
            self.said.push(format!(
                "server {} gives in vain, clients do not follow its cachelets: {loads}",
                server.0
            ));
        }
        for server in plan.stuck.iter().filter(|server| !before.stuck.contains(server)) {
            self.said
                .push(format!("server {} cannot be emptied, nobody has room: {loads}", server.0));
        }
    }

    fn tell_drained(&mut self) {
        let map = self.state.map.iter().flat_map(|map| map.cachelets());
        let holding: BTreeSet<ServerId> = map.map(|(_, owner)| owner.server).collect();
        let drained = self.state.draining.iter().copied();
        let drained = drained.filter(|id| self.is_empty(*id, usize::from(holding.contains(id))));
        let drained: Vec<ServerId> = drained.collect();
        let version = self.state.map.as_ref().map_or(0, |map| map.version());
        self.balanced.drained.retain(|server, _| drained.contains(server));
        self.balanced.unasked.retain(|server| drained.contains(server));
        for server in drained {
            self.balanced.drained.entry(server).or_insert(version);
        }
    }

    pub(crate) fn balance_status(&self) -> BalanceStatus {
        let plan = &self.balanced.plan;
        BalanceStatus {
            mode: self.state.balance,
            asking: plan.asking.iter().map(|server| server.0).collect(),
            servers_wanted: plan.servers_wanted,
            too_heavy: plan.too_heavy.iter().map(Prefix::to_string).collect(),
            by_connections: plan.by_connections.iter().map(|server| server.0).collect(),
            load_mean: plan.load_mean,
            load_max: plan.load_max,
        }
    }
}

/// A heartbeat may say anything.
fn sane(load: f64) -> f64 {
    if load.is_finite() { load.clamp(0.0, 1e6) } else { 0.0 }
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

pub(crate) fn cannot_give(server: ServerId) -> Refusal {
    let why = format!("server {} is of a version that cannot give cachelets", server.0);
    Refusal::Conflict(why)
}

fn in_words(mode: BalanceMode) -> &'static str {
    match mode {
        BalanceMode::On => "on",
        BalanceMode::Off => "off",
        BalanceMode::DryRun => "a dry run",
    }
}
