//! What other servers ask, for keys that are here or have gone on.

use std::sync::Arc;
use std::time::Duration;

use crate::neighbours::{Client, HERE, PEERS, answer, ask, begin_to_move, cluster, key, map};
use crate::rig::{CONN, Rig};
use mbal_cachelet::{Cursor, Part};
use mbal_migration::{Begin, Incarnation, Request};
use mbal_model::{Cluster, ClusterMap, Key, MoveId, MoveLink, Owner, Prefix, ServerId, WorkerId};
use mbal_wire::{Gone, PeerRequest};
use mbal_worker::{Action, Actions, Event, MoveMessage, NO_ROUTE, Ticket, Ticketed};

#[test]
fn a_worker_names_its_server_before_it_has_heard_of_the_map() {
    let mut rig = Rig::new();
    rig.server.follow(HERE, cluster(), rig.now.second);
    let told = ask(&mut rig, 1, &format!("mg {} L8.1\r\n", key(1, 0))).expect("it is served here");
    assert!(told.starts_with("EN L9.") && told.ends_with(".1/0\r\n"), "{told}");
}

#[test]
fn a_request_from_a_peer_is_served_or_passed_on_until_it_has_come_too_far() {
    let mut rig = Rig::new();
    rig.handle(Event::Mapped { here: HERE, cluster: cluster() });
    rig.handle(Event::LinkUp { server: PEERS[0], credits: 1 });
    let (here, two) = (key(1, 0), key(2, 0));
    let get = format!("get {here} \r\n");
    let value = format!("VALUE {here} 0 1\r\nv\r\nEND\r\n");
    let error = format!("{NO_ROUTE}\r\n");
    for (hops, request, reply) in [
        (1, "flush_all 0 1\r\n".to_owned(), "OK\r\n"),
        (1, format!("set {here} 0 0 1\r\nv\r\n"), "STORED\r\n"),
        (1, format!("set {here} 0 0 1 noreply\r\nv\r\n"), ""),
        (2, get, &value),
        (4, format!("get {here} {two}\r\n"), &error),
        (1, "get\r\n".to_owned(), &error),
        (1, "set k 0 0 9\r\n".to_owned(), &error),
        (4, format!("mg {two}\r\n"), &error),
    ] {
        assert_eq!(ask(&mut rig, hops, &request).as_deref(), Ok(reply), "{request}");
    }
    let (server, ticket, request) =
        ask(&mut rig, 1, &format!("mg {two}\r\n")).expect_err("it is passed on");
    assert_eq!(server, PEERS[0]);
    assert_eq!(PeerRequest::decode(&request).map(|request| request.hops), Some(2));
    assert_eq!(ask(&mut rig, 1, &format!("mg {two}\r\n")), Ok(error));
    let replies = [Ticketed::new(ticket, b"EN\r\n")];
    let answered = rig.handle(Event::Answered { server, replies: &replies });
    assert_eq!(answer(&answered), "EN\r\n");
    // A part of it is another's: that is asked for, and both make one answer.
    let both = format!("get {here} {two}\r\n");
    let (server, ticket, request) = ask(&mut rig, 2, &both).expect_err("a part is passed on");
    let request = PeerRequest::decode(&request).expect("well formed");
    assert_eq!((request.hops, request.request), (3, format!("get {two} \r\n").as_bytes()));
    let reply = format!("VALUE {two} 0 1\r\nw\r\nEND\r\n");
    let replies = [Ticketed::new(ticket, reply.as_bytes())];
    let answered = rig.handle(Event::Answered { server, replies: &replies });
    assert_eq!(answer(&answered), value.replace("END\r\n", &reply));
    // Nobody is there to ask: what is here is told at once.
    rig.handle(Event::LinkBroken { server: PEERS[0] });
    assert_eq!(ask(&mut rig, 2, &both), Ok(value));
}

