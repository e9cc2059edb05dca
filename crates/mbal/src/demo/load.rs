//! The clients of a demonstration: they read through a cache, store what is missing, and count what they see.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use mbal_random::{Random, mix};

pub const KEYS: u64 = 10_000;
pub const CLIENTS: usize = 6;
/// Requests that a client sends at a time.
pub const DEPTH: usize = 32;
const VALUE_BYTES: usize = 100;
/// Who does not answer for so long is taken for dead.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);
/// A server that could not be reached is left alone for so long.
const TRIED_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// Of all requests, in a pattern: those that are not on the hot part are even.
const HOT_OF: u64 = 100;

/// Which keys are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    Even,
    /// So many of 100 requests are for one key.
    OneKey(u64),
    /// So many of 100 are for a hundredth of the keys, which begin somewhere.
    HotSet {
        part: u64,
        first: u64,
    },
}

/// How a client finds a key's server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Each client asks one server, as behind a balancer of connections; the servers pass on.
    AnyServer,
    /// By the key's hash, as clients of memcached do; a server that is left out takes its part of the keys with it, no more.
    ByHash,
}

/// A side of the demonstration, as its clients see it.
pub struct Side {
    pub way: Way,
    pub servers: Vec<SocketAddr>,
    /// A bit for each server that clients have in their list.
    listed: AtomicU32,
    pub counts: Counts,
}

/// Since the last look.
#[derive(Default)]
pub struct Counts {
    gets: AtomicU64,
    hits: AtomicU64,
    errors: AtomicU64,
    late: AtomicU64,
    wrong: AtomicU64,
    /// Batches by their time, in steps of a quarter of a power of two of microseconds.
    times: Times,
}

struct Times([AtomicU64; 128]);

impl Default for Times {
    fn default() -> Times {
        Times([const { AtomicU64::new(0) }; 128])
    }
}

/// What clients saw in some time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    pub gets: u64,
    pub hits: u64,
    pub errors: u64,
    /// Of these, those that had no answer in time.
    pub late: u64,
    pub wrong: u64,
    pub p99_ms: f64,
}

impl Outcome {
    /// Of all gets, errors among them.
    pub fn hit_ratio(&self) -> f64 {
        if self.gets == 0 { 0.0 } else { self.hits as f64 / self.gets as f64 }
    }
}

/// What all clients are told.
pub struct Load {
    pattern: AtomicU64,
    /// A client rests for so long after each batch, in milliseconds.
    rest_ms: AtomicU64,
    ends: AtomicBool,
}

impl Load {
    pub fn new() -> Load {
        Load {
            pattern: AtomicU64::new(packed(Pattern::Even)),
            rest_ms: AtomicU64::new(0),
            ends: AtomicBool::new(false),
        }
    }

    pub fn set(&self, pattern: Pattern, rest: Duration) {
        self.pattern.store(packed(pattern), Relaxed);
        self.rest_ms.store(rest.as_millis() as u64, Relaxed);
    }

    pub fn end(&self) {
        self.ends.store(true, Relaxed);
    }

    fn has_ended(&self) -> bool {
        self.ends.load(Relaxed)
    }
}

/// In one word, which all clients read: kind, part, first key.
fn packed(pattern: Pattern) -> u64 {
    match pattern {
        Pattern::Even => 0,
        Pattern::OneKey(part) => 1 | part << 8,
        Pattern::HotSet { part, first } => 2 | part << 8 | first << 16,
    }
}

fn key_of(packed: u64, random: &mut Random) -> u64 {
    let (part, first) = (packed >> 8 & 0xff, packed >> 16);
    if random.below(HOT_OF) >= part {
        return random.below(KEYS);
    }
    match packed & 0xff {
        1 => 0,
        _ => (first + random.below(KEYS / HOT_OF)) % KEYS,
    }
}

impl Counts {
    fn timed(&self, time: Duration) {
        let us = time.as_micros().max(1) as f64;
        let step = (us.log2() * 4.0) as usize;
        self.times.0[step.min(127)].fetch_add(1, Relaxed);
    }

