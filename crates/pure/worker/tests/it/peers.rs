//! Keys that other servers own: order, credits, lost links.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use crate::neighbours::{Client, PEERS, a_second_later, begin_to_move, key, map};
use crate::rig::CONN;
use mbal_cachelet::Cursor;
use mbal_model::{Key, ServerId};
use mbal_wire::PeerRequest;
use mbal_worker::{Action, Actions, Event, NO_ROUTE, Sender, Ticket, Ticketed};

const SENDER: Sender =
    Sender { socket: 0, address: SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9)) };

#[test]
fn a_peers_request_goes_out_as_it_came() {
    let mut client = Client::new(8);
    let key = key(2, 0);
    client.send(&format!("set {key} 1 2 3\r\nabc\r\nmg {key} v t\r\n"));
    assert_eq!(
        client.requests(),
        [(2, format!("set {key} 1 2 3\r\nabc\r\n")), (2, format!("mg {key} v t\r\n"))]
    );
    client.check("");
    client.answer(0, "STORED\r\n");
    client.answer(0, "VA 3 t2\r\nabc\r\n");
    client.check("STORED\r\nVA 3 t2\r\nabc\r\n");
}

#[test]
fn what_was_asked_together_is_answered_together_and_waits_for_nothing_later() {
    let mut client = Client::new(8);
    let two = key(2, 0);
    client.send(&format!("mn\r\nmg {two} Oa\r\nmg {two} Ob\r\n"));
    client.send(&format!("mg {two} Oc\r\nmg {two} Od\r\nmn\r\n"));
    client.check("");
    client.answer(2, "HD Oc\r\n");
    client.answer(0, "HD Oa\r\n");
    client.check("");
    client.answer(0, "HD Ob\r\n");
    // What is there of the second waits for the rest of it.
    client.check("MN\r\nHD Oa\r\nHD Ob\r\n");
    client.send("version\r\n");
    client.answer(0, "HD Od\r\n");
    client.check("HD Oc\r\nHD Od\r\nMN\r\nVERSION 1.6.45\r\n");
}

#[test]
fn what_is_here_does_not_divide_what_was_asked_together() {
    let mut client = Client::new(8);
    let (two, three) = (key(2, 0), key(3, 0));
    client.send(&format!("mg {two} Oa\r\nmn\r\nmg {three} Ob\r\nmn\r\nmg {two} Oc\r\n"));
    client.answer(0, "HD Oa\r\n");
    client.answer(1, "HD Oc\r\n");
    client.check("");
    client.answer(0, "HD Ob\r\n");
    client.check("HD Oa\r\nMN\r\nHD Ob\r\nMN\r\nHD Oc\r\n");
}

#[test]
fn replies_leave_in_the_order_of_the_requests() {
    let mut client = Client::new(8);
    let (here, two, three) = (key(1, 0), key(2, 0), key(3, 0));
    client.send(&format!(
        "mg {two} s\r\nset {here} 0 0 1\r\nv\r\nmg {three} s\r\nget {here}\r\nmn\r\n"
    ));
    client.check("");
    client.answer(1, "HD s3\r\n");
    client.check("");
    client.answer(0, "HD s2\r\n");
    client.check(&format!("HD s2\r\nSTORED\r\nHD s3\r\nVALUE {here} 0 1\r\nv\r\nEND\r\nMN\r\n"));
    client.send(&format!("get {here}\r\n"));
    client.check(&format!("VALUE {here} 0 1\r\nv\r\nEND\r\n"));
}

