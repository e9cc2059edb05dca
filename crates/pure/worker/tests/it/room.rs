//! Memory that another worker may still see: who waits for it, until when, and who does not.

use std::sync::Arc;
use std::time::Duration;

use mbal_model::{Cluster, ClusterMap, Instant, Owner, Prefix, ServerId, WorkerId};
use mbal_wire::PeerRequest;
use mbal_worker::{Action, Actions, ConnId, Event, ROOM_WAIT_MAX, Settings, Ticket, Ticketed};

use crate::datagrams::SENDER;
use crate::rig::{CONN, Rig};

const OTHER: ConnId = ConnId(1);
/// A worker that has lost its core in the middle of a batch.
const SLOW: WorkerId = WorkerId(1);
const PEER: ServerId = ServerId(7);
const NO_MEMORY: &str = "SERVER_ERROR out of memory storing object\r\n";

/// A full cache, in which nothing can be stored before [`SLOW`] leaves its batch; a client's `set` waits for that, and gets
/// this key.
fn crowded() -> (Rig, String) {
    let settings = Settings { memory_bytes: 1 << 20, workers: 2, ..Settings::default() };
    let mut rig = Rig::with(settings);
    rig.open(OTHER);
    rig.check("set here 0 0 1\r\nv\r\n", "STORED\r\n");
    rig.check("set number 0 0 1\r\n9\r\n", "STORED\r\n");
    rig.server.store.enter(SLOW);
    for n in 0..10_000 {
        let key = format!("fill{n}");
        let actions = rig.handle(Event::Received { conn: CONN, bytes: set(&key).as_bytes() });
        if actions.bytes.is_empty() {
            assert_eq!(actions.list, [Action::Pause { conn: CONN }]);
            exhaust(&mut rig);
            return (rig, key);
        }
        assert_eq!(actions.bytes, b"STORED\r\n", "{key}");
        // So that it is not evicted.
        rig.handle(Event::Received { conn: OTHER, bytes: b"get here number\r\n" });
    }
    panic!("there is always room");
}

/// Takes the last pages, by what waits for nothing.
fn exhaust(rig: &mut Rig) {
    let mut replies = (0..100).map(|n| datagram(rig, &set(&format!("last{n}"))));
    assert!(replies.any(|reply| reply == NO_MEMORY), "there is always room");
}

fn datagram(rig: &mut Rig, request: &str) -> String {
    let bytes = [b"\0\x05\0\0\0\x01\0\0", request.as_bytes()].concat();
    let actions = rig.handle(Event::Datagram { from: SENDER, bytes: &bytes });
    String::from_utf8_lossy(&actions.bytes[8..]).into_owned()
}

fn set(key: &str) -> String {
    format!("set {key} 0 0 1000\r\n{}\r\n", "v".repeat(1000))
}

/// Passes the time until the worker wants to be woken, and wakes it; how long that was, in microseconds.
fn wake(rig: &mut Rig) -> (u64, Actions) {
    let before = rig.now.instant();
    let wake = rig.worker.next_wake().expect("it waits");
    rig.pass_until(wake);
    (wake.as_micros() - before.as_micros(), rig.handle(Event::Woken))
}

fn text(actions: &Actions) -> String {
    String::from_utf8(actions.bytes.clone()).expect("text")
}

#[test]
fn who_waits_for_nothing_asks_for_no_wake_up() {
    let mut rig = Rig::new();
    assert_eq!(rig.worker.next_wake(), None);
    rig.check("set k 0 0 1\r\nv\r\nget k\r\n", "STORED\r\nVALUE k 0 1\r\nv\r\nEND\r\n");
    assert_eq!(rig.worker.next_wake(), None);
    assert_eq!(rig.handle(Event::Woken).list, []);
}

#[test]
fn a_set_waits_until_another_workers_batch_is_over_and_others_are_served_meanwhile() {
    let (mut rig, key) = crowded();
    let begin = rig.now.instant();
    assert_eq!(rig.worker.next_wake(), Some(begin + Duration::from_micros(50)));
    let get = rig.handle(Event::Received { conn: OTHER, bytes: b"get here\r\n" });
    assert_eq!(text(&get), "VALUE here 0 1\r\nv\r\nEND\r\n");
    // What a driver has received before it paused is kept.
    let more = rig.handle(Event::Received { conn: CONN, bytes: b"mn\r\n" });
    assert_eq!(more.list, []);
    // Too early.
    rig.server.store.leave(SLOW);
    assert_eq!(rig.handle(Event::Woken).list, []);
    let (micros, actions) = wake(&mut rig);
    assert_eq!((micros, text(&actions)), (50, "STORED\r\nMN\r\n".into()));
    assert_eq!(actions.list.last(), Some(&Action::Resume { conn: CONN }));
    assert_eq!(rig.worker.next_wake(), None);
    let get =
        rig.handle(Event::Received { conn: OTHER, bytes: format!("mg {key}\r\n").as_bytes() });
    assert_eq!(text(&get), "HD\r\n");
}

