//! What servers and operators say to a coordinator, and are told: the bodies of its HTTP calls, as JSON.
//!
//! Fields that a reader does not know are ignored, those that it misses have defaults: servers and coordinators of
//! neighbouring versions understand each other.

mod scale;

use std::fmt;
use std::ops::RangeInclusive;

use mbal_model::{CacheletLoad, Service, WorkerLoad};
use serde::{Deserialize, Deserializer, Serialize};

mod autoscaling;

pub use autoscaling::*;
pub use scale::{
    AgesAsked, AgesReport, ClassAges, ClassSelected, Retiring, ScaleCall, ScaleCut, ScalePlan,
    ScaleState, ScaleStatus, Scaling, Selected,
};

/// A process, told apart from others of the same id by a number that it drew at its start. In JSON 16 hexadecimal digits,
/// since 64 bits do not fit into every reader's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Incarnation(pub u64);

impl From<u64> for Incarnation {
    fn from(number: u64) -> Incarnation {
        Incarnation(number)
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:016x}", self.0)
    }
}

impl From<Incarnation> for String {
    fn from(incarnation: Incarnation) -> String {
        incarnation.to_string()
    }
}

impl TryFrom<String> for Incarnation {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Incarnation, &'static str> {
        let is_hex = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = is_hex.then(|| u64::from_str_radix(&text, 16).ok()).flatten();
        number.map(Incarnation).ok_or("an incarnation is 16 hexadecimal digits")
    }
}

/// `POST /v1/servers`: a process wants to serve.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Registration {
    /// The id that it was given, by an operator or an earlier registration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<u16>,
    pub incarnation: Incarnation,
    /// The cluster's name; a server of another one is refused.
    pub cluster: String,
    /// Where clients, servers, and smart clients (for each worker) reach it: `host:port`.
    pub client: String,
    pub link: String,
    pub workers: Vec<String>,
    pub memory_bytes: u64,
    /// It takes part in moves. One that does not, of an older version, neither gives nor takes cachelets.
    pub moves: bool,
    /// It can hold an ownership lease in etcd.
    pub leases: bool,
    /// The coordinators that it asks: if none of them leads, it may own on without etcd.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub coordinators: Vec<String>,
}

/// The answer: what it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Registered {
    pub id: u16,
    /// Milliseconds between two heartbeats.
    pub epoch_ms: u64,
    /// The newest `flush_all` that has come to pass on any server: what begins here is not older.
    #[serde(default)]
    pub flush_number: u32,
    /// It owns only while it holds such a lease in etcd.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseTold>,
    /// How hot keys are copied; nothing of a coordinator of an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hot: Option<HotTold>,
    /// The map document, once there is a map.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub map: Option<String>,
}

/// How a cluster copies its hot keys. What a newer version calls otherwise is `off` to this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HotMode {
    /// A write is told to copies after it was answered.
    Async,
    /// A write is executed when no copy is read any more.
    Atomic,
    #[default]
    #[serde(other)]
    Off,
}

/// Milliseconds that a lease of a copy may last.
pub const COPY_LEASE_MS: RangeInclusive<u64> = 100..=10_000;

/// What holds for hot keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HotTold {
    pub mode: HotMode,
    pub lease_ms: u64,
    /// T, requests a second for each copy of a key at most; 0: the cluster is even without, and each server's own T holds. None while this
    /// coordinator does not know: the last one stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threshold: Option<f64>,
}

impl HotTold {
    /// Whether it can be meant so. Whoever reads it obeys nothing else.
    pub fn is_sane(&self) -> bool {
        let is_rate = |rate: f64| rate.is_finite() && rate >= 0.0;
        COPY_LEASE_MS.contains(&self.lease_ms) && self.threshold.is_none_or(is_rate)
    }
}

/// What a server owns by.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LeaseTold {
    /// Members of etcd, like `http://10.0.0.1:2379`.
    pub etcd: Vec<String>,
    /// How long a renewal lasts.
    pub lease_ms: u64,
    /// How long it goes on without etcd, while no coordinator leads; none is for ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
}

