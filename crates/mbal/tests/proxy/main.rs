//! `mbal proxy` as a process, in front of real memcacheds.

mod changes;
mod discover;
mod explain;
mod metrics;
mod pool;
#[path = "../running/mod.rs"]
mod running;
mod tls;
mod twemproxy;
mod udp;
