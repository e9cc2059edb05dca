//! Who there is in a cluster: what clients of ElastiCache's auto-discovery are told, and what smart clients are.

use std::net::Ipv4Addr;
use std::sync::Arc;

use mbal_model::{Cluster, ClusterMap, Key, Owner, Prefix, ServerId, WorkerId};
use mbal_worker::{Event, Settings};

use crate::rig::{CONN, Rig};

const THREE: &str = "cluster shop\nversion 12\n\
    server 1 link 10.0.0.1:11311 client 10.0.0.1:11211 workers 10.0.0.1:1,10.0.0.1:2\n\
    server 2 link cache2:11311 client cache2.example:11212\n\
    server 3 link [::1]:11311 client [2001:db8::3]:11213\n\
    cachelet 0000/1 1/0\ncachelet 8000/2 2/1\ncachelet c000/2 1/3\n";

const LISTED: &str =
    "12\n10.0.0.1|10.0.0.1|11211 cache2.example|10.0.0.2|11212 2001:db8::3||11213\n";

fn rig_of(document: &str, workers: u16) -> Rig {
    let mut cluster = Cluster::parse(document).expect("well formed");
    if let Some(second) = cluster.servers.get_mut(&ServerId(2)) {
        second.resolved = Some(Ipv4Addr::new(10, 0, 0, 2));
    }
    let mut rig = Rig::with(Settings { workers, ..Settings::default() });
    rig.handle(Event::Mapped { here: ServerId(1), cluster: Arc::new(cluster) });
    rig
}

fn framed(name: &str, payload: &str) -> String {
    format!("CONFIG {name} 0 {}\r\n{payload}\r\nEND\r\n", payload.len())
}

/// A binary `config get`.
fn binary(key: &str) -> Vec<u8> {
    let mut request = vec![0x80, 0x60, 0, key.len() as u8, 0, 0, 0, 0, 0, 0, 0, key.len() as u8];
    request.extend_from_slice(b"opaq\0\0\0\0\0\0\0\0");
    request.extend_from_slice(key.as_bytes());
    request
}

#[test]
fn a_server_that_has_not_heard_of_a_map_tells_of_none() {
    let mut rig = Rig::new();
    let nobody = Owner { server: ServerId::NOBODY, worker: WorkerId(0) };
    let map = ClusterMap::new(0, vec![(Prefix::ALL, nobody)]).expect("it covers all");
    let cluster = Arc::new(Cluster::without_addresses(map));
    rig.handle(Event::Mapped { here: ServerId(0), cluster });
    rig.check("config get mbal\r\n", "END\r\n");
    rig.check("config get mbal 0.0\r\n", "END\r\n");
    rig.check("config get cluster\r\n", "ERROR\r\n");
}

#[test]
fn a_request_for_the_cluster_is_answered_with_all_servers_client_ports() {
    let mut rig = rig_of(THREE, 1);
    let listed = framed("cluster", LISTED);
    // pylibmc's autoconf, the one client that asks for the key of a server as new as this, splits it at its one line feed.
    let one = LISTED.trim_end();
    let value = format!("VALUE AmazonElastiCache:cluster 0 {}\r\n{one}\r\nEND\r\n", one.len());
    for (request, reply) in [
        ("config get cluster\r\n", &*listed),
        ("config get cluster\n", &listed),
        ("config  get  cluster \r\n", &listed),
        ("get AmazonElastiCache:cluster\r\n", &value),
        ("get  AmazonElastiCache:cluster \n", &value),
        ("config get cluster 1\r\n", "ERROR\r\n"),
        ("config get clusters\r\n", "ERROR\r\n"),
        // pylibmc's, word by word: it goes on with the key.
        ("config get b'cluster'\r\n", "ERROR\r\n"),
        ("config get\r\n", "ERROR\r\n"),
        ("config set cluster 0 1\r\n", "ERROR\r\n"),
        ("config\r\n", "ERROR\r\n"),
        ("CONFIG get cluster\r\n", "ERROR\r\n"),
        ("config get cluster\r\nmn\r\n", &(listed.clone() + "MN\r\n")),
    ] {
        rig.check(request, reply);
    }
}

