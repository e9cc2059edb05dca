//! Upstreams by a cluster's map: its workers, which of them has which keys, and where hot keys have copies.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::thread;
use std::time::Duration;

use mbal_control::api::{HotKeys, HotMode, HotState};
use mbal_model::{Address, Cluster, ClusterView, Key, Owner, ServerId};
use mbal_proxy::{CopiedKey, PoolTold, RingServer, Slots};
use mbal_routing::Routes;
use mbal_server::{CallFailed, Caller, log};

/// Somebody who has not answered by then is not asked any longer.
const PATIENCE: Duration = Duration::from_secs(1);
/// Of a map: 32,768 cachelets and some thousands of servers.
const MAP_BYTES_MAX: usize = 16 << 20;

/// Who tells a proxy of its cluster: the coordinator, and the servers themselves while it is silent.
pub struct ClusterMap {
    caller: Caller,
    /// Of the newest map: where clients reach servers.
    clients: Vec<Address>,
    version: u64,
}

impl ClusterMap {
    /// `urls`: of the coordinators, by comma.
    pub fn new(urls: &str, token: Option<String>) -> Result<ClusterMap, String> {
        Ok(ClusterMap {
            caller: Caller::new(urls, token, PATIENCE)?,
            clients: Vec::new(),
            version: 0,
        })
    }

    /// The cluster as it is now. A first map is waited for, as servers do.
    pub fn pool(&mut self) -> Result<PoolTold, String> {
        let mut said = String::new();
        loop {
            match self.told() {
                Err(why) if self.version == 0 => {
                    if why != said {
                        let text = format!("mbal proxy: it waits for its cluster: {why}");
                        log::warn("waits_for_map", &text);
                    }
                    said = why;
                    thread::sleep(PATIENCE);
                }
                told => return told,
            }
        }
    }

    /// By the coordinator; by the servers, if that has none, or an older one than there was. If they have no newer one either it
    /// was set back.
    fn told(&mut self) -> Result<PoolTold, String> {
        let answer = self.caller.call("GET", "/v1/map", None::<&()>);
        let answer = answer.map_err(|failed| match failed {
            CallFailed::Silent(why) | CallFailed::Refused(_, why) => why,
        });
        let known = answer.and_then(|text| view(&text)).map(|view| (view, Address::unknown()));
        let is_new = |view: &ClusterView| self.version <= view.version().map;
        let (view, at, copies) = match known {
            Ok((view, at)) if is_new(&view) => (view, at, true),
            other => {
                let of = |client: &Address| {
                    let view = ClusterView::parse(&ask(client)?).ok()?;
                    Some((view, client.clone()))
                };
                let newest = self.clients.iter().filter_map(of);
                let newest = newest.max_by_key(|(view, _)| view.version().map);
                match (newest, other) {
                    (Some((view, at)), _) if is_new(&view) => (view, at, false),
                    (Some(_), Ok((view, at))) => (view, at, true),
                    (None, Ok((view, _))) => {
                        let (version, before) = (view.version().map, self.version);
                        return Err(format!(
                            "its map is version {version}, there was {before} before"
                        ));
                    }
                    (_, Err(why)) => return Err(format!("no coordinator, and no server: {why}")),
                }
            }
        };
        let version = view.version().map;
        let members = Members::of(&view, &at)?;
        self.version = version;
        self.clients = view.cluster.servers.values().map(|known| known.client.or(&at)).collect();
        let hot = match copies {
            true => self.caller.call("GET", "/v1/hotkeys", None::<&()>).ok(),
            false => None,
        };
        let hot = hot.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        let copies = members.copies(&hot);
        Ok(PoolTold { servers: members.servers, slots: Some(members.slots), copies })
    }
}

/// As a coordinator tells it, which knows of no loans in servers.
fn view(map: &str) -> Result<ClusterView, String> {
    Ok(ClusterView { cluster: Cluster::parse(map)?, local: 0 })
}

