//! The coordinator's process: one transaction at a time, saved before it is answered, in a file that outlives the process.
//!
//! ```text
//!   members, operators, planner ── Request ──► queue ──► Coordinator::handle ──► saves, for a while ──► answer
//!                                                        ▲ restore, if it was not saved
//! ```
//! What `coordinator/driver.rs` is in a server.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use mbal_balance::Thresholds;
use mbal_control::api::HotMode;
use mbal_control::{Coordinator, Done, Refusal, Request, Response, Settings, State};
use mbal_planning::Planning;
use mbal_planning::autoscaling::Pilot;

use super::autoscaling::pilot;
use super::coverage::Sight;
use super::dice::Dice;
use super::history::Micros;
use super::owning;
use super::profile::Profile;
use super::world::{Happening, World};

/// T is computed in one of so many epochs: it takes its time.
const THRESHOLD_EPOCHS: u64 = 4;

/// Of a hundred saves, so many fail; and of so many nobody knows.
const FAILS_PERCENT: usize = 3;
const DOUBT_PERCENT: usize = 2;

/// Who asks, and where the answer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// This process, by this call.
    Member {
        host: usize,
        life: u32,
        call: u64,
    },
    Operator,
    /// Who looks at servers' keys in etcd.
    Watcher,
    /// An operator who waits until a server is dead for certain.
    Undertaker {
        host: usize,
    },
    Planner,
    /// The coordinator's autoscaler.
    Pilot {
        life: u32,
    },
}

/// What a caller hears.
pub type Heard = Result<Response, Failed>;

#[derive(Clone, Debug, PartialEq)]
pub enum Failed {
    Refused(Refusal),
    /// The coordinator is not there, is ill, or did not answer.
    Silent,
}

struct Saving {
    caller: Caller,
    before: Arc<State>,
    answer: Result<Response, Refusal>,
}

pub struct Control {
    settings: Settings,
    /// `None`: there is no process.
    coordinator: Option<Coordinator>,
    pub is_stopped: bool,
    /// Counts its processes, and when this one began.
    pub life: u32,
    began: Micros,
    /// What a process that begins reads.
    pub file: State,
    /// Nobody knows whether the last state was written.
    is_unsettled: bool,
    saving: Option<Saving>,
    queue: VecDeque<(Caller, Request)>,
    planning: Planning,
    /// A question of its waits for an answer.
    plans: bool,
    pub pilot: Pilot,
    /// A scaling whose servers have told what they have, and how often it was seen that nobody had chosen.
    pub unchosen: (u32, u32),
}

impl Control {
    pub fn new(profile: &Profile) -> Control {
        let settings = Settings {
            cluster: "mbal".into(),
            servers_first: profile.servers_first,
            epoch: Duration::from_micros(profile.heartbeat),
            hot_keys: profile.hot.as_ref().map_or(HotMode::Off, |hot| hot.mode),
            copy_lease: Duration::from_micros(
                profile.hot.as_ref().map_or(1_000_000, |hot| hot.lease),
            ),
            imbalance_target: 1.05,
            leases: profile.ownership.map(owning::leases),
        };
        let file = match &profile.state {
            Some(state) => state.clone(),
            None => State { cluster: settings.cluster.clone(), ..State::default() },
        };
        let coordinator = Coordinator::resume(settings.clone(), file.clone());
        Control {
            settings,
            coordinator: Some(coordinator.expect("it is the same cluster")),
            is_stopped: false,
            life: 0,
            began: 0,
            file,
            is_unsettled: false,
            saving: None,
            queue: VecDeque::new(),
            planning: Planning::new(thresholds(profile), THRESHOLD_EPOCHS),
            plans: false,
            pilot: pilot(profile, 0),
            unchosen: (0, 0),
        }
    }

    pub fn is_up(&self) -> bool {
        self.coordinator.is_some()
    }

    pub fn runs(&self) -> bool {
        self.is_up() && !self.is_stopped
    }
}

pub fn thresholds(profile: &Profile) -> Thresholds {
    Thresholds {
        patience: profile.patience,
        rest_epochs: profile.rest_epochs,
        ..Thresholds::default()
    }
}

impl World {
    /// A call has come to the coordinator's host.
    pub fn called(&mut self, caller: Caller, ask: Request) {
        if !self.control.is_up() {
            return self.answer_call(caller, Err(Failed::Silent));
        }
        self.control.queue.push_back((caller, ask));
        self.decide();
    }

