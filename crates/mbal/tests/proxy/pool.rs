//! A proxy in front of real memcacheds.

use std::fs;
use std::process::{Command, Stdio};

pub use crate::running::memcached::{Memcached, ask_at, list, value_of};
use crate::running::{Folder, MBAL, Running, eventually, page};

pub struct Proxied {
    pub running: Running,
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
        let tcp = ports.lines().filter_map(|line| line.strip_prefix("TCP INET: "));
        let tcp = tcp.map(|port| port.parse().unwrap()).collect();
        let udp = ports.lines().find_map(|line| line.strip_prefix("UDP INET: "));
        Ok(Proxied { running, udp: udp.map(|port| port.parse().unwrap()), tcp })
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
        page(self.running.metrics)
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
