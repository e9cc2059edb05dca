//! `mbal coordinator`: the coordinator as a process. An HTTP API in front, `mbal_control` in the middle, a file or etcd behind.
//!
//! ```text
//!   servers, operators ── HTTP/JSON ──► gate.rs, api.rs ──► driver.rs: one transaction at a time ──► state_file.rs
//!   browsers ◄── page.rs: files, frames                        │ mbal_control::Coordinator        └─► seat.rs ──► mbal_etcd
//!                             planning.rs: a plan each epoch
//!                             autoscaling.rs: a look each minute; machines.rs starts and stops servers
//!                             watching.rs: a look at servers' leases, where there is etcd
//! ```
//! Has no policy: what becomes of the cluster is worked out in `control`, `balance` and `elastic`. `docs/design/cluster.md` says what is asked and answered.

#![forbid(unsafe_code)]

mod api;
mod autoscaling;
mod driver;
mod gate;
mod kubernetes;
mod machines;
mod metrics;
mod move_lines;
mod page;
mod patient;
mod planning;
mod serving;
mod watching;

mod state_file;

mod seat;
mod weight;

pub use api::{OPENAPI, ROUTES};
pub use autoscaling::Autoscale;
pub use kubernetes::StatefulSet;
pub use machines::{MachineOrder, Machines};
pub use mbal_control::Settings;
pub use mbal_control::api::ScaleStatus;
pub use mbal_election::Terms;
pub use mbal_planning::Leaver;
pub use serving::{Config, Running, StateIn, start};
