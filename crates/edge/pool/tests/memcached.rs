//! Pools of real memcacheds that grow and shrink.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use mbal_elastic::pool::{Plan, Resize, plan};
use mbal_pool::{Move, Pace, Stream, Surveyed, choose, survey, sweep};
use mbal_routing::ketama::{Dialect, Ring, RingServer};

struct Pool {
    children: Vec<Child>,
    servers: Vec<RingServer>,
}

impl Drop for Pool {
    fn drop(&mut self) {
        for child in &mut self.children {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

/// So many memcacheds of so many MB; none where memcached is not installed.
fn pool(count: usize, megabytes: u32) -> Option<Pool> {
    let mut pool = Pool { children: vec![], servers: vec![] };
    for _ in 0..count {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = Command::new(std::env::var("MEMCACHED").unwrap_or("memcached".into()));
        command.args(["-u", "root", "-l", "127.0.0.1", "-U", "0", "-t", "1"]);
        command.args(["-p", &port.to_string(), "-m", &megabytes.to_string()]);
        let Ok(child) = command.stderr(Stdio::null()).spawn() else {
            eprintln!("SKIPPED, NOT TESTED: no memcached");
            return None;
        };
        pool.children.push(child);
        pool.servers.push(format!("127.0.0.1:{port}").parse().unwrap());
        let begin = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(begin.elapsed() < Duration::from_secs(10), "memcached does not listen");
            thread::sleep(Duration::from_millis(10));
        }
    }
    Some(pool)
}

fn dial(server: &RingServer) -> io::Result<Box<dyn Stream>> {
    let stream = TcpStream::connect((&server.host[..], server.port))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    Ok(Box::new(stream))
}

/// An application's view of the pool: keys go where the ring says.
struct Client {
    ring: Ring,
    streams: Vec<TcpStream>,
}

impl Client {
    fn new(servers: &[RingServer]) -> Client {
        let open =
            |server: &RingServer| TcpStream::connect((&server.host[..], server.port)).unwrap();
        Client { ring: ring(servers), streams: servers.iter().map(open).collect() }
    }

    /// The reply up to its end, which is one of those.
    fn ask(&mut self, key: &[u8], request: &[u8], ends: &[&[u8]]) -> Vec<u8> {
        let stream = &mut self.streams[self.ring.owner(key)];
        stream.write_all(request).unwrap();
        let mut reply = Vec::new();
        let mut room = [0; 65536];
        while !ends.iter().any(|end| reply.ends_with(end)) {
            let got = stream.read(&mut room).unwrap();
            assert!(got > 0, "it hangs up");
            reply.extend_from_slice(&room[..got]);
        }
        reply
    }

    fn set(&mut self, key: &str, flags: u32, ttl: u32, value: &[u8]) {
        let mut request = format!("set {key} {flags} {ttl} {}\r\n", value.len()).into_bytes();
        request.extend_from_slice(value);
        request.extend_from_slice(b"\r\n");
        assert_eq!(self.ask(key.as_bytes(), &request, &[b"\r\n"]), b"STORED\r\n");
    }

    fn get(&mut self, key: &str) -> Option<Vec<u8>> {
        let reply = self.ask(key.as_bytes(), format!("get {key}\r\n").as_bytes(), &[b"END\r\n"]);
        let head = reply.iter().position(|&byte| byte == b'\n').unwrap() + 1;
        (head < reply.len()).then(|| reply[head..reply.len() - 7].to_vec())
    }

    fn meta(&mut self, key: &str, request: &str) -> String {
        let reply = self.ask(key.as_bytes(), format!("{request}\r\n").as_bytes(), &[b"\r\n"]);
        String::from_utf8(reply).unwrap()
    }
}

fn ring(servers: &[RingServer]) -> Ring {
    Ring::new(Dialect::Libmemcached, None, servers)
}

fn surveyed(servers: &[RingServer], pace: &Pace) -> Vec<Surveyed> {
    survey(servers, &dial, ring(servers).hash(), pace).unwrap()
}

/// Of members that are the larger of both pools, the first so many before, and those numbers after.
fn resize(servers: &[RingServer], before: usize, after: &[usize]) -> Resize {
    let new: Vec<RingServer> = after.iter().map(|&member| servers[member].clone()).collect();
    Resize {
        old: ring(&servers[..before]),
        old_members: (0..before).collect(),
        new: ring(&new),
        new_members: after.to_vec(),
    }
}

fn planned(members: &[Surveyed], resize: &Resize) -> Plan {
    let members: Vec<_> = members.iter().map(Surveyed::member).collect();
    plan(&members, resize)
}

#[test]
fn a_pool_shrinks_and_clients_find_every_item_as_it_was() {
    let Some(pool) = pool(3, 64) else { return };
    let mut before = Client::new(&pool.servers);
    let mut items = BTreeMap::new();
    for n in 0..5_000_usize {
        let value: Vec<u8> = (0..n % 700).map(|at| ((n * 31 + at) % 256) as u8).collect();
        before.set(&format!("user:{n}"), n as u32, 0, &value);
        items.insert(format!("user:{n}"), value);
    }
    // A place that a client keeps for what it fetches, and what a client has called stale.
    assert_eq!(before.meta("kept", "mg kept N60"), "HD W\r\n");
    before.set("stale", 0, 0, b"old");
    before.meta("stale", "md stale I T60");
    before.set("expires", 7, 1_000, b"soon");
    let long = vec![b'x'; 900_000];
    before.set("long", 1, 0, &long);
    items.insert("long".into(), long);
    // Two months are told as a time of day.
    let late = 60 * 24 * 3_600;
    before.meta("late", &format!("ms late 1 T{}\r\nx", unix() + late));
    // A key with blanks, which the text protocol cannot say: "a b".
    for stream in &mut before.streams {
        stream.write_all(b"ms YSBi 3 b\r\nabc\r\n").unwrap();
        let mut reply = [0; 4];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(&reply, b"HD\r\n");
    }

    let pace = Pace::new(None);
    let members = surveyed(&pool.servers, &pace);
    let retiring = choose(&members, 1, Dialect::Libmemcached, None);
    let kept: Vec<usize> = (0..3).filter(|member| *member != retiring[0]).collect();
    let resize = resize(&pool.servers, 3, &kept);
    let plan = planned(&members, &resize);
    let mut moving = Move::new(&members, &resize, &dial, &pace);
    moving.clear(&plan).unwrap();
    moving.carry(&plan).unwrap();
    moving.check(&plan, true).unwrap();
    // Two of the three items "a b" were where no client looks.
    assert_eq!(moving.counts.strays, 2);
    assert_eq!((moving.counts.there, moving.counts.refused), (0, 0));
    let retired = |key: &str| resize.old.owner(key.as_bytes()) == retiring[0];
    let unsettled = ["kept", "stale"].into_iter().filter(|key| retired(key));
    assert_eq!(moving.counts.gone, unsettled.clone().count() as u64);

    let servers: Vec<RingServer> = kept.iter().map(|&m| pool.servers[m].clone()).collect();
    let mut after = Client::new(&servers);
    for (key, value) in &items {
        assert_eq!(after.get(key).as_ref(), Some(value), "{key}");
    }
    for key in unsettled {
        assert_eq!(after.get(key), None);
    }
    assert_eq!(after.meta("user:77", "mg user:77 f"), "HD f77\r\n");
    let ttl: u32 = after.meta("expires", "mg expires t")[4..].trim().parse().unwrap();
    assert!((900..=1_000).contains(&ttl), "{ttl}");
    let ttl: u64 = after.meta("late", "mg late t")[4..].trim().parse().unwrap();
    // Clocks of whole seconds: one may show the next already.
    assert!((late - 100..=late + 2).contains(&ttl), "{ttl}");
    assert_eq!(after.meta("a b", "mg YSBi b s"), "HD s3\r\n");
    assert_eq!(sweep(&servers, &ring(&servers), &dial, &pace).unwrap(), 0);
}

fn unix() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
}

#[test]
fn where_there_is_no_room_for_all_the_youngest_are_kept() {
    let Some(pool) = pool(2, 4) else { return };
    let mut before = Client::new(&pool.servers);
    let value = vec![b'x'; 1_000];
    // Each server has room for 4 MB; the old half, then what both halves of the new pool have room for.
    for n in 0..2_500 {
        before.set(&format!("old:{n}"), 0, 0, &value);
    }
    thread::sleep(Duration::from_millis(3_100));
    for n in 0..1_500 {
        before.set(&format!("new:{n}"), 0, 0, &value);
    }
    let pace = Pace::new(None);
    let members = surveyed(&pool.servers, &pace);
    let resize = resize(&pool.servers, 2, &[0]);
    let plan = planned(&members, &resize);
    assert!(plan.left > 0, "{} are colder than what fits", plan.left);
    let mut moving = Move::new(&members, &resize, &dial, &pace);
    moving.carry(&plan).unwrap();
    let mut after = Client::new(&pool.servers[..1]);
    let found = (0..1_500).filter(|n| after.get(&format!("new:{n}")).is_some()).count();
    assert!(found >= 1_490, "{found} of 1500 young items are there");
}

#[test]
fn a_pool_grows_and_shrinks_again_and_nobody_reads_an_old_value() {
    let Some(pool) = pool(3, 64) else { return };
    let pace = Pace::new(None);
    let (two, three) = (&pool.servers[..2], &pool.servers[..]);
    let mut small = Client::new(two);
    for n in 0..2_000 {
        small.set(&format!("k{n}"), 0, 0, b"1");
    }
    // Grows; what moved stays where it was, as after a switch without tidying up.
    let members = surveyed(three, &pace);
    let grow = resize(three, 2, &[0, 1, 2]);
    let plan = planned(&members, &grow);
    let mut moving = Move::new(&members, &grow, &dial, &pace);
    moving.clear(&plan).unwrap();
    moving.carry(&plan).unwrap();
    let moved = moving.copies();
    assert!(moved > 300, "{moved}");
    let mut large = Client::new(three);
    for n in 0..2_000 {
        assert_eq!(large.get(&format!("k{n}")), Some(b"1".to_vec()));
        large.set(&format!("k{n}"), 0, 0, b"2");
    }
    let shrink = resize(three, 3, &[0, 1]);
    let old_values = |small: &mut Client| {
        (0..2_000).filter(|n| small.get(&format!("k{n}")) == Some(b"1".to_vec())).count() as u64
    };
    // The check itself: without clearing, an add leaves the old values, and they are found.
    let members = surveyed(three, &pace);
    let plan = planned(&members, &shrink);
    let mut careless = Move::new(&members, &shrink, &dial, &pace);
    careless.carry(&plan).unwrap();
    assert_eq!(careless.counts.there, moved);
    assert_eq!(old_values(&mut small), moved);
    careless.undo(&|| false).unwrap();
    // As it is done.
    let mut moving = Move::new(&members, &shrink, &dial, &pace);
    moving.clear(&plan).unwrap();
    assert_eq!(moving.counts.strays, moved);
    moving.carry(&plan).unwrap();
    assert_eq!(old_values(&mut small), 0);
    for n in 0..2_000 {
        assert_eq!(small.get(&format!("k{n}")), Some(b"2".to_vec()));
    }
}

#[test]
fn what_was_written_after_it_was_copied_is_found_and_copied_again() {
    let Some(pool) = pool(2, 64) else { return };
    let pace = Pace::new(None);
    let mut before = Client::new(&pool.servers);
    let retiring: Vec<String> = (0..1_000)
        .map(|n| format!("k{n}"))
        .filter(|key| before.ring.owner(key.as_bytes()) == 1)
        .collect();
    for key in &retiring {
        before.set(key, 0, 0, b"1");
    }
    let members = surveyed(&pool.servers, &pace);
    let resize = resize(&pool.servers, 2, &[0]);
    let plan = planned(&members, &resize);
    let mut moving = Move::new(&members, &resize, &dial, &pace);
    moving.clear(&plan).unwrap();
    moving.carry(&plan).unwrap();
    before.set(&retiring[0], 0, 0, b"2");
    before.meta(&retiring[1], &format!("md {}", retiring[1]));
    let added = (1_000..).map(|n| format!("k{n}"));
    let added = added.into_iter().find(|key| before.ring.owner(key.as_bytes()) == 1).unwrap();
    before.set(&added, 0, 0, b"3");
    moving.check(&plan, true).unwrap();
    assert_eq!(moving.counts.outdated, 2);
    let mut after = Client::new(&pool.servers[..1]);
    assert_eq!(after.get(&retiring[0]), Some(b"2".to_vec()));
    assert_eq!(after.get(&retiring[1]), None);
    assert_eq!(after.get(&added), Some(b"3".to_vec()));
    assert_eq!(after.get(&retiring[2]), Some(b"1".to_vec()));
    // After the switch nothing is copied any more, but what is old still goes.
    before.set(&retiring[2], 0, 0, b"4");
    moving.check(&plan, false).unwrap();
    assert_eq!(after.get(&retiring[2]), None);
}

#[test]
fn with_a_rate_a_crawler_sleeps_longer_while_it_lists_and_then_as_before() {
    let Some(pool) = pool(1, 64) else { return };
    let mut client = Client::new(&pool.servers);
    for n in 0..3_500 {
        client.set(&format!("k{n}"), 0, 0, b"v");
    }
    let sleep = || {
        let mut stream =
            TcpStream::connect((&pool.servers[0].host[..], pool.servers[0].port)).unwrap();
        stream.write_all(b"stats settings\r\nquit\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let line = text.lines().find(|line| line.starts_with("STAT lru_crawler_sleep ")).unwrap();
        line[23..].trim().parse::<u64>().unwrap()
    };
    let before = sleep();
    let took = |rate| {
        let begin = Instant::now();
        assert_eq!(surveyed(&pool.servers, &Pace::new(rate))[0].listing.items().len(), 3_500);
        begin.elapsed()
    };
    // 100 ms for each of the 1,000 items that a crawler takes at a go.
    assert!(took(Some(200_000)) >= Duration::from_millis(300));
    assert!(took(None) < Duration::from_millis(300));
    assert_eq!(sleep(), before);
}

/// memcached moves what is read and written from one of its lists to another.
#[test]
fn a_listing_passes_over_nothing_while_a_pool_is_used() {
    let Some(pool) = pool(1, 64) else { return };
    let set_all = |client: &mut Client| {
        (0..2_500).for_each(|n| client.set(&format!("k{n}"), 0, 0, &[b'x'; 400]));
    };
    let mut client = Client::new(&pool.servers);
    set_all(&mut client);
    let ends = AtomicBool::new(false);
    let listed: Vec<usize> = thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Relaxed) {
                set_all(&mut client);
            }
        });
        let list = |_| surveyed(&pool.servers, &Pace::new(None))[0].listing.items().len();
        let listed = (0..30).map(list).collect();
        ends.store(true, Relaxed);
        listed
    });
    assert_eq!(listed, [2_500; 30]);
}

