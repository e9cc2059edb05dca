//! Servers and a coordinator that were started one by one: who waits for whom, and what goes on without the other.

use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

mod running;

use mbal_client::{Client, Options};
use running::heard::Heard;
use running::led::{Coordinator, arguments, folder, free_port, server, stores};
use running::{Folder, MBAL, Running, ask, eventually, output_of, stats};

#[test]
fn servers_wait_for_their_coordinator_and_it_for_them() {
    let folder = folder("wait");
    let port = free_port();
    let url = format!("http://127.0.0.1:{port}");
    let first = server(&folder, &url);
    let is_open = || std::net::TcpStream::connect(("127.0.0.1", first.port)).is_ok();
    assert!(!is_open());
    let coordinator = Coordinator::start(&folder, port, 2);
    assert_eq!(coordinator.map(), None);
    assert!(!is_open());
    let second = server(&folder, &url);
    eventually("there is a map", || coordinator.map().is_some());
    eventually("all keys can be stored at either", || stores(&first) && stores(&second));
}

#[test]
fn clients_notice_nothing_of_a_coordinator_that_is_gone_and_comes_back() {
    let folder = folder("gone");
    let port = free_port();
    let mut coordinator = Coordinator::start(&folder, port, 2);
    let servers = [server(&folder, &coordinator.url), server(&folder, &coordinator.url)];
    eventually("all keys can be stored", || servers.iter().all(stores));
    let map = coordinator.map();
    coordinator.kill();
    std::thread::sleep(Duration::from_millis(300));
    assert!(servers.iter().all(stores));
    let coordinator = Coordinator::start(&folder, port, 2);
    eventually("it is there again", || coordinator.map().is_some());
    assert_eq!(coordinator.map(), map, "it knows what it knew");
    eventually("both say so", || {
        let status =
            output_of(MBAL.as_ref(), &["cluster", "status", "--coordinator", &coordinator.url]);
        String::from_utf8_lossy(&status.stdout).matches("serving").count() == 2
    });
    assert!(servers.iter().all(stores));
}

#[test]
fn a_second_server_of_an_id_takes_the_place_of_the_first_which_ends() {
    let folder = folder("twice");
    let coordinator = Coordinator::start(&folder, free_port(), 1);
    let secret = folder.path("secret").display().to_string();
    let mut arguments = arguments(&coordinator.url, &secret);
    arguments.extend(["--server-id", "7"]);
    let mut first = Running::serve(&folder, &arguments);
    eventually("it serves", || stores(&first));
    drop(std::fs::remove_file(folder.path("ports")));
    let second = Running::serve(&folder, &arguments);
    let (status, said) = first.wait();
    assert_eq!(status.code(), Some(69), "{said}");
    assert!(said.contains("another process"), "{said}");
    eventually("the second one serves", || stores(&second));
    ask(&mut second.connect(), "delete k1\r\n", "DELETED\r\n");
}

#[test]
fn a_server_of_another_cluster_is_refused_with_the_reason() {
    let folder = folder("other");
    let coordinator = Coordinator::start(&folder, free_port(), 1);
    eventually("it listens", || {
        std::net::TcpStream::connect(&coordinator.url["http://".len()..]).is_ok()
    });
    let secret = folder.path("secret").display().to_string();
    let words = ["serve", "-p", "-1", "--control", "off", "--cluster-name", "other"];
    let by = ["--coordinator", &coordinator.url, "--cluster-secret", &secret];
    let refused = Heard::start(&[&words[..], &by].concat()).hear(&["refuses"]);
    assert!(refused.contains(": this is cluster mbal, not other (--cluster-name"), "{refused}");
}

#[test]
fn wrong_flags_are_told_by_name() {
    let folder = folder("flags");
    let secret = folder.path("secret").display().to_string();
    let said = |words: &[&str]| {
        let output = output_of(Path::new(MBAL), words);
        assert!(!output.status.success(), "{words:?}");
        String::from_utf8(output.stderr).expect("it is text")
    };
    let url = "http://127.0.0.1:1";
    let told = said(&["serve", "--coordinator", "127.0.0.1:1", "--cluster-secret", &secret]);
    assert!(told.contains("--coordinator 127.0.0.1:1: it is like http://"), "{told}");
    assert!(said(&["serve", "--coordinator", url]).contains("--cluster-secret"));
    assert!(
        said(&["serve", "--coordinator", url, "--cluster-secret", "/no/such"]).contains("/no/such")
    );
    assert!(said(&["cluster", "status", "--coordinator", url]).contains("no coordinator"));
    assert!(
        said(&["cluster", "move", "0000/1", "x/y", "--coordinator", url]).contains("SERVER/WORKER")
    );
    assert!(said(&["coordinator", "--cluster-name", "a/b"]).contains("--cluster-name a/b"));
    assert!(said(&["coordinator", "--state", "/dev/null/x"]).contains("/dev/null"));
    assert!(said(&["up", "--servers", "0"]).contains("--servers"));
    assert!(said(&["up", "-p", "65535"]).contains("-p 65535: 3 servers need ports up to 65535"));
}

