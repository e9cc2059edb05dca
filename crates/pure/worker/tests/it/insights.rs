//! `stats hot`, `stats latency` and `stats background`.

use mbal_model::{Key, Prefix};
use mbal_worker::{Actions, Event, Heat, Settings};

use crate::rig::{CONN, Rig};

/// Looks at every request.
fn rig() -> Rig {
    Rig::with(Settings { hot_sample: 1.0, ..Settings::default() })
}

#[test]
fn the_hottest_keys_are_told_with_their_mix_and_bytes() {
    let mut rig = rig();
    for _ in 0..30 {
        rig.send(b"set a 0 0 10\r\n0123456789\r\nget a b:1 c\r\nmg b:1\r\nincr none 1\r\n");
    }
    rig.check(
        "stats hot 2\r\n",
        "STAT 1:key a\r\nSTAT 1:rate 60\r\nSTAT 1:reads 30\r\nSTAT 1:writes 30\r\nSTAT 1:bytes 10\r\n\
         STAT 2:key b:1\r\nSTAT 2:rate 60\r\nSTAT 2:reads 60\r\nSTAT 2:writes 0\r\nSTAT 2:bytes 0\r\n\
         END\r\n",
    );
    rig.check("stats hot 0\r\n", "CLIENT_ERROR usage: stats hot [1 to 1000]\r\n");
    rig.check("stats hot x\r\n", "CLIENT_ERROR usage: stats hot [1 to 1000]\r\n");
}

#[test]
fn what_a_key_was_asked_for_is_told_by_the_worker_that_was_asked() {
    let settings = Settings { hot_sample: 1.0, workers: 2, ..Settings::default() };
    let mut rig = Rig::with(settings);
    let mut other = rig.another_worker();
    other.open(CONN);
    (0..30).for_each(|_| drop(rig.send(b"get a b\r\nset a 0 0 1\r\nx\r\n")));
    (0..10).for_each(|_| drop(other.send(b"get a\r\n")));
    let heat = |key: &[u8], second| {
        let key = Key::new(key).expect("a key");
        rig.server.heat(Prefix::ALL, Some(&key), second)
    };
    assert_eq!(
        heat(b"a", rig.now.second),
        [
            Heat { key: [30.0, 30.0], cachelet: 90.0, all: 90.0 },
            Heat { key: [10.0, 0.0], cachelet: 10.0, all: 10.0 },
        ]
    );
    assert_eq!(heat(b"none", rig.now.second)[0].key, [0.0, 0.0]);
    assert_eq!(heat(b"a", rig.now.second + 2), [Heat::default(); 2]);
}

fn hottest(rig: &mut Rig) -> String {
    let told = String::from_utf8(rig.send(b"stats hot 1\r\n")).expect("text");
    told.lines().next().expect("a line").to_owned()
}

#[test]
fn a_key_that_is_no_longer_asked_for_cools_within_two_seconds() {
    let mut rig = rig();
    for _ in 0..1000 {
        rig.send(b"get old\r\n");
    }
    // In half of the next second, as many requests in a second as before.
    rig.now.second += 1;
    for _ in 0..499 {
        rig.send(b"get new\r\n");
    }
    assert_eq!(hottest(&mut rig), "STAT 1:key old");
    for _ in 0..2 {
        rig.send(b"get new\r\n");
    }
    assert_eq!(hottest(&mut rig), "STAT 1:key new");
    rig.now.second += 2;
    assert_eq!(hottest(&mut rig), "END");
}

#[test]
fn a_sample_stands_for_all_until_somebody_watches() {
    let mut rig = Rig::with(Settings { hot_sample: 0.1, ..Settings::default() });
    let rate = |rig: &mut Rig| {
        rig.now.second += 1;
        (0..5000).for_each(|_| drop(rig.send(b"get a b\r\n")));
        let told = String::from_utf8(rig.send(b"stats hot 1\r\n")).expect("text");
        let rate = told.lines().find_map(|line| line.strip_prefix("STAT 1:rate ")).expect(&told);
        rate.parse::<i64>().expect("a number")
    };
    // 1000 of 10,000 are looked at, so the even share is told to within a tenth.
    assert!((rate(&mut rig) - 5000).abs() < 500);
    rate(&mut rig);
    assert_eq!(rate(&mut rig), 5000);
}

