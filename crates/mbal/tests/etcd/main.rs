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

use std::process::{Child, Command};

/// TERM, CONT; or STOP, after which all its threads stand still.
pub fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").args(["-s", name, &child.id().to_string()]).status();
    assert!(status.expect("there is a kill").success());
    if name == "STOP" {
        running::eventually("it stands still", || stands_still(child.id()));
    }
}

fn stands_still(process: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("it lives");
    tasks.map_while(Result::ok).all(|task| {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        status.contains("State:\tT")
    })
}
