//! Where a server listens, and a connection to it that does not block.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use crate::wording::Protocol;

#[derive(Clone, Debug, PartialEq)]
pub enum Address {
    Tcp(SocketAddr),
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

/// Ports of single workers, from `base` on. A connection asks its worker for keys of that worker only.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OwnPorts {
    pub base: u16,
    /// A power of two.
    pub workers: u16,
}

impl OwnPorts {
    /// The worker that serves a key as long as nothing has been moved: each has an equal run of hashes.
    pub fn worker_of(&self, hash: u64) -> u16 {
        (((hash >> 48) * u64::from(self.workers)) >> 16) as u16
    }
}

impl From<Address> for Target {
    fn from(address: Address) -> Self {
        Self { address, protocol: None, own_ports: None }
    }
}

impl Target {
    /// Connection number `index`, and the worker that serves it, if that is known.
    pub fn connect(&self, index: usize) -> io::Result<(Stream, Option<u16>)> {
        match (&self.address, self.own_ports) {
            (Address::Tcp(address), Some(OwnPorts { base, workers })) => {
                let worker = (index % usize::from(workers)) as u16;
                let address = SocketAddr::new(address.ip(), base + worker);
                Ok((Address::Tcp(address).connect()?, Some(worker)))
            }
            (address, _) => Ok((address.connect()?, None)),
        }
    }
}

impl Address {
    /// `host:port`, or a path, which has a slash.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.contains('/') {
            return Ok(Self::Unix(text.into()));
        }
        let mut found = text.to_socket_addrs().map_err(|error| format!("{text}: {error}"))?;
        found.next().map(Self::Tcp).ok_or_else(|| format!("{text}: no such host"))
    }

    pub fn connect(&self) -> io::Result<Stream> {
        match self {
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
    Unix(UnixStream),
}

impl Stream {
    pub fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(bytes),
            Self::Unix(stream) => stream.read(bytes),
        }
    }

    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}
