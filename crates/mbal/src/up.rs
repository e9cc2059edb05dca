//! `mbal up`: a coordinator and some servers as processes of this machine, until Ctrl-C.
//!
//! The coordinator is a thread of this process; each server is a child, started again when it dies, and ended when this
//! process is, however that happens. A server that dies before it has served ever ends all of it: it would die again.

use std::fs::{self, DirBuilder};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use clap::Args;
use mbal_coordinator::{Autoscale, MachineOrder, Machines, ScaleStatus};
use mbal_model::Cluster;
use mbal_reactor::process::{self, Signal, Signals};
use mbal_server::{TokenFile, log, random_word};

use crate::config::file::File;
use crate::coordinator::PORT;
use crate::flags::LogFlags;
use crate::output::say;

const CLUSTER: &str = "mbal";
/// Of a server's line that is longer the rest is taken for another one.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// Of what a server said last, if it goes on for longer the rest is enough.
const REASON_BYTES_MAX: usize = 4 << 10;
/// Servers of one machine.
const SERVERS_MAX: u16 = 64;
/// How often children are looked after.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often it is looked how many are wanted.
const SCALES_EVERY: Duration = Duration::from_millis(500);
/// A server that dies again so soon is started later and later.
const SETTLED_AFTER: Duration = Duration::from_secs(10);
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];
/// Servers have so long to end, then they are killed.
const ENDS_WITHIN: Duration = Duration::from_secs(5);
/// All servers have registered by then, or why not is said.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// What a server said last is waited for so long after its end: a process that it left behind may keep its standard error open.
const LAST_LINE_WITHIN: Duration = Duration::from_secs(1);
/// Exit code if the coordinator cannot have its port, as that of a server that cannot have its own.
const EX_OSERR: u8 = 71;

const EXAMPLES: &str = "\
EXAMPLES
  mbal up                        three servers; clients use 127.0.0.1:11211
  mbal up 5 -p 12000             five, clients' ports 12000 to 12004
  mbal up -- -m 1024 -t 2        flags behind -- are every server's
  mbal up --config mbal.toml     [up] of a file is this command's, [serve] every server's
  mbal cluster status            what the cluster does
  mbal cluster scale 5           five servers from now on

Any memcached client gets right answers from any of the servers. When all are
there, a line for other terminals is printed: export MBAL_COORDINATOR=...; it
needs no token, as the same user. Ctrl-C ends all of them; what was stored is
gone then.";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Up {
    /// How many servers; outdoes --servers
    #[arg(value_name = "SERVERS")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=i64::from(SERVERS_MAX)))]
    count: Option<u16>,

    /// How many servers
    #[arg(long, env = "MBAL_SERVERS", value_name = "num", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=i64::from(SERVERS_MAX)))]
    servers: u16,

    /// Clients' port of the first server; the others follow. 0: any free ones
    #[arg(short, long, env = "MBAL_PORT", value_name = "num", default_value_t = 11211)]
    port: u16,

    /// The coordinator's port; 0: any free one
    #[arg(long, value_name = "num", default_value_t = PORT)]
    coordinator_port: u16,

    #[command(flatten)]
    hot: crate::coordinator::HotKeys,

    #[command(flatten)]
    log: LogFlags,

    /// Time between two looks of the autoscaler, which counts them as minutes; for tests
    #[arg(long, hide = true, default_value = "60s", value_parser = crate::coordinator::looks_every)]
    autoscale_every: Duration,

    /// Flags of every server, as `mbal serve` has them
    #[arg(last = true, value_name = "flags of mbal serve")]
    flags: Vec<String>,
}

/// A server that is to be there.
struct Server {
    id: u16,
    port: u16,
    child: Option<Child>,
    begun: Instant,
    pause: Duration,
    due: Option<Instant>,
    /// It has nothing any more, and is to end.
    leaves: bool,
    /// It was one of those that the cluster begins with, and none of them has served yet.
    is_first: bool,
    said: Heard,
}

/// What a server says, line by line, under its name.
#[derive(Default)]
struct Heard {
    /// In the end it has the last line.
    reader: Option<JoinHandle<String>>,
}

/// Why it ends, and by which code.
struct Failed {
    why: String,
    code: u8,
}

impl From<String> for Failed {
    fn from(why: String) -> Failed {
        Failed { why, code: 1 }
    }
}

/// Files of this cluster, which go with it.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// Servers read the same file.
pub fn run(up: &Up, file: Option<&(PathBuf, File)>) -> ExitCode {
    up.log.set();
    match serve(up, file) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failed { why, code }) => {
            log::error("not_started", &format!("mbal up: {why}"));
            ExitCode::from(code)
        }
    }
}