#[test]
fn many_wait_and_are_woken_at_the_earliest_moment() {
    let (mut rig, _) = crowded();
    let begin = rig.now.instant();
    rig.pass_until(begin + Duration::from_micros(30));
    rig.handle(Event::Received { conn: OTHER, bytes: set("later").as_bytes() });
    assert_eq!(rig.worker.next_wake(), Some(begin + Duration::from_micros(50)));
    rig.server.store.leave(SLOW);
    rig.pass_until(begin + Duration::from_micros(50));
    let actions = rig.handle(Event::Woken);
    assert_eq!(actions.list.last(), Some(&Action::Resume { conn: CONN }));
    assert_eq!(rig.worker.next_wake(), Some(begin + Duration::from_micros(80)));
    rig.pass_until(begin + Duration::from_micros(80));
    let actions = rig.handle(Event::Woken);
    assert_eq!(actions.list.last(), Some(&Action::Resume { conn: OTHER }));
}

#[test]
fn who_waits_in_vain_is_refused_in_time() {
    let (mut rig, key) = crowded();
    let refused = rig.server.sums().store_no_memory;
    let begin = rig.now.instant();
    let mut moments = Vec::new();
    let actions = loop {
        let (_, actions) = wake(&mut rig);
        moments.push((rig.now.instant() - begin).as_micros());
        if !actions.list.is_empty() {
            break actions;
        }
    };
    assert_eq!(moments[..6], [50, 150, 350, 750, 1_550, 2_550]);
    assert_eq!(moments.last(), Some(&ROOM_WAIT_MAX.as_micros()));
    assert_eq!(text(&actions), NO_MEMORY);
    assert_eq!(actions.list.last(), Some(&Action::Resume { conn: CONN }));
    assert_eq!((rig.worker.next_wake(), rig.server.sums().store_no_memory), (None, refused + 1));
    // It has begun to clean again.
    rig.server.store.leave(SLOW);
    rig.check(&format!("mg {key}\r\n"), "EN\r\n");
    rig.check(&set(&key), "STORED\r\n");
}

#[test]
fn whatever_stores_waits_and_is_counted_once() {
    let quick = |verb: &str| format!("{verb} x 0 0 1000\r\n{}\r\n", "v".repeat(1000));
    for (request, reply) in [
        (quick("add"), "STORED\r\n"),
        (format!("ms x 1000\r\n{}\r\n", "v".repeat(1000)), "HD\r\n"),
        ("incr number 1\r\n".into(), "10\r\n"),
        ("ma number\r\n".into(), "HD\r\n"),
        ("ma new N0\r\n".into(), "HD\r\n"),
        (format!("append here 0 0 3000\r\n{}\r\n", "v".repeat(3000)), "STORED\r\n"),
    ] {
        let (mut rig, _) = crowded();
        let before = rig.server.sums();
        let actions = rig.handle(Event::Received { conn: OTHER, bytes: request.as_bytes() });
        assert_eq!(actions.list, [Action::Pause { conn: OTHER }], "{request}");
        for _ in 0..3 {
            assert_eq!(wake(&mut rig).1.list, [], "{request}");
        }
        let mut sums = rig.server.sums();
        (sums.bytes_read, sums.work, sums.work_handable) =
            (before.bytes_read, before.work, before.work_handable);
        assert_eq!(sums, before, "{request}");
        rig.server.store.leave(SLOW);
        let mut told = String::new();
        while rig.worker.next_wake().is_some() {
            let (_, Actions { bytes, list, .. }) = wake(&mut rig);
            let to_other = list.iter().filter_map(|action| match action {
                Action::Send { conn: OTHER, bytes: range } => Some(&bytes[range.clone()]),
                _ => None,
            });
            told.extend(to_other.map(String::from_utf8_lossy));
        }
        assert_eq!(told, reply, "{request}");
        let own = rig.server.sums().requests_own - before.requests_own;
        assert_eq!(own, 2, "{request} and the first one");
    }
}

#[test]
fn a_connection_that_goes_is_not_woken_for() {
    let (mut rig, _) = crowded();
    rig.handle(Event::Closed { conn: CONN });
    assert_eq!(rig.worker.next_wake(), None);
}

#[test]
fn a_datagram_waits_for_nothing() {
    let (mut rig, _) = crowded();
    rig.handle(Event::Closed { conn: CONN });
    assert_eq!(datagram(&mut rig, &set("x")), NO_MEMORY);
    assert_eq!(rig.worker.next_wake(), None);
}

/// A full cache of a cluster's server, whose only one it is.
fn crowded_server() -> Rig {
    let (mut rig, _) = crowded();
    rig.handle(Event::Closed { conn: CONN });
    let owner = Owner { server: ServerId(1), worker: WorkerId(0) };
    let map = ClusterMap::new(9, vec![(Prefix::ALL, owner)]).expect("it covers all");
    let cluster = Arc::new(Cluster::without_addresses(map));
    rig.handle(Event::Mapped { here: ServerId(1), cluster });
    rig
}

