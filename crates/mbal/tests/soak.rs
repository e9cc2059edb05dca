//! Everything at once, for as long as one likes: cachelets move, servers are restarted, killed, flushed and scaled, and clients look.
//!
//! The long form, which ends when all three are reached, and where `MBAL_SOAK_SEED` repeats what operators did:
//!
//! ```text
//! MBAL_SOAK_SECONDS=3600 MBAL_SOAK_MOVES=100000 MBAL_SOAK_RESTARTS=200 MBAL_SOAK_PAUSE_MS=60 \
//!     cargo test -p mbal --test soak -- --ignored --nocapture
//! ```
//!
//! What has to hold: every request and every call is answered within [`ANSWERS`], what operators want is done within [`DONE`], no
//! process panics (a build with debug assertions checks the order of locks), nobody is told anything older than what was
//! acknowledged, and nothing is lost but what was on a server that was killed, or was flushed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mbal_control::api::{MoveCall, Status};
use mbal_model::{Cluster, Key};
use mbal_random::Random;

mod running;

use running::led::{folder, free_port};
use running::{Folder, MBAL, signal};

/// Who has not got an answer by then, waits for ever.
const ANSWERS: Duration = Duration::from_secs(30);
/// A drain may take 30 s, and what a restart needs comes on top.
const DONE: Duration = Duration::from_secs(90);
/// What is on its way may be missing for a moment.
const TRANSIENT: Duration = Duration::from_secs(20);

const NO_MEMORY: &str = "SERVER_ERROR out of memory storing object";

const SERVERS: u16 = 3;
const CLIENTS: usize = 6;
const KEYS: usize = 400;

