//! Opens the sockets that a configuration asks for.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use mbal_reactor::socket::{bind_udp, listen_tcp, listen_unix};

use crate::control::default_path;
use crate::{Config, Control, Interface, Listen, StartError, UnixSocket, log};

/// The open sockets: the common ones, and those of each worker's own port.
pub(crate) struct Listening {
    pub(crate) common: Vec<OwnedFd>,
    pub(crate) of_worker: Vec<Vec<OwnedFd>>,
    /// Of `common`, and of each of `of_worker`: those that may have TLS.
    pub(crate) may_have_tls: Vec<bool>,
    pub(crate) own_may_have_tls: Vec<bool>,
    /// Each worker's sockets for datagrams.
    pub(crate) datagrams: Vec<Vec<UdpSocket>>,
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) udp_addresses: Vec<SocketAddr>,
    /// The first address of each worker's own port.
    pub(crate) worker_addresses: Vec<SocketAddr>,
    pub(crate) control: Option<UnixListener>,
    pub(crate) metrics: Vec<TcpListener>,
    /// Files that go when the server does.
    pub(crate) socket_files: Vec<SocketFile>,
}

impl Listening {
    pub(crate) fn open_tcp(config: &Config) -> Result<Listening, StartError> {
        let backlog = config.settings.backlog;
        let workers = usize::from(config.settings.workers);
        let mut common = Vec::new();
        let mut may_have_tls = Vec::new();
        let mut own_may_have_tls = Vec::new();
        let mut addresses = Vec::new();
        for listen in &config.listen {
            let flag = chosen_by(listen, "-p", "-p or -l");
            for listener in open("TCP", flag, listen, |address| listen_tcp(address, backlog))? {
                addresses.push(listener.local_addr().map_err(StartError::System)?);
                may_have_tls.push(!listen.plain);
                common.push(listener.into());
            }
        }
        let mut of_worker: Vec<Vec<OwnedFd>> = (0..workers).map(|_| Vec::new()).collect();
        let mut worker_addresses = Vec::new();
        if let Some(base) = config.worker_ports {
            for (own, port) in of_worker.iter_mut().zip(base..) {
                own_may_have_tls.clear();
                for listen in once_each(&config.listen) {
                    let listen = Listen { port, ..listen.clone() };
                    let bind = |address| listen_tcp(address, backlog);
                    let opened = open("TCP", "--worker-ports", &listen, bind)?;
                    if own.is_empty() {
                        worker_addresses.push(opened[0].local_addr().map_err(StartError::System)?);
                    }
                    own_may_have_tls.extend(opened.iter().map(|_| !listen.plain));
                    own.extend(opened.into_iter().map(OwnedFd::from));
                }
            }
        }
        let mut datagrams: Vec<Vec<UdpSocket>> = (0..workers).map(|_| Vec::new()).collect();
        let mut udp_addresses = Vec::new();
        for listen in &config.udp {
            let flag = chosen_by(listen, "-U", "-U or -l");
            for sockets in open("UDP", flag, listen, |address| bind_udp(address, workers))? {
                udp_addresses.push(sockets[0].local_addr().map_err(StartError::System)?);
                datagrams.iter_mut().zip(sockets).for_each(|(own, socket)| own.push(socket));
            }
        }
        let metrics = match &config.metrics {
            Some(listen) => {
                open("TCP", "--metrics", listen, |address| listen_tcp(address, backlog))?
            }
            None => Vec::new(),
        };
        Ok(Listening {
            common,
            of_worker,
            may_have_tls,
            own_may_have_tls,
            datagrams,
            addresses,
            udp_addresses,
            worker_addresses,
            control: None,
            metrics,
            socket_files: Vec::new(),
        })
    }

    pub(crate) fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics.first()?.local_addr().ok()
    }

    pub(crate) fn open_unix(&mut self, config: &Config) -> Result<(), StartError> {
        let Some(UnixSocket { path, mode }) = &config.unix_socket else { return Ok(()) };
        let listener = self.open_socket(path, *mode, config.settings.backlog)?;
        self.common.push(listener.into());
        Ok(())
    }

    /// For its user alone, who could do all of it by signals, too.
    pub(crate) fn open_control(&mut self, config: &Config) -> Result<(), StartError> {
        const MODE: u32 = 0o600;
        let backlog = config.settings.backlog;
        let port = self.addresses.first().map_or(0, SocketAddr::port);
        self.control = match &config.control {
            Control::Path(path) => Some(self.open_socket(path, MODE, backlog)?),
            // Without a port there is nothing that it could be found by.
            Control::Default if port != 0 => {
                let opened = self.open_socket(&default_path(port), MODE, backlog);
                if let (Err(error), true) = (&opened, config.settings.verbosity > 0) {
                    log::warn("no_control_socket", &format!("mbal: no control socket: {error}"));
                }
                opened.ok()
            }
            Control::Default | Control::Off => None,
        };
        Ok(())
    }

    fn open_socket(
        &mut self,
        path: &Path,
        mode: u32,
        backlog: i32,
    ) -> Result<UnixListener, StartError> {
        let failed = |error| StartError::Unix { path: path.to_owned(), error };
        let listener = listen_unix(path, mode, backlog).map_err(failed)?;
        // A daemon changes its folder: the path must hold until the end.
        let path = std::path::absolute(path).map_err(failed)?;
        let inode = inode_of(&path).map_err(failed)?;
        self.socket_files.push(SocketFile { path, inode });
        Ok(listener)
    }
}

