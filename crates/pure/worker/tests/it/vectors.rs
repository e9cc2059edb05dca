//! The vectors for authors of clients (conformance/vectors, docs/design/protocol.md) say what servers do.

use std::collections::BTreeSet;
use std::sync::Arc;

use mbal_model::{Cluster, Instant, Key, ReplicaVersion, ServerId};
use mbal_replica::{Announcement, Choice, Leases};
use mbal_routing::place;
use mbal_wire::unescaped;
use mbal_worker::{Action, Event, Settings, Ticketed};

use crate::rig::{CONN, Rig};

const MAP: &str = include_str!("../../../../../conformance/vectors/map.txt");
const PLACEMENT: &str = include_str!("../../../../../conformance/vectors/placement.txt");
const COPIES: &str = include_str!("../../../../../conformance/vectors/copies.txt");
const TALK: &str = include_str!("../../../../../conformance/vectors/talk.txt");

fn lines(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}

#[test]
fn every_key_of_the_vectors_is_where_they_say() {
    let cluster = Cluster::parse(MAP).expect("well formed");
    let mut seen = 0;
    for line in lines(PLACEMENT) {
        let [key, hash, node, cachelet, owner, vbucket] = line.split('\t').collect::<Vec<_>>()[..]
        else {
            panic!("six fields: {line}")
        };
        let bytes = unescaped(key.as_bytes());
        let found = Key::new(&bytes).expect("it is a key").hash();
        let (prefix, at) = cluster.map.at(found);
        let told = [
            format!("{found:016x}"),
            format!("{:04x}", found >> 48),
            prefix.to_string(),
            format!("{}/{}", at.server.0, at.worker.0),
            format!("{:04x}", prefix.vbucket()),
        ];
        assert_eq!(told, [hash, node, cachelet, owner, vbucket], "{key}");
        seen += 1;
    }
    assert!(seen > 30, "{seen}");
}

/// Both servers, by server and worker.
struct Servers(Vec<((u16, u16), Rig)>);

impl Servers {
    fn new() -> Servers {
        let cluster = Arc::new(Cluster::parse(MAP).expect("well formed"));
        let mut all = Vec::new();
        for here in [1, 2] {
            let first = Rig::with(Settings { workers: 2, ..Settings::default() });
            let mut second = first.another_worker();
            second.open(CONN);
            for (worker, mut rig) in [(0, first), (1, second)] {
                rig.handle(Event::Mapped { here: ServerId(here), cluster: Arc::clone(&cluster) });
                rig.handle(Event::LinkUp { server: ServerId(3 - here), credits: 9 });
                all.push(((here, worker), rig));
            }
        }
        Servers(all)
    }

    fn at(&mut self, place: (u16, u16)) -> &mut Rig {
        let found = self.0.iter_mut().find(|(at, _)| *at == place);
        &mut found.expect("there are two servers of two workers").1
    }

    /// What comes back, if another server has to be asked, too.
    fn ask(&mut self, place: (u16, u16), bytes: &[u8]) -> Vec<u8> {
        let mut actions = self.at(place).handle(Event::Received { conn: CONN, bytes });
        let mut out = actions.bytes.clone();
        loop {
            let forward = actions.list.iter().find_map(|action| match action {
                Action::Forward { server, ticket, request, .. } => {
                    Some((*server, *ticket, request.clone()))
                }
                _ => None,
            });
            let Some((server, ticket, request)) = forward else { return out };
            let requests = [Ticketed::new(ticket, &actions.requests[request])];
            let from = ServerId(place.0);
            let asked = self
                .at((server.0, place.1))
                .handle(Event::Forwarded { server: from, requests: &requests });
            let [Action::Answer { reply, .. }] = &asked.list[..] else {
                panic!("{:?}", asked.list)
            };
            let replies = [Ticketed::new(ticket, &asked.bytes[reply.clone()])];
            actions = self.at(place).handle(Event::Answered { server, replies: &replies });
            out.extend_from_slice(&actions.bytes);
        }
    }
}

fn numbers(text: &str) -> (u16, u16) {
    let (server, worker) = text.split_once('/').expect("S/W");
    (server.parse().expect("a number"), worker.parse().expect("a number"))
}

fn binary_get(key: &str, vbucket: u16) -> Vec<u8> {
    let mut request = vec![0x80, 0, 0, key.len() as u8, 0, 0];
    request.extend(vbucket.to_be_bytes());
    request.extend((key.len() as u32).to_be_bytes());
    request.extend([0; 12]);
    request.extend(key.as_bytes());
    request
}