#[test]
fn a_server_is_emptied_with_its_items_and_may_be_stopped() {
    let folder = folder("drain");
    let coordinator = Coordinator::start(&folder, free_port(), 2);
    let mbal = |arguments: &[&str]| {
        let mut all = arguments.to_vec();
        all.extend(["--coordinator", &coordinator.url]);
        let output = output_of(MBAL.as_ref(), &all);
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let first = server(&folder, &coordinator.url);
    let second = server(&folder, &coordinator.url);
    eventually("all keys can be stored at either", || stores(&first) && stores(&second));
    let ids = |state: &str| -> Vec<String> {
        let (_, status) = mbal(&["cluster", "status"]);
        let rows = status.lines().filter(|line| line.split_whitespace().nth(1) == Some(state));
        rows.filter_map(|line| Some(line.split_whitespace().next()?.to_owned())).collect()
    };
    eventually("both are heard of", || ids("serving").len() == 2);
    let emptied = ids("serving").remove(1);
    assert!(mbal(&["cluster", "drain", &emptied]).0);
    eventually("it is empty", || ids("drained") == [emptied.as_str()]);
    let (_, status) = mbal(&["cluster", "status"]);
    assert!(status.contains(&format!("server {emptied} is empty, and may be stopped")), "{status}");
    for n in 0..20 {
        ask(
            &mut first.connect(),
            &format!("get k{n}\r\n"),
            &format!("VALUE k{n} 0 1\r\nv\r\nEND\r\n"),
        );
    }
    assert!(mbal(&["cluster", "drain", &emptied, "--undo"]).0);
    assert_eq!(ids("serving").len(), 2);
    assert!(mbal(&["cluster", "balance", "off"]).0);
    assert!(mbal(&["cluster", "status"]).1.contains("balance is off"));
    assert!(!mbal(&["cluster", "drain", "99"]).0 && !mbal(&["cluster", "balance", "fast"]).0);
}

/// Two servers and their coordinator, keys stored, all of them found at either.
fn two(folder: &Folder, more: &[&str]) -> (Coordinator, Running, Running) {
    let coordinator = Coordinator::start(folder, free_port(), 2);
    let secret = folder.path("secret").display().to_string();
    let mut flags = arguments(&coordinator.url, &secret);
    flags.extend(more);
    let start = || {
        drop(std::fs::remove_file(folder.path("ports")));
        Running::serve(folder, &flags)
    };
    let (first, second) = (start(), start());
    eventually("all keys can be stored at either", || stores(&first) && stores(&second));
    (coordinator, first, second)
}

fn events(coordinator: &Coordinator) -> String {
    let output =
        output_of(MBAL.as_ref(), &["cluster", "events", "--coordinator", &coordinator.url]);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn signal(server: &Running, name: &str) {
    running::signals::send(server.child.id(), name);
}

#[test]
fn a_server_that_is_told_to_end_gives_its_items_away_first_and_is_forgotten() {
    let folder = folder("term");
    let (coordinator, first, second) = two(&folder, &[]);
    let port = second.port;
    let (status, said) = second.signal("TERM");
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(said.contains("gives its cachelets away, and ends in 30 s at most"), "{said}");
    assert!(said.contains("this server is empty, and ends"), "{said}");
    for n in 0..20 {
        let found = format!("VALUE k{n} 0 1\r\nv\r\nEND\r\n");
        ask(&mut first.connect(), &format!("get k{n}\r\n"), &found);
    }
    let map = coordinator.map().expect("there is one");
    assert!(!map.contains(&format!("client 127.0.0.1:{port} ")), "{map}");
    let told = events(&coordinator);
    assert!(told.contains("is empty, and may be stopped"), "{told}");
    assert!(!told.contains("begin empty elsewhere"), "{told}");
}

/// Items of 20 kB are stored by this server until nobody has room for any: which of them were acknowledged.
fn fill_large(server: &Running, count: usize) -> Vec<usize> {
    let value = "v".repeat(20_000);
    let mut stream = server.connect();
    let mut stored = Vec::new();
    for n in 0..count {
        let request = format!("set large{n} 0 0 20000\r\n{value}\r\n");
        stream.write_all(request.as_bytes()).expect("it listens");
        let mut reply = [0; 64];
        let bytes = stream.read(&mut reply).expect("it answers");
        match &reply[..bytes] {
            b"STORED\r\n" => stored.push(n),
            other => assert!(other.starts_with(b"SERVER_ERROR out of memory"), "{other:?}"),
        }
    }
    stored
}

fn found_large(server: &Running, keys: &[usize]) -> usize {
    let value = "v".repeat(20_000);
    let is_found = |n: &&usize| {
        let mut stream = server.connect();
        stream.write_all(format!("get large{n}\r\nmn\r\n").as_bytes()).expect("it listens");
        let mut reply = Vec::new();
        let mut bytes = [0; 4096];
        while !reply.ends_with(b"MN\r\n") {
            let count = stream.read(&mut bytes).expect("it answers");
            reply.extend_from_slice(&bytes[..count]);
        }
        reply == format!("VALUE large{n} 0 20000\r\n{value}\r\nEND\r\nMN\r\n").as_bytes()
    };
    keys.iter().filter(is_found).count()
}

/// Nothing may be evicted (`-M`), and both servers are full.
#[test]
fn what_a_full_server_has_no_room_for_stays_where_it_is_and_a_server_that_ends_says_so() {
    let folder = folder("full");
    let flags = ["-M", "-m", "32", "--drain-timeout", "4"];
    let (coordinator, first, second) = two(&folder, &flags);
    let stored = fill_large(&first, 4_500);
    assert!(stored.len() > 2_000, "{} of 64 MiB", stored.len());
    assert_eq!(found_large(&first, &stored), stored.len(), "nothing is evicted");
    let (status, said) = second.signal("TERM");
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(said.contains("no other server has room for what is left here"), "{said}");
    let lost = said.lines().find(|line| line.contains("the time is over")).expect("it says so");
    assert!(lost.contains("there is no room at the others"), "{lost}");
    let left = lost.split_once(" bytes went, ").and_then(|(_, rest)| rest.split(' ').next());
    let left: usize = left.and_then(|left| left.parse().ok()).expect("it says how many");
    let told = events(&coordinator);
    assert!(told.contains("cannot be emptied, nobody has room"), "{told}");
    // What is gone is no more than it said, and nothing that the other had has made room.
    eventually("the other one serves all keys", || stores_one(&first));
    let kept = found_large(&first, &stored);
    assert!(kept + left >= stored.len(), "{kept} of {} are there, {left} were lost", stored.len());
    let told = stats(&mut first.connect());
    assert!(told.contains("STAT evictions 0\r\n"), "{told}");
    assert!(kept > stored.len() / 3, "{kept} of {}", stored.len());
}

/// It has become the owner of all keys, full as it is.
fn stores_one(server: &Running) -> bool {
    let mut stream = server.connect();
    (0..20).all(|n| {
        let request = format!("get none{n}\r\n");
        let mut reply = [0; 64];
        stream.write_all(request.as_bytes()).expect("it listens");
        stream.read(&mut reply).is_ok_and(|count| &reply[..count] == b"END\r\n")
    })
}

#[test]
fn a_second_signal_ends_a_server_at_once() {
    let folder = folder("term-twice");
    let (mut coordinator, _first, second) = two(&folder, &[]);
    // Nobody orders the moves, so that it would wait for the whole time.
    coordinator.kill();
    signal(&second, "TERM");
    std::thread::sleep(Duration::from_millis(200));
    assert!(stores(&second), "it serves meanwhile");
    let (status, said) = second.signal("TERM");
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(said.contains("the coordinator was not told that server"), "{said}");
}

#[test]
fn a_server_without_time_to_give_says_goodbye_and_its_keys_begin_empty_at_once() {
    let folder = folder("term-none");
    let (coordinator, first, second) = two(&folder, &["--drain-timeout", "0"]);
    let (status, said) = second.signal("TERM");
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(!said.contains("gives its cachelets away"), "{said}");
    eventually("the other one has all keys", || stores(&first));
    assert!(events(&coordinator).contains("begin empty elsewhere"));
}

#[test]
fn what_is_not_given_away_in_time_is_lost_and_said_to_be() {
    let folder = folder("term-late");
    let (mut coordinator, _first, second) = two(&folder, &["--drain-timeout", "300ms"]);
    coordinator.kill();
    let (status, said) = second.signal("TERM");
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(said.contains("the time is over: what is left here is lost"), "{said}");
}

#[test]
fn the_last_server_does_not_wait_for_somebody_to_take_what_it_has() {
    let folder = folder("term-last");
    let coordinator = Coordinator::start(&folder, free_port(), 1);
    let only = server(&folder, &coordinator.url);
    eventually("it serves", || stores(&only));
    let (status, said) = only.signal("TERM");
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(said.contains("no other server takes what this one has"), "{said}");
}

/// How many of 2,000 keys are there, and say what they were given.
fn found(server: &Running) -> usize {
    let mut stream = server.connect();
    let mut reply = [0; 64];
    let mut is_there = |n: usize| {
        use std::io::Write;
        stream.write_all(format!("get many{n}\r\n").as_bytes()).expect("it is taken");
        let count = stream.read(&mut reply).expect("it answers");
        reply[..count] == *format!("VALUE many{n} 0 1\r\nv\r\nEND\r\n").as_bytes()
    };
    (0..2_000).filter(|n| is_there(*n)).count()
}

#[test]
fn a_cachelet_is_split_while_it_is_served_and_a_half_of_it_moves() {
    let folder = folder("split");
    let (coordinator, first, second) = two(&folder, &[]);
    let mut stream = second.connect();
    for n in 0..2_000 {
        use std::io::Write;
        stream.write_all(format!("set many{n} 0 0 1\r\nv\r\n").as_bytes()).expect("it is taken");
        let mut reply = [0; 64];
        let count = stream.read(&mut reply).expect("it answers");
        assert_eq!(reply[..count], *b"STORED\r\n");
    }
    let mbal = |words: &[&str]| {
        let output =
            output_of(MBAL.as_ref(), &[words, &["--coordinator", &coordinator.url]].concat());
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(()) } else { Err(error) }
    };
    let map = || coordinator.map().expect("there is one");
    let line =
        map().lines().find(|line| line.ends_with(" 1/0")).expect("server 1 has some").to_owned();
    let whole = line.split(' ').nth(1).expect("cachelet PREFIX OWNER").to_owned();
    mbal(&["cluster", "split", &whole]).expect("it is split");
    assert!(
        mbal(&["cluster", "split", &whole])
            .is_err_and(|said| said.contains("is no cachelet of the map"))
    );
    let bits: u32 = whole.split('/').nth(1).expect("PREFIX/BITS").parse().expect("a number");
    let half = format!("{}/{}", &whole[..4], bits + 1);
    assert!(map().contains(&format!("cachelet {half} 1/0")), "{}", map());
    assert_eq!((found(&first), found(&second)), (2_000, 2_000));
    let told = |server: &Running, asked: &str| {
        let (mut stream, mut said) = (server.connect(), String::new());
        std::io::Write::write_all(&mut stream, asked.as_bytes()).expect("it is taken");
        while !said.ends_with("END\r\n") {
            let mut room = [0; 4096];
            let count = stream.read(&mut room).expect("it answers");
            said += std::str::from_utf8(&room[..count]).expect("text");
        }
        said
    };
    let version = |said: &str, word: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(word));
        line.and_then(|line| line.split_once('.'))
            .map(|(map, _)| map.parse::<u64>().expect("a number"))
    };
    let whole = told(&first, "config get mbal\r\n");
    let known = version(&whole, "version ").expect("a version");
    let runtime = tokio::runtime::Runtime::new().expect("it starts");
    let client = runtime.block_on(Client::connect(
        [format!("127.0.0.1:{}", first.port)],
        Options::new().poll(Duration::from_millis(20)),
    ));
    let client = client.expect("it is told the map");
    mbal(&["cluster", "move", &half, "2"]).expect("it begins");
    eventually("the half has moved", || map().contains(&format!("cachelet {half} 2/0")));
    // Who knows the map before is told a line of it, and of the loans of who tells.
    eventually("both tell it", || {
        [&first, &second].iter().all(|server| {
            let said = told(server, &format!("config get mbal {known}.0 changes\r\n"));
            version(&said, "from ") == Some(known)
                && version(&said, "version ").is_some_and(|version| known < version)
                && said.contains(&format!("\ncachelet {half} 2/0\n"))
                && said.lines().count() < whole.lines().count()
        })
    });
    eventually("the client has heard", || known < client.map_version());
    let read = (0..2_000).map(|n| client.get(format!("many{n}")));
    let read: Vec<_> = read.map(|get| runtime.block_on(get)).collect();
    assert!(read.iter().all(|value| matches!(value, Ok(Some(value)) if value.bytes == b"v")));
    assert_eq!((found(&first), found(&second)), (2_000, 2_000));
}

