//! Listening sockets, as memcached sets them up.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

use mbal_worker::{ConnInfo, Endpoint};

use crate::sys;
use mbal_model::planted::{Fault, is_planted};

/// A non-blocking listening socket; what it accepts inherits keep-alive and TCP_NODELAY.
pub fn listen_tcp(address: SocketAddr, backlog: i32) -> io::Result<TcpListener> {
    let fd = bound_tcp(address, true)?;
    sys::listen(fd.as_fd(), backlog)?;
    Ok(TcpListener::from(fd))
}

/// Likewise, but nobody can connect before it is told to [`listen`], and nobody else can take its port meanwhile.
pub fn hold_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    // Of sockets that reuse addresses several may be bound to the same one while none of them listens. This one does not reuse its own
    // while it waits.
    match bound_tcp(address, false) {
        // Connections of a server that has ended may still linger there.
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let fd = bound_tcp(address, true)?;
            sys::set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, &0)?;
            Ok(TcpListener::from(fd))
        }
        bound => bound.map(TcpListener::from),
    }
}

/// From now on clients can connect.
pub fn listen(socket: BorrowedFd, backlog: i32) -> io::Result<()> {
    // The kernel looks again who has the port, and so do those who come after this server.
    sys::switch_on(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR)?;
    sys::listen(socket, backlog)
}

fn bound_tcp(address: SocketAddr, reuses: bool) -> io::Result<OwnedFd> {
    let fd = sys::socket(family(address), libc::SOCK_STREAM)?;
    if reuses {
        sys::switch_on(fd.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR)?;
    }
    sys::switch_on(fd.as_fd(), libc::SOL_SOCKET, libc::SO_KEEPALIVE)?;
    sys::switch_on(fd.as_fd(), libc::IPPROTO_TCP, libc::TCP_NODELAY)?;
    bind(&fd, address)?;
    Ok(fd)
}

/// `count` non-blocking sockets at one address, over which the kernel spreads the senders.
pub fn bind_udp(address: SocketAddr, count: usize) -> io::Result<Vec<UdpSocket>> {
    // Sockets that share a port do not notice a stranger who shares it too: one that does not share
    // asks first, and finds a port if any will do.
    let alone = sys::socket(family(address), libc::SOCK_DGRAM)?;
    bind(&alone, address)?;
    let alone = UdpSocket::from(alone);
    let address = alone.local_addr()?;
    drop(alone);
    let one = |_| {
        let fd = sys::socket(family(address), libc::SOCK_DGRAM)?;
        sys::switch_on(fd.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT)?;
        bind(&fd, address)?;
        Ok(UdpSocket::from(fd))
    };
    (0..count).map(one).collect()
}

fn family(address: SocketAddr) -> libc::c_int {
    if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }
}

fn bind(fd: &OwnedFd, address: SocketAddr) -> io::Result<()> {
    if address.is_ipv6() {
        // IPv4 has a socket of its own.
        sys::switch_on(fd.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_V6ONLY)?;
    }
    match sockaddr(address) {
        // SAFETY: it is a sockaddr_in, set in full.
        Sockaddr::V4(name) => unsafe { sys::bind(fd.as_fd(), &name, size_of_val(&name)) },
        // SAFETY: it is a sockaddr_in6, set in full.
        Sockaddr::V6(name) => unsafe { sys::bind(fd.as_fd(), &name, size_of_val(&name)) },
    }
}

/// A connection that is being made: the socket is writable when it is there, or has failed.
pub(crate) fn connect_tcp(address: SocketAddr) -> io::Result<OwnedFd> {
    let fd = sys::socket(family(address), libc::SOCK_STREAM)?;
    sys::switch_on(fd.as_fd(), libc::IPPROTO_TCP, libc::TCP_NODELAY)?;
    let connected = match sockaddr(address) {
        // SAFETY: it is a sockaddr_in, set in full.
        Sockaddr::V4(name) => unsafe { sys::connect(fd.as_fd(), &name, size_of_val(&name)) },
        // SAFETY: it is a sockaddr_in6, set in full.
        Sockaddr::V6(name) => unsafe { sys::connect(fd.as_fd(), &name, size_of_val(&name)) },
    };
    match connected {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(fd),
    }
}

/// So long nobody says anything on a connection to an upstream before the kernel asks whether it is there: a firewall on the way
/// forgets connections that nobody uses.
const UPSTREAM_IDLE_SECONDS: libc::c_int = 10;
/// And again so often, so many times.
const UPSTREAM_ASK_SECONDS: libc::c_int = 3;
const UPSTREAM_ASKS: libc::c_int = 3;

