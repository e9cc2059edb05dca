//! Several servers that share the keys by a fixed map: what each can ask of the others, and what is left when one is gone.

use std::collections::BTreeSet;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

mod running;

use mbal_link::{Dialing, NONCE_BYTES, Step, next_frame};
use running::{Folder, Running, ask, certificate, eventually, free_ports, stats};

const KEYS: usize = 40;

/// Files and addresses of three servers.
struct Cluster {
    folder: Folder,
    links: Vec<u16>,
    more: Vec<String>,
}

impl Cluster {
    fn new(test: &str, more: &[&str]) -> Cluster {
        let folder = Folder::new(test);
        let links = free_ports(3);
        let mut map = "cluster test\nversion 1\nequal 5\n".to_owned();
        for (id, port) in (1..).zip(&links) {
            map += &format!("server {id} link 127.0.0.1:{port} client 127.0.0.1:0\n");
        }
        fs::write(folder.path("map"), map).unwrap();
        folder.keep("secret", "a secret of this test\n");
        Cluster { folder, links, more: more.iter().map(|word| word.to_string()).collect() }
    }

    fn start(&self, id: usize) -> Running {
        let path = |name: &str| self.folder.path(name).display().to_string();
        let (id, map, secret) = (id.to_string(), path("map"), path("secret"));
        let mut arguments: Vec<&str> = vec!["-p", "-1", "-t", "2", "--control", "off"];
        arguments.extend(["--cluster", &map, "--server-id", &id, "--cluster-secret", &secret]);
        arguments.extend(self.more.iter().map(String::as_str));
        drop(fs::remove_file(self.folder.path("ports")));
        Running::serve(&self.folder, &arguments)
    }

    fn start_all(&self) -> Vec<Running> {
        let servers: Vec<Running> = (1..=3).map(|id| self.start(id)).collect();
        for server in &servers {
            eventually("all owners can be reached", || lost(server).is_empty());
        }
        servers
    }
}

fn key(nth: usize) -> String {
    format!("k{nth}")
}

fn reply_to(stream: &mut TcpStream, request: &str) -> String {
    stream.write_all(request.as_bytes()).unwrap();
    stream.write_all(b"mn\r\n").unwrap();
    let mut reply = Vec::new();
    let mut room = [0; 4096];
    while !reply.ends_with(b"MN\r\n") {
        let count = stream.read(&mut room).unwrap();
        assert!(count > 0, "closed after {reply:?}");
        reply.extend_from_slice(&room[..count]);
    }
    reply.truncate(reply.len() - 4);
    String::from_utf8(reply).unwrap()
}

/// Stores all keys at this server's port: those whose owner it does not reach, by either worker.
fn lost(server: &Running) -> BTreeSet<usize> {
    let request: String = (0..KEYS).map(|n| format!("set {} 0 0 1\r\nv\r\n", key(n))).collect();
    // The connections of a moment are spread over the workers.
    let mut streams = [server.connect(), server.connect()];
    let mut lost = BTreeSet::new();
    for stream in &mut streams {
        let reply = reply_to(stream, &request);
        for (nth, line) in reply.split_terminator("\r\n").enumerate() {
            match line {
                "STORED" => {}
                "SERVER_ERROR no route to owner" => drop(lost.insert(nth)),
                other => panic!("{other}"),
            }
        }
    }
    lost
}

/// The keys that a `get` of all does not find.
fn missed(server: &Running) -> BTreeSet<usize> {
    let names: Vec<String> = (0..KEYS).map(key).collect();
    let reply = reply_to(&mut server.connect(), &format!("get {}\r\n", names.join(" ")));
    assert!(reply.ends_with("END\r\n"), "{reply}");
    let found = |nth: &usize| reply.contains(&format!("VALUE {} 0 1\r\nv\r\n", key(*nth)));
    (0..KEYS).filter(|nth| !found(nth)).collect()
}

fn send_signal(server: &Running, name: &str) {
    running::signals::send(server.child.id(), name);
}

fn unreachable(server: &Running) -> u64 {
    let stats = stats(&mut server.connect());
    let line = stats.lines().find_map(|line| line.strip_prefix("STAT get_unreachable "));
    line.expect("a cluster's server tells it").parse().unwrap()
}

#[test]
fn every_port_serves_every_key() {
    let cluster = Cluster::new("every", &[]);
    let servers = cluster.start_all();
    for server in &servers {
        assert_eq!(missed(server), BTreeSet::new());
        assert_eq!(unreachable(server), 0);
    }
    ask(&mut servers[1].connect(), "flush_all\r\n", "OK\r\n");
    for server in &servers {
        assert_eq!(missed(server).len(), KEYS);
    }
}

