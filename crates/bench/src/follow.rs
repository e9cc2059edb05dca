//! What a smart client knows of its server: which worker serves which cachelet, and where it listens.
//!
//! Asked for once by `config get mbal`, then kept up to date by the `L` tokens of replies. A route changes at
//! once, whatever is still unanswered on the old one: values here follow from their keys, so no order between
//! requests is at stake (decision 0220).

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr};

use mbal_model::{MapVersion, Prefix};

/// What an `L` token of a reply says: as of this version, the key's cachelet is that worker's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moved {
    pub version: MapVersion,
    pub worker: u16,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Routes {
    version: MapVersion,
    workers: Vec<SocketAddr>,
    /// By the first `bits` of a hash, the cachelet's index.
    cachelets: Vec<u32>,
    bits: u32,
    owners: Vec<Held>,
}

/// A cachelet, its worker, and the version that said so.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Held {
    prefix: Prefix,
    worker: u16,
    version: MapVersion,
}

impl Moved {
    /// `<map>.<local>.<worker>`, without the `L`.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let (version, worker) = std::str::from_utf8(text).ok()?.rsplit_once('.')?;
        Some(Self { version: MapVersion::parse(version.as_bytes())?, worker: worker.parse().ok()? })
    }
}

impl Routes {
    /// Each worker has an equal run of hashes, as long as nothing has been moved. `workers` is a power of two.
    pub fn even(ip: IpAddr, base: u16, workers: u16) -> Self {
        let version = MapVersion { map: 1, local: 0 };
        Self {
            version,
            workers: (0..workers).map(|worker| SocketAddr::new(ip, base + worker)).collect(),
            cachelets: (0..u32::from(workers)).collect(),
            bits: workers.trailing_zeros(),
            owners: Prefix::equal(workers.trailing_zeros())
                .zip(0..workers)
                .map(|(prefix, worker)| Held { prefix, worker, version })
                .collect(),
        }
    }

    /// Asks the server, which is at this address; `None` if it does not know the question.
    pub fn ask(server: &mut (impl Read + Write), ip: IpAddr) -> io::Result<Option<Self>> {
        server.write_all(b"config get mbal 0.0\r\n")?;
        let mut input = BufReader::new(server);
        let mut line = String::new();
        input.read_line(&mut line)?;
        let Some(head) = line.strip_prefix("CONFIG mbal 0 ") else { return Ok(None) };
        let bad = |what: &str| io::Error::other(format!("config get mbal: {what}"));
        let bytes: usize = head.trim_end().parse().map_err(|_| bad("no length"))?;
        let mut page = vec![0; bytes.min(16 << 20)];
        input.read_exact(&mut page)?;
        let page = String::from_utf8(page).map_err(|_| bad("not text"))?;
        let mut routes = Self::parse(&page).map_err(|line| bad(&line))?;
        for worker in routes.workers.iter_mut().filter(|worker| worker.ip().is_unspecified()) {
            worker.set_ip(ip);
        }
        Ok(Some(routes))
    }

    /// The lines `version`, `worker` and `cachelet`; others are for other readers.
    fn parse(page: &str) -> Result<Self, String> {
        let mut version = None;
        let (mut workers, mut prefixes) = (Vec::new(), Vec::new());
        for line in page.lines() {
            let bad = || format!("cannot read {line:?}");
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            match words[..] {
                ["version", text] => {
                    version = Some(MapVersion::parse(text.as_bytes()).ok_or_else(bad)?)
                }
                ["worker", number, ip, port] => {
                    let number: usize = number.parse().map_err(|_| bad())?;
                    if number != workers.len() {
                        return Err(bad());
                    }
                    let ip: IpAddr = ip.parse().map_err(|_| bad())?;
                    workers.push(SocketAddr::new(ip, port.parse().map_err(|_| bad())?));
                }
                ["cachelet", prefix, worker] => {
                    let prefix = Prefix::parse(prefix.as_bytes()).ok_or_else(bad)?;
                    prefixes.push((prefix, worker.parse().map_err(|_| bad())?));
                }
                _ => {}
            }
        }
        let version = version.ok_or("no version")?;
        let bits = prefixes.iter().map(|(prefix, _)| prefix.bits()).max().ok_or("no cachelets")?;
        if workers.is_empty() {
            return Err("no worker has a port of its own (--worker-ports)".into());
        }
        let mut cachelets = vec![u32::MAX; 1 << bits];
        let mut owners = Vec::new();
        for (prefix, worker) in prefixes {
            if usize::from(worker) >= workers.len() {
                return Err(format!("worker {worker} has no port"));
            }
            let run = bits - prefix.bits();
            cachelets[prefix.place() << run..(prefix.place() + 1) << run].fill(owners.len() as u32);
            owners.push(Held { prefix, worker, version });
        }
        if cachelets.contains(&u32::MAX) {
            return Err("some hashes are no cachelet's".into());
        }
        Ok(Self { version, workers, cachelets, bits, owners })
    }

