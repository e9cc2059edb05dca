//! What a coordinator's autoscaler does: looks once a minute, decides by `mbal_elastic`, has servers started, emptied and stopped.
//!
//! ```text
//!   coordinator ◄── Request ── Pilot ── Start, Stop ──► machines
//!               ── Answered ──►  ◄── Done ──
//!      more: machines start them, and they register
//!      fewer: who retires is chosen and emptied; when all are, machines stop them
//! ```
//! What is wanted, and who is to be stopped, is in the coordinator's saved state: another one goes on with it.

use std::time::Duration;

use mbal_control::api::{
    AutoscaleConfig, AutoscaleLook, AutoscaleStatus, OutcomeTold, ScaleCall, ScaleState,
    ScaleStatus, ServerStatus, Status,
};
use mbal_control::{Demand, Look, Request, Response};
use mbal_elastic::{Decision, Outcome, Policy, Resizer, Seen};
use mbal_model::Instant;
use mbal_model::planted::{Fault, is_planted};

use crate::machines::{Leaver, Stoppable};

/// How long it waits for what.
#[derive(Clone, Copy, Debug)]
pub struct Pauses {
    /// Between two looks: a minute, as the deciders count.
    pub every: Duration,
    /// What is under way is looked at so often.
    pub step: Duration,
    /// A server that was started has registered by then, or is not waited for any more; and who is asked for ages has told them.
    pub comes_within: Duration,
    /// What machines refused is tried again.
    pub again_after: Duration,
}

impl Pauses {
    pub fn of(every: Duration) -> Pauses {
        Pauses {
            every,
            step: every.min(Duration::from_secs(1)),
            comes_within: Duration::from_secs(300),
            again_after: Duration::from_secs(30),
        }
    }
}

/// The time, by a clock that does not jump and since 1970.
#[derive(Clone, Copy, Debug)]
pub struct Time {
    pub now: Instant,
    pub unix: Duration,
}

#[allow(clippy::large_enum_variant, reason = "a few in a minute, one at a time")]
pub enum Event {
    /// The moment of [`Pilot::next_wake`] has come.
    Woken,
    /// What the coordinator answers; or why it does not.
    Answered(Result<Response, String>),
    /// What came of starting or stopping.
    Done(Result<(), String>),
}

#[allow(clippy::large_enum_variant, reason = "a few in a minute, one at a time")]
#[derive(Debug)]
pub enum Action {
    /// Answered by [`Event::Answered`].
    Ask(Request),
    /// For whoever reads events.
    Tell(String),
    /// The cluster is to have `count` servers, `more` of which are not there. Answered by [`Event::Done`], as stopping is.
    Start { count: usize, more: usize },
    /// The cluster is to have `count` servers, without these.
    Stop { count: usize, leavers: Vec<Leaver> },
}

pub struct Pilot {
    pauses: Pauses,
    stoppable: Stoppable,
    /// None while nobody has set it up, or this coordinator does not lead.
    resizer: Option<Resizer>,
    change: Option<Change>,
    /// Since when servers are asked for ages, for fewer of them.
    asks_since: Option<Instant>,
    /// How it was set up, when that was looked at last.
    set_up: Option<AutoscaleConfig>,
    /// What was refused is not tried before.
    again: Option<Instant>,
    wakes_at: Instant,
    looks_at: Instant,
    round: Round,
    awaits: Awaits,
}

/// A change of the size under way.
#[derive(Clone, Debug)]
struct Change {
    from: usize,
    to: usize,
    expected: f64,
    begun: Instant,
}

/// What was heard since it woke.
#[derive(Default)]
struct Round {
    /// Whether it decides.
    looks: bool,
    status: AutoscaleStatus,
    scaling: ScaleStatus,
}

/// What the next answer is to.
enum Awaits {
    Nothing,
    Status,
    Scaling,
    Ended,
    Servers,
    Stopped,
    Demand,
    Begun(Change, Box<Look>),
    Looked,
}