#[test]
fn a_get_gathers_its_keys_in_their_order() {
    let mut client = Client::new(8);
    let (a, b, c, d, e) = (key(2, 0), key(1, 0), key(3, 0), key(2, 1), key(1, 1));
    client.send(&format!("set {b} 0 0 1\r\nB\r\n"));
    client.check("STORED\r\n");
    client.send(&format!("get {a} {b} {c} {d} {e} {a}\r\nversion\r\n"));
    assert_eq!(
        client.requests(),
        [(2, format!("get {a} {d} {a} \r\n")), (3, format!("get {c} \r\n"))]
    );
    client.answer(1, &format!("VALUE {c} 0 1\r\nC\r\nEND\r\n"));
    client.check("");
    client.answer(0, &format!("VALUE {a} 0 1\r\nA\r\nVALUE {a} 0 1\r\nA\r\nEND\r\n"));
    client.check(&format!(
        "VALUE {a} 0 1\r\nA\r\nVALUE {b} 0 1\r\nB\r\nVALUE {c} 0 1\r\nC\r\nVALUE {a} 0 1\r\nA\r\n\
         END\r\nVERSION 1.6.45\r\n"
    ));
}

#[test]
fn a_get_tells_what_can_be_had() {
    let mut client = Client::new(8);
    let (here, two, three) = (key(1, 0), key(2, 0), key(3, 0));
    client.send(&format!("set {here} 0 0 1\r\nH\r\n"));
    client.check("STORED\r\n");
    client.send(&format!("get {three} {two} {here} {three}\r\nmn\r\n"));
    client.answer(1, "END\r\n");
    client.event(Event::LinkBroken { server: PEERS[1] });
    client.check(&format!("VALUE {here} 0 1\r\nH\r\nEND\r\nMN\r\n"));
    assert_eq!(client.unreachable(), 2);
    client.send(&format!("get {two} {three}\r\n"));
    let nth = client.forwarded.len() - 1;
    client.answer(nth, &format!("VALUE {two} 0 1\r\nA\r\nEND\r\n"));
    client.check(&format!("VALUE {two} 0 1\r\nA\r\nEND\r\n"));
    assert_eq!(client.unreachable(), 3);
}

#[test]
fn what_reads_misses_and_what_writes_fails_when_nobody_can_be_asked() {
    let two = key(2, 0);
    let base64 = "azE="; // k1
    assert_eq!(map().at(Key::new(b"k1").unwrap().hash()).1.server, PEERS[0]);
    let error = format!("{NO_ROUTE}\r\n");
    for (request, reply, missed) in [
        (format!("get {two}"), "END\r\n", 1),
        (format!("gets {two}"), "END\r\n", 1),
        (format!("gat 9 {two}"), "END\r\n", 1),
        (format!("mg {two} v"), "EN\r\n", 1),
        (format!("mg {two} Oab v k"), &format!("EN Oab k{two}\r\n"), 1),
        (format!("mg {base64} b k v"), &format!("EN k{base64} b\r\n"), 1),
        (format!("mg {two} v q"), "", 1),
        (format!("set {two} 0 0 1\r\nv"), &error, 0),
        (format!("md {two} q"), &error, 0),
        (format!("touch {two} 9"), &error, 0),
        (format!("incr {two} 1"), &error, 0),
        (format!("incr {two} 1 noreply"), "", 0),
        (format!("me {two}"), &error, 0),
    ] {
        // Lost on its way, unanswered for too long, and never sent.
        for way in 0..3 {
            let mut client = Client::new(8);
            if way == 2 {
                PEERS.iter().for_each(|&server| client.event(Event::LinkBroken { server }));
            }
            client.send(&format!("{request}\r\nmn\r\n"));
            if way == 0 {
                PEERS.iter().for_each(|&server| client.event(Event::LinkBroken { server }));
                // What reads is told at once; what may be executed still, at its deadline.
                let is_read =
                    missed > 0 && !request.starts_with("gat ") || request.starts_with("me ");
                client.check(&if is_read { format!("{reply}MN\r\n") } else { String::new() });
                a_second_later(&mut client);
                if is_read {
                    assert_eq!(client.unreachable(), missed, "{request}");
                    continue;
                }
            } else if way == 1 {
                let (server, ticket, _) = client.forwarded.remove(0);
                client.event(Event::Unanswered { server, ticket });
                // One that comes too late is nobody's.
                client.event(Event::Answered {
                    server,
                    replies: &[Ticketed::new(ticket, b"OK\r\n")],
                });
            }
            client.check(&format!("{reply}MN\r\n"));
            assert_eq!(client.unreachable(), missed, "{request}");
        }
    }
}

