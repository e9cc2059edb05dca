//! `mbal pool resize --through`: a pool of real memcacheds changes behind its proxies, and writers never stop. A database with versions
//! says what is stale. `MBAL_SWITCH_NIGHTS=3` does it three times, with pauses. `MBAL_SWITCH_KILLS=10` kills proxy, tool and an upstream
//! ten times each, and presses Ctrl-C as often.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

mod running;

use mbal_random::Random;
use running::{Ends, Folder, Killed, MBAL, eventually, free_ports, signal};

const KEYS: usize = 4_000;
/// These are counters, the next ones are deleted now and then.
const COUNTERS: usize = 40;
const DELETED: usize = 400;
const SERVERS: usize = 3;
const TOKEN: &str = "0123456789abcdef0123";

/// A process that can be killed, and started again at the same port.
struct Again {
    command: Mutex<Command>,
    child: Mutex<Option<Killed>>,
    port: u16,
}

impl Again {
    fn start(mut command: Command, port: u16) -> Again {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = Mutex::new(None);
        let this = Again { command: Mutex::new(command), child, port };
        this.begin();
        this
    }

    fn begin(&self) {
        let child = self.command.lock().unwrap().spawn().unwrap();
        *self.child.lock().unwrap() = Some(Killed(child));
        eventually("it listens", || TcpStream::connect(("127.0.0.1", self.port)).is_ok());
    }

    fn kill(&self) {
        drop(self.child.lock().unwrap().take());
    }