#[test]
fn operators_see_the_cluster_where_a_key_is_and_what_has_put_it_there() {
    let folder = folder("seen");
    let (coordinator, first, _second) = two(&folder, &[]);
    let mbal = |words: &[&str]| {
        let mut all = words.to_vec();
        all.extend(["--coordinator", &coordinator.url]);
        let output = output_of(MBAL.as_ref(), &all);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("it is text")
    };
    let told = mbal(&["cluster", "explain", "k1"]);
    let cachelet = told.split("cachelet ").nth(1).and_then(|rest| rest.lines().next());
    let cachelet = cachelet.expect("it has one").to_owned();
    let owner: u16 = told
        .split("server ")
        .nth(1)
        .map(|rest| rest[..1].parse())
        .expect("1 or 2")
        .expect("a number");
    assert!(told.contains("the first map: "), "{told}");
    let to = (3 - owner).to_string();
    mbal(&["cluster", "move", &cachelet, &to]);
    eventually("it has moved", || {
        mbal(&["cluster", "explain", "k1"]).contains(&format!("cachelet {cachelet}: server {to}, "))
    });
    let told = mbal(&["cluster", "explain", "k1"]);
    assert!(told.contains(&format!("{cachelet} from server {owner} to {to}")), "{told}");
    assert!(told.contains(&format!("{cachelet} has moved")), "{told}");
    let seen = mbal(&["top", "--once", "--interval", "0.1"]);
    assert!(
        seen.contains("cluster mbal, map version") && seen.contains("last decisions"),
        "{seen}"
    );
    assert!(seen.contains(&format!("{cachelet} has moved")), "{seen}");
    let json = mbal(&["top", "--json", "--once", "--interval", "0.1"]);
    assert!(json.starts_with('{') && json.lines().count() == 1, "{json}");
    let mut stream = first.connect();
    std::io::Write::write_all(&mut stream, b"stats cluster\r\n").expect("it is taken");
    let mut said = String::new();
    while !said.ends_with("END\r\n") {
        let mut room = [0; 4096];
        let count = stream.read(&mut room).expect("it answers");
        said += std::str::from_utf8(&room[..count]).expect("text");
    }
    assert!(said.contains("STAT links_up 1\r\nSTAT links_wanted 1\r\nSTAT moves 0\r\n"), "{said}");
}

