//! What a proxy needs to know, and its bounds.

use std::time::Duration;

use mbal_routing::ketama::RingServer;

use crate::control::Replication;
use crate::mapped::Slots;
use crate::peers::Peers;
use crate::pool::Distribution;

/// What a proxy needs to know.
#[derive(Clone, Debug)]
pub struct Settings {
    pub servers: Vec<RingServer>,
    pub distribution: Distribution,
    /// The servers are workers of one cluster, and have these keys; whatever [`Settings::distribution`] says.
    pub slots: Option<Slots>,
    /// To each upstream.
    pub conns_per_server: usize,
    /// An upstream that has not answered for so long has failed.
    pub timeout: Duration,
    /// Keys of an upstream that fails [`Settings::failures_max`] times in a row go to the others.
    pub eject: bool,
    pub failures_max: u32,
    /// An upstream that failed is tried again so often.
    pub retry: Duration,
    pub limits: Limits,
    /// Hot keys get copies. Only where nobody writes the same keys but this proxy and its [`Settings::peers`].
    pub replication: Option<Replication>,
    /// Other proxies that do likewise, and do not eject either.
    pub peers: Option<Peers>,
    /// Stack distances of reads are sampled: what an autoscaler of the pool reads.
    pub stack_distances: bool,
    /// Who has this token may change the pool while it is written to (docs/design/switching.md).
    pub switch: Option<SwitchSettings>,
    /// An upstream that has answered over a new connection may have executed all that earlier ones brought after so long more.
    pub doubt: Duration,
    /// Of the process, and the second of the calendar at which the clock began: `stats` tells them.
    pub pid: u32,
    pub started_at: u64,
    /// What `version` answers.
    pub version: String,
    /// Of random bits, for the names of keys that are not where their hash says.
    pub seed: u64,
}

#[derive(Clone, Debug)]
pub struct SwitchSettings {
    pub token: Vec<u8>,
    /// A switch to this list was under way when an earlier process ended.
    pub interrupted: Option<Vec<RingServer>>,
}

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Larger items are refused: `SERVER_ERROR object too large for cache`.
    pub item_bytes_max: usize,
    /// A client with so many requests that are not answered is not read.
    pub client_requests_max: usize,
    /// A client is not read when it has so many bytes of replies that it has not taken, or that are expected by the size of its last ones.
    pub client_output_bytes_max: usize,
    /// So many bytes of replies are kept for clients that have not taken them, and a sixteenth more. Beyond that, who has most is cut off.
    pub kept_bytes_max: usize,
    /// A connection to an upstream with so many requests that are not answered gets no more: `SERVER_ERROR upstream is busy`.
    pub conn_requests_max: usize,
    /// Likewise, bytes that it has not taken.
    pub conn_output_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            item_bytes_max: 1 << 20,
            client_requests_max: 1024,
            client_output_bytes_max: 1 << 20,
            kept_bytes_max: 256 << 20,
            conn_requests_max: 64 << 10,
            conn_output_bytes_max: 16 << 20,
        }
    }
}
