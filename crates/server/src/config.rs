//! All that a server is told at its start, in one struct.

use std::path::PathBuf;
use std::time::Duration;

use mbal_balance::Mode;
use mbal_reactor::ClientCertificate;
use mbal_worker::Settings;

use crate::{ClusterConfig, MapFrom};

/// Everything that a server is told at its start; checked by whoever makes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What the workers see of it; the server fills in where it listens in the end.
    pub settings: Settings,
    /// TCP addresses; none with a unix socket.
    pub listen: Vec<Listen>,
    /// `-U`: where datagrams are taken, if anywhere.
    pub udp: Vec<Listen>,
    pub unix_socket: Option<UnixSocket>,
    /// Worker i listens on this port + i too, on the interfaces of `listen`.
    pub worker_ports: Option<u16>,
    /// Bind each worker to a core of its own.
    pub pin: bool,
    pub login: Login,
    /// `-u`: whom to become if started as root.
    pub user: Option<String>,
    pub daemon: bool,
    pub pid_file: Option<PathBuf>,
    pub core_dumps: bool,
    pub lock_memory: bool,
    pub balance: BalanceConfig,
    pub control: Control,
    /// `--metrics`: where scrapers ask, over HTTP.
    pub metrics: Option<Listen>,
    /// `--http`: where the web page is served.
    pub http: Option<Listen>,
    /// `--cluster`: other servers, and who has which cachelets; `None` is a server alone.
    pub cluster: Option<ClusterConfig>,
    /// Where to write the ports that were taken, for whoever asked for any free one.
    pub port_file: Option<PathBuf>,
}

impl Config {
    /// Who shares the keys with others cannot answer for them before there is a map and a way to the others.
    pub(crate) fn opens_later(&self) -> bool {
        self.cluster.is_some()
    }

    /// Where other servers dial: the address that they are told, or another port on all interfaces.
    pub(crate) fn link_place(&self) -> Option<Listen> {
        let cluster = self.cluster.as_ref()?;
        let (interface, port) = match (&cluster.map, cluster.link_port) {
            (MapFrom::File { .. }, Some(port)) => (Interface::All, port),
            (MapFrom::File { cluster, here }, None) => {
                let address = cluster.servers[here].link.as_ref()?;
                (Interface::Named(address.host.clone()), address.port)
            }
            (MapFrom::Coordinator(_), port) => {
                let is_local = self.listen.iter().all(|one| one.interface == Interface::Loopback);
                let interface =
                    if is_local { Interface::Named("127.0.0.1".into()) } else { Interface::All };
                (interface, port.unwrap_or(0))
            }
        };
        Some(Listen { interface, port, tls: None })
    }

    /// By which names with a dot browsers may call the page: this machine's own, and the one that it listens by.
    pub(crate) fn page_names(&self) -> Vec<String> {
        let own = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
        let own = own.map(|name| name.trim().to_owned());
        let named = self.http.as_ref().and_then(|listen| match &listen.interface {
            Interface::Named(name) => Some(name.clone()),
            Interface::All | Interface::Loopback => None,
        });
        own.into_iter().chain(named).collect()
    }

    /// The interfaces that were named, by comma; `None` is all or loopback.
    pub(crate) fn interfaces(&self) -> Option<String> {
        let named: Vec<&str> = self
            .listen
            .iter()
            .filter_map(|listen| match &listen.interface {
                Interface::Named(name) => Some(name.as_str()),
                Interface::All | Interface::Loopback => None,
            })
            .collect();
        (!named.is_empty()).then(|| named.join(","))
    }
}

/// Who may use the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Login {
    NotAsked,
    /// `-S`: names and passwords of this file, read whenever somebody logs in; while it is missing nobody can.
    Sasl(PathBuf),
    /// `-Y`: likewise, read at the start and at SIGHUP.
    Text(PathBuf),
}

/// How a server balances itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BalanceConfig {
    pub mode: Mode,
    pub epoch: Duration,
    /// The load that a worker may have, as a fraction of its time.
    pub load_max: f64,
    /// Epochs in a row before anything is done.
    pub patience: u32,
    /// Owners changed and connections handed over at random, a second; for tests.
    pub chaos: u32,
}

/// Where operators on this host reach the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    Off,
    /// By what is served, see [`crate::control_paths`]; if that cannot be had, the server does without.
    Default,
    Path(PathBuf),
}

/// Where to listen; port 0 is any free one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    pub interface: Interface,
    pub port: u16,
    /// `None` for `notls:`, without TLS whatever the others have. Where TLS is off it says nothing.
    pub tls: Option<ClientCertificate>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Interface {
    All,
    Loopback,
    /// An address or a host's name.
    Named(String),
}

impl Interface {
    /// Whoever listens here listens there, too. Of two names it is not known whose addresses they are.
    pub fn covers(&self, other: &Interface) -> bool {
        self == other || *self == Interface::All
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnixSocket {
    pub path: PathBuf,
    /// `-a`: permissions of the socket's file.
    pub mode: u32,
}
