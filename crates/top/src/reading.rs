//! What a server tells at one moment.

use std::collections::BTreeMap;
use std::io;
use std::str::FromStr;
use std::time::Duration;

use crate::connection::Connection;
use crate::watched::{self, KeyCounts};

/// Keys asked for.
const KEYS: usize = 10;
/// How long stock memcached is watched, every time.
const WATCH: Duration = Duration::from_millis(200);

#[derive(Clone, Debug, Default)]
pub struct Reading {
    pub stats: BTreeMap<String, String>,
    /// By the bucket's end in ns, requests in it since the start, of all classes.
    pub latency: BTreeMap<u64, u64>,
    pub workers: Vec<Worker>,
    pub cachelets: Vec<Cachelet>,
    pub keys: Keys,
    pub kind: Kind,
}

/// What tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    #[default]
    Memcached,
    /// `mbal serve`.
    Server,
    /// `mbal proxy`. It has no items and no workers.
    Proxy,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Memcached => "memcached",
            Kind::Server => "server",
            Kind::Proxy => "proxy",
        }
    }
}

#[derive(Clone, Debug)]
pub enum Keys {
    /// The server's own estimate, the hottest first.
    Told(Vec<Key>),
    /// What was fetched and stored in a moment of watching.
    Watched(BTreeMap<String, KeyCounts>),
}

impl Default for Keys {
    fn default() -> Keys {
        Keys::Told(Vec::new())
    }
}

/// Since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Worker {
    pub own: u64,
    pub neighbour: u64,
    pub peer: u64,
    pub busy_us: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cachelet {
    /// Its prefix.
    pub cachelet: String,
    pub owner: u64,
    pub items: u64,
    pub bytes: u64,
    pub requests: u64,
    /// Requests in the last second.
    pub rate: u64,
    /// These, in percent of the server's.
    pub share: f64,
}

/// Requests are those of the last second.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Key {
    /// Blanks, `%` and what is not printed are escaped as in URLs.
    pub key: String,
    pub reads: u64,
    pub writes: u64,
    /// A proxy does not tell it.
    pub value_bytes: Option<u64>,
    /// None where hot keys are not copied.
    pub copied: Option<Copied>,
}

/// How a key is copied to other servers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Copied {
    /// In a word: cold, pending, hot or cooling.
    pub state: String,
    /// How many copies it has, or is to have, beside the original.
    pub copies: u64,
}

fn has_upstreams(stats: &[String]) -> bool {
    pairs(stats).any(|(name, _)| name.starts_with("upstream:"))
}

impl Reading {
    pub fn take(connection: &mut Connection) -> io::Result<Reading> {
        let latency = connection.stats("latency buckets")?;
        let workers = Table::of(&connection.stats("workers")?);
        let kind = match workers.0.is_empty() {
            false => Kind::Server,
            true if has_upstreams(&connection.stats("")?) => Kind::Proxy,
            true => Kind::Memcached,
        };
        let cachelets = match kind {
            Kind::Server => connection.stats("cachelets")?,
            Kind::Proxy | Kind::Memcached => Vec::new(),
        };
        let keys = match kind {
            Kind::Memcached => Keys::Watched(watched::read(&connection.watch(WATCH)?)),
            Kind::Server | Kind::Proxy => {
                Keys::Told(Table::of(&connection.stats(&format!("hot {KEYS}"))?).keys())
            }
        };
        // Last, so that what is counted includes what the rest tells of.
        let stats = connection.stats("")?;
        if stats.is_empty() {
            return Err(io::Error::other("it does not tell `stats`"));
        }
        Ok(Reading {
            stats: pairs(&stats).map(|(name, value)| (name.into(), value.into())).collect(),
            latency: buckets(&latency),
            workers: workers.workers(),
            cachelets: Table::of(&cachelets).cachelets(),
            keys,
            kind,
        })
    }

    pub fn stat(&self, name: &str) -> u64 {
        self.stats.get(name).and_then(|value| value.parse().ok()).unwrap_or(0)
    }

    /// How many upstreams of a proxy are in this state.
    pub fn upstreams(&self, state: &str) -> u64 {
        let states = self
            .stats
            .iter()
            .filter(|(name, _)| name.starts_with("upstream:") && name.ends_with(":state"));
        states.filter(|(_, told)| *told == state).count() as u64
    }
}