    /// What was counted since the last look.
    pub fn take(&self) -> Outcome {
        let take = |count: &AtomicU64| count.swap(0, Relaxed);
        let times: Vec<u64> = self.times.0.iter().map(take).collect();
        // A get is counted before its hit.
        let (hits, gets) = (take(&self.hits), take(&self.gets));
        Outcome {
            gets,
            hits,
            errors: take(&self.errors),
            late: take(&self.late),
            wrong: take(&self.wrong),
            p99_ms: p99_ms(&times),
        }
    }
}

/// The upper end of the step in which it is.
fn p99_ms(times: &[u64]) -> f64 {
    let all: u64 = times.iter().sum();
    let mut rest = all.div_ceil(100);
    for (step, count) in times.iter().enumerate().rev() {
        if *count >= rest && *count > 0 {
            return 2f64.powf((step + 1) as f64 / 4.0) / 1e3;
        }
        rest -= count;
    }
    0.0
}

impl Side {
    pub fn new(way: Way, servers: Vec<SocketAddr>) -> Side {
        let listed = AtomicU32::new((1 << servers.len()) - 1);
        Side { way, servers, listed, counts: Counts::default() }
    }

    /// Clients have it in their list no more.
    pub fn leave_out(&self, server: usize) {
        self.listed.fetch_and(!(1 << server), Relaxed);
    }

    pub fn is_listed(&self, server: usize) -> bool {
        self.listed.load(Relaxed) >> server & 1 == 1
    }

    /// By the highest of all servers' hashes with the key.
    fn place(&self, key: u64) -> usize {
        let listed = (0..self.servers.len()).filter(|server| self.is_listed(*server));
        let weight = |server: &usize| mix(key << 8 | *server as u64);
        listed.max_by_key(weight).expect("a list has servers")
    }
}

/// One client, until the load ends.
pub fn client(side: &Side, number: usize, load: &Load) {
    let mut client = Client {
        side,
        at: number % side.servers.len(),
        random: Random::new(number as u64 + 1),
        streams: side.servers.iter().map(|_| Stream::Idle).collect(),
    };
    let mut missing = Vec::new();
    while !load.has_ended() {
        let packed = load.pattern.load(Relaxed);
        let keys = (0..DEPTH).map(|_| key_of(packed, &mut client.random)).collect();
        client.ask(keys, &mut missing);
        let rest_ms = load.rest_ms.load(Relaxed);
        if rest_ms > 0 {
            std::thread::sleep(Duration::from_millis(rest_ms));
        }
    }
}

enum Stream {
    Idle,
    Up(BufReader<TcpStream>),
    /// Until it is tried again.
    Down(Instant),
}

struct Client<'a> {
    side: &'a Side,
    /// The server of whom asks any.
    at: usize,
    random: Random,
    streams: Vec<Stream>,
}

