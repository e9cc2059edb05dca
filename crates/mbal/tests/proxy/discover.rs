//! A proxy that asks for its upstreams.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::pool::{Memcached, Proxied, ask_at};
use crate::running::{Folder, Running, eventually, free_ports};

/// Answers `config get cluster` as ElastiCache does, or its older form alone.
struct Endpoint {
    port: u16,
    list: Arc<Mutex<String>>,
}

impl Endpoint {
    fn start(old: bool) -> Endpoint {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let list = Arc::new(Mutex::new(String::new()));
        let told = Arc::clone(&list);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                let mut asked = BufReader::new(stream.try_clone().unwrap());
                let mut line = String::new();
                while asked.read_line(&mut line).is_ok_and(|count| count > 0) {
                    let list = told.lock().unwrap().clone();
                    let reply = match (line.trim(), old) {
                        ("config get cluster", false) => "CONFIG cluster",
                        ("get AmazonElastiCache:cluster", true) => {
                            "VALUE AmazonElastiCache:cluster"
                        }
                        _ => "ERROR",
                    };
                    let reply = match reply {
                        "ERROR" => "ERROR\r\n".to_owned(),
                        head => format!("{head} 0 {}\r\n{list}\r\nEND\r\n", list.len()),
                    };
                    // A proxy that ends does not wait for it.
                    drop((&stream).write_all(reply.as_bytes()));
                    line.clear();
                }
            }
        });
        Endpoint { port, list }
    }

    fn says(&self, version: u64, pool: &[&Memcached]) {
        let entries: Vec<String> = (1..)
            .zip(pool)
            .map(|(at, one)| format!("node{at}.cache|127.0.0.1|{}", one.port))
            .collect();
        *self.list.lock().unwrap() = format!("{version}\n{}\n", entries.join(" "));
    }
}

/// The upstreams that are up, by port.
fn up(proxy: &Proxied, pool: &[Memcached]) -> Vec<usize> {
    let is_up = |one: &Memcached| {
        proxy.stat(&format!("upstream:{}:state", one.name())).as_deref() == Some("up")
    };
    (0..pool.len()).filter(|at| is_up(&pool[*at])).collect()
}

#[test]
fn upstreams_are_asked_for_and_asked_for_again() {
    let Some(pool) = Memcached::some(3) else { return };
    for old in [false, true] {
        let folder = Folder::new("proxy-discover");
        let endpoint = Endpoint::start(old);
        endpoint.says(5, &[&pool[0], &pool[1]]);
        // The first of them is never there.
        let asked = format!("127.0.0.1:1,127.0.0.1:{}", endpoint.port);
        let flags = ["--discover", &asked, "--discover-interval", "20ms"];
        let proxy = Proxied::start(&folder, &flags);
        eventually("both serve", || up(&proxy, &pool) == [0, 1]);
        endpoint.says(6, &[&pool[0], &pool[1], &pool[2]]);
        eventually("all serve", || up(&proxy, &pool) == [0, 1, 2]);
        // An older list is none, nor is an empty one.
        endpoint.says(4, &[&pool[0]]);
        thread::sleep(std::time::Duration::from_millis(100));
        endpoint.says(7, &[]);
        thread::sleep(std::time::Duration::from_millis(100));
        assert_eq!(up(&proxy, &pool), [0, 1, 2]);
        endpoint.says(8, &[&pool[2]]);
        eventually("one serves", || up(&proxy, &pool) == [2]);
        let (_, said) = proxy.running.signal("TERM");
        assert!(said.contains("its list is version 4, there was 6 before"), "{said}");
        assert_eq!(said.matches("there are no upstreams").count(), 1, "it is said once: {said}");
    }
}

/// Two servers of a cluster, which a file describes.
struct Cluster {
    ports: [u16; 2],
    _servers: [Running; 2],
}