fn serve(up: &Up, file: Option<&(PathBuf, File)>) -> Result<(), Failed> {
    let count = up.count.unwrap_or(up.servers);
    if up.port.checked_add(count - 1).is_none() {
        let why = format!("-p {}: {count} servers need ports up to 65535", up.port);
        return Err(why.into());
    }
    let ports = OwnPorts::of(&up.flags, |flag| {
        let variable = format!("MBAL_{}", flag.to_uppercase().replace('-', "_"));
        let in_file = || file.and_then(|(_, file)| file.value("serve", flag).map(str::to_owned));
        std::env::var(variable).ok().or_else(in_file)
    });
    let failed = |error: io::Error| error.to_string();
    // Before there are other threads: these inherit that the signals interrupt nobody.
    let signals = Signals::take().map_err(failed)?;
    let folder = Folder::new().map_err(failed)?;
    let secret = folder.secret().map_err(failed)?;
    let token = random_word().map_err(failed)?;
    let (parent, orders) = channel();
    let config = mbal_coordinator::Config {
        listen: SocketAddr::from(([127, 0, 0, 1], up.coordinator_port)),
        state: mbal_coordinator::StateIn::File(folder.0.join("state.json")),
        settings: mbal_coordinator::Settings {
            cluster: CLUSTER.into(),
            servers_first: count.into(),
            ..up.hot.settings()
        },
        token: Some(token.clone()),
        allow_hosts: Vec::new(),
        autoscale: Autoscale { machines: Machines::Told(parent), every: up.autoscale_every },
        says_each_move: up.flags.iter().any(|flag| flag.starts_with("-v") || flag == "--verbose"),
    };
    // In the end the servers say goodbye one by one, which is no news then.
    let is_ending = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&is_ending);
    let say = Box::new(move |text: &str| {
        if !ends.load(Relaxed) {
            log::info("coordinator", &format!("mbal: {text}"));
        }
    });
    let socket = format!("{}: ", config.listen);
    let coordinator = mbal_coordinator::start(config, say).map_err(|why| {
        // All of it is about the port.
        if why.starts_with(&socket) {
            let why = format!("the coordinator: {why} (--coordinator-port chooses another port)");
            return Failed { why, code: EX_OSERR };
        }
        Failed::from(format!("the coordinator: {why}"))
    })?;
    let url = format!("http://{}", coordinator.address);
    // Of this user's tools and servers: a web page, and other users, change nothing.
    let token = TokenFile::leave(coordinator.address, &token)
        .map_err(|error| format!("the coordinator's token: {error}"))?;
    let program = std::env::current_exe().map_err(failed)?;
    log::stamp();
    let start = |server: &mut Server| {
        let mut command = Command::new(&program);
        command.arg("serve").args(["-p", &port_flag(server.port), "--coordinator", &url]);
        command.args(["--server-id", &server.id.to_string(), "--worker-ports", "0", "-U", "0"]);
        command.arg("--coordinator-token").arg(token.path());
        if up.log.is_json() {
            command.args(["--log-format", "json"]);
        }
        command.arg("--cluster-secret").arg(&secret).args(ports.flags(&up.flags, server.id));
        // Ctrl-C is for this process alone, which ends the others.
        command.process_group(0);
        process::end_with_parent(&mut command);
        if let Some((path, _)) = file {
            command.env("MBAL_CONFIG", path);
        }
        let mut child = command.stderr(Stdio::piped()).spawn()?;
        server.said.hear(server.id, child.stderr.take().expect("it is piped"));
        Ok(child)
    };
    let mut servers: Vec<Server> = (0..count).map(|at| Server::new(at, up.port)).collect();
    for server in &mut servers {
        server.is_first = true;
        server.child = Some(start(server).map_err(failed)?);
    }
    let mut scaled_at = Instant::now();
    let mut ready = Some(Instant::now() + READY_WITHIN);
    loop {
        if let Some(Signal::Interrupt | Signal::Terminate) = signals.next().map_err(failed)? {
            break;
        }
        std::thread::sleep(LOOK_EVERY);
        orders.try_iter().for_each(|order| obey(&mut servers, &order, up.port));
        let dead = servers.iter_mut().find_map(|server| server.look_after(&start).err());
        if let Some(dead) = dead {
            is_ending.store(true, Relaxed);
            end(&mut servers);
            return Err(dead);
        }
        servers.retain(|server| !server.is_gone());
        if scaled_at.elapsed() > SCALES_EVERY {
            scaled_at = Instant::now();
            if let Some(scaling) = coordinator.scaling() {
                scale(&mut servers, &scaling, up.port);
            }
        }
        if let Some(until) = ready {
            match coordinator.served() {
                Some(cluster) => {
                    say_ready(&url, &cluster);
                    ready = None;
                    servers.iter_mut().for_each(|server| server.is_first = false);
                }
                _ if until <= Instant::now() => {
                    log::warn(
                        "not_ready",
                        "mbal up: not all servers have come yet; their lines above say why",
                    );
                    ready = None;
                }
                _ => {}
            }
        }
    }
    log::info("stopping", "mbal up: ending all servers");
    is_ending.store(true, Relaxed);
    end(&mut servers);
    Ok(())
}