/// Asks over a link of [`PEER`]; tickets count from `first`.
fn ask(rig: &mut Rig, first: u64, requests: &[&str]) -> Vec<(u64, String)> {
    let encode = |request: &&str| {
        let mut bytes = Vec::new();
        let request = request.as_bytes();
        PeerRequest::new(1, 9, request).encode(&mut bytes);
        bytes
    };
    let requests: Vec<Vec<u8>> = requests.iter().map(encode).collect();
    let tickets = (first..).map(Ticket);
    let ticketed = tickets.zip(&requests).map(|(ticket, bytes)| Ticketed::new(ticket, bytes));
    let ticketed: Vec<_> = ticketed.collect();
    answers(&rig.handle(Event::Forwarded { server: PEER, requests: &ticketed }))
}

fn answers(actions: &Actions) -> Vec<(u64, String)> {
    let answer = |action: &Action| match action {
        Action::Answer { server: PEER, ticket, reply } => {
            let reply = String::from_utf8_lossy(&actions.bytes[reply.clone()]);
            (ticket.0, reply.lines().next().unwrap_or("").to_owned())
        }
        other => panic!("{other:?}"),
    };
    actions.list.iter().map(answer).collect()
}

fn all(answers: &[(u64, &str)]) -> Vec<(u64, String)> {
    answers.iter().map(|(ticket, reply)| (*ticket, (*reply).to_owned())).collect()
}

#[test]
fn a_peers_request_waits_and_only_those_about_its_key_stand_behind_it() {
    let mut rig = crowded_server();
    let (a, b) = (set("a"), set("b"));
    let asked = ask(&mut rig, 1, &[&a, "mg here v\r\n", "mg a\r\n", "get here a\r\n", &b]);
    assert_eq!(asked, all(&[(2, "VA 1")]));
    assert_eq!(ask(&mut rig, 6, &["mg b\r\n", "mg number\r\n"]), all(&[(7, "HD")]));
    rig.server.store.leave(SLOW);
    let mut told = Vec::new();
    while rig.worker.next_wake().is_some() {
        told.extend(answers(&wake(&mut rig).1));
    }
    let expected = [(1, "STORED"), (3, "HD"), (4, "VALUE here 0 1"), (5, "STORED"), (6, "HD")];
    assert_eq!(told, all(&expected));
}

#[test]
fn a_flush_stands_behind_what_waits_and_before_what_comes_later() {
    let mut rig = crowded_server();
    let a = set("a");
    assert_eq!(ask(&mut rig, 1, &[&a, "flush_all 0 9\r\n", "mg here\r\n"]), []);
    rig.server.store.leave(SLOW);
    let (_, actions) = wake(&mut rig);
    assert_eq!(answers(&actions), all(&[(1, "STORED"), (2, "OK"), (3, "EN")]));
}

#[test]
fn a_peers_request_that_waits_in_vain_is_refused() {
    let mut rig = crowded_server();
    assert_eq!(ask(&mut rig, 1, &[&set("a"), "mg a\r\n"]), []);
    let begin = rig.now.instant();
    let answered = loop {
        let answered = answers(&wake(&mut rig).1);
        if !answered.is_empty() {
            break answered;
        }
    };
    assert_eq!(rig.now.instant(), begin + ROOM_WAIT_MAX);
    assert_eq!(answered, all(&[(1, NO_MEMORY.trim_end()), (2, "EN")]));
}

#[test]
fn what_a_peer_asked_is_not_executed_once_its_link_has_gone() {
    let mut rig = crowded_server();
    assert_eq!(ask(&mut rig, 1, &[&set("a"), "mg a\r\n"]), []);
    assert_eq!(ask(&mut rig, 100, &["mg a\r\n"]), []);
    let gone = Event::AskerGone { server: PEER, tickets: Ticket(1)..Ticket(99) };
    assert_eq!(answers(&rig.handle(gone)), all(&[(100, "EN")]));
    assert_eq!(rig.worker.next_wake(), None);
}

/// At 4 MiB.
#[test]
fn what_is_held_for_peers_is_bounded() {
    let mut rig = crowded_server();
    let long = format!("mg a O{}\r\n", "x".repeat(30));
    let (mut asked, mut answered) = (0, Vec::new());
    ask(&mut rig, 0, &[&set("a")]);
    while answered.is_empty() {
        asked += 32;
        answered = ask(&mut rig, asked, &[long.as_str(); 32]);
        assert!(asked < 200_000, "it grows without bound");
    }
    let bytes = (long.len() as u64 + 9) * (asked - 32);
    assert!((4 << 20) - 4_000 < bytes && bytes < (4 << 20) + 4_000, "{bytes} bytes were held");
    assert_eq!(answered[0], (0, NO_MEMORY.trim_end().to_owned()));
    assert_eq!(answered.len() as u64, asked + 1);
    assert_eq!(rig.worker.next_wake(), None);
    assert_eq!(rig.now.instant(), Instant::from_secs(100), "no time has passed");
}