#[test]
fn the_older_key_is_an_ordinary_one_for_everything_but_a_single_get() {
    // All of it is here.
    let one = "version 12\nserver 1 link a:1 client 10.0.0.1:2\nequal 1\n";
    let mut rig = rig_of(one, 1);
    rig.check("set AmazonElastiCache:cluster 5 0 1\r\nv\r\n", "STORED\r\n");
    let value = "VALUE AmazonElastiCache:cluster 5 1\r\nv\r\n";
    rig.check("get k AmazonElastiCache:cluster\r\n", &format!("{value}END\r\n"));
    rig.check("gat 0 AmazonElastiCache:cluster\r\n", &format!("{value}END\r\n"));
    rig.check("mg AmazonElastiCache:cluster v\r\n", "VA 1\r\nv\r\n");
    let listed = "12\n10.0.0.1|10.0.0.1|2";
    let told = format!("VALUE AmazonElastiCache:cluster 0 {}\r\n{listed}\r\n", listed.len());
    rig.check("get AmazonElastiCache:cluster\r\n", &format!("{told}END\r\n"));
}

#[test]
fn a_binary_request_is_answered_with_a_value_and_its_flags() {
    let mut rig = rig_of(THREE, 1);
    let mut reply = vec![0x81, 0x60, 0, 0, 4, 0, 0, 0, 0, 0, 0, 4 + LISTED.len() as u8];
    reply.extend_from_slice(b"opaq\0\0\0\0\0\0\0\0\0\0\0\0");
    reply.extend_from_slice(LISTED.as_bytes());
    assert_eq!(rig.send(&binary("cluster")), reply);
    // An unknown command takes its body along once more, as memcached has it.
    let unknown = rig.send(&[binary("clusters"), vec![0; 8]].concat());
    assert_eq!((unknown[7], &unknown[24..]), (0x81, &b"Unknown command"[..]));
}

#[test]
fn a_server_without_a_cluster_knows_no_such_command_and_has_the_key_as_any_other() {
    let mut rig = Rig::new();
    rig.check("config get cluster\r\n", "ERROR\r\n");
    rig.check("get AmazonElastiCache:cluster\r\n", "END\r\n");
    rig.check("set AmazonElastiCache:cluster 0 0 1\r\nv\r\n", "STORED\r\n");
    let value = "VALUE AmazonElastiCache:cluster 0 1\r\nv\r\nEND\r\n";
    rig.check("get AmazonElastiCache:cluster\r\n", value);
    let mut rig = Rig::new();
    // What follows is understood.
    let noop = [&[0x80, 0x0a][..], &[0; 10], b"opaq", &[0; 8]].concat();
    let replies = rig.send(&[binary("cluster"), noop].concat());
    assert_eq!((replies[7], &replies[24..39]), (0x81, &b"Unknown command"[..]));
    assert_eq!((replies.len(), replies[40], replies[46]), (24 + 15 + 24, 0x0a, 0));
}

#[test]
fn a_smart_client_is_told_the_map_with_this_servers_loans() {
    let mut rig = rig_of(THREE, 2);
    let told = |version: &str, owner: &str| {
        let page = THREE.replace("version 12", &format!("version 12.{version}"));
        // There are two workers: the map's worker 3 is the second one.
        let page = page.replace("c000/2 1/3", "c000/2 1/1");
        framed("mbal", &page.replace("0000/1 1/0", &format!("0000/1 1/{owner}")))
    };
    // By the births of the cachelets that this server has.
    let version = rig.server.store.version();
    rig.check("config get mbal\r\n", &told(&version.to_string(), "0"));
    rig.check("config get mbal 11.9\r\n", &told(&version.to_string(), "0"));
    rig.check(&format!("config get mbal 12.{version}\r\n"), "END\r\n");
    let prefix = mbal_model::Prefix::nth(0, 1);
    let (order, to) = (mbal_worker::OrderId(0), mbal_model::WorkerId(1));
    rig.handle(Event::Lend { order, cachelet: prefix, to, seen: version });
    let lent = told(&(version + 1).to_string(), "1");
    rig.check(&format!("config get mbal 12.{version}\r\n"), &lent);
    rig.check("config get mbal 12\r\n", "CLIENT_ERROR bad command line format\r\n");
}

