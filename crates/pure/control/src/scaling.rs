//! How many servers there are to be. Those that retire are chosen by the ages of their items, and emptied together.
//!
//! ```text
//!   POST /v1/scale ──► Asking: heartbeats bring ages ──► Response::Inventory ──► a planner, wherever the process runs it
//!                                                                               │ ScalePlan
//!      moves carry what was chosen ◄── Moving: who retires is emptied ◄── Request::Resized
//! ```
//! What is wanted and what was chosen are saved: a coordinator that begins anew goes on. `docs/design/scaling.md`.

use std::collections::BTreeSet;

use mbal_model::{Instant, ServerId};

use crate::api::{
    AgesAsked, AgesReport, MoveDecision, MoveReport, ScaleCall, ScalePlan, ScaleState, ScaleStatus,
    Scaling, Selected,
};
use crate::draining::{Drains, end_drain};
use crate::inventory::{Asking, Inventory};
use crate::ledger::Ledger;
use crate::refusal::Refusal;
use crate::retiring::{can_retire, is_over, nodes_of, part_done, retire, want_back};
use crate::selection::{kept, selected};
use crate::state::State;

/// What the coordinator knows of scaling beside its state; lost with the process.
#[derive(Debug, Default)]
pub(crate) struct Resizing {
    asking: Option<Asking>,
    /// The last dry run, and what came of it.
    dry: Option<Scaling>,
    /// Since when it moves, as far as this process knows, and how far it was then.
    begun: Option<(Instant, f64)>,
    bytes: u64,
    /// Servers that were told what is to stay there.
    told: BTreeSet<ServerId>,
}

impl Resizing {
    pub fn scale(
        &mut self,
        ledger: &mut Ledger,
        drains: &Drains,
        call: ScaleCall,
    ) -> Result<(), Refusal> {
        let ScaleCall { servers, dry_run, retire, stops } = call;
        if servers == 0 {
            return Err(Refusal::Senseless("a cluster has one server at least".into()));
        }
        ledger.map()?;
        let state = ledger.state();
        let under_way = |one: &&Scaling| !is_over(ledger, drains, one);
        if let Some(scaling) = state.scaling.as_ref().filter(under_way) {
            // A call that was not answered is made again.
            if (scaling.servers, &scaling.retire, dry_run) == (servers, &retire, false) {
                return Ok(());
            }
            let why = format!(
                "scaling {} to {} servers is under way; cancel it first",
                scaling.number, scaling.servers
            );
            return Err(Refusal::Conflict(why));
        }
        can_retire(state, &ledger.serving(), servers, &retire)?;
        if !dry_run {
            want_back(ledger, servers);
        }
        let serving = ledger.serving().len();
        let grows = servers >= serving;
        ledger.change().scalings_ever += 1;
        let number = ledger.state().scalings_ever;
        let scaling = Scaling { number, servers, grows, retire, stops, plan: None, done: false };
        self.dry = dry_run.then(|| scaling.clone());
        if !dry_run {
            ledger.change().scaling = Some(scaling);
            ledger.say(format!("scaling {number}: {serving} servers serve, {servers} wanted"));
        }
        self.asking = (!grows).then(|| Asking::new(ledger.now, number, dry_run));
        Ok(())
    }

    /// Of a coordinator that has begun since: what it was asking for is asked again.
    fn go_on_asking(&mut self, ledger: &mut Ledger) {
        let saved = ledger.state().scaling.as_ref().map(|scaling| scaling.number);
        if self.asking.as_ref().is_some_and(|one| !one.dry_run && Some(one.number) != saved) {
            // It could not be saved.
            self.asking = None;
        }
        let Some(scaling) = &ledger.state().scaling else { return };
        if self.asking.is_none() && !scaling.grows && scaling.plan.is_none() {
            // By another number: ages count from another moment.
            let state = ledger.change();
            state.scalings_ever += 1;
            let number = state.scalings_ever;
            state.scaling.as_mut().expect("it is there").number = number;
            self.asking = Some(Asking::new(ledger.now, number, false));
        }
    }

    /// For the answer to a heartbeat that was just heard.
    pub fn ages_wanted(
        &mut self,
        ledger: &mut Ledger,
        server: ServerId,
        told: Option<AgesReport>,
    ) -> Option<AgesAsked> {
        self.go_on_asking(ledger);
        self.asking.as_mut()?.heard(ledger, server, told)
    }

    pub fn asks_for_ages(&self) -> bool {
        self.asking.is_some()
    }

    pub fn inventory(&mut self, ledger: &mut Ledger) -> Option<Inventory> {
        self.go_on_asking(ledger);
        let asking = self.asking.as_ref()?;
        let scaling = match asking.dry_run {
            true => self.dry.as_ref()?,
            false => ledger.state().scaling.as_ref()?,
        };
        asking.inventory(ledger, &ledger.serving(), scaling)
    }

    /// What was chosen begins, if it fits the state still; a dry run remembers it. Whether servers leave that the autoscaler stops.
    pub fn resized(&mut self, ledger: &mut Ledger, number: u32, mut plan: ScalePlan) -> bool {
        let serving = ledger.serving();
        let fits = plan.retiring.iter().all(|one| serving.contains(&ServerId(one.server)));
        // If not, the next inventory knows.
        let Some(asking) = self.asking.take_if(|one| one.number == number && fits) else {
            return false;
        };
        plan.nodes = nodes_of(ledger.state(), &plan);
        if asking.dry_run {
            if let Some(dry) = &mut self.dry {
                dry.plan = Some(plan);
            }
            return false;
        }
        for one in &plan.retiring {
            retire(ledger, ServerId(one.server));
            ledger.say(format!(
                "scaling {number}: server {} retires: its median item counts as {} s old, {} of its {} bytes travel",
                one.server, one.score, one.carried_bytes, one.bytes
            ));
        }
        ledger.say(format!(
            "scaling {number}: servers that stay keep {} of {} bytes",
            plan.kept_bytes, plan.staying_bytes
        ));
        (self.begun, self.bytes) = (None, 0);
        self.told.clear();
        let scaling = ledger.change().scaling.as_mut();
        scaling.is_some_and(|scaling| {
            scaling.plan = Some(plan);
            scaling.stops
        })
    }