/// Likewise, to an upstream of a proxy. However it is closed, at the end of the process too, the kernel does not go on sending.
pub(crate) fn connect_upstream(address: SocketAddr) -> io::Result<OwnedFd> {
    let fd = connect_tcp(address)?;
    let socket = fd.as_fd();
    if !is_planted(Fault::ClosedInOrder) {
        sys::reset_when_closed(socket)?;
    }
    sys::switch_on(socket, libc::SOL_SOCKET, libc::SO_KEEPALIVE)?;
    for (option, value) in [
        (libc::TCP_KEEPIDLE, UPSTREAM_IDLE_SECONDS),
        (libc::TCP_KEEPINTVL, UPSTREAM_ASK_SECONDS),
        (libc::TCP_KEEPCNT, UPSTREAM_ASKS),
    ] {
        sys::set_option(socket, libc::IPPROTO_TCP, option, &value)?;
    }
    Ok(fd)
}

enum Sockaddr {
    V4(libc::sockaddr_in),
    V6(libc::sockaddr_in6),
}

fn sockaddr(address: SocketAddr) -> Sockaddr {
    match address {
        SocketAddr::V4(v4) => Sockaddr::V4(libc::sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: v4.port().to_be(),
            sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
            sin_zero: [0; 8],
        }),
        SocketAddr::V6(v6) => Sockaddr::V6(libc::sockaddr_in6 {
            sin6_family: libc::AF_INET6 as libc::sa_family_t,
            sin6_port: v6.port().to_be(),
            sin6_flowinfo: v6.flowinfo(),
            sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
            sin6_scope_id: v6.scope_id(),
        }),
    }
}

/// The other end of a connection, for people.
pub(crate) fn peer_name(fd: BorrowedFd) -> Option<String> {
    match sys::peer_of(fd).ok()? {
        sys::SocketName::Ip(address) => Some(address.to_string()),
        sys::SocketName::Unix(_) => None,
    }
}

/// A listening unix socket at `path` with the permissions `mode`.
///
/// A socket that was left there is replaced; a file of another kind is in the way, and an error.
/// Sets the process's umask for a moment, so it is called before there are threads.
pub fn listen_unix(path: &Path, mode: u32, backlog: i32) -> io::Result<UnixListener> {
    let listener = hold_unix(path, mode)?;
    sys::listen(listener.as_fd(), backlog)?;
    Ok(listener)
}

/// Likewise, but nobody can connect before it is told to [`listen`].
pub fn hold_unix(path: &Path, mode: u32) -> io::Result<UnixListener> {
    let name = unix_name(path)?;
    if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        fs::remove_file(path)?;
    }
    let fd: OwnedFd = sys::socket(libc::AF_UNIX, libc::SOCK_STREAM)?;
    let before = sys::umask(!mode & 0o777);
    // SAFETY: `name` is a sockaddr_un, set in full.
    let bound = unsafe { sys::bind(fd.as_fd(), &name, size_of_val(&name)) };
    sys::umask(before);
    bound?;
    Ok(UnixListener::from(fd))
}

/// Whether somebody listens at `path`. Never waits for him.
pub fn is_served(path: &Path) -> io::Result<bool> {
    let name = unix_name(path)?;
    let fd = sys::socket(libc::AF_UNIX, libc::SOCK_STREAM)?;
    // SAFETY: `name` is a sockaddr_un, set in full.
    let error = match unsafe { sys::connect(fd.as_fd(), &name, size_of_val(&name)) } {
        Ok(()) => return Ok(true),
        Err(error) => error,
    };
    match error.kind() {
        // As many wait there already as may.
        io::ErrorKind::WouldBlock => Ok(true),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => Ok(false),
        _ => Err(error),
    }
}

fn unix_name(path: &Path) -> io::Result<libc::sockaddr_un> {
    let bytes = path.as_os_str().as_bytes();
    let mut name =
        libc::sockaddr_un { sun_family: libc::AF_UNIX as libc::sa_family_t, sun_path: [0; 108] };
    if bytes.is_empty() || name.sun_path.len() <= bytes.len() || bytes.contains(&0) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a unix socket's path has 1 to 107 bytes",
        ));
    }
    for (to, from) in name.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    Ok(name)
}

/// Who is at the other end of a connection; `None` if that has gone already.
pub(crate) fn info(fd: BorrowedFd) -> Option<ConnInfo> {
    let peer = sys::peer_of(fd).ok()?;
    let here = sys::name_of(fd).ok()?;
    Some(ConnInfo::new(fd.as_raw_fd() as u32, endpoint(&peer), endpoint(&here)))
}

/// A listening socket, as `stats conns` tells it.
pub fn listening_card(fd: BorrowedFd) -> io::Result<ConnInfo> {
    Ok(ConnInfo::listening(fd.as_raw_fd() as u32, endpoint(&sys::name_of(fd)?)))
}

/// A socket for datagrams, likewise.
pub fn datagrams_card(socket: &UdpSocket) -> io::Result<ConnInfo> {
    let at = Endpoint::Udp(socket.local_addr()?);
    Ok(ConnInfo::datagrams(socket.as_raw_fd() as u32, at))
}

fn endpoint(name: &sys::SocketName) -> Endpoint {
    match name {
        sys::SocketName::Ip(address) => Endpoint::Tcp(*address),
        sys::SocketName::Unix(path) => Endpoint::Unix(String::from_utf8_lossy(path).into_owned()),
    }
}
