//! How many servers there are to be. Those that retire are chosen by the ages of their items, and emptied together.
//!
//! ```text
//!   POST /v1/scale ──► Asking: heartbeats bring ages ──► Answer::Inventory ──► a planner, wherever the process runs it
//!                                                                               │ ScalePlan
//!      moves carry what was chosen ◄── Moving: who retires is emptied ◄── Ask::Resized
//! ```
//! What is wanted and what was chosen are saved: a coordinator that begins anew goes on. `docs/design/scaling.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mbal_model::ServerId;

use crate::api::{
    AgesAsked, AgesReport, ClassSelected, Incarnation, MoveDecision, MoveReport, ScaleCall,
    ScaleCut, ScalePlan, ScaleState, ScaleStatus, Scaling, Selected,
};
use crate::balancing::cannot_give;
use crate::coordinator::{Answer, Coordinator, Micros, Refusal, known};

/// Who has not told ages by then is not waited for: a server of an older version, or one that is silent.
const ANSWERED_WITHIN: u64 = 10_000_000;

/// What the coordinator knows of scaling beside its state; lost with the process.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Resizing {
    asking: Option<Asking>,
    /// The last dry run, and what came of it.
    dry: Option<Scaling>,
    /// Since when it moves, as far as this process knows, and how far it was then.
    begun: Option<(Micros, f64)>,
    bytes: u64,
    /// Servers that were told what is to stay there.
    told: BTreeSet<ServerId>,
}

#[derive(Clone, Debug, PartialEq)]
struct Asking {
    number: u32,
    dry_run: bool,
    since: Micros,
    answers: BTreeMap<ServerId, (Incarnation, AgesReport)>,
}

/// What who chooses reads.
#[derive(Clone, Debug, PartialEq)]
pub struct Inventory {
    pub number: u32,
    /// So many servers are to retire.
    pub count: usize,
    /// These, if anybody was named; who of them is silent is not in `servers`.
    pub named: Vec<ServerId>,
    pub servers: Vec<(ServerId, AgesReport)>,
}

impl Coordinator {
    /// Servers that are alive, and not on their way out.
    pub(crate) fn serving(&self) -> Vec<ServerId> {
        let serving = self.state.members.iter().filter(|(id, member)| {
            member.is_alive() && !self.ends(**id) && !self.state.draining.contains(id)
        });
        serving.map(|(id, _)| *id).collect()
    }

    /// Its process has been told to end.
    pub(crate) fn ends(&self, server: ServerId) -> bool {
        self.heard.get(&server).is_some_and(|heard| heard.ending)
    }

    /// It is to be emptied no more, or is gone.
    pub(crate) fn is_drained_no_more(&mut self, server: ServerId) -> bool {
        if !self.state.draining.contains(&server) && !self.state.retiring.contains(&server) {
            return false;
        }
        let state = self.changing();
        state.retiring.remove(&server);
        state.draining.remove(&server)
    }

    pub(crate) fn scale(&mut self, now: Micros, call: ScaleCall) -> Result<Answer, Refusal> {
        let ScaleCall { servers, dry_run, retire, stops } = call;
        if servers == 0 {
            return Err(Refusal::Senseless("a cluster has one server at least".into()));
        }
        if self.state.map.is_none() {
            return Err(self.no_map());
        }
        if let Some(scaling) = self.state.scaling.as_ref().filter(|one| !self.is_over(one)) {
            // A call that was not answered is made again.
            if (scaling.servers, &scaling.retire, dry_run) == (servers, &retire, false) {
                return Ok(Answer::Scale(Box::new(self.scale_status(now))));
            }
            let why = format!(
                "scaling {} to {} servers is under way; cancel it first",
                scaling.number, scaling.servers
            );
            return Err(Refusal::Conflict(why));
        }
        self.can_retire(servers, &retire)?;
        if !dry_run {
            self.want_back(servers);
        }
        self.changing().scalings_ever += 1;
        let number = self.state.scalings_ever;
        let serving = self.serving().len();
        let grows = servers >= serving;
        let scaling = Scaling { number, servers, grows, retire, stops, plan: None, done: false };
        self.resizing.asking = None;
        self.resizing.dry = dry_run.then(|| scaling.clone());
        if !dry_run {
            self.changing().scaling = Some(scaling);
            self.said.push(format!("scaling {number}: {serving} servers serve, {servers} wanted"));
        }
        if !grows {
            self.ask_for_ages(now, number, dry_run);
        }
        Ok(Answer::Scale(Box::new(self.scale_status(now))))
    }