/// The map that a server has.
fn ask(client: &Address) -> Option<String> {
    let mut found = (client.host.as_str(), client.port).to_socket_addrs().ok()?;
    let mut stream = TcpStream::connect_timeout(&found.next()?, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.write_all(b"config get mbal 0.0\r\n").ok()?;
    let mut input = BufReader::new(stream);
    let mut line = String::new();
    input.by_ref().take(128).read_line(&mut line).ok()?;
    let bytes: usize = line.strip_prefix("CONFIG mbal 0 ")?.trim_end().parse().ok()?;
    let mut page = vec![0; Some(bytes).filter(|bytes| *bytes <= MAP_BYTES_MAX)?];
    input.read_exact(&mut page).ok()?;
    String::from_utf8(page).ok()
}

/// Workers of a cluster, as members of a pool.
struct Members {
    servers: Vec<RingServer>,
    /// Of each server, the members that are its workers.
    workers: BTreeMap<ServerId, Vec<u16>>,
    slots: Slots,
}

impl Members {
    fn of(view: &ClusterView, at: &Address) -> Result<Members, String> {
        let routes = Routes::new(view, at);
        let mut numbers: BTreeMap<Owner, u16> = BTreeMap::new();
        let mut workers: BTreeMap<ServerId, Vec<u16>> = BTreeMap::new();
        let mut servers: Vec<RingServer> = Vec::new();
        for owner in routes.owners() {
            let address = routes.address(owner).ok_or("its map has no addresses")?;
            let member = u16::try_from(servers.len()).map_err(|_| "it has too many workers")?;
            let (host, port) = (address.host.clone(), address.port);
            servers.push(RingServer { host, port, weight: 1, name: None });
            numbers.insert(owner, member);
            workers.entry(owner.server).or_default().push(member);
        }
        let slots = Slots::new(|hash| numbers[&routes.route(hash).owner]);
        Ok(Members { servers, workers, slots })
    }

    fn copies(&self, hot: &HotKeys) -> Vec<CopiedKey> {
        // One that may be older than another would let a client's reads go back in time: it has several servers, by turns.
        if hot.status.told.mode != HotMode::Atomic {
            return Vec::new();
        }
        let is_copied = |report: &&mbal_control::api::HotReport| {
            report.state == Some(HotState::Hot) && !report.copies.is_empty()
        };
        let copied =
            hot.keys.iter().map(|key| &key.report).filter(is_copied).filter_map(|report| {
                let key = mbal_wire::unescaped(report.key.as_bytes());
                let hash = Key::new(&key)?.hash();
                // Any worker of a server answers from its copies.
                let worker = |server: &u16| {
                    let own = self.workers.get(&ServerId(*server))?;
                    own.get((hash % own.len().max(1) as u64) as usize).copied()
                };
                let home = self.slots.member(&key) as u16;
                let members = std::iter::once(home).chain(report.copies.iter().filter_map(worker));
                let members: Vec<u16> = members.collect();
                Some(CopiedKey { key: key.to_vec(), members })
            });
        let mut copied: Vec<CopiedKey> = copied.collect();
        // Rates change their order, which means nothing here.
        copied.sort_unstable_by(|one, other| one.key.cmp(&other.key));
        copied
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mbal_control::api::{HotKey, HotReport};

    const MAP: &str = "cluster shop\nversion 7\n\
        server 1 link 10.0.0.1:7 client 10.0.0.1:1 workers 10.0.0.1:10,10.0.0.1:11\n\
        server 4 link 10.0.0.4:7 client 10.0.0.4:1 workers 10.0.0.4:40\n\
        cachelet 0000/1 4/0\ncachelet 8000/1 1/1\n";

    fn members() -> Members {
        Members::of(&view(MAP).expect("a map"), &Address::unknown()).expect("members")
    }

    #[test]
    fn workers_are_members_and_have_what_the_map_says() {
        let members = members();
        let at: Vec<String> = members.servers.iter().map(ToString::to_string).collect();
        assert_eq!(at, ["10.0.0.1:10", "10.0.0.1:11", "10.0.0.4:40"]);
        let (mut upper, mut lower) = (0, 0);
        for number in 0..100 {
            let key = format!("key-{number}");
            let is_upper = Key::new(key.as_bytes()).expect("short").hash() >> 63 == 1;
            assert_eq!(members.slots.member(key.as_bytes()), if is_upper { 1 } else { 2 });
            (upper, lower) = (upper + u32::from(is_upper), lower + u32::from(!is_upper));
        }
        assert!(upper > 20 && lower > 20);
    }

    #[test]
    fn hot_keys_are_answered_where_their_copies_are() {
        let members = members();
        let report = |key: &str, state, copies: &[u16]| HotKey {
            server: 1,
            report: HotReport {
                key: key.into(),
                state,
                copies: copies.into(),
                ..HotReport::default()
            },
        };
        let mut hot = HotKeys::default();
        hot.status.told.mode = HotMode::Atomic;
        hot.keys = vec![
            report("b", Some(HotState::Hot), &[4, 9]),
            report("a%20b", Some(HotState::Hot), &[1, 4]),
            report("pending", Some(HotState::HotPending), &[4]),
            report("cold", None, &[]),
        ];
        let copies = members.copies(&hot);
        let keys: Vec<&[u8]> = copies.iter().map(|one| &one.key[..]).collect();
        assert_eq!(keys, [&b"a b"[..], b"b"]);
        assert_eq!(copies[1].members.len(), 2, "server 9 is not there");
        assert!(copies[1].members.contains(&2));
        hot.status.told.mode = HotMode::Async;
        assert_eq!(members.copies(&hot), []);
    }
}
