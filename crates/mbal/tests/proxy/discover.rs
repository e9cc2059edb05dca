//! A proxy that asks for its upstreams.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::thread;

use crate::pool::{Memcached, Proxied, ask_at};
use crate::running::{Folder, Running, eventually};

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

#[test]
fn a_server_of_a_cluster_tells_of_the_others() {
    let folder = Folder::new("proxy-of-cluster");
    // Bound at the same time, so that they differ.
    let free: Vec<TcpListener> =
        (0..4).map(|_| TcpListener::bind(("127.0.0.1", 0)).unwrap()).collect();
    let ports: Vec<u16> = free.iter().map(|one| one.local_addr().unwrap().port()).collect();
    drop(free);
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
        let server = Running::serve(&folder, &[&flags[..], &more[..]].concat());
        fs::remove_file(folder.path("ports")).unwrap();
        server
    };
    let _servers = [start(1), start(2)];
    let proxy = Proxied::start(&folder, &["--discover", &format!("127.0.0.1:{}", ports[3])]);
    for id in [1, 2] {
        let name = format!("upstream:127.0.0.1:{}:state", ports[2 * id - 1]);
        eventually("it serves", || proxy.stat(&name).as_deref() == Some("up"));
    }
    eventually("the servers reach each other", || {
        (0..40).for_each(|key| drop(proxy.ask(&format!("set k{key} 0 0 1\r\nx\r\n"))));
        (0..40).all(|key| proxy.value(&format!("k{key}")).as_deref() == Some("x"))
    });
    // Any server serves every key.
    assert!(ask_at(ports[1], "get k7\r\n").starts_with("VALUE k7 0 1\r\n"));
}

#[test]
fn who_knows_of_no_cluster_is_no_place_to_ask() {
    let Some(pool) = Memcached::some(1) else { return };
    let folder = Folder::new("proxy-no-cluster");
    let said = Proxied::try_start(&folder, &["--discover", &pool[0].name()]).map(|_| ());
    let expected = format!("mbal proxy: {}: it knows of no cluster", pool[0].name());
    assert_eq!(said.unwrap_err().trim(), expected);
}
