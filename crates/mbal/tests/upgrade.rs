//! A rolling upgrade: servers of a cluster are replaced one after the other by a build that speaks a newer protocol of links,
//! while clients read and write. No request fails, and nothing is missed.
//!
//! `MBAL_NEXT` names that build (`cargo build -p mbal --features next-protocol`); without it the test is left out, loudly.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

mod running;

use mbal_client::{Client, Options, Store};
use mbal_control::api::{ServerStatus, Status};
use running::led::free_port;
use running::{Folder, MBAL, Running, free_ports, output_of};

const SERVERS: u16 = 3;
const KEYS: u64 = 20_000;
const VALUE: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
/// Clients of either kind.
const CLIENTS: u64 = 2;
/// The hit ratio is looked at by stretches of time of this length.
const STRETCH: Duration = Duration::from_millis(250);
/// How much less may be found in any of them than in all.
const HIT_RATIO_FALLS_MAX: f64 = 0.01;

/// What clients met.
#[derive(Default)]
struct Met {
    over: AtomicBool,
    reads: AtomicU64,
    hits: AtomicU64,
    writes: AtomicU64,
    /// Requests that were sent again to another server, since a connection was closed in between.
    again: AtomicU64,
    errors: Mutex<Vec<String>>,
}

impl Met {
    fn read(&self, found: Option<&[u8]>, least: u64) {
        self.reads.fetch_add(1, Relaxed);
        let Some(value) = found else { return };
        self.hits.fetch_add(1, Relaxed);
        let text = String::from_utf8_lossy(value);
        let written = text.split(' ').next().and_then(|number| number.parse().ok());
        if written.is_none_or(|written: u64| written < least) {
            self.failed(format!("{text:?} was read after {least} was written"));
        }
    }

    fn failed(&self, why: String) {
        self.errors.lock().expect("nobody panics with it").push(why);
    }
}

fn value(number: u64) -> String {
    format!("{number} {VALUE}")
}

/// Each client has keys of its own, which it writes in turn, and reads at random.
struct Keys {
    client: u64,
    written: BTreeMap<u64, u64>,
    turn: u64,
}

enum Next {
    Read(String, u64),
    Write(String, u64),
}

impl Keys {
    fn of(client: u64) -> Keys {
        Keys { client, written: BTreeMap::new(), turn: 0 }
    }

    fn next(&mut self) -> Next {
        self.turn += 1;
        // Any order that comes by all keys.
        let key = self.turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (KEYS / 2 / CLIENTS);
        let name = format!("{}:{key}", self.client);
        let is_new = !self.written.contains_key(&key);
        if is_new || self.turn % 10 == 0 {
            self.written.insert(key, self.turn);
            return Next::Write(name, self.turn);
        }
        Next::Read(name, self.written[&key])
    }
}

/// Knows the workers, and follows maps.
async fn smart(met: Arc<Met>, id: u64, addresses: Vec<String>) {
    let client = Client::connect(&addresses, Options::new()).await.expect("there is a map");
    let mut keys = Keys::of(id);
    while !met.over.load(Relaxed) {
        match keys.next() {
            Next::Write(key, number) => {
                met.writes.fetch_add(1, Relaxed);
                if let Err(error) = client.set(&key, value(number), Store::default()).await {
                    met.failed(format!("smart client, set: {error}"));
                }
            }
            Next::Read(key, least) => match client.get(&key).await {
                Ok(found) => met.read(found.as_ref().map(|found| &found.bytes[..]), least),
                Err(error) => met.failed(format!("smart client, get: {error}")),
            },
        }
    }
}

/// Knows addresses alone: asks one, and the next one when its connection is closed between two requests.
fn ordinary(met: &Met, id: u64, addresses: &[String]) {
    let mut keys = Keys::of(id);
    let mut at = id as usize;
    let mut stream = None;
    while !met.over.load(Relaxed) {
        let (request, end, least) = match keys.next() {
            Next::Write(key, number) => {
                met.writes.fetch_add(1, Relaxed);
                let value = value(number);
                (format!("set {key} 0 0 {}\r\n{value}\r\n", value.len()), "\r\n", None)
            }
            Next::Read(key, least) => (format!("get {key}\r\n"), "END\r\n", Some(least)),
        };
        let reply = (0..2 * addresses.len()).find_map(|_| {
            let reply = ask(&mut stream, &addresses[at % addresses.len()], &request, end);
            if reply.is_none() {
                met.again.fetch_add(1, Relaxed);
                at += 1;
            }
            reply
        });
        match (reply, least) {
            (None, _) => met.failed("ordinary client: nobody answers".into()),
            (Some(reply), None) if reply == "STORED\r\n" => {}
            (Some(reply), Some(_)) if reply == "END\r\n" => met.read(None, 0),
            (Some(reply), Some(least)) if reply.starts_with("VALUE ") => {
                let value = reply.split("\r\n").nth(1).unwrap_or_default();
                met.read(Some(value.as_bytes()), least);
            }
            (Some(reply), _) => met.failed(format!("ordinary client: {reply:?}")),
        }
    }
}