    /// Whether those that are named serve, can give what they have, and are as many as are too many.
    fn can_retire(&self, servers: usize, named: &[u16]) -> Result<(), Refusal> {
        if named.is_empty() {
            return Ok(());
        }
        let serving = self.serving();
        for id in named {
            let member = known(&self.state, ServerId(*id))?;
            if !serving.contains(&ServerId(*id)) {
                return Err(Refusal::Conflict(format!("server {id} does not serve")));
            }
            if !member.moves {
                return Err(cannot_give(ServerId(*id)));
            }
        }
        let different: BTreeSet<&u16> = named.iter().collect();
        let too_many = serving.len().checked_sub(servers);
        if different.len() != named.len() || too_many != Some(named.len()) {
            return Err(Refusal::Conflict(format!(
                "{} servers serve: {} of them have to be named for {servers} to stay",
                serving.len(),
                too_many.unwrap_or(0)
            )));
        }
        Ok(())
    }

    /// Servers that have retired and are still there serve again, if more are wanted.
    fn want_back(&mut self, servers: usize) {
        let missing = servers.saturating_sub(self.serving().len());
        let plan = self.state.scaling.as_ref().and_then(|scaling| scaling.plan.as_ref());
        let retired = plan.iter().flat_map(|plan| plan.retiring.iter().rev());
        let mut retired: Vec<ServerId> = retired.map(|one| ServerId(one.server)).collect();
        retired.extend(&self.state.retiring);
        let mut back = Vec::new();
        for server in retired {
            let is_there = self.state.draining.contains(&server) && !self.ends(server);
            if is_there && !back.contains(&server) {
                back.push(server);
            }
        }
        for server in back.into_iter().take(missing) {
            self.is_drained_no_more(server);
            self.said.push(format!("server {} is wanted again", server.0));
        }
    }

    fn ask_for_ages(&mut self, now: Micros, number: u32, dry_run: bool) {
        let answers = BTreeMap::new();
        self.resizing.asking = Some(Asking { number, dry_run, since: now, answers });
    }

    /// Of a coordinator that has begun since: what it was asking for is asked again.
    fn go_on_asking(&mut self, now: Micros) {
        let saved = self.state.scaling.as_ref().map(|scaling| scaling.number);
        let asking = &mut self.resizing.asking;
        if asking.as_ref().is_some_and(|one| !one.dry_run && Some(one.number) != saved) {
            // It could not be saved.
            *asking = None;
        }
        let Some(scaling) = &self.state.scaling else { return };
        if self.resizing.asking.is_none() && !scaling.grows && scaling.plan.is_none() {
            // By another number: ages count from another moment.
            self.changing().scalings_ever += 1;
            let number = self.state.scalings_ever;
            self.changing().scaling.as_mut().expect("it is there").number = number;
            self.ask_for_ages(now, number, false);
        }
    }

    /// For the answer to a heartbeat that was just heard.
    pub(crate) fn ages_wanted(
        &mut self,
        now: Micros,
        server: ServerId,
        told: Option<AgesReport>,
    ) -> Option<AgesAsked> {
        self.go_on_asking(now);
        let incarnation = self.state.members.get(&server)?.incarnation;
        let asking = self.resizing.asking.as_mut()?;
        if let Some(told) = told.filter(|told| told.number == asking.number) {
            asking.answers.insert(server, (incarnation, told));
        }
        let known = asking.answers.get(&server);
        let is_known = known.is_some_and(|(process, _)| *process == incarnation);
        let ago_ms = (now.0 - asking.since.0) / 1_000;
        (!is_known).then_some(AgesAsked { number: asking.number, ago_ms })
    }

    fn awaited(&self) -> Vec<ServerId> {
        let Some(asking) = &self.resizing.asking else { return Vec::new() };
        let has_told = |id: &ServerId| {
            let told = asking.answers.get(id);
            told.is_some_and(|(process, _)| *process == self.state.members[id].incarnation)
        };
        self.serving().into_iter().filter(|id| !has_told(id)).collect()
    }

