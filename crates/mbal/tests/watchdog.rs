//! A process in which a thread does not go on ends, with what its threads do, and is started again. One that was stopped goes on.

use std::io::Read;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

mod running;

use running::led::free_port;
use running::{Folder, MBAL, Running, ask, signal};

/// Ten ticks, and a second until the thread stands.
const ENDS_WITHIN: Duration = Duration::from_secs(60);
const CODE: i32 = 70;

/// The exit code of a server whose thread of this name stands still, and what it said.
fn stopped(thread: &str) -> (Option<i32>, String) {
    let folder = Folder::new(&format!("stopped-{thread}"));
    let mut command = Command::new(MBAL);
    command.args(["serve", "-p", "-1", "-t", "2", "--control", "off", "--worker-ports", "0"]);
    command.env("MBAL_STOPPED_THREAD", thread);
    let mut server = Running::of(&folder, &mut command).unwrap();
    let deadline = Instant::now() + ENDS_WITHIN;
    let status = loop {
        if let Some(status) = server.child.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < deadline, "it has not ended");
        thread::sleep(Duration::from_millis(50));
    };
    let mut said = String::new();
    server.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    (status.code(), said)
}

#[test]
fn a_worker_that_stands_still_ends_the_process_with_what_all_threads_do() {
    let (code, said) = stopped("mbal-worker-1");
    assert_eq!(code, Some(CODE), "{said}");
    assert!(said.contains("mbal: mbal-worker-1 has not moved in 10 s"), "{said}");
    for row in ["mbal-worker-0: ", "mbal-worker-1: ", "mbal-balancer: ", "times around"] {
        assert!(said.contains(row), "{row}: {said}");
    }
}

#[test]
fn so_does_the_thread_that_accepts() {
    let (code, said) = stopped("main");
    assert_eq!(code, Some(CODE), "{said}");
    assert!(said.contains("mbal: main has not moved in 10 s"), "{said}");
}

#[test]
fn a_process_that_was_stopped_goes_on() {
    let folder = Folder::new("was-stopped");
    let flags = ["-p", "-1", "-t", "4", "--control", "off", "--worker-ports", "0"];
    let mut server = Running::serve(&folder, &flags);
    ask(&mut server.connect(), "set k 0 0 1\r\nv\r\n", "STORED\r\n");
    for pause in [15, 3] {
        signal(&server.child, "STOP");
        thread::sleep(Duration::from_secs(pause));
        signal(&server.child, "CONT");
        thread::sleep(Duration::from_millis(1_500));
        ask(&mut server.connect(), "get k\r\n", "VALUE k 0 1\r\nv\r\nEND\r\n");
    }
    assert!(server.child.try_wait().unwrap().is_none());
    let (status, said) = server.signal("TERM");
    assert!(status.success(), "{said}");
}

#[test]
fn up_starts_a_server_again_that_its_watchdog_has_ended() {
    let mut command = Command::new(MBAL);
    command.args(["up", "--servers", "1", "-p", "0", "--coordinator-port"]);
    command.arg(free_port().to_string()).args(["--", "-t", "2"]);
    command.env("MBAL_STOPPED_THREAD", "mbal-linker").stdin(Stdio::null()).stdout(Stdio::null());
    let mut up = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = up.stderr.take().unwrap();
    let reads = thread::spawn(move || {
        let (mut said, mut some) = (Vec::new(), [0; 4096]);
        let is_told = |said: &[u8]| {
            let text = String::from_utf8_lossy(said).into_owned();
            text.contains("has ended (exit status: 70); it is started again")
                && text.matches("server 1 of cluster").count() > 1
        };
        while let Ok(count @ 1..) = stderr.read(&mut some) {
            said.extend_from_slice(&some[..count]);
            if is_told(&said) {
                break;
            }
        }
        (is_told(&said), String::from_utf8_lossy(&said).into_owned())
    });
    let deadline = Instant::now() + ENDS_WITHIN;
    while !reads.is_finished() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(50));
    }
    signal(&up, "INT");
    drop(up.wait());
    let (is_told, said) = reads.join().unwrap();
    assert!(is_told, "{said}");
    assert!(said.contains("mbal-linker has not moved in 10 s"), "{said}");
}