impl Cluster {
    fn start(folder: &Folder) -> Cluster {
        let ports = free_ports(4);
        let map = format!(
            "cluster test\nversion 1\nequal 5\nserver 1 link 127.0.0.1:{} client 127.0.0.1:{}\n\
             server 2 link 127.0.0.1:{} client 127.0.0.1:{}\n",
            ports[0], ports[1], ports[2], ports[3]
        );
        fs::write(folder.path("map"), map).unwrap();
        folder.keep("secret", "a secret of this test\n");
        let path = |name: &str| folder.path(name).display().to_string();
        let start = |id: usize| {
            let (map, secret, port) = (path("map"), path("secret"), ports[2 * id - 1].to_string());
            let id = id.to_string();
            let flags = ["-p", &port, "-t", "1", "--control", "off", "--cluster", &map];
            let more = ["--server-id", &id, "--cluster-secret", &secret];
            let server = Running::serve(folder, &[&flags[..], &more[..]].concat());
            fs::remove_file(folder.path("ports")).unwrap();
            server
        };
        let servers = [start(1), start(2)];
        let ports = [ports[1], ports[3]];
        for port in ports {
            let sets: String = (0..40).map(|key| format!("set k{key} 0 0 1\r\nx\r\n")).collect();
            let stored = || ask_at(port, &sets) == "STORED\r\n".repeat(40);
            eventually("the servers reach each other", stored);
        }
        Cluster { ports, _servers: servers }
    }

    fn flushes(&self) -> Vec<String> {
        let flushes = |port: &u16| {
            let stats = ask_at(*port, "stats\r\n");
            stats.lines().find(|line| line.starts_with("STAT cmd_flush ")).unwrap().to_owned()
        };
        self.ports.iter().map(flushes).collect()
    }
}