/// `-l` may name a port of its own beside an interface.
fn chosen_by(listen: &Listen, flag: &'static str, or_l: &'static str) -> &'static str {
    match listen.interface {
        Interface::Named(_) => or_l,
        Interface::All | Interface::Loopback => flag,
    }
}

/// One place of each interface, however many ports it has, and none that another one covers.
fn once_each(places: &[Listen]) -> Vec<&Listen> {
    let mut kept: Vec<&Listen> = Vec::new();
    for place in places {
        if !kept.iter().any(|other| other.interface.covers(&place.interface)) {
            kept.retain(|other| !place.interface.covers(&other.interface));
            kept.push(place);
        }
    }
    kept
}

/// All addresses of an interface. One that the host does not have (no IPv6, say) is left out as
/// long as another one listens; a port that somebody else has is always an error.
fn open<S>(
    transport: &'static str,
    flag: &'static str,
    listen: &Listen,
    bind: impl Fn(SocketAddr) -> io::Result<S>,
) -> Result<Vec<S>, StartError> {
    let failed = |error| StartError::Listen { transport, flag, listen: listen.clone(), error };
    let mut listeners = Vec::new();
    let mut missing = None;
    for address in addresses_of(listen).map_err(failed)? {
        match bind(address) {
            Ok(listener) => listeners.push(listener),
            Err(error) if is_missing(&error) => missing = Some(error),
            Err(error) => return Err(failed(error)),
        }
    }
    match missing {
        Some(error) if listeners.is_empty() => Err(failed(error)),
        _ => Ok(listeners),
    }
}

fn addresses_of(listen: &Listen) -> io::Result<Vec<SocketAddr>> {
    let port = listen.port;
    Ok(match &listen.interface {
        Interface::All => {
            vec![(Ipv4Addr::UNSPECIFIED, port).into(), (Ipv6Addr::UNSPECIFIED, port).into()]
        }
        Interface::Loopback => {
            vec![(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into()]
        }
        Interface::Named(name) => (name.as_str(), port).to_socket_addrs()?.collect(),
    })
}

/// The host has no such address or no such family.
fn is_missing(error: &io::Error) -> bool {
    const EAFNOSUPPORT: i32 = 97;
    error.kind() == io::ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(EAFNOSUPPORT)
}

/// A unix socket's file, which goes when its server does.
pub(crate) struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl SocketFile {
    /// Removes the file, unless another server has put its own there meanwhile.
    pub(crate) fn remove(&self) {
        if inode_of(&self.path).is_ok_and(|inode| inode == self.inode) {
            // A file that cannot be removed is replaced by the next server as stale.
            drop(fs::remove_file(&self.path));
        }
    }
}

fn inode_of(path: &Path) -> io::Result<u64> {
    Ok(fs::symlink_metadata(path)?.ino())
}

/// Tells the ports that were taken, one line each, as memcached does for its own tests: the file
/// appears complete or not at all. Where metrics are told comes last.
pub(crate) fn write_port_file(path: &Path, listening: &Listening) -> io::Result<()> {
    let lines = |transport: &'static str, addresses: &[SocketAddr]| -> String {
        let line = |address: &SocketAddr| {
            let family = if address.is_ipv4() { "INET" } else { "INET6" };
            format!("{transport} {family}: {}\n", address.port())
        };
        addresses.iter().map(line).collect()
    };
    let mut lines = lines("TCP", &listening.addresses) + &lines("UDP", &listening.udp_addresses);
    if let Some(address) = listening.metrics_address() {
        lines.push_str(&format!("HTTP: {}\n", address.port()));
    }
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".lck");
    fs::write(&unfinished, lines)?;
    fs::rename(&unfinished, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workers_port_is_opened_once_on_each_interface() {
        let place = |name: &str, port| {
            let interface =
                if name == "*" { Interface::All } else { Interface::Named(name.into()) };
            Listen { interface, port, plain: false }
        };
        for (places, kept) in [
            (&["a", "b"][..], &[0, 1][..]),
            (&["a", "b", "a"], &[0, 1]),
            (&["a", "b", "*"], &[2]),
            (&["*", "a", "*"], &[0]),
        ] {
            let places: Vec<Listen> =
                places.iter().zip(5..).map(|(name, port)| place(name, port)).collect();
            let kept: Vec<&Listen> = kept.iter().map(|&at| &places[at]).collect();
            assert_eq!(once_each(&places), kept, "{places:?}");
        }
    }
}