#[test]
fn long_values_cross_links_many_at_a_time() {
    const VALUE_BYTES: usize = 900_000;
    let cluster = Cluster::new("long", &["-m", "256"]);
    let servers = cluster.start_all();
    let value = "v".repeat(VALUE_BYTES);
    let mut first = servers[0].connect();
    for nth in 0..30 {
        ask(
            &mut first,
            &format!("set {} 0 0 {VALUE_BYTES}\r\n{value}\r\n", key(nth)),
            "STORED\r\n",
        );
    }
    // More replies than a link holds back, and than the client takes while it asks.
    let mut second = servers[1].connect();
    let (mut requests, mut replies) = (String::new(), String::new());
    for _ in 0..2 {
        for nth in 0..30 {
            requests += &format!("mg {} v\r\n", key(nth));
            replies += &format!("VA {VALUE_BYTES}\r\n{value}\r\n");
        }
        let names: Vec<String> = (0..30).map(key).collect();
        requests += &format!("get {}\r\n", names.join(" "));
        for name in &names {
            replies += &format!("VALUE {name} 0 {VALUE_BYTES}\r\n{value}\r\n");
        }
        replies += "END\r\n";
    }
    second.write_all(requests.as_bytes()).unwrap();
    let mut room = vec![0; replies.len()];
    second.read_exact(&mut room).unwrap();
    assert!(room == replies.as_bytes());
    for server in &servers {
        assert_eq!(lost(server), BTreeSet::new());
    }
}

#[test]
fn links_are_encrypted_where_tls_is_on() {
    let folder = Folder::new("links-tls");
    let Some(options) = certificate(&folder) else {
        return eprintln!("SKIPPED: this needs openssl");
    };
    let cluster = Cluster::new("tls", &["-l", "notls:127.0.0.1", "-Z", "-o", &options]);
    let servers = cluster.start_all();
    for server in &servers {
        assert_eq!(missed(server), BTreeSet::new());
    }
    // Who speaks no TLS is no peer, even with the secret.
    let mut plain = TcpStream::connect(("127.0.0.1", cluster.links[0])).unwrap();
    plain.write_all(b"\0\0\0\0\x10\0\0\0\0").unwrap();
    assert!(closes(&mut plain, Duration::from_secs(5)));
    let value = "v".repeat(500_000);
    let set = format!("set {} 0 0 500000\r\n{value}\r\n", key(0));
    ask(&mut servers[0].connect(), &set, "STORED\r\n");
    let reply = format!("VALUE {} 0 500000\r\n{value}\r\nEND\r\n", key(0));
    for server in &servers {
        ask(&mut server.connect(), &format!("get {}\r\n", key(0)), &reply);
    }
}

#[test]
fn who_is_killed_takes_its_own_keys_and_comes_back() {
    let cluster = Cluster::new("killed", &[]);
    let mut servers = cluster.start_all();
    send_signal(&servers[1], "KILL");
    servers[1].wait();
    let gone = missed(&servers[0]);
    assert!(!gone.is_empty() && gone.len() < KEYS, "{gone:?}");
    assert_eq!(unreachable(&servers[0]), gone.len() as u64);
    for server in [&servers[0], &servers[2]] {
        assert_eq!(missed(server), gone);
        assert_eq!(lost(server), gone);
        let said = "SERVER_ERROR flush_all did not reach 1 of 3 servers\r\n";
        ask(&mut server.connect(), "flush_all 1000\r\n", said);
    }
    servers[1] = cluster.start(2);
    for server in &servers {
        eventually("links come up by themselves", || lost(server).is_empty());
    }
    for server in &servers {
        assert_eq!(missed(server), BTreeSet::new());
    }
}

#[test]
fn who_hangs_is_given_up_in_time_and_taken_back() {
    let cluster = Cluster::new("hangs", &["--link-timeout", "300ms"]);
    let servers = cluster.start_all();
    send_signal(&servers[2], "STOP");
    // The first is answered by the deadline, the others because the link is gone.
    let gone = missed(&servers[0]);
    assert!(!gone.is_empty() && gone.len() < KEYS, "{gone:?}");
    for server in &servers[..2] {
        assert_eq!(missed(server), gone);
        eventually("writes fail", || lost(server) == gone);
    }
    send_signal(&servers[2], "CONT");
    for server in &servers {
        eventually("links come up by themselves", || lost(server).is_empty());
    }
    assert_eq!(missed(&servers[0]), BTreeSet::new());
}

