//! Ketama: which server of a pool a key belongs to, as clients of stock memcached place it.
//!
//! Every server has points on a circle of 2³² places; a key belongs to the server whose point comes next, its own
//! place included. All dialects agree on that, and differ in the servers' names, in how many points there are, and in
//! the hash of the key.

use std::fmt;
use std::str::FromStr;

use crate::{Point, md5};

/// The key of an item that `mbal pool resize` stores on a server that it has filled, before clients get the list with it: a
/// proxy that had this server before takes it as it is.
pub const FILLED: &str = "mbal:filled";

/// Whose ring it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// libmemcached with `KETAMA_WEIGHTED`, which PHP calls `OPT_LIBKETAMA_COMPATIBLE` and pylibmc `ketama_weighted`.
    Libmemcached,
    /// libmemcached with `KETAMA`: keys are hashed by Jenkins' one-at-a-time where nothing is said, and so are a server's
    /// 100 points. Weights, where there are any, turn these into the points of `KETAMA_WEIGHTED`.
    Unweighted,
    /// twemproxy with `distribution: ketama`; its `hash` is FNV-1a of 64 bits where nothing is said.
    Twemproxy,
    /// spymemcached's `KetamaNodeLocator` for servers that it was given by address.
    Spymemcached,
}

/// What is done to a key before its place is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyHash {
    Md5,
    Fnv1a64,
    Fnv1a32,
    OneAtATime,
    /// MurmurHash2 as twemproxy has it: with a seed by the key's length.
    Murmur,
}

/// One server of a ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingServer {
    pub host: String,
    pub port: u16,
    pub weight: u32,
    /// What twemproxy calls it, where its configuration names it.
    pub name: Option<String>,
}

/// Points of all servers in the order of their places.
#[derive(Clone, Debug)]
pub struct Ring {
    points: Vec<(u32, u16)>,
    /// By a place's upper bits, the first point that is not before the places that begin with them: half of a search's
    /// jumps would be mispredicted.
    starts: Vec<u32>,
    /// How many bits of a place are not among them.
    lower_bits: u32,
    hash: KeyHash,
}

/// Of a server of average weight.
const POINTS: u32 = 160;
/// A digest gives four.
const POINTS_PER_DIGEST: u32 = 4;
const POINTS_UNWEIGHTED: u32 = 100;
/// Whose name has no port.
const DEFAULT_PORT: u16 = 11211;

impl Dialect {
    /// Each name and what it means.
    pub const NAMES: [(&str, Dialect); 4] = [
        ("libmemcached", Dialect::Libmemcached),
        ("libmemcached-unweighted", Dialect::Unweighted),
        ("twemproxy", Dialect::Twemproxy),
        ("spymemcached", Dialect::Spymemcached),
    ];

    /// By its name in [`Dialect::NAMES`].
    pub fn label(self) -> &'static str {
        label(&Dialect::NAMES, self)
    }

    /// Of its own, where nothing is said.
    pub fn hash(self) -> KeyHash {
        match self {
            Dialect::Libmemcached | Dialect::Spymemcached => KeyHash::Md5,
            Dialect::Unweighted => KeyHash::OneAtATime,
            Dialect::Twemproxy => KeyHash::Fnv1a64,
        }
    }

    /// What a server is called on the ring.
    pub fn name(self, server: &RingServer) -> String {
        let RingServer { host, port, .. } = server;
        match (self, &server.name) {
            (Dialect::Twemproxy, Some(name)) => name.clone(),
            (Dialect::Spymemcached, _) => format!("{host}:{port}"),
            _ if *port == DEFAULT_PORT => host.clone(),
            _ => format!("{host}:{port}"),
        }
    }
}