fn said_of(arguments: &[&str]) -> (bool, String) {
    let output = output_of(Path::new(MBAL), arguments);
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).expect("it is text"))
}

#[test]
fn a_server_that_lives_is_not_said_to_be_dead_and_is_named_by_its_address() {
    let folder = folder("lives");
    let coordinator = Coordinator::start(&folder, free_port(), 2);
    let servers = [(); 2].map(|()| server(&folder, &coordinator.url));
    eventually("all keys can be stored", || servers.iter().all(stores));
    let address = format!("127.0.0.1:{}", servers[1].port);
    let lost = |more: &[&str]| {
        said_of(&[&["cluster", "lost", &address, "--coordinator", &coordinator.url], more].concat())
    };
    let (done, said) = lost(&[]);
    assert!(!done && said.contains("lives: it was heard") && said.contains("--force"), "{said}");
    assert!(servers.iter().all(stores), "nothing has happened");
    let (done, said) = said_of(&["cluster", "drain", &address, "--coordinator", &coordinator.url]);
    assert!(done, "{said}");
    assert!(
        said_of(&["cluster", "drain", &address, "--undo", "--coordinator", &coordinator.url]).0
    );
    let (done, said) =
        said_of(&["cluster", "drain", "127.0.0.1:1", "--coordinator", &coordinator.url]);
    assert!(
        !done && said.contains("there is no server 127.0.0.1:1") && said.contains(&address),
        "{said}"
    );
    let (done, said) = said_of(&[
        "cluster",
        "move",
        "0000/1",
        &format!("{address}/x"),
        "--coordinator",
        &coordinator.url,
    ]);
    assert!(!done && said.contains("SERVER/WORKER"), "{said}");
    let (done, said) = lost(&["--force"]);
    assert!(done && said.contains(" is lost: its keys begin empty"), "{said}");
    let (done, said) = lost(&["--force"]);
    assert!(done && said.contains(" had ended already: it is lost"), "{said}");
    eventually("the other has all of it", || stores(&servers[0]));
}

