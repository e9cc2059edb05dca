//! Cachelets that move between servers while they are tested: a coordinator of our own, and somebody who orders a move again and again.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mbal_random::Random;

use crate::server::spawn;

/// A coordinator listens within this.
const LISTENS_WITHIN: Duration = Duration::from_secs(10);
const HEARTBEAT_MS: u64 = 50;

static MOVED: AtomicU64 = AtomicU64::new(0);

/// How many cachelets have moved so far, under all servers.
pub fn moved() -> u64 {
    MOVED.load(Relaxed)
}

pub struct Coordinator {
    child: Child,
    port: u16,
}

impl Coordinator {
    /// `mbal` is the program, `state` the file to write to.
    pub fn start(mbal: &str, port: u16, servers: u16, state: &str) -> Result<Coordinator, String> {
        let mut command = Command::new(mbal);
        command.args(["coordinator", "--listen", &format!("127.0.0.1:{port}"), "--state", state]);
        command.args(["--cluster-name", "conformance", "--servers", &servers.to_string()]);
        command.args(["--heartbeat-ms", &HEARTBEAT_MS.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = spawn(&mut command).map_err(|error| format!("{mbal} coordinator: {error}"))?;
        let coordinator = Coordinator { child, port };
        let deadline = Instant::now() + LISTENS_WITHIN;
        while call(port, "GET", "/v1/status", "").is_none() {
            if deadline < Instant::now() {
                return Err("the coordinator does not listen".into());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(coordinator)
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Orders moves until it is dropped.
pub struct Mover {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Mover {
    /// One that orders the move of some cachelet to some server this often.
    pub fn start(coordinator: &Coordinator, servers: u16, every: Duration) -> Mover {
        let ends = Arc::new(AtomicBool::new(false));
        let (port, is_over) = (coordinator.port, Arc::clone(&ends));
        let thread = thread::spawn(move || {
            let mut random = Random::new(u64::from(port));
            let first = version(port);
            while !is_over.load(Relaxed) {
                order(port, servers, &mut random);
                thread::sleep(every);
            }
            MOVED.fetch_add(version(port).saturating_sub(first), Relaxed);
        });
        Mover { ends, thread: Some(thread) }
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        self.ends.store(true, Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

/// Every move that ends as it should makes a new map.
fn version(port: u16) -> u64 {
    let map = call(port, "GET", "/v1/map", "").unwrap_or_default();
    let line = map.lines().find_map(|line| line.strip_prefix("version "));
    line.and_then(|version| version.parse().ok()).unwrap_or(0)
}

fn order(port: u16, servers: u16, random: &mut Random) {
    let map = call(port, "GET", "/v1/map", "").unwrap_or_default();
    let cachelets: Vec<&str> =
        map.lines().filter_map(|line| line.strip_prefix("cachelet ")?.split(' ').next()).collect();
    if cachelets.is_empty() {
        return;
    }
    let prefix = cachelets[random.below(cachelets.len() as u64) as usize];
    let server = 1 + random.below(servers.into());
    // One that moves, or is there already, is refused.
    call(port, "POST", "/v1/moves", &format!("{{\"prefix\":\"{prefix}\",\"server\":{server}}}"));
}

/// The body of the answer; `None` if there is none that says OK.
fn call(port: u16, method: &str, path: &str, body: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
        content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    head.starts_with("HTTP/1.1 2").then(|| body.to_owned())
}
