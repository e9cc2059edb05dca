//! Hit ratios by size, and the autoscaler: bodies of its calls.

use serde::{Deserialize, Serialize};

/// Of a heartbeat: what a server knows of its hit ratio by size. `mbal_sketch::Curve::points` says what the points are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CurveReport {
    /// Reads of keys since its process began, and how many hit.
    pub reads: u64,
    pub hits: u64,
    /// Reads that the points are parts of.
    pub counted: f64,
    /// Of them, how many would hit at each size.
    pub points: Vec<u64>,
    /// Memory that the sketch has.
    pub state_bytes: u64,
    /// Mean bytes of an item; 0 of an older version.
    pub item_bytes: u64,
}

/// `GET /v1/forecast?servers=N&database_rate=R`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ForecastTold {
    /// Servers that serve, and those of them whose hit ratio by size is known.
    pub servers: usize,
    pub servers_told: usize,
    /// Memory of a server: the mean.
    pub server_bytes: u64,
    /// Of the last minute.
    pub reads_per_second: f64,
    pub hit_ratio: f64,
    /// Of the last ten minutes in which no server came or left: the forecast of that size. Before that it is
    /// the last minute's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hit_ratio_measured: Option<f64>,
    /// Memory of the largest sketch.
    pub state_bytes: u64,
    /// The least hit ratio with which the database bears what misses, if its rate was said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hit_ratio_needed: Option<f64>,
    pub sizes: Vec<SizeForecast>,
}

/// What a cluster of so many servers would do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SizeForecast {
    pub servers: usize,
    pub hit_ratio: f64,
    /// If every key that has been read once so far is read again: at most.
    pub hit_ratio_most: f64,
    /// What misses, a second.
    pub database_rate: f64,
    /// Of a larger cluster: after so many seconds what misses has filled it. None if that cannot be said, or never happens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fills_in_s: Option<f64>,
}

/// What decides on a cluster's size. What a newer version calls otherwise is `off` to this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AutoscalePolicy {
    /// What the last minute needs.
    Reactive,
    /// The same, or what yesterday needed at this hour, if that is more.
    #[default]
    Predictive,
    /// Nothing; people do.
    #[serde(other)]
    Off,
}

/// `PUT /v1/autoscale`, and a part of the saved state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AutoscaleConfig {
    /// Servers at least, and at most.
    pub min: usize,
    pub max: usize,
    /// Reads that the database bears, a second.
    pub database_rate: f64,
    #[serde(default)]
    pub policy: AutoscalePolicy,
    /// Rules like `6 from 08:00 to 20:00 on mon-fri`, UTC.
    #[serde(default)]
    pub schedule: Vec<String>,
    /// What would be done is told, and not done.
    #[serde(default)]
    pub dry_run: bool,
    /// Memory is planned for so many times the rate: what is added while a rate rises has to be filled by misses.
    #[serde(default = "headroom")]
    pub headroom: f64,
    /// No server leaves sooner after the last change.
    #[serde(default = "rest_minutes")]
    pub rest_minutes: u64,
}

fn headroom() -> f64 {
    1.25
}

fn rest_minutes() -> u64 {
    10
}

impl Default for AutoscaleConfig {
    fn default() -> AutoscaleConfig {
        AutoscaleConfig {
            min: 1,
            max: 1,
            database_rate: 0.0,
            policy: AutoscalePolicy::default(),
            schedule: Vec::new(),
            dry_run: false,
            headroom: headroom(),
            rest_minutes: rest_minutes(),
        }
    }
}

/// `GET /v1/autoscale`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AutoscaleStatus {
    /// Nothing if nobody has set it up.
    pub config: Option<AutoscaleConfig>,
    /// Who starts and stops servers: `commands`, `http`, `kubernetes`, `processes`, or `nobody`.
    pub machines: String,
    /// The last look.
    pub last: Option<AutoscaleLook>,
    /// Servers that are started, and have not come yet.
    pub starting: usize,
    /// Servers that are emptied to be stopped.
    pub stopping: Vec<u16>,
    /// What came of changes, the last one first.
    pub outcomes: Vec<OutcomeTold>,
}

/// What was seen, and is to be.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AutoscaleLook {
    /// Seconds since 1970.
    pub unix: u64,
    pub servers: usize,
    pub servers_wanted: usize,
    pub hit_ratio: f64,
    pub hit_ratio_needed: f64,
    /// With the servers that are wanted.
    pub hit_ratio_expected: f64,
    pub why: String,
}

/// The hit ratio that was forecast for a new size, and the one that was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OutcomeTold {
    /// When the size was changed, in seconds since 1970.
    pub unix: u64,
    pub from: usize,
    pub to: usize,
    pub expected: f64,
    pub measured: f64,
}
