//! `mbal pool resize` as a process, on pools of real memcacheds.

use std::process::{Command, Output, Stdio};

mod running;

use mbal_routing::ketama::{Dialect, Ring, RingServer};
use running::memcached::Memcached;
use running::{MBAL, eventually, signal};

struct Pool(Vec<Memcached>);

impl Pool {
    /// None where memcached is not installed.
    fn new(count: usize) -> Option<Pool> {
        Memcached::some(count).map(Pool)
    }

    fn list(&self, servers: &[usize]) -> String {
        servers.iter().map(|&server| self.0[server].name()).collect::<Vec<_>>().join(",")
    }

    fn ask(&self, server: usize, request: &str) -> String {
        self.0[server].ask(request)
    }

    /// Stores so many keys where clients with this ring have them.
    fn fill(&self, servers: &[usize], dialect: Dialect, keys: usize) {
        let names: Vec<RingServer> =
            self.list(servers).split(',').map(|name| name.parse().unwrap()).collect();
        let ring = Ring::new(dialect, None, &names);
        self.store(servers, keys, |key| vec![ring.owner(key)]);
    }

    /// Stores so many keys on some of these servers.
    fn store(&self, servers: &[usize], keys: usize, place: impl Fn(&[u8]) -> Vec<usize>) {
        let value = "x".repeat(400);
        let mut requests = vec![String::new(); servers.len()];
        for key in (0..keys).map(|number| format!("cart:{number}")) {
            for at in place(key.as_bytes()) {
                requests[at] += &format!("set {key} 0 0 400 noreply\r\n{value}\r\n");
            }
        }
        for (server, requests) in servers.iter().zip(requests) {
            self.ask(*server, &requests);
        }
    }

    /// With those that were flushed and that nobody has met since.
    fn items(&self, server: usize) -> usize {
        let stats = self.ask(server, "stats\r\n");
        let line = stats.lines().find(|line| line.starts_with("STAT curr_items ")).unwrap();
        line[16..].trim().parse().unwrap()
    }
}

fn scale(args: &[&str]) -> Command {
    let mut command = Command::new(MBAL);
    command.args(["pool", "resize"]).args(args).stdin(Stdio::null());
    command
}

