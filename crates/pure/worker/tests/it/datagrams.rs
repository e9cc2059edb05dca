//! UDP: a datagram in, its replies out.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use mbal_worker::{Action, Event, Sender, Settings};

use crate::rig::Rig;

pub const SENDER: Sender =
    Sender { socket: 1, address: SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9)) };

/// Request id 7, one datagram of one.
fn ask(rig: &mut Rig, requests: &[u8]) -> Vec<Vec<u8>> {
    ask_framed(rig, &[&b"\0\x07\0\0\0\x01\0\0"[..], requests].concat())
}

fn ask_framed(rig: &mut Rig, bytes: &[u8]) -> Vec<Vec<u8>> {
    let actions = rig.handle(Event::Datagram { from: SENDER, bytes });
    let sent = actions.list.iter().map(|action| match action {
        Action::Datagram { to: SENDER, bytes } => actions.bytes[bytes.clone()].to_vec(),
        other => panic!("{other:?}"),
    });
    sent.collect()
}

const ONE_OF_ONE: &str = "\0\x07\0\0\0\x01\0\0";

#[track_caller]
fn check(rig: &mut Rig, requests: &str, replies: &[&str]) {
    let got = ask(rig, requests.as_bytes());
    let got: Vec<String> = got.iter().map(|one| String::from_utf8_lossy(one).into()).collect();
    let expected: Vec<String> = replies.iter().map(|one| ONE_OF_ONE.to_owned() + one).collect();
    assert_eq!(got, expected, "after {requests:?}");
}

#[test]
fn every_request_has_a_message_of_its_own() {
    let mut rig = Rig::new();
    check(&mut rig, "set a 0 0 1\r\nx\r\nset b 0 0 1 noreply\r\ny\r\nget a b c\r\n", {
        &["STORED\r\n", "VALUE a 0 1\r\nx\r\nVALUE b 0 1\r\ny\r\nEND\r\n"]
    });
    check(&mut rig, "mg YQ== b k v\r\nnonsense\r\n", &["VA 1 ka\r\nx\r\n", "ERROR\r\n"]);
}

#[test]
fn binary_requests_come_in_datagrams_too() {
    let mut noop = [0; 24];
    noop[..2].copy_from_slice(b"\x80\x0a");
    let replies = ask(&mut Rig::new(), &noop.repeat(2));
    assert_eq!(replies.len(), 2);
    assert_eq!(replies[0][8..10], *b"\x81\x0a");
    assert_eq!(replies[0].len(), 32);
}

#[test]
fn a_long_reply_is_several_datagrams() {
    let mut rig = Rig::new();
    let value = "v".repeat(3000);
    rig.check(&format!("set k 0 0 3000\r\n{value}\r\n"), "STORED\r\n");
    let replies = ask(&mut rig, b"get k\r\n");
    let headers: Vec<&[u8]> = replies.iter().map(|reply| &reply[..8]).collect();
    let header = |sequence| [0, 7, 0, sequence, 0, 3, 0, 0];
    assert_eq!(headers, [header(0), header(1), header(2)]);
    assert!(replies.iter().all(|reply| reply.len() <= 1400));
    let joined: Vec<u8> = replies.iter().flat_map(|reply| reply[8..].to_vec()).collect();
    assert_eq!(joined, format!("VALUE k 0 3000\r\n{value}\r\nEND\r\n").into_bytes());
}

#[test]
fn what_is_not_whole_is_dropped() {
    let mut rig = Rig::new();
    rig.check("set a 0 0 1\r\nx\r\n", "STORED\r\n");
    for framed in [&b"get a\r\n"[..], b"\0\x07\0\0\0\x02\0\0get a\r\n", b"\0\x07\0\0\0\x01\0\0"] {
        assert_eq!(ask_framed(&mut rig, framed), [[0; 0]; 0]);
    }
    check(&mut rig, "set k 0 0 9\r\nhalf", &[]);
    check(&mut rig, "of it\r\nget a", &["ERROR\r\n"]);
    check(&mut rig, &"x".repeat(3000), &[]);
    check(&mut rig, "quit\r\nget a\r\n", &[]);
    check(&mut rig, "get a\r\n", &["VALUE a 0 1\r\nx\r\nEND\r\n"]);
}

#[test]
fn a_datagram_asks_for_so_much_and_no_more() {
    let settings =
        Settings { requests_per_event: 3, shutdown_enabled: true, ..Settings::default() };
    let mut rig = Rig::with(settings);
    check(&mut rig, &"mn\r\n".repeat(5), &["MN\r\n"; 3]);
    // Nobody knows who has sent it.
    check(&mut rig, "shutdown\r\n", &[]);

    let mut rig = Rig::new();
    let value = "v".repeat(400_000);
    rig.check(&format!("set k 0 0 400000\r\n{value}\r\n"), "STORED\r\n");
    for count in [4, 16, 17, 100] {
        let get = format!("get{}\r\nmn\r\n", " k".repeat(count));
        check(&mut rig, &get, &["SERVER_ERROR reply too large for UDP\r\n", "MN\r\n"]);
    }
    // Misses are never too many: a datagram has no room for so many keys.
    let get = format!("get{}\r\n", " x".repeat(32_740));
    check(&mut rig, &get, &["END\r\n"]);
}

#[test]
fn what_takes_steps_is_done_at_once_or_not_at_all() {
    let mut rig = Rig::with(Settings { sizes_enabled: true, ..Settings::default() });
    rig.check("set a 0 0 1\r\nv\r\n", "STORED\r\n");
    check(&mut rig, "stats sizes\r\n", &["STAT 64 1\r\nEND\r\n"]);
    check(&mut rig, "lru_crawler crawl all\r\n", &["OK\r\n"]);
    check(&mut rig, "stats cachedump 1 0\r\n", &["ITEM a [1 b; 0 s]\r\nEND\r\n"]);
    check(&mut rig, "lru_crawler metadump all\r\nlru_crawler mgdump all\r\nwatch\r\n", &[]);
    for number in 0..60_000 {
        rig.send(format!("set {number} 0 0 1 noreply\r\nv\r\n").as_bytes());
    }
    let excuse = "SERVER_ERROR too many items for UDP\r\n";
    check(&mut rig, "stats sizes\r\nlru_crawler crawl all\r\nmn\r\n", &[excuse, excuse, "MN\r\n"]);
    rig.check("lru_crawler crawl all\r\n", "OK\r\n");
}