    fn name(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

/// What is true of a key: the version of its last write, and the newest one that a write has been answered for.
#[derive(Default)]
struct Row {
    version: Mutex<u64>,
    answered: AtomicU64,
}

/// A pool, its proxies, and the database behind all.
struct Site {
    folder: Folder,
    servers: Vec<Again>,
    proxies: Vec<Again>,
    rows: Vec<Row>,
    /// Where nothing is killed, there is no error.
    may_fail: bool,
    over: AtomicBool,
    stale: Mutex<Vec<String>>,
    errors: Mutex<BTreeMap<String, usize>>,
    /// Reads of keys that nobody deletes, by tenth of a second: hits and misses.
    reads: Mutex<BTreeMap<u64, (usize, usize)>>,
    /// When, in milliseconds; whether it was a write; and how long it took, in microseconds.
    latency: Mutex<Vec<(u64, bool, u64)>>,
    /// When a resize began and ended, in milliseconds.
    resizes: Mutex<Vec<(u64, u64)>>,
    requests: AtomicUsize,
    begun: Instant,
}

impl Site {
    /// None where memcached is not installed.
    fn new(name: &str, proxies: usize, may_fail: bool) -> Option<Site> {
        let program = std::env::var("MEMCACHED").unwrap_or("memcached".into());
        if Command::new(&program).arg("-V").stdout(Stdio::null()).status().is_err() {
            eprintln!("SKIPPED, NOT TESTED: no memcached");
            return None;
        }
        let ports = free_ports((SERVERS + proxies) as u16);
        let servers: Vec<Again> = ports[..SERVERS]
            .iter()
            .map(|port| {
                let mut command = Command::new(&program);
                let flags = ["-u", "root", "-l", "127.0.0.1", "-U", "0", "-t", "2", "-m", "64"];
                command.args(flags).args(["-p", &port.to_string()]);
                Again::start(command, *port)
            })
            .collect();
        let folder = Folder::new(name);
        folder.keep("token", TOKEN);
        let proxies = ports[SERVERS..]
            .iter()
            .enumerate()
            .map(|(at, port)| {
                let file = folder.path(&format!("pool-{at}"));
                let list: String = servers.iter().map(|server| server.name() + "\n").collect();
                fs::write(&file, list).unwrap();
                let mut command = Command::new(MBAL);
                command.args(["proxy", "-l", "127.0.0.1", "-p", &port.to_string()]);
                command.arg("--upstreams-file").arg(file);
                command.arg("--resize-token-file").arg(folder.path("token"));
                Again::start(command, *port)
            })
            .collect();
        Some(Site {
            folder,
            servers,
            proxies,
            rows: (0..KEYS).map(|_| Row::default()).collect(),
            may_fail,
            over: AtomicBool::new(false),
            stale: Mutex::default(),
            errors: Mutex::default(),
            reads: Mutex::default(),
            latency: Mutex::default(),
            resizes: Mutex::default(),
            requests: AtomicUsize::new(0),
            begun: Instant::now(),
        })
    }

    fn list(&self, servers: &[usize]) -> String {
        servers.iter().map(|at| self.servers[*at].name()).collect::<Vec<_>>().join(",")
    }

    /// Which servers the first proxy's file names.
    fn now(&self) -> Vec<usize> {
        let text = fs::read_to_string(self.folder.path("pool-0")).unwrap();
        let is_in = |at: &usize| text.contains(&self.servers[*at].name());
        (0..SERVERS).filter(is_in).collect()
    }

    fn tool(&self, arguments: &[&str]) -> Command {
        let proxies: Vec<String> = self.proxies.iter().map(Again::name).collect();
        let mut command = Command::new(MBAL);
        command.args(["pool", "resize"]).args(arguments);
        command.args(["--through", &proxies.join(",")]);
        command.arg("--token-file").arg(self.folder.path("token")).stdin(Stdio::null());
        command
    }

    /// The command that shrinks the pool of three, or lets one of two grow.
    fn resize(&self) -> Command {
        let now = self.now();
        let list = self.list(&now);
        match now.len() {
            SERVERS => self.tool(&[&list, "--to", "2"]),
            _ => {
                let missing = (0..SERVERS).find(|at| !now.contains(at)).unwrap();
                let next = self.list(&[&now[..], &[missing]].concat());
                self.tool(&[&list, "--to-servers", &next])
            }
        }
    }

    /// All keys are there.
    fn fill(&self) {
        let mut client = Client::of(self, 0);
        for key in 0..KEYS {
            assert!(self.write(&mut client, key), "{key}");
        }
    }

    /// Writes what the database has from now on. True if it was answered.
    fn write(&self, client: &mut Client, key: usize) -> bool {
        let row = &self.rows[key];
        let mut version = row.version.lock().unwrap();
        *version += 1;
        let is_counter = key < COUNTERS;
        let request = match *version {
            1 => format!("set k{key} 0 0 1\r\n1\r\n"),
            _ if is_counter => format!("incr k{key} 1\r\n"),
            even if key < DELETED && even % 5 == 0 => format!("delete k{key}\r\n"),
            next => {
                let text = next.to_string();
                format!("set k{key} 7 0 {}\r\n{text}\r\n", text.len())
            }
        };
        let begin = Instant::now();
        let Some(reply) = client.ask(&request) else { return false };
        self.took(true, begin);
        if reply.starts_with("SERVER_ERROR") || is_counter && reply == "NOT_FOUND" {
            self.fails(format!("{} {reply}", &request[..4]));
            return false;
        }
        if is_counter && *version > 1 && !self.may_fail {
            assert_eq!(reply, version.to_string(), "a counter");
        }
        // A counter tells what it is: earlier increments may have failed.
        let counted = reply.parse().ok().filter(|_| is_counter);
        row.answered.store(counted.unwrap_or(*version), SeqCst);
        true
    }

    fn read(&self, client: &mut Client, key: usize) {
        let answered = self.rows[key].answered.load(SeqCst);
        let begin = Instant::now();
        let Some(reply) = client.ask(&format!("get k{key}\r\n")) else { return };
        self.took(false, begin);
        let is_hit = reply.starts_with("VALUE");
        if is_hit {
            let value = client.line().unwrap_or_default();
            let is_end = client.line().is_some_and(|line| line == "END");
            let version: Option<u64> = value.parse().ok();
            if is_end && version.is_none_or(|version| version < answered) {
                let what =
                    format!("k{key}: {value:?} was read, and {answered} was answered before");
                self.stale.lock().unwrap().push(what);
            }
        } else if reply != "END" {
            return self.fails(format!("get {reply}"));
        }
        if key >= DELETED {
            let tenth = self.ms() / 100;
            let mut reads = self.reads.lock().unwrap();
            let (hits, misses) = reads.entry(tenth).or_default();
            *if is_hit { hits } else { misses } += 1;
        }
        if !is_hit && key >= COUNTERS && !self.may_fail {
            return;
        }
        if !is_hit && key >= COUNTERS {
            // From the database, as an application does.
            let version = self.rows[key].version.lock().unwrap();
            let text = version.to_string();
            client.ask(&format!("add k{key} 7 0 {}\r\n{text}\r\n", text.len()));
        }
    }

    fn ms(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    fn took(&self, is_write: bool, begin: Instant) {
        let took = begin.elapsed().as_micros() as u64;
        self.latency.lock().unwrap().push((self.ms(), is_write, took));
    }

    /// In microseconds; while a resize was under way, or while none was.
    fn latency_of(&self, is_write: bool, in_resize: bool, per_mille: usize) -> u64 {
        let resizes = self.resizes.lock().unwrap();
        let is_in = |at: u64| resizes.iter().any(|(from, to)| (*from..*to).contains(&at));
        let latency = self.latency.lock().unwrap();
        let wanted = latency.iter().filter(|one| one.1 == is_write && is_in(one.0) == in_resize);
        let mut took: Vec<u64> = wanted.map(|one| one.2).collect();
        took.sort_unstable();
        let at = (took.len() * per_mille / 1000).min(took.len().saturating_sub(1));
        took.get(at).copied().unwrap_or(0)
    }

    fn fails(&self, what: String) {
        *self.errors.lock().unwrap().entry(what).or_default() += 1;
    }

    /// Two writers and two readers of each proxy, as long as `during` takes.
    fn under_load<T>(&self, during: impl FnOnce() -> T) -> T {
        thread::scope(|scope| {
            let ends = Ends(&self.over);
            for number in 0..4 * self.proxies.len() {
                scope.spawn(move || {
                    let mut random = Random::new(number as u64);
                    let mut client = Client::of(self, number % self.proxies.len());
                    while !self.over.load(SeqCst) {
                        let key = random.below(KEYS as u64) as usize;
                        match number / self.proxies.len() < 2 {
                            true => drop(self.write(&mut client, key)),
                            false => self.read(&mut client, key),
                        }
                        self.requests.fetch_add(1, SeqCst);
                        thread::sleep(Duration::from_micros(300));
                    }
                });
            }
            thread::sleep(Duration::from_millis(500));
            let done = during();
            thread::sleep(Duration::from_millis(500));
            drop(ends);
            done
        })
    }

    fn check(&self) {
        let stale = self.stale.lock().unwrap();
        assert!(stale.is_empty(), "{} stale reads, {:?}", stale.len(), stale.first());
        let errors = self.errors.lock().unwrap();
        let reads = self.reads.lock().unwrap();
        let worst = reads
            .iter()
            .filter(|(_, (hits, misses))| hits + misses >= 20)
            .map(|(tenth, (hits, misses))| (hits * 1000 / (hits + misses), tenth))
            .min();
        println!(
            "{} requests, errors {errors:?}, worst tenth of a second {worst:?} (hits of 1000)",
            self.requests.load(SeqCst)
        );
        for (is_write, what) in [(false, "reads"), (true, "writes")] {
            let of = |in_resize, per_mille| self.latency_of(is_write, in_resize, per_mille);
            println!(
                "{what}, us: p95 {} outside resizes, {} in; p99.9 {} and {}; longest {} and {}",
                of(false, 950),
                of(true, 950),
                of(false, 999),
                of(true, 999),
                of(false, 1000),
                of(true, 1000)
            );
        }
        if !self.may_fail {
            assert!(errors.is_empty(), "{errors:?}");
            assert!(worst.is_some_and(|(hits, _)| hits >= 980), "{worst:?}");
        }
    }
}

/// A connection that is made again when it is lost.
struct Client<'a> {
    site: &'a Site,
    proxy: usize,
    stream: Option<BufReader<TcpStream>>,
}

impl Client<'_> {
    fn of(site: &Site, proxy: usize) -> Client<'_> {
        Client { site, proxy, stream: None }
    }