    /// Who retires serves again, with what it still has; moves that have begun in earnest go on.
    pub fn end(&mut self, ledger: &mut Ledger, drains: &Drains) -> Result<(), Refusal> {
        if self.dry.take().is_some() {
            self.asking = None;
            return Ok(());
        }
        let state = ledger.state();
        let none = || Refusal::Unknown("no scaling is under way".into());
        let under_way = |one: &&Scaling| !is_over(ledger, drains, one);
        let scaling = state.scaling.as_ref().filter(under_way).ok_or_else(none)?.clone();
        ledger.change().scaling = None;
        *self = Resizing::default();
        let retiring = scaling.plan.iter().flat_map(|plan| &plan.retiring);
        for server in retiring.map(|one| ServerId(one.server)) {
            end_drain(ledger, server);
            let moves = ledger.change().moves.values_mut();
            let wanted =
                moves.filter(|one| one.from.server == server && one.word == MoveDecision::Go);
            wanted.for_each(|one| one.word = MoveDecision::Cancel);
        }
        ledger.say(format!("scaling {} to {} is cancelled", scaling.number, scaling.servers));
        Ok(())
    }

    /// For the answer to a heartbeat: what stays at this server. Nothing comes before it was told.
    pub fn kept_by(&mut self, state: &State, server: ServerId) -> Option<Selected> {
        let kept = kept(state, server)?;
        self.told.insert(server);
        Some(kept)
    }

    /// What leaves a server that retires waits until its destination knows what is to make room for it.
    pub fn may_be_carried(&self, state: &State, from: ServerId, to: ServerId) -> bool {
        selected(state, from, to).is_none() || self.told.contains(&to)
    }

    /// A move has arrived.
    pub fn moved(&mut self, state: &State, from: ServerId, report: &MoveReport) {
        let plan = state.scaling.as_ref().and_then(|scaling| scaling.plan.as_ref());
        if plan.is_some_and(|plan| plan.has(from)) {
            self.bytes += report.bytes;
        }
    }

    /// After a heartbeat: looks whether it is done.
    pub fn look_whether_done(&mut self, ledger: &mut Ledger, drains: &Drains) {
        let state = ledger.state();
        let Some(scaling) = &state.scaling else { return };
        if let (None, Some(plan)) = (self.begun, &scaling.plan) {
            self.begun = Some((ledger.now, part_done(ledger, plan)));
        }
        if scaling.done || !is_over(ledger, drains, scaling) {
            return;
        }
        let (number, serving) = (scaling.number, ledger.serving().len());
        ledger.say(format!("scaling {number} is done: {serving} servers serve"));
        ledger.change().scaling.as_mut().expect("it was there above").done = true;
    }

    /// Of the last one that was asked for, be it a dry run.
    pub fn status(&self, ledger: &Ledger, drains: &Drains) -> ScaleStatus {
        let state = ledger.state();
        let serving = ledger.serving();
        let dry = self.dry.as_ref();
        let Some(scaling) = dry.or(state.scaling.as_ref()) else {
            let servers = serving.len();
            return ScaleStatus { serving: servers, servers, ..ScaleStatus::default() };
        };
        let dry_run = dry.is_some();
        let asks = !scaling.grows && scaling.plan.is_none();
        let part_done = match &scaling.plan {
            Some(plan) if !dry_run => part_done(ledger, plan),
            _ => 0.0,
        };
        let is_over = dry_run || is_over(ledger, drains, scaling);
        let grows = scaling.grows && !scaling.done;
        let phase = match () {
            () if asks => ScaleState::Asking,
            () if is_over => ScaleState::Done,
            () if scaling.grows => ScaleState::Growing,
            () => ScaleState::Moving,
        };
        let retired = scaling.plan.iter().flat_map(|plan| &plan.retiring).map(|one| one.server);
        let is_retired = |id: &u16| {
            let is_there = state.draining.contains(&ServerId(*id));
            !dry_run && is_there && drains.may_be_stopped(ServerId(*id))
        };
        let awaited = self.asking.iter().flat_map(|asking| asking.awaited(state, &serving));
        ScaleStatus {
            number: scaling.number,
            state: phase,
            dry_run,
            stops: scaling.stops,
            servers: scaling.servers,
            serving: serving.len(),
            more: if grows { scaling.servers.saturating_sub(serving.len()) } else { 0 },
            awaited: awaited.map(|id| id.0).collect(),
            plan: scaling.plan.clone(),
            part_done,
            bytes: if dry_run { 0 } else { self.bytes },
            seconds_left: self.seconds_left(ledger.now, part_done).filter(|_| !is_over),
            retired: retired.filter(is_retired).collect(),
        }
    }

    /// By how fast it has been so far.
    fn seconds_left(&self, now: Instant, part_done: f64) -> Option<u64> {
        let (since, before) = self.begun?;
        let done = part_done - before;
        let seconds = (now - since).as_secs_f64();
        (done > 0.0).then(|| (seconds / done * (1.0 - part_done)).ceil() as u64)
    }
}
