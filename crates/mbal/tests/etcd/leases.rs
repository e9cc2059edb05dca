//! Servers that own by leases in etcd: they die, sleep, are cut off, and come back.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use crate::coordinators::Cluster;
use crate::running::Running;
use crate::signal;

const KEYS: usize = 60;
/// Longer than a lease, the drift of clocks, and what a lease of etcd outlasts it.
const PAST_ANY_LEASE: Duration = Duration::from_secs(12);

/// What one connection is told to one line.
fn told(stream: &mut TcpStream, request: &str, ends: &[&str]) -> String {
    stream.write_all(request.as_bytes()).expect("it is taken");
    let mut reply = Vec::new();
    let mut byte = [0];
    while !ends.iter().any(|end| reply.ends_with(end.as_bytes())) {
        stream.read_exact(&mut byte).expect("it answers");
        reply.push(byte[0]);
    }
    String::from_utf8(reply).expect("it is text")
}

/// Whether all keys could be stored by this server.
fn stores(server: &Running, value: &str) -> bool {
    let mut stream = server.connect();
    (0..KEYS).all(|n| {
        let set = format!("set k{n} 0 0 {}\r\n{value}\r\n", value.len());
        told(&mut stream, &set, &["\r\n"]) == "STORED\r\n"
    })
}

/// How many keys are read by this server; with any other value than this one it fails.
fn reads(server: &Running, value: &str) -> usize {
    let mut stream = server.connect();
    let hit = |n: &usize| format!("VALUE k{n} 0 {}\r\n{value}\r\nEND\r\n", value.len());
    (0..KEYS)
        .filter(|n| match told(&mut stream, &format!("get k{n}\r\n"), &["END\r\n"]) {
            reply if reply == "END\r\n" => false,
            reply if reply == hit(n) => true,
            reply => panic!("k{n} is {value}, and {reply:?} is told"),
        })
        .count()
}

/// How many cachelets the map gives to a server.
fn cachelets_of(cluster: &Cluster, server: u16) -> usize {
    let (worked, map) = cluster.tool(&["cluster", "map"]);
    let owner = format!(" {server}/0");
    let of_it = map.lines().filter(|line| line.starts_with("cachelet ") && line.ends_with(&owner));
    if worked { of_it.count() } else { 0 }
}

fn started(test: &str, flags: &[&str]) -> (Cluster, Vec<Running>) {
    let all: Vec<&str> = ["--servers", "3"].iter().chain(flags).copied().collect();
    let cluster = Cluster::start(test, &all);
    cluster.leader();
    let servers: Vec<Running> = (1..=3).map(|id| cluster.serve_as(id)).collect();
    cluster.eventually("all keys can be stored at each", |_| {
        servers.iter().all(|server| stores(server, "old"))
    });
    (cluster, servers)
}

#[test]
#[ignore = "needs etcd; ./test runs it"]
fn a_server_that_is_killed_is_served_elsewhere_and_returns_empty_to_its_share() {
    let (cluster, mut servers) = started("killed", &[]);
    assert!(cachelets_of(&cluster, 3) >= 16);
    let mut dead = servers.pop().expect("there are three");
    dead.child.kill().expect("it lives");
    cluster.eventually("the others serve all keys", |_| {
        servers.iter().all(|server| stores(server, "new"))
    });
    assert_eq!(cachelets_of(&cluster, 3), 0);
    let (_, events) = cluster.tool(&["cluster", "events"]);
    assert!(events.contains("the lease of server 3 is over"), "{events}");
    let again = cluster.serve_as(3);
    cluster.eventually("it has its share again", |cluster| cachelets_of(cluster, 3) >= 16);
    assert!(cluster.tool(&["cluster", "events"]).1.contains("server 3 gets its share"));
    cluster.eventually("all keys are read by it", |_| reads(&again, "new") == KEYS);
    assert!(stores(&again, "newer"));
}

#[test]
#[ignore = "needs etcd; ./test runs it"]
fn a_process_that_is_restarted_at_once_waits_until_its_predecessor_is_dead() {
    let (cluster, mut servers) = started("restarted", &[]);
    let mut dead = servers.pop().expect("there are three");
    dead.child.kill().expect("it lives");
    let again = cluster.serve_as(3);
    cluster.eventually("all serve all keys", |_| {
        servers.iter().chain([&again]).all(|server| stores(server, "new"))
    });
    let (_, events) = cluster.tool(&["cluster", "events"]);
    assert!(events.contains("the lease of server 3 is over"), "{events}");
    assert_eq!(events.matches("server 3 registers").count(), 2, "{events}");
}

