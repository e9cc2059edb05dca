//! A proxy in front of memcached servers, without its sockets: clients' sessions, the connections to the servers behind it
//! (upstreams), who gets which request, and whose a reply is.
//!
//! Called by `reactor::ProxyLoop`, which has the sockets and the time. Never reads a clock, never opens anything, never
//! executes a command: what a request does, its upstream decides.
//!
//! ```text
//!   clients, thousands            Proxy                        upstreams, a few connections each
//!   "get a\r\n"    ──► parse ─► slot ─► route ─► append to ──────► A   ┐ one send per wake-up
//!   "get b c d\r\n" ─► parse ─► slot ─► split ─► append to ──────► B   ┘
//!                                 ▲               waiting: whose is the next reply
//!                  ◄── in order ──┴── merge ◄──── frame ◄──────── replies, in the order of the requests
//! ```
//!
//! **Order.** Replies leave a client's connection in the order of its requests. All requests for one key go over one
//! connection to its upstream, so they are executed in the order in which they came to the proxy.
//!
//! **Bounds.** See [`Limits`]. Who reaches one gets the answer that its field names.

#![forbid(unsafe_code)]

// A client's bytes, and what becomes of them.
mod asking;
mod asking_many;
mod binary;
mod proxy;
mod reading;
// And back.
mod answering;
// Clients.
mod client;
mod merge;
mod replies;
mod sessions;
// What is behind.
mod backend;
mod clusters;
mod mapped;
mod members;
mod missed;
mod placing;
mod pool;
mod switching;
// Connections to upstreams.
mod conn;
mod doubt;
mod encode;
mod expect;
mod inflight;
mod naming;
mod refusal;
mod upstreams;
// Hot keys.
mod control;
mod hot;
mod hot_keys;
mod keeping;
mod kernel;
mod steering;
// Other proxies.
mod peering;
mod peers;
mod promises;
// What is told.
mod administering;
mod counting;
mod explaining;
mod insights;
mod sampling;
mod stats;
// What all use.
mod buffers;
mod event;
mod ledger;
mod resting;
mod settings;

pub use control::Replication;
pub use counting::{ByClass, Latency};
pub use event::{Action, ClientId, ConnId, Event, SwitchTask, SwitchWork};
pub use kernel::{KernelChange, KernelUpstream};
pub use mapped::{CopiedKey, PoolTold, SLOTS, Slots};
pub use mbal_balance::Threshold;
pub use mbal_routing::Point;
pub use mbal_routing::ketama::{Dialect, KeyHash, RingServer};
pub use peers::Peers;
pub use pool::Distribution;
pub use proxy::Proxy;
pub use settings::{Limits, Settings, SwitchSettings};
pub use stats::{Copies, Counters, Stats, UpstreamState, UpstreamStats};
