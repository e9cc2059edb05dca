//! A connection to a server's ordinary port.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// A server that takes longer is as good as lost.
const PATIENCE: Duration = Duration::from_secs(5);
/// What one answer may come to: far more than any server tells.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

pub struct Link {
    server: String,
    stream: BufReader<Stream>,
}

impl Link {
    pub fn connect(server: &str) -> io::Result<Link> {
        let stream = Stream::connect(server)?;
        stream.set_patience(PATIENCE)?;
        Ok(Link { server: server.to_owned(), stream: BufReader::new(stream) })
    }

    pub fn name(&self) -> &str {
        &self.server
    }

    /// The lines of the answer to a command up to `END`; none if the server does not know it.
    pub fn ask(&mut self, command: &str) -> io::Result<Vec<String>> {
        self.stream.get_mut().write_all(format!("{command}\r\n").as_bytes())?;
        let mut lines = Vec::new();
        let mut left = ANSWER_BYTES_MAX;
        loop {
            let line = self.line(&mut left)?;
            match line.as_str() {
                "END" => return Ok(lines),
                _ if ["ERROR", "CLIENT_ERROR", "SERVER_ERROR"]
                    .iter()
                    .any(|error| line.starts_with(error)) =>
                {
                    return Ok(Vec::new());
                }
                _ => lines.push(line),
            }
        }
    }

    fn line(&mut self, left: &mut u64) -> io::Result<String> {
        let mut line = Vec::new();
        let count = (&mut self.stream).take(*left).read_until(b'\n', &mut line)?;
        *left -= count as u64;
        if line.pop() != Some(b'\n') {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server is gone"));
        }
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        Ok(String::from_utf8_lossy(&line).into_owned())
    }

    /// What the server says in so long a time when asked to tell all that is fetched and stored, over
    /// a connection of its own; nothing if it will not.
    pub fn watch(&self, moment: Duration) -> io::Result<Vec<u8>> {
        let mut stream = Stream::connect(&self.server)?;
        stream.write_all(b"watch fetchers mutations\r\n")?;
        let end = Instant::now() + moment;
        let mut said = Vec::new();
        let mut buffer = vec![0; 64 << 10];
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(said);
            }
            stream.set_patience(left)?;
            match stream.read(&mut buffer) {
                Ok(0) => return Ok(said),
                Ok(count) => said.extend_from_slice(&buffer[..count]),
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                    ) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Stream {
    fn connect(server: &str) -> io::Result<Stream> {
        if server.contains('/') {
            return UnixStream::connect(server).map(Stream::Unix);
        }
        let mut refused = io::Error::new(io::ErrorKind::NotFound, "no such host");
        for address in server.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, PATIENCE) {
                Ok(stream) => return Ok(Stream::Tcp(stream)),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    fn set_patience(&self, patience: Duration) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_read_timeout(Some(patience)),
            Stream::Unix(stream) => stream.set_read_timeout(Some(patience)),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(buffer),
            Stream::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
