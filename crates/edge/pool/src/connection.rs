//! A connection to one memcached: statistics, listings, and batches of reads, adds and deletes.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};

use mbal_routing::ketama::RingServer;
use mbal_wire::{ItemHead, push_meta_key};

/// A connection that blocks, up to a time limit of its own, and is logged in where that is asked for.
pub trait Stream: Read + Write + Send {}

impl<S: Read + Write + Send> Stream for S {}

/// How a server is reached; asked by several threads at once.
pub type Dial<'a> = &'a (dyn Fn(&RingServer) -> io::Result<Box<dyn Stream>> + Sync);

const READ_BYTES: usize = 64 << 10;
/// A relative time to live beyond it would be read as a time of day.
pub const TTL_RELATIVE_MAX: i64 = 30 * 24 * 3600;

/// What went wrong, with which server.
#[derive(Debug)]
pub struct Failed {
    pub server: String,
    pub error: io::Error,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}: {}", self.server, self.error)
    }
}

/// A value as it was read.
#[derive(Debug)]
pub struct Value {
    pub bytes: Vec<u8>,
    pub flags: u64,
    /// In seconds; `None` is forever.
    pub ttl: Option<i64>,
    pub cas: u64,
}

/// What a server answers to `stats` of some kind, "" for the general ones.
pub fn stats(
    dial: Dial,
    server: &RingServer,
    kind: &str,
) -> Result<BTreeMap<String, String>, Failed> {
    Connection::open(dial, server)?.stats(kind)
}

/// What came of an add.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    Stored,
    /// There is an item of that key.
    There,
    /// No memory could be had, or the item is too long for that server.
    Refused,
}

pub struct Connection {
    name: String,
    stream: Box<dyn Stream>,
    read: Vec<u8>,
    at: usize,
    out: Vec<u8>,
}

impl Connection {
    pub fn open(dial: Dial, server: &RingServer) -> Result<Connection, Failed> {
        let name = server.to_string();
        match dial(server) {
            Ok(stream) => Ok(Connection { name, stream, read: vec![], at: 0, out: vec![] }),
            Err(error) => Err(Failed { server: name, error }),
        }
    }