fn ask(stream: &mut Option<TcpStream>, address: &str, request: &str, end: &str) -> Option<String> {
    if stream.is_none() {
        let fresh = TcpStream::connect(address).ok()?;
        fresh.set_nodelay(true).ok()?;
        fresh.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        *stream = Some(fresh);
    }
    let open = stream.as_mut().expect("it was just opened");
    let mut answered = || {
        open.write_all(request.as_bytes()).ok()?;
        let (mut reply, mut bytes) = (String::new(), [0; 1024]);
        while !reply.ends_with(end) && !reply.ends_with("ERROR\r\n") {
            let count = open.read(&mut bytes).ok().filter(|count| *count > 0)?;
            reply += &String::from_utf8_lossy(&bytes[..count]);
        }
        Some(reply)
    };
    let reply = answered();
    if reply.is_none() {
        *stream = None;
    }
    reply
}

/// A coordinator, killed with the test.
struct Coordinator {
    child: Child,
    url: String,
}

impl Coordinator {
    fn start(folder: &Folder) -> Coordinator {
        let listen = format!("127.0.0.1:{}", free_port());
        let mut command = Command::new(MBAL);
        command.args(["coordinator", "--listen", &listen, "--servers", &SERVERS.to_string()]);
        command.arg("--state").arg(folder.path("state.json"));
        let child = command.stderr(Stdio::null()).spawn().expect("the program is there");
        Coordinator { child, url: format!("http://{listen}") }
    }

    fn status(&self) -> Option<Status> {
        let words = ["cluster", "status", "--json", "--coordinator", &self.url];
        let output = output_of(Path::new(MBAL), &words);
        serde_json::from_slice(&output.stdout).ok()
    }

