//! The client library, and the benchmark's smart client, against clusters of real servers with a fixed map.

use std::fs;
use std::process::Command;
use std::time::Duration;

mod running;

use mbal_client::{Cas, Client, Error, Login, Options, Store};
use mbal_model::{Cluster, Key, ServerId};
use running::{Folder, MBAL, Running, ask, eventually as eventually_now, free_ports};

const SERVERS: usize = 3;
const KEYS: usize = 60;

/// Files and ports of three servers with two workers each.
struct Servers {
    folder: Folder,
    more: Vec<String>,
}

impl Servers {
    fn new(test: &str, more: &[&str]) -> Servers {
        let folder = Folder::new(test);
        let mut map = "cluster test\nversion 1\n".to_owned();
        for id in 1..=SERVERS {
            let [link, first, second] = free_ports(3)[..] else { unreachable!() };
            map += &format!(
                "server {id} link 127.0.0.1:{link} client 127.0.0.1:0 workers 127.0.0.1:{first},127.0.0.1:{second}\n"
            );
        }
        fs::write(folder.path("map"), map + "equal 5\n").unwrap();
        folder.keep("secret", "a secret of this test\n");
        Servers { folder, more: more.iter().map(|word| word.to_string()).collect() }
    }

    fn cluster(&self) -> Cluster {
        Cluster::parse(&fs::read_to_string(self.folder.path("map")).unwrap()).unwrap()
    }

    fn start(&self, id: u16) -> Running {
        let path = |name: &str| self.folder.path(name).display().to_string();
        let (map, secret) = (path("map"), path("secret"));
        let base = self.cluster().servers[&ServerId(id)].workers[0].port.to_string();
        let id = id.to_string();
        let mut arguments = vec!["-p", "-1", "-t", "2", "--control", "off", "-l", "127.0.0.1"];
        arguments.extend(["--metrics", "127.0.0.1:0", "--worker-ports", &base]);
        arguments.extend(["--cluster", &map, "--server-id", &id, "--cluster-secret", &secret]);
        arguments.extend(self.more.iter().map(String::as_str));
        arguments.insert(0, "serve");
        let mut running = None;
        eventually_now("its ports are free", || {
            drop(fs::remove_file(self.folder.path("ports")));
            match Running::try_start(&self.folder, MBAL.as_ref(), &arguments) {
                Ok(started) => running = Some(started),
                // A process that another test has just begun may have inherited a socket, and not dropped it yet.
                Err(said) => assert!(said.contains("Address already in use"), "{said}"),
            }
            running.is_some()
        });
        running.expect("it has started")
    }

    /// Killed, and started again: at the same ports, with the map file as it is now.
    fn restart(&self, server: &mut Running, id: u16) {
        running::signal(&server.child, "KILL");
        server.child.wait().unwrap();
        *server = self.start(id);
        drop(server.connect());
    }

    fn start_all(&self) -> Vec<Running> {
        let servers: Vec<Running> = (1..=SERVERS as u16).map(|id| self.start(id)).collect();
        // None lets clients in before it reaches the others.
        servers.iter().for_each(|server| drop(server.connect()));
        servers
    }

    /// The server that owns a key by the map file.
    fn owner(&self, key: &str) -> u16 {
        self.cluster().map.at(Key::new(key.as_bytes()).unwrap().hash()).1.server.0
    }

    fn keys_of(&self, id: u16) -> Vec<String> {
        keys().into_iter().filter(|key| self.owner(key) == id).collect()
    }

    async fn client(&self, servers: &[Running], options: Options) -> Client {
        // Any port of any server will do.
        let at = servers.last().unwrap().port;
        Client::connect([format!("127.0.0.1:{at}")], options).await.unwrap()
    }
}

/// Keys that were asked for at a server and are another worker's, of this server or of another one.
fn detours(server: &Running) -> u64 {
    let page = running::page(server.metrics);
    let of = |line: &str| line.starts_with("mbal_requests_total{") && !line.contains("\"own\"");
    let counts: Vec<&str> = page.lines().filter(|line| of(line)).collect();
    assert!(counts.len() >= 4, "{page}");
    let count = |line: &&str| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64;
    counts.iter().map(count).sum()
}