#[test]
fn a_move_that_fails_or_is_stopped_is_taken_back() {
    let Some(mut pool) = pool(3, 64) else { return };
    let pace = Pace::new(Some(200_000));
    let mut before = Client::new(&pool.servers);
    for n in 0..3_000 {
        before.set(&format!("k{n}"), 0, 0, &[b'x'; 500]);
    }
    let items = |server: &RingServer| {
        let mut stream = TcpStream::connect((&server.host[..], server.port)).unwrap();
        stream.write_all(b"stats\r\nquit\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let line = text.lines().find(|line| line.starts_with("STAT curr_items ")).unwrap();
        line[16..].trim().parse::<u64>().unwrap()
    };
    let counts = [items(&pool.servers[0]), items(&pool.servers[1])];
    let members = surveyed(&pool.servers, &pace);
    let resize = resize(&pool.servers, 3, &[0, 1]);
    let plan = planned(&members, &resize);
    let mut moving = Move::new(&members, &resize, &dial, &pace);
    thread::scope(|scope| {
        scope.spawn(|| {
            while pace.progress.bytes.load(Relaxed) == 0 {
                thread::yield_now();
            }
            pace.stop.store(true, Relaxed);
        });
        moving.carry(&plan).unwrap();
    });
    let copies = moving.copies();
    assert!(0 < copies && (copies as usize) < plan.carried[2].len(), "{copies}");
    moving.undo(&|| false).unwrap();
    assert_eq!([items(&pool.servers[0]), items(&pool.servers[1])], counts);
    // A destination dies: what was copied to the other is taken back.
    let pace = Pace::new(None);
    let mut moving = Move::new(&members, &resize, &dial, &pace);
    pool.children[1].kill().unwrap();
    pool.children[1].wait().unwrap();
    let failed = moving.carry(&plan).unwrap_err();
    assert_eq!(failed.server, pool.servers[1].to_string());
    moving.undo(&|| false).ok();
    assert_eq!(items(&pool.servers[0]), counts[0]);
}