    /// Of all servers that may retire or stay, when they have told what they have.
    pub(crate) fn inventory(&mut self, now: Micros) -> Option<Inventory> {
        self.go_on_asking(now);
        let (serving, awaited) = (self.serving(), self.awaited());
        let asking = self.resizing.asking.as_ref()?;
        if !awaited.is_empty() && now.0 < asking.since.0 + ANSWERED_WITHIN {
            return None;
        }
        let scaling = match asking.dry_run {
            true => self.resizing.dry.as_ref()?,
            false => self.state.scaling.as_ref()?,
        };
        let moves = |id: &ServerId| self.state.members[id].moves && !awaited.contains(id);
        let told = serving.iter().filter(|id| moves(id));
        let servers: Vec<(ServerId, AgesReport)> =
            told.map(|id| (*id, asking.answers[id].1.clone())).collect();
        let count = serving.len().saturating_sub(scaling.servers);
        let named = scaling.retire.iter().map(|id| ServerId(*id));
        let named: Vec<ServerId> = named.filter(|id| serving.contains(id)).take(count).collect();
        let count = if scaling.retire.is_empty() { count } else { named.len() };
        let enough = count < servers.len() || count == named.len();
        enough.then_some(Inventory { number: asking.number, count, named, servers })
    }

    /// What was chosen begins, if it fits the state still; a dry run remembers it.
    pub(crate) fn resized(&mut self, number: u32, mut plan: ScalePlan) -> Result<Answer, Refusal> {
        let Some(asking) = self.resizing.asking.as_ref().filter(|one| one.number == number) else {
            return Ok(Answer::Done);
        };
        let serving = self.serving();
        let fits = plan.retiring.iter().all(|one| serving.contains(&ServerId(one.server)));
        if !fits {
            // The next inventory knows.
            return Ok(Answer::Done);
        }
        plan.nodes = self.nodes_of(&plan);
        let dry_run = asking.dry_run;
        self.resizing.asking = None;
        if dry_run {
            if let Some(dry) = &mut self.resizing.dry {
                dry.plan = Some(plan);
            }
            return Ok(Answer::Done);
        }
        for one in &plan.retiring {
            self.retires(ServerId(one.server));
            self.said.push(format!(
                "scaling {number}: server {} retires: its median item counts as {} s old, {} of its {} bytes travel",
                one.server, one.score, one.carried_bytes, one.bytes
            ));
        }
        self.said.push(format!(
            "scaling {number}: servers that stay keep {} of {} bytes",
            plan.kept_bytes, plan.staying_bytes
        ));
        (self.resizing.begun, self.resizing.bytes) = (None, 0);
        self.resizing.told.clear();
        if let Some(scaling) = &mut Arc::make_mut(&mut self.state).scaling {
            scaling.plan = Some(plan);
            self.autoscaled.changes[1] += u64::from(scaling.stops);
        }
        Ok(Answer::Done)
    }

    fn retires(&mut self, server: ServerId) {
        if self.changing().draining.insert(server) {
            self.withdraw_moves_to(server);
        }
        if self.state.scaling.as_ref().is_some_and(|scaling| scaling.stops) {
            self.changing().retiring.insert(server);
        }
    }

    /// Who retires serves again, with what it still has; moves that have begun in earnest go on.
    pub(crate) fn end_scaling(&mut self) -> Result<Answer, Refusal> {
        if self.resizing.dry.take().is_some() {
            self.resizing.asking = None;
            return Ok(Answer::Done);
        }
        let none = || Refusal::Unknown("no scaling is under way".into());
        let scaling = self.state.scaling.as_ref().filter(|one| !self.is_over(one));
        let scaling = scaling.ok_or_else(none)?.clone();
        self.changing().scaling = None;
        self.resizing = Resizing::default();
        let retiring = scaling.plan.iter().flat_map(|plan| &plan.retiring);
        for server in retiring.map(|one| ServerId(one.server)) {
            self.is_drained_no_more(server);
            let moves = self.changing().moves.values_mut();
            let wanted =
                moves.filter(|one| one.from.server == server && one.word == MoveDecision::Go);
            wanted.for_each(|one| one.word = MoveDecision::Cancel);
        }
        self.said.push(format!("scaling {} to {} is cancelled", scaling.number, scaling.servers));
        Ok(Answer::Done)
    }

