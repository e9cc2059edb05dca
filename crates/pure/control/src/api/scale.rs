//! How many servers there are to be: what is asked of servers, what was chosen, how far it is.

use serde::{Deserialize, Serialize};

/// `POST /v1/scale`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScaleCall {
    pub servers: usize,
    /// Only says what would be done.
    #[serde(default)]
    pub dry_run: bool,
    /// Who retires, the first one first; the coldest ones if nobody is named. As many as are too many.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retire: Vec<u16>,
    /// Who has retired is to be stopped by the autoscaler, which alone says so.
    #[serde(skip)]
    pub stops: bool,
}

/// In the answer to a heartbeat: the next one is to tell the ages of items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgesAsked {
    /// A scaling's. A server keeps the moment of the last number, from which ages count.
    pub number: u32,
    /// That moment is so long ago, of all servers the same one.
    pub ago_ms: u64,
}

/// In a heartbeat: the ages of a server's items, at the moment that was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgesReport {
    pub number: u32,
    /// All that items may have, and what their pages have.
    pub memory_bytes: u64,
    pub used_bytes: u64,
    pub classes: Vec<ClassAges>,
}

/// The items of one of memcached's classes of size.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClassAges {
    pub class: u8,
    pub items: u64,
    pub bytes: u64,
    /// Seconds since the last access, of some of the items; sorted, youngest first.
    pub ages: Vec<u32>,
}

/// Items that were chosen. Ages count from the moment of that number; a server that does not know it chooses nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Selected {
    pub number: u32,
    /// Of a class that is not here everything is chosen.
    pub classes: Vec<ClassSelected>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassSelected {
    pub class: u8,
    /// Items of a lower age are, and so many 65,536ths of those of that very age.
    pub younger_than: u32,
    #[serde(default)]
    pub tied: u16,
}

/// `GET /v1/scale`, and the answer to `POST`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ScaleStatus {
    pub number: u32,
    pub state: ScaleState,
    pub dry_run: bool,
    /// The autoscaler has begun it, and stops who has retired.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub stops: bool,
    /// So many are wanted, and there are beside those that retire.
    pub servers: usize,
    pub serving: usize,
    /// So many more are to be started.
    pub more: usize,
    /// Servers that have not told the ages of their items yet.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub awaited: Vec<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<ScalePlan>,
    /// Of what retiring servers have of the hashes, from 0 to 1.
    pub part_done: f64,
    /// That moves have carried, as far as this coordinator was told.
    pub bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<u64>,
    /// Servers that are empty, and may be stopped.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub retired: Vec<u16>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScaleState {
    /// Nothing was asked for.
    #[default]
    Idle,
    /// Servers are asked for the ages of their items.
    Asking,
    /// What was chosen moves.
    Moving,
    /// More servers are to be started.
    Growing,
    Done,
}

/// What is to be done, and remembered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scaling {
    pub number: u32,
    pub servers: usize,
    /// More servers are wanted than there were.
    pub grows: bool,
    /// Who is to retire; chosen by age if nobody is named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retire: Vec<u16>,
    /// Who has retired is to be stopped by the autoscaler.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stops: bool,
    /// None until it is known who retires; of one that grows always.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<ScalePlan>,
    /// Nothing is left to be done, whatever becomes of servers later.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub done: bool,
}

/// Who retires, and what travels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScalePlan {
    /// Coldest first, or as they were named.
    pub retiring: Vec<Retiring>,
    /// A sixty-five thousandth of all hashes each: what retiring servers had when it began.
    pub nodes: usize,
    /// What servers that stay have, and keep of it.
    pub staying_bytes: u64,
    pub kept_bytes: u64,
    /// Empty if there is room for everything.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cuts: Vec<ScaleCut>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retiring {
    pub server: u16,
    /// The median item's age in seconds, by class, weighed by memory.
    pub score: u64,
    pub bytes: u64,
    /// Of them travel so many.
    pub carried_bytes: u64,
}

/// What becomes of one class at one server that stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScaleCut {
    pub server: u16,
    pub class: u8,
    /// Of its own.
    pub kept_items: u64,
    pub kept_younger_than: u32,
    /// And so many 65,536ths of those of that very age.
    #[serde(default)]
    pub kept_tied: u16,
    /// Of those of one server that retires.
    pub from: u16,
    pub carried_items: u64,
    pub carried_younger_than: u32,
    #[serde(default)]
    pub carried_tied: u16,
}
