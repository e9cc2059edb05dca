//! Keys that melt their server, with a coordinator that has hot keys copied: what ordinary clients and the client library read.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use mbal_client::{Client, Options, Store};
use mbal_model::{Addresses, Cluster, Key};

mod running;

use running::led::{Coordinator, folder, free_port, server, stores};
use running::{Ends, Folder, MBAL, Running, ask, eventually, output_of, told};

/// Three servers whose cachelets stay where they are.
struct Hot {
    servers: Vec<Running>,
    coordinator: Coordinator,
    _folder: Folder,
}

impl Hot {
    fn start(test: &str, mode: &str) -> Hot {
        let folder = folder(test);
        let coordinator = Coordinator::start_with(&folder, free_port(), 3, &["--hot-keys", mode]);
        let servers: Vec<Running> = (0..3).map(|_| server(&folder, &coordinator.url)).collect();
        eventually("all keys can be stored", || servers.iter().all(stores));
        drop(output_of(
            MBAL.as_ref(),
            &["cluster", "balance", "off", "--coordinator", &coordinator.url],
        ));
        Hot { servers, coordinator, _folder: folder }
    }

    /// What `mbal cluster hotkeys` says.
    fn told(&self) -> String {
        let output = output_of(
            MBAL.as_ref(),
            &["cluster", "hotkeys", "--coordinator", &self.coordinator.url],
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    async fn client(&self, options: Options) -> Client {
        Client::connect([format!("127.0.0.1:{}", self.servers[0].port)], options).await.unwrap()
    }

    fn cluster(&self) -> Cluster {
        Cluster::parse(&self.coordinator.map().unwrap()).unwrap()
    }

    /// All on which clients are served: of the servers and their workers.
    fn ports(&self) -> Vec<u16> {
        let cluster = self.cluster();
        let all = |of: &Addresses| {
            [vec![of.client.port], of.workers.iter().map(|one| one.port).collect()].concat()
        };
        cluster.servers.values().flat_map(all).collect()
    }

    /// Which of the servers owns a key.
    fn home(&self, key: &str) -> usize {
        let cluster = self.cluster();
        let owner = cluster.map.at(Key::new(key.as_bytes()).unwrap().hash()).1.server;
        let port = cluster.servers[&owner].client.port;
        self.servers.iter().position(|server| server.port == port).unwrap()
    }
}

/// Ordinary clients of these servers ask for the key by this request without end.
fn melt(servers: &[Running], request: &str, stop: &AtomicBool) {
    std::thread::scope(|scope| {
        for server in servers.iter().chain(servers) {
            scope.spawn(|| {
                let (mut stream, mut replies) = (server.connect(), vec![0; 16 << 10]);
                while !stop.load(SeqCst) {
                    let sent = stream.write_all(request.repeat(64).as_bytes());
                    if sent.is_err() || stream.read(&mut replies).is_err() {
                        return;
                    }
                }
            });
        }
    });
}

#[test]
fn a_key_that_melts_its_server_is_copied_and_what_is_written_is_read_everywhere() {
    for mode in ["async", "atomic"] {
        let hot = Hot::start(&format!("hot-{mode}"), mode);
        let servers = &hot.servers;
        ask(&mut servers[0].connect(), "set hot 5 0 1\r\na\r\n", "STORED\r\n");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| melt(servers, "mg hot v\r\n", &stop));
            let _ends = Ends(&stop);
            eventually("the key has two copies", || hot.told().contains("1 key with 2 copies"));
            let home = format!("127.0.0.1:{}", servers[hot.home("hot")].port);
            let words = ["top", &home, "--once", "--json", "--interval", "0.2"];
            eventually("top tells of its copies", || {
                let told = output_of(MBAL.as_ref(), &words).stdout;
                let told = String::from_utf8(told).unwrap();
                let key =
                    told.split_once(r#"{"key":"hot","#).and_then(|(_, key)| key.split_once('}'));
                key.is_some_and(|(key, _)| key.ends_with(r#","state":"hot","copies":2"#))
            });
            for value in ["b", "c"] {
                for (at, writer) in servers.iter().enumerate() {
                    let set = format!("set hot {at} 0 1\r\n{value}\r\n");
                    ask(&mut writer.connect(), &set, "STORED\r\n");
                    let told = format!("VALUE hot {at} 1\r\n{value}\r\nEND\r\n");
                    for reader in servers {
                        if mode == "atomic" {
                            ask(&mut reader.connect(), "get hot\r\n", &told);
                        }
                    }
                    // A writer sees its write, and after a lease everybody does.
                    let mut own = writer.connect();
                    ask(&mut own, &set, "STORED\r\n");
                    ask(&mut own, "get hot\r\n", &told);
                }
            }
        });
        eventually("it cools", || hot.told().contains("0 keys with 0 copies"));
    }
}

/// How often a client of this port wins who asks for the key so many times as one that would refill it, half of them as if by a lease.
/// Whoever does not win is told that somebody has.
fn wins(port: u16, times: usize) -> usize {
    let mut replies = BufReader::new(TcpStream::connect(("127.0.0.1", port)).unwrap());
    let mut won = 0;
    for nth in 0..times {
        let by_lease = if nth % 2 == 0 { "" } else { " L1.0*" };
        let request = format!("mg hot v N30 R30{by_lease}\r\n");
        replies.get_mut().write_all(request.as_bytes()).unwrap();
        let (mut head, mut value) = (String::new(), String::new());
        replies.read_line(&mut head).unwrap();
        replies.read_line(&mut value).unwrap();
        let is_marked = |mark| head.split_ascii_whitespace().any(|word| word == mark);
        assert!(head.starts_with("VA ") && is_marked("W") != is_marked("Z"), "{head}");
        won += usize::from(is_marked("W"));
    }
    won
}

#[test]
fn one_client_of_all_servers_wins_each_time_a_hot_key_is_to_be_refilled() {
    for mode in ["async", "atomic"] {
        let hot = Hot::start(&format!("wins-{mode}"), mode);
        let servers = &hot.servers;
        let (home, ports) = (&servers[hot.home("hot")], hot.ports());
        assert_eq!(ports.len(), 6);
        ask(&mut servers[0].connect(), "set hot 0 0 1\r\na\r\n", "STORED\r\n");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _ends = Ends(&stop);
            // By requests that never win.
            scope.spawn(|| melt(servers, "get hot\r\n", &stop));
            // It is stale, about to expire, or has expired.
            let changes = ["md hot I T300", "mg hot T20", "mg hot T1"];
            for (change, changer) in changes.iter().zip(servers) {
                eventually("the key has two copies", || hot.told().contains("1 key with 2 copies"));
                ask(&mut changer.connect(), &format!("{change}\r\n"), "HD\r\n");
                if change.ends_with("T1") {
                    eventually("it has expired", || {
                        let mut reply = [0; 5];
                        let mut stream = home.connect();
                        stream.write_all(b"get hot\r\n").unwrap();
                        stream.read_exact(&mut reply).unwrap();
                        reply == *b"END\r\n"
                    });
                }
                let begin = Barrier::new(12);
                let won: usize = std::thread::scope(|scope| {
                    let client = |nth: usize| {
                        let (begin, port) = (&begin, ports[nth % ports.len()]);
                        scope.spawn(move || {
                            begin.wait();
                            wins(port, 25)
                        })
                    };
                    let clients: Vec<_> = (0..12).map(client).collect();
                    clients.into_iter().map(|client| client.join().unwrap()).sum()
                });
                assert_eq!(won, 1, "{mode}, {change}");
                ask(&mut changer.connect(), "ms hot 1 T300\r\nb\r\n", "HD\r\n");
                for server in servers {
                    ask(&mut server.connect(), "mg hot v N30 R30\r\n", "VA 1\r\nb\r\n");
                }
            }
        });
    }
}

