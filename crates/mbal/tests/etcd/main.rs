//! Several coordinators over three real members of etcd: who leads, what is told, and what goes wrong.
//!
//! Run by `./test`, which installs etcd: `cargo test -p mbal --test etcd -- --ignored`. No test looks how long something takes.

#[path = "../running/mod.rs"]
mod running;

mod coordinators;
mod leases;
mod members;
mod storage;
mod takeover;
mod troubles;

use running::signal;