impl Ring {
    /// `servers` in the order of the clients' list. `hash` is for those who have set another than their client's own.
    ///
    /// # Panics
    ///
    /// Without servers, or with more than 65,535.
    pub fn new(dialect: Dialect, hash: Option<KeyHash>, servers: &[RingServer]) -> Ring {
        assert!(!servers.is_empty(), "a ring has servers");
        let hash = hash.unwrap_or(dialect.hash());
        let weights = servers.iter().map(|server| u64::from(server.weight)).sum();
        let equal = servers.iter().all(|server| server.weight == 1);
        let mut points = Vec::new();
        for (index, server) in servers.iter().enumerate() {
            let index = u16::try_from(index).expect("a pool has fewer servers than ports");
            let name = dialect.name(server);
            if dialect == Dialect::Unweighted && equal {
                let place = |point| hash.place(format!("{name}-{point}").as_bytes());
                points.extend((0..POINTS_UNWEIGHTED).map(|point| (place(point), index)));
                continue;
            }
            let digests = match dialect {
                Dialect::Spymemcached => POINTS / POINTS_PER_DIGEST,
                _ => digests(server.weight, weights, servers.len()),
            };
            points.extend((0..digests).flat_map(|digest| {
                md5::digest(format!("{name}-{digest}").as_bytes()).map(|place| (place, index))
            }));
        }
        // Stable, as the C library's sort is: of two points at one place the first server's comes first.
        points.sort_by_key(|&(place, _)| place);
        let upper_bits = (points.len().ilog2() + 1).min(u32::BITS - 1);
        let lower_bits = u32::BITS - upper_bits;
        let start =
            |upper: u32| points.partition_point(|&(point, _)| point < upper << lower_bits) as u32;
        let starts = (0..1 << upper_bits).map(start).collect();
        Ring { points, starts, lower_bits, hash }
    }

    /// The index of the server that a key belongs to. O(1) on average, as points are spread evenly.
    #[inline]
    pub fn owner(&self, key: &[u8]) -> usize {
        self.at(self.hash.place(key))
    }

    /// In the order of their places; of several at one place the first has its keys. A point's upstream is a server's index.
    pub fn points(&self) -> impl Iterator<Item = Point> {
        self.points.iter().map(|&(at, server)| Point { at, upstream: server.into() })
    }

    /// By which this ring places keys.
    pub fn hash(&self) -> KeyHash {
        self.hash
    }

    /// The same for a key of which the place is known.
    #[inline]
    pub fn at(&self, place: u32) -> usize {
        let start = self.starts[(place >> self.lower_bits) as usize] as usize;
        let next = self.points[start..].iter().find(|&&(point, _)| place <= point);
        let (_, server) = next.unwrap_or(&self.points[0]);
        usize::from(*server)
    }
}

/// How many digests a server has, rounded as libmemcached and twemproxy do: in single precision, so that pools of some
/// sizes have four points fewer per server.
fn digests(weight: u32, weights: u64, servers: usize) -> u32 {
    let share = weight as f32 / weights as f32;
    let wanted = share * POINTS as f32 / POINTS_PER_DIGEST as f32 * servers as f32;
    (f64::from(wanted) + 0.000_000_000_1) as f32 as u32
}

impl KeyHash {
    pub const NAMES: [(&str, KeyHash); 5] = [
        ("md5", KeyHash::Md5),
        ("fnv1a_64", KeyHash::Fnv1a64),
        ("fnv1a_32", KeyHash::Fnv1a32),
        ("one_at_a_time", KeyHash::OneAtATime),
        ("murmur", KeyHash::Murmur),
    ];

    /// By its name in [`KeyHash::NAMES`].
    pub fn name(self) -> &'static str {
        label(&KeyHash::NAMES, self)
    }

    /// Where on the circle a key is.
    #[inline]
    pub fn place(self, key: &[u8]) -> u32 {
        // Bytes have signs, and 64 bits are cut to 32 at each step: as twemproxy and libmemcached compute it.
        let signed = key.iter().map(|&byte| i32::from(byte as i8) as u32);
        let fnv = |basis: u32, prime: u32| {
            signed.clone().fold(basis, |hash, byte| (hash ^ byte).wrapping_mul(prime))
        };
        match self {
            KeyHash::Md5 => md5::digest(key)[0],
            KeyHash::Fnv1a64 => fnv(0x8422_2325, 0x0000_01b3),
            KeyHash::Fnv1a32 => fnv(2_166_136_261, 16_777_619),
            KeyHash::Murmur => murmur(key),
            KeyHash::OneAtATime => {
                let mixed = signed.fold(0_u32, |hash, byte| {
                    let hash = hash.wrapping_add(byte);
                    let hash = hash.wrapping_add(hash << 10);
                    hash ^ (hash >> 6)
                });
                let mixed = mixed.wrapping_add(mixed << 3);
                let mixed = mixed ^ (mixed >> 11);
                mixed.wrapping_add(mixed << 15)
            }
        }
    }
}