    /// One transaction after the other, as long as nothing has to be saved.
    fn decide(&mut self) {
        while self.control.runs() && self.control.saving.is_none() {
            let Some((caller, ask)) = self.control.queue.pop_front() else { return };
            if self.control.is_unsettled && !self.settle_file() {
                self.answer_call(caller, Err(Failed::Silent));
                continue;
            }
            let now = mbal_model::Instant::from_micros(self.now - self.control.began);
            let coordinator = self.control.coordinator.as_mut().expect("it runs");
            let Done { before, answer, said, is_pressing: _ } = coordinator.handle(now, ask);
            for text in &said {
                self.tell(|| format!("coordinator: {text}"));
                let ends = |end: &str| text.starts_with("scaling") && text.contains(end);
                if ends("is cancelled") {
                    self.coverage.meet(Sight::ScaleCancelled);
                } else if ends("is done") {
                    self.coverage.meet(Sight::ScaleDone);
                } else if text.starts_with("the lease of server") {
                    self.coverage.meet(Sight::LeaseDead);
                }
            }
            match before {
                None => self.answer_call(caller, answer.map_err(Failed::Refused)),
                Some(before) => {
                    self.control.saving = Some(Saving { caller, before, answer });
                    let (longest, life) = (self.profile.save, self.control.life);
                    let takes = self.dice.skewed(1..=longest);
                    self.after(takes, Happening::Saved { life });
                }
            }
        }
    }

    /// A file of which nobody knows what is in it is written anew.
    fn settle_file(&mut self) -> bool {
        if self.dice.percent(30) {
            return false;
        }
        self.control.is_unsettled = false;
        self.write_file();
        true
    }

    fn write_file(&mut self) {
        let state = self.control.coordinator.as_ref().expect("it runs").state().clone();
        let before = std::mem::replace(&mut self.control.file, state);
        self.file_changed(&before);
    }

    /// A save is over, one way or the other.
    pub fn saved(&mut self, life: u32) {
        if life != self.control.life || !self.control.is_up() {
            return;
        }
        if self.control.is_stopped {
            return self.after(1_000, Happening::Saved { life });
        }
        let Saving { caller, before, answer } = self.control.saving.take().expect("it saves");
        let is_calm = self.is_calm();
        let fate = self.dice.below(100);
        if is_calm || fate >= FAILS_PERCENT + DOUBT_PERCENT {
            self.write_file();
            self.answer_call(caller, answer.map_err(Failed::Refused));
        } else {
            let in_doubt = fate < DOUBT_PERCENT;
            self.coverage.meet(if in_doubt { Sight::SaveInDoubt } else { Sight::SaveFailed });
            self.tell(|| "coordinator: cannot save".to_owned());
            if in_doubt {
                self.control.is_unsettled = true;
                if self.dice.percent(50) {
                    self.write_file();
                }
            }
            self.control.coordinator.as_mut().expect("it runs").restore(before);
            self.answer_call(caller, Err(Failed::Silent));
        }
        self.decide();
    }

    /// What checkers must know of a new state.
    fn file_changed(&mut self, before: &State) {
        let state = self.control.file.clone();
        for (id, one) in state.moves.iter().filter(|(id, _)| !before.moves.contains_key(id)) {
            let (to, prefix) = (super::hosts::host_of(one.to.server), one.prefix);
            self.tell(|| format!("move {} of {prefix} is ordered", id.0));
            self.coverage.meet(Sight::MoveOrdered);
            let from = self.owner_of(prefix.first_hash());
            if let Some(from) = from.filter(|from| self.hosts[*from].is_up) {
                self.meet_if_hot(from, Sight::HotMoves, |hash| prefix.contains(hash));
            }
            self.hosts[to].coming.push(prefix);
            self.begin_flux(prefix, true);
        }
        self.note_owners();
        let Some(map) = &state.map else { return };
        for (prefix, owner) in map.cachelets() {
            let known = before.map.as_ref().map(|map| map.at(prefix.first_hash()).1);
            if known != Some(*owner) {
                self.coverage.meet(Sight::MapChanged);
                self.begin_flux(*prefix, false);
            }
        }
    }

