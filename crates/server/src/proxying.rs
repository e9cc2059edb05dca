//! `mbal proxy`: sockets, signals and the thread around `mbal_proxy`.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{self, SyncSender};
use std::thread;
use std::time::Duration;

use mbal_proxy::{Proxy, Settings, SwitchTask};
use mbal_reactor::process::{self, Signals};
use mbal_reactor::socket::{bind_udp, listen_tcp, listen_unix};
use mbal_reactor::watchdog;
use mbal_reactor::{
    Clock, Ended, Guest, Listener, Mailbox, ProxyLetter, ProxyLoop, Tally, TlsAcceptor, TlsDoor,
};
use mbal_worker::TlsSettings;

use crate::listening::{open, write_port_file};
use crate::upstreams::{Descriptors, LOOKS_MAX, Look, follow};
#[cfg(feature = "xdp")]
use crate::xdp::Xdp;
use crate::{
    Interface, Listen, StartError, UnixSocket, Upstreams, log, proxy_metrics, scrapes, tls,
};

/// Everything that `mbal proxy` is told.
pub struct ProxyConfig {
    /// The servers in it are those of `upstreams`.
    pub settings: Settings,
    /// They are read again at SIGHUP; with `peers` they stay as they are.
    pub upstreams: Upstreams,
    /// And so often.
    pub poll: Option<Duration>,
    /// Of all proxies of [`Settings::peers`], in their order.
    pub peers: Vec<SocketAddr>,
    pub listen: Vec<Listen>,
    pub unix_socket: Option<UnixSocket>,
    /// Where datagrams are received.
    pub udp: Vec<Listen>,
    /// Of clients, by the sockets that `listen` marks.
    pub tls: TlsSettings,
    /// Where metrics are told, over HTTP.
    pub metrics: Option<Listen>,
    /// Where the ports are written that were taken.
    pub port_file: Option<PathBuf>,
    pub connections_max: u32,
    pub backlog: i32,
    /// The kernel's data plane: `peers` is empty.
    pub xdp: Option<XdpConfig>,
}

/// Reads by UDP are sent on, or answered, by a packet program.
pub struct XdpConfig {
    /// Clients and upstreams are reached through this one.
    pub interface: String,
    /// Upstreams have the address, too, that clients send to: packets keep their destination.
    pub direct_return: bool,
}

/// A proxy whose sockets are open.
pub struct RunningProxy {
    pub addresses: Vec<SocketAddr>,
    pub metrics: Option<SocketAddr>,
    listener: Listener,
    mailbox: Mailbox<ProxyLetter>,
    /// Has the upstreams read again.
    look_again: SyncSender<Look>,
    door: Option<Arc<TlsDoor>>,
    thread: thread::JoinHandle<std::io::Result<()>>,
    socket_file: Option<PathBuf>,
}