#[test]
fn an_unanswered_request_gives_its_credit_back() {
    let mut client = Client::new(1);
    let two = key(2, 0);
    client.send(&format!("mg {two} Oa\r\nmg {two} Ob\r\n"));
    assert!(client.paused);
    let (server, ticket, _) = client.forwarded.remove(0);
    client.event(Event::Unanswered { server, ticket });
    client.check("EN Oa\r\n");
    assert!(!client.paused);
    client.answer(0, "HD Ob\r\n");
    client.check("HD Ob\r\n");
}

#[test]
fn a_get_of_many_keys_is_gathered_in_parts_and_fails_once() {
    let keys: Vec<String> = (0..100).map(|nth| key(2 + nth as u16 % 2, nth / 2)).collect();
    let get = format!("get {}\r\nmn\r\n", keys.join(" "));
    let mut client = Client::new(8);
    client.send(&get);
    // Nobody knows yet how long values are.
    assert_eq!(client.forwarded.len(), 2);
    while !client.forwarded.is_empty() {
        client.answer(0, "END\r\n");
    }
    client.check("END\r\nMN\r\n");
    client.send(&get);
    assert_eq!(client.forwarded.len(), 2);
    client.answer(0, "END\r\n");
    client.answer(0, "SERVER_ERROR out of memory\r\n");
    client.check("SERVER_ERROR out of memory\r\n");
    // Its other parts are asked for, and dropped.
    while let Some((_, _, request)) = client.forwarded.first() {
        let request = String::from_utf8_lossy(&request[9..]).into_owned();
        let key = request.split(' ').nth(1).expect("it asks for some");
        client.answer(0, &format!("VALUE {key} 0 0\r\n\r\nEND\r\n"));
    }
    client.check("MN\r\n");
}

#[test]
fn a_connection_asks_for_no_more_values_than_it_may_hold() {
    let mut client = Client::new(1000);
    let value = "v".repeat(300_000);
    let keys: Vec<String> = (0..20).map(|nth| key(2, nth)).collect();
    let found = |key: &String| format!("VALUE {key} 0 300000\r\n{value}\r\n");
    // Of servers that have told nothing yet little is asked for, whoever asks.
    client.send(&format!("get {}\r\nmn\r\n", keys.join(" ")));
    assert_eq!(client.requests(), [(2, format!("get {} \r\n", keys[..8].join(" ")))]);
    client.answer(0, &(keys[..8].iter().map(found).collect::<String>() + "END\r\n"));
    let mut told = std::mem::take(&mut client.replies);
    // Now that values are known to be long, few are asked for at a time.
    let mut rest = &keys[8..];
    while !rest.is_empty() {
        let [(2, request)] = &client.requests()[..] else { panic!("{:?}", client.requests()) };
        let count = request.split(' ').count() - 2;
        assert!((1..=3).contains(&count), "{count}");
        client.answer(0, &(rest[..count].iter().map(found).collect::<String>() + "END\r\n"));
        told += &std::mem::take(&mut client.replies);
        rest = &rest[count..];
    }
    assert!(told == keys.iter().map(found).collect::<String>() + "END\r\nMN\r\n");
    // Likewise many gets at a time.
    let gets: String = keys.iter().map(|key| format!("get {key}\r\n")).collect();
    client.send(&gets);
    assert!((1..=3).contains(&client.forwarded.len()), "{}", client.forwarded.len());
    // Short ones are asked for in ever greater numbers.
    for key in &keys[..12] {
        client.answer(0, &format!("VALUE {key} 0 1\r\nv\r\nEND\r\n"));
    }
    assert_eq!(client.forwarded.len(), 8);
    assert_eq!(client.unreachable(), 0);
}

