//! `mbal proxy` as a process, in front of real memcacheds.

mod changes;
mod discover;
mod explain;
mod fake;
mod idle;
#[path = "../metrics/json.rs"]
mod json;
mod late;
mod metrics;
mod pool;
#[path = "../running/mod.rs"]
mod running;
mod tls;
mod top;
mod twemproxy;
mod udp;
mod written;
