//! Where a server listens, and a connection to it that does not block.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use mbal_dial::{Access, Server, Tls};

use crate::follow::Routes;
use crate::wording::Protocol;

#[derive(Clone, Debug, PartialEq)]
pub enum Address {
    Tcp(SocketAddr),
    Udp(SocketAddr),
    Tls(SocketAddr),
    Unix(PathBuf),
}

/// A server to be loaded.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    pub address: Address,
    /// The one protocol that it speaks, if that is not memcached's.
    pub protocol: Option<Protocol>,
    pub own_ports: Option<OwnPorts>,
}

/// Ports of single workers, from `base` on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OwnPorts {
    pub base: u16,
    /// A power of two.
    pub workers: u16,
}

impl From<Address> for Target {
    fn from(address: Address) -> Self {
        Self { address, protocol: None, own_ports: None }
    }
}

impl Target {
    /// Who serves what, for clients that go to workers' own ports; asked of the server when they `follow`.
    pub fn routes(&self, follow: bool) -> Result<Option<Routes>, String> {
        match (&self.address, self.own_ports) {
            (Address::Tcp(address), _) if follow => {
                Routes::ask(*address).map_err(|error| format!("{address}: {error}"))
            }
            (Address::Tcp(address), Some(OwnPorts { base, workers })) => {
                Ok(Some(Routes::even(address.ip(), base, workers)))
            }
            _ => Ok(None),
        }
    }
}

impl Address {
    pub fn of(server: &Server) -> Result<Self, String> {
        if let Server::Unix(path) = server {
            return Ok(Self::Unix(path.clone()));
        }
        let addresses = server.addresses().map_err(|error| format!("{server}: {error}"))?;
        Ok(Self::Tcp(addresses[0]))
    }

    /// The same place, spoken to in another way.
    pub fn by(self, way: impl Fn(SocketAddr) -> Self) -> Result<Self, String> {
        match self {
            Self::Tcp(address) | Self::Udp(address) | Self::Tls(address) => Ok(way(address)),
            Self::Unix(path) => Err(format!("{}: neither UDP nor TLS by this", path.display())),
        }
    }

    pub fn connect(&self) -> io::Result<Stream> {
        match self {
            Self::Tls(address) => {
                let anybody = Access { tls_insecure: true, ..Access::default() };
                let dialer = anybody.open().map_err(io::Error::other)?;
                let socket = TcpStream::connect(address)?;
                let mbal_dial::Stream::Tls(tls) = dialer.over(socket, &(*address).into())? else {
                    unreachable!("it was opened for TLS");
                };
                tls.socket.set_nonblocking(true)?;
                Ok(Stream::Tls(tls))
            }
            Self::Udp(address) => {
                let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                let socket = UdpSocket::bind(any)?;
                socket.connect(address)?;
                socket.set_nonblocking(true)?;
                Ok(Stream::Udp(socket))
            }
            Self::Tcp(address) => {
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                Ok(Stream::Tcp(stream))
            }
            Self::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_nonblocking(true)?;
                Ok(Stream::Unix(stream))
            }
        }
    }
}

pub enum Stream {
    Tcp(TcpStream),
    Udp(UdpSocket),
    Tls(Box<Tls>),
    Unix(UnixStream),
}

impl Stream {
    pub fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(bytes),
            Self::Udp(socket) => socket.recv(bytes),
            Self::Tls(tls) => tls.read(bytes),
            Self::Unix(stream) => stream.read(bytes),
        }
    }

    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Udp(socket) => socket.send(bytes),
            Self::Tls(tls) => tls.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }
}

impl Stream {
    /// Sends what was written and still lies on our side; true if some of it has to wait.
    pub fn holds_back(&mut self) -> io::Result<bool> {
        let Self::Tls(tls) = self else { return Ok(false) };
        tls.push()?;
        Ok(tls.holds_back())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Udp(socket) => socket.as_fd(),
            Self::Tls(tls) => tls.socket.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}