fn keys() -> Vec<String> {
    (0..KEYS).map(|nth| format!("k{nth}")).collect()
}

async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    for _ in 0..2000 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not within twenty seconds: {what}");
}

/// All keys of the other servers are as they were set; of this one all miss.
async fn check_without(servers: &Servers, client: &Client, gone: u16) {
    let values = client.get_many(keys()).await.unwrap();
    for (key, value) in keys().iter().zip(values) {
        let expected = (servers.owner(key) != gone).then(|| key.as_bytes().to_vec());
        assert_eq!(value.map(|value| value.bytes), expected, "{key}");
    }
}

async fn set_all(client: &Client) {
    for key in keys() {
        client.set(&key, &key, Store::forever()).await.unwrap();
    }
}

#[tokio::test]
async fn every_command_reaches_its_owners_worker_in_one_hop() {
    let servers = Servers::new("client-commands", &["--balance", "off"]);
    let running = servers.start_all();
    let client = servers.client(&running, Options::new().connections_per_worker(2)).await;
    set_all(&client).await;
    check_without(&servers, &client, 0).await;
    for key in keys() {
        let how = Store::ttl(Duration::from_secs(100)).flags(7);
        client.set(&key, "5", how).await.unwrap();
        let found = client.get(&key).await.unwrap().unwrap();
        assert_eq!((found.bytes.as_slice(), found.flags), (&b"5"[..], 7));
        assert_eq!(client.add(&key, "no", how).await, Ok(false));
        assert_eq!(client.incr(&key, 3).await, Ok(Some(8)));
        assert_eq!(client.decr(&key, 100).await, Ok(Some(0)));
        assert_eq!(client.append(&key, "b").await, Ok(true));
        assert_eq!(client.prepend(&key, "a").await, Ok(true));
        assert!(matches!(client.incr(&key, 1).await, Err(Error::Client(_))));
        assert_eq!(client.cas(&key, "late", found.cas, how).await, Ok(Cas::Changed));
        let found = client.get_and_touch(&key, None).await.unwrap().unwrap();
        assert!(found.bytes.starts_with(b"a0") && found.bytes.ends_with(b"b"), "{found:?}");
        assert_eq!(client.cas(&key, "in time", found.cas, how).await, Ok(Cas::Stored));
        assert_eq!(client.replace(&key, "r", how).await, Ok(true));
        assert_eq!(client.touch(&key, Some(Duration::from_secs(9))).await, Ok(true));
        assert_eq!(client.delete(&key).await, Ok(true));
        assert_eq!(client.delete(&key).await, Ok(false));
        assert_eq!(client.touch(&key, None).await, Ok(false));
        assert_eq!(client.replace(&key, "r", how).await, Ok(false));
        assert_eq!(client.append(&key, "b").await, Ok(false));
        assert_eq!(client.cas(&key, "gone", 1, how).await, Ok(Cas::NotFound));
        assert_eq!(client.incr(&key, 1).await, Ok(None));
        assert_eq!(client.incr_or_create(&key, 1, 40, None).await, Ok(40));
        assert_eq!(client.incr_or_create(&key, 2, 40, None).await, Ok(42));
        assert_eq!(client.get(&key).await.map(|value| value.unwrap().bytes), Ok(b"42".to_vec()));
    }
    for odd in [&b"a key with blanks"[..], &[0, 255, 10, 13], "schl\u{fc}ssel".as_bytes()] {
        client.set(odd, "odd", Store::forever()).await.unwrap();
        assert_eq!(client.get(odd).await.map(|value| value.unwrap().bytes), Ok(b"odd".to_vec()));
    }
    let long = "v".repeat(900_000);
    client.set("long", &long, Store::forever()).await.unwrap();
    assert_eq!(client.get("long").await.map(|value| value.unwrap().bytes.len()), Ok(900_000));
    let too_long = client.set("long", long.repeat(2), Store::forever()).await;
    assert!(matches!(too_long, Err(Error::Server(_))), "{too_long:?}");
    let versions = client.version().await;
    assert_eq!(versions.len(), SERVERS);
    assert!(versions.values().all(|version| version.as_deref() == Ok("1.6.45")), "{versions:?}");
    let stats = client.stats("").await;
    let sets =
        stats.values().map(|stats| stats.as_ref().unwrap()["cmd_set"].parse::<u64>().unwrap());
    assert!(sets.sum::<u64>() > KEYS as u64);
    for server in &running {
        assert_eq!(detours(server), 0);
    }
    eventually("flush_all has reached all", async || client.flush_all().await.is_ok()).await;
    assert!(client.get_many(keys()).await.unwrap().iter().all(Option::is_none));
    assert_eq!(client.unreachable_gets(), 0);
}