/// `POST /v1/servers/{id}/heartbeat`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Heartbeat {
    pub incarnation: Incarnation,
    /// Of the newest map that it follows; 0 is none.
    pub map_version: u64,
    /// Of the newest `flush_all` that has come to pass there.
    pub flush_number: u32,
    /// Loads of its workers in its last epoch; 1 is saturated.
    pub workers: Vec<WorkerReport>,
    /// All that its items may have now; 0 is what it registered with.
    pub memory_bytes: u64,
    /// Of one that evicts nothing: how much of it is free.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub room_bytes: Option<u64>,
    /// A worker is overloaded, and the server's own balancer knows no way.
    pub helpless: bool,
    /// The process is to end, and wants to give its cachelets away first.
    pub ending: bool,
    /// What became of moves that it takes part in.
    pub moves: Vec<MoveReport>,
    /// Keys that were read and written a second, in its last epoch.
    pub requests: f64,
    /// Its hottest keys, the hottest first, at most [`HOT_KEYS_LISTED`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hot: Vec<HotReport>,
    /// Its hit ratio by size, every few seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub curve: Option<CurveReport>,
    /// Of the program, and the lowest and the highest version of the links' protocol that it speaks.
    pub version: String,
    pub link_versions: [u16; 2],
    /// Ages of its items, if the last answer asked for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ages: Option<AgesReport>,
    /// It lets no client in yet.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub starting: bool,
    /// It takes [`News::changes`] of the map that it follows.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub takes_changes: bool,
    /// Other servers to which it has not all the links that it wants.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<LinkReport>,
    /// What its own balancer has done last for its workers, the oldest first, at most [`REMEDIES_LISTED`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remedies: Vec<RemedyReport>,
    /// Nothing of an older version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vitals: Option<VitalsReport>,
}

/// Of a heartbeat: how full a server is, and how fast it was in its last epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VitalsReport {
    /// Of the memory that its items may have.
    pub used_bytes: u64,
    /// Requests by how long they took: how many took less than so many nanoseconds, and not less than those before. At most
    /// [`LATENCIES_LISTED`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub latency_ns: Vec<(u64, u64)>,
}

/// Buckets of a heartbeat's latencies: a server tells a sixteenth of a power of two apart, and few are not empty.
pub const LATENCIES_LISTED: usize = 512;

/// Of a heartbeat.
pub const REMEDIES_LISTED: usize = 4;

/// What was done for a worker that had more than its part: of the work, by its part of the capacity.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RemedyReport {
    /// Counts those of one server; 0 is the coordinator's.
    pub number: u64,
    pub server: u16,
    pub worker: u16,
    pub seen: f64,
    pub expected: f64,
    /// Cachelets and connections that go.
    pub steps: u32,
    /// To other workers of its server.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_inside: bool,
    /// It is the split of this cachelet, which had and is to have so much of its worker's part alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub split: Option<String>,
    /// What the worker had when it was judged; nothing while it is pending.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub came: Option<(f64, CameReport)>,
}

/// What came of a remedy, as the API says it: see [`mbal_model::Came`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CameReport {
    True,
    Short,
    Worse,
}

/// Of a heartbeat: another server, and why there is no link to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkReport {
    pub server: u16,
    pub down_ms: u64,
    pub why: String,
}

/// Hot keys of a heartbeat. Of one that lists more the hottest count.
pub const HOT_KEYS_LISTED: usize = 32;

/// A hot key, by the server that is its home.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HotReport {
    /// As `stats hot` writes it: blanks, `%` and what is not printed as `%` and two hexadecimal digits.
    pub key: String,
    /// Requests a second, those that copies answer included.
    pub reads: f64,
    /// Of these, what copies answer.
    #[serde(skip_serializing_if = "is_none_read")]
    pub copy_reads: f64,
    pub writes: f64,
    pub value_bytes: u32,
    /// None: it is not copied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<HotState>,
    /// Servers that have copies, or are to have them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub copies: Vec<u16>,
    /// How long it has been copied; 0 if it is not.
    pub copied_ms: u64,
}

/// `PUT /v1/hotkeys`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HotCall {
    #[serde(deserialize_with = "known_mode")]
    pub mode: HotMode,
}

/// Who asks for what is not known here is refused.
fn known_mode<'de, D: Deserializer<'de>>(from: D) -> Result<HotMode, D::Error> {
    match String::deserialize(from)?.as_str() {
        "off" => Ok(HotMode::Off),
        "async" => Ok(HotMode::Async),
        "atomic" => Ok(HotMode::Atomic),
        other => Err(serde::de::Error::custom(format!("{other} is none of off, async, atomic"))),
    }
}

