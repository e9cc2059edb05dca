//! One event after the other: what is asked, what changes, what is answered.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use std::collections::{BTreeMap, BTreeSet};

use mbal_election::KeySeen;
use mbal_model::{ClusterPlan, Outlook, Prefix, ServerId};

use crate::api::{self, BalanceMode, HotKeys, HotMode, Incarnation, News, Registered, Status};
use crate::autoscaling::{Autoscaled, Look};
use crate::balancing::Balanced;
use crate::changes::Changes;
use crate::forecast::{Demand, Forecasts};
use crate::hot::{Hot, Rates};
use crate::leases::{Leases, Owners, Watched};
use crate::members::Heard;
use crate::scaling::{Inventory, Resizing};
use crate::state::State;

/// Microseconds since the coordinator's start, by a clock that never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Micros(pub u64);

#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The cluster's name.
    pub cluster: String,
    /// Servers that have to register before the first map is made.
    pub servers_first: usize,
    /// Time between two heartbeats of a server.
    pub epoch: Duration,
    /// Where the state is in etcd, servers own by leases.
    pub leases: Option<Leases>,
    /// How hot keys are copied.
    pub hot_keys: HotMode,
    /// How long a copy may be read without word of its home.
    pub copy_lease: Duration,
    /// The busiest server's requests by those of the average one, which copies are to keep.
    pub imbalance_target: f64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            cluster: "mbal".into(),
            servers_first: 1,
            epoch: Duration::from_secs(1),
            leases: None,
            hot_keys: HotMode::Off,
            copy_lease: Duration::from_secs(1),
            imbalance_target: 1.25,
        }
    }
}

/// Everything that can be asked of a coordinator.
#[derive(Clone, Debug, PartialEq)]
pub enum Ask {
    Register(api::Registration),
    Heartbeat(ServerId, api::Heartbeat),
    /// A process ends, and holds nothing any more.
    Leave(ServerId, Incarnation),
    Map,
    Status,
    Move(api::MoveCall),
    CancelMove(u32),
    Split(api::SplitCall),
    /// This server's process is dead for certain.
    Lost(ServerId),
    /// An operator says so.
    SaidLost(ServerId, api::LostCall),
    Balance(BalanceMode),
    /// An operator wants this server empty, or no more.
    Drain(ServerId, bool),
    /// What a planner reads at the end of the epoch of that number.
    Outlook(u64),
    /// What a planner has made of it.
    Planned(ClusterPlan),
    /// By what T is computed, at the end of an epoch.
    Rates,
    /// What came of it: requests a second for each copy, infinite if nothing is to be copied.
    Threshold(f64),
    HotKeys,
    /// Hit ratios of `1..=servers`, with what a database bears a second.
    Forecast {
        servers: usize,
        database_rate: Option<f64>,
    },
    Autoscale(api::AutoscaleConfig),
    AutoscaleStatus,
    /// What an autoscaler reads; and what it has seen and done.
    Demand,
    Looked(Look),
    /// Whose keys are to be looked at in etcd.
    Owners,
    /// So many servers are wanted.
    Scale(api::ScaleCall),
    Scaling,
    EndScaling,
    /// What who chooses servers that retire reads.
    Inventory,
    /// What was chosen, by the inventory of that number.
    Resized(u32, api::ScalePlan),
    /// What a look has shown, which was asked for at that moment.
    KeysSeen(Micros, BTreeMap<ServerId, (Incarnation, KeySeen)>),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Registered(Registered),
    News(News),
    /// A map document.
    Map(String),
    Status(Status),
    /// The number of the move that was begun.
    Move(u32),
    Outlook(Outlook),
    /// None if nothing is copied, or not all servers were heard of since this coordinator began.
    Rates(Option<Rates>),
    HotKeys(HotKeys),
    Forecast(api::ForecastTold),
    Autoscale(api::AutoscaleStatus),
    Demand(Box<Demand>),
    Owners(Owners),
    Scale(Box<api::ScaleStatus>),
    /// None unless servers are to retire, and have told what they have.
    Inventory(Option<Inventory>),
    Done,
}