    /// The first line of the reply; `None` if the connection was lost.
    fn ask(&mut self, request: &str) -> Option<String> {
        if self.stream.is_none() {
            let stream = TcpStream::connect(("127.0.0.1", self.site.proxies[self.proxy].port));
            let Ok(stream) = stream else {
                thread::sleep(Duration::from_millis(5));
                return self.lose("not connected");
            };
            stream.set_nodelay(true).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            self.stream = Some(BufReader::new(stream));
        }
        let stream = self.stream.as_mut().unwrap();
        if stream.get_mut().write_all(request.as_bytes()).is_err() {
            return self.lose("lost");
        }
        self.line()
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.stream.as_mut()?.read_line(&mut line) {
            Ok(1..) => Some(line.trim_end().to_owned()),
            _ => self.lose("lost"),
        }
    }

    fn lose(&mut self, why: &str) -> Option<String> {
        self.stream = None;
        self.site.fails(why.to_owned());
        None
    }
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

fn there_and_back(name: &str, proxies: usize) {
    let nights = std::env::var("MBAL_SWITCH_NIGHTS").map_or(1, |text| text.parse().unwrap());
    let calm = Duration::from_secs(if nights > 1 { 5 } else { 0 });
    let Some(site) = Site::new(name, proxies, false) else { return };
    site.fill();
    site.under_load(|| {
        for expected in [2, 3].repeat(nights) {
            thread::sleep(calm);
            let begin = site.ms();
            let output = site.resize().output().unwrap();
            site.resizes.lock().unwrap().push((begin, site.ms()));
            assert!(output.status.success(), "{}", said(&output));
            assert_eq!(site.now().len(), expected);
        }
    });
    site.check();
    // What was answered is there, wherever it is now.
    let mut client = Client::of(&site, proxies - 1);
    for key in (0..COUNTERS).chain(DELETED..KEYS) {
        let version = site.rows[key].version.lock().unwrap().to_string();
        let reply = client.ask(&format!("get k{key}\r\n")).unwrap();
        let value = (reply != "END").then(|| (client.line().unwrap(), client.line()).0);
        assert_eq!(value.as_deref(), Some(version.as_str()), "k{key} {reply}");
    }
}

#[test]
fn a_pool_behind_a_proxy_shrinks_and_grows_and_writers_go_on() {
    there_and_back("switch-one", 1);
}

#[test]
fn a_pool_behind_two_proxies_shrinks_and_grows_and_writers_go_on() {
    there_and_back("switch-two", 2);
}

/// Runs the same command again until it has done it; how often.
fn until_done(mut command: Command) -> usize {
    let mut all = String::new();
    for tries in 1..10 {
        let output = command.output().unwrap();
        if output.status.success() {
            return tries;
        }
        all += &said(&output);
    }
    panic!("it never ends: {all}");
}

#[test]
fn who_is_killed_leaves_nothing_stale() {
    let times = std::env::var("MBAL_SWITCH_KILLS").map_or(1, |text| text.parse().unwrap());
    let Some(site) = Site::new("switch-kills", 2, true) else { return };
    site.fill();
    let mut random = Random::new(times);
    site.under_load(|| {
        for round in 0..4 * times {
            let wanted = 5 - site.now().len();
            let (mut command, again) = (site.resize(), site.resize());
            let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            let mut tool = Killed(child);
            // It waits five seconds before it copies; then all is quick.
            thread::sleep(Duration::from_millis(4_700 + random.below(900)));
            let what = ["tool", "proxy", "upstream", "interrupted tool"][round as usize % 4];
            match what {
                "tool" => drop(tool),
                "interrupted tool" => {
                    signal(&tool.0, "INT");
                    drop(tool.0.wait());
                }
                "proxy" => {
                    let proxy = &site.proxies[random.below(2) as usize];
                    proxy.kill();
                    proxy.begin();
                    drop(tool.0.wait());
                }
                _ => {
                    let server = &site.servers[random.below(SERVERS as u64) as usize];
                    server.kill();
                    server.begin();
                    drop(tool.0.wait());
                }
            }
            let tries = until_done(again);
            assert_eq!(site.now().len(), wanted);
            println!("{what} was killed: {wanted} servers after {tries} more");
        }
    });
    site.check();
    // No proxy refuses anything.
    for proxy in 0..2 {
        let mut client = Client::of(&site, proxy);
        for key in COUNTERS..KEYS {
            assert!(site.write(&mut client, key), "k{key}");
        }
    }
}

#[test]
fn a_proxy_that_finds_a_switch_on_its_disk_serves_no_key_that_moves() {
    let Some(site) = Site::new("switch-found", 2, true) else { return };
    site.fill();
    // Both hold, and die; one had turned.
    for (at, proxy) in site.proxies.iter().enumerate() {
        proxy.kill();
        let record = format!("{}\n{}\n", site.servers[0].name(), site.servers[1].name());
        fs::write(site.folder.path(&format!("pool-{at}.switch")), record).unwrap();
        proxy.begin();
    }
    let mut client = Client::of(&site, 0);
    let (mut hits, mut misses, mut refused) = (0, 0, 0);
    for key in DELETED..KEYS {
        let reply = client.ask(&format!("get k{key}\r\n")).unwrap();
        if reply == "END" {
            misses += 1;
            let reply = client.ask(&format!("set k{key} 0 0 1\r\n0\r\n")).unwrap();
            refused += usize::from(reply.starts_with("SERVER_ERROR a resize of the pool"));
        } else {
            hits += 1;
            drop((client.line(), client.line()));
        }
    }
    assert_eq!(refused, misses);
    // How many move is a matter of the ports that the servers have got.
    assert!(misses.min(hits) > KEYS / 10, "{hits} hits, {misses} misses");
    let output = site.resize().output().unwrap();
    assert!(!output.status.success() || site.now() == [0, 1], "{}", said(&output));
    let next = site.list(&[0, 1]);
    let output = site.tool(&[&site.list(&[0, 1, 2]), "--to-servers", &next]).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(site.now(), [0, 1]);
    for key in DELETED..KEYS {
        let reply = client.ask(&format!("get k{key}\r\n")).unwrap();
        assert!(reply.starts_with("VALUE "), "k{key} {reply}");
        drop((client.line(), client.line()));
    }
}