#[test]
fn a_smart_client_that_knows_an_older_map_is_told_what_has_changed() {
    let mut rig = rig_of(THREE, 2);
    let version = rig.server.store.version();
    let own = "cachelet 0000/1 1/0\ncachelet c000/2 1/1\n";
    // Of this server nothing is known but the map; then all is.
    let told = framed("mbal", &format!("from 12.0\nversion 12.{version}\n{own}"));
    rig.check("config get mbal 12.0 changes\r\n", &told);
    rig.check(&format!("config get mbal 12.{version} changes\r\n"), "END\r\n");
    // Two maps later, one server has gone, another has come, and a cachelet has moved back and forth.
    let next = THREE.replace("version 12", "version 13").replace("8000/2 2/1", "8000/2 1/0");
    let last = THREE.replace("version 12", "version 15").replace("c000/2 1/3", "c000/2 2/0");
    for page in [&next, &last] {
        let cluster = Arc::new(Cluster::parse(page).expect("well formed"));
        rig.handle(Event::Mapped { here: ServerId(1), cluster });
    }
    let now = rig.server.store.version();
    let changes = "cachelet 0000/1 1/0\ncachelet 8000/2 2/1\ncachelet c000/2 2/0\n";
    let told = framed("mbal", &format!("from 12.{version}\nversion 15.{now}\n{changes}"));
    rig.check(&format!("config get mbal 12.{version} changes\r\n"), &told);
    let told = framed("mbal", &format!("from 13.{now}\nversion 15.{now}\n{}", &changes[20..]));
    rig.check(&format!("config get mbal 13.{now} changes\r\n"), &told);
    // What nobody remembers, or nobody asks for changes of, is told whole.
    for asked in ["11.9 changes", "14.1 changes", "12.1"] {
        let reply = String::from_utf8(rig.send(format!("config get mbal {asked}\r\n").as_bytes()));
        assert!(reply.expect("text").contains("\r\ncluster "), "{asked}");
    }
    rig.check("config get mbal 16.0 changes\r\n", "END\r\n");
    rig.check("config get mbal 12.1 change\r\n", "CLIENT_ERROR bad command line format\r\n");
}

#[test]
fn a_proxy_is_told_the_servers_alone() {
    let mut rig = rig_of(THREE, 1);
    let servers = &THREE[..THREE.find("cachelet").expect("it is there")];
    let lines = servers.lines().map(|line| line.split(" workers").next().expect("the first"));
    let told: String = lines.map(|line| format!("{line}\n")).collect();
    rig.check("config get mbal servers\r\n", &framed("mbal", &told));
}

#[test]
fn a_cachelet_that_was_split_is_told_in_its_parts_and_a_wider_one_as_the_map_has_it() {
    let mut rig = rig_of(THREE, 1);
    let store = &rig.server.store;
    let whole = mbal_model::Prefix::nth(0, 1);
    assert!(store.split(whole, 100));
    while store.split_step(whole, 100) {}
    let told = String::from_utf8(rig.send(b"config get mbal\r\n")).expect("text");
    assert!(told.contains("\ncachelet 0000/2 1/0\ncachelet 4000/2 1/0\ncachelet 8000/2 2/1\n"));
    // The next map divides a cachelet that the store has in one: its split is not over when the map is told.
    let finer = THREE.replace("version 12", "version 13");
    let finer = finer.replace("c000/2 1/3\n", "c000/3 1/0\ncachelet e000/3 1/0\n");
    let cluster = Arc::new(Cluster::parse(&finer).expect("well formed"));
    rig.handle(Event::Mapped { here: ServerId(1), cluster });
    let told = String::from_utf8(rig.send(b"config get mbal\r\n")).expect("text");
    assert!(told.contains("\ncachelet c000/3 1/0\ncachelet e000/3 1/0\n"), "{told}");
}

#[test]
fn the_older_key_is_answered_by_a_server_that_does_not_own_it() {
    let mut rig = rig_of(THREE, 1);
    let hash = Key::new(b"AmazonElastiCache:cluster").expect("short").hash();
    let elsewhere = THREE.replace("1/0", "2/0").replace("1/3", "2/0").replace("n 12", "n 13");
    let cluster = Cluster::parse(&elsewhere).expect("well formed");
    assert_eq!(cluster.map.at(hash).1.server, ServerId(2));
    rig.handle(Event::Mapped { here: ServerId(1), cluster: Arc::new(cluster) });
    rig.open(CONN);
    let told = rig.send(b"get AmazonElastiCache:cluster\r\n");
    assert!(told.starts_with(b"VALUE AmazonElastiCache:cluster 0 "));
}