#[test]
fn what_comes_after_its_deadline_is_not_executed_nor_what_is_held_until_then() {
    let mut client = Client::new(8);
    let here = key(1, 0);
    let ask = |client: &mut Client, micros_left, value: u8| {
        let set = format!("set {here} 0 0 1\r\n{}\r\n", char::from(value));
        let mut bytes = Vec::new();
        PeerRequest::new(1, 9, set.as_bytes()).encode(&mut bytes);
        let requests = [Ticketed { ticket: Ticket(7), micros_left, bytes: &bytes }];
        let actions = client.rig.handle(Event::Forwarded { server: PEERS[0], requests: &requests });
        String::from_utf8(actions.bytes).unwrap()
    };
    assert_eq!(ask(&mut client, 1, b'a'), "STORED\r\n");
    assert_eq!(ask(&mut client, 0, b'b'), format!("{NO_ROUTE}\r\n"));
    client.send(&format!("get {here}\r\n"));
    client.check(&format!("VALUE {here} 0 1\r\na\r\nEND\r\n"));
    // Its key is on its way, and comes back later than that.
    begin_to_move(&client, &here);
    assert_eq!(ask(&mut client, 5_000, b'c'), "");
    let tried = client.rig.now.instant() + Duration::from_millis(5);
    let mut told = String::new();
    while told.is_empty() {
        let wake = client.rig.worker.next_wake().expect("it is tried again");
        client.rig.pass_until(wake);
        told = String::from_utf8(client.rig.handle(Event::Woken).bytes).unwrap();
    }
    assert_eq!(told, format!("{NO_ROUTE}\r\n"));
    let late = client.rig.now.instant() - tried;
    assert!(late < Duration::from_millis(500), "it was held for {late:?} longer");
}

#[test]
fn without_credit_a_connection_is_not_read() {
    let mut client = Client::new(1);
    let two = key(2, 0);
    client.send(&format!("mg {two} Oa\r\nmg {two} Ob\r\nmn\r\n"));
    assert!(client.paused);
    assert_eq!(client.requests(), [(2, format!("mg {two} Oa\r\n"))]);
    // What was on its way when reading stopped is kept.
    client.send("version\r\n");
    client.answer(0, "HD Oa\r\n");
    client.check("HD Oa\r\n");
    assert!(!client.paused);
    assert_eq!(client.requests(), [(2, format!("mg {two} Ob\r\n"))]);
    client.answer(0, "HD Ob\r\n");
    client.check("HD Ob\r\nMN\r\nVERSION 1.6.45\r\n");
}

#[test]
fn a_credit_goes_to_the_connection_that_waited_longest() {
    let mut client = Client::new(1);
    let two = key(2, 0);
    let other = mbal_worker::ConnId(1);
    client.rig.open(other);
    client.send(&format!("mg {two} Oa\r\n"));
    client.send(&format!("mg {two} Ob\r\n"));
    let bytes = format!("mg {two} Oc\r\n");
    let paused = client.rig.handle(Event::Received { conn: other, bytes: bytes.as_bytes() });
    assert_eq!(paused.list, [Action::Pause { conn: other }]);
    // The first to wait is gone; the second gets what it waited for.
    client.event(Event::Closed { conn: CONN });
    let (server, ticket, _) = client.forwarded.remove(0);
    let replies = [Ticketed::new(ticket, b"HD Oa\r\n")];
    let actions = client.rig.handle(Event::Answered { server, replies: &replies });
    assert!(
        matches!(actions.list[..], [Action::Forward { .. }, Action::Resume { conn }] if conn == other)
    );
}