fn is_none_read(rate: &f64) -> bool {
    *rate == 0.0
}

impl HotMode {
    /// A key with fewer reads for each write is hot by its writes: a copy would cost what it answers (`mbal_balance::hot::Policy`).
    pub fn reads_a_write(self) -> f64 {
        match self {
            HotMode::Off | HotMode::Async => 3.0,
            HotMode::Atomic => 12.0,
        }
    }
}

impl HotReport {
    pub fn rate(&self) -> f64 {
        self.reads + self.writes
    }

    /// Hot by writes: copies do not help.
    pub fn is_write_hot(&self, mode: HotMode) -> bool {
        self.writes > 0.0 && self.reads < mode.reads_a_write() * self.writes
    }

    /// How many copies it has, or is to have, beside the original.
    pub fn gamma(&self) -> usize {
        match self.state {
            Some(HotState::Hot | HotState::HotPending) => self.copies.len(),
            Some(HotState::ColdPending) | None => 0,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HotState {
    /// Copies are made, or are not as new as the original.
    HotPending,
    /// Clients are told of copies.
    Hot,
    /// Copies go.
    ColdPending,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerReport {
    /// Load that stays where the connections are.
    pub fixed: f64,
    /// The heaviest of its cachelets, at most [`cachelets_listed`] of them.
    pub cachelets: Vec<CacheletReport>,
    /// All others together.
    pub rest: RestReport,
    /// Keys that were read, found and written in its last epoch.
    pub reads: u64,
    pub hits: u64,
    pub writes: u64,
    /// See [`Service`]; an older version knows nothing of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<f64>,
    pub capacity: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<f64>,
    pub keys: u64,
    pub turns: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheletReport {
    pub prefix: String,
    pub load: f64,
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RestReport {
    pub cachelets: u32,
    pub load: f64,
    pub bytes: u64,
}

/// How many cachelets of each worker a heartbeat lists, of a server with so many workers: those that a plan would move. It keeps
/// a heartbeat under 32 KiB, however many cachelets there are.
pub fn cachelets_listed(workers: usize) -> usize {
    (256 / workers.max(1)).clamp(4, 32)
}

/// Of workers, by which 1 is saturated, and what one has of its part. A difference of two times may be a little below nothing.
pub(crate) const LOADS: RangeInclusive<f64> = -1.0..=1e6;
/// More requests wait for no worker, and more work is done by none: whoever reports more is ill.
const WAITING_MAX: f64 = 1e6;
const CAPACITY_MAX: f64 = 1e15;

impl WorkerReport {
    /// What a heartbeat says of a worker.
    pub fn of(worker: &WorkerLoad, listed: usize) -> WorkerReport {
        let named = |one: &CacheletLoad| (one.cachelet.to_string(), one.load, one.bytes);
        let Service { waiting, capacity, part, keys, turns } = worker.service;
        let (waiting, part) = (waiting.map(rounded), part.map(rounded));
        let cachelets = worker.cachelets.iter().map(named).collect();
        let report = WorkerReport::new(worker.fixed, cachelets, listed);
        WorkerReport { waiting, capacity: rounded(capacity), part, keys, turns, ..report }
    }

    /// How it served, as far as it can be meant so.
    pub fn service(&self) -> Service {
        let sane = |number: f64, most: f64| if number >= 0.0 { number.min(most) } else { 0.0 };
        Service {
            waiting: self.waiting.map(|waiting| sane(waiting, WAITING_MAX)),
            capacity: sane(self.capacity, CAPACITY_MAX),
            part: self.part.map(|part| sane(part, 1.0)),
            keys: self.keys,
            turns: self.turns,
        }
    }

    /// Cachelets by prefix, load, bytes.
    pub fn new(fixed: f64, mut cachelets: Vec<(String, f64, u64)>, listed: usize) -> WorkerReport {
        // What weighs the same stays in its order.
        cachelets.sort_by(|a, b| b.1.total_cmp(&a.1));
        let others = &cachelets[listed.min(cachelets.len())..];
        let rest = RestReport {
            cachelets: others.len() as u32,
            load: reported(others.iter().map(|other| other.1).sum()),
            bytes: others.iter().map(|other| other.2).sum(),
        };
        cachelets.truncate(listed);
        let one = |(prefix, load, bytes)| CacheletReport { prefix, load: reported(load), bytes };
        let cachelets = cachelets.into_iter().map(one).collect();
        WorkerReport { fixed: reported(fixed), cachelets, rest, ..WorkerReport::default() }
    }

    /// Fraction of time busy; 1 is saturated.
    pub fn load(&self) -> f64 {
        let listed = self.cachelets.iter().map(|one| one.load);
        self.fixed + listed.sum::<f64>() + self.rest.load
    }
}

/// To a hundred-thousandth: no digit of a heartbeat is noise. Nor is a sum of nothing -0.
fn rounded(number: f64) -> f64 {
    (number * 1e5).round() / 1e5 + 0.0
}

/// A load, or a part, as a coordinator takes it: for one number of its own that is beyond all bounds a server would not be heard at all.
pub(crate) fn reported(load: f64) -> f64 {
    rounded(if load.is_nan() { 0.0 } else { load.clamp(*LOADS.start(), *LOADS.end()) })
}

/// What the source of a move says of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MoveReport {
    /// 0 where it stands beside the move that it is about.
    #[serde(skip_serializing_if = "is_zero")]
    pub number: u32,
    pub progress: Progress,
    /// Why it came back, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Slices that the destination serves, and which part of the cachelet's keys they have, from 0 to 1.
    pub slices_gone: u64,
    pub part_gone: f64,
    /// Slices that were served by the source again, and sent again.
    pub slices_again: u64,
    pub bytes: u64,
    /// How long requests waited for a slice: the longest, and all together.
    pub paused_us_max: u64,
    pub paused_us: u64,
    /// From the first slice's begin to the last one's end.
    pub moved_ms: u64,
    /// It goes slower than it could, since clients would feel it.
    pub slowed: bool,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Progress {
    /// The destination has not answered yet.
    #[default]
    Asking,
    Moving,
    /// Its source serves nothing of the cachelet any more; the destination serves it all.
    Sealed,
    /// Its source serves everything.
    Back,
    /// The destination does not take it, though it serves a part already.
    Refused,
    /// It cannot be cancelled any more: a part is served by the destination.
    TooLate,
}

/// The answer: what is new.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct News {
    /// A document, if the server follows an older map and nobody knows what has changed since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub map: Option<String>,
    /// Otherwise what has, one after the other.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<String>,
    /// All moves under way in which the server takes part. One that is not here, and whose number is not above
    /// `moves_ever`, is over.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub moves: Vec<MoveNews>,
    /// The highest number that a move was given.
    pub moves_ever: u32,
    /// The newest `flush_all` that has come to pass on any server.
    pub flush_number: u32,
    /// How far the server is emptied, if it is to be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,
    /// No other server has room for what it has still, by the last plan.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub no_room: bool,
    /// How hot keys are copied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hot: Option<HotTold>,
    /// How the cluster is balanced; nothing of an older coordinator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub balance: Option<BalanceMode>,
    /// The next heartbeat is wanted sooner: a server may be about to be found dead, or ages are asked for.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub soon: bool,
    /// The next heartbeat is to tell the ages of items.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ages: Option<AgesAsked>,
    /// Items that are to stay, while chosen ones come from servers that retire.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep: Option<Selected>,
}

/// `DELETE /v1/servers/{id}`: the process has ended, or is about to, and serves nothing any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaving {
    pub incarnation: Incarnation,
}

/// `POST /v1/splits`: two cachelets in the place of one, with its owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitCall {
    pub prefix: String,
}

/// `POST /v1/servers/{id}/lost`: the process is dead. With its incarnation a call that comes late means nobody who came after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostCall {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<Incarnation>,
    /// It is so though the server was just heard.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

/// What has become of the cachelets of a server that is to be emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Drain {
    /// It has some, which are on their way or will be.
    Draining,
    /// It has none, and all other servers that are heard of know.
    Drained,
    /// There is no other server that could take them.
    Nobody,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MoveNews {
    pub number: u32,
    pub prefix: String,
    pub from: u16,
    pub to: u16,
    /// Of the destination.
    pub worker: u16,
    /// The process that it is meant for.
    pub to_incarnation: Incarnation,
    pub word: MoveDecision,
    /// The items that travel, if not all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selected: Option<Selected>,
}

/// What the coordinator has decided of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MoveDecision {
    /// It is to be done.
    Go,
    /// The source is to serve everything again, if nothing is gone.
    Cancel,
    /// The destination is dead: the source is to serve everything again.
    DestinationLost,
}

/// `POST /v1/moves`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MoveCall {
    pub prefix: String,
    pub server: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<u16>,
}

/// `PUT /v1/balance`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BalanceCall {
    pub mode: BalanceMode,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BalanceMode {
    /// Cachelets move from overloaded servers to lighter ones.
    #[default]
    On,
    /// Only what operators order moves. What balancers have lent goes home, and what plans have under way is cancelled.
    Off,
    /// What would move is told.
    DryRun,
}

/// What the coordinator's planner has found in the last epoch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BalanceStatus {
    pub mode: BalanceMode,
    /// Servers that cannot help themselves.
    pub asking: Vec<u16>,
    /// All are hot: so many more servers would do.
    pub servers_wanted: u32,
    /// Cachelets that are too heavy for any worker.
    pub too_heavy: Vec<String>,
    /// Servers with a worker whose connections alone are too much for it.
    pub by_connections: Vec<u16>,
    /// Over all workers that were heard of.
    pub load_mean: f64,
    pub load_max: f64,
    /// What was done for overloaded workers, by their servers and by the coordinator, and what came of it; what is pending first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remedies: Vec<RemedyReport>,
}