fn murmur(key: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let length = key.len() as u32;
    let mut hash = 0xdead_beef_u32.wrapping_mul(length) ^ length;
    // Of up to four bytes.
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
    let words = key.chunks_exact(4);
    let rest = words.remainder();
    for bytes in words {
        let word = word(bytes).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ (word ^ word >> 24).wrapping_mul(M);
    }
    if !rest.is_empty() {
        hash = (hash ^ word(rest)).wrapping_mul(M);
    }
    hash = (hash ^ hash >> 13).wrapping_mul(M);
    hash ^ hash >> 15
}

impl FromStr for Dialect {
    type Err = String;

    fn from_str(text: &str) -> Result<Dialect, String> {
        named(&Dialect::NAMES, text)
    }
}

impl FromStr for KeyHash {
    type Err = String;

    fn from_str(text: &str) -> Result<KeyHash, String> {
        named(&KeyHash::NAMES, text)
    }
}

fn label<T: Copy + PartialEq>(names: &[(&'static str, T)], meant: T) -> &'static str {
    let found = names.iter().find(|(_, named)| *named == meant);
    found.expect("each has a name").0
}

fn named<T: Copy>(names: &[(&str, T)], text: &str) -> Result<T, String> {
    let found = names.iter().find(|(name, _)| *name == text).map(|&(_, meant)| meant);
    found.ok_or_else(|| {
        let names: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
        format!("{text:?} is none of {}", names.join(", "))
    })
}

impl RingServer {
    /// As it stands in a list: what is parsed from it is the same.
    pub fn entry(&self) -> String {
        let weight = if self.weight == 1 { String::new() } else { format!(":{}", self.weight) };
        let name = self.name.as_ref().map_or_else(String::new, |name| format!(" {name}"));
        format!("{self}{weight}{name}")
    }
}

impl fmt::Display for RingServer {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for RingServer {
    type Err = String;

    /// `HOST[:PORT[:WEIGHT]]`, with ` NAME` behind it as in twemproxy's configuration; `[V6]:PORT`.
    fn from_str(text: &str) -> Result<RingServer, String> {
        let wrong = || format!("{text:?} is not HOST:PORT or HOST:PORT:WEIGHT");
        let (address, name) = match text.split_once(' ') {
            Some((address, name)) if !name.trim().is_empty() => (address, Some(name.trim().into())),
            _ => (text.trim(), None),
        };
        let (host, rest) = match address.strip_prefix('[') {
            Some(rest) => rest.split_once(']').ok_or_else(wrong)?,
            None => address.split_at(address.find(':').unwrap_or(address.len())),
        };
        let mut numbers = rest.strip_prefix(':').into_iter().flat_map(|rest| rest.split(':'));
        let port =
            numbers.next().map_or(Ok(DEFAULT_PORT), |port| port.parse().map_err(|_| wrong()))?;
        let weight = numbers.next().map_or(Ok(1), |weight| weight.parse().map_err(|_| wrong()))?;
        let wanted = numbers.next().is_none()
            && port != 0
            && weight != 0
            && !host.is_empty()
            && (rest.is_empty() || rest.starts_with(':'));
        if !wanted {
            return Err(wrong());
        }
        Ok(RingServer { host: host.into(), port, weight, name })
    }
}

#[cfg(test)]
#[path = "../tests/unit/ketama.rs"]
mod tests;