#[test]
fn what_waits_behind_a_peer_is_bounded() {
    let mut client = Client::new(2);
    let (here, two) = (key(1, 0), key(2, 0));
    let value = "v".repeat(600_000);
    client.send(&format!("set {here} 0 0 600000\r\n{value}\r\n"));
    client.check("STORED\r\n");
    client.send(&format!("mg {two}\r\nmg {here} v\r\nmg {here} v\r\nmn\r\n"));
    assert!(client.paused);
    client.answer(0, "HD\r\n");
    assert!(!client.paused);
    client.check(&format!("HD\r\nVA 600000\r\n{value}\r\nVA 600000\r\n{value}\r\nMN\r\n"));
}

#[test]
fn what_stands_alone_does_not_stand_behind_a_peers_reply() {
    let mut client = Client::new(8);
    client.send(&format!("mg {}\r\nlru_crawler metadump all\r\n", key(2, 0)));
    client.answer(0, "EN\r\n");
    client.check("EN\r\nERROR cannot pipeline other commands before metadump\r\n");
}

#[test]
fn a_broken_link_is_told_and_nothing_is_repeated() {
    let mut client = Client::new(8);
    let (two, error) = (key(2, 0), format!("{NO_ROUTE}\r\n"));
    client.send(&format!("incr {two} 1\r\nincr {two} 1 noreply\r\nmd {two} q\r\nmn\r\n"));
    client.event(Event::LinkBroken { server: PEERS[0] });
    client.check("");
    a_second_later(&mut client);
    client.check(&format!("{error}{error}MN\r\n"));
    client.forwarded.clear();
    client.send(&format!("incr {two} 1\r\nset {two} 0 0 1 noreply\r\nv\r\nmn\r\n"));
    client.check(&format!("{error}MN\r\n"));
    client.event(Event::LinkUp { server: PEERS[0], credits: 1 });
    assert_eq!(client.requests(), []);
}

#[test]
fn a_link_that_breaks_frees_those_who_waited_for_its_credit() {
    let mut client = Client::new(1);
    let two = key(2, 0);
    client.send(&format!("mg {two}\r\nmg {two}\r\nmn\r\n"));
    assert!(client.paused);
    client.event(Event::LinkBroken { server: PEERS[0] });
    assert!(!client.paused);
    client.check("EN\r\nEN\r\nMN\r\n");
}

#[test]
fn a_quiet_request_takes_its_place_and_says_nothing() {
    let mut client = Client::new(8);
    let two = key(2, 0);
    client.send(&format!("mg {two} v q\r\ndelete {two} noreply\r\nmn\r\n"));
    client.check("");
    client.answer(1, "");
    client.answer(0, "");
    client.check("MN\r\n");
}

#[test]
fn a_value_that_is_too_large_only_removes_the_old_one_at_its_owner() {
    let mut client = Client::new(8);
    let two = key(2, 0);
    let value = "v".repeat(1 << 20);
    let error = "SERVER_ERROR object too large for cache\r\n";
    // As at home, it is told when the value has been swallowed, and the old one has gone: what is written after that stays.
    client.send(&format!("set {two} 0 0 1048576\r\n"));
    assert_eq!(client.requests(), [(2, format!("delete {two}\r\n"))]);
    client.check("");
    client.send(&format!("{value}\r\nmn\r\n"));
    client.check("");
    client.answer(0, "DELETED\r\n");
    client.check(&format!("{error}MN\r\n"));
    // Behind a reply that has not come, and whatever the owner says.
    client.send(&format!("mg {two}\r\nset {two} 0 0 1048576\r\n"));
    client.answer(0, "EN\r\n");
    client.check("");
    client.send(&format!("{value}\r\nmn\r\n"));
    client.answer(0, "NOT_FOUND\r\n");
    client.check(&format!("EN\r\n{error}MN\r\n"));
    // The owner answers before all of the value is there, or never.
    client.send(&format!("set {two} 0 0 1048576\r\n"));
    client.answer(0, "DELETED\r\n");
    client.check("");
    client.send(&format!("{value}\r\n"));
    client.check(error);
    client.send(&format!("set {two} 0 0 1048576 noreply\r\n{value}\r\nmn\r\n"));
    client.check("");
    client.event(Event::LinkBroken { server: ServerId(2) });
    a_second_later(&mut client);
    client.check("MN\r\n");
    assert_eq!(client.unreachable(), 0);
}

