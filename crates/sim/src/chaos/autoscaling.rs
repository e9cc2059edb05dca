//! The autoscaler among the faults: the pilot that a coordinator has, and machines that start and stop servers: late, or not at all.
//! What `coordinator/autoscaling.rs` and whoever has the machines are in a cluster.

use std::sync::Arc;
use std::time::Duration;

use mbal_control::api::{AutoscaleConfig, AutoscalePolicy, Incarnation, ScaleState, ScaleStatus};
use mbal_control::{Request, Response};
use mbal_model::{ClusterMap, Instant, ServerId};
use mbal_planning::autoscaling::{Action, Event, Pauses, Pilot, Time};
use mbal_planning::{Leaver, Stoppable};

use super::control::{Caller, Heard};
use super::coverage::Sight;
use super::faults::Mending;
use super::history::Micros;
use super::hosts::{host_of, id_of};
use super::profile::Profile;
use super::world::{Happening, World};

/// Longer than a coordinator waits for servers that do not tell what they have.
const COMES_WITHIN: Duration = Duration::from_secs(12);
/// Looks at what is under way, of which two are made in an epoch of the planner.
const CHOSEN_WITHIN: u32 = 30;
/// When runs begin, in seconds since 1970.
const UNIX: Duration = Duration::from_secs(1_700_000_000);
/// Of a hundred orders to machines, so many are refused; and so many servers that are started never come.
const REFUSED_PERCENT: usize = 10;
const NEVER_COME_PERCENT: usize = 10;
/// Whoever has stopped a server starts it again after so many thoughts of a client, at most, though nobody wants it.
const BACK_AFTER: u64 = 100;

pub fn pilot(profile: &Profile, now: Micros) -> Pilot {
    let every = Duration::from_micros(profile.look);
    let step = Duration::from_micros(profile.heartbeat / 2);
    let pauses = Pauses { every, step, comes_within: COMES_WITHIN, again_after: every };
    Pilot::new(pauses, Stoppable::Any, Instant::from_micros(now))
}

impl World {
    /// The thread that scales goes on.
    pub fn pilot_wakes(&mut self, life: u32) {
        if life != self.control.life || !self.control.is_up() || self.is_calm() {
            return;
        }
        if self.control.is_stopped {
            return self.after(1_000, Happening::PilotWakes { life });
        }
        self.drive_pilot(Event::Woken);
    }

    fn drive_pilot(&mut self, event: Event) {
        let now = self.now;
        let time = Time { now: Instant::from_micros(now), unix: UNIX + Duration::from_micros(now) };
        let mut actions = Vec::new();
        self.control.pilot.handle(time, event, &mut actions);
        for action in actions {
            match action {
                Action::Ask(ask) => {
                    let (caller, ask) = (Caller::Pilot { life: self.control.life }, Box::new(ask));
                    self.after(1, Happening::Called { caller, ask });
                }
                Action::Tell(text) => self.tell(|| format!("coordinator: {text}")),
                Action::Start { more, .. } => self.start_machines(more),
                Action::Stop { leavers, .. } => self.stop_machines(&leavers),
            }
        }
        if let Some(at) = self.control.pilot.next_wake() {
            let (at, life) = (at.as_micros().max(now + 1), self.control.life);
            self.at(at, Happening::PilotWakes { life });
        }
    }

    pub fn pilot_hears(&mut self, life: u32, heard: Heard) {
        if life == self.control.life && self.control.is_up() && !self.is_calm() {
            if let Ok(Response::Scale(scaling)) = &heard {
                self.look_at_choice(scaling);
            }
            self.drive_pilot(Event::Answered(heard.map_err(|why| format!("{why:?}"))));
        }
    }

    /// Invariant 5: when all servers have told what they have it is chosen who retires.
    fn look_at_choice(&mut self, scaling: &ScaleStatus) {
        let ScaleStatus { number, state, dry_run, awaited, .. } = scaling;
        let waits = *state == ScaleState::Asking && !dry_run && awaited.is_empty();
        let (known, looks) = self.control.unchosen;
        let looks = if waits && known == *number { looks + 1 } else { 0 };
        self.control.unchosen = (*number, looks);
        if looks > CHOSEN_WITHIN {
            self.fail(5, format!("nobody chooses who retires for scaling {number}"));
        }
    }

