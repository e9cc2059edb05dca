//! A server as a process: sockets, threads and memory around the workers of one store.
//!
//! Called by the `mbal` binary with a checked [`Config`]. Never reads a flag, never parses a
//! request, never decides where a key lives.
//!
//! ```text
//!   Config ─► Server::open: sockets, user, background
//!               └─► Server::start: memory, threads ─┬─ mbal-worker-0: EventLoop ─► Worker ─┐
//!                     └─► Running::wait             ├─ mbal-worker-n: EventLoop ─► Worker ─┴► Store
//!                                                   └─ main: Listener, signals
//! ```

#![forbid(unsafe_code)]

mod balancing;
mod calling;
mod chaos;
mod cluster;
mod config;
pub mod control;
mod control_path;
mod deadline_read;
mod departure;
mod error;
mod explaining;
mod hot_keys;
mod http;
mod linking;
mod listening;
pub mod log;
mod lookout;
pub mod machine;
mod membership;
mod metrics;
mod moving;
mod owning;
mod page;
mod panics;
mod passwords;
mod pid_file;
mod proxy_metrics;
mod proxying;
mod scrapes;
mod secrets;
mod serving;
mod side_doors;
mod started;
mod starting;
mod stderr_lines;
mod switch_file;
mod telling;
mod tls;
mod tls_links;
mod upstreams;
mod web;
#[cfg(feature = "xdp")]
mod xdp;

pub use balancing::Planner;
pub use calling::{CallFailed, Caller};
pub use cluster::{ClusterConfig, CoordinatorConfig, MapFrom};
pub use config::{BalanceConfig, Config, Control, Interface, Listen, Login, UnixSocket};
pub use control_path::{Served, control_paths};
pub use error::StartError;
pub use machine::memory_bytes;
pub use mbal_balance::{Mode, Proposal, Question};
pub use mbal_model::{Cluster, ServerId};
pub use mbal_reactor::{ClientCertificate, Ended};
pub use mbal_worker::{Echoed, Protocol, Settings, TlsSettings};
pub use proxying::{ProxyConfig, RunningProxy, XdpConfig, start_proxy};
pub use secrets::{TOKEN_BYTES_MIN, TokenFile, random_word, secret_of, token_left, token_of};
pub use serving::{Running, Server, files_wanted};
pub use starting::Starting;
pub use switch_file::UpstreamsFile;
pub use upstreams::{Source, Upstreams, resolve};

/// The lowest and the highest version of the links' protocol that this program speaks.
pub fn link_versions() -> [u16; 2] {
    [*mbal_link::VERSIONS.start(), *mbal_link::VERSIONS.end()]
}