#[tokio::test]
async fn the_keys_of_a_server_that_was_killed_are_misses_and_come_back_with_it() {
    let servers = Servers::new("client-killed", &[]);
    let mut running = servers.start_all();
    let client = servers.client(&running, Options::new()).await;
    set_all(&client).await;
    check_without(&servers, &client, 0).await;
    drop(running.remove(1));
    check_without(&servers, &client, 2).await;
    check_without(&servers, &client, 2).await;
    let lost = servers.keys_of(2);
    assert_eq!(client.unreachable_gets(), 2 * lost.len() as u64);
    for key in &lost {
        let set = client.set(key, "x", Store::forever()).await;
        assert!(matches!(set, Err(Error::Unreachable(ServerId(2)))), "{set:?}");
    }
    running.push(servers.start(2));
    eventually("it is asked again", async || {
        client.set(&lost[0], &lost[0], Store::forever()).await.is_ok()
    })
    .await;
    set_all(&client).await;
    check_without(&servers, &client, 0).await;
}

#[tokio::test]
async fn a_server_that_hangs_is_left_alone_until_it_goes_on() {
    let servers = Servers::new("client-hangs", &[]);
    let running = servers.start_all();
    let options = Options::new().timeout(Duration::from_millis(300));
    let client = servers.client(&running, options).await;
    set_all(&client).await;
    running::signal(&running[0].child, "STOP");
    let lost = servers.keys_of(1);
    // Sent, or refused at once: never executed by somebody else.
    let set = client.set(&lost[0], "x", Store::forever()).await;
    assert!(matches!(set, Err(Error::Unknown(_) | Error::Unreachable(_))), "{set:?}");
    eventually("it is left alone", async || {
        matches!(client.delete("nosuch").await, Ok(_) | Err(_))
            && matches!(
                client.set(&lost[0], "x", Store::forever()).await,
                Err(Error::Unreachable(_))
            )
    })
    .await;
    check_without(&servers, &client, 1).await;
    running::signal(&running[0].child, "CONT");
    eventually("it is asked again", async || {
        client.get(&lost[1]).await.is_ok_and(|value| value.is_some())
    })
    .await;
}

/// Gives the cachelets of server 1 to server 3, in a map with the next version.
fn give_away(servers: &Servers) {
    let cluster = servers.cluster();
    let (old, new) = (cluster.map.version(), cluster.map.version() + 1);
    let text =
        cluster.to_string().replace(&format!("version {old}\n"), &format!("version {new}\n"));
    let lines = text.lines().map(|line| match line.strip_prefix("cachelet ") {
        Some(rest) => format!("cachelet {}\n", rest.replace(" 1/", " 3/")),
        None => format!("{line}\n"),
    });
    fs::write(servers.folder.path("map"), lines.collect::<String>()).unwrap();
}

#[tokio::test]
async fn a_client_follows_a_newer_map() {
    let servers = Servers::new("client-map", &["--balance", "off"]);
    let mut running = servers.start_all();
    // News by hints alone, not by polls.
    let options = Options::new().poll(Duration::from_secs(3600));
    let client = servers.client(&running, options).await;
    set_all(&client).await;
    let moved = servers.keys_of(1);
    give_away(&servers);
    // Servers restart one by one, and are of different opinions meanwhile.
    for id in [3, 1, 2] {
        servers.restart(&mut running[usize::from(id) - 1], id);
        drop(client.get_many(keys()).await.unwrap());
    }
    eventually("the new map is known", async || {
        drop(client.get_many(keys()).await.unwrap());
        client.map_version() == 2
    })
    .await;
    eventually("all can be written", async || {
        for key in keys() {
            if client.set(&key, &key, Store::forever()).await.is_err() {
                return false;
            }
        }
        true
    })
    .await;
    check_without(&servers, &client, 0).await;
    let before: Vec<u64> = running.iter().map(detours).collect();
    for key in &moved {
        assert_eq!(servers.owner(key), 3);
        assert!(client.get(key).await.unwrap().is_some());
    }
    assert_eq!(running.iter().map(detours).collect::<Vec<_>>(), before);
}