fn from_env(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// A key that one client alone writes.
#[derive(Default)]
struct Known {
    /// By its last acknowledged write; none: it is absent.
    sure: Option<u64>,
    /// What has been asked since, with no answer that says whether it was done.
    maybe: Vec<Option<u64>>,
    /// [`Run::disasters`] before the last write was sent.
    since: u64,
    /// When the last write was acknowledged.
    at: Option<Instant>,
}

struct Run {
    url: String,
    ports: Vec<u16>,
    agent: ureq::Agent,
    /// Moves that each of three movers orders at a time, and the pause between them. So many that drains get their turn too.
    orders: u64,
    pause: Duration,
    /// Counts what may lose items; odd while it goes on.
    disasters: AtomicU64,
    over: AtomicBool,
    requests: AtomicU64,
    unanswered: AtomicU64,
    /// Sets for want of memory.
    refused: AtomicU64,
    missed_a_moment: AtomicU64,
    lost_with_reason: AtomicU64,
    ordered: AtomicU64,
    /// Why the run has failed.
    failures: Mutex<Vec<String>>,
}

impl Run {
    fn fail(&self, why: String) {
        println!("FAILED: {why}");
        self.failures.lock().unwrap().push(why);
        self.over.store(true, SeqCst);
    }

    fn goes_on(&self) -> bool {
        !self.over.load(SeqCst)
    }

    fn call(&self, method: &str, path: &str, body: Option<String>) -> Result<String, String> {
        let begin = Instant::now();
        let call = self.agent.request(method, &format!("{}{path}", self.url));
        let answer = match body {
            Some(body) => call.set("content-type", "application/json").send_string(&body),
            None => call.call(),
        };
        if begin.elapsed() > ANSWERS {
            self.fail(format!("{method} {path} took {:?}", begin.elapsed()));
        }
        match answer {
            Ok(answer) => answer.into_string().map_err(|error| error.to_string()),
            Err(ureq::Error::Status(status, answer)) => {
                Err(format!("{status}: {}", answer.into_string().unwrap_or_default()))
            }
            Err(ureq::Error::Transport(error)) => Err(error.to_string()),
        }
    }

    fn status(&self) -> Option<Status> {
        serde_json::from_str(&self.call("GET", "/v1/status", None).ok()?).ok()
    }

    fn serving(&self) -> usize {
        let serves = |status: Status| {
            status.servers.iter().filter(|server| server.state == "serving").count()
        };
        self.status().map_or(0, serves)
    }

    /// False, and the run has failed, if it does not come to pass.
    fn within(&self, limit: Duration, what: &str, mut holds: impl FnMut() -> bool) -> bool {
        let deadline = Instant::now() + limit;
        while !holds() {
            if !self.goes_on() {
                return false;
            }
            if deadline < Instant::now() {
                self.fail(format!("not within {limit:?}: {what}"));
                return false;
            }
            thread::sleep(Duration::from_millis(20));
        }
        true
    }

    /// Orders moves of whatever, to wherever.
    fn mover(&self, mut random: Random) {
        while self.goes_on() {
            let map = self.call("GET", "/v1/map", None).unwrap_or_default();
            let cachelet =
                |line: &str| line.strip_prefix("cachelet ")?.split(' ').next().map(str::to_owned);
            let cachelets: Vec<String> = map.lines().filter_map(cachelet).collect();
            for _ in 0..self.orders {
                if cachelets.is_empty() {
                    break;
                }
                let prefix = cachelets[random.below(cachelets.len() as u64) as usize].clone();
                let server = 1 + random.below(SERVERS.into()) as u16;
                let worker = Some(random.below(8) as u16);
                let call = MoveCall { prefix, server, worker };
                let call = serde_json::to_string(&call).unwrap();
                // One that moves, or is there already, is refused; and so is one to a server that is to be emptied.
                if self.call("POST", "/v1/moves", Some(call)).is_ok() {
                    self.ordered.fetch_add(1, SeqCst);
                }
            }
            thread::sleep(self.pause);
        }
    }

    fn client(&self, number: usize, mut random: Random) {
        let mut keys: BTreeMap<usize, Known> = BTreeMap::new();
        let mut conn: Option<Conn> = None;
        let mut version = 0_u64;
        while self.goes_on() {
            if random.below(200) == 0 {
                conn = None;
            }
            let Some(open) = &mut conn else {
                let port = self.ports[random.below(SERVERS.into()) as usize];
                conn = Conn::open(port).ok();
                if conn.is_none() {
                    thread::sleep(Duration::from_millis(20));
                }
                continue;
            };
            // A few keys are hot.
            let at = match random.below(4) {
                0 => random.below(4) as usize,
                _ => random.below(KEYS as u64) as usize,
            };
            let name = format!("client{number}key{at}");
            let known = keys.entry(at).or_default();
            let now = self.disasters.load(SeqCst);
            self.requests.fetch_add(1, SeqCst);
            let done = match random.below(10) {
                0..4 => {
                    version += 1;
                    let reply = open.set(&name, version);
                    let done = reply.as_ref().map(|line| line == "STORED").map_err(|_| ());
                    self.wrote(known, Some(version), now, done);
                    // What is refused takes the value before it away.
                    if reply.as_ref().is_ok_and(|line| line == NO_MEMORY) {
                        self.refused.fetch_add(1, SeqCst);
                        known.maybe.push(None);
                    }
                    reply.map(drop)
                }
                4 => {
                    let done = open.delete(&name);
                    self.wrote(known, None, now, done.as_ref().copied().map_err(|_| ()));
                    done.map(drop)
                }
                _ => self.look(open, &name, known),
            };
            if let Err(error) = done {
                if error.kind() == io::ErrorKind::WouldBlock
                    || error.kind() == io::ErrorKind::TimedOut
                {
                    self.fail(format!(
                        "a request for {name} at port {} was not answered within {ANSWERS:?}",
                        open.port
                    ));
                }
                self.unanswered.fetch_add(1, SeqCst);
                conn = None;
            }
        }
    }

    /// Who has it, and who should.
    fn evidence(&self, name: &str) -> String {
        let hash = Key::new(name.as_bytes()).expect("a key").hash();
        let map = self.call("GET", "/v1/map", None).unwrap_or_default();
        let owner = Cluster::parse(&map).map(|cluster| cluster.map.at(hash));
        let ask = |port: &u16| (*port, Conn::open(*port).and_then(|mut conn| conn.get(name)));
        let all: Vec<_> = self.ports.iter().map(ask).collect();
        let evicted: Vec<_> = self.ports.iter().map(|port| evictions(*port)).collect();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later").as_secs_f64();
        format!(
            "at {now:.3}; by the map it is at {owner:?}; the servers say {all:?}, and have evicted {evicted:?}"
        )
    }

    fn wrote(&self, known: &mut Known, what: Option<u64>, before: u64, done: Result<bool, ()>) {
        match done {
            Ok(true) => {
                *known =
                    Known { sure: what, maybe: Vec::new(), since: before, at: Some(Instant::now()) }
            }
            _ => known.maybe.push(what),
        }
    }

    fn look(&self, conn: &mut Conn, name: &str, known: &mut Known) -> io::Result<()> {
        let begin = Instant::now();
        loop {
            let found = conn.get(name)?;
            let Some(found) = found else {
                // It could not be asked for.
                return Ok(());
            };
            if found == known.sure || known.maybe.contains(&found) {
                if begin.elapsed() > Duration::from_millis(1) && begin.elapsed() > TRANSIENT / 100 {
                    self.missed_a_moment.fetch_add(1, SeqCst);
                }
                return Ok(());
            }
            if let Some(value) = found {
                self.fail(format!(
                    "{name} is {value}, after {:?} and perhaps {:?}",
                    known.sure, known.maybe
                ));
                return Ok(());
            }
            let disasters = self.disasters.load(SeqCst);
            if known.since % 2 == 1 || known.since != disasters {
                self.lost_with_reason.fetch_add(1, SeqCst);
                // Its owner may only not have been reached.
                known.maybe.push(None);
                return Ok(());
            }
            if begin.elapsed() > TRANSIENT {
                self.fail(format!(
                    "{name} is lost: it was {:?}, perhaps {:?}, acknowledged {:?} ago, asked at port {}; {}",
                    known.sure,
                    known.maybe,
                    known.at.map(|at| at.elapsed()),
                    conn.port,
                    self.evidence(name)
                ));
                return Ok(());
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}

struct Conn {
    stream: TcpStream,
    replies: BufReader<TcpStream>,
    port: u16,
}

impl Conn {
    fn open(port: u16) -> io::Result<Conn> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWERS))?;
        stream.set_write_timeout(Some(ANSWERS))?;
        let replies = BufReader::new(stream.try_clone()?);
        Ok(Conn { stream, replies, port })
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.replies.read_line(&mut line)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }

    /// What it says. But for `STORED` nobody knows whether it was done.
    fn set(&mut self, name: &str, version: u64) -> io::Result<String> {
        // Some are long, so that moves have something to carry.
        let value =
            format!("{version:0width$}", width = if version % 50 == 0 { 20_000 } else { 100 });
        write!(self.stream, "set {name} 0 0 {}\r\n{value}\r\n", value.len())?;
        self.line()
    }

    fn delete(&mut self, name: &str) -> io::Result<bool> {
        write!(self.stream, "delete {name}\r\n")?;
        let line = self.line()?;
        Ok(line == "DELETED" || line == "NOT_FOUND")
    }

    /// None: it could not be asked for.
    fn get(&mut self, name: &str) -> io::Result<Option<Option<u64>>> {
        write!(self.stream, "get {name}\r\n")?;
        let line = self.line()?;
        if line == "END" {
            return Ok(Some(None));
        }
        let Some(length) = line.strip_prefix("VALUE ").and_then(|rest| rest.split(' ').nth(2))
        else {
            return Ok(None);
        };
        let mut value = vec![0; length.parse::<usize>().expect("a length") + 2];
        self.replies.read_exact(&mut value)?;
        assert_eq!(self.line()?, "END");
        let value = std::str::from_utf8(&value).expect("digits").trim_end();
        Ok(Some(Some(value.parse().expect("a number"))))
    }
}

/// The processes.
struct Processes<'a> {
    run: &'a Run,
    folder: &'a Folder,
    coordinator: Child,
    servers: Vec<Child>,
    starts: u32,
}