    fn wait(&self, what: &str, holds: impl Fn(&Status) -> bool) {
        let until = Instant::now() + Duration::from_secs(60);
        while !self.status().is_some_and(|status| holds(&status)) {
            assert!(Instant::now() < until, "not within a minute: {what}: {:?}", self.status());
            thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

struct Ports {
    client: u16,
    workers: u16,
}

fn start(program: &Path, folder: &Folder, url: &str, id: u16, ports: &Ports) -> Running {
    drop(std::fs::remove_file(folder.path("ports")));
    let secret = folder.path("secret").display().to_string();
    let (client, workers, id) =
        (ports.client.to_string(), ports.workers.to_string(), id.to_string());
    let words = [
        "serve",
        "-p",
        &client,
        "-t",
        "1",
        "-U",
        "0",
        "--control",
        "off",
        "-m",
        "128",
        "--worker-ports",
        &workers,
        "--coordinator",
        url,
        "--server-id",
        &id,
        "--cluster-secret",
        &secret,
    ];
    Running::start(folder, program, &words)
}

fn is_at_home(status: &Status, id: u16, link_versions: [u16; 2]) -> bool {
    let is_it = |server: &&ServerStatus| server.id == id;
    let server = status.servers.iter().find(is_it);
    let all_serve = status.servers.iter().all(|server| server.state == "serving");
    let follow = |server: &ServerStatus| server.map_version == status.map_version;
    all_serve
        && status.servers.iter().all(follow)
        && status.moves.is_empty()
        && server.is_some_and(|server| server.link_versions == link_versions)
}

/// The hit ratio by stretches, until all is over.
fn stretches(met: Arc<Met>) -> thread::JoinHandle<Vec<f64>> {
    thread::spawn(move || {
        let (mut ratios, mut before) = (Vec::new(), (0, 0));
        while !met.over.load(Relaxed) {
            thread::sleep(STRETCH);
            let now = (met.reads.load(Relaxed), met.hits.load(Relaxed));
            if now.0 > before.0 {
                ratios.push((now.1 - before.1) as f64 / (now.0 - before.0) as f64);
            }
            before = now;
        }
        ratios
    })
}

#[test]
fn servers_are_upgraded_one_by_one_and_no_client_notices() {
    let Some(next) = std::env::var_os("MBAL_NEXT").map(PathBuf::from) else {
        return println!("SKIPPED: MBAL_NEXT names no build that speaks the next protocol");
    };
    let folder = Folder::new("upgrade");
    folder.keep("secret", "a secret of this test\n");
    let coordinator = Coordinator::start(&folder);
    let ports: Vec<Ports> =
        (0..SERVERS).map(|_| Ports { client: free_port(), workers: free_ports(2)[0] }).collect();
    let start = |program: &Path, id: u16| {
        start(program, &folder, &coordinator.url, id, &ports[usize::from(id - 1)])
    };
    let mut servers: BTreeMap<u16, Running> =
        (1..=SERVERS).map(|id| (id, start(MBAL.as_ref(), id))).collect();
    coordinator.wait("all serve", |status| (1..=SERVERS).all(|id| is_at_home(status, id, [1, 2])));
    // Links come up in a moment.
    thread::sleep(Duration::from_secs(1));

    let addresses: Vec<String> =
        ports.iter().map(|ports| format!("127.0.0.1:{}", ports.client)).collect();
    let met = Arc::new(Met::default());
    let runtime = tokio::runtime::Runtime::new().expect("threads can be had");
    let smart: Vec<_> = (0..CLIENTS)
        .map(|id| runtime.spawn(smart(Arc::clone(&met), id, addresses.clone())))
        .collect();
    let ordinary: Vec<_> = (CLIENTS..2 * CLIENTS)
        .map(|id| {
            let (met, addresses) = (Arc::clone(&met), addresses.clone());
            thread::spawn(move || ordinary(&met, id, &addresses))
        })
        .collect();
    thread::sleep(Duration::from_secs(2));
    let ratios = stretches(Arc::clone(&met));

    let begun = Instant::now();
    for id in 1..=SERVERS {
        let step = Instant::now();
        let old = servers.remove(&id).expect("it runs");
        // Its time is not measured by the ten seconds that other tests wait.
        running::signals::send(old.child.id(), "TERM");
        let mut old = old;
        while old.child.try_wait().expect("it is a child").is_none() {
            assert!(step.elapsed() < Duration::from_secs(40), "server {id} does not end");
            thread::sleep(Duration::from_millis(20));
        }
        let (status, said) = old.wait();
        assert!(status.success() && said.contains("this server is empty, and ends"), "{said}");
        let drained = step.elapsed();
        servers.insert(id, start(&next, id));
        coordinator.wait("it serves", |status| is_at_home(status, id, [1, 3]));
        println!(
            "server {id}: drained and ended in {:.1} s, back after {:.1} s",
            drained.as_secs_f64(),
            step.elapsed().as_secs_f64()
        );
    }
    let elapsed = begun.elapsed();
    thread::sleep(Duration::from_secs(1));
    met.over.store(true, Relaxed);
    runtime.block_on(async {
        for client in smart {
            client.await.expect("no client panics");
        }
    });
    ordinary.into_iter().for_each(|client| client.join().expect("no client panics"));
    let ratios = ratios.join().expect("it does not panic");
    let least = ratios.iter().copied().fold(1.0, f64::min);
    let (reads, hits, writes) =
        (met.reads.load(Relaxed), met.hits.load(Relaxed), met.writes.load(Relaxed));
    let errors = met.errors.lock().expect("nobody panics with it");
    println!(
        "all upgraded in {:.1} s: {reads} reads, {hits} hits, {writes} writes, {} errors, {} sent again; hit ratio at least {least:.4} in {} stretches of {} ms",
        elapsed.as_secs_f64(),
        errors.len(),
        met.again.load(Relaxed),
        ratios.len(),
        STRETCH.as_millis(),
    );
    assert!(
        errors.is_empty(),
        "{} errors, like {:?}",
        errors.len(),
        &errors[..errors.len().min(5)]
    );
    assert!(reads > 10_000 && ratios.len() > 20, "clients were busy all the time");
    assert!(1.0 - least <= HIT_RATIO_FALLS_MAX, "{ratios:?}");
}
