//! A cluster as a document: its servers, and who has which cachelet. Files, `config get mbal` and the coordinator use it.
//!
//! ```text
//!   cluster shop                                     # its name: servers of another one are no peers
//!   version 12                                       # of the map; a change is a higher one
//!   server 1 link 10.0.0.1:11311 client 10.0.0.1:11211 workers 10.0.0.1:11300,10.0.0.1:11301
//!   server 2 link 10.0.0.2:11311 client 10.0.0.2:11211
//!   cachelet 0000/1 1/0                              # worker 0 of server 1
//!   cachelet 8000/1 2
//! ```
//! One fact a line. In a file, `equal 6` may stand for all cachelets: 64 of them, dealt to the servers in turn. What a single
//! server answers differs in two places ([`ClusterView`]): its version is `12.3`, and the servers need no `link`.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use crate::{Address, ClusterMap, MapVersion, Owner, Prefix, ServerId, Uncovered, WorkerId};

/// Bytes of a cluster's name.
pub const CLUSTER_NAME_BYTES_MAX: usize = 64;
/// A map's version fits 31 bits: discovery protocols hold it so.
pub const MAP_VERSION_MAX: u64 = (1 << 31) - 1;
/// Prefixes that `equal` deals have no more bits than this.
const EQUAL_BITS_MAX: u32 = 12;
const DEFAULT_NAME: &str = "mbal";

/// Which servers there are, and which worker has each cachelet. Never edited: a change is a new one with a higher version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    pub name: String,
    pub map: Arc<ClusterMap>,
    /// One without cachelets may be among them: it forwards.
    pub servers: BTreeMap<ServerId, Addresses>,
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// For other servers; `None` is a server that has none.
    pub link: Option<Address>,
    /// For any client.
    pub client: Address,
    /// Each worker's own port, in order; none where workers have no ports of their own.
    pub workers: Vec<Address>,
    /// The IPv4 address of a `client` that is a name. Nothing that is written: whoever can looks it up.
    pub resolved: Option<Ipv4Addr>,
}

/// A cluster as one server sees it: that server's cachelets are with the workers that have them now, loans included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterView {
    pub cluster: Cluster,
    /// See [`MapVersion::local`].
    pub local: u64,
}

impl Addresses {
    /// The IPv4 address of `client`, if it has one that is known.
    pub fn client_ipv4(&self) -> Option<Ipv4Addr> {
        match self.client.ip() {
            Some(IpAddr::V4(ip)) => Some(ip),
            Some(IpAddr::V6(_)) => None,
            None => self.resolved,
        }
    }
}

impl Cluster {
    /// A map whose servers nobody can dial, for those who drive workers without sockets.
    pub fn without_addresses(map: ClusterMap) -> Cluster {
        let nowhere = || Addresses {
            link: None,
            client: Address::unknown(),
            workers: Vec::new(),
            resolved: None,
        };
        let servers = map.cachelets().iter().map(|(_, owner)| (owner.server, nowhere())).collect();
        Cluster { name: DEFAULT_NAME.into(), map: Arc::new(map), servers }
    }

    /// Where other servers and clients reach each: the document's lines of that.
    pub fn without_cachelets(&self) -> String {
        let mut out = format!("cluster {}\nversion {}\n", self.name, self.map.version());
        for (id, at) in &self.servers {
            // Nothing that is written to a string fails.
            let _ = write_server(&mut out, *id, &Addresses { workers: Vec::new(), ..at.clone() });
        }
        out
    }

    /// A whole document. What is wrong with it is told with its line.
    pub fn parse(text: &str) -> Result<Cluster, String> {
        let document = Document::parse(text, |word| {
            let version = word.parse().ok().filter(|_| word.bytes().all(|b| b.is_ascii_digit()));
            Some(MapVersion { map: version?, local: 0 })
        })?;
        if let Some((id, _)) = document.servers.iter().find(|(_, at)| at.link.is_none()) {
            return Err(format!("server {} has no link address", id.0));
        }
        Ok(document.cluster()?.0)
    }
}

