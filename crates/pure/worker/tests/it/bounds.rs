//! What happens at each bound.

use mbal_wire::{GET_LINE_BYTES_MAX, LINE_BYTES_MAX};
use mbal_worker::{Action, ConnId, Event, OUTPUT_BYTES_MAX, Settings};

use crate::rig::{CONN, Rig};

fn received(rig: &mut Rig, bytes: &[u8]) -> Vec<Action> {
    rig.handle(Event::Received { conn: CONN, bytes }).list
}

#[test]
fn a_line_that_does_not_end_closes_the_connection() {
    let close = vec![Action::Close { conn: CONN }];
    let mut rig = Rig::new();
    assert_eq!(received(&mut rig, &[b'x'; LINE_BYTES_MAX]), []);
    assert_eq!(received(&mut rig, b"x"), close);
    assert_eq!(received(&mut rig, b"version\r\n"), []);

    let mut rig = Rig::new();
    let mut line = b"get ".to_vec();
    line.resize(GET_LINE_BYTES_MAX, b'k');
    assert_eq!(received(&mut rig, &line), []);
    assert_eq!(received(&mut rig, b"k"), close);

    let mut rig = Rig::new();
    let line = [&[b' '; 101][..], b"get ", &[b'k'; LINE_BYTES_MAX]].concat();
    assert_eq!(received(&mut rig, &line), close);
}

#[test]
fn a_long_get_may_arrive_in_pieces() {
    let mut rig = Rig::new();
    rig.check("set k 0 0 1\r\nv\r\n", "STORED\r\n");
    rig.check(&format!("get {}", "k ".repeat(2000)), "");
    rig.check("k\r\n", &("VALUE k 0 1\r\nv\r\n".repeat(2001) + "END\r\n"));
}

#[test]
fn output_over_its_bound_must_leave_before_more_is_made() {
    let mut rig = Rig::new();
    let value = "v".repeat(100_000);
    rig.check(&format!("set k 0 0 100000\r\n{value}\r\n"), "STORED\r\n");
    let actions = rig.handle(Event::Received { conn: CONN, bytes: &b"mg k v\r\n".repeat(8) });
    let reply = format!("VA 100000\r\n{value}\r\n");
    assert_eq!(actions.bytes.len(), 3 * reply.len());
    assert!(actions.bytes.len() >= OUTPUT_BYTES_MAX);
    assert_eq!(actions.list.last(), Some(&Action::Stall { conn: CONN }));
    // What a driver had already received is kept.
    assert_eq!(received(&mut rig, b"mn\r\n"), []);
    let mut bytes = actions.bytes;
    for _ in 0..2 {
        bytes.extend(rig.handle(Event::Drained { conn: CONN }).bytes);
    }
    assert!(bytes == [reply.repeat(8).as_bytes(), b"MN\r\n"].concat());
}

#[test]
fn one_get_of_much_is_answered_in_parts() {
    let mut rig = Rig::new();
    let value = "v".repeat(400_000);
    rig.check(&format!("set k 0 0 400000\r\n{value}\r\n"), "STORED\r\n");
    let actions = rig.handle(Event::Received { conn: CONN, bytes: &get("gets", "k", 100) });
    assert!(actions.bytes.len() < OUTPUT_BYTES_MAX + 400_100);
    assert_eq!(actions.list.last(), Some(&Action::Stall { conn: CONN }));

    // Whole groups of keys, and what is left of one.
    for count in [1, 2, 4, 16, 17, 18, 33, 100] {
        let mut rig = Rig::new();
        rig.check(&format!("set k 0 0 400000\r\n{value}\r\n"), "STORED\r\n");
        let item = format!("VALUE k 0 400000 1\r\n{value}\r\n");
        let mut actions =
            rig.handle(Event::Received { conn: CONN, bytes: &get("gets", "k", count) });
        let mut replies = Vec::new();
        loop {
            assert!(actions.bytes.len() < OUTPUT_BYTES_MAX + 400_100, "{count} keys");
            replies.append(&mut actions.bytes);
            if actions.list.last() != Some(&Action::Stall { conn: CONN }) {
                break;
            }
            actions = rig.handle(Event::Drained { conn: CONN });
        }
        assert!(replies == (item.repeat(count) + "END\r\n").as_bytes(), "{count} keys");
    }
}

#[test]
fn a_get_of_many_keys_is_answered_in_turns_between_which_others_are_served() {
    let mut rig = Rig::new();
    rig.check("set a 0 0 1\r\nv\r\n", "STORED\r\n");
    let other = ConnId(1);
    rig.open(other);
    // Two lines: what the first leaves of a turn, the second does not have for itself.
    let some = ["x "; 999].concat() + "a ";
    let input = [50, 60].map(|times| format!("get {}\r\n", some.repeat(times))).concat();
    let mut actions = rig.handle(Event::Received { conn: CONN, bytes: input.as_bytes() });
    let mut replies = actions.bytes;
    let (mut turns, mut keys) = (1, rig.server.sums().cmd_get);
    while actions.list.contains(&Action::Stall { conn: CONN }) {
        assert!((32_768..32_800).contains(&keys), "{keys} keys in a turn");
        let between = rig.handle(Event::Received { conn: other, bytes: b"get a\r\n" });
        assert_eq!(between.bytes, b"VALUE a 0 1\r\nv\r\nEND\r\n");
        let before = rig.server.sums().cmd_get;
        actions = rig.handle(Event::Drained { conn: CONN });
        replies.append(&mut actions.bytes);
        (turns, keys) = (turns + 1, rig.server.sums().cmd_get - before);
    }
    assert_eq!(turns, 4);
    let reply = |times| "VALUE a 0 1\r\nv\r\n".repeat(times) + "END\r\n";
    assert_eq!(String::from_utf8(replies), Ok(reply(50) + &reply(60)));
    assert_eq!(rig.server.sums().cmd_get, 110_000 + 3);
    // A key that is too long is found in the first turn.
    let spoilt = format!("get {}{}\r\n", some.repeat(110), "k".repeat(251));
    rig.check(&spoilt, "CLIENT_ERROR bad command line format\r\n");
}

