//! Upstreams that come and go while clients ask.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use crate::pool::{Memcached, Proxied, ask_at, value_of};
use crate::running::{Ends, Folder, MBAL, eventually};

fn write(path: &Path, pool: &[&Memcached]) {
    let lines: String = pool.iter().map(|one| one.name() + "\n").collect();
    fs::write(path, lines).unwrap();
}

/// Tells the proxy to read its upstreams, and waits until it has.
fn change(proxy: &Proxied, path: &Path, pool: &[&Memcached]) {
    let changes = |proxy: &Proxied| proxy.metric("mbal_proxy_pool_changes_total").unwrap();
    let before = changes(proxy);
    write(path, pool);
    proxy.hang_up();
    eventually("the pool is another", || changes(proxy) > before);
}

fn up(proxy: &Proxied, one: &Memcached) -> bool {
    proxy.stat(&format!("upstream:{}:state", one.name())).as_deref() == Some("up")
}

/// A number of an upstream's own.
fn stat_of(one: &Memcached, name: &str) -> u64 {
    let stats = one.ask("stats\r\n");
    let prefix = format!("STAT {name} ");
    stats.lines().find_map(|line| line.strip_prefix(&prefix)).unwrap().parse().unwrap()
}

/// How often an upstream was connected to.
fn connections(one: &Memcached) -> u64 {
    stat_of(one, "total_connections")
}

/// Connections to an upstream that are open.
fn open(one: &Memcached) -> u64 {
    stat_of(one, "curr_connections")
}

#[test]
fn a_changed_file_moves_keys_and_who_returns_deletes_what_it_has_missed() {
    let Some(pool) = Memcached::some(3) else { return };
    let [a, b, c] = &pool[..] else { unreachable!("three were asked for") };
    let folder = Folder::new("proxy-changes");
    let path = folder.path("upstreams");
    write(&path, &[a, b]);
    let flags = ["--upstreams-file", path.to_str().unwrap(), "--hash", "md5"];
    let proxy = Proxied::start(&folder, &flags);
    eventually("both serve", || up(&proxy, a) && up(&proxy, b));
    (0..100).for_each(|key| proxy.set(&format!("k{key}"), "old"));
    let of_b: Vec<String> =
        (0..100).map(|key| format!("k{key}")).filter(|key| b.value(key).is_some()).collect();
    assert!((20..80).contains(&of_b.len()), "{}", of_b.len());
    let dialed = connections(a);
    change(&proxy, &path, &[a, c]);
    eventually("the new one serves", || up(&proxy, c));
    // Those of the one that left are in neither place; of the others, those that the new one has not drawn are where they were.
    let found = (0..100).filter(|key| proxy.value(&format!("k{key}")).is_some()).count();
    assert!((1..=100 - of_b.len()).contains(&found), "{found}");
    assert!(of_b.iter().all(|key| proxy.value(key).is_none()));
    of_b.iter().for_each(|key| proxy.set(key, "new"));
    assert_eq!(b.value(&of_b[0]).as_deref(), Some("old"), "it was told nothing");
    change(&proxy, &path, &[a, b]);
    eventually("it has deleted that, and serves", || up(&proxy, b));
    assert_eq!(proxy.stat("returns").as_deref(), Some("1"));
    for key in &of_b {
        assert_eq!((proxy.value(key), b.value(key)), (None, None), "{key}");
    }
    // One more by each of these questions of how many there were.
    assert_eq!(connections(a), dialed + 1, "who stays keeps its connection");
}

