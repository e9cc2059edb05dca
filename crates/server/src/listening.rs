//! Opens the sockets that a configuration asks for.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, lchown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use mbal_reactor::socket::{
    bind_udp, hold_tcp, hold_unix, is_served, listen, listen_tcp, listen_unix,
};
use mbal_reactor::{ClientCertificate, Opening, process};

use crate::control_path::{Folder, Served, folders, is_socket, is_trusted, name, of_host, of_user};
use crate::{Config, Control, Interface, Listen, StartError, UnixSocket, log};

/// The open sockets: the common ones, and those of each worker's own port.
pub(crate) struct Listening {
    pub(crate) common: Vec<OwnedFd>,
    pub(crate) of_worker: Vec<Vec<OwnedFd>>,
    /// Of `common`, and of each of `of_worker`: what TLS asks of their clients, if there is TLS.
    pub(crate) secured: Vec<Option<ClientCertificate>>,
    pub(crate) own_secured: Vec<Option<ClientCertificate>>,
    /// Each worker's sockets for datagrams.
    pub(crate) datagrams: Vec<Vec<UdpSocket>>,
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) udp_addresses: Vec<SocketAddr>,
    /// The first address of each worker's own port.
    pub(crate) worker_addresses: Vec<SocketAddr>,
    pub(crate) control: Option<UnixListener>,
    /// Where operators reach the server, or why they do not.
    pub(crate) control_at: Result<String, String>,
    pub(crate) metrics: Vec<TcpListener>,
    /// Of the web page.
    pub(crate) http: Vec<TcpListener>,
    /// Where other servers dial.
    pub(crate) links: Vec<OwnedFd>,
    /// Whether clients are let in: those of a cluster wait until it can answer.
    pub(crate) is_open: Arc<AtomicBool>,
    /// Files that go when the server does.
    pub(crate) socket_files: Vec<SocketFile>,
}