    pub fn version(&self) -> MapVersion {
        self.version
    }

    /// Where the workers listen.
    pub fn workers(&self) -> &[SocketAddr] {
        &self.workers
    }

    pub fn cachelet(&self, hash: u64) -> usize {
        // A shift by 64 is the whole table of one cachelet.
        let prefix = hash.checked_shr(64 - self.bits).unwrap_or(0);
        self.cachelets[prefix as usize] as usize
    }

    /// How the binary protocol names the hash's cachelet.
    pub fn vbucket(&self, hash: u64) -> u16 {
        self.owners[self.cachelet(hash)].prefix.vbucket()
    }

    pub fn worker(&self, hash: u64) -> usize {
        usize::from(self.owners[self.cachelet(hash)].worker)
    }

    /// Routes the hash's cachelet as told, unless something newer is known; true when the version grew.
    pub fn heed(&mut self, hash: u64, moved: Moved) -> bool {
        let cachelet = self.cachelet(hash);
        let owner = &mut self.owners[cachelet];
        if usize::from(moved.worker) < self.workers.len() && moved.version >= owner.version {
            (owner.worker, owner.version) = (moved.worker, moved.version);
        }
        let newer = moved.version > self.version;
        self.version = self.version.max(moved.version);
        newer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "version 1.17\nworker 0 127.0.0.1 4000\nworker 1 127.0.0.1 4001\n\
                        cachelet 0000/2 0\ncachelet 4000/2 1\ncachelet 8000/1 1\nfuture line\n";

    #[test]
    fn a_hash_finds_its_worker_whatever_the_length_of_its_cachelets_prefix() {
        let routes = Routes::parse(PAGE).unwrap();
        let workers = [0u64, 1, 2, 3].map(|top| routes.worker(top << 62));
        assert_eq!(workers, [0, 1, 1, 1]);
        assert_eq!(routes.cachelet(2 << 62), routes.cachelet(3 << 62));
        assert_eq!(routes.workers()[1], "127.0.0.1:4001".parse().unwrap());
        let one = PAGE.lines().take(3).collect::<Vec<_>>().join("\n") + "\ncachelet 0000/0 1\n";
        assert_eq!(Routes::parse(&one).unwrap().worker(u64::MAX), 1);
    }

    #[test]
    fn a_table_with_gaps_or_unknown_workers_is_refused() {
        for (from, to) in [
            ("cachelet 8000/1 1", ""),
            ("cachelet 4000/2 1", "cachelet 4000/2 2"),
            ("cachelet 4000/2 1", "cachelet 4100/2 1"),
            ("cachelet 4000/2 1", "cachelet 4000/16 1"),
            ("version 1.17", ""),
            ("worker 0", "worker 5"),
        ] {
            assert!(Routes::parse(&PAGE.replace(from, to)).is_err(), "{from} -> {to}");
        }
    }

    #[test]
    fn a_newer_token_changes_a_route_and_an_older_one_does_not() {
        let mut routes = Routes::parse(PAGE).unwrap();
        let moved = |text: &str| Moved::parse(text.as_bytes()).unwrap();
        assert!(routes.heed(0, moved("1.19.1")));
        assert_eq!((routes.worker(0), routes.version().to_string().as_str()), (1, "1.19"));
        assert!(!routes.heed(0, moved("1.18.0")));
        assert_eq!(routes.worker(0), 1, "1.18 is older than what is known of this cachelet");
        assert!(!routes.heed(1 << 62, moved("1.18.0")));
        assert_eq!(routes.worker(1 << 62), 0, "but newer than what was known of that one");
        assert!(routes.heed(0, moved("2.0.9")), "a version without a worker that we know");
        assert_eq!(routes.worker(0), 1);
        for broken in ["", "1", "1.2", "1.2.x", "a.2.3"] {
            assert_eq!(Moved::parse(broken.as_bytes()), None, "{broken:?}");
        }
    }

    #[test]
    fn equal_runs_are_the_top_bits() {
        let routes = Routes::even("127.0.0.1".parse().unwrap(), 9_000, 4);
        assert_eq!([0u64, 1, 2, 3].map(|top| routes.worker(top << 62)), [0, 1, 2, 3]);
        assert_eq!(Routes::even("::1".parse().unwrap(), 9_000, 1).worker(u64::MAX), 0);
    }
}