/// Why not. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It cannot be meant so.
    Senseless(String),
    /// There is no such thing.
    Unknown(String),
    /// It does not fit what is.
    Conflict(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Refusal::Senseless(why) | Refusal::Unknown(why) | Refusal::Conflict(why)) = self;
        out.write_str(why)
    }
}

/// What came of an event.
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    /// The state as it was, if it is another one now: that one is to be saved before the answer is given, or this one put back.
    pub before: Option<Arc<State>>,
    pub answer: Result<Answer, Refusal>,
    /// For the log: what was decided.
    pub said: Vec<String>,
    /// What has begun cannot wait for the end of an epoch: a plan is wanted at once.
    pub is_pressing: bool,
}

/// Who is a member, who has what, what moves.
#[derive(Debug)]
pub struct Coordinator {
    pub(crate) settings: Settings,
    /// Copied by the first change of a transaction: what only reads copies nothing.
    pub(crate) state: Arc<State>,
    /// What servers have said since this process began; lost with it.
    pub(crate) heard: BTreeMap<ServerId, Heard>,
    pub(crate) said: Vec<String>,
    /// What planners have said since this process began.
    pub(crate) balanced: Balanced,
    pub(crate) watched: Watched,
    pub(crate) hot: Hot,
    pub(crate) forecasts: Forecasts,
    pub(crate) autoscaled: Autoscaled,
    pub(crate) resizing: Resizing,
    pub(crate) changes: Changes,
    /// Servers that miss a link to another one, of which it was said.
    pub(crate) unlinked: BTreeSet<(ServerId, ServerId)>,
}

impl Coordinator {
    /// Without a past.
    pub fn new(settings: Settings) -> Coordinator {
        let state = State { cluster: settings.cluster.clone(), ..State::default() };
        Coordinator::with(settings, state)
    }

    fn with(settings: Settings, state: State) -> Coordinator {
        let balanced = Balanced::default();
        let (heard, watched) = (BTreeMap::new(), Watched::default());
        let (said, hot, resizing) = (Vec::new(), Hot::default(), Resizing::default());
        let (forecasts, autoscaled) = (Forecasts::default(), Autoscaled::default());
        Coordinator {
            settings,
            state: Arc::new(state),
            heard,
            said,
            balanced,
            watched,
            hot,
            forecasts,
            autoscaled,
            resizing,
            changes: Changes::default(),
            unlinked: BTreeSet::new(),
        }
    }

    /// With what was saved. A name that is another one is refused: it is the state of another cluster.
    pub fn resume(settings: Settings, state: State) -> Result<Coordinator, Refusal> {
        if state.cluster != settings.cluster {
            let why =
                format!("the state is of cluster {}, not {}", state.cluster, settings.cluster);
            return Err(Refusal::Conflict(why));
        }
        Ok(Coordinator::with(settings, state))
    }

    pub fn state(&self) -> &State {
        &self.state
    }

    /// To change it.
    pub(crate) fn changing(&mut self) -> &mut State {
        Arc::make_mut(&mut self.state)
    }

    /// The state as it was, since the new one could not be saved.
    pub fn restore(&mut self, state: Arc<State>) {
        self.state = state;
        self.changes.forget();
    }

