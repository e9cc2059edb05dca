//! `mbal proxy --xdp` as a process, between a client and real memcacheds on hosts of their own: network namespaces and veth. Root.

#[path = "../../../edge/xdp/tests/wire/net.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod net;
#[path = "../running/mod.rs"]
mod running;

use std::fs;
use std::io::{Read, Write};
use std::net::SocketAddrV4;
use std::process::Stdio;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;
use std::time::{Duration, Instant};

use mbal_routing::ketama::{Dialect, Ring, RingServer};

use net::{Client, Net, SERVICE, connect, reply, server, set};
use running::{Folder, MBAL, Running, ask};

const METRICS: &str = "127.0.0.1:9151";
/// Of servers that nobody knows are what they were: before that no key is hot.
const DOUBT: Duration = Duration::from_secs(30);

struct Proxy<'a> {
    net: &'a Net,
    running: Running,
    /// While it is there the proxy's end can send.
    _bridge: mbal_xdp::Plane,
}

fn upstreams() -> String {
    format!("{},{}", server(0), server(1))
}

impl Proxy<'_> {
    fn start<'a>(net: &'a Net, folder: &Folder, planted: &str, flags: &[&str]) -> Proxy<'a> {
        let mut command = net.command("proxy", MBAL);
        let (ip, port) = (SERVICE.ip().to_string(), SERVICE.port().to_string());
        command.args(["proxy", "-l", &ip, "-p", &port, "-U", &port, "--metrics", METRICS]);
        command.args(["--xdp", "eth0", "--direct-return"]).args(flags).stdout(Stdio::null());
        if !planted.is_empty() {
            command.env("MBAL_PLANTED", planted);
        }
        let running = Running::of(folder, &mut command).unwrap();
        Proxy { net, running, _bridge: net.nothing_at_the_bridge() }
    }

    /// One line of the metrics.
    fn metric(&self, name: &str) -> u64 {
        let page = self.net.at("proxy", || running::page(9151));
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("{name}: {page}")).parse::<f64>().unwrap() as u64
    }

    fn packets(&self, became: &str) -> u64 {
        self.metric(&format!("mbal_proxy_xdp_packets_total{{became=\"{became}\"}}"))
    }

    fn set(&self, key: &str, value: &str) {
        self.net.at("client", || set(&mut connect(SERVICE), key.as_bytes(), value.as_bytes()));
    }

    /// By UDP; again if it was lost.
    fn get(&self, key: &str) -> Vec<u8> {
        self.net.at("client", || {
            let mut client = Client::new(SERVICE);
            (0..20).find_map(|_| client.get(key.as_bytes())).expect("not all are lost")
        })
    }

    fn signal(&self, name: &str) {
        running::signals::send(self.running.child.id(), name);
    }
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < DOUBT, "not within half a minute: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn has_program(net: &Net) -> bool {
    let shown = net.command("proxy", "ip").args(["link", "show", "eth0"]).output().unwrap();
    String::from_utf8(shown.stdout).unwrap().contains("xdp")
}

/// Where the proxy places a key.
fn home(key: &str) -> u32 {
    let servers: Vec<RingServer> =
        (0..2).map(|place| server(place).to_string().parse().unwrap()).collect();
    Ring::new(Dialect::Twemproxy, None, &servers).owner(key.as_bytes()) as u32
}

fn key_of(place: u32) -> String {
    (0..).map(|i| format!("k{i}")).find(|key| home(key) == place).unwrap()
}