/// How hot keys are copied, and how many there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HotStatus {
    #[serde(flatten)]
    pub told: HotTold,
    /// Servers that were heard of, and the keys that they read and write a second.
    pub servers: usize,
    pub requests: f64,
    /// Keys that have copies, and how many copies they have.
    pub copied: usize,
    pub copies: usize,
}

/// `GET /v1/hotkeys`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HotKeys {
    #[serde(flatten)]
    pub status: HotStatus,
    /// The hottest first, at most 1,024.
    pub keys: Vec<HotKey>,
}

/// A hot key, and its home.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HotKey {
    pub server: u16,
    #[serde(flatten)]
    pub report: HotReport,
}

/// `GET /v1/status`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub cluster: String,
    /// 0 while there is no map.
    pub map_version: u64,
    /// Servers that have to register before there is a map.
    #[serde(default)]
    pub waits_for: usize,
    pub servers: Vec<ServerStatus>,
    pub moves: Vec<MoveStatus>,
    #[serde(default)]
    pub balance: BalanceStatus,
    /// Nothing of a coordinator of an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hot: Option<HotStatus>,
    /// Links between servers that are heard which are broken: what clients ask for over them is missed, and writes fail.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub broken_links: Vec<LinkStatus>,
}

/// A link that one server misses to another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkStatus {
    pub from: u16,
    pub to: u16,
    pub seconds: u64,
    pub why: String,
    /// What to do.
    pub mend: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerStatus {
    pub id: u16,
    pub incarnation: Incarnation,
    pub client: String,
    pub link: String,
    pub workers: usize,
    pub memory_bytes: u64,
    pub cachelets: usize,
    /// Part of all hashes that it has by the map.
    pub share: f64,
    /// Mean load of its workers.
    pub load: f64,
    /// Of the map that it follows.
    pub map_version: u64,
    /// Of its program, and of the links' protocol: the lowest and the highest that it speaks. Empty, and 0, of an older program.
    #[serde(default)]
    pub version: String,
    #[serde(default)]
    pub link_versions: [u16; 2],
    /// Milliseconds since its last heartbeat; none since the coordinator was started is nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent_ms: Option<u64>,
    /// `serving`, `starting` (it lets no client in yet), `unlinked` (links to most other servers are broken), `awaited` (the coordinator has just begun, and not heard of it), `silent` (heartbeats are missing), `lost`,
    /// `draining`, `stuck` (draining, and nobody has room), `drained`: it has nothing any more, and may be stopped; or `retired`: it was that, and has ended.
    pub state: String,
}

impl ServerStatus {
    /// Its process has ended for certain, and none has come after it.
    pub fn has_ended(&self) -> bool {
        ["lost", "retired"].contains(&self.state.as_str())
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MoveStatus {
    pub number: u32,
    pub prefix: String,
    pub from: u16,
    pub to: u16,
    /// `go`, `cancel` or `destination-lost`.
    pub word: MoveDecision,
    /// What its source has said last.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub report: Option<MoveReport>,
}

/// `GET /v1/leads`: whether the coordinator that is asked leads at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leads {
    pub leads: bool,
}

/// Whatever went wrong, to the caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub error: String,
    /// Who leads, said by a coordinator that does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
}
