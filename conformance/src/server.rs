//! Server processes of our own, each on an address of its own, ended when they are dropped.

use crate::cluster::{Cluster, Files};
use crate::peer::{Address, await_listener};
use std::collections::BTreeSet;
use std::net::{TcpListener, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How to start a server: a command line without addresses, such as `memcached -u root -t 4`.
#[derive(Clone, Debug)]
pub struct Launch {
    pub command: Vec<String>,
    /// On a unix socket rather than on TCP.
    pub unix: bool,
    /// Several servers that share the keys, of which clients know one.
    pub cluster: Option<Cluster>,
}

pub struct Server {
    /// The one that clients know comes first.
    children: Vec<Child>,
    pub address: Address,
    _files: Option<Files>,
}

/// One of a cluster waits for the others first.
const LISTENS_WITHIN: Duration = Duration::from_secs(10);

static STARTED: AtomicU32 = AtomicU32::new(0);

impl Launch {
    pub fn new(command: &str, unix: bool) -> Launch {
        let command = command.split_whitespace().map(str::to_string).collect();
        Launch { command, unix, cluster: None }
    }

    /// Likewise, as one of the servers of a cluster.
    pub fn in_cluster(self, cluster: Option<Cluster>) -> Launch {
        Launch { cluster, ..self }
    }

    /// Starts the server with `flags` added and waits until it listens.
    pub fn start(&self, flags: &[String]) -> Result<Server, String> {
        // A free port can be taken by somebody else between our look and the server's bind.
        let mut last = String::new();
        for _ in 0..5 {
            match self.try_start(flags) {
                Ok(server) => return Ok(server),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Likewise, with datagrams served at the port that comes along.
    pub fn start_with_udp(&self) -> Result<(Server, u16), String> {
        let mut last = String::new();
        for _ in 0..5 {
            let port = free_udp_port();
            match self.try_start(&["-U".to_string(), port.to_string()]) {
                Ok(server) => return Ok((server, port)),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn try_start(&self, flags: &[String]) -> Result<Server, String> {
        let Some(cluster) = &self.cluster else { return self.start_one(flags) };
        let mut files = Files::write(cluster, &self.command[0], free_port)?;
        let mut started: Vec<Server> = Vec::new();
        for id in cluster.ids() {
            // Datagrams are served where clients ask.
            let own: &[String] = if started.is_empty() { flags } else { without_udp(flags) };
            let flags = [own, &files.flags(id)].concat();
            // None lets clients in before all have come.
            started.push(self.begin_one(&flags)?);
        }
        for server in &mut started {
            self.await_one(server)?;
        }
        let mut started = started.into_iter();
        let mut server = started.next().expect("a cluster has servers");
        started.for_each(|other| server.absorb(other));
        Cluster::await_links(&server.address)?;
        files.begin_to_move(cluster);
        server._files = Some(files);
        Ok(server)
    }

    /// One server, without a cluster of its own: no other try if it cannot have its address.
    pub fn start_one(&self, flags: &[String]) -> Result<Server, String> {
        let mut server = self.begin_one(flags)?;
        self.await_one(&mut server)?;
        Ok(server)
    }

    /// Likewise, without waiting until it listens.
    pub fn begin_one(&self, flags: &[String]) -> Result<Server, String> {
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]).args(flags);
        let address = if self.unix {
            let number = STARTED.fetch_add(1, Ordering::Relaxed);
            let path =
                std::env::temp_dir().join(format!("conformance.{}.{number}", std::process::id()));
            let path = path.to_string_lossy().into_owned();
            command.args(["-s", &path]);
            Address::Unix(path)
        } else {
            let port = free_port();
            command.args(["-l", "127.0.0.1", "-p", &port.to_string()]);
            Address::Tcp(port)
        };
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // That file is of the server that a test has started itself.
        command.env_remove("MEMCACHED_PORT_FILENAME");
        let child = spawn(&mut command).map_err(|error| format!("{:?}: {error}", self.command))?;
        Ok(Server { children: vec![child], address, _files: None })
    }

    fn await_one(&self, server: &mut Server) -> Result<(), String> {
        await_listener(&server.address, LISTENS_WITHIN)
            .map_err(|error| format!("{:?} does not listen: {error}", self.command))?;
        match server.children[0].try_wait() {
            Ok(None) => Ok(()),
            other => Err(format!("{:?} ended: {other:?}", self.command)),
        }
    }
}

impl Server {
    pub fn is_running(&mut self) -> bool {
        self.children.iter_mut().all(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// From now on the other is a part of this one.
    fn absorb(&mut self, mut other: Server) {
        self.children.append(&mut other.children);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for child in &mut self.children {
            child.kill().ok();
            child.wait().ok();
        }
        if let Address::Unix(path) = &self.address {
            std::fs::remove_file(path).ok();
        }
    }
}

/// The flags up to `-U`, which the harness puts last.
fn without_udp(flags: &[String]) -> &[String] {
    let end = flags.iter().position(|flag| flag == "-U").unwrap_or(flags.len());
    &flags[..end]
}

/// A port that was free just now, and no other thread's: two servers that were to listen at the same one would both
/// seem to, and whoever talks to the first loses it when the other's script is done.
pub fn free_port() -> u16 {
    let mut given = given();
    loop {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("loopback has a free port");
        let port = listener.local_addr().expect("a bound socket has an address").port();
        if given.insert(port) {
            return port;
        }
    }
}

/// Begins a process, while no port is tried: until it has begun, it has what this process has open, so that somebody would
/// listen at a port that was just found free, and leave.
pub fn spawn(command: &mut Command) -> std::io::Result<Child> {
    let _none_is_tried = given();
    command.spawn()
}

/// The ports that were given.
fn given() -> MutexGuard<'static, BTreeSet<u16>> {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    GIVEN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn free_udp_port() -> u16 {
    let socket = UdpSocket::bind(("127.0.0.1", 0)).expect("loopback has a free port");
    socket.local_addr().expect("a bound socket has an address").port()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_servers_are_told_the_same_port() {
        let ports: BTreeSet<u16> = (0..2000).map(|_| free_port()).collect();
        assert_eq!(ports.len(), 2000);
    }

    #[test]
    fn nobody_listens_at_a_port_that_is_free_while_processes_begin() {
        use std::net::TcpStream;
        use std::sync::atomic::AtomicBool;

        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let mut child = spawn(&mut Command::new("true")).expect("it is there");
                    child.wait().expect("it has begun");
                }
            });
            let listening = (0..2000).map(|_| free_port()).filter(|port| {
                // A socket may find itself there.
                TcpStream::connect(("127.0.0.1", *port))
                    .is_ok_and(|found| found.local_addr().ok() != found.peer_addr().ok())
            });
            let listening = listening.count();
            over.store(true, Ordering::Relaxed);
            assert_eq!(listening, 0);
        });
    }
}