impl Pilot {
    pub fn new(pauses: Pauses, stoppable: Stoppable, now: Instant) -> Pilot {
        Pilot {
            pauses,
            stoppable,
            resizer: None,
            change: None,
            asks_since: None,
            set_up: None,
            again: None,
            wakes_at: now + pauses.step,
            looks_at: now + pauses.every,
            round: Round::default(),
            awaits: Awaits::Nothing,
        }
    }

    /// When it is to be woken; nothing while it waits for an answer.
    pub fn next_wake(&self) -> Option<Instant> {
        matches!(self.awaits, Awaits::Nothing).then_some(self.wakes_at)
    }

    pub fn handle(&mut self, time: Time, event: Event, actions: &mut Vec<Action>) {
        if let Event::Woken = event {
            if self.next_wake().is_some_and(|at| at <= time.now) {
                self.wakes_at = time.now + self.pauses.step;
                self.ask(Request::AutoscaleStatus, Awaits::Status, actions);
            }
            return;
        }
        match (std::mem::replace(&mut self.awaits, Awaits::Nothing), event) {
            (Awaits::Status, Event::Answered(answer)) => self.set_up(time, answer, actions),
            (Awaits::Scaling, Event::Answered(Ok(Response::Scale(scaling)))) => {
                self.round.scaling = *scaling;
                self.look_after_ages(time, actions);
            }
            (Awaits::Ended, Event::Answered(_)) => self.look(actions),
            (Awaits::Servers, Event::Answered(Ok(Response::Status(servers)))) => {
                self.go_on(time, &servers, actions);
            }
            (Awaits::Stopped, Event::Done(done)) => {
                actions.extend(done.err().map(|why| Action::Tell(format!("autoscaling: {why}"))));
                self.look(actions);
            }
            (Awaits::Demand, Event::Answered(Ok(Response::Demand(demand)))) => {
                self.decide(time, &demand, actions);
            }
            (Awaits::Begun(change, look), Event::Answered(answer)) => {
                self.begun(time, change, *look, answer.map(drop), actions);
            }
            (Awaits::Begun(change, look), Event::Done(done)) => {
                self.begun(time, change, *look, done, actions);
            }
            (Awaits::Looked, Event::Answered(Ok(_))) => {}
            (Awaits::Nothing, _) => {}
            // An answer that did not come: who decides begins anew. Servers that were started still come.
            _ if self.round.looks => self.resizer = None,
            _ => {}
        }
    }

    fn ask(&mut self, ask: Request, awaits: Awaits, actions: &mut Vec<Action>) {
        self.awaits = awaits;
        actions.push(Action::Ask(ask));
    }

    fn set_up(&mut self, time: Time, answer: Result<Response, String>, actions: &mut Vec<Action>) {
        let status = match answer {
            Ok(Response::Autoscale(status)) => Some(status),
            _ => None,
        };
        let config = status.as_ref().and_then(|status| status.config.clone());
        let is_new = config.is_some() && config != self.set_up;
        self.set_up = config;
        let is_due = is_new || self.looks_at <= time.now;
        if is_due {
            self.looks_at = time.now + self.pauses.every;
        }
        let aims = self.set_up.as_ref().and_then(|config| config.aims().ok());
        let stops = status.as_ref().is_some_and(|status| !status.stopping.is_empty());
        let aims = aims.filter(|aims| aims.policy != Policy::Off || stops);
        let looks = is_due && aims.is_some();
        if looks {
            let aims = aims.expect("it has just been seen");
            let minute = self.minute(time);
            match &mut self.resizer {
                Some(resizer) => resizer.aim(aims),
                none => *none = Some(Resizer::new(aims, minute)),
            }
        } else if is_due {
            self.resizer = None;
        }
        let Some(status) = status else { return };
        self.round = Round { looks, status, scaling: ScaleStatus::default() };
        self.ask(Request::Scaling, Awaits::Scaling, actions);
    }