/// A way to a server that can be cut.
struct Way {
    port: u16,
    open: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Way {
    fn to(server: u16) -> Way {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (open, streams) =
            (Arc::new(AtomicBool::new(true)), Arc::<Mutex<Vec<TcpStream>>>::default());
        let (is_open, all) = (Arc::clone(&open), Arc::clone(&streams));
        thread::spawn(move || {
            for from in listener.incoming().map(Result::unwrap) {
                // Held, so that no way is left open by a cut that comes just now.
                let mut all = all.lock().unwrap();
                if !is_open.load(SeqCst) {
                    continue;
                }
                let to = TcpStream::connect(("127.0.0.1", server)).unwrap();
                for (mut from, mut to) in [(&from, &to), (&to, &from)]
                    .map(|(one, other)| (one.try_clone().unwrap(), other.try_clone().unwrap()))
                {
                    thread::spawn(move || drop(std::io::copy(&mut from, &mut to)));
                }
                all.extend([from, to]);
            }
        });
        Way { port, open, streams }
    }

    fn cut(&self) {
        let mut streams = self.streams.lock().unwrap();
        self.open.store(false, SeqCst);
        streams.drain(..).for_each(|one| drop(one.shutdown(Shutdown::Both)));
    }
}

/// Keys that differ in their first bytes are anywhere on the ring. Those that differ in their last ones are neighbours, by the default
/// hash (FNV): all of some hundred may be one server's.
fn spread(number: usize) -> String {
    format!("{number}-of-a-cluster")
}

#[test]
fn no_server_of_a_cluster_is_flushed_when_it_comes_back() {
    for more in [&[][..], &["--eject", "--failures", "1"]] {
        let folder = Folder::new("proxy-cluster-back");
        let cluster = Cluster::start(&folder);
        let way = Way::to(cluster.ports[1]);
        let path = folder.path("upstreams");
        let both = format!("127.0.0.1:{}\n127.0.0.1:{}\n", cluster.ports[0], way.port);
        fs::write(&path, &both).unwrap();
        let flags = ["--upstreams-file", path.to_str().unwrap(), "--retry", "50ms"];
        let patient = ["--timeout", "10s"];
        let proxy = Proxied::start(&folder, &[&flags[..], &patient, more].concat());
        let second = format!("upstream:127.0.0.1:{}:state", way.port);
        let state = || proxy.stat(&second);
        eventually("both serve", || state().as_deref() == Some("up"));
        (0..200).for_each(|key| proxy.set(&spread(key), "x"));
        let all = || (0..200).all(|key| proxy.value(&spread(key)).as_deref() == Some("x"));
        // It leaves the list, and comes back.
        let changes = || proxy.metric("mbal_proxy_pool_changes_total").unwrap();
        for (round, list) in [(1.0, &both[..both.find('\n').unwrap() + 1]), (2.0, &both)] {
            fs::write(&path, list).unwrap();
            proxy.hang_up();
            eventually("the list is read", || changes() == round);
            proxy.set(&spread(7), "x");
            assert!(all(), "round {round}");
        }
        eventually("both serve", || state().as_deref() == Some("up"));
        // It cannot be reached: the other one answers for its keys.
        way.cut();
        eventually("it is down", || state().as_deref() == Some("down"));
        let errors = proxy.stat("errors");
        proxy.set(&spread(8), "x");
        assert!(all());
        assert_eq!(proxy.stat("errors"), errors);
        assert!(proxy.stat("failovers").unwrap().parse::<u64>().unwrap() > 0);
        way.open.store(true, SeqCst);
        eventually("it is back", || state().as_deref() == Some("up"));
        assert!(all());
        assert_eq!(cluster.flushes(), ["STAT cmd_flush 0"; 2]);
    }
}

#[test]
fn what_is_stored_behind_a_flush_of_a_cluster_stays() {
    let folder = Folder::new("proxy-cluster-flush");
    let cluster = Cluster::start(&folder);
    let upstreams = cluster.ports.map(|port| format!("127.0.0.1:{port}")).join(",");
    let proxy = Proxied::start(&folder, &["--upstream", &upstreams]);
    eventually("it knows the cluster", || {
        proxy.ask("flush_all\r\n");
        let counts = cluster.flushes();
        proxy.ask("flush_all\r\n");
        let more =
            cluster.flushes().iter().zip(&counts).filter(|(one, other)| one != other).count();
        more > 0 && proxy.stat("errors").as_deref() == Some("0")
    });
    for round in 0..1000 {
        let request =
            format!("set before 0 0 1\r\nx\r\nflush_all noreply\r\nset k{round} 0 0 1\r\nx\r\n");
        assert_eq!(proxy.ask(&request), "STORED\r\n".repeat(2));
        let (before, behind) = (proxy.value("before"), proxy.value(&format!("k{round}")));
        assert_eq!((before, behind.as_deref()), (None, Some("x")), "round {round}");
    }
}

#[test]
fn a_server_of_a_cluster_tells_of_the_others() {
    let folder = Folder::new("proxy-of-cluster");
    let cluster = Cluster::start(&folder);
    let ports = cluster.ports;
    let proxy = Proxied::start(&folder, &["--discover", &format!("127.0.0.1:{}", ports[1])]);
    for port in ports {
        let name = format!("upstream:127.0.0.1:{port}:state");
        eventually("it serves", || proxy.stat(&name).as_deref() == Some("up"));
    }
    eventually("the servers reach each other", || {
        (0..40).for_each(|key| drop(proxy.ask(&format!("set k{key} 0 0 1\r\nx\r\n"))));
        (0..40).all(|key| proxy.value(&format!("k{key}")).as_deref() == Some("x"))
    });
    // Any server serves every key.
    assert!(ask_at(ports[0], "get k7\r\n").starts_with("VALUE k7 0 1\r\n"));
}

#[test]
fn who_knows_of_no_cluster_is_no_place_to_ask() {
    let Some(pool) = Memcached::some(1) else { return };
    let folder = Folder::new("proxy-no-cluster");
    let said = Proxied::try_start(&folder, &["--discover", &pool[0].name()]).map(|_| ());
    let expected = format!("mbal proxy: {}: it knows of no cluster", pool[0].name());
    assert_eq!(said.unwrap_err().trim(), expected);
}