pub fn start_proxy(config: ProxyConfig) -> Result<RunningProxy, StartError> {
    #[cfg(feature = "planted")]
    crate::chaos::plant_by_environment();
    let dialed = config.upstreams.addresses();
    let descriptors = Descriptors {
        clients: config.connections_max.into(),
        conns_per_server: config.settings.conns_per_server as u64,
    };
    // A peer is dialed twice, and comes as a client.
    let wanted = descriptors.for_upstreams(dialed.len() + 3 * config.peers.len());
    let limit = process::raise_descriptor_limit(wanted).map_err(StartError::System)?;
    if limit < wanted {
        return Err(StartError::Descriptors { wanted, limit });
    }
    let mut listeners: Vec<TcpListener> = Vec::new();
    let mut secured = Vec::new();
    for listen in &config.listen {
        let opened = open("TCP", "-p", listen, |at| listen_tcp(at, config.backlog))?;
        secured.extend(opened.iter().map(|_| listen.tls));
        listeners.extend(opened);
    }
    let mut datagrams: Vec<UdpSocket> = Vec::new();
    for listen in &config.udp {
        datagrams.extend(open("UDP", "-U", listen, |at| bind_udp(at, 1))?.into_iter().flatten());
    }
    let udp: Vec<SocketAddr> = datagrams.iter().filter_map(|at| at.local_addr().ok()).collect();
    #[cfg(not(feature = "xdp"))]
    if config.xdp.is_some() {
        let why = "--xdp: this program was built without it; cargo build --release -p mbal --features xdp";
        return Err(StartError::Xdp(why.into()));
    }
    #[cfg(feature = "xdp")]
    let xdp = match config.xdp {
        Some(xdp) => Some(Arc::new(Xdp::attach(xdp, &udp, &dialed, &config.settings)?)),
        None => None,
    };
    let door = match config.tls.enabled {
        true => {
            let door = tls::door(config.tls.clone(), &config.listen).map_err(StartError::Tls)?;
            Some(Arc::new(door))
        }
        false => None,
    };
    let addresses: Vec<SocketAddr> =
        listeners.iter().filter_map(|at| at.local_addr().ok()).collect();
    let mut doors: Vec<OwnedFd> = listeners.into_iter().map(OwnedFd::from).collect();
    if let Some(UnixSocket { path, mode }) = &config.unix_socket {
        let listener = listen_unix(path, *mode, config.backlog)
            .map_err(|error| StartError::Unix { path: path.clone(), user: None, error })?;
        doors.push(listener.into());
    }
    let mut scraped: Vec<TcpListener> = Vec::new();
    if let Some(listen) = &config.metrics {
        scraped = open("TCP", "--metrics", listen, |at| listen_tcp(at, config.backlog))?;
    }
    let metrics = scraped.first().and_then(|at| at.local_addr().ok());
    mbal_reactor::process::give_memory_back();
    let signals = Signals::take().map_err(StartError::System)?;
    let tally = Arc::new(Tally::new(1, config.connections_max as usize, false));
    let clock = Clock::start();
    let mailbox = Mailbox::new().map_err(StartError::System)?;
    let main = Mailbox::new().map_err(StartError::System)?;
    let listener = Listener::new(Vec::new(), signals, main, Vec::new(), Arc::clone(&tally), clock);
    let listener = listener.map_err(StartError::System)?;
    let (asked, counted, limit) = (mailbox.clone(), Arc::clone(&tally), config.connections_max);
    let started = unix_seconds();
    let shaken = door.clone();
    #[cfg(feature = "xdp")]
    let plane = xdp.clone();
    let page = move || {
        let stats = proxy_metrics::ask(&asked);
        let page = proxy_metrics::page(stats.as_ref(), &counted, limit, shaken.as_deref(), started);
        #[cfg(feature = "xdp")]
        let page = page + &plane.as_ref().map_or(String::new(), |plane| plane.page());
        page
    };
    scrapes::serve(scraped, page).map_err(StartError::System)?;
    let mut upstreams = config.upstreams;
    if !config.peers.is_empty() {
        upstreams.stay();
    }
    let mut others = config.peers;
    let own = config.settings.peers.as_ref().map(|peers| others.remove(peers.own));
    let peer_doors = match own {
        Some(own) => {
            let interface = Interface::Named(own.ip().to_string());
            let listen = Listen { interface, port: own.port(), tls: None };
            open("TCP", "--self", &listen, |at| listen_tcp(at, config.backlog))?
        }
        None => Vec::new(),
    };
    let peer_doors = peer_doors.into_iter().map(OwnedFd::from).collect();
    let proxy = Proxy::new(config.settings);
    #[cfg(feature = "xdp")]
    let proxy = match &xdp {
        Some(xdp) => proxy.with_kernel(xdp.answer_bytes_max()),
        None => proxy,
    };
    let (look_again, looks) = mpsc::sync_channel(LOOKS_MAX);
    let names = look_again.clone();
    let tasks = look_again.clone();
    // One question at a time: each that comes meanwhile finds its answer in that one's.
    let is_asked = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&is_asked);
    let names_wanted = move || {
        if !asked.swap(true, Relaxed) {
            // Where it is full, all names are looked up soon.
            names.try_send(Look::Names).unwrap_or(());
        }
    };
    // A thread of its own does it; where that has too much to do, the tool hears so.
    let own = mailbox.clone();
    let switch_tasks = move |task: SwitchTask| {
        let number = task.number;
        if tasks.try_send(Look::Switch(task)).is_err() {
            own.post(ProxyLetter::Do(Box::new(move |proxy| {
                let now = proxy.now();
                proxy.switch_done(now, number, Err("too much waits for its upstreams".into()));
            })));
        }
    };
    let mut event_loop =
        ProxyLoop::new(proxy, doors, dialed, mailbox.clone(), Arc::clone(&tally), clock)
            .map(|event_loop| event_loop.with_names(Box::new(names_wanted)))
            .map(|event_loop| event_loop.with_switch_tasks(Box::new(switch_tasks)))
            .and_then(|event_loop| event_loop.with_datagrams(datagrams))
            .and_then(|event_loop| event_loop.with_peers(peer_doors, &others))
            .map_err(StartError::System)?;
    if let Some(door) = &door {
        let tls_acceptor = greet(&mailbox, &tally, clock).map_err(StartError::System)?;
        event_loop = event_loop.secured(secured, Arc::clone(door), tls_acceptor);
    }
    #[cfg(feature = "xdp")]
    if let Some(xdp) = &xdp {
        let kernel = xdp.start(mailbox.clone(), clock).map_err(StartError::System)?;
        event_loop = event_loop.with_kernel(kernel);
    }
    watchdog::start().map_err(StartError::System)?;
    let thread = thread::Builder::new().name("mbal-proxy".into());
    let thread = thread.spawn(move || event_loop.run()).map_err(StartError::System)?;
    follow(upstreams, looks, is_asked, mailbox.clone(), descriptors, config.poll)
        .map_err(StartError::System)?;
    let socket_file = config.unix_socket.map(|socket| socket.path);
    if let Some(path) = &config.port_file {
        write_port_file(path, &addresses, &udp, metrics, None).map_err(StartError::System)?;
    }
    Ok(RunningProxy {
        addresses,
        metrics,
        listener,
        mailbox,
        look_again,
        door,
        thread,
        socket_file,
    })
}

