//! Real memcacheds, and a proxy in front of them.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use crate::running::{Folder, MBAL, Running, eventually};

pub struct Memcached {
    child: Child,
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
        Some(Memcached { child, port: port.parse().unwrap() })
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
        crate::running::signal(&self.child, name);
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
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
    let mut stream = stream.unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(format!("{request}quit\r\n").as_bytes()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

/// The value in a reply to `get`.
pub fn value_of(reply: &str) -> Option<String> {
    let line = reply.strip_prefix("VALUE ")?.lines().nth(1)?;
    Some(line.to_owned())
}

pub struct Proxied {
    pub running: Running,
    pub metrics: u16,
    pub udp: Option<u16>,
    /// In the order of `-l`.
    pub tcp: Vec<u16>,
}

impl Proxied {
    pub fn start(folder: &Folder, flags: &[&str]) -> Proxied {
        Proxied::try_start(folder, flags).unwrap_or_else(|said| panic!("the proxy ended: {said}"))
    }

    pub fn try_start(folder: &Folder, flags: &[&str]) -> Result<Proxied, String> {
        let mut command = Command::new(MBAL);
        command.args(["proxy", "--metrics", "127.0.0.1:0"]).args(flags);
        if !flags.contains(&"-p") {
            command.args(["-p", "-1"]);
        }
        let running = Running::of(folder, command.stdout(Stdio::null()))?;
        let ports = fs::read_to_string(folder.path("ports")).unwrap();
        fs::remove_file(folder.path("ports")).unwrap();
        let port = |prefix: &str| {
            let port = ports.lines().find_map(|line| line.strip_prefix(prefix));
            port.map(|port| port.parse().unwrap())
        };
        let tcp = ports.lines().filter_map(|line| line.strip_prefix("TCP INET: "));
        let tcp = tcp.map(|port| port.parse().unwrap()).collect();
        let metrics = port("HTTP: ").expect("it tells metrics");
        Ok(Proxied { running, metrics, udp: port("UDP INET: "), tcp })
    }

    pub fn ask(&self, request: &str) -> String {
        ask_at(self.running.port, request)
    }

    pub fn set(&self, key: &str, value: &str) {
        let request = format!("set {key} 0 0 {}\r\n{value}\r\n", value.len());
        assert_eq!(self.ask(&request), "STORED\r\n", "{key}");
    }

    pub fn value(&self, key: &str) -> Option<String> {
        value_of(&self.ask(&format!("get {key}\r\n")))
    }

    /// The value of one line of `stats`.
    pub fn stat(&self, name: &str) -> Option<String> {
        let told = self.ask("stats\r\n");
        let prefix = format!("STAT {name} ");
        told.lines().find_map(|line| line.strip_prefix(&prefix)).map(str::to_owned)
    }

    pub fn page(&self) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.metrics)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, page) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        page.to_owned()
    }

    /// The number of one line of the metrics.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let page = self.page();
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.map(|value| value.parse().unwrap())
    }

    pub fn hang_up(&self) {
        crate::running::signals::send(self.running.child.id(), "HUP");
    }
}

#[test]
fn a_proxy_starts_though_nobody_knows_one_of_its_upstreams_and_monitors_are_answered() {
    let Some(memcached) = Memcached::start() else { return };
    let folder = Folder::new("proxy-unknown-name");
    let upstreams = format!("{},nosuch.invalid:11211", memcached.name());
    let proxy = Proxied::start(&folder, &["--upstream", &upstreams, "--hash", "md5"]);
    let of = |name: &str| proxy.stat(&format!("upstream:{name}:state"));
    eventually("one serves", || of(&memcached.name()).as_deref() == Some("up"));
    assert_eq!(of("nosuch.invalid:11211").as_deref(), Some("down"));
    let replies: Vec<String> =
        (0..40).map(|key| proxy.ask(&format!("set k{key} 0 0 1\r\nx\r\n"))).collect();
    let count = |reply: &str| replies.iter().filter(|one| *one == reply).count();
    let (stored, down) = (count("STORED\r\n"), count("SERVER_ERROR upstream is down\r\n"));
    assert!(stored > 0 && down > 0 && stored + down == 40, "{replies:?}");
    let pid = proxy.running.child.id().to_string();
    assert_eq!(proxy.stat("pid"), Some(pid));
    for topic in ["slabs", "items", "sizes", "conns"] {
        assert_eq!(proxy.ask(&format!("stats {topic}\r\n")), "END\r\n");
    }
    assert!(proxy.ask("stats settings\r\n").ends_with("END\r\n"));
}