#[tokio::test]
async fn a_client_whose_map_is_old_is_served_all_the_same() {
    let servers = Servers::new("client-wrong", &[]);
    let mut running = servers.start_all();
    let client = servers.client(&running, Options::new().poll(Duration::from_secs(3600))).await;
    set_all(&client).await;
    // Who has lost its cachelets by the newest map has heard of it, and who has got them; the client and server 2 have not.
    give_away(&servers);
    for id in [1, 3] {
        servers.restart(&mut running[usize::from(id) - 1], id);
    }
    let mine = servers.keys_of(3);
    eventually("all can be written", async || {
        for key in &mine {
            if client.set(key, key, Store::forever()).await.is_err() {
                return false;
            }
        }
        true
    })
    .await;
    for key in &mine {
        assert_eq!(
            client.get(key).await.map(|value| value.map(|value| value.bytes)),
            Ok(Some(key.clone().into()))
        );
    }
}

#[tokio::test]
async fn requests_of_a_key_keep_their_order_while_owners_change_all_the_time() {
    let servers = Servers::new("client-chaos", &["--chaos", "3000"]);
    let running = servers.start_all();
    let client = servers.client(&running, Options::new().connections_per_worker(2)).await;
    eventually("all can be written", async || {
        for key in keys() {
            if client.set(&key, "0", Store::forever()).await.is_err() {
                return false;
            }
        }
        true
    })
    .await;
    let counting = keys().into_iter().map(|key| {
        let client = client.clone();
        tokio::spawn(async move {
            for round in 1..=100u64 {
                assert_eq!(client.incr(&key, 1).await, Ok(Some(round)), "{key}");
                let found = client.get(&key).await.unwrap().map(|value| value.bytes);
                assert_eq!(found, Some(round.to_string().into_bytes()), "{key}");
            }
        })
    });
    for counted in counting.collect::<Vec<_>>() {
        counted.await.unwrap();
    }
    assert_eq!(client.unreachable_gets(), 0);
}

#[tokio::test]
async fn a_server_that_is_alone_is_a_cluster_of_one() {
    let folder = Folder::new("client-alone");
    let alone = Running::serve(&folder, &["-p", "-1", "-t", "2", "--control", "off"]);
    let at = format!("127.0.0.1:{}", alone.port);
    let client = Client::connect([at], Options::new()).await.unwrap();
    set_all(&client).await;
    let values = client.get_many(keys()).await.unwrap();
    let values: Vec<_> = values.into_iter().map(|value| value.unwrap().bytes).collect();
    assert_eq!(values, keys().into_iter().map(String::into_bytes).collect::<Vec<_>>());
    assert_eq!((client.map_version(), client.version().await.len()), (1, 1));
}

#[tokio::test]
async fn one_reader_of_a_stale_item_is_told_to_store_a_new_one() {
    let folder = Folder::new("client-stale");
    let alone = Running::serve(&folder, &["-p", "-1", "-t", "2", "--control", "off"]);
    let client = Client::connect([format!("127.0.0.1:{}", alone.port)], Options::new());
    let client = client.await.unwrap();
    client.set("k", "old", Store::forever()).await.unwrap();
    ask(&mut alone.connect(), "md k I T60\r\n", "HD\r\n");
    let mut told = Vec::new();
    for _ in 0..3 {
        let found = client.get("k").await.unwrap().unwrap();
        told.push((found.bytes.as_slice() == b"old", found.stale, found.refill));
    }
    assert_eq!(told, [(true, true, true), (true, true, false), (true, true, false)]);
    client.set("k", "new", Store::forever()).await.unwrap();
    let found = client.get("k").await.unwrap().unwrap();
    assert_eq!((found.bytes.as_slice(), found.stale, found.refill), (&b"new"[..], false, false));
}