impl Client<'_> {
    /// Asks for these keys, and stores those that were missing before.
    fn ask(&mut self, keys: Vec<u64>, missing: &mut Vec<u64>) {
        if self.side.way == Way::AnyServer && !self.side.is_listed(self.at) {
            self.turn();
        }
        let mut parts: BTreeMap<usize, (Vec<u64>, Vec<u64>)> = BTreeMap::new();
        for key in keys {
            parts.entry(self.server_of(key)).or_default().0.push(key);
        }
        for key in missing.drain(..) {
            parts.entry(self.server_of(key)).or_default().1.push(key);
        }
        let begun = Instant::now();
        let mut failed = Vec::new();
        for (server, (gets, sets)) in &parts {
            if self.send(*server, gets, sets).is_err() {
                failed.push(*server);
            }
        }
        let counts = &self.side.counts;
        for (server, (gets, sets)) in parts {
            let all = gets.len() + sets.len();
            let read = match failed.contains(&server) {
                true => Err((0, io::ErrorKind::NotConnected.into())),
                false => self.read(server, &gets, &sets, missing),
            };
            counts.gets.fetch_add(gets.len() as u64, Relaxed);
            let Err((answered, error)) = read else { continue };
            let unanswered = (all - answered) as u64;
            counts.errors.fetch_add(unanswered, Relaxed);
            if [io::ErrorKind::WouldBlock, io::ErrorKind::TimedOut].contains(&error.kind()) {
                counts.late.fetch_add(unanswered, Relaxed);
            }
            // One that is left alone already is not left alone for longer.
            if !matches!(self.streams[server], Stream::Down(until) if Instant::now() < until) {
                self.streams[server] = Stream::Down(Instant::now() + TRIED_AGAIN_AFTER);
            }
            match self.side.way {
                Way::AnyServer => self.turn(),
                Way::ByHash => std::thread::sleep(TRIED_AGAIN_AFTER / 10),
            }
        }
        counts.timed(begun.elapsed());
    }

    fn server_of(&self, key: u64) -> usize {
        match self.side.way {
            Way::AnyServer => self.at,
            Way::ByHash => self.side.place(key),
        }
    }

    /// To the next server of the list.
    fn turn(&mut self) {
        let count = self.side.servers.len();
        let next = (1..=count).map(|step| (self.at + step) % count);
        self.at = next.into_iter().find(|server| self.side.is_listed(*server)).unwrap_or(self.at);
    }

    fn send(&mut self, server: usize, gets: &[u64], sets: &[u64]) -> io::Result<()> {
        let stream = match &mut self.streams[server] {
            Stream::Up(stream) => stream,
            Stream::Down(until) if Instant::now() < *until => {
                return Err(io::ErrorKind::NotConnected.into());
            }
            other => {
                let address = self.side.servers[server];
                let stream = TcpStream::connect_timeout(&address, ANSWERS_WITHIN)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(ANSWERS_WITHIN))?;
                stream.set_write_timeout(Some(ANSWERS_WITHIN))?;
                *other = Stream::Up(BufReader::new(stream));
                let Stream::Up(stream) = other else { unreachable!("it was just made") };
                stream
            }
        };
        let mut text = String::new();
        for key in gets {
            text += &format!("get key:{key}\r\n");
        }
        for key in sets {
            text += &format!("set key:{key} 0 0 {VALUE_BYTES}\r\n{}\r\n", value_of(*key));
        }
        stream.get_mut().write_all(text.as_bytes())
    }

    /// The error has how many requests were answered before it.
    fn read(
        &mut self,
        server: usize,
        gets: &[u64],
        sets: &[u64],
        missing: &mut Vec<u64>,
    ) -> Result<(), (usize, io::Error)> {
        let Stream::Up(stream) = &mut self.streams[server] else {
            return Err((0, io::ErrorKind::NotConnected.into()));
        };
        let counts = &self.side.counts;
        let mut hits = 0;
        let mut read = Ok(());
        for (at, key) in gets.iter().enumerate() {
            match got(stream, *key) {
                Ok(Got::Value) => hits += 1,
                Ok(Got::Nothing) => missing.push(*key),
                Ok(Got::Another) => {
                    counts.wrong.fetch_add(1, Relaxed);
                }
                Ok(Got::Error) => {
                    counts.errors.fetch_add(1, Relaxed);
                }
                Err(error) => {
                    read = Err((at, error));
                    break;
                }
            }
        }
        // Together with its gets, so that a look sees all of a batch or nothing.
        counts.hits.fetch_add(hits, Relaxed);
        read?;
        let mut line = String::new();
        for at in 0..sets.len() {
            line.clear();
            read_line(stream, &mut line).map_err(|error| (gets.len() + at, error))?;
            if line != "STORED\r\n" {
                counts.errors.fetch_add(1, Relaxed);
            }
        }
        Ok(())
    }
}

enum Got {
    Value,
    Nothing,
    /// The value of another key.
    Another,
    Error,
}