fn port_flag(port: u16) -> String {
    // To `serve`, 0 is no port at all, and -1 any.
    if port == 0 { "-1".into() } else { port.to_string() }
}

fn say_ready(url: &str, cluster: &Cluster) {
    let clients = cluster.servers.values().map(|server| server.client.to_string());
    let clients: Vec<String> = clients.collect();
    let text = format!(
        "mbal up: {} servers, any of them for any client: {}",
        clients.len(),
        clients.join(" ")
    );
    log::info("ready", &text);
    log::info("page_at", &format!("page: {url}/"));
    log::info("coordinator_at", &format!("coordinator: {url}/v1/status"));
    if let Some(first) = cluster.servers.values().next() {
        let (host, port) = (&first.client.host, first.client.port);
        let example = format!(
            "try it: bash -c 'exec 3<>/dev/tcp/{host}/{port}; printf \"set k 0 0 5\\r\\nhello\\r\\nget k\\r\\nquit\\r\\n\" >&3; cat <&3'"
        );
        log::info("example", &example);
    }
    // For whoever has closed standard output, the lines above have it, too.
    let _ = say(&format!("export MBAL_COORDINATOR={url}\n"));
}

impl Server {
    fn new(at: u16, first_port: u16) -> Server {
        let port = if first_port == 0 { 0 } else { first_port + at };
        Server {
            id: at + 1,
            port,
            child: None,
            begun: Instant::now(),
            pause: PAUSES[0],
            due: None,
            leaves: false,
            is_first: false,
            said: Heard::default(),
        }
    }

    fn is_gone(&self) -> bool {
        self.leaves && self.child.is_none()
    }

    /// Starts it again after it has died, at once if it had lived for a while. The error is of one that would die again.
    fn look_after(
        &mut self,
        start: &impl Fn(&mut Server) -> io::Result<Child>,
    ) -> Result<(), Failed> {
        if let Some(child) = &mut self.child {
            let Ok(Some(status)) = child.try_wait() else { return Ok(()) };
            if self.leaves {
                self.child = None;
                return Ok(());
            }
            // One that was killed has not ended by itself.
            if let Some(code) = status.code().filter(|_| self.is_first) {
                self.child = None;
                return Err(self.never_served(status, code));
            }
            if self.begun.elapsed() > SETTLED_AFTER {
                self.pause = PAUSES[0];
            }
            log::warn(
                "server_died",
                &format!("mbal up: server {} has ended ({status}); it is started again", self.id),
            );
            self.child = None;
            self.due = Some(Instant::now() + self.pause);
            self.pause = (self.pause * 2).min(PAUSES[1]);
        }
        if self.due.is_some_and(|due| due <= Instant::now()) {
            self.due = None;
            self.begun = Instant::now();
            match start(self) {
                Ok(child) => self.child = Some(child),
                Err(error) => {
                    log::warn(
                        "server_not_started",
                        &format!("mbal up: server {}: {error}", self.id),
                    );
                    self.due = Some(Instant::now() + self.pause);
                }
            }
        }
        Ok(())
    }

    fn never_served(&mut self, status: ExitStatus, code: i32) -> Failed {
        let last = self.said.last();
        let said = if last.is_empty() { status.to_string() } else { last };
        let code = u8::try_from(code).ok().filter(|code| *code != 0).unwrap_or(1);
        Failed { why: format!("server {} does not start: {said}", self.id), code }
    }
}

impl Heard {
    /// Until the process ends.
    fn hear(&mut self, id: u16, stderr: ChildStderr) {
        self.reader = Some(std::thread::spawn(move || {
            let (mut line, mut last) = (Vec::new(), String::new());
            let mut stderr = BufReader::new(stderr);
            loop {
                line.clear();
                let read = stderr.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
                if read.is_err() || line.is_empty() {
                    return last;
                }
                let text = String::from_utf8_lossy(&line);
                let text = text.trim_end_matches('\n');
                log::relay(named(id, text, log::is_stamped()).as_bytes());
                let said = plain(text);
                // Why something does not start has several lines, and no time.
                let goes_on = stamp_of(text).is_none() && !text.starts_with('{');
                if !goes_on || last.len() > REASON_BYTES_MAX {
                    last.clear();
                } else if !last.is_empty() && !said.is_empty() {
                    last += "; ";
                }
                last += said;
            }
        }));
    }

