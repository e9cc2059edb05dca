//! The caches as an application uses them: many keys at once, leases for what is missed (meta commands' `N` and `C`), deletes.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::values::name;

/// Who has missed may store for so long; then another may.
const LEASE_SECONDS: u32 = 10;
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Default)]
pub struct Caches {
    connections: BTreeMap<String, BufReader<TcpStream>>,
}

#[derive(Debug, PartialEq)]
pub enum Found {
    Value(Vec<u8>),
    /// Missed, and may be stored with this token.
    Won(u64),
    /// Missed; somebody else stores it, or nobody can.
    Missed,
}

/// What is asked of each server: keys, each with its place among all.
pub type Asked = BTreeMap<String, Vec<(usize, u32)>>;
/// What is stored at each server: a key, the token, and the value.
pub type Sets = BTreeMap<String, Vec<(u32, u64, Vec<u8>)>>;

impl Caches {
    /// All servers are asked before the first is waited for. A server that does not answer has missed. Returns the longest pause before an answer, and
    /// whose it was.
    pub fn get(&mut self, asked: &Asked, lease: bool, found: &mut [Found]) -> (Duration, String) {
        let flags = if lease { format!("v c N{LEASE_SECONDS}") } else { "v c".into() };
        self.exchange(
            asked,
            |request, (_, key)| {
                request.extend_from_slice(format!("mg {} {flags}\r\n", name(*key)).as_bytes());
            },
            |stream, (place, _)| {
                found[*place] = read_found(stream)?;
                Ok(())
            },
        )
    }

    /// Stores with tokens; a key that was deleted meanwhile is not stored.
    pub fn set(&mut self, items: &Sets) {
        self.exchange(
            items,
            |request, (key, token, value)| {
                let head = format!("ms {} {} C{token} T0\r\n", name(*key), value.len());
                request.extend_from_slice(head.as_bytes());
                request.extend_from_slice(value);
                request.extend_from_slice(b"\r\n");
            },
            |stream, _| stream.read_line(&mut String::new()).map(drop),
        );
    }

    /// False where it is not known to be gone.
    pub fn delete(&mut self, server: &str, key: u32) -> bool {
        let mut gone = false;
        let asked: Asked = [(server.to_owned(), vec![(0, key)])].into();
        self.exchange(
            &asked,
            |request, (_, key)| {
                request.extend_from_slice(format!("md {}\r\n", name(*key)).as_bytes())
            },
            |stream, _| {
                let mut line = String::new();
                stream.read_line(&mut line)?;
                gone = line.starts_with("HD") || line.starts_with("NF");
                Ok(())
            },
        );
        gone
    }

    fn exchange<T>(
        &mut self,
        what: &BTreeMap<String, Vec<T>>,
        mut ask: impl FnMut(&mut Vec<u8>, &T),
        mut answer: impl FnMut(&mut BufReader<TcpStream>, &T) -> io::Result<()>,
    ) -> (Duration, String) {
        let mut request = Vec::new();
        let (mut last, mut slowest) = (Instant::now(), (Duration::ZERO, String::new()));
        let mut pause = |server: &str| {
            let took = last.elapsed();
            last = Instant::now();
            if slowest.0 < took {
                slowest = (took, server.to_owned());
            }
        };
        for (server, items) in what {
            request.clear();
            items.iter().for_each(|item| ask(&mut request, item));
            let sent =
                self.connection(server).and_then(|stream| stream.get_mut().write_all(&request));
            if sent.is_err() {
                self.connections.remove(server);
            }
            pause(server);
        }
        for (server, items) in what {
            let Some(stream) = self.connections.get_mut(server) else { continue };
            if items.iter().try_for_each(|item| answer(stream, item)).is_err() {
                self.connections.remove(server);
            }
            pause(server);
        }
        slowest
    }

    /// A server that was stopped and started again is connected to anew.
    fn connection(&mut self, server: &str) -> io::Result<&mut BufReader<TcpStream>> {
        if self.connections.get(server).is_some_and(|stream| has_ended(stream.get_ref())) {
            self.connections.remove(server);
        }
        if !self.connections.contains_key(server) {
            let stream = TcpStream::connect(server)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            self.connections.insert(server.to_owned(), BufReader::new(stream));
        }
        Ok(self.connections.get_mut(server).expect("just put there"))
    }
}

fn has_ended(stream: &TcpStream) -> bool {
    let looked = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut [0]));
    let waits = matches!(&looked, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
    !waits || stream.set_nonblocking(false).is_err()
}

fn read_found(stream: &mut BufReader<TcpStream>) -> io::Result<Found> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut words = line.split_whitespace();
    match words.next() {
        Some("VA") => {}
        Some("EN") => return Ok(Found::Missed),
        _ => return Err(io::Error::other(format!("{line:?}"))),
    }
    let bytes = words.next().and_then(|bytes| bytes.parse::<usize>().ok());
    let mut value = vec![0; bytes.ok_or_else(|| io::Error::other("no length"))? + 2];
    stream.read_exact(&mut value)?;
    value.truncate(value.len() - 2);
    let mut token = None;
    for word in words {
        match word.split_at(1) {
            ("c", number) => token = number.parse().ok(),
            ("W", _) => return Ok(token.map_or(Found::Missed, Found::Won)),
            ("Z", _) => return Ok(Found::Missed),
            _ => {}
        }
    }
    Ok(Found::Value(value))
}