impl ClusterView {
    /// What a server answers to `config get mbal`. What is wrong with it is told with its line.
    pub fn parse(text: &str) -> Result<ClusterView, String> {
        let (cluster, local) =
            Document::parse(text, |word| MapVersion::parse(word.as_bytes()))?.cluster()?;
        Ok(ClusterView { cluster, local })
    }

    pub fn version(&self) -> MapVersion {
        MapVersion { map: self.cluster.map.version(), local: self.local }
    }
}

/// Servers in the order of their ids, cachelets in the order of their prefixes: equal clusters are equal bytes.
impl fmt::Display for Cluster {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(out, &self.map.version())
    }
}

impl fmt::Display for ClusterView {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cluster.write(out, &self.version())
    }
}

impl Cluster {
    fn write(&self, out: &mut fmt::Formatter<'_>, version: &dyn fmt::Display) -> fmt::Result {
        writeln!(out, "cluster {}", self.name)?;
        writeln!(out, "version {version}")?;
        for (id, addresses) in &self.servers {
            write_server(out, *id, addresses)?;
        }
        for (prefix, Owner { server, worker }) in self.map.cachelets() {
            writeln!(out, "cachelet {prefix} {}/{}", server.0, worker.0)?;
        }
        Ok(())
    }
}

pub(crate) fn write_server(
    out: &mut dyn fmt::Write,
    id: ServerId,
    Addresses { link, client, workers, .. }: &Addresses,
) -> fmt::Result {
    write!(out, "server {}", id.0)?;
    if let Some(link) = link {
        write!(out, " link {link}")?;
    }
    write!(out, " client {client}")?;
    for (at, worker) in workers.iter().enumerate() {
        write!(out, "{}{worker}", if at == 0 { " workers " } else { "," })?;
    }
    writeln!(out)
}

/// The facts of a document, one by one.
#[derive(Default)]
struct Document {
    name: Option<String>,
    version: Option<MapVersion>,
    servers: BTreeMap<ServerId, Addresses>,
    equal: Option<u32>,
    owners: Vec<(Prefix, Owner)>,
}

impl Document {
    fn parse(
        text: &str,
        parse_version: impl Fn(&str) -> Option<MapVersion>,
    ) -> Result<Document, String> {
        let mut document = Document::default();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or_default();
            let words: Vec<&str> = line.split_whitespace().collect();
            document
                .read(&words, &parse_version)
                .map_err(|why| format!("line {number}: {why}: {}", words.join(" ")))?;
        }
        Ok(document)
    }

    fn read(
        &mut self,
        words: &[&str],
        parse_version: impl Fn(&str) -> Option<MapVersion>,
    ) -> Result<(), &'static str> {
        match words {
            [] => Ok(()),
            ["cluster", name] if name.len() > CLUSTER_NAME_BYTES_MAX => {
                Err("a name has at most 64 bytes")
            }
            ["cluster", name] => once(&mut self.name, String::from(*name)),
            ["version", word] => {
                let version = parse_version(word)
                    .filter(|version| (1..=MAP_VERSION_MAX).contains(&version.map));
                once(&mut self.version, version.ok_or("a version is 1 or more, below 2^31")?)
            }
            ["server", id, rest @ ..] => {
                let id = parse_server(id).ok_or("a server is a number to 65534")?;
                match self.servers.insert(id, parse_addresses(rest)?) {
                    None => Ok(()),
                    Some(_) => Err("the server is there twice"),
                }
            }
            ["equal", bits] => {
                let bits = bits.parse().ok().filter(|bits| *bits <= EQUAL_BITS_MAX);
                once(&mut self.equal, bits.ok_or("cachelets have 0 to 12 bits")?)
            }
            ["cachelet", prefix, owner] => {
                let prefix = Prefix::parse(prefix.as_bytes());
                let prefix = prefix.ok_or("a cachelet is named like 2c00/6")?;
                let owner = parse_owner(owner).ok_or("an owner is server/worker")?;
                if !self.servers.contains_key(&owner.server) {
                    return Err("no line above tells of this server");
                }
                self.owners.push((prefix, owner));
                Ok(())
            }
            _ => Err("not understood"),
        }
    }

    /// The cluster, and the local version of whoever has written the document.
    fn cluster(self) -> Result<(Cluster, u64), String> {
        let Document { name, version, servers, equal, mut owners } = self;
        if servers.is_empty() {
            return Err("there is no line for a server".into());
        }
        match equal {
            Some(bits) if owners.is_empty() => owners = dealt(bits, &servers),
            Some(_) => {
                return Err("`equal` deals all cachelets, but there are lines of some".into());
            }
            None => {}
        }
        let MapVersion { map, local } = version.ok_or("there is no version")?;
        let map = ClusterMap::new(map, owners).map_err(|Uncovered(hash)| {
            format!("cachelets leave a gap, or overlap, from {:04x}", hash >> 48)
        })?;
        let name = name.unwrap_or_else(|| DEFAULT_NAME.into());
        Ok((Cluster { name, map: Arc::new(map), servers }, local))
    }
}

