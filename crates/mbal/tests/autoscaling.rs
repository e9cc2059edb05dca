//! `mbal pool autoscale`: a pool of real memcacheds behind a proxy shrinks when less is read, and grows when more is; clients hear no
//! error. A look is a second here, and counts as a minute.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

mod running;

use mbal_random::Random;
use running::{Ends, Folder, Killed, MBAL, eventually, free_ports, signal, told};
use serde_json::Value;

/// Three servers of 8 MB hold them, two do not.
const KEYS: u64 = 17_000;
const VALUE_BYTES: usize = 1_000;
const SERVERS: usize = 3;
const TOKEN: &str = "0123456789abcdef0123";
/// So long something may take on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(240);

struct Site {
    folder: Folder,
    ports: Vec<u16>,
    proxy: u16,
    _proxy: Killed,
}

impl Drop for Site {
    fn drop(&mut self) {
        for port in &self.ports {
            let file = self.folder.path(&format!("{port}.pid"));
            let Ok(pid) = fs::read_to_string(file) else { continue };
            drop(Command::new("kill").arg(pid.trim()).stderr(Stdio::null()).status());
        }
    }
}

impl Site {
    /// None where memcached is not installed.
    fn new(name: &str, flags: &[&str]) -> Option<Site> {
        let program = std::env::var("MEMCACHED").unwrap_or("memcached".into());
        if Command::new(&program).arg("-V").stdout(Stdio::null()).status().is_err() {
            eprintln!("SKIPPED, NOT TESTED: no memcached");
            return None;
        }
        let ports = free_ports(SERVERS as u16 + 1);
        let folder = Folder::new(name);
        folder.keep("token", TOKEN);
        let (proxy, servers) = ports.split_last().expect("there are some");
        let files = folder.0.display();
        folder.keep("start", &format!(
            "echo \"start $MBAL_SERVER $MBAL_SERVER_ID $MBAL_COUNT\" >> {files}/hooks; port=${{MBAL_SERVER##*:}}\n\
             exec {program} -u root -l 127.0.0.1 -U 0 -t 1 -m 8 -d -P {files}/$port.pid -p $port\n"
        ));
        folder.keep("stop", &format!(
            "echo \"stop $MBAL_SERVER $MBAL_SERVER_ID $MBAL_COUNT\" >> {files}/hooks; port=${{MBAL_SERVER##*:}}\n\
             kill $(cat {files}/$port.pid) && rm {files}/$port.pid\n"
        ));
        for port in servers {
            let mut start = Command::new("sh");
            start.arg(folder.path("start")).env("MBAL_SERVER", format!("127.0.0.1:{port}"));
            assert!(start.status().unwrap().success());
            eventually("it listens", || TcpStream::connect(("127.0.0.1", *port)).is_ok());
        }
        fs::remove_file(folder.path("hooks")).unwrap();
        let list: String = servers.iter().map(|port| format!("127.0.0.1:{port}\n")).collect();
        folder.keep("pool", &list);
        let mut command = Command::new(MBAL);
        command.args(["proxy", "-l", "127.0.0.1", "-p", &proxy.to_string(), "--upstreams-file"]);
        command.arg(folder.path("pool")).arg("--resize-token-file").arg(folder.path("token"));
        // A machine that is busy answers late: that is no error of a resize.
        command
            .args(["--timeout", "60s"])
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = Killed(command.spawn().unwrap());
        eventually("it listens", || TcpStream::connect(("127.0.0.1", *proxy)).is_ok());
        Some(Site { folder, ports: servers.to_vec(), proxy: *proxy, _proxy: child })
    }

    fn list(&self) -> String {
        let names = self.ports.iter().map(|port| format!("127.0.0.1:{port}"));
        names.collect::<Vec<_>>().join(",")
    }

    fn command(&self, flags: &[&str]) -> Command {
        let mut command = Command::new(MBAL);
        command.args(["pool", "autoscale", &self.list(), "--through"]);
        command.arg(format!("127.0.0.1:{}", self.proxy)).args(["--min", "2"]).args(flags);
        command
    }