#[test]
fn quit_waits_for_what_was_asked_before() {
    let mut client = Client::new(8);
    client.send(&format!("mg {}\r\nquit\r\nmn\r\n", key(2, 0)));
    assert!(!client.closed);
    client.answer(0, "EN\r\n");
    client.check("EN\r\n");
    assert!(client.closed);
}

#[test]
fn who_sends_no_more_still_gets_what_was_asked_before() {
    let mut client = Client::new(8);
    client.send(&format!("mg {}\r\nmn\r\nget", key(2, 0)));
    client.event(Event::HalfClosed { conn: CONN });
    assert!(!client.closed);
    client.answer(0, "EN\r\n");
    client.check("EN\r\nMN\r\n");
    assert!(client.closed);
    let mut client = Client::new(8);
    client.event(Event::HalfClosed { conn: CONN });
    assert!(client.closed);
}

#[test]
fn a_reply_to_a_connection_that_is_gone_reaches_nobody() {
    let mut client = Client::new(8);
    client.send(&format!("mg {}\r\n", key(2, 0)));
    client.event(Event::Closed { conn: CONN });
    client.event(Event::Opened { conn: CONN, own_port: false });
    client.send("mn\r\n");
    client.answer(0, "EN\r\n");
    client.check("MN\r\n");
}

/// What is sent to [`SENDER`], without the frame of its datagram.
fn datagrams(actions: &Actions) -> Vec<String> {
    let sent = actions.list.iter().filter_map(|action| match action {
        Action::Datagram { to, bytes } => {
            assert_eq!(*to, SENDER);
            let bytes = &actions.bytes[bytes.clone()];
            assert_eq!(&bytes[..8], b"\0\x07\0\0\0\x01\0\0");
            Some(String::from_utf8(bytes[8..].to_vec()).expect("text"))
        }
        Action::Forward { .. } => None,
        other => panic!("{other:?}"),
    });
    sent.collect()
}