/// True if the server closes; false if it waits.
fn closes(stream: &mut TcpStream, patience: Duration) -> bool {
    stream.set_read_timeout(Some(patience)).unwrap();
    let mut room = [0; 256];
    loop {
        match stream.read(&mut room) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return true,
            Err(_) => return false,
        }
    }
}

#[test]
fn strangers_are_turned_away_and_nobody_else_notices() {
    const STRANGERS_MAX: usize = 64;
    let cluster = Cluster::new("strangers", &["--link-timeout", "400ms"]);
    let mut servers = cluster.start_all();
    let dial = || TcpStream::connect(("127.0.0.1", cluster.links[0])).unwrap();
    let patience = Duration::from_secs(5);
    for said in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"get k\r\n                  ",
        // A request before the handshake, a longer frame than a handshake has, an empty hello.
        b"\x07\0\0\0\x01\x01\0\0\0get k\r\n",
        b"\xff\xff\xff\x7f\x10\0\0\0\0",
        b"\0\0\0\0\x10\0\0\0\0",
    ] {
        let mut stranger = dial();
        stranger.write_all(said).unwrap();
        assert!(closes(&mut stranger, patience), "{said:?}");
    }
    // More than there is room for, who say nothing.
    let mut silent: Vec<TcpStream> = (0..STRANGERS_MAX + 8).map(|_| dial()).collect();
    assert!(closes(silent.last_mut().unwrap(), patience));
    assert_eq!(missed(&servers[0]), BTreeSet::new());
    assert!(silent.iter_mut().all(|stranger| closes(stranger, patience)));
    for server in &servers {
        assert_eq!(lost(server), BTreeSet::new());
    }
    let (_, said) = servers.remove(0).signal("TERM");
    let turned_away = said.lines().filter(|line| line.contains("was turned away: ")).count();
    assert!(turned_away > 0, "{said}");
}

/// A link of a worker 9 of server 3, which is not running, to server 1.
fn dial_as_server_3(cluster: &Cluster, nonce: u8) -> TcpStream {
    let secret = fs::read(cluster.folder.path("secret")).unwrap();
    let identity = mbal_link::Cluster::new("test", 3, secret.trim_ascii());
    let mut stream = TcpStream::connect(("127.0.0.1", cluster.links[0])).unwrap();
    let (mut dialing, hello) = Dialing::new(&identity, 9, 1, &[nonce; NONCE_BYTES], b"");
    stream.write_all(&hello).unwrap();
    let mut said = Vec::new();
    loop {
        let mut room = [0; 256];
        let count = stream.read(&mut room).unwrap();
        assert!(count > 0, "refused");
        said.extend_from_slice(&room[..count]);
        while let Some((frame, rest)) = next_frame(&said, 256).unwrap() {
            match dialing.step(&frame) {
                Step::Send(bytes) => stream.write_all(&bytes).unwrap(),
                Step::Up(..) => return stream,
                Step::Refuse(_, why) => panic!("{why:?}"),
            }
            let used = said.len() - rest.len();
            said.drain(..used);
        }
    }
}

#[test]
fn a_newer_link_of_a_worker_ends_its_older_one() {
    let cluster = Cluster::new("again", &[]);
    let _server = cluster.start(1);
    let mut older = dial_as_server_3(&cluster, 1);
    assert!(!closes(&mut older, Duration::from_millis(100)), "it is up");
    let mut newer = dial_as_server_3(&cluster, 2);
    assert!(closes(&mut older, Duration::from_secs(5)));
    assert!(!closes(&mut newer, Duration::from_millis(100)));
}

#[test]
fn who_knows_another_secret_is_no_peer() {
    let cluster = Cluster::new("secret", &[]);
    let servers = [cluster.start(1), cluster.start(2)];
    fs::write(cluster.folder.path("secret"), "quite another secret").unwrap();
    let other = cluster.start(3);
    let gone = |server: &Running| lost(server).len();
    eventually("two know each other", || gone(&servers[0]) < KEYS / 2);
    let reached = gone(&servers[0]);
    assert!(reached > 0);
    assert!(gone(&other) > KEYS / 2);
    let (_, said) = other.signal("TERM");
    assert!(said.contains("no link to server 1: its secret is another"), "{said}");
}