    /// Who is not told what servers have cannot choose: then nobody retires.
    fn look_after_ages(&mut self, time: Time, actions: &mut Vec<Action>) {
        let scaling = &self.round.scaling;
        let waits = scaling.stops && is_under_way(scaling);
        let asks = waits && scaling.state == ScaleState::Asking;
        self.asks_since = asks.then(|| self.asks_since.unwrap_or(time.now));
        if self.asks_since.is_some_and(|since| time.now - since > self.pauses.comes_within) {
            self.asks_since = None;
            let why = "autoscaling: servers do not tell the ages of their items, so none retires";
            actions.push(Action::Tell(why.into()));
            self.ask(Request::EndScaling, Awaits::Ended, actions);
        } else if !waits && (!self.round.status.stopping.is_empty() || self.change.is_some()) {
            self.ask(Request::Status, Awaits::Servers, actions);
        } else {
            self.look(actions);
        }
    }

    /// Goes on with what is under way.
    fn go_on(&mut self, time: Time, servers: &Status, actions: &mut Vec<Action>) {
        if !self.round.status.stopping.is_empty() {
            if self.again.is_none_or(|again| again <= time.now) {
                let is_leaving = |one: &&ServerStatus| self.round.status.stopping.contains(&one.id);
                let alive = servers.servers.iter().filter(|server| !server.has_ended());
                let (leaving, staying): (Vec<_>, Vec<_>) = alive.partition(is_leaving);
                let is_empty = |server: &&ServerStatus| {
                    server.state == "drained" || is_planted(Fault::StopsBeforeEmpty)
                };
                if leaving.iter().all(is_empty) {
                    self.again = Some(time.now + self.pauses.again_after);
                    self.awaits = Awaits::Stopped;
                    let count = self.stoppable.count(&named(staying));
                    actions.push(Action::Stop { count, leavers: named(leaving) });
                    return;
                }
            }
            return self.look(actions);
        }
        if let Some(change) = self.change.take() {
            let serving = servers.servers.iter().filter(|one| one.state == "serving").count();
            let is_late = time.now - change.begun > self.pauses.comes_within;
            if change.from < change.to && serving < change.to && !is_late {
                self.change = Some(change);
                return self.look(actions);
            }
            if change.from < change.to && serving < change.to {
                let missing = change.to - serving;
                let text =
                    format!("autoscaling: {missing} servers that were started have not come");
                actions.push(Action::Tell(text));
            }
            let minute = self.minute(time);
            if let Some(resizer) = &mut self.resizer {
                resizer.changed(minute, change.from, change.to, change.expected);
            }
            self.again = None;
        }
        self.look(actions);
    }

    fn look(&mut self, actions: &mut Vec<Action>) {
        if self.round.looks {
            self.ask(Request::Demand, Awaits::Demand, actions);
        }
    }

    fn minute(&self, time: Time) -> u64 {
        (time.unix.as_millis() / self.pauses.every.as_millis()) as u64
    }

    fn decide(&mut self, time: Time, demand: &Demand, actions: &mut Vec<Action>) {
        let minute = self.minute(time);
        let (Some(resizer), Some(config)) = (&mut self.resizer, &self.set_up) else { return };
        let servers = demand.servers.len();
        let is_known = servers > 0 && demand.servers_told >= servers;
        let seen = seen(minute, demand);
        let (decision, outcome) = match is_known {
            true => (resizer.decide(&seen), resizer.came_true(&seen)),
            false => Default::default(),
        };
        let wanted = if is_known { decision.servers } else { servers };
        let retires = is_under_way(&self.round.scaling);
        let why = match &self.change {
            _ if !is_known => format!(
                "{} of {servers} servers have told their hit ratios by size: it is waited for the others",
                demand.servers_told
            ),
            Some(Change { from, to, .. }) => {
                format!("from {from} to {to} servers, which goes on; {}", decision.why)
            }
            None if retires => format!("servers retire, which goes on; {}", decision.why),
            None => decision.why.clone(),
        };
        let AutoscaleStatus { stopping, last, .. } = &self.round.status;
        let is_free = self.change.is_none() && !retires && stopping.is_empty();
        let may_again = self.again.is_none_or(|again| again <= time.now);
        let acts = wanted != servers && is_free && may_again;
        let was_wanted = last.as_ref().map(|last| (last.servers, last.servers_wanted));
        let mut said: Vec<String> = outcome.iter().map(came_true_in_words).collect();
        if acts && (!config.dry_run || was_wanted != Some((servers, wanted))) {
            let would = if config.dry_run { "would change" } else { "changes" };
            said.push(format!("autoscaling {would} from {servers} to {wanted} servers: {why}; a hit ratio of {:.3} is expected", decision.expected));
        }
        let acts = acts && !config.dry_run;
        let Decision { needed, expected, .. } = decision;
        let look = AutoscaleLook {
            unix: time.unix.as_secs(),
            servers,
            servers_wanted: wanted,
            hit_ratio: demand.hit_ratio,
            hit_ratio_needed: needed,
            hit_ratio_expected: expected,
            why,
        };
        let outcome = outcome.map(|outcome| outcome_told(&outcome, self.pauses.every));
        let starting = self.change.as_ref().map_or(0, |change| change.to.saturating_sub(servers));
        let look = Look { look, starting, outcome, said };
        match acts {
            true => {
                let change = Change { from: servers, to: wanted, expected, begun: time.now };
                self.begin(time, change, look, demand, actions);
            }
            false => self.ask(Request::Looked(look), Awaits::Looked, actions),
        }
    }

