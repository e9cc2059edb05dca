//! `mbal coordinator`: the coordinator as a process. An HTTP API in front, `mbal_control` in the middle, a file or etcd behind.
//!
//! ```text
//!   servers, operators ── HTTP/JSON ──► api.rs ──► driver.rs: one transaction at a time ──► state_file.rs
//!                                                     │ mbal_control::Coordinator        └─► seat.rs ──► mbal_etcd
//!                             planning.rs: a plan each epoch
//! ```
//! Decides nothing. `docs/design/cluster.md` says what is asked and answered.

#![forbid(unsafe_code)]

mod api;
mod driver;
mod metrics;
mod planning;
mod serving;

mod state_file;

mod seat;
mod weight;

pub use api::{OPENAPI, ROUTES};
pub use mbal_control::Settings;
pub use serving::{Config, Running, StateIn, start};
