//! Clusters that get smaller and larger: what travels, and what happens when it is interrupted.

use std::io::{BufRead, BufReader, Write};
use std::time::Duration;

mod running;

use running::led::{Coordinator, arguments, folder, free_port, stores};
use running::{Folder, MBAL, Running, eventually, output_of};

/// Keys, with values of a kilobyte.
const COLD: std::ops::Range<usize> = 0..30_000;
const HOT: std::ops::Range<usize> = 30_000..34_000;
/// Ages are seconds.
const COOLS: Duration = Duration::from_secs(3);

struct Cluster {
    coordinator: Coordinator,
    servers: Vec<Running>,
}

impl Cluster {
    /// Three servers of 16 MB each.
    fn new(folder: &Folder, more: &[&str]) -> Cluster {
        let coordinator = Coordinator::start(folder, free_port(), 3);
        let secret = folder.path("secret").display().to_string();
        let start = |id: u16| {
            drop(std::fs::remove_file(folder.path("ports")));
            let mut flags = arguments(&coordinator.url, &secret);
            flags.extend(["-m", "16"]);
            flags.extend(more);
            let id = id.to_string();
            flags.extend(["--server-id", &id]);
            Running::serve(folder, &flags)
        };
        let servers: Vec<Running> = (1..=3).map(start).collect();
        eventually("all keys can be stored at any", || servers.iter().all(stores));
        Cluster { coordinator, servers }
    }

    /// As full as it gets; some keys were used later than all others.
    fn fill(&self) {
        self.set(COLD);
        std::thread::sleep(COOLS);
        self.set(HOT);
    }

    fn set(&self, keys: std::ops::Range<usize>) {
        let mut stream = self.servers[0].connect();
        let mut replies = BufReader::new(stream.try_clone().expect("a descriptor"));
        let value = "v".repeat(1_000);
        for from in keys.clone().step_by(100) {
            let some = from..(from + 100).min(keys.end);
            let asked: String =
                some.clone().map(|n| format!("set key{n} 0 0 1000\r\n{value}\r\n")).collect();
            stream.write_all(asked.as_bytes()).expect("it is taken");
            for _ in some {
                let mut line = String::new();
                replies.read_line(&mut line).expect("it answers");
                assert_eq!(line, "STORED\r\n");
            }
        }
    }

    fn found(&self, server: usize, keys: std::ops::Range<usize>) -> usize {
        let mut stream = self.servers[server].connect();
        let mut replies = BufReader::new(stream.try_clone().expect("a descriptor"));
        let mut found = 0;
        for from in keys.clone().step_by(50) {
            let names: Vec<String> =
                (from..(from + 50).min(keys.end)).map(|n| format!("key{n}")).collect();
            stream.write_all(format!("get {}\r\n", names.join(" ")).as_bytes()).expect("taken");
            loop {
                let mut line = String::new();
                replies.read_line(&mut line).expect("it answers");
                match line.as_str() {
                    "END\r\n" => break,
                    line if line.starts_with("VALUE") => found += 1,
                    _ => {}
                }
            }
        }
        found
    }

    fn mbal(&self, words: &[&str]) -> (bool, String) {
        let all = [words, &["--coordinator", &self.coordinator.url]].concat();
        let output = output_of(MBAL.as_ref(), &all);
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&said).into_owned())
    }

    fn is_done(&self, serving: usize) -> bool {
        let (_, said) = self.mbal(&["cluster", "scale"]);
        said.starts_with(&format!("done: {serving} servers serve"))
    }

    /// Which of the servers does not retire.
    fn staying(&self) -> usize {
        let (_, said) = self.mbal(&["cluster", "status"]);
        let serves = |line: &&str| line.split_whitespace().nth(1) == Some("serving");
        let first = said.lines().find(serves).expect("one serves");
        first.split_whitespace().next().expect("its number").parse::<usize>().expect("one") - 1
    }
}