    /// A process of this number begins. One that was to be emptied and was not is to be still.
    pub(crate) fn retires_again(&mut self, server: ServerId) {
        let goes_on = self.state.scaling.as_ref().filter(|scaling| !scaling.done);
        let plan = goes_on.and_then(|scaling| scaling.plan.as_ref());
        let retires = plan.is_some_and(|plan| plan.has(server));
        let map = self.state.map.iter().flat_map(|map| map.cachelets());
        if retires && map.clone().any(|(_, owner)| owner.server == server) {
            self.retires(server);
        }
    }

    /// A server is dead. If too few are left, the last one that was chosen stays.
    pub(crate) fn look_at_scaling(&mut self) {
        let Some(scaling) = self.state.scaling.as_ref().filter(|one| !self.is_over(one)) else {
            return;
        };
        if scaling.plan.is_none() || self.serving().len() >= scaling.servers {
            return;
        }
        let retiring = scaling.plan.iter().flat_map(|plan| plan.retiring.iter().rev());
        let mut retiring = retiring.map(|one| ServerId(one.server));
        if let Some(stays) = retiring.find(|id| self.state.draining.contains(id)) {
            let number = scaling.number;
            self.is_drained_no_more(stays);
            self.said.push(format!(
                "scaling {number}: too few servers are left, server {} stays",
                stays.0
            ));
        }
    }

    /// Whether nothing is left to be done.
    fn is_over(&self, scaling: &Scaling) -> bool {
        match &scaling.plan {
            _ if scaling.done => true,
            None if scaling.grows => self.serving().len() >= scaling.servers,
            None => false,
            Some(plan) => plan.retiring.iter().all(|one| self.has_retired(ServerId(one.server))),
        }
    }

    /// It is empty, dead, or was told to stay.
    fn has_retired(&self, server: ServerId) -> bool {
        let is_alive = self.state.members.get(&server).is_some_and(|one| one.is_alive());
        !is_alive || !self.state.draining.contains(&server) || self.may_be_stopped(server)
    }

    fn nodes_of(&self, plan: &ScalePlan) -> usize {
        let map = self.state.map.iter().flat_map(|map| map.cachelets());
        map.filter(|(_, owner)| plan.has(owner.server)).map(|(prefix, _)| prefix.nodes()).sum()
    }

    /// What a move between these two servers carries; none is everything.
    pub(crate) fn selected(&self, from: ServerId, to: ServerId) -> Option<Selected> {
        let scaling = self.state.scaling.as_ref().filter(|scaling| !scaling.done)?;
        let plan = scaling.plan.as_ref()?;
        let of_both = |cut: &&ScaleCut| (cut.from, cut.server) == (from.0, to.0);
        let class = |cut: &ScaleCut| ClassSelected {
            class: cut.class,
            younger_than: cut.carried_younger_than,
            tied: cut.carried_tied,
        };
        let classes: Vec<ClassSelected> = plan.cuts.iter().filter(of_both).map(class).collect();
        (!classes.is_empty()).then_some(Selected { number: scaling.number, classes })
    }

    /// For the answer to a heartbeat: what stays at this server. Nothing comes before it was told.
    pub(crate) fn kept_by(&mut self, server: ServerId) -> Option<Selected> {
        let scaling = self.state.scaling.as_ref().filter(|scaling| !scaling.done)?;
        let cuts = scaling.plan.iter().flat_map(|plan| &plan.cuts);
        let own = cuts.filter(|cut| cut.server == server.0);
        let classes: BTreeMap<u8, (u32, u16)> =
            own.map(|cut| (cut.class, (cut.kept_younger_than, cut.kept_tied))).collect();
        if classes.is_empty() {
            return None;
        }
        self.resizing.told.insert(server);
        let class = |(class, (younger_than, tied))| ClassSelected { class, younger_than, tied };
        let classes = classes.into_iter().map(class).collect();
        Some(Selected { number: scaling.number, classes })
    }

    /// What leaves a server that retires waits until its destination knows what is to make room for it.
    pub(crate) fn may_be_carried(&self, from: ServerId, to: ServerId) -> bool {
        self.selected(from, to).is_none() || self.resizing.told.contains(&to)
    }