#[test]
fn servers_answer_what_the_vectors_say() {
    let mut servers = Servers::new();
    let local = servers.at((1, 0)).server.store.version().to_string();
    assert_eq!(servers.at((2, 0)).server.store.version().to_string(), local, "both are new");
    let mut place = (0, 0);
    let (mut sent, mut expected) = (Vec::new(), Vec::<u8>::new());
    let mut exchanges = 0;
    // Lines of a block of requests, then those of its replies; whatever comes next ends it.
    for line in lines(TALK).chain(["end"]) {
        let line = line.replace("LOCAL", &local);
        let (mark, text) = line.split_once(' ').unwrap_or((&line, ""));
        if !mark.contains('<') && !expected.is_empty() {
            let told = servers.ask(place, &sent);
            assert_eq!(
                String::from_utf8_lossy(&told),
                String::from_utf8_lossy(&expected),
                "at {place:?}, to {:?}",
                String::from_utf8_lossy(&sent)
            );
            (sent, expected) = Default::default();
            exchanges += 1;
        }
        match mark {
            "at" => {
                place = numbers(text);
                servers.at(place).handle(Event::Closed { conn: CONN });
                servers.at(place).open(CONN);
            }
            ">" => sent.extend_from_slice(format!("{text}\r\n").as_bytes()),
            "<" => expected.extend_from_slice(format!("{text}\r\n").as_bytes()),
            "<n" => expected.extend_from_slice(format!("{text}\n").as_bytes()),
            "v>" => {
                let (key, vbucket) = text.split_once(' ').expect("key and vbucket");
                // A binary client has connections of its own.
                servers.at(place).handle(Event::Closed { conn: CONN });
                servers.at(place).open(CONN);
                sent = binary_get(key, u16::from_str_radix(vbucket, 16).expect("hexadecimal"));
            }
            "v<" => {
                let (status, value) = text.split_once(' ').expect("status and value");
                let status = u16::from_str_radix(status, 16).expect("hexadecimal").to_be_bytes();
                expected = vec![0x81, 0, 0, 0, 0, 0, status[0], status[1]];
                expected.extend((value.len() as u32).to_be_bytes());
                expected.extend([0; 12]);
                expected.extend(value.as_bytes());
            }
            "end" => {}
            other => panic!("{other:?} begins no line"),
        }
    }
    assert!(exchanges > 15, "{exchanges}");
}

/// Where a read may go: home, or to suffixes.
fn may_go(leases: &mut Leases, at: Instant) -> BTreeSet<String> {
    let word = |choice| match choice {
        Choice::Home => "home".to_owned(),
        Choice::Copy { suffix, seen } if seen == ReplicaVersion::default() => suffix.to_string(),
        Choice::Copy { suffix, seen } => format!("{suffix}*{seen}"),
    };
    // The highest bits choose.
    (0..64).map(|part| word(leases.route(HASH, at, part << 26))).collect()
}

const HASH: u64 = 9;

#[test]
fn leases_are_as_the_vectors_say() {
    let new = || Leases::new(4, 4, 9, Instant::ZERO);
    let millis = |text: &str| Instant::from_millis(text.parse().expect("a number"));
    let (mut leases, mut reads) = (new(), 0);
    for line in lines(COPIES) {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["client"] => leases = new(),
            [way @ ("reply" | "passed"), asked, now, token] => {
                let told = Announcement::parse(token.as_bytes());
                if told.is_some() || token == "-" {
                    let asked = (millis(asked), way == "passed");
                    leases.answered(HASH, asked, told.as_ref(), millis(now));
                }
            }
            ["saw", now, token] => {
                let replica_version = token.strip_prefix('@').expect("a copy's token");
                let replica_version =
                    ReplicaVersion::parse(replica_version.as_bytes()).expect("a version");
                leases.saw(HASH, replica_version, millis(now));
            }
            ["wrote", now] => leases.without(HASH, millis(now)),
            ["map", now, version] => {
                let version = version.parse().expect("a version");
                leases.follow(version, millis(now));
            }
            ["reads", now, expected] => {
                let found = may_go(&mut leases, millis(now));
                let expected: BTreeSet<String> = expected.split(',').map(str::to_owned).collect();
                assert_eq!(found, expected, "{line}");
                reads += 1;
            }
            ["copy", key, suffix, servers, expected] => {
                let bytes = unescaped(key.as_bytes());
                let key = Key::new(&bytes).expect("it is a key");
                let servers = servers.split(',').map(|id| ServerId(id.parse().expect("an id")));
                let found = place(&key, suffix.parse().expect("a suffix"), servers);
                let found = found.expect("there are servers");
                let found = format!("{}/{}", found.server.0, found.worker(4).0);
                assert_eq!(found, expected, "{line}");
                reads += 1;
            }
            _ => panic!("no such line: {line}"),
        }
    }
    assert!(reads > 80, "{reads}");
}