#[test]
fn servers_with_different_secrets_are_named_with_what_to_do() {
    let folder = folder("secrets");
    folder.keep("other", "another secret of this test\n");
    let coordinator = Coordinator::start(&folder, free_port(), 2);
    let first = server(&folder, &coordinator.url);
    drop(std::fs::remove_file(folder.path("ports")));
    let other = folder.path("other").display().to_string();
    let _second = Running::serve(&folder, &arguments(&coordinator.url, &other));
    eventually("half of the writes fail", || coordinator.map().is_some() && !stores(&first));
    let status = || said_of(&["cluster", "status", "--coordinator", &coordinator.url]).1;
    eventually("status says so", || {
        status().contains("links are broken: keys are missed, and writes fail")
    });
    let told = status();
    assert!(!told.contains("serving") && told.matches("unlinked").count() == 2, "{told}");
    assert!(
        told.contains("secret is another; give all servers the same --cluster-secret"),
        "{told}"
    );
    let events = said_of(&["cluster", "events", "--coordinator", &coordinator.url]).1;
    assert!(events.contains("has no link to server"), "{events}");
    let page = || {
        let page = ureq::get(&format!("{}/metrics", coordinator.url)).call().expect("it is told");
        page.into_string().expect("it is text")
    };
    // Each of them finds out by itself.
    eventually("both ways are counted", || page().contains("\nmbal_coordinator_broken_links 2\n"));
    assert!(page().contains("\nmbal_coordinator_servers{state=\"unlinked\"} 2\n"), "{}", page());
}