impl Processes<'_> {
    fn log(&self, name: &str) -> File {
        let path = self.folder.path(name);
        File::options().create(true).append(true).open(path).expect("it can be written")
    }

    fn start(&mut self, server: u16) -> Child {
        let port = self.run.ports[usize::from(server)];
        self.starts += 1;
        let mut command = Command::new(MBAL);
        command.args(["serve", "-t", "8", "-m", "64", "-l", "127.0.0.1", "--control", "off"]);
        command.args(["-p", &port.to_string(), "--worker-ports", "0"]);
        command.args(["--coordinator", &self.run.url, "--server-id", &(server + 1).to_string()]);
        command.args(["--log-format", "json"]);
        command.arg("--cluster-secret").arg(self.folder.path("secret"));
        command.stdin(Stdio::null()).stderr(self.log(&format!("server{}.log", server + 1)));
        command.spawn().expect("the program is there")
    }

    fn all_serve(&self) -> bool {
        let what = format!("{SERVERS} servers serve");
        self.run.within(DONE, &what, || self.run.serving() == usize::from(SERVERS))
    }

    /// Ends a server, and starts it again. False: the run has failed.
    fn restart(&mut self, server: u16, how: &str) -> bool {
        let at = usize::from(server);
        signal(&self.servers[at], how);
        let child = &mut self.servers[at];
        let mut status = None;
        let ends = self.run.within(DONE, &format!("server {} ends by {how}", server + 1), || {
            status = child.try_wait().expect("it is a child");
            status.is_some()
        });
        if how == "TERM" && ends && status.and_then(|status| status.code()) != Some(0) {
            self.run.fail(format!("server {} ended by {how} with {status:?}", server + 1));
        }
        self.servers[at] = self.start(server);
        ends && self.all_serve()
    }

    fn disaster(&mut self, does: impl FnOnce(&mut Self) -> bool) -> bool {
        self.run.disasters.fetch_add(1, SeqCst);
        let done = does(self);
        // What was on its way has arrived.
        thread::sleep(Duration::from_secs(2));
        self.run.disasters.fetch_add(1, SeqCst);
        done
    }

    fn flush(&mut self, server: u16) -> bool {
        let flush = || {
            let mut conn = Conn::open(self.run.ports[usize::from(server)])?;
            conn.stream.write_all(b"flush_all\r\n")?;
            conn.line()
        };
        match flush() {
            Ok(_) => true,
            Err(error) => {
                self.run.fail(format!("flush_all at server {}: {error}", server + 1));
                false
            }
        }
    }

    fn scale(&mut self) -> bool {
        for (servers, rest) in [(SERVERS - 1, SERVERS - 1), (SERVERS, SERVERS)] {
            let call = Some(format!("{{\"servers\":{servers}}}"));
            let mut said = String::new();
            let ordered =
                self.run.within(DONE, &format!("scale {servers} is taken"), || {
                    match self.run.call("POST", "/v1/scale", call.clone()) {
                        Ok(_) => true,
                        Err(why) => {
                            said = why;
                            false
                        }
                    }
                });
            let done = self.run.within(
                DONE,
                &format!("{rest} servers serve after scale {servers}"),
                || self.run.serving() == usize::from(rest),
            );
            if !(ordered && done) {
                println!("scale {servers}: {said}");
                return false;
            }
        }
        true
    }

    /// What processes have said that they must not.
    fn panics(&self) -> Vec<String> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.folder.0).unwrap().map_while(Result::ok) {
            let name = entry.file_name().into_string().unwrap();
            if name.ends_with(".log") {
                let text = fs::read_to_string(entry.path()).unwrap_or_default();
                let bad = |line: &&str| line.contains("panicked at") || line.contains("lock order");
                found.extend(text.lines().filter(bad).map(|line| format!("{name}: {line}")));
            }
        }
        found
    }
}

