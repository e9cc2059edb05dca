//! Signals, by the system call: a small system has no program for them.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// KILL, TERM, INT, HUP, USR1, CONT; or STOP, after which all its threads stand still.
pub fn send(process: u32, name: &str) {
    let signal = match name {
        "KILL" => Signal::KILL,
        "TERM" => Signal::TERM,
        "INT" => Signal::INT,
        "HUP" => Signal::HUP,
        "USR1" => Signal::USR1,
        "CONT" => Signal::CONT,
        "STOP" => Signal::STOP,
        other => panic!("{other} is none of these"),
    };
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw).expect("a process");
    kill_process(pid, signal).expect("it is there");
    let begin = Instant::now();
    while name == "STOP" && !stands_still(process) {
        assert!(begin.elapsed() < Duration::from_secs(30), "{process} does not stand still");
        thread::sleep(Duration::from_millis(5));
    }
}

fn stands_still(process: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("it lives");
    tasks.map_while(Result::ok).all(|task| {
        let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
        status.contains("State:\tT")
    })
}