#[test]
fn a_request_that_comes_back_does_not_wait_for_itself_nor_for_those_that_wait_for_it() {
    let mut rig = Rig::new();
    rig.handle(Event::Mapped { here: HERE, cluster: cluster() });
    rig.handle(Event::LinkUp { server: PEERS[0], credits: 1 });
    let set = format!("set {} 0 0 1\r\nv\r\n", key(2, 0));
    let (server, ticket, _) = ask(&mut rig, 1, &set).expect_err("it is passed on");
    let owner = Owner { server: HERE, worker: WorkerId(0) };
    let all_here = ClusterMap::new(10, Prefix::equal(2).map(|prefix| (prefix, owner)).collect());
    let cluster = Arc::new(Cluster::without_addresses(all_here.expect("they cover all")));
    rig.handle(Event::Mapped { here: HERE, cluster });
    // Another one of the same server's clients, behind it.
    let mut bytes = Vec::new();
    let delete = format!("delete {}\r\n", key(2, 0));
    PeerRequest::new(1, 10, delete.as_bytes()).encode(&mut bytes);
    let requests = [Ticketed::new(Ticket(70), &bytes)];
    let actions = rig.handle(Event::Forwarded { server: ServerId(7), requests: &requests });
    assert_eq!(actions.list, [], "it could be the same client's");
    assert_eq!(ask(&mut rig, 3, &set), Ok("STORED\r\n".into()), "it has come back");
    let replies = [Ticketed::new(ticket, b"STORED\r\n")];
    assert_eq!(answer(&rig.handle(Event::Answered { server, replies: &replies })), "STORED\r\n");
    rig.pass_until(rig.now.instant() + Duration::from_millis(10));
    assert_eq!(answer(&rig.handle(Event::Woken)), "DELETED\r\n");
}

#[test]
fn a_request_that_tells_what_has_gone_does_not_overtake_what_was_passed_on_to_its_source() {
    let two = key(2, 0);
    let prefix = map().at(Key::new(two.as_bytes()).expect("short").hash()).0;
    let (mut source, mut rig) = (Rig::new(), Rig::new());
    source.handle(Event::Mapped { here: PEERS[0], cluster: cluster() });
    rig.server.set_incarnation(Incarnation(1));
    rig.handle(Event::Mapped { here: HERE, cluster: cluster() });
    rig.handle(Event::LinkUp { server: PEERS[0], credits: 1 });
    let begin = Begin {
        prefix,
        source: Incarnation(2),
        destination: Incarnation(1),
        worker: WorkerId(0),
        generation: 9,
        gone: None,
    };
    let (store, second) = (&source.server.store, rig.now.second);
    assert!(store.begin_to_leave(prefix, MoveId(7)));
    store.freeze(prefix, second).expect("a slice");
    let mut part = Vec::new();
    assert!(!store.export(prefix, &mut Cursor::default(), second, &mut part));
    let last = Part::read(&part).expect("it was exported").heading.last;
    for ask in [Request::Begin(begin), Request::Part(&part)] {
        let mut payload = Vec::new();
        let kind = ask.encode(&mut payload);
        let (from, link, id) = (PEERS[0], MoveLink(1), MoveId(7));
        let message = MoveMessage { from, link, id, kind, payload: &payload };
        rig.server.move_asked(rig.now, &message).expect("it can be said");
        for _ in 0..4 {
            rig.handle(Event::Carry);
        }
    }
    let set = format!("set {two} 0 0 1\r\nv\r\n");
    ask(&mut rig, 1, &set).expect_err("its source has it");
    let get = format!("get {two}\r\n");
    let gone = Some(Gone { by_move: 7, last });
    let mut bytes = Vec::new();
    PeerRequest { gone, ..PeerRequest::new(1, 9, get.as_bytes()) }.encode(&mut bytes);
    let requests = [Ticketed::new(Ticket(71), &bytes)];
    let actions = rig.handle(Event::Forwarded { server: ServerId(7), requests: &requests });
    assert_eq!(actions.list, [], "it waits for the set");
    assert_eq!(ask(&mut rig, 3, &set), Ok("STORED\r\n".into()), "which has come back");
}

