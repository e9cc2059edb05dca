//! A fixed map: which servers there are, and which cachelets each of them has, as a file says it.
//!
//! ```text
//!   cluster shop                                     its name: servers of another one are no peers
//!   version 1                                        of the map; a change is a higher one
//!   server 1 link 10.0.0.1:11311 client 10.0.0.1:11211
//!   server 2 link 10.0.0.2:11311 client 10.0.0.2:11211
//!   equal 6                                          64 cachelets, dealt to the servers in turn
//! ```
//! Instead of `equal`, a line for each cachelet, which together cover all hashes: `cachelet 2c00/6 1`, or with a worker
//! of that server, `cachelet 2c00/6 1/3`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mbal_model::{ClusterMap, Owner, Prefix, ServerId, Uncovered, WorkerId};

/// What a server is told of its cluster.
#[derive(Clone, PartialEq)]
pub struct ClusterConfig {
    pub file: ClusterFile,
    pub here: ServerId,
    pub secret: Vec<u8>,
    /// Where other servers dial, if not at the port of the file's own address.
    pub link_port: Option<u16>,
    /// A request that another server has not answered for so long has failed.
    pub link_timeout: Duration,
}

/// Not the secret.
impl fmt::Debug for ClusterConfig {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ClusterConfig { file, here, link_port, link_timeout, .. } = self;
        let fields = (file, here, link_port, link_timeout);
        write!(out, "ClusterConfig {fields:?}")
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct ClusterFile {
    pub name: String,
    pub map: Arc<ClusterMap>,
    pub servers: BTreeMap<ServerId, Addresses>,
}

/// Of one server, as `host:port`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    pub link: String,
    pub client: String,
}

/// Prefixes that `equal` deals have no more bits than this.
const EQUAL_BITS_MAX: u32 = 12;

impl ClusterFile {
    /// What is wrong with it is told with its line.
    pub fn parse(text: &str) -> Result<ClusterFile, String> {
        let mut name = None;
        let mut version = None;
        let mut servers = BTreeMap::new();
        let mut equal = None;
        let mut owners = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or_default();
            let words: Vec<&str> = line.split_whitespace().collect();
            let failed = |why: &str| format!("line {number}: {why}: {}", words.join(" "));
            match words[..] {
                [] => {}
                ["cluster", said] if said.len() > mbal_link::CLUSTER_BYTES_MAX => {
                    return Err(failed("a name has at most 64 bytes"));
                }
                ["cluster", said] => once(&mut name, said.to_owned()).map_err(failed)?,
                ["version", said] => {
                    let number = said.parse::<u64>().ok().filter(|number| *number > 0);
                    let number = number.ok_or_else(|| failed("a version is 1 or more"))?;
                    once(&mut version, number).map_err(failed)?;
                }
                ["server", id, "link", link, "client", client] => {
                    let id = server(id).ok_or_else(|| failed("a server is a number to 65534"))?;
                    if !link.contains(':') || !client.contains(':') {
                        return Err(failed("an address is host:port"));
                    }
                    let addresses = Addresses { link: link.into(), client: client.into() };
                    if servers.insert(id, addresses).is_some() {
                        return Err(failed("the server is there twice"));
                    }
                }
                ["equal", bits] => {
                    let bits = bits.parse().ok().filter(|bits| *bits <= EQUAL_BITS_MAX);
                    let bits = bits.ok_or_else(|| failed("cachelets have 0 to 12 bits"))?;
                    once(&mut equal, bits).map_err(failed)?;
                }
                ["cachelet", prefix, owner] => {
                    let prefix = Prefix::parse(prefix.as_bytes());
                    let prefix = prefix.ok_or_else(|| failed("a cachelet is named like 2c00/6"))?;
                    let owner =
                        parse_owner(owner).ok_or_else(|| failed("an owner is server/worker"))?;
                    if !servers.contains_key(&owner.server) {
                        return Err(failed("no line above tells of this server"));
                    }
                    owners.push((prefix, owner));
                }
                _ => return Err(failed("not understood")),
            }
        }
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
        let map = ClusterMap::new(version.ok_or("there is no version")?, owners);
        let map = map.map_err(|Uncovered(hash)| {
            format!("cachelets leave a gap, or overlap, from {:04x}", hash >> 48)
        })?;
        let name = name.unwrap_or_else(|| "mbal".into());
        Ok(ClusterFile { name, map: Arc::new(map), servers })
    }
}

fn once<T>(place: &mut Option<T>, value: T) -> Result<(), &'static str> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err("once is enough"),
    }
}

fn server(text: &str) -> Option<ServerId> {
    text.parse().ok().map(ServerId).filter(|server| *server != ServerId::NOBODY)
}

fn parse_owner(text: &str) -> Option<Owner> {
    let (id, worker) = text.split_once('/').unwrap_or((text, "0"));
    Some(Owner { server: server(id)?, worker: WorkerId(worker.parse().ok()?) })
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
        server 1 link a:1 client a:2\nserver 7 link [::1]:3 client b:4\n";

    fn owners(text: &str) -> Vec<String> {
        let file = ClusterFile::parse(text).expect("well formed");
        let line = |(prefix, owner): &(Prefix, Owner)| {
            format!("{prefix} {}/{}", owner.server.0, owner.worker.0)
        };
        file.map.cachelets().iter().map(line).collect()
    }

    #[test]
    fn cachelets_are_dealt_in_turn_or_named() {
        let equal = owners(&format!("{TWO}equal 2\n"));
        assert_eq!(equal, ["0000/2 1/0", "4000/2 7/0", "8000/2 1/1", "c000/2 7/1"]);
        let named = owners(&format!("{TWO}cachelet 8000/1 7/3\ncachelet 0000/1 1\n"));
        assert_eq!(named, ["0000/1 1/0", "8000/1 7/3"]);
        let file = ClusterFile::parse(&format!("{TWO}equal 0")).expect("well formed");
        assert_eq!((file.name.as_str(), file.map.version()), ("shop", 3));
        assert_eq!(file.servers[&ServerId(7)].link, "[::1]:3");
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
            ("version 4", "line 6: once is enough: version 4"),
            ("sever 2", "line 6: not understood: sever 2"),
            (
                "equal 1\ncachelet 0000/0 1",
                "`equal` deals all cachelets, but there are lines of some",
            ),
        ] {
            let text = format!("{TWO}{lines}\n");
            assert_eq!(ClusterFile::parse(&text).err().as_deref(), Some(why), "{lines}");
        }
        assert_eq!(ClusterFile::parse("version 1").unwrap_err(), "there is no line for a server");
        let unversioned = TWO.replace("version 3", "");
        let unversioned = ClusterFile::parse(&format!("{unversioned}equal 1"));
        assert_eq!(unversioned.unwrap_err(), "there is no version");
    }
}