/// Two clients read a key by UDP while it is written through the proxy by TCP. How many reads there were, or what was stale.
fn reads_and_writes(proxy: &Proxy<'_>, writes: u64) -> Result<u64, String> {
    let (acknowledged, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let cold = [key_of(0), key_of(1)];
    cold.iter().for_each(|key| proxy.set(key, key));
    let read = || {
        proxy.net.at("client", || {
            let (mut client, mut last, mut reads) = (Client::new(SERVICE), 0, 0);
            while !stop.load(SeqCst) {
                let least = acknowledged.load(SeqCst).max(last);
                let Some(text) = client.get(b"hot") else { continue };
                let text = String::from_utf8(text).unwrap();
                let version = text.lines().nth(1).map_or(0, |line| line.parse().unwrap());
                if version < least {
                    return Err(format!("{version} after {least}"));
                }
                (last, reads) = (version, reads + 1);
                if reads % 8 == 0 {
                    let key = cold[reads as usize / 8 % 2].as_bytes();
                    let text = client.get(key);
                    assert!(text.is_none_or(|text| text == reply(key, key)));
                }
            }
            Ok(reads)
        })
    };
    let write = |version: u64| {
        proxy.net.at("client", || {
            let (mut stream, value) = (connect(SERVICE), version.to_string());
            let length = value.len();
            match version % 3 {
                0 => {
                    ask(&mut stream, &format!("set hot 0 0 {length}\r\n{value}\r\n"), "STORED\r\n")
                }
                1 => ask(&mut stream, &format!("ms hot {length}\r\n{value}\r\n"), "HD\r\n"),
                _ => ask(&mut stream, "incr hot 1\r\n", &format!("{value}\r\n")),
            }
        });
        acknowledged.store(version, SeqCst);
    };
    thread::scope(|scope| {
        let readers = [scope.spawn(read), scope.spawn(read)];
        let is_over = || readers.iter().any(|reader| reader.is_finished());
        for version in 1..=writes {
            write(version);
            // Every other write meets a key that the kernel answers.
            if version % 2 == 0 {
                let before = proxy.packets("answered");
                eventually("the kernel answers", || {
                    is_over() || before + 100 < proxy.packets("answered")
                });
            }
            if is_over() {
                break;
            }
        }
        stop.store(true, SeqCst);
        readers.into_iter().map(|reader| reader.join().unwrap()).sum()
    })
}

const HOT: [&str; 4] = ["--imbalance-target", "1.05", "--interval", "100ms"];

#[test]
fn nobody_reads_an_older_value_than_was_acknowledged_from_the_kernel_or_from_servers() {
    let Some(net) = Net::new() else { return };
    let folder = Folder::new("xdp-coherent");
    let all = upstreams();
    let flags = [&["--upstream", &all][..], &HOT].concat();
    let mut proxy = Proxy::start(&net, &folder, "", &flags);
    assert!(has_program(&net));
    let reads = reads_and_writes(&proxy, 60).unwrap();
    let (answered, forwarded) = (proxy.packets("answered"), proxy.packets("forwarded"));
    println!("{reads} reads, {answered} answered by the kernel, {forwarded} by servers");
    assert!(answered > 3000 && forwarded > 100);
    proxy.signal("TERM");
    assert!(proxy.running.wait().0.success());
    assert!(!has_program(&net));
}

#[cfg(feature = "planted")]
#[test]
fn an_answer_that_stays_while_its_key_is_written_is_found() {
    let Some(net) = Net::new() else { return };
    let folder = Folder::new("xdp-planted");
    let all = upstreams();
    let flags = [&["--upstream", &all][..], &HOT].concat();
    let proxy = Proxy::start(&net, &folder, "KernelAnswersOutliveWrites", &flags);
    println!("{}", reads_and_writes(&proxy, 1000).unwrap_err());
}

#[test]
fn the_program_goes_with_its_process() {
    let Some(net) = Net::new() else { return };
    let folder = Folder::new("xdp-killed");
    let mut proxy = Proxy::start(&net, &folder, "", &["--upstream", &upstreams()]);
    assert!(has_program(&net));
    proxy.signal("KILL");
    proxy.running.wait();
    assert!(!has_program(&net));
}

#[test]
fn keys_of_a_server_that_is_left_out_are_read_where_they_are_written() {
    let Some(net) = Net::new() else { return };
    let folder = Folder::new("xdp-eject");
    let all = upstreams();
    let flags = ["--upstream", &all, "--eject", "--timeout", "100ms", "--retry", "100ms"];
    let proxy = Proxy::start(&net, &folder, "", &flags);
    let key = key_of(0);
    proxy.set(&key, "1");
    assert_eq!(proxy.get(&key), reply(key.as_bytes(), b"1"));
    assert!(proxy.packets("forwarded") > 0);
    net.signal(0, "STOP");
    let write = format!("set {key} 0 0 1\r\n2\r\n");
    eventually("it is left out", || {
        let told = net.at("client", || {
            let mut stream = connect(SERVICE);
            stream.write_all(format!("{write}quit\r\n").as_bytes()).unwrap();
            let mut told = String::new();
            stream.read_to_string(&mut told).unwrap();
            told
        });
        told == "STORED\r\n"
    });
    let before = proxy.packets("no_way");
    assert_eq!(proxy.get(&key), reply(key.as_bytes(), b"2"), "its stand-in");
    assert!(before < proxy.packets("no_way"), "by the sockets");
    net.signal(0, "CONT");
    eventually("it is back, and flushed", || proxy.get(&key) == b"END\r\n");
    let before = proxy.packets("forwarded");
    eventually("the kernel sends reads to it", || {
        proxy.get(&key);
        before < proxy.packets("forwarded")
    });
}

#[test]
fn a_pool_that_changes_is_read_where_it_is_written() {
    let Some(net) = Net::new() else { return };
    let folder = Folder::new("xdp-pool");
    let list = folder.path("pool");
    fs::write(&list, format!("{}\n", server(1))).unwrap();
    let proxy = Proxy::start(&net, &folder, "", &["--upstreams-file", list.to_str().unwrap()]);
    let key = key_of(0);
    proxy.set(&key, "1");
    assert_eq!(proxy.get(&key), reply(key.as_bytes(), b"1"));
    fs::write(&list, format!("{}\n{}\n", server(0), server(1))).unwrap();
    proxy.signal("HUP");
    eventually("its home is another one", || proxy.get(&key) == b"END\r\n");
    proxy.set(&key, "2");
    assert_eq!(proxy.get(&key), reply(key.as_bytes(), b"2"));
    eventually("both are reached", || proxy.metric("mbal_proxy_xdp_upstreams_reached") == 2);
    let before = proxy.packets("forwarded");
    eventually("the kernel sends reads to it", || {
        assert_eq!(proxy.get(&key), reply(key.as_bytes(), b"2"));
        before < proxy.packets("forwarded")
    });
}

#[test]
fn what_is_missing_is_said() {
    let Some(net) = Net::new() else { return };
    let closed = SocketAddrV4::new(*server(0).ip(), 1).to_string();
    let (all, ip) = (upstreams(), SERVICE.ip().to_string());
    let said = |before: &[&str], flags: &[&str]| {
        let words = [before, &[MBAL, "proxy", "-p", "11211"], flags].concat();
        let output = net.command("proxy", words[0]).args(&words[1..]).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let at = ["-l", &ip, "-U", "11211"];
    let cases: [(&[&str], Vec<&str>, &str); 5] = [
        (&[], [&at[..], &["--upstream", &all, "--xdp", "eth7"]].concat(), "no such interface"),
        (
            &[],
            [&at[..], &["--upstream", &closed, "--xdp", "eth0"]].concat(),
            "no upstream answers by UDP",
        ),
        (&[], vec!["-U", "11211", "--upstream", &all, "--xdp", "eth0"], "needs -U, and -l"),
        (
            &[],
            [&at[..], &["--upstream", &all, "--xdp", "eth0", "--hash", "md5"]].concat(),
            "murmur or fnv1a_64",
        ),
        (
            &["setpriv", "--reuid", "65534", "--clear-groups"],
            [&at[..], &["--upstream", &all, "--xdp", "eth0"]].concat(),
            "root may load packet programs",
        ),
    ];
    for (before, flags, expected) in cases {
        let (code, text) = said(before, &flags);
        assert_eq!(code, Some(71), "{flags:?}: {text}");
        assert!(text.contains(expected), "{flags:?}: {text}");
    }
}