fn pairs(lines: &[String]) -> impl Iterator<Item = (&str, &str)> {
    lines.iter().filter_map(|line| line.strip_prefix("STAT ")?.split_once(' '))
}

fn buckets(lines: &[String]) -> BTreeMap<u64, u64> {
    let mut all = BTreeMap::new();
    for (name, requests) in pairs(lines) {
        let end_ns = name.split_once(':').and_then(|(_, end)| end.parse().ok());
        if let (Some(end_ns), Ok(requests)) = (end_ns, requests.parse::<u64>()) {
            *all.entry(end_ns).or_insert(0) += requests;
        }
    }
    all
}

/// `STAT 3:owner 1`: rows by what stands first, columns by name.
struct Table<R>(BTreeMap<R, BTreeMap<String, String>>);

impl<R: Ord + FromStr> Table<R> {
    fn of(lines: &[String]) -> Self {
        let mut rows: BTreeMap<R, BTreeMap<String, String>> = BTreeMap::new();
        for (name, value) in pairs(lines) {
            if let Some((Ok(row), column)) =
                name.split_once(':').map(|(row, column)| (row.parse(), column))
            {
                rows.entry(row).or_default().insert(column.into(), value.into());
            }
        }
        Table(rows)
    }
}

impl Table<usize> {
    fn workers(&self) -> Vec<Worker> {
        let worker = |row| Worker {
            own: number(row, "own"),
            neighbour: number(row, "neighbour"),
            peer: number(row, "peer"),
            busy_us: number(row, "busy_us"),
        };
        self.0.values().map(worker).collect()
    }
}

impl Table<String> {
    fn cachelets(&self) -> Vec<Cachelet> {
        let cachelet = |(cachelet, row): (&String, _)| Cachelet {
            cachelet: cachelet.clone(),
            owner: number(row, "owner"),
            items: number(row, "items"),
            bytes: number(row, "bytes"),
            requests: number(row, "requests"),
            rate: number(row, "rate"),
            share: number(row, "share"),
        };
        self.0.iter().map(cachelet).collect()
    }
}

impl Table<usize> {
    fn keys(&self) -> Vec<Key> {
        let key = |row: &BTreeMap<String, String>| Key {
            key: row.get("key").cloned().unwrap_or_default(),
            reads: number(row, "reads"),
            writes: number(row, "writes"),
            value_bytes: row.get("bytes").and_then(|bytes| bytes.parse().ok()),
            copied: row
                .get("state")
                .map(|state| Copied { state: state.clone(), copies: number(row, "copies") }),
        };
        self.0.values().map(key).collect()
    }
}

fn number<N: FromStr + Default>(row: &BTreeMap<String, String>, name: &str) -> N {
    row.get(name).and_then(|value| value.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn tables_are_read_by_row_and_column() {
        let told = lines(
            "STAT 0000/1:owner 1\nSTAT 0000/1:share 12.5\nSTAT 8000/1:owner 2\nSTAT 8000/1:rate 7\nSTAT x 1",
        );
        let cachelets = Table::of(&told).cachelets();
        assert!(cachelets.iter().map(|one| &one.cachelet).eq(["0000/1", "8000/1"]));
        assert_eq!((cachelets[0].owner, cachelets[0].share, cachelets[1].rate), (1, 12.5, 7));
        let keys = Table::of(&lines("STAT 1:key a:1\nSTAT 1:reads 5\nSTAT 1:bytes 9")).keys();
        let known = Key { key: "a:1".into(), reads: 5, value_bytes: Some(9), ..Key::default() };
        assert_eq!(keys, [known]);
        let keys = Table::of(&lines("STAT 1:key a\nSTAT 1:state hot\nSTAT 1:copies 2")).keys();
        assert_eq!(keys[0].copied, Some(Copied { state: "hot".into(), copies: 2 }));
    }

    #[test]
    fn classes_share_their_buckets() {
        let told = lines("STAT get:1000 3\nSTAT get:2000 1\nSTAT set:2000 4");
        assert_eq!(buckets(&told), BTreeMap::from([(1000, 3), (2000, 5)]));
    }
}