    fn hooks(&self) -> Vec<String> {
        let text = fs::read_to_string(self.folder.path("hooks")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn stat(&self, name: &str) -> u64 {
        let stream = TcpStream::connect(("127.0.0.1", self.proxy)).unwrap();
        let stats = told(stream, "stats\r\nquit\r\n");
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
        line.expect(name).trim().parse().unwrap()
    }
}

/// What clients do: read, and store what they have missed; fast, or slowly.
#[derive(Default)]
struct Load {
    over: AtomicBool,
    slow: AtomicBool,
    errors: Mutex<Vec<String>>,
    reads: AtomicU64,
}

impl Load {
    fn client(&self, port: u16, seed: u64) {
        let mut stream = BufReader::new(TcpStream::connect(("127.0.0.1", port)).unwrap());
        stream.get_mut().set_nodelay(true).unwrap();
        let (mut random, mut line) = (Random::new(seed), String::new());
        let value = "v".repeat(VALUE_BYTES);
        while !self.over.load(SeqCst) {
            let key = random.below(KEYS);
            let mut ask = |request: &str| {
                stream.get_mut().write_all(request.as_bytes()).unwrap();
                line.clear();
                stream.read_line(&mut line).unwrap();
                if line.starts_with("VALUE") {
                    let mut rest = vec![0; VALUE_BYTES + "\r\nEND\r\n".len()];
                    stream.read_exact(&mut rest).unwrap();
                }
                line.clone()
            };
            let reply = ask(&format!("get k{key}\r\n"));
            let (reply, expected) = match reply.as_str() {
                "END\r\n" => {
                    (ask(&format!("set k{key} 0 0 {VALUE_BYTES}\r\n{value}\r\n")), "STORED\r\n")
                }
                _ => (reply, "VALUE"),
            };
            if !reply.starts_with(expected) {
                self.errors.lock().unwrap().push(reply);
            }
            self.reads.fetch_add(1, SeqCst);
            if self.slow.load(SeqCst) {
                thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// The autoscaler, and what it says.
struct Autoscaler {
    child: Killed,
    events: Receiver<Value>,
}

impl Autoscaler {
    fn start(mut command: Command) -> Autoscaler {
        let mut child: Child = command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, events) = channel();
        thread::spawn(move || {
            for line in stdout.lines() {
                let line = line.unwrap();
                let event =
                    serde_json::from_str(&line).unwrap_or_else(|why| panic!("{line}: {why}"));
                if sender.send(event).is_err() {
                    return;
                }
            }
        });
        Autoscaler { child: Killed(child), events }
    }

    /// The next event for which this holds.
    fn next(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        loop {
            let event = self.events.recv_timeout(PATIENCE);
            let event = event.unwrap_or_else(|why| panic!("{what}: {why}, behind {last}"));
            if holds(&event) {
                return event;
            }
            last = event;
        }
    }
}

fn is(name: &'static str) -> impl Fn(&Value) -> bool {
    move |event| event["event"] == name
}

#[test]
fn a_pool_follows_what_is_read_of_it() {
    let Some(site) = Site::new("autoscaling", &["--stack-distances"]) else { return };
    let load = Load::default();
    thread::scope(|scope| {
        let _ends = Ends(&load.over);
        for seed in 0..2 {
            let load = &load;
            scope.spawn(move || load.client(site.proxy, seed));
        }
        // Warm, and so that what was new is little of what was read.
        eventually_within("it is warm", || load.reads.load(SeqCst) > 8 * KEYS);
        let (reads, misses) = (load.reads.load(SeqCst), site.stat("get_misses"));
        assert!(misses < reads / 4, "{misses} of {reads}");
        load.slow.store(true, SeqCst);
        // The slow load is 100 reads a second at most, and the database bears them all.
        let mut command = site.command(&["--database-rate", "150", "--policy", "reactive"]);
        command.args(["--json", "--every", "1s"]);
        command.arg("--token-file").arg(site.folder.path("token"));
        for hook in ["start", "stop"] {
            let path = site.folder.path(hook);
            command.arg(format!("--{hook}-command")).arg(format!("sh {}", path.display()));
        }
        let autoscaler = Autoscaler::start(command);
        let changed = autoscaler.next("it shrinks", is("changed"));
        assert_eq!((&changed["from"], &changed["to"]), (&3.into(), &2.into()));
        // What comes of it: two servers of 8 MB hit about two thirds.
        let outcome = autoscaler.next("it tells what came of it", is("outcome"));
        let of = |name: &str| outcome[name].as_f64().unwrap();
        assert!((0.4..0.95).contains(&of("measured")), "{outcome}");
        assert!((of("expected") - of("measured")).abs() < 0.25, "{outcome}");
        load.slow.store(false, SeqCst);
        let changed = autoscaler.next("it grows", is("changed"));
        assert_eq!((&changed["from"], &changed["to"]), (&2.into(), &3.into()));
        let look = autoscaler.next("it hits again", |event| {
            event["event"] == "look" && event["hit_ratio"].as_f64().unwrap() > 0.97
        });
        assert_eq!(look["servers"], 3);
        signal(&autoscaler.child.0, "INT");
        let mut child = autoscaler.child;
        assert!(child.0.wait().unwrap().success(), "Ctrl-C ends it");
    });
    assert_eq!(*load.errors.lock().unwrap(), [""; 0]);
    let hooks = site.hooks();
    let [stop, start] = hooks.as_slice() else { panic!("{hooks:?}") };
    assert!(stop.starts_with("stop 127.0.0.1:") && stop.ends_with(" 2"), "{stop}");
    assert!(start.starts_with("start 127.0.0.1:") && start.ends_with(" 3"), "{start}");
    assert_eq!(stop.split(' ').nth(1), start.split(' ').nth(1));
}

fn eventually_within(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// What it says against what it was told, and how it ends.
#[test]
fn what_cannot_work_is_refused_with_its_reason() {
    let Some(site) = Site::new("autoscaling-refused", &[]) else { return };
    let rate = ["--database-rate", "100", "--dry-run"];
    let other = format!("127.0.0.1:{}", site.ports[0]);
    let dead = format!("127.0.0.1:{}", free_ports(1)[0]);
    for (flags, says) in [
        (&rate[..], "stack distances are off: --stack-distances"),
        (&["--database-rate", "100"], "--token-file"),
        (&["--database-rate", "100", "--token-file", "/none"], "--start-command"),
        (&["--dry-run"], "--database-rate"),
        (&["--database-rate", "much", "--dry-run"], "reads a second, or profiled"),
        (&["--database-rate=-1", "--dry-run"], "reads a second, or profiled"),
        (&[&rate[..], &["--max", "4"]].concat(), "--max 4: 3 servers are named"),
        (&[&rate[..], &["--max", "1"]].concat(), "max: 2 to"),
        (&[&rate[..], &["--schedule", "six"]].concat(), "no rule"),
        (&[&rate[..], &["--through", &other]].concat(), "stack distances are off"),
        (&[&rate[..], &["--start-command", "x"]].concat(), "--stop-command"),
    ] {
        let output = site.command(flags).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(says), "{flags:?}: {text}");
    }
    for (proxy, servers, says) in
        [(dead.as_str(), site.list(), "refused"), (other.as_str(), site.list(), "it answers")]
    {
        let mut command = Command::new(MBAL);
        command.args(["pool", "autoscale", &servers, "--through", proxy, "--min", "1"]).args(rate);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(says), "{proxy}: {text}");
    }
}

/// A resize that somebody has begun by hand is waited for; and whoever is in the pool has to be in the list.
#[test]
fn beside_a_resize_it_decides_nothing() {
    let Some(mut site) = Site::new("autoscaling-beside", &["--stack-distances"]) else { return };
    let port = site.proxy;
    let begin = |order: &str| {
        let mut stream = BufReader::new(TcpStream::connect(("127.0.0.1", port)).unwrap());
        stream.get_mut().write_all(format!("switch {TOKEN} {order}\r\n").as_bytes()).unwrap();
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        line
    };
    let said = begin("0 hello");
    assert!(said.starts_with("SESSION"), "{said}");
    let mut command = site.command(&["--database-rate", "100", "--dry-run", "--json"]);
    command.args(["--every", "1s"]);
    let autoscaler = Autoscaler::start(command);
    let look = autoscaler.next("it looks", is("look"));
    assert_eq!((&look["servers"], &look["servers_wanted"]), (&3.into(), &3.into()));
    let first = format!("127.0.0.1:{}", site.ports[0]);
    let mut command = Command::new(MBAL);
    command.args(["pool", "autoscale", &first, "--through", &format!("127.0.0.1:{}", site.proxy)]);
    command.args(["--min", "1", "--database-rate", "100", "--dry-run"]);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("not in the list of servers"), "{text}");
    // The proxy is away; and comes back with a resize that was not ended, as the file beside its list says.
    drop(std::mem::replace(&mut site._proxy, Killed(Command::new("true").spawn().unwrap())));
    let undecided = autoscaler.next("it cannot ask", is("undecided"));
    let why = undecided["why"].as_str().unwrap();
    assert!(why.contains(&format!("127.0.0.1:{}: ", site.proxy)), "{why}");
    let two = format!("127.0.0.1:{}\n127.0.0.1:{}\n", site.ports[0], site.ports[1]);
    site.folder.keep("pool.switch", &two);
    let mut command = Command::new(MBAL);
    command.args(["proxy", "-l", "127.0.0.1", "-p", &site.proxy.to_string(), "--upstreams-file"]);
    command.arg(site.folder.path("pool")).arg("--resize-token-file").arg(site.folder.path("token"));
    command.args(["--stack-distances"]).stdout(Stdio::null()).stderr(Stdio::null());
    site._proxy = Killed(command.spawn().unwrap());
    let again = "a resize is not over: run the same mbal pool resize again";
    autoscaler
        .next("it waits", |event| event["why"].as_str().is_some_and(|why| why.contains(again)));
}
