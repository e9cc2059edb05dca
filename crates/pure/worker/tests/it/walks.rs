//! Dumps, the crawler and `stats sizes`: what looks at every item.

use mbal_worker::{Action, ConnId, Event, Settings};

use crate::rig::{CONN, Rig};

fn filled(items: usize) -> Rig {
    let mut rig = Rig::new();
    for number in 0..items {
        rig.send(format!("set {number} 0 0 1\r\nv\r\n").as_bytes());
    }
    rig
}

fn sorted_keys(dump: &[u8], prefix: &str) -> Vec<usize> {
    let text = String::from_utf8_lossy(dump);
    let keys = text.lines().filter_map(|line| line.strip_prefix(prefix));
    let mut keys: Vec<usize> = keys
        .map(|rest| rest.split([' ', '\r']).next().expect("a key").parse().expect("a number"))
        .collect();
    keys.sort_unstable();
    keys
}

#[test]
fn a_dump_has_every_item_once() {
    let mut rig = filled(20_000);
    for (command, prefix, end) in [
        ("lru_crawler metadump all\r\n", "key=", "END\r\n"),
        ("lru_crawler metadump hash\r\n", "key=", "END\r\n"),
        ("lru_crawler metadump 1\r\n", "key=", "END\r\n"),
        ("lru_crawler mgdump all\r\n", "mg ", "EN\r\n"),
        ("stats cachedump 1 0\r\n", "ITEM ", "END\r\n"),
    ] {
        let dump = rig.send(command.as_bytes());
        assert!(dump.ends_with(end.as_bytes()));
        assert_eq!(dump.starts_with(b"OK\r\n"), command.starts_with("lru_crawler"));
        assert_eq!(sorted_keys(&dump, prefix), (0..20_000).collect::<Vec<_>>(), "{command}");
    }
    assert_eq!(rig.send(b"lru_crawler metadump 2\r\n"), b"OK\r\nEND\r\n");
    assert_eq!(sorted_keys(&rig.send(b"stats cachedump 1 7\r\n"), "ITEM ").len(), 7);
}

#[test]
fn a_line_of_a_dump_says_what_is_known_of_an_item() {
    let mut rig = Rig::new();
    rig.send(b"set a%b 0 50 2\r\nhi\r\n");
    rig.now.second += 3;
    rig.now.unix += 3;
    let cas = String::from_utf8(rig.send(b"mg a%b c\r\n")).expect("text");
    let cas = cas.trim().strip_prefix("HD c").expect("a cas");
    let line = format!("key=a%25b exp=1700000050 la=1700000003 cas={cas} fetch=yes cls=1 size=64");
    rig.check("lru_crawler metadump all\r\n", &format!("OK\r\n{line} flags=0 \nEND\r\n"));
    rig.check("stats cachedump 1 0\r\n", "ITEM a%b [2 b; 1700000050 s]\r\nEND\r\n");
    rig.check("delete a%b\r\nms YQ== 1 b\r\nx\r\n", "DELETED\r\nHD\r\n");
    rig.check("lru_crawler mgdump all\r\n", "OK\r\nmg YQ== b\r\nEN\r\n");
}

#[test]
fn a_step_is_bounded_and_waits_for_its_output() {
    let mut rig = filled(20_000);
    let first = rig.handle(Event::Received { conn: CONN, bytes: b"lru_crawler metadump all\r\n" });
    assert_eq!(first.bytes, b"OK\r\n");
    assert_eq!(first.list.last(), Some(&Action::Stall { conn: CONN }));
    let other = ConnId(1);
    rig.open(other);
    let running = rig.handle(Event::Received { conn: other, bytes: b"stats\r\n" });
    assert!(String::from_utf8_lossy(&running.bytes).contains("STAT lru_crawler_running 1\r\n"));
    let step = rig.handle(Event::Drained { conn: CONN });
    assert!(step.list.contains(&Action::Stall { conn: CONN }));
    assert!(step.bytes.len() < 1 << 20, "{}", step.bytes.len());
    // Whoever leaves in the middle ends the walk.
    rig.handle(Event::Closed { conn: CONN });
    let after = rig.handle(Event::Received { conn: other, bytes: b"stats\r\n" });
    assert!(String::from_utf8_lossy(&after.bytes).contains("STAT lru_crawler_running 0\r\n"));
}

#[test]
fn requests_behind_a_dump_wait_for_its_end() {
    let mut rig = filled(3000);
    let dump = rig.send(b"lru_crawler mgdump all\r\nget 7\r\nmn\r\n");
    assert!(dump.ends_with(b"EN\r\nVALUE 7 0 1\r\nv\r\nEND\r\nMN\r\n"));
}

#[test]
fn the_crawler_removes_what_has_expired() {
    let mut rig = Rig::new();
    for number in 0..1000 {
        rig.send(format!("set {number} 0 {} 1\r\nv\r\n", 5 * (number % 2)).as_bytes());
    }
    rig.now.second += 10;
    rig.check("lru_crawler crawl 2\r\n", "OK\r\n");
    let items = |rig: &mut Rig| {
        let stats = String::from_utf8(rig.send(b"stats\r\n")).expect("text");
        let line = stats.lines().find_map(|line| line.strip_prefix("STAT curr_items "));
        line.expect("it is there").to_owned()
    };
    assert_eq!(items(&mut rig), "1000");
    rig.check("lru_crawler crawl all\r\n", "OK\r\n");
    assert_eq!(items(&mut rig), "500");
    rig.check("lru_crawler crawl x\r\n", "BADCLASS invalid class id\r\n");
}

#[test]
fn sizes_are_counted_while_they_are_tracked() {
    Rig::new().check(
        "stats sizes\r\nstats sizes_enable\r\n",
        "STAT sizes_status disabled\r\nEND\r\nERROR\r\n",
    );
    let mut rig = Rig::with(Settings { sizes_enabled: true, ..Settings::default() });
    rig.send(b"set a 0 0 1\r\nv\r\nset b 0 0 1\r\nv\r\nset c 0 0 40\r\n");
    rig.send(format!("{}\r\n", "v".repeat(40)).as_bytes());
    rig.check("stats sizes\r\n", "STAT 64 2\r\nSTAT 128 1\r\nEND\r\n");
}

#[test]
fn dumps_may_be_forbidden() {
    let mut rig = Rig::with(Settings { dump_enabled: false, ..Settings::default() });
    rig.check("lru_crawler metadump all\r\n", "ERROR metadump not allowed\r\n");
    rig.check("stats cachedump 1 0\r\n", "CLIENT_ERROR stats cachedump not allowed\r\n");
    let mut rig = Rig::new();
    rig.check("lru_crawler disable\r\n", "OK\r\n");
    rig.check("lru_crawler metadump all\r\n", "CLIENT_ERROR lru crawler disabled\r\n");
}