pub(crate) fn once<T>(place: &mut Option<T>, value: T) -> Result<(), &'static str> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err("once is enough"),
    }
}

pub(crate) fn parse_server(text: &str) -> Option<ServerId> {
    text.parse().ok().map(ServerId).filter(|server| *server != ServerId::NOBODY)
}

pub(crate) fn parse_owner(text: &str) -> Option<Owner> {
    let (id, worker) = text.split_once('/').unwrap_or((text, "0"));
    Some(Owner { server: parse_server(id)?, worker: WorkerId(worker.parse().ok()?) })
}

/// `[link HOST:PORT] client HOST:PORT [workers HOST:PORT,...]`
pub(crate) fn parse_addresses(words: &[&str]) -> Result<Addresses, &'static str> {
    let address = |text: &str| Address::parse(text).ok_or("an address is host:port");
    let (link, words) = match words {
        ["link", link, rest @ ..] => (Some(address(link)?), rest),
        rest => (None, rest),
    };
    let (client, workers) = match words {
        ["client", client] => (client, Vec::new()),
        ["client", client, "workers", workers] => {
            (client, workers.split(',').map(address).collect::<Result<_, _>>()?)
        }
        _ => return Err("a server has a client's address, and may have its workers'"),
    };
    Ok(Addresses { link, client: address(client)?, workers, resolved: None })
}