#[test]
fn a_smaller_cluster_has_the_youngest_items_and_a_dry_run_changes_nothing() {
    let folder = folder("scale-in");
    let cluster = Cluster::new(&folder, &[]);
    cluster.fill();
    let (worked, said) = cluster.mbal(&["cluster", "scale", "2", "--dry-run"]);
    assert!(worked && said.contains("3 servers serve, 2 would"), "{said}");
    assert!(said.contains("older items make room"), "{said}");
    for named in 1..=3 {
        let (worked, said) =
            cluster.mbal(&["cluster", "scale", "2", "--retire", &named.to_string(), "--dry-run"]);
        let row = said.lines().nth(2).expect("who would retire");
        assert!(worked && row.split_whitespace().next() == Some(&*named.to_string()), "{said}");
    }
    let (worked, said) = cluster.mbal(&["cluster", "scale", "2", "--retire", "1,2"]);
    assert!(!worked && said.contains("1 of them have to be named"), "{said}");
    let (_, status) = cluster.mbal(&["cluster", "status"]);
    assert_eq!(status.matches("serving").count(), 3, "{status}");
    let (worked, said) = cluster.mbal(&["cluster", "scale", "2"]);
    assert!(worked && said.contains("done: 2 servers serve"), "{said}");
    assert!(said.contains("is empty, and may be stopped"), "{said}");
    let found = cluster.found(cluster.staying(), HOT);
    assert!(found >= HOT.len() * 99 / 100, "{found} of {}", HOT.len());
    let (_, events) = cluster.mbal(&["cluster", "events"]);
    assert!(events.contains("retires: its median item counts as"), "{events}");
    let (worked, said) = cluster.mbal(&["cluster", "scale", "4", "--no-wait"]);
    assert!(worked && said.contains("3 of 4 servers serve: start 1 more"), "{said}");
    let (worked, said) = cluster.mbal(&["cluster", "scale", "0"]);
    assert!(!worked && said.contains("one server at least"), "{said}");
}

#[test]
fn a_coordinator_that_is_killed_amid_goes_on_when_it_is_back() {
    let folder = folder("scale-killed");
    let mut cluster = Cluster::new(&folder, &[]);
    cluster.fill();
    let (worked, said) = cluster.mbal(&["cluster", "scale", "2", "--no-wait"]);
    assert!(worked, "{said}");
    cluster.coordinator.kill();
    let url = cluster.coordinator.url.clone();
    let port: u16 = url.rsplit(':').next().expect("a port").parse().expect("a number");
    cluster.coordinator = Coordinator::start(&folder, port, 3);
    eventually("it is done", || cluster.is_done(2));
    let found = cluster.found(cluster.staying(), HOT);
    assert!(found >= HOT.len() * 99 / 100, "{found} of {}", HOT.len());
}

#[test]
fn a_cancelled_one_leaves_three_servers_that_serve_everything() {
    let folder = folder("scale-cancel");
    let cluster = Cluster::new(&folder, &[]);
    cluster.fill();
    assert!(cluster.mbal(&["cluster", "scale", "1", "--no-wait"]).0);
    let (worked, said) = cluster.mbal(&["cluster", "scale", "--cancel"]);
    assert!(worked || said.contains("no scaling is under way"), "{said}");
    eventually("nothing moves", || {
        let (_, status) = cluster.mbal(&["cluster", "status"]);
        status.matches("serving").count() == 3 && !status.contains("move ")
    });
    assert!(cluster.servers.iter().all(stores));
    let found = cluster.found(0, HOT);
    assert!(found >= HOT.len() * 99 / 100, "{found} of {}", HOT.len());
}

#[test]
fn if_a_server_dies_that_was_to_stay_two_serve_all_the_same() {
    let folder = folder("scale-dead");
    let mut cluster = Cluster::new(&folder, &[]);
    cluster.fill();
    assert!(cluster.mbal(&["cluster", "scale", "2", "--no-wait"]).0);
    let staying = cluster.staying();
    let dead = cluster.servers.remove(staying);
    drop(dead);
    assert!(cluster.mbal(&["cluster", "lost", "--force", &(staying + 1).to_string()]).0);
    eventually("two serve", || {
        let (_, said) = cluster.mbal(&["cluster", "scale"]);
        said.contains("done: 2 servers serve") || said.contains("done: 1 servers serve")
    });
    eventually("all keys can be stored", || cluster.servers.iter().any(stores));
}

#[test]
fn a_server_that_has_to_end_soon_gives_what_was_used_last() {
    let folder = folder("scale-soon");
    let mut cluster = Cluster::new(&folder, &["--drain-timeout", "5"]);
    cluster.fill();
    let ends = cluster.servers.pop().expect("three");
    let (status, said) = ends.signal("TERM");
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(said.contains("bytes went"), "{said}");
    let found = cluster.found(0, HOT);
    assert!(found >= HOT.len() * 95 / 100, "{found} of {}: {said}", HOT.len());
}