    fn begin(
        &mut self,
        time: Time,
        change: Change,
        look: Look,
        demand: &Demand,
        actions: &mut Vec<Action>,
    ) {
        let Change { from, to, .. } = change;
        let servers = demand.servers.iter();
        let servers = servers.map(|(id, client)| Leaver { id: id.0, client: client.clone() });
        let servers: Vec<Leaver> = servers.collect();
        let action = if from < to {
            let more = to - from;
            Action::Start { count: self.stoppable.count(&servers) + more, more }
        } else if self.stoppable == Stoppable::Nobody {
            let why = "nobody stops servers: see `mbal coordinator --help`";
            return self.begun(time, change, look, Err(why.into()), actions);
        } else {
            let retire = self.stoppable.who_retires(servers, from - to);
            let call = ScaleCall { servers: to, retire, stops: true, ..ScaleCall::default() };
            Action::Ask(Request::Scale(call))
        };
        self.awaits = Awaits::Begun(change, Box::new(look));
        actions.push(action);
    }

    fn begun(
        &mut self,
        time: Time,
        change: Change,
        look: Look,
        done: Result<(), String>,
        actions: &mut Vec<Action>,
    ) {
        let Look { mut starting, mut said, .. } = look;
        match done {
            Ok(()) => {
                starting = change.to.saturating_sub(change.from);
                self.change = Some(change);
            }
            Err(why) => {
                said.push(format!("autoscaling: {why}"));
                self.again = Some(time.now + self.pauses.again_after);
            }
        }
        self.ask(Request::Looked(Look { starting, said, ..look }), Awaits::Looked, actions);
    }
}

/// Servers retire, or are asked for what that is decided by.
fn is_under_way(scaling: &ScaleStatus) -> bool {
    !scaling.dry_run && matches!(scaling.state, ScaleState::Asking | ScaleState::Moving)
}

fn named(servers: Vec<&ServerStatus>) -> Vec<Leaver> {
    let named = |one: &ServerStatus| Leaver { id: one.id, client: one.client.clone() };
    servers.into_iter().map(named).collect()
}

fn seen(minute: u64, demand: &Demand) -> Seen<'_> {
    Seen {
        minute,
        rate: demand.rate,
        hit_ratio: demand.hit_ratio,
        forecast: &demand.forecast,
        servers: demand.servers.len(),
        server_bytes: demand.server_bytes,
        more_wanted: demand.more_wanted,
        load_mean: demand.load_mean,
    }
}

fn outcome_told(outcome: &Outcome, every: Duration) -> OutcomeTold {
    let unix_ms = u128::from(outcome.minute) * every.as_millis();
    OutcomeTold {
        unix: (unix_ms / 1000) as u64,
        from: outcome.from,
        to: outcome.to,
        expected: outcome.expected,
        measured: outcome.measured,
    }
}

fn came_true_in_words(outcome: &Outcome) -> String {
    format!(
        "from {} to {} servers: a hit ratio of {:.3} was expected, and {:.3} has come",
        outcome.from, outcome.to, outcome.expected, outcome.measured
    )
}