#[test]
#[ignore = "needs etcd; ./test runs it"]
fn a_server_that_slept_past_its_lease_tells_nobody_what_it_knew() {
    let (cluster, servers) = started("slept", &[]);
    let (sleeper, awake) = servers.split_last().expect("there are three");
    let mut asked: Vec<TcpStream> = (0..KEYS).map(|_| sleeper.connect()).collect();
    for stream in &mut asked {
        assert!(told(stream, "version\r\n", &["\r\n"]).starts_with("VERSION"));
    }
    signal(&sleeper.child, "STOP");
    cluster.eventually("the others serve all keys", |_| {
        awake.iter().all(|server| stores(server, "new"))
    });
    // The kernel takes them for it: reads, and writes that are refused or come to pass where they belong.
    for (n, stream) in asked.iter_mut().enumerate() {
        stream.write_all(format!("get k{n}\r\n").as_bytes()).expect("it is taken");
    }
    signal(&sleeper.child, "CONT");
    for (n, stream) in asked.iter_mut().enumerate() {
        let reply = told(stream, "", &["END\r\n"]);
        let new = format!("VALUE k{n} 0 3\r\nnew\r\nEND\r\n");
        assert!(reply == "END\r\n" || reply == new, "{reply:?}");
    }
    cluster.eventually("it is another process to the coordinator", |cluster| {
        cluster.tool(&["cluster", "events"]).1.matches("server 3 registers").count() == 2
    });
    cluster.eventually("it has its share again", |cluster| cachelets_of(cluster, 3) >= 16);
    cluster.eventually("all keys are read by it", |_| reads(sleeper, "new") == KEYS);
    assert!(stores(sleeper, "newer"));
}

/// A way to etcd that can be cut.
struct Way {
    address: SocketAddr,
    is_cut: Arc<AtomicBool>,
}

impl Way {
    fn to(url: &str) -> Way {
        let to = url.strip_prefix("http://").expect("it is one").to_owned();
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("there are free ports");
        let address = listener.local_addr().expect("it has an address");
        let is_cut = Arc::new(AtomicBool::new(false));
        let cut = Arc::clone(&is_cut);
        std::thread::spawn(move || {
            for here in listener.incoming().flatten() {
                let Ok(there) = TcpStream::connect(&to) else { continue };
                let pairs = [(&here, &there), (&there, &here)];
                for (from, into) in pairs.map(|(a, b)| (a.try_clone(), b.try_clone())) {
                    let (Ok(from), Ok(into), cut) = (from, into, Arc::clone(&cut)) else { return };
                    std::thread::spawn(move || carry(from, into, &cut));
                }
            }
        });
        Way { address, is_cut }
    }
}

/// What comes while the way is cut is lost.
fn carry(mut from: TcpStream, mut into: TcpStream, is_cut: &AtomicBool) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if !is_cut.load(SeqCst) && into.write_all(&bytes[..count]).is_err() {
            return;
        }
    }
}

#[test]
#[ignore = "needs etcd; ./test runs it"]
fn servers_that_are_cut_off_from_etcd_own_nothing_while_a_coordinator_leads() {
    let folder = crate::running::Folder::new("etcd-ways");
    let etcd = crate::members::Members::start(&folder);
    let ways: Vec<Way> = etcd.urls().split(',').map(Way::to).collect();
    let urls: Vec<String> = ways.iter().map(|way| format!("http://{}", way.address)).collect();
    let urls = urls.join(",");
    let flags = ["--servers", "2", "--etcd-advertise", &urls];
    let cluster = Cluster::of(folder, etcd, &flags);
    cluster.leader();
    let servers = [cluster.serve_as(1), cluster.serve_as(2)];
    cluster.eventually("all keys can be stored", |_| {
        servers.iter().all(|server| stores(server, "old"))
    });
    ways.iter().for_each(|way| way.is_cut.store(true, SeqCst));
    for server in &servers {
        cluster.eventually("its own keys are misses", |_| reads(server, "old") == 0);
        let mut stream = server.connect();
        let set = "set k1 0 0 1\r\nv\r\n";
        assert_eq!(told(&mut stream, set, &["\r\n"]), "SERVER_ERROR no route to owner\r\n");
    }
    ways.iter().for_each(|way| way.is_cut.store(false, SeqCst));
    cluster.eventually("they are back, and empty", |_| {
        servers.iter().all(|server| stores(server, "new"))
    });
    assert_eq!(reads(&servers[0], "new"), KEYS);
}

#[test]
#[ignore = "needs etcd; ./test runs it"]
fn without_etcd_servers_go_on_for_ever_or_as_long_as_they_may() {
    for (flags, goes_on) in [(&[][..], true), (&["--etcd-grace", "1s"][..], false)] {
        let (mut cluster, servers) = started(&format!("without-{goes_on}"), flags);
        (0..3).for_each(|at| cluster.etcd.kill(at));
        match goes_on {
            true => {
                std::thread::sleep(PAST_ANY_LEASE);
                servers.iter().for_each(|server| assert_eq!(reads(server, "old"), KEYS));
                assert!(stores(&servers[0], "new"));
            }
            false => servers.iter().for_each(|server| {
                cluster.eventually("its own keys are misses", |_| reads(server, "old") == 0);
            }),
        }
        (0..3).for_each(|at| cluster.etcd.begin(at));
        cluster.eventually("a coordinator leads, and all is served", |cluster| {
            cluster.tool(&["cluster", "status"]).0
                && servers.iter().all(|server| stores(server, "newer"))
        });
        if goes_on {
            let registered = cluster.tool(&["cluster", "events"]).1;
            assert!(!registered.contains("is over"), "nobody has died: {registered}");
        }
    }
}