#[test]
fn datagrams_reach_the_keys_of_other_servers() {
    let mut client = Client::new(9);
    let (here, two, three) = (key(1, 0), key(2, 0), key(3, 0));
    client.send(&format!("set {here} 0 0 1\r\nh\r\n"));
    client.check("STORED\r\n");
    let mut forwarded = Vec::new();
    let mut ask = |client: &mut Client, requests: &str| {
        let bytes = [&b"\0\x07\0\0\0\x01\0\0"[..], requests.as_bytes()].concat();
        let actions = client.rig.handle(Event::Datagram { from: SENDER, bytes: &bytes });
        for action in &actions.list {
            if let Action::Forward { server, ticket, request, .. } = action {
                let peer = PeerRequest::decode(&actions.requests[request.clone()]);
                let peer = peer.expect("well formed");
                let request = String::from_utf8(peer.request.to_vec()).expect("text");
                forwarded.push((*server, *ticket, request));
            }
        }
        (datagrams(&actions), std::mem::take(&mut forwarded))
    };
    let answer = |client: &mut Client, server: ServerId, ticket: Ticket, reply: &str| {
        let replies = [Ticketed::new(ticket, reply.as_bytes())];
        datagrams(&client.rig.handle(Event::Answered { server, replies: &replies }))
    };
    // In the order of the requests.
    let (told, asked) = ask(&mut client, &format!("mn\r\nget {two}\r\nget {here}\r\n"));
    assert_eq!(told, ["MN\r\n"]);
    let [(server, ticket, request)] = &asked[..] else { panic!("{asked:?}") };
    assert_eq!((*server, request.as_str()), (PEERS[0], &*format!("get {two}\r\n")));
    let reply = format!("VALUE {two} 0 1\r\nt\r\nEND\r\n");
    let both = format!("{reply}VALUE {here} 0 1\r\nh\r\nEND\r\n");
    assert_eq!(answer(&mut client, *server, *ticket, &reply), [both]);
    assert_eq!(answer(&mut client, *server, *ticket, &reply), [""; 0], "it is answered once");
    // One reply of three servers' keys.
    let (told, asked) = ask(&mut client, &format!("get {three} {here} {two}\r\n"));
    assert_eq!((told.len(), asked.len()), (0, 2));
    assert_eq!(answer(&mut client, asked[1].0, asked[1].1, &reply), [""; 0]);
    let third = format!("VALUE {three} 0 1\r\nd\r\nEND\r\n");
    let all = format!(
        "VALUE {three} 0 1\r\nd\r\nVALUE {here} 0 1\r\nh\r\nVALUE {two} 0 1\r\nt\r\nEND\r\n"
    );
    assert_eq!(answer(&mut client, asked[0].0, asked[0].1, &third), [all]);
    let (told, asked) = ask(&mut client, &format!("get{}\r\n", format!(" {two}").repeat(65)));
    assert_eq!(
        (&told[..], asked.len()),
        (&["SERVER_ERROR reply too large for UDP\r\n".to_owned()][..], 0)
    );
    // Who does not answer is a miss.
    let (_, asked) = ask(&mut client, &format!("mg {two} k\r\n"));
    let (server, ticket) = (asked[0].0, asked[0].1);
    let actions = client.rig.handle(Event::Unanswered { server, ticket });
    assert_eq!(datagrams(&actions), [format!("EN k{two}\r\n")]);
    let (_, asked) = ask(&mut client, &format!("delete {two}\r\n"));
    assert_eq!(asked.len(), 1);
    let actions = client.rig.handle(Event::LinkBroken { server: PEERS[0] });
    assert_eq!(datagrams(&actions), [""; 0]);
    client.rig.now.second += 1;
    let actions = client.rig.handle(Event::Woken);
    assert_eq!(datagrams(&actions), [format!("{NO_ROUTE}\r\n")]);
}

#[test]
fn a_key_that_stays_on_its_way_is_one_whose_owner_cannot_be_reached() {
    let mut client = Client::new(8);
    let (here, two) = (key(1, 0), key(2, 0));
    client.send(&format!("set {here} 0 0 1\r\nv\r\n"));
    client.check("STORED\r\n");
    begin_to_move(&client, &here);
    client.send(&format!("get {here}\r\nset {here} 0 0 1\r\nw\r\n"));
    client.check("");
    a_second_later(&mut client);
    client.check("END\r\n");
    a_second_later(&mut client);
    client.check(&format!("{NO_ROUTE}\r\n"));
    assert_eq!(client.unreachable(), 1);
    // Alone, and with keys that others have.
    client.send(&format!("get {here} {here}\r\nget {here} {two}\r\n"));
    a_second_later(&mut client);
    a_second_later(&mut client);
    client.answer(0, &format!("VALUE {two} 0 1\r\nA\r\nEND\r\n"));
    client.check(&format!("END\r\nVALUE {two} 0 1\r\nA\r\nEND\r\n"));
    assert_eq!(client.unreachable(), 4);
}

#[test]
fn what_waits_for_a_slice_goes_on_when_that_is_here_again() {
    let mut client = Client::new(8);
    let here = key(1, 0);
    client.send(&format!("set {here} 0 0 1\r\nv\r\n"));
    client.check("STORED\r\n");
    let prefix = begin_to_move(&client, &here);
    client.send(&format!("set {here} 0 0 1\r\nw\r\nget {here}\r\n"));
    assert!(client.paused);
    client.check("");
    client.rig.server.store.thaw(prefix, &mut Cursor::default(), client.rig.now.second);
    a_second_later(&mut client);
    assert!(!client.paused);
    client.check(&format!("STORED\r\nVALUE {here} 0 1\r\nw\r\nEND\r\n"));
}