/// A reader: it fails if it goes back in time, or, in atomic mode, misses what was written before it asked.
async fn read(client: Client, atomic: bool, written: Arc<AtomicU64>, stop: Arc<AtomicBool>) {
    let mut seen = 0;
    while !stop.load(SeqCst) {
        let least = if atomic { written.load(SeqCst).max(seen) } else { seen };
        let found = client.get_many(["hot"; 32]).await.unwrap();
        for value in found.into_iter().flatten() {
            let number: u64 = std::str::from_utf8(&value.bytes).unwrap().parse().unwrap();
            assert!(number >= least, "{number} after {least}");
            seen = seen.max(number);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_library_reads_copies_and_goes_on_when_one_of_them_dies() {
    for mode in ["async", "atomic"] {
        let mut hot = Hot::start(&format!("smart-{mode}"), mode);
        let options = || Options::new().timeout(Duration::from_secs(4));
        let writer = hot.client(options()).await;
        writer.set("hot", "1", Store::forever()).await.unwrap();
        let home = hot.home("hot");
        let (written, stop) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicBool::new(false)));
        let mut clients = Vec::new();
        let mut readers = tokio::task::JoinSet::new();
        for _ in 0..6 {
            let client = hot.client(options()).await;
            clients.push(client.clone());
            readers.spawn(read(client, mode == "atomic", written.clone(), stop.clone()));
        }
        let melting = AtomicBool::new(false);
        let writes = async |count: u64| {
            for _ in 0..count {
                let next = written.load(SeqCst) + 1;
                writer.set("hot", next.to_string(), Store::forever()).await.unwrap();
                written.store(next, SeqCst);
                let own = writer.get("hot").await.unwrap().unwrap();
                assert_eq!(own.bytes, next.to_string().as_bytes(), "a writer sees its write");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let copy_reads = || clients.iter().map(Client::copy_reads).sum::<u64>();
        std::thread::scope(|scope| {
            scope.spawn(|| melt(&hot.servers[home..=home], "mg hot v\r\n", &melting));
            let _ends = Ends(&melting);
            let on = tokio::runtime::Handle::current();
            let drive = |what: std::pin::Pin<Box<dyn Future<Output = ()> + '_>>| {
                tokio::task::block_in_place(|| on.block_on(what));
            };
            eventually("the key has two copies", || hot.told().contains("1 key with 2 copies"));
            drive(Box::pin(writes(20)));
            eventually("clients read copies", || copy_reads() > 1_000);
            eventually("operators see that copies answer", || {
                let told = hot.told();
                let row = told.lines().find(|line| line.ends_with(" hot")).unwrap_or_default();
                let by_copies = row.split_whitespace().nth(1).and_then(|rate| rate.parse().ok());
                by_copies.is_some_and(|rate: u64| rate > 0)
            });
            drive(Box::pin(writes(20)));
        });
        let away = (home + 1) % hot.servers.len();
        hot.servers[away].child.kill().unwrap();
        writes(5).await;
        for client in &clients {
            assert!(client.get("hot").await.unwrap().is_some(), "its home lives");
        }
        stop.store(true, SeqCst);
        while let Some(reader) = readers.join_next().await {
            reader.expect("no reader has seen the past");
        }
    }
}

/// Requests that this server, which has one worker, has passed on.
fn requests_of_peers(server: &Running) -> u64 {
    let said = told(server.connect(), "stats workers\r\nquit\r\n");
    let count = said.lines().find_map(|line| line.strip_prefix("STAT 0:peer "));
    count.expect("it counts them").parse().expect("a number")
}

#[test]
fn the_benchmarks_smart_client_reads_copies_unless_it_is_told_not_to() {
    let hot = Hot::start("bench-hot", "async");
    let server = format!("127.0.0.1:{}", hot.servers[0].port);
    let bench = |more: &[&str]| {
        let load = "--smart --prefill --keys 1000 --hotspot 90:0.1 --set-share 0.001 --connections 48 --depth 16";
        let run = "--client-threads 2 --warmup 1 --duration 1 --per-server --json";
        let words = load.split(' ').chain(run.split(' ')).chain(more.iter().copied());
        let all: Vec<&str> = ["bench", &server].into_iter().chain(words).collect();
        let output = output_of(MBAL.as_ref(), &all);
        assert!(output.status.success(), "no reply is wrong: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    eventually("copies are read", || bench(&[]).contains("\"from_copies\""));
    let in_batches = ["--multi-get", "20"];
    eventually("they are in batches", || bench(&in_batches).contains("\"from_copies\""));
    // Whoever is asked has the key, or a copy: nobody asks on.
    let forwarded = || hot.servers.iter().map(requests_of_peers).sum::<u64>();
    let before = forwarded();
    bench(&["--multi-get", "20", "--no-copies"]);
    assert_eq!(forwarded(), before);
    let told = bench(&["--no-copies"]);
    assert!(!told.contains("\"from_copies\"") && told.contains("\"max_over_mean\""), "{told}");
}