    /// The answer is on its way, and may get lost.
    fn answer_call(&mut self, caller: Caller, heard: Heard) {
        match caller {
            Caller::Member { host, life, call } => {
                let at = self.arrives(self.hosts.len(), host);
                if !self.is_calm() && self.dice.percent(2) {
                    return self.coverage.meet(Sight::CallLost);
                }
                self.at(at, Happening::Answered { host, life, call, heard: Box::new(heard) });
            }
            Caller::Operator => {}
            Caller::Watcher => self.watcher_hears(heard),
            Caller::Undertaker { host } => self.undertaken(host, heard != Err(Failed::Silent)),
            Caller::Planner => self.planner_hears(heard),
            Caller::Pilot { life } => self.pilot_hears(life, heard),
        }
    }

    pub fn stop_coordinator(&mut self) {
        if self.control.runs() {
            self.coverage.meet(Sight::CoordinatorStopped);
            self.tell(|| "the coordinator is stopped".to_owned());
            self.control.is_stopped = true;
        }
    }

    pub fn coordinator_goes_on(&mut self) {
        self.control.is_stopped = false;
        self.decide();
    }

    pub fn coordinator_dies(&mut self) {
        let Some(coordinator) = self.control.coordinator.take() else { return };
        self.coverage.meet(Sight::CoordinatorDied);
        self.tell(|| "the coordinator dies".to_owned());
        self.control.life += 1;
        self.control.is_stopped = false;
        if let Some(Saving { caller, .. }) = self.control.saving.take() {
            if self.dice.percent(50) {
                self.coverage.meet(Sight::SavedUnanswered);
                let state = coordinator.state().clone();
                let before = std::mem::replace(&mut self.control.file, state);
                self.file_changed(&before);
            }
            self.answer_call(caller, Err(Failed::Silent));
        }
        for (caller, _) in std::mem::take(&mut self.control.queue) {
            self.answer_call(caller, Err(Failed::Silent));
        }
    }

    pub fn coordinator_begins(&mut self) {
        if self.control.is_up() {
            return;
        }
        self.tell(|| "a coordinator begins".to_owned());
        let state = State::from_json(&self.control.file.to_json()).expect("it reads its own file");
        if state != self.control.file {
            self.fail(2, "a state is another one after it was saved and read");
        }
        let resumed = Coordinator::resume(self.control.settings.clone(), state);
        self.control.coordinator = Some(resumed.expect("it is the same cluster"));
        (self.control.began, self.control.is_unsettled) = (self.now, false);
        self.control.planning = Planning::new(thresholds(&self.profile), THRESHOLD_EPOCHS);
        self.control.plans = false;
        self.control.pilot = pilot(&self.profile, self.now);
        self.control.unchosen = (0, 0);
        let life = self.control.life;
        self.after(0, Happening::PilotWakes { life });
    }

    /// The planner's thread: once an epoch, unless it is not through with the last one.
    pub fn plan(&mut self) {
        let heartbeat = self.profile.heartbeat;
        self.after(heartbeat, Happening::Plan);
        if self.control.runs() && !self.control.plans && !self.asked_all() {
            let ask = self.control.planning.epoch();
            self.planner_asks(0, ask);
        }
    }

    fn planner_asks(&mut self, delay: Micros, ask: Request) {
        self.control.plans = true;
        match &ask {
            Request::Planned(plan) if !plan.moves.is_empty() => {
                self.coverage.meet(Sight::MovePlanned)
            }
            Request::Threshold(t) if t.is_finite() => self.coverage.meet(Sight::ThresholdSet),
            Request::Resized(_, plan) if !plan.cuts.is_empty() => {
                self.coverage.meet(Sight::ScaleChosen);
            }
            _ => {}
        }
        self.after(delay, Happening::Called { caller: Caller::Planner, ask: Box::new(ask) });
    }

    fn planner_hears(&mut self, heard: Heard) {
        self.control.plans = false;
        let answer = heard.ok();
        let outlook = match &answer {
            Some(Response::Outlook(outlook)) => Some(outlook.clone()),
            _ => None,
        };
        let Some(ask) = self.control.planning.answered(answer) else { return };
        if let (Some(outlook), Request::Planned(plan)) = (&outlook, &ask) {
            self.look_at_plan(outlook, plan);
        }
        self.planner_asks(1, ask);
    }
}

/// When a call is on its way to the coordinator it may get lost, or come twice.
pub fn copies(dice: &mut Dice) -> usize {
    match dice.below(100) {
        0 | 1 => 0,
        2 => 2,
        _ => 1,
    }
}