/// Starts the thread that shakes hands with those who come by TLS; where they are left for it.
fn greet(
    mailbox: &Mailbox<ProxyLetter>,
    tally: &Arc<Tally>,
    clock: Clock,
) -> std::io::Result<Mailbox<Guest>> {
    let tls_acceptor = TlsAcceptor::of_proxy(mailbox.clone(), Arc::clone(tally), clock)?;
    let inbox = tls_acceptor.inbox();
    thread::Builder::new().name("mbal-tls".into()).spawn(move || {
        process::give_way();
        tls_acceptor.run().expect("epoll fails only for want of kernel memory");
    })?;
    Ok(inbox)
}

fn unix_seconds() -> u64 {
    let since = std::time::UNIX_EPOCH.elapsed();
    since.map_or(0, |since| since.as_secs())
}

impl RunningProxy {
    /// Serves until a signal ends it.
    pub fn wait(self) -> Result<Ended, StartError> {
        let reload = || {
            self.look_again.send(Look::All).expect("its thread lives as long");
            let refreshed = self.door.as_ref().map_or(Ok(()), |door| door.refresh());
            if let Err(why) = refreshed {
                log::warn("certificates_not_read", &format!("mbal proxy: {why}"));
            }
        };
        let ended = self.listener.run(|| (), reload, || false).map_err(StartError::System)?;
        self.mailbox.post(ProxyLetter::Stop);
        let served = self.thread.join().expect("the proxy's thread does not panic");
        if let Some(path) = self.socket_file {
            drop(std::fs::remove_file(path));
        }
        served.map_err(StartError::System)?;
        Ok(ended)
    }
}
