//! `mbal proxy`: sockets, signals and the thread around `mbal_proxy`.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use mbal_proxy::{Proxy, Settings};
use mbal_reactor::process::{self, Signals};
use mbal_reactor::socket::{listen_tcp, listen_unix};
use mbal_reactor::{Clock, Ended, Listener, Mailbox, ProxyLetter, ProxyLoop, Tally};

use crate::listening::open;
use crate::{Listen, StartError, UnixSocket};

/// Descriptors beside those of clients and upstreams.
const BESIDE: u64 = 64;

/// Everything that `mbal proxy` is told.
pub struct ProxyConfig {
    pub settings: Settings,
    /// Of each upstream: where it is dialed.
    pub addresses: Vec<SocketAddr>,
    pub listen: Vec<Listen>,
    pub unix_socket: Option<UnixSocket>,
    pub connections_max: u32,
    pub backlog: i32,
}

/// A proxy whose sockets are open.
pub struct RunningProxy {
    pub addresses: Vec<SocketAddr>,
    listener: Listener,
    mailbox: Mailbox<ProxyLetter>,
    thread: thread::JoinHandle<std::io::Result<()>>,
    socket_file: Option<PathBuf>,
}

/// Where an upstream is dialed: IPv4 first.
pub fn resolve(host: &str, port: u16) -> Result<SocketAddr, String> {
    let found = (host, port).to_socket_addrs().map_err(|error| format!("{host}: {error}"))?;
    let (v4, v6): (Vec<_>, Vec<_>) = found.partition(SocketAddr::is_ipv4);
    v4.into_iter().chain(v6).next().ok_or_else(|| format!("{host}: no such host"))
}

pub fn start_proxy(config: ProxyConfig) -> Result<RunningProxy, StartError> {
    let conns = 2 * config.addresses.len() * config.settings.conns_per_server;
    let wanted = u64::from(config.connections_max) + conns as u64 + BESIDE;
    let limit = process::raise_descriptor_limit(wanted).map_err(StartError::System)?;
    if limit < wanted {
        return Err(StartError::Descriptors { wanted, limit });
    }
    let mut listeners: Vec<TcpListener> = Vec::new();
    for listen in &config.listen {
        listeners.extend(open("TCP", "-p", listen, |at| listen_tcp(at, config.backlog))?);
    }
    let addresses = listeners.iter().filter_map(|at| at.local_addr().ok()).collect();
    let mut doors: Vec<OwnedFd> = listeners.into_iter().map(OwnedFd::from).collect();
    if let Some(UnixSocket { path, mode }) = &config.unix_socket {
        let listener = listen_unix(path, *mode, config.backlog)
            .map_err(|error| StartError::Unix { path: path.clone(), user: None, error })?;
        doors.push(listener.into());
    }
    let signals = Signals::take().map_err(StartError::System)?;
    let tally = Arc::new(Tally::new(1, config.connections_max as usize, false));
    let clock = Clock::start();
    let mailbox = Mailbox::new().map_err(StartError::System)?;
    let main = Mailbox::new().map_err(StartError::System)?;
    let listener = Listener::new(Vec::new(), signals, main, Vec::new(), Arc::clone(&tally), clock);
    let listener = listener.map_err(StartError::System)?;
    let proxy = Proxy::new(config.settings);
    let event_loop = ProxyLoop::new(proxy, doors, config.addresses, mailbox.clone(), tally, clock)
        .map_err(StartError::System)?;
    let thread = thread::Builder::new().name("mbal-proxy".into());
    let thread = thread.spawn(move || event_loop.run()).map_err(StartError::System)?;
    let socket_file = config.unix_socket.map(|socket| socket.path);
    Ok(RunningProxy { addresses, listener, mailbox, thread, socket_file })
}

impl RunningProxy {
    /// Serves until a signal ends it.
    pub fn wait(self) -> Result<Ended, StartError> {
        let ended = self.listener.run(|| (), || (), || false).map_err(StartError::System)?;
        self.mailbox.post(ProxyLetter::Stop);
        let served = self.thread.join().expect("the proxy's thread does not panic");
        if let Some(path) = self.socket_file {
            drop(std::fs::remove_file(path));
        }
        served.map_err(StartError::System)?;
        Ok(ended)
    }
}