    pub(crate) fn asks_for_ages(&self) -> bool {
        self.resizing.asking.is_some()
    }

    pub(crate) fn scaled_by(&mut self, from: ServerId, report: &MoveReport) {
        let plan = self.state.scaling.as_ref().and_then(|scaling| scaling.plan.as_ref());
        if plan.is_some_and(|plan| plan.has(from)) {
            self.resizing.bytes += report.bytes;
        }
    }

    /// After a heartbeat: looks whether it is done.
    pub(crate) fn look_whether_scaled(&mut self, now: Micros) {
        let Some(scaling) = &self.state.scaling else { return };
        if let (None, Some(plan)) = (self.resizing.begun, &scaling.plan) {
            self.resizing.begun = Some((now, self.part_done(plan)));
        }
        let scaling = self.state.scaling.as_ref().expect("it was there above");
        if scaling.done || !self.is_over(scaling) {
            return;
        }
        let (number, serving) = (scaling.number, self.serving().len());
        self.said.push(format!("scaling {number} is done: {serving} servers serve"));
        self.changing().scaling.as_mut().expect("it was there above").done = true;
    }

    fn part_done(&self, plan: &ScalePlan) -> f64 {
        let is_of_it = |one: &&crate::Move| plan.has(one.from.server);
        let under_way = self.state.moves.iter().filter(|(_, one)| is_of_it(one));
        let gone = under_way.filter_map(|(id, one)| {
            let reports = &self.heard.get(&one.from.server)?.moves;
            let report = reports.iter().find(|report| report.number == id.0)?;
            Some(report.part_gone * one.prefix.nodes() as f64)
        });
        let left = self.nodes_of(plan) as f64 - gone.sum::<f64>();
        (1.0 - left / plan.nodes.max(1) as f64).clamp(0.0, 1.0)
    }

    /// Of the last one that was asked for, be it a dry run.
    pub(crate) fn scale_status(&self, now: Micros) -> ScaleStatus {
        let serving = self.serving().len();
        let dry = self.resizing.dry.as_ref();
        let Some(scaling) = dry.or(self.state.scaling.as_ref()) else {
            return ScaleStatus { serving, servers: serving, ..ScaleStatus::default() };
        };
        let dry_run = dry.is_some();
        let asks = !scaling.grows && scaling.plan.is_none();
        let part_done = match &scaling.plan {
            Some(plan) if !dry_run => self.part_done(plan),
            _ => 0.0,
        };
        let is_over = dry_run || self.is_over(scaling);
        let grows = scaling.grows && !scaling.done;
        let state = match () {
            () if asks => ScaleState::Asking,
            () if is_over => ScaleState::Done,
            () if scaling.grows => ScaleState::Growing,
            () => ScaleState::Moving,
        };
        let retired = scaling.plan.iter().flat_map(|plan| &plan.retiring).map(|one| one.server);
        let is_retired = |id: &u16| {
            let is_there = self.state.draining.contains(&ServerId(*id));
            !dry_run && is_there && self.may_be_stopped(ServerId(*id))
        };
        ScaleStatus {
            number: scaling.number,
            state,
            dry_run,
            stops: scaling.stops,
            servers: scaling.servers,
            serving,
            more: if grows { scaling.servers.saturating_sub(serving) } else { 0 },
            awaited: self.awaited().iter().map(|id| id.0).collect(),
            plan: scaling.plan.clone(),
            part_done,
            bytes: if dry_run { 0 } else { self.resizing.bytes },
            seconds_left: self.seconds_left(now, part_done).filter(|_| !is_over),
            retired: retired.filter(is_retired).collect(),
        }
    }

    /// By how fast it has been so far.
    fn seconds_left(&self, now: Micros, part_done: f64) -> Option<u64> {
        let (since, before) = self.resizing.begun?;
        let done = part_done - before;
        let seconds = (now.0 - since.0) as f64 / 1e6;
        (done > 0.0).then(|| (seconds / done * (1.0 - part_done)).ceil() as u64)
    }
}

impl ScalePlan {
    fn has(&self, server: ServerId) -> bool {
        self.retiring.iter().any(|one| one.server == server.0)
    }
}