#[test]
fn no_request_is_lost_while_upstreams_come_and_go() {
    let Some(pool) = Memcached::some(4) else { return };
    let folder = Folder::new("proxy-lossless");
    let path = folder.path("upstreams");
    let all: Vec<&Memcached> = pool.iter().collect();
    write(&path, &all);
    let proxy = Proxied::start(&folder, &["--upstreams-file", path.to_str().unwrap()]);
    let (port, ends) = (proxy.running.port, AtomicBool::new(false));
    thread::scope(|scope| {
        for client in 0..4 {
            let ends = &ends;
            scope.spawn(move || {
                let mut round = 0;
                while !ends.load(Relaxed) {
                    round += 1;
                    let keys = |of: fn(usize, usize, usize) -> String| -> String {
                        (0..50).map(|key| of(client, key, round)).collect()
                    };
                    let sets = keys(|client, key, round| {
                        let value = round.to_string();
                        format!("set c{client}k{key} 0 0 {}\r\n{value}\r\n", value.len())
                    });
                    assert_eq!(ask_at(port, &sets), "STORED\r\n".repeat(50));
                    let gets = keys(|client, key, _| format!("get c{client}k{key}\r\n"));
                    let reply = ask_at(port, &gets);
                    assert_eq!(reply.matches("END\r\n").count(), 50, "{reply}");
                    assert!(!reply.contains("ERROR"), "{reply}");
                }
            });
        }
        let _ends = Ends(&ends);
        for round in 0..20 {
            let left = round % 4;
            let some: Vec<&Memcached> =
                pool.iter().enumerate().filter(|(at, _)| *at != left).map(|(_, one)| one).collect();
            change(&proxy, &path, &some);
            change(&proxy, &path, &all);
        }
    });
    eventually("all serve", || all.iter().all(|one| up(&proxy, one)));
    assert_eq!(proxy.stat("errors").as_deref(), Some("0"));
    assert_eq!(proxy.metric("mbal_proxy_upstreams_leaving"), Some(0.0));
}

/// A pool that shrinks and grows again behind a proxy: who comes back has been filled, and is not flushed.
#[test]
fn a_resize_behind_the_proxy_loses_nothing() {
    const KEYS: usize = 30_000;
    let Some(pool) = Memcached::some(3) else { return };
    let folder = Folder::new("proxy-resized");
    let path = folder.path("upstreams");
    let all: Vec<&Memcached> = pool.iter().collect();
    write(&path, &all);
    let file = path.to_str().unwrap();
    let proxy = Proxied::start(&folder, &["--upstreams-file", file]);
    eventually("all serve", || all.iter().all(|one| up(&proxy, one)));
    let keys: Vec<String> = (0..KEYS).map(|number| format!("cart:{number}")).collect();
    let store = |proxy: &Proxied, keys: &[String]| {
        for some in keys.chunks(500) {
            let sets = some.iter().map(|key| format!("set {key} 0 0 1\r\nx\r\n"));
            assert_eq!(proxy.ask(&sets.collect::<String>()), "STORED\r\n".repeat(some.len()));
        }
    };
    store(&proxy, &keys);
    let found = |proxy: &Proxied| -> usize {
        let get = |some: &[String]| proxy.ask(&format!("get {}\r\n", some.join(" ")));
        keys.chunks(500).map(|some| get(some).matches("VALUE ").count()).sum()
    };
    let named =
        |some: &[&Memcached]| some.iter().map(|one| one.name()).collect::<Vec<_>>().join(",");
    let scale = |from: &[&Memcached], to: &[&Memcached]| {
        let pid = proxy.running.child.id();
        let switch =
            format!("printf '%s\\n' \"$MBAL_SERVERS\" | tr , '\\n' > {file} && kill -HUP {pid}");
        let (from, to) = (named(from), named(to));
        let lists = ["pool", "resize", &from, "--to-servers", &to, "--ring", "twemproxy"];
        let rest = ["--i-stop-writers", "--switch-command", &switch];
        let output = Command::new(MBAL).args(lists).args(rest).output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{err}");
        String::from_utf8(output.stdout).unwrap()
    };
    scale(&all, &all[..2]);
    eventually("two serve", || proxy.metric("mbal_proxy_pool_changes_total") == Some(1.0));
    assert_eq!(found(&proxy), KEYS);
    // What the third one has is old now.
    store(&proxy, &keys[..15_000]);
    let said = scale(&all[..2], &all);
    eventually("three serve", || up(&proxy, all[2]));
    assert!(!said.contains("was flushed"), "{said}");
    assert_eq!((found(&proxy), stat_of(all[2], "cmd_flush")), (KEYS, 0));
    // Without a resize, what was written meanwhile is deleted, and nothing else is.
    change(&proxy, &path, &all[..2]);
    store(&proxy, &keys[..10]);
    change(&proxy, &path, &all);
    eventually("three serve", || up(&proxy, all[2]));
    let left = found(&proxy);
    assert!((KEYS - 10..=KEYS).contains(&left), "{left}");
    assert_eq!(stat_of(all[2], "cmd_flush"), 0);
}