impl Listening {
    pub(crate) fn open_tcp(config: &Config) -> Result<Listening, StartError> {
        let backlog = config.settings.backlog;
        let bind = |address| match config.opens_later() {
            true => hold_tcp(address),
            false => listen_tcp(address, backlog),
        };
        let workers = usize::from(config.settings.workers);
        let mut common = Vec::new();
        let mut secured = Vec::new();
        let mut own_secured = Vec::new();
        let mut addresses = Vec::new();
        for listen in &config.listen {
            let flag = chosen_by(listen, "-p", "-p or -l");
            for listener in open("TCP", flag, listen, bind)? {
                addresses.push(listener.local_addr().map_err(StartError::System)?);
                secured.push(listen.tls);
                common.push(listener.into());
            }
        }
        let mut of_worker: Vec<Vec<OwnedFd>> = (0..workers).map(|_| Vec::new()).collect();
        let mut worker_addresses = Vec::new();
        if let Some(base) = config.worker_ports {
            for (own, port) in of_worker.iter_mut().zip(base..) {
                let port = if base == 0 { 0 } else { port };
                own_secured.clear();
                for listen in once_each(&config.listen) {
                    let listen = Listen { port, ..listen.clone() };
                    let opened = open("TCP", "--worker-ports", &listen, bind)?;
                    if own.is_empty() {
                        worker_addresses.push(opened[0].local_addr().map_err(StartError::System)?);
                    }
                    own_secured.extend(opened.iter().map(|_| listen.tls));
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
        let for_browsers = |flag, listen: &Option<Listen>| match listen {
            Some(listen) => open("TCP", flag, listen, |address| listen_tcp(address, backlog)),
            None => Ok(Vec::new()),
        };
        let metrics = for_browsers("--metrics", &config.metrics)?;
        let http = for_browsers("--http", &config.http)?;
        let links = match config.link_place() {
            Some(listen) => {
                open("TCP", "--link-port", &listen, |address| listen_tcp(address, backlog))?
            }
            None => Vec::new(),
        };
        Ok(Listening {
            common,
            of_worker,
            secured,
            own_secured,
            datagrams,
            addresses,
            udp_addresses,
            worker_addresses,
            control: None,
            control_at: Err("off".into()),
            metrics,
            http,
            links: links.into_iter().map(OwnedFd::from).collect(),
            is_open: Arc::default(),
            socket_files: Vec::new(),
        })
    }

    /// What makes clients' sockets listen that do not yet: those that clients are told of by others come first.
    pub(crate) fn opening(&self, backlog: i32) -> io::Result<Box<Opening>> {
        let sockets = self.of_worker.iter().flatten().chain(&self.common);
        let sockets: Vec<OwnedFd> = sockets.map(OwnedFd::try_clone).collect::<io::Result<_>>()?;
        let is_open = Arc::clone(&self.is_open);
        Ok(Box::new(move || {
            for socket in &sockets {
                listen(socket.as_fd(), backlog).map_err(|error| {
                    let address = socket.try_clone().map(TcpListener::from);
                    let address = address.and_then(|listener| listener.local_addr());
                    let at = address.map_or(String::new(), |address| format!(" on {address}"));
                    io::Error::new(error.kind(), format!("failed to listen{at}: {error}"))
                })?;
            }
            is_open.store(true, Ordering::Release);
            log::info("open", "mbal: clients are let in");
            Ok(())
        }))
    }

    pub(crate) fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics.first()?.local_addr().ok()
    }

    pub(crate) fn http_address(&self) -> Option<SocketAddr> {
        self.http.first()?.local_addr().ok()
    }

    pub(crate) fn open_unix(&mut self, config: &Config) -> Result<(), StartError> {
        let Some(UnixSocket { path, mode }) = &config.unix_socket else { return Ok(()) };
        let failed = |error| StartError::Unix {
            path: path.to_owned(),
            user: config.user.clone().filter(|_| is_denied(&error)),
            error,
        };
        let listener = match config.opens_later() {
            true => hold_unix(path, *mode),
            false => listen_unix(path, *mode, config.settings.backlog),
        };
        let listener = listener.map_err(failed)?;
        self.socket_files.push(SocketFile::of(path).map_err(failed)?);
        self.common.push(listener.into());
        Ok(())
    }

    /// For its user alone, who could do all of it by signals, too.
    pub(crate) fn open_control(&mut self, config: &Config) -> Result<(), StartError> {
        let backlog = config.settings.backlog;
        let opened = match &config.control {
            Control::Off => Err("off".to_owned()),
            Control::Path(path) => {
                let failed = |error| StartError::Unix { path: path.to_owned(), user: None, error };
                let (listener, file) = claim(path, backlog).map_err(failed)?;
                self.socket_files.push(file);
                Ok((listener, path.display().to_string()))
            }
            Control::Default => self.claim_by_name(&self.served(config), backlog),
        };
        (self.control, self.control_at) = match opened {
            Ok((listener, path)) => (Some(listener), Ok(path)),
            Err(why) => (None, Err(why)),
        };
        Ok(())
    }

    fn served(&self, config: &Config) -> Vec<Served> {
        let unix = config.unix_socket.iter().map(|unix| Served::Unix(unix.path.clone()));
        self.addresses.iter().map(|&address| Served::Address(address)).chain(unix).collect()
    }

    /// In the first folder that will do. Further addresses are further names of the same socket.
    fn claim_by_name(
        &mut self,
        served: &[Served],
        backlog: i32,
    ) -> Result<(UnixListener, String), String> {
        let Some((first, others)) = served.split_first() else {
            return Err("nothing is served to name it by, --control names it".into());
        };
        let mut why = String::new();
        for folder in folders() {
            if let Err(error) = make(&folder) {
                why = format!("{}: {error}", folder.path.display());
                continue;
            }
            sweep(&folder.path);
            let path = folder.path.join(name(first));
            match claim(&path, backlog) {
                Ok((listener, file)) => {
                    self.socket_files.push(file);
                    for other in others {
                        let link = folder.path.join(name(other));
                        self.socket_files.extend(link_to(&path, &link).ok());
                    }
                    return Ok((listener, path.display().to_string()));
                }
                Err(error) => {
                    why = format!("{}: {error}", path.display());
                    // Operators would be answered by that one.
                    if error.kind() == io::ErrorKind::AddrInUse {
                        break;
                    }
                }
            }
        }
        Err(why)
    }
}

fn is_denied(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

/// Root, which is about to become `user`, makes him a folder of control sockets in the host's. That one stays root's: it may have sockets of
/// servers that are. Without it there may be another, and otherwise the server does without a control socket.
pub(crate) fn give_folder(config: &Config, (user, group): (u32, u32)) {
    if config.control == Control::Default && user != 0 {
        give_folder_in(of_host(), user, group);
    }
}

fn give_folder_in(host: Folder, user: u32, group: u32) {
    let folder = of_user(&host.path, user);
    let made = make(&host).and_then(|()| make(&folder));
    if made.is_ok() {
        drop(lchown(&folder.path, Some(user), Some(group)));
    }
}

/// Makes a folder of control sockets, unless it is there; an error if it is somebody else's.
pub(crate) fn make(folder: &Folder) -> io::Result<()> {
    let mode = if folder.of_host { 0o755 } else { 0o700 };
    match DirBuilder::new().mode(mode).create(&folder.path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ if is_trusted(folder) => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is somebody else's")),
    }
}

/// Removes the sockets of servers that were killed: those on any free port would never be replaced.
fn sweep(folder: &Path) {
    let Some(_lock) = lock(folder) else { return };
    let Ok(files) = fs::read_dir(folder) else { return };
    for path in files.flatten().map(|file| file.path()) {
        if is_socket(&path) && matches!(is_served(&path), Ok(false)) {
            // One that may not be removed is in nobody's way.
            drop(fs::remove_file(&path));
        }
    }
}

/// Takes the place of a control socket, but not from a server that lives.
fn claim(path: &Path, backlog: i32) -> io::Result<(UnixListener, SocketFile)> {
    const MODE: u32 = 0o600;
    let path = std::path::absolute(path)?;
    let _lock = path.parent().and_then(lock);
    refuse_if_served(&path)?;
    let listener = listen_unix(&path, MODE, backlog)?;
    Ok((listener, SocketFile::of(&path)?))
}

/// Gives a control socket one more name.
fn link_to(path: &Path, link: &Path) -> io::Result<SocketFile> {
    let _lock = link.parent().and_then(lock);
    refuse_if_served(link)?;
    if is_socket(link) {
        fs::remove_file(link)?;
    }
    fs::hard_link(path, link)?;
    SocketFile::of(link)
}

fn refuse_if_served(path: &Path) -> io::Result<()> {
    match is_served(path)? {
        true => Err(io::Error::new(io::ErrorKind::AddrInUse, "another server has it")),
        false => Ok(()),
    }
}

/// Two servers that look at the same time would both find that nobody lives there, and one that has a socket but does
/// not listen yet would look dead. The kernel takes the lock back from whoever ends. Whoever keeps it for no good
/// reason is not waited for any longer.
fn lock(folder: &Path) -> Option<File> {
    const TRIES: usize = 100;
    let folder = File::open(folder).ok()?;
    for _ in 0..TRIES {
        if process::try_lock(&folder).ok()? {
            return Some(folder);
        }
        thread::sleep(Duration::from_millis(10));
    }
    None
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
pub(crate) fn open<S>(
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

/// A unix socket's file, which goes when its server does, or when it does not come to start.
pub(crate) struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<SocketFile> {
        // A daemon changes its folder: the path must hold until the end.
        let path = std::path::absolute(path)?;
        let inode = inode_of(&path)?;
        Ok(SocketFile { path, inode })
    }
}

impl Drop for SocketFile {
    /// Removes the file, unless another server has put its own there meanwhile.
    fn drop(&mut self) {
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
/// appears complete or not at all. Where metrics are told, and where the page is, comes last.
pub(crate) fn write_port_file(
    path: &Path,
    tcp: &[SocketAddr],
    udp: &[SocketAddr],
    metrics: Option<SocketAddr>,
    page: Option<SocketAddr>,
) -> io::Result<()> {
    let lines = |transport: &'static str, addresses: &[SocketAddr]| -> String {
        let line = |address: &SocketAddr| {
            let family = if address.is_ipv4() { "INET" } else { "INET6" };
            format!("{transport} {family}: {}\n", address.port())
        };
        addresses.iter().map(line).collect()
    };
    let mut lines = lines("TCP", tcp) + &lines("UDP", udp);
    if let Some(address) = metrics {
        lines.push_str(&format!("HTTP: {}\n", address.port()));
    }
    if let Some(address) = page {
        lines.push_str(&format!("PAGE: {}\n", address.port()));
    }
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".lck");
    // What is left of a server that was killed; a link of somebody else's is not followed.
    drop(fs::remove_file(&unfinished));
    File::create_new(&unfinished)?.write_all(lines.as_bytes())?;
    fs::rename(&unfinished, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_root_has_stays_roots_when_a_server_becomes_another_user() {
        const NOBODY: u32 = 65_534;
        if !process::is_root() {
            return println!("SKIPPED: only root gives folders away");
        }
        let path = std::env::temp_dir().join(format!("mbal-given-{}", process::user_id()));
        drop(fs::remove_dir_all(&path));
        let host = Folder { path: path.clone(), of_host: true };
        give_folder_in(host, NOBODY, NOBODY);
        let owner = |path: &Path| fs::metadata(path).unwrap().uid();
        assert_eq!(owner(&path), 0);
        assert_eq!(owner(&of_user(&path, NOBODY).path), NOBODY);
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn a_link_in_the_place_of_an_unfinished_file_is_not_followed() {
        let folder = std::env::temp_dir().join(format!("mbal-lck-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (path, victim) = (folder.join("ports"), folder.join("victim"));
        fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, folder.join("ports.lck")).unwrap();
        write_port_file(&path, &["127.0.0.1:7".parse().unwrap()], &[], None, None).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "TCP INET: 7\n");
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_workers_port_is_opened_once_on_each_interface() {
        let place = |name: &str, port| {
            let interface =
                if name == "*" { Interface::All } else { Interface::Named(name.into()) };
            Listen { interface, port, tls: Some(ClientCertificate::AsConfigured) }
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