impl Drop for Processes<'_> {
    fn drop(&mut self) {
        for child in self.servers.iter_mut().chain([&mut self.coordinator]) {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

#[test]
#[ignore = "./test has a stage for it"]
fn nothing_hangs_and_nothing_is_lost_but_what_died() {
    let seed = from_env("MBAL_SOAK_SEED", u64::from(std::process::id()));
    let seconds = from_env("MBAL_SOAK_SECONDS", 30);
    let moves = from_env("MBAL_SOAK_MOVES", 0);
    let restarts = from_env("MBAL_SOAK_RESTARTS", 0);
    println!("soak: seed {seed}, {seconds} s, {moves} moves, {restarts} restarts at least");
    let folder = folder("soak");
    let port = free_port();
    let run = Run {
        url: format!("http://127.0.0.1:{port}"),
        ports: (0..SERVERS).map(|_| free_port()).collect(),
        agent: ureq::AgentBuilder::new().timeout(ANSWERS * 2).build(),
        orders: from_env("MBAL_SOAK_ORDERS", 4),
        pause: Duration::from_millis(from_env("MBAL_SOAK_PAUSE_MS", 200)),
        disasters: AtomicU64::new(0),
        over: AtomicBool::new(false),
        requests: AtomicU64::new(0),
        unanswered: AtomicU64::new(0),
        refused: AtomicU64::new(0),
        missed_a_moment: AtomicU64::new(0),
        lost_with_reason: AtomicU64::new(0),
        ordered: AtomicU64::new(0),
        failures: Mutex::default(),
    };
    let mut command = Command::new(MBAL);
    command.args([
        "coordinator",
        "--listen",
        &format!("127.0.0.1:{port}"),
        "--heartbeat-ms",
        "100",
    ]);
    // Copies that are told of writes afterwards may be older than what was acknowledged.
    let hot_keys = if seed % 2 == 0 { "off" } else { "atomic" };
    command.args(["--hot-keys", hot_keys, "-v"]);
    command.args(["--servers", &SERVERS.to_string(), "--state"]).arg(folder.path("state.json"));
    let log = File::create(folder.path("coordinator.log")).unwrap();
    let coordinator = command.stdin(Stdio::null()).stderr(log).spawn().unwrap();
    let mut cluster =
        Processes { run: &run, folder: &folder, coordinator, servers: Vec::new(), starts: 0 };
    for server in 0..SERVERS {
        let child = cluster.start(server);
        cluster.servers.push(child);
    }
    assert!(cluster.all_serve(), "{:?}", run.failures.lock().unwrap());
    let mut random = Random::new(seed);
    let begin = Instant::now();
    let mut did: BTreeMap<&str, u64> = BTreeMap::new();
    thread::scope(|scope| {
        for _ in 0..3 {
            let random = Random::new(random.word());
            scope.spawn(|| run.mover(random));
        }
        for number in 0..CLIENTS {
            let random = Random::new(random.word());
            let run = &run;
            scope.spawn(move || run.client(number, random));
        }
        let mut told = Instant::now();
        let mut begun = 0;
        while run.goes_on() {
            let reached = begin.elapsed() >= Duration::from_secs(seconds)
                && run.ordered.load(SeqCst) >= moves
                && did.get("restarts").copied().unwrap_or(0) >= restarts;
            if reached {
                break;
            }
            let server = random.below(SERVERS.into()) as u16;
            // Short runs restart and scale, too.
            let choice = [0, 15].get(begun).copied().unwrap_or_else(|| random.below(20));
            begun += 1;
            let (what, done) = match choice {
                0..10 => ("restarts", cluster.restart(server, "TERM")),
                10..13 => ("flushes", cluster.disaster(|cluster| cluster.flush(server))),
                13..15 => ("kills", cluster.disaster(|cluster| cluster.restart(server, "KILL"))),
                15..17 => ("scalings", cluster.scale()),
                _ => {
                    thread::sleep(Duration::from_millis(random.below(3_000)));
                    ("pauses", true)
                }
            };
            if done {
                *did.entry(what).or_default() += 1;
            }
            for panic in cluster.panics() {
                run.fail(panic);
            }
            if told.elapsed() > Duration::from_secs(10) {
                told = Instant::now();
                println!(
                    "soak: {:?}, {} moves, {did:?}, {}",
                    begin.elapsed(),
                    run.ordered.load(SeqCst),
                    counts(&run)
                );
            }
        }
        run.over.store(true, SeqCst);
    });
    println!(
        "soak: seed {seed}: {:.0?}, {} moves, {did:?}, {}",
        begin.elapsed(),
        run.ordered.load(SeqCst),
        counts(&run)
    );
    let failures = run.failures.lock().unwrap();
    assert!(failures.is_empty(), "seed {seed}, logs in {}: {failures:#?}", folder.0.display());
    assert!(run.ordered.load(SeqCst) > 0 && run.requests.load(SeqCst) > 0, "it did something");
}

fn counts(run: &Run) -> String {
    format!(
        "{} requests, {} without an answer, {} refused for want of memory, {} missed for a moment, {} gone by a kill or a flush; evicted {:?}",
        run.requests.load(SeqCst),
        run.unanswered.load(SeqCst),
        run.refused.load(SeqCst),
        run.missed_a_moment.load(SeqCst),
        run.lost_with_reason.load(SeqCst),
        run.ports.iter().map(|port| evictions(*port)).collect::<Vec<_>>()
    )
}

/// What its process has evicted; none if it does not say.
fn evictions(port: u16) -> Option<u64> {
    let mut conn = Conn::open(port).ok()?;
    conn.stream.write_all(b"stats\r\n").ok()?;
    let mut evictions = None;
    loop {
        let line = conn.line().ok()?;
        match line.strip_prefix("STAT evictions ") {
            Some(count) => evictions = count.parse().ok(),
            None if line == "END" => return evictions,
            None => {}
        }
    }
}
