//! A cachelet that is more than any worker can do: the cluster splits it, and places its parts, without any command.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use mbal_model::{ClusterView, Key, Owner, Prefix, ServerId};

mod running;

use running::led::{Coordinator, arguments, folder, free_port, stores};
use running::{Ends, Folder, MBAL, Running, ask, eventually, output_of};

const CLIENTS: usize = 16;
/// Requests that a client sends an owner at once.
const PIPELINE: usize = 64;

/// Three servers of two workers, with epochs of a tenth of a second.
struct Three {
    servers: Vec<Running>,
    coordinator: Coordinator,
    _folder: Folder,
}

impl Three {
    fn start(test: &str, hot_keys: &str) -> Three {
        let folder = folder(test);
        let flags = ["--hot-keys", hot_keys];
        let coordinator = Coordinator::start_with(&folder, free_port(), 3, &flags);
        let secret = folder.path("secret").display().to_string();
        let mut flags = arguments(&coordinator.url, &secret);
        let threads = flags.iter().position(|flag| *flag == "-t").expect("it is among them");
        flags[threads + 1] = "2";
        flags.extend(["--epoch", "100ms"]);
        let start = |_| {
            drop(std::fs::remove_file(folder.path("ports")));
            Running::serve(&folder, &flags)
        };
        let servers: Vec<Running> = (0..3).map(start).collect();
        eventually("all keys can be stored", || servers.iter().all(stores));
        Three { servers, coordinator, _folder: folder }
    }

    fn told(&self, what: &str) -> String {
        let words = ["cluster", what, "--coordinator", &self.coordinator.url];
        String::from_utf8_lossy(&output_of(MBAL.as_ref(), &words).stdout).into_owned()
    }

    /// What each server says of itself: its loans are known to it alone.
    fn views(&self) -> Views {
        let views = self.servers.iter().map(|server| {
            let (mut stream, mut said) = (server.connect(), Vec::new());
            stream.write_all(b"config get mbal\r\n").unwrap();
            while !said.ends_with(b"END\r\n") {
                let mut bytes = [0; 4096];
                let count = stream.read(&mut bytes).unwrap();
                said.extend_from_slice(&bytes[..count]);
            }
            let said = String::from_utf8(said).unwrap();
            let document = said.split_once('\n').unwrap().1.trim_end();
            let view = ClusterView::parse(document.strip_suffix("END").unwrap()).unwrap();
            let own = view.cluster.servers.iter();
            let own = own.filter(|(_, addresses)| addresses.client.port == server.port);
            (*own.map(|(id, _)| id).next().expect("it is one of them"), view)
        });
        Views(views.collect())
    }
}

struct Views(BTreeMap<ServerId, ClusterView>);

impl Views {
    fn owner(&self, hash: u64) -> Owner {
        let any = self.0.values().next().expect("there are three");
        let home = any.cluster.map.at(hash).1;
        self.0[&home.server].cluster.map.at(hash).1
    }

    fn port(&self, owner: Owner) -> u16 {
        let cluster = &self.0[&owner.server].cluster;
        cluster.servers[&owner.server].workers[usize::from(owner.worker.0)].port
    }
}

/// Keys of the first cachelet.
fn keys(three: &Three, count: usize) -> (Prefix, Vec<String>) {
    let views = three.views();
    let (prefix, _) = views.0.values().next().unwrap().cluster.map.cachelets()[0];
    let names = (0..).map(|n| format!("key{n}"));
    let keys = names.filter(|name| prefix.contains(Key::new(name.as_bytes()).unwrap().hash()));
    let keys: Vec<String> = keys.take(count).collect();
    for key in &keys {
        ask(&mut three.servers[0].connect(), &format!("set {key} 0 0 1\r\nv\r\n"), "STORED\r\n");
    }
    (prefix, keys)
}

/// A client that asks each key's owner, and nobody else, until it is to stop.
fn read(three: &Three, keys: &[String], stop: &AtomicBool) {
    let mut streams: BTreeMap<u16, TcpStream> = BTreeMap::new();
    let (mut requests, mut looked) = (BTreeMap::<u16, String>::new(), None::<Instant>);
    while !stop.load(SeqCst) {
        if looked.is_none_or(|at| at.elapsed() > Duration::from_millis(200)) {
            let views = three.views();
            requests.clear();
            for at in 0..PIPELINE.max(keys.len()) {
                let key = &keys[at % keys.len()];
                let port = views.port(views.owner(Key::new(key.as_bytes()).unwrap().hash()));
                *requests.entry(port).or_default() += &format!("mg {key} v L1.0\r\n");
            }
            requests.values_mut().for_each(|one| *one += "mn\r\n");
            looked = Some(Instant::now());
        }
        let stream = |port: &u16| TcpStream::connect(("127.0.0.1", *port)).unwrap();
        for (port, asked) in &requests {
            let to = streams.entry(*port).or_insert_with(|| stream(port));
            to.write_all(asked.as_bytes()).unwrap();
        }
        for port in requests.keys() {
            let (mut end, mut bytes) = (Vec::new(), [0; 16 << 10]);
            while !end.ends_with(b"MN\r\n") {
                let count = streams.get_mut(port).unwrap().read(&mut bytes).unwrap();
                assert!(count > 0, "it is served");
                end.extend_from_slice(&bytes[..count]);
                end.drain(..end.len().saturating_sub(4));
            }
        }
    }
}

/// While clients read these keys.
fn while_read(three: &Three, keys: &[String], what: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Ends(&stop);
        for _ in 0..CLIENTS {
            scope.spawn(|| read(three, keys, &stop));
        }
        what();
    });
}

#[test]
fn a_cachelet_that_has_the_load_by_many_keys_is_split_and_its_parts_are_spread() {
    let three = Three::start("splits", "atomic");
    let (whole, keys) = keys(&three, 400);
    let hashes: Vec<u64> =
        keys.iter().map(|key| Key::new(key.as_bytes()).unwrap().hash()).collect();
    while_read(&three, &keys, || {
        let split = format!("{whole} of server ");
        eventually("it is split", || {
            three
                .told("events")
                .lines()
                .any(|line| line.contains(&split) && line.contains("is split into"))
        });
        eventually("three workers have parts of it", || {
            let views = three.views();
            let owners: BTreeSet<Owner> = hashes.iter().map(|hash| views.owner(*hash)).collect();
            owners.len() >= 3
        });
    });
    for key in &keys {
        let told = format!("VALUE {key} 0 1\r\nv\r\nEND\r\n");
        ask(&mut three.servers[1].connect(), &format!("get {key}\r\n"), &told);
    }
}

#[test]
fn one_keys_cachelet_is_named_and_not_split() {
    let three = Three::start("one-key", "off");
    let (whole, keys) = keys(&three, 1);
    while_read(&three, &keys, || {
        let named = format!("{whole} is too heavy for any worker");
        eventually("it is named", || three.told("events").contains(&named));
        std::thread::sleep(Duration::from_secs(2));
    });
    assert!(!three.told("events").contains("is split into"), "{}", three.told("events"));
}