    /// What became of an order to machines.
    pub fn machines_done(&mut self, life: u32, done: Result<(), String>) {
        if life == self.control.life && self.control.is_up() && !self.is_calm() {
            self.drive_pilot(Event::Done(done));
        }
    }

    fn answer_later(&mut self, done: Result<(), String>) {
        let (longest, life) = (self.profile.call_delay, self.control.life);
        let pause = self.dice.skewed(1..=longest);
        self.after(pause, Happening::MachinesDone { life, done });
    }

    fn are_refused(&mut self) -> bool {
        let refused = self.dice.percent(REFUSED_PERCENT);
        if refused {
            self.coverage.meet(Sight::MachinesRefuse);
            self.answer_later(Err("no machine".into()));
        }
        refused
    }

    fn start_machines(&mut self, more: usize) {
        if self.are_refused() {
            return;
        }
        let down = |host: &usize| !self.hosts[*host].is_up && !self.is_being_buried(*host);
        let down: Vec<usize> = (0..self.hosts.len()).filter(down).take(more).collect();
        for host in down {
            if self.dice.percent(NEVER_COME_PERCENT) {
                continue;
            }
            self.coverage.meet(Sight::MachineStarted);
            let life = self.hosts[host].life;
            let longest = self.profile.outage;
            let pause = self.dice.between(1..=longest);
            self.mend_after(pause, Mending::ServerBegins { host, life });
        }
        self.answer_later(Ok(()));
    }

    /// By the coordinator's state.
    fn has_or_gets(&self, server: ServerId) -> bool {
        let state = &self.control.file;
        let has =
            |map: &Arc<ClusterMap>| map.cachelets().iter().any(|(_, owner)| owner.server == server);
        state.map.as_ref().is_some_and(has)
            || state.moves.values().any(|one| one.to.server == server)
    }

    /// Invariant 2: who is stopped has nothing, and nothing is on its way to it.
    fn stop_machines(&mut self, leavers: &[Leaver]) {
        for leaver in leavers {
            if self.has_or_gets(ServerId(leaver.id)) {
                return self.fail(2, format!("server {} is stopped with items", leaver.id));
            }
        }
        if self.are_refused() {
            return;
        }
        for leaver in leavers {
            let host = host_of(ServerId(leaver.id));
            let (longest, life) = (self.profile.outage, self.hosts[host].life);
            let pause = self.dice.skewed(1..=longest);
            self.after(pause, Happening::MachineStops { host, life });
        }
        self.answer_later(Ok(()));
    }

    /// A server ends in peace, if it still has nothing: it has been wanted again otherwise, and would give away first what it got.
    pub fn machine_stops(&mut self, host: usize, life: u32) {
        let id = id_of(host);
        let holds = self.hosts[host].is_up && !self.hosts[host].store().prefixes().is_empty();
        if holds || self.has_or_gets(id) || self.is_calm() {
            return;
        }
        let Some(member) = self.control.file.members.get(&id) else { return };
        let mut incarnation = member.incarnation;
        if self.hosts[host].is_up {
            if self.hosts[host].life != life {
                return;
            }
            incarnation = Incarnation(self.incarnation(host));
            self.coverage.meet(Sight::MachineStopped);
            self.die(host);
            let (life, most) = (self.hosts[host].life, BACK_AFTER * self.profile.think);
            let pause = self.dice.between(1..=most);
            self.mend_after(pause, Mending::ServerBegins { host, life });
        }
        let longest = self.profile.call_delay;
        let pause = self.dice.skewed(1..=longest);
        let (caller, ask) = (Caller::Operator, Box::new(Request::Leave(id, incarnation)));
        self.after(pause, Happening::Called { caller, ask });
    }

    /// How an operator sets it up.
    pub fn autoscale(&mut self) -> Request {
        self.coverage.meet(Sight::AutoscaleWanted);
        let most = self.hosts.len();
        let min = 1 + self.dice.below(most);
        let policies = [AutoscalePolicy::Reactive, AutoscalePolicy::Predictive];
        Request::Autoscale(AutoscaleConfig {
            min,
            max: min + self.dice.below(most - min + 1),
            database_rate: self.dice.pick(&[0.0, 1e9]),
            policy: self.dice.pick(&policies),
            dry_run: self.dice.percent(5),
            rest_minutes: 1,
            ..AutoscaleConfig::default()
        })
    }
}