#[test]
fn cachelets_and_workers_tell_what_they_did() {
    let mut rig = rig();
    rig.send(b"set a 0 0 1\r\n1\r\nget a b\r\nmg a\r\n");
    rig.check(
        "stats cachelets\r\n",
        "STAT 0000/0:owner 0\r\nSTAT 0000/0:items 1\r\nSTAT 0000/0:bytes 16\r\n\
         STAT 0000/0:requests 4\r\nSTAT 0000/0:rate 4\r\nSTAT 0000/0:share 100.0\r\nEND\r\n",
    );
    rig.now.second += 1;
    rig.send(b"get a\r\n");
    rig.now.second += 2;
    let told = String::from_utf8(rig.send(b"stats cachelets\r\n")).expect("text");
    assert!(
        told.contains("/0:requests 5\r\nSTAT 0000/0:rate 0\r\nSTAT 0000/0:share 0.0"),
        "{told}"
    );
    let told = String::from_utf8(rig.send(b"stats workers\r\n")).expect("text");
    assert!(told.starts_with("STAT 0:own 5\r\nSTAT 0:neighbour 0\r\nSTAT 0:peer 0\r\n"), "{told}");
}

#[test]
fn without_a_sample_nothing_is_hot() {
    let mut rig = Rig::with(Settings { hot_sample: 0.0, ..Settings::default() });
    rig.check("stats hot\r\n", "END\r\n");
    (0..1000).for_each(|_| drop(rig.send(b"get a\r\n")));
    rig.check("stats hot\r\n", "END\r\n");
}

#[test]
fn requests_of_a_timed_wake_up_took_as_long_as_it_did() {
    let mut rig = Rig::new();
    rig.send(b"get before\r\n");
    rig.handle(Event::Timing);
    rig.handle(Event::Received { conn: CONN, bytes: b"get a b\r\nmg c\r\nmn\r\nset a 0 0 1\r\n" });
    rig.handle(Event::Received { conn: CONN, bytes: b"1\r\ndelete a\r\n" });
    rig.handle(Event::Timed { elapsed_ns: 10_000, stands_for: 1 });
    rig.send(b"get between\r\n");
    rig.handle(Event::Timing);
    rig.handle(Event::Received { conn: CONN, bytes: b"get a\r\n" });
    rig.handle(Event::Timed { elapsed_ns: 200_000_000, stands_for: 2 });
    let told = String::from_utf8(rig.send(b"stats latency\r\n")).expect("text");
    for line in [
        "STAT get:count 5",
        "STAT get:mean_us 80006.000",
        "STAT get:p50_us 10.500",
        "STAT get:p99_us 204800.000",
        "STAT set:count 1",
        "STAT set:p50_us 10.500",
        "STAT touch:count 0",
        "STAT delete:count 1",
    ] {
        assert!(told.contains(line), "{line} in {told}");
    }
    rig.check("stats reset\r\n", "RESET\r\n");
    rig.check("stats latency buckets\r\n", "END\r\n");
    rig.handle(Event::Timing);
    rig.handle(Event::Received { conn: CONN, bytes: b"touch a 0\r\n" });
    rig.handle(Event::Timed { elapsed_ns: 1_000, stands_for: 1 });
    rig.check("stats latency buckets\r\n", "STAT touch:1063 1\r\nEND\r\n");
}

#[test]
fn a_get_that_is_answered_in_parts_counts_each_key_once() {
    let mut rig = rig();
    let value = "v".repeat(400_000);
    rig.check(&format!("set long 0 0 400000\r\n{value}\r\n"), "STORED\r\n");
    rig.send(format!("get {}{}\r\n", "long ".repeat(12), "small ".repeat(40)).as_bytes());
    let told = String::from_utf8(rig.send(b"stats hot\r\n")).expect("text");
    for line in ["STAT 1:key small\r\nSTAT 1:rate 40\r\n", "STAT 2:key long\r\nSTAT 2:rate 13\r\n"]
    {
        assert!(told.contains(line), "{told}");
    }
}

#[test]
fn steps_in_the_background_are_told_by_what_they_are_for() {
    let mut rig = Rig::new();
    (0..200).for_each(|key| _ = rig.send(format!("set key{key} 0 0 1\r\n1\r\n").as_bytes()));
    let store = &rig.server.store;
    let whole = store.prefixes()[0];
    assert!(store.split(whole, 1));
    let mut steps = 0;
    while store.prefixes().contains(&whole) {
        rig.worker.background(rig.now, true, &mut Actions::default());
        rig.worker.background_took(10_000);
        steps += 1;
    }
    rig.worker.background(rig.now, true, &mut Actions::default());
    rig.worker.background_took(99_000);
    let told = String::from_utf8(rig.send(b"stats background\r\n")).expect("text");
    for line in [
        &format!("STAT split:count {steps}\r\n"),
        "STAT split:mean_us 10.000",
        "STAT split:p9999_us 10.500",
        "STAT evict:count 0",
        "STAT move:count 0",
    ] {
        assert!(told.contains(line), "{line} in {told}");
    }
}