#[tokio::test]
async fn who_has_to_log_in_does_so_on_every_connection() {
    let folder = Folder::new("client-login-users");
    fs::write(folder.path("users"), "ann:se cret\n").unwrap();
    let users = folder.path("users").display().to_string();
    let servers = Servers::new("client-login", &["-Y", &users]);
    let running = servers.start_all();
    let at = format!("127.0.0.1:{}", running[0].port);
    let ask = async |password: &str| {
        let login = Login { user: "ann".into(), password: password.into() };
        Client::connect([&at], Options::new().login(login)).await
    };
    let client = ask("se cret").await.unwrap();
    set_all(&client).await;
    check_without(&servers, &client, 0).await;
    let refused = ask("guess").await.err().map(|error| error.to_string()).unwrap();
    assert!(refused.contains("the login of \"ann\": CLIENT_ERROR"), "{refused}");
    let without = Client::connect([&at], Options::new()).await.err().map(|error| error.to_string());
    assert!(without.unwrap().contains("unauthenticated"));
}

#[tokio::test]
async fn tls_is_spoken_with_those_whom_the_caller_trusts() {
    use mbal_client::rustls::pki_types::{CertificateDer, pem::PemObject};
    use mbal_client::rustls::{ClientConfig, RootCertStore};
    let folder = Folder::new("client-tls-certs");
    let openssl = |line: &str| {
        let words =
            line.split(' ').map(|word| word.replace("@", &format!("{}/", folder.0.display())));
        Command::new("openssl").args(words).output().is_ok_and(|ran| ran.status.success())
    };
    fs::write(folder.path("san"), "subjectAltName=DNS:cache.test\n").unwrap();
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    if !openssl(&format!("req -x509 {key} -subj /CN=authority -keyout @ca.key -out @ca.pem")) {
        return eprintln!("SKIPPED: this needs openssl");
    }
    assert!(openssl(&format!("req {key} -subj /CN=server -keyout @key.pem -out @asked.pem")));
    assert!(openssl(
        "x509 -req -in @asked.pem -CA @ca.pem -CAkey @ca.key -CAcreateserial -extfile @san -out @chain.pem"
    ));
    let file = |name: &str| folder.path(name).display().to_string();
    let options = format!("ssl_chain_cert={},ssl_key={}", file("chain.pem"), file("key.pem"));
    let servers = Servers::new("client-tls", &["-Z", "-o", &options]);
    let running = servers.start_all();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(folder.path("ca.pem")).unwrap()).unwrap();
    let trusting = |roots: RootCertStore| {
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let tls =
            mbal_client::Tls { config: config.into(), server_name: Some("cache.test".into()) };
        Options::new().tls(tls)
    };
    let client = servers.client(&running, trusting(roots)).await;
    set_all(&client).await;
    check_without(&servers, &client, 0).await;
    let at = format!("127.0.0.1:{}", running[0].port);
    let stranger = Client::connect([at], trusting(RootCertStore::empty())).await;
    assert!(stranger.err().unwrap().to_string().contains("certificate"));
}

#[test]
fn the_benchmarks_smart_client_goes_to_the_owners_of_a_cluster() {
    let servers = Servers::new("client-bench", &["--balance", "off"]);
    let running = servers.start_all();
    for protocol in ["meta", "binary"] {
        let bench = Command::new(MBAL)
            .args(["bench", &format!("127.0.0.1:{}", running[0].port), "--smart", "--prefill"])
            .args(["--keys", "500", "--set-share", "0.2", "--requests", "5000", "--warmup", "0"])
            .args(["--connections", "12", "--depth", "4", "--protocol", protocol])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&bench.stderr) + String::from_utf8_lossy(&bench.stdout);
        assert!(bench.status.success(), "{said}");
        let detours: Vec<u64> = running.iter().map(detours).collect();
        assert_eq!(detours, [0; SERVERS], "{protocol}: {said}");
    }
    let items = running.iter().map(|server| {
        let stats = running::stats(&mut server.connect());
        let items = stats.lines().find_map(|line| line.strip_prefix("STAT curr_items "));
        items.unwrap().parse::<u64>().unwrap()
    });
    let items: Vec<u64> = items.collect();
    assert_eq!(items.iter().sum::<u64>(), 500);
    assert_eq!(items.iter().filter(|items| **items > 100).count(), SERVERS, "{items:?}");
}