#[test]
fn secrets_that_others_can_read_and_tokens_that_are_guessed_are_refused() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder("open");
    let (secret, token) = (folder.path("secret"), folder.path("token"));
    folder.keep("token", "x\n");
    let words = [secret.display().to_string(), token.display().to_string()];
    let state = folder.path("state.json").display().to_string();
    let coordinator =
        ["coordinator", "--listen", "127.0.0.1:0", "--state", &state, "--token-file", &words[1]];
    let (_, said) = said_of(&coordinator);
    assert!(said.contains("16 or more"), "{said}");
    for path in [&secret, &token] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)).expect("it is ours");
    }
    assert!(
        said_of(&coordinator).1.contains("others can read or write it (mode 644): chmod o= it")
    );
    let url = "http://127.0.0.1:1";
    let (_, said) = said_of(&["serve", "--coordinator", url, "--cluster-secret", &words[0]]);
    assert!(said.contains("--cluster-secret") && said.contains("chmod o= it"), "{said}");
    let (_, said) =
        said_of(&["cluster", "status", "--coordinator", url, "--coordinator-token", &words[1]]);
    assert!(said.contains("--coordinator-token") && said.contains("chmod o= it"), "{said}");
    let nowhere = folder.path("no").join("such.json").display().to_string();
    let (_, said) = said_of(&["coordinator", "--listen", "127.0.0.1:0", "--state", &nowhere]);
    assert!(said.contains("there is no folder") && !folder.path("no").exists(), "{said}");
}

#[test]
fn what_is_asked_for_does_nothing_to_the_terminal() {
    let folder = folder("escapes");
    let coordinator = Coordinator::start(&folder, free_port(), 1);
    let server = server(&folder, &coordinator.url);
    eventually("it serves", || stores(&server));
    for key in ["a\u{1b}[2Jb", "a\u{9b}31mb", "a\u{202e}b"] {
        let (done, said) = said_of(&["cluster", "explain", key, "--coordinator", &coordinator.url]);
        assert!(done && said.contains("key a\\x"), "{said:?}");
        assert!(!said.contains(['\u{1b}', '\u{9b}', '\u{202e}']), "{said:?}");
    }
}