    /// The line that it said last, without what a log's lines begin with.
    fn last(&mut self) -> String {
        let Some(reader) = self.reader.take() else { return String::new() };
        let until = Instant::now() + LAST_LINE_WITHIN;
        while !reader.is_finished() && Instant::now() < until {
            std::thread::sleep(LOOK_EVERY / 10);
        }
        if reader.is_finished() { reader.join().unwrap_or_default() } else { String::new() }
    }
}

/// A line of this server, with its end: its name stands behind the time, if there is one, or is a field of an object.
fn named(id: u16, line: &str, is_stamped: bool) -> String {
    if let Some(rest) = line.strip_prefix("{\"time\":") {
        return format!("{{\"server\":{id},\"time\":{rest}\n");
    }
    match stamp_of(line) {
        Some((stamp, rest)) if is_stamped => format!("{stamp} server {id}: {}\n", plain(rest)),
        // This process's lines have none: nor do others'.
        Some((_, rest)) => format!("server {id}: {}\n", plain(rest)),
        None => format!("server {id}: {line}\n"),
    }
}

/// What a line says, without the time and without who says it.
fn plain(line: &str) -> &str {
    let line = stamp_of(line).map_or(line, |(_, rest)| rest).trim();
    line.strip_prefix("mbal: ").unwrap_or(line)
}

/// The time that a line begins with, and what follows it.
fn stamp_of(line: &str) -> Option<(&str, &str)> {
    let (stamp, rest) = line.split_once(' ')?;
    let is_stamp =
        stamp.len() == log::STAMP_BYTES && stamp.ends_with('Z') && stamp.as_bytes()[10] == b'T';
    is_stamp.then_some((stamp, rest))
}

/// Ports that flags of every server name, of which each server needs one of its own: the first has it as it is written, the
/// others those that follow.
struct OwnPorts {
    /// By flag, what the environment or a file says: flags outdo it.
    others: Vec<(&'static str, String)>,
}

impl OwnPorts {
    const FLAGS: [&str; 3] = ["--metrics", "--http", "--link-port"];

    fn of(flags: &[String], other: impl Fn(&str) -> Option<String>) -> OwnPorts {
        let is_there = |name: &str| flags.iter().any(|flag| flag.split('=').next() == Some(name));
        let missing = Self::FLAGS.into_iter().filter(|name| !is_there(name));
        let others = missing.filter_map(|name| Some((name, other(&name[2..])?)));
        OwnPorts { others: others.collect() }
    }