#[test]
fn requests_that_arrive_together_are_executed_as_one_batch_and_counted_here() {
    let mut rig = Rig::new();
    rig.handle(Event::Mapped { here: HERE, cluster: cluster() });
    rig.handle(Event::LinkUp { server: PEERS[0], credits: 9 });
    let (here, two) = (key(1, 0), key(2, 0));
    let value = "v".repeat(40);
    let asked = [
        format!("set {here} 0 0 40\r\n{value}\r\n"),
        format!("mg {here} v\r\n"),
        "nonsense\r\n".to_owned(),
        format!("mg {two} v\r\n"),
        format!("get {here} \r\n"),
        format!("delete {here}\r\n"),
    ];
    let encoded = asked.map(|request| {
        let mut bytes = Vec::new();
        PeerRequest::new(1, 9, request.as_bytes()).encode(&mut bytes);
        bytes
    });
    // More than a group of them.
    let round = encoded.iter().zip(0..);
    let requests: Vec<Ticketed<'_>> = (0..5)
        .flat_map(|_| round.clone())
        .map(|(bytes, n)| Ticketed::new(Ticket(n), bytes))
        .collect();
    let Actions { bytes, list, .. } =
        rig.handle(Event::Forwarded { server: ServerId(7), requests: &requests });
    let answers = |of: u64| -> Vec<String> {
        let reply = |action: &Action| match action {
            Action::Answer { ticket, reply, .. } if ticket.0 == of => {
                Some(String::from_utf8(bytes[reply.clone()].to_vec()).expect("text"))
            }
            _ => None,
        };
        list.iter().filter_map(reply).collect()
    };
    assert_eq!(answers(0), ["STORED\r\n"; 5]);
    assert_eq!(answers(1), vec![format!("VA 40\r\n{value}\r\n"); 5]);
    assert_eq!(answers(2), vec![format!("{NO_ROUTE}\r\n"); 5]);
    assert_eq!(answers(4), vec![format!("VALUE {here} 0 40\r\n{value}\r\nEND\r\n"); 5]);
    assert_eq!(answers(5), ["DELETED\r\n"; 5]);
    let passed_on = |action: &&Action| matches!(action, Action::Forward { .. });
    assert_eq!(list.iter().filter(passed_on).count(), 5);
    assert_eq!(list.len(), 30);
    let sums = rig.server.sums();
    assert_eq!((sums.requests_own, sums.requests_peer), (20, 0));
}

#[test]
fn replies_that_arrive_together_leave_in_one_send() {
    let mut client = Client::new(9);
    let keys: Vec<String> = (0..4).map(|nth| key(2, nth)).collect();
    let asks: String = keys.iter().map(|key| format!("mg {key} k\r\n")).collect();
    client.send(&asks);
    let words: Vec<String> = keys.iter().map(|key| format!("HD k{key}\r\n")).collect();
    let replies: Vec<Ticketed<'_>> = client
        .forwarded
        .iter()
        .zip(&words)
        .map(|((_, ticket, _), word)| Ticketed::new(*ticket, word.as_bytes()))
        .rev()
        .collect();
    let actions = client.rig.handle(Event::Answered { server: PEERS[0], replies: &replies });
    assert_eq!(actions.list, [Action::Send { conn: CONN, bytes: 0..actions.bytes.len() }]);
    assert_eq!(actions.bytes, words.concat().as_bytes());
}

#[test]
fn a_peers_request_for_a_key_that_stays_on_its_way_is_refused() {
    let mut client = Client::new(8);
    let here = key(1, 0);
    client.send(&format!("set {here} 0 0 1\r\nv\r\n"));
    client.check("STORED\r\n");
    begin_to_move(&client, &here);
    for text in [format!("get {here}\r\n"), format!("set {here} 0 0 1\r\nw\r\n")] {
        let mut bytes = Vec::new();
        PeerRequest::new(1, 9, text.as_bytes()).encode(&mut bytes);
        let requests = [Ticketed::new(Ticket(70), &bytes)];
        let mut actions =
            client.rig.handle(Event::Forwarded { server: ServerId(7), requests: &requests });
        assert!(actions.list.is_empty(), "it waits");
        while actions.list.is_empty() {
            client.rig.pass_until(client.rig.worker.next_wake().expect("it waits"));
            actions = client.rig.handle(Event::Woken);
        }
        assert_eq!(answer(&actions), format!("{NO_ROUTE}\r\n"), "{text}");
    }
}