/// In turn, and among a server's workers in turn.
fn dealt(bits: u32, servers: &BTreeMap<ServerId, Addresses>) -> Vec<(Prefix, Owner)> {
    let owner = |at: usize| Owner {
        server: *servers.keys().nth(at % servers.len()).expect("one of them"),
        worker: WorkerId((at / servers.len()) as u16),
    };
    Prefix::equal(bits).enumerate().map(|(at, prefix)| (prefix, owner(at))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "cluster shop # ours\nversion 3\n\n\
        server 1 link a:1 client a:2\nserver 7 link [::1]:3 client b:4 workers b:5,b:6\n";

    fn owners(text: &str) -> Vec<String> {
        let cluster = Cluster::parse(text).expect("well formed");
        let line = |(prefix, owner): &(Prefix, Owner)| {
            format!("{prefix} {}/{}", owner.server.0, owner.worker.0)
        };
        cluster.map.cachelets().iter().map(line).collect()
    }

    #[test]
    fn cachelets_are_dealt_in_turn_or_named() {
        let equal = owners(&format!("{TWO}equal 2\n"));
        assert_eq!(equal, ["0000/2 1/0", "4000/2 7/0", "8000/2 1/1", "c000/2 7/1"]);
        let named = owners(&format!("{TWO}cachelet 8000/1 7/3\ncachelet 0000/1 1\n"));
        assert_eq!(named, ["0000/1 1/0", "8000/1 7/3"]);
        let cluster = Cluster::parse(&format!("{TWO}equal 0")).expect("well formed");
        assert_eq!((cluster.name.as_str(), cluster.map.version()), ("shop", 3));
        let at = &cluster.servers[&ServerId(7)];
        assert_eq!(at.link.as_ref().map(Address::to_string).as_deref(), Some("[::1]:3"));
        assert_eq!(at.workers.iter().map(|one| one.port).collect::<Vec<_>>(), [5, 6]);
    }

    #[test]
    fn equal_clusters_are_equal_bytes_that_read_as_they_are_written() {
        let whole = "cluster shop\nversion 3\nserver 1 link a:1 client a:2\n\
            server 7 link [::1]:3 client b:4 workers b:5,b:6\ncachelet 0000/1 1/0\ncachelet 8000/1 7/3\n";
        let read = Cluster::parse(&format!("{TWO}cachelet 8000/1  7/3\r\ncachelet 0000/1 1"));
        assert_eq!(read.as_ref().map(Cluster::to_string).as_deref(), Ok(whole));
        assert_eq!(Cluster::parse(whole), read);
        let seen = whole.replace("version 3", "version 3.17").replace("link a:1 ", "");
        let view = ClusterView::parse(&seen).expect("well formed");
        assert_eq!(view.version(), MapVersion { map: 3, local: 17 });
        assert_eq!(view.to_string(), seen);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (lines, why) in [
            ("equal 13", "line 6: cachelets have 0 to 12 bits: equal 13"),
            ("equal 1\nequal 1", "line 7: once is enough: equal 1"),
            ("cachelet 0000/1 1", "cachelets leave a gap, or overlap, from 8000"),
            ("cachelet 8000/1 1", "cachelets leave a gap, or overlap, from 0000"),
            (
                "cachelet 0000/0 1\ncachelet c000/2 7",
                "cachelets leave a gap, or overlap, from c000",
            ),
            ("", "cachelets leave a gap, or overlap, from 0000"),
            ("cachelet 8001/1 1", "line 6: a cachelet is named like 2c00/6: cachelet 8001/1 1"),
            ("cachelet 0000/0 2", "line 6: no line above tells of this server: cachelet 0000/0 2"),
            ("cachelet 0000/0 1/x", "line 6: an owner is server/worker: cachelet 0000/0 1/x"),
            (
                "server 1 link a:1 client a:2",
                "line 6: the server is there twice: server 1 link a:1 client a:2",
            ),
            (
                "server 65535 link a:1 client a:2",
                "line 6: a server is a number to 65534: server 65535 link a:1 client a:2",
            ),
            (
                "server 2 link a client a:2",
                "line 6: an address is host:port: server 2 link a client a:2",
            ),
            (
                "server 2 link a:1 client a:2 workers a:1,",
                "line 6: an address is host:port: server 2 link a:1 client a:2 workers a:1,",
            ),
            (
                "server 2 link a:1",
                "line 6: a server has a client's address, and may have its workers': server 2 link a:1",
            ),
            ("server 2 client a:2\nequal 0", "server 2 has no link address"),
            ("version 4", "line 6: once is enough: version 4"),
            ("sever 2", "line 6: not understood: sever 2"),
            (
                "equal 1\ncachelet 0000/0 1",
                "`equal` deals all cachelets, but there are lines of some",
            ),
        ] {
            let text = format!("{TWO}{lines}\n");
            assert_eq!(Cluster::parse(&text).err().as_deref(), Some(why), "{lines}");
        }
        assert_eq!(Cluster::parse("version 1").unwrap_err(), "there is no line for a server");
        let unversioned = TWO.replace("version 3", "");
        let unversioned = Cluster::parse(&format!("{unversioned}equal 1"));
        assert_eq!(unversioned.unwrap_err(), "there is no version");
        for version in ["0", "2147483648", "+1", "1.1", "x"] {
            let text = TWO.replace("version 3", &format!("version {version}"));
            let why = format!("line 2: a version is 1 or more, below 2^31: version {version}");
            assert_eq!(Cluster::parse(&text).unwrap_err(), why);
        }
        let plain = ClusterView::parse(&format!("{TWO}equal 1")).unwrap_err();
        assert_eq!(plain, "line 2: a version is 1 or more, below 2^31: version 3");
    }

    #[test]
    fn a_name_has_the_ipv4_address_that_was_found_for_it() {
        let ipv4 = |client: &str, resolved| {
            let client = Address::parse(client).expect("well formed");
            Addresses { link: None, client, workers: vec![], resolved }.client_ipv4()
        };
        let (one, other) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        assert_eq!(ipv4("10.0.0.1:1", Some(other)), Some(one));
        assert_eq!(ipv4("cache:1", Some(other)), Some(other));
        assert_eq!(ipv4("cache:1", None), None);
        assert_eq!(ipv4("[::1]:1", Some(other)), None);
    }
}
