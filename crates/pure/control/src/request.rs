//! What can be asked of a coordinator, and what comes of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use mbal_election::KeySeen;
use mbal_model::{ClusterPlan, Instant, Outlook, ServerId};

use crate::api::{self, BalanceMode, HotKeys, HotMode, Incarnation, News, Registered, Status};
use crate::autoscaling::Look;
use crate::forecast::Demand;
use crate::hot::Rates;
use crate::inventory::Inventory;
use crate::leases::Owners;
use crate::overview::Overview;
use crate::refusal::Refusal;
use crate::state::State;

/// Everything that can be asked of a coordinator.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    Register(api::Registration),
    Heartbeat(ServerId, api::Heartbeat),
    /// A process ends, and holds nothing any more.
    Leave(ServerId, Incarnation),
    Map,
    Status,
    /// What the page shows.
    Overview,
    Move(api::MoveCall),
    CancelMove(u32),
    Split(api::SplitCall),
    /// This server's process is dead for certain.
    Lost(ServerId),
    /// An operator says so.
    SaidLost(ServerId, api::LostCall),
    Balance(BalanceMode),
    /// How hot keys are copied from now on.
    CopyHotKeys(HotMode),
    /// An operator wants this server empty, or no more.
    Drain(ServerId, bool),
    /// What a planner reads at the end of the epoch of that number.
    Outlook(u64),
    /// What a planner has made of it.
    Planned(ClusterPlan),
    /// By what T is computed, at the end of an epoch.
    Rates,
    /// What came of it: requests a second for each copy, infinite if the cluster is even without copies.
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
    KeysSeen(Instant, BTreeMap<ServerId, (Incarnation, KeySeen)>),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Response {
    Registered(Registered),
    News(News),
    /// A map document.
    Map(String),
    Status(Status),
    Overview(Box<Overview>),
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

/// What came of an event.
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    /// The state as it was, if it is another one now: that one is to be saved before the answer is given, or this one put back.
    pub before: Option<Arc<State>>,
    pub answer: Result<Response, Refusal>,
    /// For the log: what was decided.
    pub said: Vec<String>,
    /// What has begun cannot wait for the end of an epoch: a plan is wanted at once.
    pub is_pressing: bool,
}