fn text(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_dry_run_says_what_would_travel_and_changes_nothing() {
    let Some(pool) = Pool::new(3) else { return };
    pool.fill(&[0, 1, 2], Dialect::Libmemcached, 3_000);
    let output = scale(&[&pool.list(&[0, 1, 2]), "--to", "2", "--dry-run"]).output().unwrap();
    let (out, err) = text(&output);
    assert!(output.status.success(), "{err}");
    assert!(out.starts_with("3 servers with 3000 items\nretire: 127.0.0.1:"), "{out}");
    assert!(out.contains("\n3000 of 3000 keys are where --ring libmemcached has them\n"), "{out}");
    assert_eq!(pool.items(0) + pool.items(1) + pool.items(2), 3_000);
}

#[test]
fn without_a_word_about_writers_nothing_is_begun() {
    let Some(pool) = Pool::new(2) else { return };
    let list = pool.list(&[0, 1]);
    let output = scale(&[&list, "--to", "1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).1.contains("--i-stop-writers"), "{}", text(&output).1);
    for (args, why) in [
        (&["--to", "0"][..], "somebody must keep the keys"),
        (&["--to", "2"], "name the new ones with --to-servers"),
        (&["--to-servers", "a,a"], "a:11211 is there twice"),
    ] {
        let output = scale(&[&[&list, "--dry-run"], args].concat()).output().unwrap();
        assert!(text(&output).1.contains(why), "{}", text(&output).1);
    }
}

/// With two servers each key is where a wrong ring has it by the toss of a coin.
#[test]
fn a_ring_that_the_pool_does_not_prove_deletes_nothing() {
    let Some(pool) = Pool::new(2) else { return };
    let list = pool.list(&[0, 1]);
    let flush = || drop((pool.ask(0, "flush_all\r\n"), pool.ask(1, "flush_all\r\n")));
    let items = || pool.items(0) + pool.items(1);
    let by_remainder =
        |key: &[u8]| vec![mbal_routing::ketama::KeyHash::Md5.place(key) as usize % 2];
    let same = [&list, "--to-servers", &list];
    for ways in [&same[..], &[&list, "--to", "1", "--i-stop-writers"]] {
        for theirs in [Some(Dialect::Twemproxy), Some(Dialect::Unweighted), None] {
            match theirs {
                Some(dialect) => pool.fill(&[0, 1], dialect, 5_000),
                None => pool.store(&[0, 1], 5_000, by_remainder),
            }
            let best = theirs
                .map_or("the remainder of md5".to_owned(), |one| format!("--ring {}", one.label()));
            let best = format!("5000 of 5000 are where the one has them that fits best: {best}");
            let output = scale(ways).output().unwrap();
            let (out, err) = text(&output);
            assert_eq!(output.status.code(), Some(1), "{out}");
            assert!(err.contains("nothing shows that clients place keys by this ring"), "{err}");
            assert!(err.contains(&best), "{err}");
            let (out, _) = text(&scale(&[ways, &["--dry-run"]].concat()).output().unwrap());
            assert!(out.contains("It would not begin: ") && out.contains(&best), "{out}");
            assert_eq!(items(), 5_000);
            flush();
        }
    }
}

#[test]
fn what_an_earlier_change_has_left_goes_when_the_others_prove_the_ring() {
    let Some(pool) = Pool::new(2) else { return };
    let list = pool.list(&[0, 1]);
    let items = || pool.items(0) + pool.items(1);
    let same = [&list, "--to-servers", &list];
    pool.fill(&[0, 1], Dialect::Twemproxy, 5_000);
    pool.store(&[0, 1], 100, |_| vec![0, 1]);
    let stray = "set left:1 0 0 1\r\nx\r\n";
    assert_eq!(items(), 5_100);
    pool.ask(0, stray);
    pool.ask(1, stray);
    let output = scale(&[&same[..], &["--ring", "twemproxy"]].concat()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output).1);
    assert_eq!(items(), 5_001);
    // Whoever knows better may say so.
    let output = scale(&[&same[..], &["--delete-strays"]].concat()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output).1);
    assert!(items() < 4_000, "{}", items());
}

#[test]
fn few_keys_and_one_server_prove_no_ring() {
    let Some(pool) = Pool::new(2) else { return };
    let grow = [&pool.list(&[0]), "--to-servers", &pool.list(&[0, 1])];
    pool.fill(&[0], Dialect::Libmemcached, 1_000);
    let output = scale(&[&grow[..], &["--i-stop-writers"]].concat()).output().unwrap();
    assert!(text(&output).1.contains("(one server shows no ring)"), "{}", text(&output).1);
    pool.ask(0, "flush_all\r\n");
    pool.fill(&[0, 1], Dialect::Libmemcached, 20);
    let list = pool.list(&[0, 1]);
    let output = scale(&[&list, "--to", "1", "--i-stop-writers"]).output().unwrap();
    assert!(text(&output).1.contains("20 of 20 keys are where"), "{}", text(&output).1);
    assert_eq!(
        [output.status.code(), Some(pool.items(0) as i32 + pool.items(1) as i32)],
        [Some(1), Some(20)]
    );
}

/// Its items would be deleted as what an earlier change has left.
#[test]
fn a_newcomer_that_others_use_is_refused() {
    let Some(pool) = Pool::new(3) else { return };
    let (old, all) = (pool.list(&[0, 1]), pool.list(&[0, 1, 2]));
    pool.fill(&[0, 1], Dialect::Libmemcached, 3_000);
    pool.store(&[2], 1_000, |_| vec![0]);
    let grow = [&old, "--to-servers", &all, "--i-stop-writers", "--switch-command", "true"];
    let output = scale(&grow).output().unwrap();
    let (_, err) = text(&output);
    assert!(
        err.contains("has 1000 items, and nothing shows that this pool has left them there"),
        "{err}"
    );
    assert_eq!(pool.items(2), 1_000);
    // One that was of the pool before has what belongs to it.
    pool.ask(2, "flush_all\r\n");
    pool.fill(&[0, 1, 2], Dialect::Libmemcached, 3_000);
    let output = scale(&[&old, "--to-servers", &all, "--dry-run"]).output().unwrap();
    let (out, _) = text(&output);
    assert!(!out.contains("It would not begin"), "{out}");
}

#[test]
fn clients_get_the_new_list_when_all_copies_are_there_and_strays_go() {
    let Some(pool) = Pool::new(3) else { return };
    // Nobody has the third server yet; an earlier change has left something.
    pool.fill(&[0, 1], Dialect::Libmemcached, 2_000);
    pool.store(&[0, 1], 50, |_| vec![0, 1]);
    let switch = format!(
        "test \"$MBAL_SERVERS\" = {} && echo switched by command >&2",
        pool.list(&[0, 1, 2])
    );
    let grow = [&pool.list(&[0, 1]), "--to-servers", &pool.list(&[0, 1, 2])];
    let rest = ["--i-stop-writers", "--json", "--switch-command", &switch];
    let output = scale(&[&grow[..], &rest].concat()).output().unwrap();
    let (out, err) = text(&output);
    assert!(output.status.success(), "{out}{err}");
    assert!(err.contains("switched by command"), "{err}");
    let events: Vec<serde_json::Value> =
        out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<&str> = events
        .iter()
        .map(|event| event["event"].as_str().unwrap())
        .filter(|event| *event != "progress")
        .collect();
    assert_eq!(names, ["listed", "planned", "ring", "copied", "switched", "done"]);
    assert_eq!(events.iter().find(|event| event["event"] == "copied").unwrap()["strays"], 50);
    // Each key is on the server where it belongs, and nowhere else; and the one that came says to proxies that it was filled.
    assert_eq!(pool.ask(2, "get mbal:filled\r\n"), "VALUE mbal:filled 0 1\r\n1\r\nEND\r\n");
    assert_eq!(pool.items(0) + pool.items(1) + pool.items(2), 2_001);
    assert!(pool.items(2) > 300, "{}", pool.items(2));
}

#[test]
fn a_command_that_fails_leaves_the_pool_as_it_was() {
    let Some(pool) = Pool::new(3) else { return };
    pool.fill(&[0, 1], Dialect::Libmemcached, 1_000);
    let args = [&pool.list(&[0, 1]), "--to-servers", &pool.list(&[0, 1, 2])];
    let output = scale(&[&args[..], &["--i-stop-writers", "--switch-command", "exit 3"]].concat());
    let output = { output }.output().unwrap();
    let (out, err) = text(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(err.contains("--switch-command: exit status: 3"), "{err}");
    assert!(out.contains("copies were deleted again: the pool is as it was"), "{out}");
    assert_eq!([pool.items(0) + pool.items(1), pool.items(2)], [1_000, 0]);
}

#[test]
fn an_interrupt_takes_back_what_was_copied() {
    let Some(pool) = Pool::new(3) else { return };
    pool.fill(&[0, 1], Dialect::Libmemcached, 5_000);
    let args = [&pool.list(&[0, 1]), "--to-servers", &pool.list(&[0, 1, 2])];
    let slowly = [&args[..], &["--i-stop-writers", "--rate", "0.1"]].concat();
    let child = scale(&slowly).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("something is copied", || pool.items(2) > 0);
    signal(&child, "INT");
    let output = child.wait_with_output().unwrap();
    let (out, err) = text(&output);
    assert!(out.contains("the pool is as it was") && err.contains("interrupted"), "{out}{err}");
    assert_eq!([pool.items(0) + pool.items(1), pool.items(2)], [5_000, 0]);
}