    fn flags(&self, flags: &[String], id: u16) -> Vec<String> {
        let mut own = Vec::new();
        let mut is_value = false;
        for flag in flags {
            let named = flag.split_once('=').filter(|(name, _)| Self::FLAGS.contains(name));
            own.push(match named {
                _ if is_value => with_port_of(flag, id),
                Some((name, value)) => format!("{name}={}", with_port_of(value, id)),
                None => flag.clone(),
            });
            is_value = !is_value && Self::FLAGS.contains(&flag.as_str());
        }
        for (name, value) in &self.others {
            own.extend([(*name).to_owned(), with_port_of(value, id)]);
        }
        own
    }
}

/// `place` is a port, or ends with one. 0 and -1 are any free one; what is none is left for the server to refuse.
fn with_port_of(place: &str, id: u16) -> String {
    let (host, port) = match place.rfind(':') {
        Some(at) => place.split_at(at + 1),
        None => ("", place),
    };
    match port.parse::<u16>().ok().filter(|port| *port > 0).map(|port| port.checked_add(id - 1)) {
        Some(Some(port)) => format!("{host}{port}"),
        _ => place.to_owned(),
    }
}

/// The cluster gets a server, by the lowest number that is free, or loses one.
fn obey(servers: &mut Vec<Server>, order: &MachineOrder, first_port: u16) {
    match *order {
        MachineOrder::Start => {
            let is_free = |at: &u16| servers.iter().all(|server| server.id != at + 1);
            let ports = u16::MAX - first_port;
            let Some(at) = (0..SERVERS_MAX.min(ports)).find(is_free) else { return };
            let mut server = Server::new(at, first_port);
            server.due = Some(Instant::now());
            log::info("server_started", &format!("mbal up: server {} is started", server.id));
            servers.push(server);
        }
        MachineOrder::Stop { id } => {
            let mut staying = servers.iter_mut().filter(|server| !server.leaves);
            let Some(server) = staying.find(|server| server.id == id) else { return };
            log::info("server_stopped", &format!("mbal up: server {id} is stopped"));
            server.leaves = true;
            if let Some(child) = &server.child {
                process::interrupt(child.id());
            }
        }
    }
}

/// Ends who has retired, and starts servers that are wanted.
fn scale(servers: &mut Vec<Server>, scaling: &ScaleStatus, first_port: u16) {
    let retired = servers.iter().filter(|one| !one.leaves && scaling.retired.contains(&one.id));
    let orders: Vec<_> = retired.map(|one| MachineOrder::Stop { id: one.id }).collect();
    orders.iter().for_each(|order| obey(servers, order, first_port));
    let there = servers.iter().filter(|one| !one.leaves).count();
    let wanted = if scaling.dry_run || scaling.more == 0 { 0 } else { scaling.servers };
    for _ in there..wanted {
        obey(servers, &MachineOrder::Start, first_port);
    }
}

fn end(servers: &mut [Server]) {
    let children = servers.iter_mut().filter_map(|server| server.child.as_mut());
    let mut children: Vec<&mut Child> = children.collect();
    for child in &mut children {
        // Not SIGTERM: nobody is left to take what they would give away.
        process::interrupt(child.id());
    }
    let until = Instant::now() + ENDS_WITHIN;
    for child in children {
        while Instant::now() < until && matches!(child.try_wait(), Ok(None)) {
            std::thread::sleep(LOOK_EVERY / 5);
        }
        if matches!(child.try_wait(), Ok(None)) {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

impl Folder {
    fn new() -> io::Result<Folder> {
        let name = format!("mbal-up-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        DirBuilder::new().mode(0o700).create(&folder)?;
        Ok(Folder(folder))
    }

    /// A secret that nobody else can read.
    fn secret(&self) -> io::Result<PathBuf> {
        let path = Path::new(&self.0).join("secret");
        let mut file = fs::File::options().write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(random_word()?.as_bytes())?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_bear_the_name_of_the_server_behind_the_time() {
        let stamped = "2026-11-28T10:03:39.123Z mbal: linked to server 2";
        for (line, is_stamped, told) in [
            (stamped, true, "2026-11-28T10:03:39.123Z server 3: linked to server 2\n"),
            (stamped, false, "server 3: linked to server 2\n"),
            (
                "<28 server listening (auto-negotiate)",
                true,
                "server 3: <28 server listening (auto-negotiate)\n",
            ),
            (r#"{"time":1.5,"text":"a"}"#, true, "{\"server\":3,\"time\":1.5,\"text\":\"a\"}\n"),
            ("", true, "server 3: \n"),
        ] {
            assert_eq!(named(3, line, is_stamped), told);
        }
        assert_eq!(plain(stamped), "linked to server 2");
        assert_eq!(plain("failed to listen\n"), "failed to listen");
    }

    #[test]
    fn each_server_has_ports_of_its_own_for_what_all_flags_name() {
        let flags = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let of =
            |text: &str, id| OwnPorts::of(&flags(text), |_| None).flags(&flags(text), id).join(" ");
        for (given, third) in [
            ("--metrics 9150 -m 64", "--metrics 9152 -m 64"),
            ("--metrics=127.0.0.1:9150", "--metrics=127.0.0.1:9152"),
            ("--metrics [::1]:9150", "--metrics [::1]:9152"),
            ("--http 8080 --link-port 11300", "--http 8082 --link-port 11302"),
            ("--metrics 65534", "--metrics 65534"),
            ("--metrics abc -m 9150", "--metrics abc -m 9150"),
        ] {
            assert_eq!((of(given, 1), of(given, 3)), (given.into(), third.into()));
        }
        let metrics = |name: &str| (name == "metrics").then(|| "9150".to_owned());
        let by_environment = OwnPorts::of(&flags("-m 64"), metrics);
        assert_eq!(by_environment.flags(&flags("-m 64"), 2), flags("-m 64 --metrics 9151"));
        let overridden = OwnPorts::of(&flags("--metrics 7000"), metrics);
        assert_eq!(overridden.flags(&flags("--metrics 7000"), 2), flags("--metrics 7001"));
        let all = OwnPorts::of(&flags("-t 1"), |name| {
            Some(if name == "metrics" { "1" } else { "5" }.into())
        });
        assert_eq!(all.flags(&flags("-t 1"), 3), flags("-t 1 --metrics 3 --http 7 --link-port 7"));
    }
}
