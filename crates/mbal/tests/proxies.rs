//! Two proxies before one pool of three: a hot key is read and written through both, and one is killed. Nobody reads what was overwritten.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

mod running;

use running::led::free_port;
use running::{Folder, MBAL, Running};

const LEASE: Duration = Duration::from_secs(1);

/// A proxy that may be dead.
struct Proxy {
    child: Mutex<Child>,
    port: u16,
}

/// Which port each of two proxies has for clients, and which for the other.
struct Ports {
    clients: [u16; 2],
    peers: [u16; 2],
}

impl Ports {
    fn start(&self, at: usize, upstreams: &str) -> Child {
        let peers = self.peers.map(|port| format!("127.0.0.1:{port}"));
        let port = self.clients[at].to_string();
        let lease = format!("{}ms", LEASE.as_millis());
        let flags = ["proxy", "-p", &port, "--upstream", upstreams, "--imbalance-target", "1.05"];
        let more = ["--interval", "200ms", "--peer-lease", &lease, "--peers", &peers.join(",")];
        let mut command = Command::new(MBAL);
        command.args(flags).args(more).args(["--self", &peers[at]]);
        command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("it can be started")
    }
}

impl Proxy {
    fn connect(&self) -> Option<TcpStream> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
        Some(stream)
    }

    fn stat(&self, name: &str) -> Option<String> {
        let said = running::stats(&mut self.connect()?);
        let line = said.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
        line.map(str::to_owned)
    }

    fn count(&self, name: &str) -> u64 {
        self.stat(name).and_then(|text| text.parse().ok()).unwrap_or(0)
    }
}

/// Asks, and hears all of the reply. `None`: the connection is gone.
fn ask(stream: &mut TcpStream, request: &str, ends: &[&str]) -> Option<String> {
    stream.write_all(request.as_bytes()).ok()?;
    let (mut said, mut bytes) = (String::new(), [0; 512]);
    loop {
        let count = stream.read(&mut bytes).ok().filter(|count| *count > 0)?;
        said += &String::from_utf8_lossy(&bytes[..count]);
        if ends.iter().any(|end| said.ends_with(end)) || said.starts_with("SERVER_ERROR") {
            return Some(said);
        }
    }
}

/// A connection that is made again when its proxy is back.
fn with_stream(proxy: &Proxy, stop: &AtomicBool, mut work: impl FnMut(&mut TcpStream) -> bool) {
    while !stop.load(SeqCst) {
        let Some(mut stream) = proxy.connect() else {
            thread::sleep(Duration::from_millis(20));
            continue;
        };
        while !stop.load(SeqCst) && work(&mut stream) {}
    }
}

fn within(time: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < time, "not within {time:?}: {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// What all clients know of the key: the newest number whose write was acknowledged.
#[derive(Default)]
struct Known {
    next: Mutex<u64>,
    acknowledged: AtomicU64,
    stop: AtomicBool,
    /// By proxy.
    written: [AtomicU64; 2],
    stale: Mutex<Option<String>>,
}

impl Known {
    fn read(&self, proxy: &Proxy) {
        with_stream(proxy, &self.stop, |stream| {
            let before = self.acknowledged.load(SeqCst);
            let Some(said) = ask(stream, "get hot\r\n", &["END\r\n"]) else { return false };
            let value = said.lines().nth(1).and_then(|line| line.parse::<u64>().ok());
            if value.is_some_and(|value| value < before) {
                *self.stale.lock().expect("nobody panics") =
                    Some(format!("{value:?} was read after {before}"));
            }
            true
        });
    }

    /// One write at a time, through whichever proxy.
    fn write(&self, proxy: &Proxy, at: usize) {
        with_stream(proxy, &self.stop, |stream| {
            thread::sleep(Duration::from_millis(15));
            let mut next = self.next.lock().expect("nobody panics");
            *next += 1;
            let value = next.to_string();
            let request = format!("set hot 0 0 {}\r\n{value}\r\n", value.len());
            let said = ask(stream, &request, &["STORED\r\n"]);
            match said.as_deref() {
                Some("STORED\r\n") => {
                    self.acknowledged.store(*next, SeqCst);
                    self.written[at].fetch_add(1, SeqCst);
                }
                // For the lease of a proxy that is gone.
                Some(_) => {}
                None => return false,
            }
            true
        });
    }
}

#[test]
fn a_hot_key_is_never_stale_though_a_proxy_is_killed() {
    let folders: Vec<Folder> = (0..3).map(|at| Folder::new(&format!("proxies-{at}"))).collect();
    let flags = ["-p", "-1", "-t", "1", "--control", "off"];
    let servers: Vec<Running> =
        folders.iter().map(|folder| Running::serve(folder, &flags)).collect();
    let upstreams: Vec<String> =
        servers.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
    let upstreams = upstreams.join(",");
    let ports = Ports { clients: [free_port(), free_port()], peers: [free_port(), free_port()] };
    let proxies = [0, 1].map(|at| Proxy {
        child: Mutex::new(ports.start(at, &upstreams)),
        port: ports.clients[at],
    });
    let known = Known::default();
    thread::scope(|scope| {
        for (at, proxy) in proxies.iter().enumerate() {
            let known = &known;
            scope.spawn(move || known.write(proxy, at));
            for _ in 0..2 {
                scope.spawn(move || known.read(proxy));
            }
        }
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            story(&proxies, &ports, &upstreams, &known);
        }));
        for proxy in proxies.iter().filter(|_| ended.is_err()) {
            let said = proxy.connect().map(|mut stream| running::stats(&mut stream));
            eprintln!("{}", said.unwrap_or_default());
        }
        known.stop.store(true, SeqCst);
        for proxy in &proxies {
            drop(proxy.child.lock().expect("nobody panics").kill());
        }
        if let Err(why) = ended {
            std::panic::resume_unwind(why);
        }
    });
    proxies.iter().for_each(|proxy| drop(proxy.child.lock().expect("nobody panics").wait()));
    assert_eq!(*known.stale.lock().expect("nobody panics"), None);
}

fn story(proxies: &[Proxy; 2], ports: &Ports, upstreams: &str, known: &Known) {
    let long = Duration::from_secs(40);
    let reads = |at: usize| proxies[at].count("copy_reads") + proxies[at].count("cache_hits");
    within(long, "one proxy copies", || reads(0) + reads(1) > 0);
    let coordinator = usize::from(reads(1) > 0);
    let other = 1 - coordinator;
    within(long, "the other passes on", || proxies[other].count("passed") > 100);
    assert_eq!(reads(other), 0);

    let mut child = proxies[coordinator].child.lock().expect("nobody panics");
    child.kill().expect("it runs");
    drop(child.wait());
    let written = known.written[other].load(SeqCst);
    // Refused for a lease at most, and no longer than it takes to see that.
    within(3 * LEASE, "the other writes by itself", || {
        known.written[other].load(SeqCst) > written + 5
    });
    let silent = format!("no:127.0.0.1:{}", ports.peers[coordinator]);
    assert_eq!(proxies[other].stat("copies"), Some(silent));

    *child = ports.start(coordinator, upstreams);
    drop(child);
    within(long, "there are copies again", || {
        proxies[other].stat("copies").as_deref() == Some("yes") && reads(coordinator) > 0
    });
}