    pub fn failed(&self, error: io::Error) -> Failed {
        let error = match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                io::Error::new(ErrorKind::TimedOut, "it does not answer in time")
            }
            _ => error,
        };
        Failed { server: self.name.clone(), error }
    }

    pub fn strange(&self, reply: &[u8]) -> Failed {
        let reply = String::from_utf8_lossy(&reply[..reply.len().min(200)]).into_owned();
        self.failed(io::Error::other(format!("it answers {reply:?}")))
    }

    fn send(&mut self) -> Result<(), Failed> {
        let out = std::mem::take(&mut self.out);
        let sent = self.stream.write_all(&out).and_then(|()| self.stream.flush());
        self.out = out;
        self.out.clear();
        sent.map_err(|error| self.failed(error))
    }

    fn fill(&mut self) -> Result<(), Failed> {
        if self.at > 0 {
            self.read.drain(..self.at);
            self.at = 0;
        }
        let had = self.read.len();
        self.read.resize(had + READ_BYTES, 0);
        let got = loop {
            match self.stream.read(&mut self.read[had..]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                got => break got,
            }
        };
        self.read.truncate(had + *got.as_ref().unwrap_or(&0));
        match got {
            Ok(0) => Err(self.failed(io::Error::new(ErrorKind::UnexpectedEof, "it hangs up"))),
            Ok(_) => Ok(()),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Sends requests, and hands `hear` what comes: it says how much of it was replies, and whether all have come.
    pub fn exchange(
        &mut self,
        requests: &[u8],
        mut hear: impl FnMut(&[u8]) -> Result<(usize, bool), String>,
    ) -> Result<(), Failed> {
        self.out.extend_from_slice(requests);
        self.send()?;
        loop {
            let heard = hear(&self.read[self.at..]);
            let (used, is_over) = heard.map_err(|said| self.strange(said.as_bytes()))?;
            self.at += used;
            if is_over {
                return Ok(());
            }
            self.fill()?;
        }
    }

    /// The next line, without its end.
    fn line(&mut self) -> Result<Vec<u8>, Failed> {
        let mut looked = 0;
        loop {
            let rest = &self.read[self.at..];
            if let Some(end) = rest[looked..].iter().position(|&byte| byte == b'\n') {
                let line = &rest[..looked + end];
                let line = line.strip_suffix(b"\r").unwrap_or(line).to_vec();
                self.at += looked + end + 1;
                return Ok(line);
            }
            looked = rest.len();
            self.fill()?;
        }
    }

    /// A value of so many bytes, and the line's end behind it.
    fn value(&mut self, bytes: usize) -> Result<Vec<u8>, Failed> {
        while self.read.len() - self.at < bytes + 2 {
            self.fill()?;
        }
        let value = self.read[self.at..self.at + bytes].to_vec();
        self.at += bytes + 2;
        Ok(value)
    }

    /// `stats` of some kind, "" for the general ones.
    pub fn stats(&mut self, kind: &str) -> Result<BTreeMap<String, String>, Failed> {
        self.out.extend_from_slice(format!("stats {kind}").trim_end().as_bytes());
        self.out.extend_from_slice(b"\r\n");
        self.send()?;
        let mut stats = BTreeMap::new();
        loop {
            let line = self.line()?;
            if line == b"END" {
                return Ok(stats);
            }
            let text = String::from_utf8_lossy(&line);
            let mut words = text.splitn(3, ' ');
            match (words.next(), words.next(), words.next()) {
                (Some("STAT"), Some(name), value) => {
                    stats.insert(name.to_owned(), value.unwrap_or_default().to_owned());
                }
                _ => return Err(self.strange(&line)),
            }
        }
    }

    /// How long the server's crawler sleeps each time, in microseconds.
    pub fn crawler_sleeps(&mut self, micros: u64) -> Result<(), Failed> {
        self.out.extend_from_slice(format!("lru_crawler sleep {micros}\r\n").as_bytes());
        self.send()?;
        let line = self.line()?;
        if line == b"OK" { Ok(()) } else { Err(self.strange(&line)) }
    }

    /// Asks for a listing; false where the server's crawler is at other work, or its hash table grows.
    ///
    /// By the hash table, which passes over nothing, or by the LRU lists, `by_lists` and of a memcached that does not know the other.
    pub fn begin_listing(&mut self, by_lists: bool) -> Result<bool, Failed> {
        let of = if by_lists { "all" } else { "hash" };
        match self.ask_for_listing(of)? {
            Some(refusal) if refusal.starts_with(b"BADCLASS") && !by_lists => {
                self.begin_listing(true)
            }
            refusal => Ok(refusal.is_none()),
        }
    }

    /// What is said in the place of a listing.
    fn ask_for_listing(&mut self, of: &str) -> Result<Option<Vec<u8>>, Failed> {
        self.out.extend_from_slice(format!("lru_crawler metadump {of}\r\n").as_bytes());
        self.send()?;
        while self.read.len() - self.at < 4 {
            self.fill()?;
        }
        if [&b"key="[..], b"END\r"].contains(&&self.read[self.at..][..4]) {
            return Ok(None);
        }
        let line = self.line()?;
        let passes = [&b"BUSY"[..], b"BADCLASS", b"ERROR locked"];
        match passes.iter().any(|start| line.starts_with(start)) {
            true => Ok(Some(line)),
            false => Err(self.strange(&line)),
        }
    }

    /// The next line of the listing; `None` at its end.
    pub fn listed(&mut self) -> Result<Option<Vec<u8>>, Failed> {
        let line = self.line()?;
        Ok((line != b"END").then_some(line))
    }

    /// Asks for the values of keys that [`mbal_wire::is_meta_key`].
    pub fn ask(&mut self, key: &[u8]) {
        self.out.extend_from_slice(b"mg ");
        self.key(key);
        self.out.extend_from_slice(b" v t f c\r\n");
    }

    fn key(&mut self, key: &[u8]) {
        let encoded = push_meta_key(&mut self.out, key);
        self.out.extend_from_slice(encoded.as_bytes());
    }

    /// Sends what was asked, and reads so many answers.
    pub fn values(&mut self, count: usize) -> Result<Vec<Option<Value>>, Failed> {
        self.send()?;
        (0..count).map(|_| self.read_value()).collect()
    }

    fn read_value(&mut self) -> Result<Option<Value>, Failed> {
        let line = self.line()?;
        if line == b"EN" {
            return Ok(None);
        }
        let ItemHead { bytes, flags, ttl, cas, is_settled } =
            ItemHead::parse(&line).ok_or_else(|| self.strange(&line))?;
        let bytes = self.value(bytes)?;
        Ok(is_settled.then_some(Value { bytes, flags, ttl: ttl.map(i64::from), cas }))
    }

    /// Asks to add a value. `ttl` is relative, or a time of day beyond [`TTL_RELATIVE_MAX`].
    pub fn add(&mut self, key: &[u8], value: &Value, ttl: i64) {
        self.out.extend_from_slice(b"ms ");
        // The length stands between the key and its flags.
        let length = value.bytes.len();
        let encoded = push_meta_key(&mut self.out, key);
        let flags = value.flags;
        let rest = format!(" {length}{encoded} T{ttl} F{flags} ME\r\n");
        self.out.extend_from_slice(rest.as_bytes());
        self.out.extend_from_slice(&value.bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    pub fn added(&mut self, count: usize) -> Result<Vec<Added>, Failed> {
        self.send()?;
        let mut all = Vec::with_capacity(count);
        for _ in 0..count {
            let line = self.line()?;
            all.push(match &line[..] {
                b"HD" => Added::Stored,
                b"NS" => Added::There,
                line if line.starts_with(b"SERVER_ERROR") => Added::Refused,
                line => return Err(self.strange(line)),
            });
        }
        Ok(all)
    }

    pub fn delete(&mut self, key: &[u8]) {
        self.out.extend_from_slice(b"md ");
        self.key(key);
        self.out.extend_from_slice(b"\r\n");
    }

    /// Sends the deletes; how many found their key.
    pub fn deleted(&mut self, count: usize) -> Result<u64, Failed> {
        self.send()?;
        let mut found = 0;
        for _ in 0..count {
            match &self.line()?[..] {
                b"HD" => found += 1,
                b"NF" => {}
                line => return Err(self.strange(line)),
            }
        }
        Ok(found)
    }
}
