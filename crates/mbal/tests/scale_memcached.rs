//! `mbal scale --memcached` as a process, on pools of real memcacheds.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

struct Pool {
    children: Vec<Child>,
    ports: Vec<u16>,
}

impl Drop for Pool {
    fn drop(&mut self) {
        for child in &mut self.children {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

impl Pool {
    /// None where memcached is not installed.
    fn new(count: usize) -> Option<Pool> {
        let mut pool = Pool { children: vec![], ports: vec![] };
        for _ in 0..count {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let mut command =
                Command::new(std::env::var("MEMCACHED").unwrap_or("memcached".into()));
            command.args(["-u", "root", "-l", "127.0.0.1", "-U", "0", "-t", "1", "-m", "64"]);
            let Ok(child) = command.args(["-p", &port.to_string()]).spawn() else {
                eprintln!("SKIPPED, NOT TESTED: no memcached");
                return None;
            };
            pool.children.push(child);
            pool.ports.push(port);
            let begin = Instant::now();
            while TcpStream::connect(("127.0.0.1", port)).is_err() {
                assert!(begin.elapsed() < Duration::from_secs(10), "memcached does not listen");
                thread::sleep(Duration::from_millis(10));
            }
        }
        Some(pool)
    }

    fn list(&self, servers: &[usize]) -> String {
        let names: Vec<String> =
            servers.iter().map(|&server| format!("127.0.0.1:{}", self.ports[server])).collect();
        names.join(",")
    }

    fn ask(&self, server: usize, request: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.ports[server])).unwrap();
        stream.write_all(format!("{request}quit\r\n").as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    }

    /// Asks every server to store all keys: each has what is its own, and strays.
    fn fill(&self, servers: &[usize], keys: usize) {
        let value = "x".repeat(400);
        let requests: String =
            (0..keys).map(|n| format!("set k{n} 0 0 400 noreply\r\n{value}\r\n")).collect();
        for &server in servers {
            self.ask(server, &requests);
        }
    }

    fn items(&self, server: usize) -> usize {
        let stats = self.ask(server, "stats\r\n");
        let line = stats.lines().find(|line| line.starts_with("STAT curr_items ")).unwrap();
        line[16..].trim().parse().unwrap()
    }
}

fn scale(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mbal"));
    command.arg("scale").args(args).stdin(Stdio::null());
    command
}

fn text(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_dry_run_says_what_would_travel_and_changes_nothing() {
    let Some(pool) = Pool::new(3) else { return };
    pool.fill(&[0, 1, 2], 3_000);
    let output =
        scale(&["--memcached", &pool.list(&[0, 1, 2]), "--to", "2", "--dry-run"]).output().unwrap();
    let (out, err) = text(&output);
    assert!(output.status.success(), "{err}");
    assert!(out.starts_with("3 servers with 9000 items\nretire: 127.0.0.1:"), "{out}");
    assert!(out.contains("6000 items are where no client looks for them"), "{out}");
    assert_eq!([pool.items(0), pool.items(1), pool.items(2)], [3_000; 3]);
}

#[test]
fn without_a_word_about_writers_nothing_is_begun() {
    let Some(pool) = Pool::new(2) else { return };
    let list = pool.list(&[0, 1]);
    let output = scale(&["--memcached", &list, "--to", "1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).1.contains("--i-stop-writers"), "{}", text(&output).1);
    for (args, why) in [
        (&["--to", "0"][..], "somebody must keep the keys"),
        (&["--to", "2"], "name the new ones with --to-servers"),
        (&["--to-servers", "a,a"], "a:11211 is there twice"),
    ] {
        let output =
            scale(&[&["--memcached", &list, "--dry-run"], args].concat()).output().unwrap();
        assert!(text(&output).1.contains(why), "{}", text(&output).1);
    }
}

#[test]
fn a_ring_that_cannot_be_the_clients_deletes_nothing() {
    let Some(pool) = Pool::new(3) else { return };
    pool.fill(&[0, 1, 2], 1_000);
    let list = pool.list(&[0, 1, 2]);
    let sweep = ["--memcached", &list, "--to-servers", &list];
    let output = scale(&sweep).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).1.contains("2000 of 3000 items"), "{}", text(&output).1);
    assert_eq!(pool.items(0) + pool.items(1) + pool.items(2), 3_000);
    let output = scale(&[&sweep[..], &["--delete-strays"]].concat()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output).1);
    assert_eq!(pool.items(0) + pool.items(1) + pool.items(2), 1_000);
}

#[test]
fn clients_get_the_new_list_when_all_copies_are_there_and_strays_go() {
    let Some(pool) = Pool::new(3) else { return };
    // Nobody has the third server yet.
    pool.fill(&[0, 1], 2_000);
    let switch = format!(
        "test \"$MBAL_SERVERS\" = {} && echo switched by command >&2",
        pool.list(&[0, 1, 2])
    );
    let grow = ["--memcached", &pool.list(&[0, 1]), "--to-servers", &pool.list(&[0, 1, 2])];
    let rest = ["--i-stop-writers", "--json", "--switch-command", &switch];
    let output = scale(&[&grow[..], &rest].concat()).output().unwrap();
    let (out, err) = text(&output);
    assert!(output.status.success(), "{out}{err}");
    assert!(err.contains("switched by command"), "{err}");
    let events: Vec<serde_json::Value> =
        out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<&str> = events
        .iter()
        .map(|event| event["event"].as_str().unwrap())
        .filter(|event| *event != "progress")
        .collect();
    assert_eq!(names, ["listed", "planned", "copied", "switched", "done"]);
    assert_eq!(events.iter().find(|event| event["event"] == "copied").unwrap()["strays"], 2_000);
    // Each key is on the server where it belongs, and nowhere else.
    assert_eq!(pool.items(0) + pool.items(1) + pool.items(2), 2_000);
    assert!(pool.items(2) > 300, "{}", pool.items(2));
}

#[test]
fn a_command_that_fails_leaves_the_pool_as_it_was() {
    let Some(pool) = Pool::new(2) else { return };
    pool.fill(&[0], 1_000);
    let list = pool.list(&[0, 1]);
    let args = ["--memcached", &pool.list(&[0]), "--to-servers", &list];
    let output = scale(&[&args[..], &["--i-stop-writers", "--switch-command", "exit 3"]].concat());
    let output = { output }.output().unwrap();
    let (out, err) = text(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(err.contains("--switch-command: exit status: 3"), "{err}");
    assert!(out.contains("copies were deleted again: the pool is as it was"), "{out}");
    assert_eq!([pool.items(0), pool.items(1)], [1_000, 0]);
}

#[test]
fn an_interrupt_takes_back_what_was_copied() {
    let Some(pool) = Pool::new(2) else { return };
    pool.fill(&[0], 5_000);
    let args = ["--memcached", &pool.list(&[0]), "--to-servers", &pool.list(&[0, 1])];
    let slowly = [&args[..], &["--i-stop-writers", "--rate", "0.1"]].concat();
    let child = scale(&slowly).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while pool.items(1) == 0 {
        thread::sleep(Duration::from_millis(10));
    }
    let interrupt = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(interrupt.success());
    let output = child.wait_with_output().unwrap();
    let (out, err) = text(&output);
    assert!(out.contains("the pool is as it was") && err.contains("interrupted"), "{out}{err}");
    assert_eq!([pool.items(0), pool.items(1)], [5_000, 0]);
}