fn get(verb: &str, key: &str, count: usize) -> Vec<u8> {
    let keys = vec![key; count].join(" ");
    format!("{verb} {keys}\r\n").into_bytes()
}

#[test]
fn a_key_that_spoils_a_large_get_is_found_before_anything_leaves() {
    let mut rig = Rig::new();
    let value = "v".repeat(400_000);
    rig.check(&format!("set k 0 0 400000\r\n{value}\r\n"), "STORED\r\n");
    let get = format!("get {} {}\r\n", vec!["k"; 100].join(" "), "k".repeat(251));
    rig.check(&get, "CLIENT_ERROR bad command line format\r\n");
}

#[test]
fn other_connections_get_their_turn_after_so_many_requests() {
    let settings = Settings { requests_per_event: 3, ..Settings::default() };
    let mut rig = Rig::with(settings);
    let actions = rig.handle(Event::Received { conn: CONN, bytes: &b"mn\r\n".repeat(7) });
    assert_eq!(actions.bytes, b"MN\r\n".repeat(3));
    assert_eq!(actions.list.last(), Some(&Action::Stall { conn: CONN }));
    assert_eq!(rig.handle(Event::Drained { conn: CONN }).bytes, b"MN\r\n".repeat(3));
    let last = rig.handle(Event::Drained { conn: CONN });
    assert_eq!((&last.bytes[..], last.list.len()), (&b"MN\r\n"[..], 1));
}

#[test]
fn room_for_a_long_value_is_made_in_turns_between_which_others_are_served() {
    let settings =
        Settings { memory_bytes: 16 << 20, item_bytes_max: 4 << 20, ..Settings::default() };
    let mut rig = Rig::with(settings);
    for n in 0..800 {
        let sets = (0..500)
            .map(|at| format!("set small{n}.{at} 0 0 30 noreply\r\n{}\r\n", "s".repeat(30)));
        assert_eq!(rig.send(sets.collect::<String>().as_bytes()), b"");
    }
    rig.check("set small0.0 0 0 1\r\nv\r\n", "STORED\r\n");
    let other = ConnId(1);
    rig.open(other);
    let set = format!("set long 0 0 3000000\r\n{}\r\nmn\r\n", "v".repeat(3_000_000));
    let mut evictions = rig.server.store.stats().evictions;
    let mut actions = rig.handle(Event::Received { conn: CONN, bytes: set.as_bytes() });
    let mut turns = 0;
    loop {
        let evicted = rig.server.store.stats().evictions - evictions;
        assert!(evicted < 3_000, "{evicted} items in turn {turns}");
        evictions += evicted;
        if !actions.bytes.is_empty() {
            break;
        }
        assert_eq!(rig.worker.next_wake(), Some(rig.now.instant()), "it goes on at once");
        turns += 1;
        let bytes = b"get small0.0\r\n";
        let between = rig.handle(Event::Received { conn: other, bytes });
        assert_eq!(between.bytes, b"VALUE small0.0 0 1\r\nv\r\nEND\r\n");
        actions = rig.handle(Event::Woken);
    }
    assert!(turns > 10, "{turns} turns");
    assert_eq!(actions.bytes, b"STORED\r\nMN\r\n");
}

#[test]
fn what_is_announced_is_not_reserved() {
    let mut rig = Rig::with(Settings { item_bytes_max: 1 << 30, ..Settings::default() });
    assert_eq!(received(&mut rig, b"set k 0 0 1000000000\r\nx"), []);
    // 2^31 - 2 bytes are swallowed, not kept, and the answer waits for their end.
    let mut rig = Rig::new();
    assert_eq!(received(&mut rig, b"set k 0 0 2147483645\r\n"), []);
    let block = vec![0; 1 << 20];
    for _ in 0..2047 {
        assert_eq!(received(&mut rig, &block), []);
    }
    assert_eq!(received(&mut rig, &block[..(1 << 20) - 2]), []);
    rig.check("\nmn\r\n", "SERVER_ERROR object too large for cache\r\nMN\r\n");
}

#[test]
fn a_get_of_any_number_of_keys_answers_them_in_their_order() {
    let mut rig = Rig::new();
    (0..100)
        .step_by(2)
        .for_each(|key| rig.check(&format!("set {key} 0 0 1\r\nv\r\n"), "STORED\r\n"));
    for count in 1..70 {
        let keys: Vec<String> = (0..count).map(|key| (key * 7 % 100).to_string()).collect();
        let hits = keys.iter().filter(|key| key.parse::<u32>().expect("a number") % 2 == 0);
        let values: String = hits.map(|key| format!("VALUE {key} 0 1\r\nv\r\n")).collect();
        // However many blanks stand between the keys and behind them.
        rig.check(&format!("get {}\r\n", keys.join(" ")), &format!("{values}END\r\n"));
        rig.check(&format!("get {} \r\n", keys.join("  ")), &format!("{values}END\r\n"));
    }
}
