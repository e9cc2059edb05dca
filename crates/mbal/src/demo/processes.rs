//! The servers of a demonstration as child processes, which end with it however it ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use mbal_reactor::process;

/// Ports are looked for from here: below those that the system gives to whoever asks for any.
const FIRST_PORT: u16 = 21_000;
const LAST_PORT: u16 = 32_000;
const STARTS_WITHIN: Duration = Duration::from_secs(30);
const ENDS_WITHIN: Duration = Duration::from_secs(5);
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
pub const SERVERS: usize = 3;
const MEMORY_MIB: &str = "64";

/// So many ports, one behind the other, that nobody has.
fn free_ports(count: u16, after: u16) -> Result<u16, String> {
    let mut first = after;
    while first + count < LAST_PORT {
        let is_taken = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_err();
        match (first..first + count).find(is_taken) {
            None => return Ok(first),
            Some(port) => first = port + 1,
        }
    }
    Err(format!("no {count} free ports in a row from {after} to {LAST_PORT}"))
}

/// Two demonstrations that are started at once look elsewhere.
fn first_port() -> u16 {
    const APART: u32 = 16;
    const PLACES: u32 = 400;
    FIRST_PORT + (std::process::id() % PLACES * APART) as u16
}

fn on_loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// Ends its process when it goes.
struct Kept(Child);

impl Drop for Kept {
    fn drop(&mut self) {
        process::interrupt(self.0.id());
        let until = Instant::now() + ENDS_WITHIN;
        while Instant::now() < until && matches!(self.0.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(10));
        }
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Ctrl-C is for the demonstration alone, which ends the others.
fn kept(command: &mut Command) -> Result<Kept, String> {
    process::end_with_parent(command);
    let command = command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null());
    let child = command.spawn();
    let name = command.get_program().to_string_lossy().into_owned();
    child.map(Kept).map_err(|error| format!("{name}: {error}"))
}

/// `mbal up`.
pub struct Cluster {
    _up: Kept,
    said: Receiver<String>,
    pub url: String,
    pub servers: Vec<SocketAddr>,
}

impl Cluster {
    pub fn start(program: &Path) -> Result<Cluster, String> {
        // The coordinator's port stands before the servers'.
        let first = free_ports(SERVERS as u16 + 1, first_port())?;
        let [coordinator, port] = [first, first + 1].map(|port| port.to_string());
        let mut command = Command::new(program);
        command.args(["up", "--servers", &SERVERS.to_string(), "-p", &port]);
        command.args(["--coordinator-port", &coordinator, "--", "-t", "1", "-m", MEMORY_MIB]);
        command.args(["--control", "off"]).stderr(Stdio::piped());
        for variable in ["MBAL_CONFIG", "MBAL_METRICS", "MBAL_LISTEN", "MBAL_COORDINATOR_TOKEN"] {
            command.env_remove(variable);
        }
        let mut up = kept(&mut command)?;
        let stderr = BufReader::new(up.0.stderr.take().expect("it is piped"));
        let (lines, said) = channel();
        std::thread::spawn(move || {
            stderr.lines().map_while(Result::ok).for_each(|line| drop(lines.send(line)));
        });
        let url = format!("http://127.0.0.1:{coordinator}");
        let servers = (first + 1..).take(SERVERS).map(on_loopback).collect();
        let cluster = Cluster { _up: up, said, url, servers };
        let mut last = String::from("it said nothing");
        let until = Instant::now() + STARTS_WITHIN;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match cluster.said.recv_timeout(left) {
                Ok(line) if line.contains("any of them for any client") => return Ok(cluster),
                Ok(line) => last = line,
                Err(_) => return Err(format!("mbal up did not come up: {last}")),
            }
        }
    }

    /// Ends a server at once, as a fault would.
    pub fn kill(&self, server: usize) -> Result<(), String> {
        let pid = stat(self.servers[server], "pid")?;
        // 0 and 1 are everybody's.
        let pid = pid.parse().ok().filter(|pid| *pid > 1).ok_or("a pid is a number")?;
        process::kill(pid);
        Ok(())
    }
}

/// Servers that know nothing of each other.
pub struct Pool {
    /// What they are, as people say it.
    pub name: String,
    program: Program,
    servers: Vec<Option<Kept>>,
    pub addresses: Vec<SocketAddr>,
}

enum Program {
    Memcached(String),
    /// This program, without its balancer.
    Own(std::path::PathBuf),
}

impl Pool {
    /// memcacheds, if they are installed.
    pub fn start(own: &Path, memcached: &str, after: u16) -> Result<Pool, String> {
        let version =
            Command::new(memcached).arg("-V").output().ok().filter(|out| out.status.success());
        let (name, program) = match version {
            Some(out) => {
                let name = String::from_utf8_lossy(&out.stdout).trim().to_owned();
                (name, Program::Memcached(memcached.to_owned()))
            }
            None => ("mbal serve --balance off".to_owned(), Program::Own(own.to_owned())),
        };
        let first = free_ports(SERVERS as u16, after)?;
        let addresses: Vec<SocketAddr> = (first..).take(SERVERS).map(on_loopback).collect();
        let mut pool = Pool { name, program, servers: Vec::new(), addresses };
        for server in 0..SERVERS {
            let started = pool.spawn(server)?;
            pool.servers.push(Some(started));
        }
        for address in &pool.addresses {
            answers(*address)?;
        }
        Ok(pool)
    }

    pub fn is_memcached(&self) -> bool {
        matches!(self.program, Program::Memcached(_))
    }

    fn spawn(&self, server: usize) -> Result<Kept, String> {
        let port = self.addresses[server].port().to_string();
        let mut command = match &self.program {
            Program::Memcached(program) => {
                let mut command = Command::new(program);
                if process::is_root() {
                    command.args(["-u", "root"]);
                }
                command
            }
            Program::Own(program) => {
                let mut command = Command::new(program);
                command.args(["serve", "--balance", "off", "--control", "off"]);
                command.env_remove("MBAL_CONFIG");
                command
            }
        };
        command.args(["-l", "127.0.0.1", "-p", &port, "-U", "0", "-t", "1", "-m", MEMORY_MIB]);
        kept(command.stderr(Stdio::null()))
    }

    pub fn kill(&mut self, server: usize) {
        if let Some(kept) = &mut self.servers[server] {
            drop(kept.0.kill());
        }
        self.servers[server] = None;
    }

    pub fn start_again(&mut self, server: usize) -> Result<(), String> {
        self.servers[server] = Some(self.spawn(server)?);
        answers(self.addresses[server])
    }
}

fn answers(address: SocketAddr) -> Result<(), String> {
    let until = Instant::now() + STARTS_WITHIN;
    loop {
        match stat(address, "pid") {
            Ok(_) => return Ok(()),
            Err(why) if until < Instant::now() => return Err(why),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// A line of `stats`.
pub fn stat(address: SocketAddr, name: &str) -> Result<String, String> {
    let asked = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&address, ANSWERS_WITHIN)?;
        stream.set_read_timeout(Some(ANSWERS_WITHIN))?;
        stream.write_all(b"stats\r\nquit\r\n")?;
        let mut told = String::new();
        stream.take(1 << 20).read_to_string(&mut told)?;
        Ok(told)
    };
    let told = asked().map_err(|error| format!("{address}: {error}"))?;
    let prefix = format!("STAT {name} ");
    let found = told.lines().find_map(|line| line.strip_prefix(&prefix));
    found.map(str::to_owned).ok_or_else(|| format!("{address} does not tell its {name}"))
}
