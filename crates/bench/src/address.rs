//! Where a server listens, and a connection to it that does not block.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use mbal_dial::{Dialer, ServerName, Speech, Tls};

use crate::follow::Routes;
use crate::request::Protocol;

#[derive(Clone, Debug, PartialEq)]
pub enum Address {
    Tcp(SocketAddr),
    Udp(SocketAddr),
    Unix(PathBuf),
}

/// A server to be loaded.
#[derive(Clone, Debug)]
pub struct Target {
    pub address: Address,
    pub way: Way,
    /// The one protocol that it speaks, if that is not memcached's.
    pub protocol: Option<Protocol>,
    pub own_ports: Option<OwnPorts>,
    /// Who serves what for good, as somebody has said.
    pub map: Option<Routes>,
}

/// How a server is entered: with TLS and a login, or without.
#[derive(Clone, Debug)]
pub struct Way {
    pub dialer: Dialer,
    /// Whose certificate is expected; the address's own if it was given by no name.
    pub host: Option<String>,
    /// In which a login is said.
    pub speech: Speech,
}

/// A server that does not answer a login, or a question before it, for so long is given up.
const LOGIN_MAX: Duration = Duration::from_secs(20);

impl Default for Way {
    fn default() -> Self {
        Self { dialer: Dialer::default(), host: None, speech: Speech::Text }
    }
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
        Self { address, way: Way::default(), protocol: None, own_ports: None, map: None }
    }
}

impl Target {
    /// Who serves what, for clients that go to workers' own ports; asked of the server when they `follow`.
    pub fn routes(&self, follow: bool) -> Result<Option<Routes>, String> {
        if self.map.is_some() {
            return Ok(self.map.clone());
        }
        match (&self.address, self.own_ports) {
            (Address::Tcp(address), _) if follow => {
                let asked =
                    self.talk(*address).and_then(|mut stream| Routes::ask(&mut stream, *address));
                asked.map_err(|error| format!("{address}: {error}"))
            }
            (Address::Tcp(address), Some(OwnPorts { base, workers })) => {
                Ok(Some(Routes::even(address.ip(), base, workers)))
            }
            _ => Ok(None),
        }
    }

    /// A connection that blocks, logged in.
    pub fn talk(&self, address: SocketAddr) -> io::Result<mbal_dial::Stream> {
        let host = self.way.host.clone().unwrap_or_else(|| address.ip().to_string());
        let server = ServerName::Tcp { host, port: address.port() };
        let stream = self.way.dialer.over(TcpStream::connect(address)?, &server)?;
        self.log_in(stream)
    }

    fn log_in(&self, mut stream: mbal_dial::Stream) -> io::Result<mbal_dial::Stream> {
        stream.set_read_timeout(Some(LOGIN_MAX))?;
        self.way.dialer.log_in(self.way.speech, &mut stream)?;
        Ok(stream)
    }

    /// A connection that does not block, logged in, to this server or to one of its workers' ports.
    pub fn connect(&self, address: &Address) -> io::Result<Stream> {
        let stream = match address {
            Address::Udp(address) => {
                let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                let socket = UdpSocket::bind(any)?;
                socket.connect(address)?;
                socket.set_nonblocking(true)?;
                return Ok(Stream::Udp(socket));
            }
            Address::Tcp(address) => self.talk(*address)?,
            Address::Unix(path) => {
                self.log_in(self.way.dialer.connect(&ServerName::Unix(path.clone()))?)?
            }
        };
        Ok(match stream {
            mbal_dial::Stream::Tcp(stream) => {
                stream.set_nonblocking(true)?;
                Stream::Tcp(stream)
            }
            mbal_dial::Stream::Unix(stream) => {
                stream.set_nonblocking(true)?;
                Stream::Unix(stream)
            }
            mbal_dial::Stream::Tls(tls) => {
                tls.socket.set_nonblocking(true)?;
                Stream::Tls(tls)
            }
        })
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Self::Tcp(address) | Self::Udp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Address {
    pub fn of(server: &ServerName) -> Result<Self, String> {
        if let ServerName::Unix(path) = server {
            return Ok(Self::Unix(path.clone()));
        }
        let addresses = server.addresses().map_err(|error| format!("{server}: {error}"))?;
        Ok(Self::Tcp(addresses[0]))
    }

    /// The same place, by datagrams.
    pub fn by_udp(self) -> Result<Self, String> {
        match self {
            Self::Tcp(address) | Self::Udp(address) => Ok(Self::Udp(address)),
            Self::Unix(path) => Err(format!("{}: no UDP by a unix socket", path.display())),
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
