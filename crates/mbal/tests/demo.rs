//! `mbal demo` without a person: it ends green within its time, and leaves nothing behind.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

mod running;

use running::signals::send;
use running::{Killed, MBAL, eventually};

/// Three quarters of a minute on an idle machine; this is for one that is not.
const ENDS_WITHIN: Duration = Duration::from_secs(150);

fn start(words: &[&str]) -> Child {
    let mut command = Command::new(MBAL);
    command.arg("demo").args(words).stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(Stdio::piped()).spawn().unwrap()
}

/// Processes that were started by this one, or by those.
fn below(process: u32) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        // The name, in brackets, may have blanks.
        let parent =
            stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
        if parent == Some(process) {
            found.push(pid);
            found.extend(below(pid));
        }
    }
    found
}

fn is_running(pid: &u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

#[test]
fn the_short_form_ends_green() {
    let mut demo = Killed(start(&["--short"]));
    let begun = Instant::now();
    let mut children = Vec::new();
    while demo.0.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < ENDS_WITHIN, "it takes too long");
        children.extend(below(demo.0.id()));
        std::thread::sleep(Duration::from_millis(100));
    }
    let mut said = String::new();
    demo.0.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    let mut errors = String::new();
    demo.0.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    println!("{said}{errors}");
    assert_eq!(demo.0.wait().unwrap().code(), Some(0), "{said}{errors}");
    assert!(said.contains("GREEN") && !said.contains("NO "), "{said}");
    for step in 1..=5 {
        let steps = said.split(&format!("[{step}/5] ")).nth(1).expect("each step is announced");
        let told = steps.split("\n[").next().unwrap();
        assert!(told.contains("MBal ") && told.contains("pool "), "{told}");
    }
    assert!(children.len() >= 7, "{children:?}");
    eventually("nothing is left", || !children.iter().any(is_running));
}

#[test]
fn ctrl_c_ends_all_of_it() {
    let mut demo = Killed(start(&["--memcached", "/nowhere/memcached"]));
    let mut children = Vec::new();
    eventually("both sides run", || {
        children = below(demo.0.id());
        children.len() >= 7
    });
    std::thread::sleep(Duration::from_secs(1));
    send(demo.0.id(), "INT");
    let begun = Instant::now();
    while demo.0.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < Duration::from_secs(30), "it does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut said = String::new();
    demo.0.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    let code = demo.0.wait().unwrap().code();
    assert_eq!(code, Some(130), "{said}");
    assert!(
        said.contains("mbal serve --balance off") && said.contains("no memcached here"),
        "{said}"
    );
    eventually("nothing is left", || !children.iter().any(is_running));
}