/// Someone else flushes it behind the tool's back.
#[test]
fn copies_that_are_flushed_are_made_again_before_the_originals_go() {
    let Some(pool) = Memcached::some(3) else { return };
    let folder = Folder::new("proxy-flushed-copies");
    let path = folder.path("upstreams");
    let all: Vec<&Memcached> = pool.iter().collect();
    write(&path, &all[..2]);
    let proxy = Proxied::start(&folder, &["--upstreams-file", path.to_str().unwrap()]);
    eventually("both serve", || all[..2].iter().all(|one| up(&proxy, one)));
    let sets = (0..500).map(|number| format!("set k{number} 0 0 1\r\nx\r\n"));
    assert_eq!(proxy.ask(&sets.collect::<String>()), "STORED\r\n".repeat(500));
    let (a, b, c) = (all[0].name(), all[1].name(), all[2].name());
    let flush = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{}; printf 'flush_all\\r\\nquit\\r\\n' >&3; cat <&3",
        all[2].port
    );
    let switch = format!("(sleep 0.5; bash -c \"{flush}\") >/dev/null 2>&1 &");
    let (from, to) = (format!("{a},{b}"), format!("{a},{b},{c}"));
    let output = Command::new(MBAL)
        .args(["pool", "resize", &from, "--to-servers", &to, "--ring", "twemproxy"])
        .args(["--i-stop-writers", "--switch-command", &switch])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("was flushed, or has begun anew: it is filled again"), "{said}");
    let items: u64 = all.iter().map(|one| stat_of(one, "curr_items")).sum();
    // And the word that it was filled, if that has outlived the flush.
    assert!((500..=501).contains(&items), "{items}: {said}");
}

#[test]
fn an_upstream_that_leaves_answers_what_it_owes() {
    let Some(pool) = Memcached::some(2) else { return };
    let folder = Folder::new("proxy-owes");
    let path = folder.path("upstreams");
    let all: Vec<&Memcached> = pool.iter().collect();
    write(&path, &all);
    let file = path.to_str().unwrap();
    let flags = ["--upstreams-file", file, "--timeout", "20s", "--hash", "md5"];
    let open_before = open(&pool[0]);
    let proxy = Proxied::start(&folder, &flags);
    (0..50).for_each(|key| proxy.set(&format!("k{key}"), "x"));
    let of_first = (0..50).map(|key| format!("k{key}")).find(|key| pool[0].value(key).is_some());
    let key = of_first.unwrap();
    pool[0].signal("STOP");
    thread::scope(|scope| {
        let waits = scope.spawn(|| proxy.value(&key));
        let waiting = format!("upstream:{}:waiting", pool[0].name());
        eventually("it is asked", || proxy.stat(&waiting).as_deref() == Some("1"));
        change(&proxy, &path, &all[1..]);
        assert_eq!(proxy.stat("leaving").as_deref(), Some("1"));
        assert_eq!(proxy.value(&key), None, "it is asked for elsewhere");
        pool[0].signal("CONT");
        assert_eq!(waits.join().unwrap().as_deref(), Some("x"));
    });
    eventually("it has left", || proxy.stat("leaving").as_deref() == Some("0"));
    eventually("its connection is closed", || open(&pool[0]) == open_before);
}

#[test]
fn a_file_that_is_wrong_changes_nothing() {
    let Some(pool) = Memcached::some(1) else { return };
    let folder = Folder::new("proxy-wrong-file");
    let path = folder.path("upstreams");
    let wrong = |flags: &[&str]| {
        let said = Proxied::try_start(&folder, flags).map(|_| ()).unwrap_err();
        said.trim().to_owned()
    };
    let file = path.to_str().unwrap();
    fs::write(&path, "# nobody\n").unwrap();
    let said = wrong(&["--upstreams-file", file]);
    assert_eq!(said, "mbal proxy: there are no upstreams");
    let twice = format!("{},{}", pool[0].name(), pool[0].name());
    let said = wrong(&["--upstream", &twice]);
    assert_eq!(said, format!("mbal proxy: {} is there twice", pool[0].name()));
    write(&path, &[&pool[0]]);
    let proxy = Proxied::start(&folder, &["--upstreams-file", file]);
    proxy.set("a", "x");
    fs::write(&path, "one two:three\n").unwrap();
    proxy.hang_up();
    thread::sleep(Duration::from_millis(50));
    assert_eq!(value_of(&proxy.ask("get a\r\n")).as_deref(), Some("x"));
    assert_eq!(proxy.metric("mbal_proxy_pool_changes_total"), Some(0.0));
    let (_, said) = proxy.running.signal("TERM");
    assert!(said.contains("the upstreams stay as they are"), "{said}");
}