fn got(stream: &mut impl BufRead, key: u64) -> io::Result<Got> {
    let mut line = String::new();
    read_line(stream, &mut line)?;
    if line == "END\r\n" {
        return Ok(Got::Nothing);
    }
    if !line.starts_with("VALUE ") {
        return Ok(Got::Error);
    }
    let bytes = line.trim_end().rsplit(' ').next().and_then(|bytes| bytes.parse::<usize>().ok());
    let bytes = bytes.filter(|bytes| *bytes <= 1 << 20).ok_or(io::ErrorKind::InvalidData)?;
    let mut value = vec![0; bytes + 2 + 5];
    stream.read_exact(&mut value)?;
    let is_its = line.starts_with(&format!("VALUE key:{key} "))
        && value[..bytes] == *value_of(key).as_bytes()
        && value.ends_with(b"\r\nEND\r\n");
    Ok(if is_its { Got::Value } else { Got::Another })
}

fn read_line(stream: &mut impl BufRead, line: &mut String) -> io::Result<()> {
    let count = stream.by_ref().take(4096).read_line(line)?;
    if count == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}

/// A key's value names it, so that a reply can be checked.
fn value_of(key: u64) -> String {
    let mut value = format!("value of key:{key};");
    value.extend(std::iter::repeat_n('.', VALUE_BYTES - value.len()));
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_what_they_say() {
        let mut random = Random::new(1);
        let mut of = |pattern| -> Vec<u64> {
            (0..10_000).map(|_| key_of(packed(pattern), &mut random)).collect()
        };
        let one = of(Pattern::OneKey(60)).iter().filter(|key| **key == 0).count();
        assert!((5_800..6_200).contains(&one), "{one}");
        let set = of(Pattern::HotSet { part: 90, first: 9_950 });
        let hot = set.iter().filter(|key| **key >= 9_950 || **key < 50).count();
        assert!((8_900..9_200).contains(&hot), "{hot}");
        let even = of(Pattern::Even).iter().filter(|key| **key < KEYS / 2).count();
        assert!((4_800..5_200).contains(&even), "{even}");
    }

    #[test]
    fn a_server_that_is_left_out_takes_its_own_keys_with_it_alone() {
        let server = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let side = Side::new(Way::ByHash, vec![server(1), server(2), server(3)]);
        let before: Vec<usize> = (0..3_000).map(|key| side.place(key)).collect();
        side.leave_out(2);
        let after: Vec<usize> = (0..3_000).map(|key| side.place(key)).collect();
        assert!(before.iter().zip(&after).all(|(before, after)| *before == 2 || before == after));
        assert!(!after.contains(&2));
        let gone = before.iter().filter(|server| **server == 2).count();
        assert!((900..1_100).contains(&gone), "{gone}");
    }

    #[test]
    fn replies_are_checked() {
        let value = value_of(7);
        assert_eq!(value.len(), VALUE_BYTES);
        for (reply, key, is) in [
            (format!("VALUE key:7 0 100\r\n{value}\r\nEND\r\n"), 7, "value"),
            (format!("VALUE key:7 0 100\r\n{value}\r\nEND\r\n"), 8, "another"),
            (format!("VALUE key:8 0 100\r\n{value}\r\nEND\r\n"), 8, "another"),
            ("END\r\n".into(), 7, "nothing"),
            ("SERVER_ERROR no route to owner\r\n".into(), 7, "error"),
            (String::new(), 7, "ended"),
        ] {
            let found = match got(&mut reply.as_bytes(), key) {
                Ok(Got::Value) => "value",
                Ok(Got::Another) => "another",
                Ok(Got::Nothing) => "nothing",
                Ok(Got::Error) => "error",
                Err(_) => "ended",
            };
            assert_eq!(found, is, "{reply}");
        }
    }

    #[test]
    fn the_slowest_hundredth_is_told() {
        let counts = Counts::default();
        for _ in 0..980 {
            counts.timed(Duration::from_micros(100));
        }
        for _ in 0..20 {
            counts.timed(Duration::from_millis(10));
        }
        let p99 = counts.take().p99_ms;
        assert!((10.0..12.0).contains(&p99), "{p99}");
        assert_eq!(counts.take(), Outcome::default());
    }
}