    /// One transaction. A refusal changes nothing but what is known of heartbeats.
    pub fn handle(&mut self, now: Micros, ask: Ask) -> Done {
        if let Err(refusal) = ask.check() {
            let answer = Err(refusal);
            return Done { before: None, answer, said: Vec::new(), is_pressing: false };
        }
        let before = Arc::clone(&self.state);
        let answer = match ask {
            Ask::Register(registration) => self.register(now, registration).map(Answer::Registered),
            Ask::Heartbeat(server, heartbeat) => {
                self.heartbeat(now, server, heartbeat).map(Answer::News)
            }
            Ask::Leave(server, incarnation) => self.leave(server, incarnation),
            Ask::Map => self.map().map(Answer::Map),
            Ask::Status => Ok(Answer::Status(self.status(now))),
            Ask::Move(call) => self.begin_move(&call).map(Answer::Move),
            Ask::CancelMove(number) => self.cancel_move(number),
            Ask::Split(call) => self.split(&call),
            Ask::Lost(server) => self.lost(server),
            Ask::SaidLost(server, call) => self.said_lost(now, server, call),
            Ask::Balance(mode) => self.set_balance(mode),
            Ask::Drain(server, wanted) => self.drain(server, wanted),
            Ask::Outlook(epoch) => Ok(Answer::Outlook(self.outlook(now, epoch))),
            Ask::Planned(plan) => self.planned(plan),
            Ask::Rates => Ok(Answer::Rates(self.rates(now))),
            Ask::Threshold(threshold) => Ok(self.set_threshold(threshold)),
            Ask::HotKeys => Ok(Answer::HotKeys(self.hot_keys(now))),
            Ask::Forecast { servers, database_rate } => {
                Ok(Answer::Forecast(self.forecast_told(now, servers, database_rate)))
            }
            Ask::Autoscale(config) => self.set_autoscale(config),
            Ask::AutoscaleStatus => Ok(Answer::Autoscale(self.autoscale_status())),
            Ask::Demand => Ok(Answer::Demand(Box::new(self.demand(now)))),
            Ask::Looked(look) => Ok(self.looked(look)),
            Ask::Owners => Ok(Answer::Owners(self.owners(now))),
            Ask::Scale(call) => self.scale(now, call),
            Ask::Scaling => Ok(Answer::Scale(Box::new(self.scale_status(now)))),
            Ask::EndScaling => self.end_scaling(),
            Ask::Inventory => Ok(Answer::Inventory(self.inventory(now))),
            Ask::Resized(number, plan) => self.resized(number, plan),
            Ask::KeysSeen(begun, keys) => self.keys_seen(now, begun, &keys),
        };
        if answer.is_err() {
            self.state = before;
            self.said.clear();
            return Done { before: None, answer, said: Vec::new(), is_pressing: false };
        }
        let is_same = Arc::ptr_eq(&self.state, &before) || self.state == before;
        let before = (!is_same).then_some(before);
        if before.is_some() {
            self.changes.look_at(&self.state);
        }
        let is_pressing = std::mem::take(&mut self.balanced.is_pressing);
        Done { before, answer, said: std::mem::take(&mut self.said), is_pressing }
    }

    fn map(&self) -> Result<String, Refusal> {
        let document = self.state.document();
        document.map(|document| document.to_string()).ok_or_else(|| self.no_map())
    }

    pub(crate) fn no_map(&self) -> Refusal {
        let missing = self.missing();
        Refusal::Conflict(format!("there is no map yet: {missing} more servers have to register"))
    }

    /// Servers that the first map still waits for.
    pub(crate) fn missing(&self) -> usize {
        match self.state.map {
            Some(_) => 0,
            None => self.settings.servers_first.saturating_sub(self.state.members.len()),
        }
    }

    fn report_of(&self, number: u32, one: &crate::moves::Move) -> Option<api::MoveReport> {
        let reports = &self.heard.get(&one.from.server)?.moves;
        reports.iter().find(|report| report.number == number).cloned()
    }

    fn status(&self, now: Micros) -> Status {
        let state = &self.state;
        Status {
            cluster: state.cluster.clone(),
            map_version: state.map.as_ref().map_or(0, |map| map.version()),
            waits_for: self.missing(),
            servers: self.servers_status(now),
            moves: state
                .moves
                .iter()
                .map(|(id, one)| one.status(id.0, self.report_of(id.0, one)))
                .collect(),
            balance: self.balance_status(),
            hot: Some(self.hot_status(now)),
            broken_links: self.broken_links(now),
        }
    }
}

/// The server of that number.
pub(crate) fn known(state: &State, server: ServerId) -> Result<&crate::state::Member, Refusal> {
    state
        .members
        .get(&server)
        .ok_or_else(|| Refusal::Unknown(format!("there is no server {}", server.0)))
}

/// A prefix as an operator writes it.
pub(crate) fn prefix(text: &str) -> Result<Prefix, Refusal> {
    let expected = || Refusal::Senseless(format!("a cachelet is a prefix like 2800/5, not {text}"));
    Prefix::parse(text.as_bytes()).ok_or_else(expected)
}
