//! Whoever answers memcached's protocol: a process behind a socket, or the pure worker.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Names one connection of a peer; connections count from 0 in the order that they were opened.
pub type Conn = usize;

/// What a look at a connection's incoming side showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// At least one byte was appended.
    Bytes,
    /// The peer closed, orderly or not, and everything that it sent before has been taken.
    Closed,
    /// Nothing came within the patience.
    Nothing,
}

/// A server as its clients see it.
pub trait Peer {
    fn open(&mut self) -> Conn;
    /// Sends all of `bytes` as one write, as far as the peer still listens.
    fn send(&mut self, conn: Conn, bytes: &[u8]);
    /// Appends what has arrived to `into`; waits up to `patience` for the first byte.
    fn receive(&mut self, conn: Conn, into: &mut Vec<u8>, patience: Duration) -> Arrival;
    /// Sends end of file; replies still arrive.
    fn finish(&mut self, conn: Conn);
    fn close(&mut self, conn: Conn);
    /// Lets `seconds` pass on the peer's clock.
    fn wait(&mut self, seconds: u32);
}

/// Where a server listens.
#[derive(Clone, Debug)]
pub enum Address {
    Tcp(u16),
    Unix(String),
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn open(address: &Address) -> std::io::Result<Stream> {
        // A writer that is not taken from within this time looks whether the peer wants to talk first.
        let write_patience = Some(Duration::from_millis(20));
        Ok(match address {
            Address::Tcp(port) => {
                let stream = TcpStream::connect(("127.0.0.1", *port))?;
                stream.set_nodelay(true)?;
                stream.set_write_timeout(write_patience)?;
                Stream::Tcp(stream)
            }
            Address::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_write_timeout(write_patience)?;
                Stream::Unix(stream)
            }
        })
    }

    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        }
    }

    fn read(&mut self, room: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(room),
            Stream::Unix(stream) => stream.read(room),
        }
    }

    fn set_patience(&self, patience: Duration) -> std::io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_read_timeout(Some(patience)),
            Stream::Unix(stream) => stream.set_read_timeout(Some(patience)),
        }
    }

    fn finish(&self) -> std::io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.shutdown(std::net::Shutdown::Write),
            Stream::Unix(stream) => stream.shutdown(std::net::Shutdown::Write),
        }
    }
}

struct Connection {
    stream: Stream,
    patience: Duration,
    /// Arrived while a long request was being written.
    early: Vec<u8>,
    closed: bool,
}

/// A process on this machine, spoken to over sockets.
pub struct SocketPeer {
    address: Address,
    connections: Vec<Option<Connection>>,
    room: Vec<u8>,
}

impl SocketPeer {
    pub fn new(address: Address) -> SocketPeer {
        SocketPeer { address, connections: Vec::new(), room: vec![0; 256 << 10] }
    }

    fn connection(&mut self, conn: Conn) -> &mut Connection {
        self.connections[conn].as_mut().expect("a connection is not used after close")
    }

    fn read_once(&mut self, conn: Conn, into: &mut Vec<u8>, patience: Duration) -> Arrival {
        let SocketPeer { connections, room, .. } = self;
        let connection = connections[conn].as_mut().expect("a connection is not used after close");
        if connection.closed {
            return Arrival::Closed;
        }
        if connection.patience != patience {
            connection.stream.set_patience(patience).expect("a patience is never zero");
            connection.patience = patience;
        }
        loop {
            match connection.stream.read(room) {
                Ok(0) => {
                    connection.closed = true;
                    return Arrival::Closed;
                }
                Ok(length) => {
                    into.extend_from_slice(&room[..length]);
                    return Arrival::Bytes;
                }
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut => return Arrival::Nothing,
                    ErrorKind::Interrupted => continue,
                    _ => {
                        connection.closed = true;
                        return Arrival::Closed;
                    }
                },
            }
        }
    }
}

impl Peer for SocketPeer {
    fn open(&mut self) -> Conn {
        let stream = Stream::open(&self.address)
            .unwrap_or_else(|error| panic!("connect to {:?}: {error}", self.address));
        self.connections.push(Some(Connection {
            stream,
            patience: Duration::ZERO,
            early: Vec::new(),
            closed: false,
        }));
        self.connections.len() - 1
    }

    fn send(&mut self, conn: Conn, mut bytes: &[u8]) {
        let mut early = Vec::new();
        while !bytes.is_empty() && !self.connection(conn).closed {
            match self.connection(conn).stream.write(bytes) {
                Ok(length) => bytes = &bytes[length..],
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                        self.read_once(conn, &mut early, Duration::from_millis(1));
                    }
                    ErrorKind::Interrupted => {}
                    // The peer went away: what it sent before is still to be read.
                    _ => break,
                },
            }
        }
        self.connection(conn).early.append(&mut early);
    }

    fn receive(&mut self, conn: Conn, into: &mut Vec<u8>, patience: Duration) -> Arrival {
        let early = std::mem::take(&mut self.connection(conn).early);
        if !early.is_empty() {
            into.extend_from_slice(&early);
            return Arrival::Bytes;
        }
        self.read_once(conn, into, patience)
    }

    fn finish(&mut self, conn: Conn) {
        // An error says that the peer has closed already, which `receive` reports.
        self.connection(conn).stream.finish().ok();
    }

    fn close(&mut self, conn: Conn) {
        self.connections[conn] = None;
    }

    fn wait(&mut self, seconds: u32) {
        std::thread::sleep(Duration::from_secs(u64::from(seconds)));
    }
}

/// Waits until somebody listens at `address`.
pub fn await_listener(address: &Address, patience: Duration) -> std::io::Result<()> {
    let deadline = Instant::now() + patience;
    loop {
        match Stream::open(address) {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() >= deadline => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}
