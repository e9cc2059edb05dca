//! A server that the benchmark starts, waits for, and ends.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getuid, kill_process};

use crate::address::{Address, OwnPorts, Target};
use crate::cpu::Cores;
use crate::request::Protocol;

const START_MAX: Duration = Duration::from_secs(20);
const STOP_MAX: Duration = Duration::from_secs(5);

pub struct Peer {
    pub target: Target,
    child: Child,
}

impl Peer {
    /// Starts `command` by the shell, on these cores, and returns when it accepts connections.
    pub fn start(command: &str, workers: usize, cores: &Cores) -> Result<Self, String> {
        let fail = |what: &str| format!("{command}: {what}");
        let (address, port, socket) = free_address(command).map_err(|e| fail(&e.to_string()))?;
        let filled = as_root(command, getuid().is_root())
            .replace("{port}", &port.to_string())
            .replace("{worker_ports}", &(port + 1).to_string())
            .replace("{socket}", &socket.to_string_lossy());
        let own_cores = Cores::current().map_err(|e| fail(&e.to_string()))?;
        cores.pin().map_err(|e| fail(&format!("cores {:?}: {e}", cores.0)))?;
        let child = Command::new("sh")
            .args(["-c", &format!("exec {filled}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        own_cores.pin().map_err(|e| fail(&e.to_string()))?;
        let own_ports = command
            .contains("{worker_ports}")
            .then_some(OwnPorts { base: port + 1, workers: workers as u16 });
        if own_ports.is_some() && !workers.is_power_of_two() {
            return Err(fail("{worker_ports} needs a power of two of --threads"));
        }
        let protocol = speaks_resp(command).then_some(Protocol::Resp);
        let target = Target { protocol, own_ports, ..address.clone().into() };
        let mut peer = Self { target, child: child.map_err(|e| fail(&e.to_string()))? };
        let deadline = Instant::now() + START_MAX;
        while peer.target.connect(&address).is_err() {
            if let Ok(Some(status)) = peer.child.try_wait() {
                return Err(fail(&format!("ended at once, {status}")));
            }
            if Instant::now() > deadline {
                return Err(fail("does not accept connections"));
            }
            sleep(Duration::from_millis(5));
        }
        Ok(peer)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let pid = Pid::from_child(&self.child);
        let asked = kill_process(pid, Signal::TERM);
        let deadline = Instant::now() + STOP_MAX;
        while asked.is_ok() && Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            sleep(Duration::from_millis(2));
        }
        if let Err(error) = self.child.kill().and_then(|()| self.child.wait()) {
            eprintln!("server {}: {error}", self.child.id());
        }
    }
}

/// A port that was free a moment ago, and the address that the command will listen on.
fn free_address(command: &str) -> std::io::Result<(Address, u16, PathBuf)> {
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let port = address.port();
    let socket = std::env::temp_dir().join(format!("mbal-bench-{port}.sock"));
    let unix = command.contains("{socket}");
    Ok((if unix { Address::Unix(socket.clone()) } else { Address::Tcp(address) }, port, socket))
}

fn speaks_resp(command: &str) -> bool {
    let program = command.split_ascii_whitespace().next().unwrap_or("");
    ["redis-server", "valkey-server"].iter().any(|name| program.ends_with(name))
}

/// memcached refuses to run as root unless told that root is meant.
fn as_root(command: &str, root: bool) -> String {
    let mut words = command.split_ascii_whitespace();
    let memcached = words
        .next()
        .is_some_and(|program| program == "memcached" || program.ends_with("/memcached"));
    let told = words.any(|word| word.starts_with("-u") || word.starts_with("--user"));
    if root && memcached && !told { format!("{command} -u root") } else { command.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_memcached_of_root_without_user_is_given_one() {
        assert_eq!(as_root("memcached -m 64", true), "memcached -m 64 -u root");
        assert_eq!(as_root("/usr/bin/memcached", true), "/usr/bin/memcached -u root");
        for (command, root) in
            [("memcached -u nobody", true), ("memcached", false), ("mbal serve", true)]
        {
            assert_eq!(as_root(command, root), command);
        }
    }

    #[test]
    fn a_command_that_ends_is_an_error_at_once() {
        let error = Peer::start("false", 1, &Cores::current().unwrap()).err().unwrap();
        assert!(error.contains("ended at once"), "{error}");
    }
}
