//! Real memcacheds.

use std::fs;
use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::running::{Killed, eventually, signal, told};

pub struct Memcached {
    child: Killed,
    pub port: u16,
}

impl Memcached {
    /// On a port that the kernel has chosen; none where memcached is not installed.
    pub fn start() -> Option<Memcached> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Relaxed);
        let name = format!("mbal-memcached-{}-{number}", std::process::id());
        let ports = std::env::temp_dir().join(name);
        let program = std::env::var("MEMCACHED").unwrap_or("memcached".into());
        let flags = ["-u", "root", "-l", "127.0.0.1", "-U", "0", "-t", "1", "-m", "64", "-p", "-1"];
        let started =
            Command::new(program).args(flags).env("MEMCACHED_PORT_FILENAME", &ports).spawn();
        let Ok(child) = started else {
            eprintln!("SKIPPED, NOT TESTED: no memcached");
            return None;
        };
        eventually("memcached listens", || ports.exists());
        let lines = fs::read_to_string(&ports).unwrap();
        fs::remove_file(ports).unwrap();
        let port = lines.lines().find_map(|line| line.strip_prefix("TCP INET: ")).unwrap();
        Some(Memcached { child: Killed(child), port: port.parse().unwrap() })
    }

    pub fn some(count: usize) -> Option<Vec<Memcached>> {
        (0..count).map(|_| Memcached::start()).collect()
    }

    pub fn name(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn ask(&self, request: &str) -> String {
        ask_at(self.port, request)
    }

    pub fn value(&self, key: &str) -> Option<String> {
        value_of(&self.ask(&format!("get {key}\r\n")))
    }

    /// It hears nobody, and keeps its connections.
    pub fn signal(&self, name: &str) {
        signal(&self.child.0, name);
    }
}

/// The names of a pool, as `--upstream` takes them.
pub fn list(pool: &[Memcached]) -> String {
    pool.iter().map(Memcached::name).collect::<Vec<_>>().join(",")
}

/// All that is answered to a request.
pub fn ask_at(port: u16, request: &str) -> String {
    let mut stream = None;
    // A server of a cluster waits for the others first.
    eventually("it lets clients in", || {
        stream = TcpStream::connect(("127.0.0.1", port)).ok();
        stream.is_some()
    });
    told(stream.unwrap(), &format!("{request}quit\r\n"))
}

/// The value in a reply to `get`.
pub fn value_of(reply: &str) -> Option<String> {
    let line = reply.strip_prefix("VALUE ")?.lines().nth(1)?;
    Some(line.to_owned())
}
