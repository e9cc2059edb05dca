//! Maps of the cluster reach workers at different times, and not in order.

use std::sync::Arc;
use std::time::Duration;

use mbal_model::{Cluster, ClusterMap, Key, Owner, Prefix, ServerId, WorkerId};
use mbal_wire::PeerRequest;
use mbal_worker::{Action, Event, Settings, Ticket, Ticketed};

use crate::rig::{CONN, Rig};

const HERE: ServerId = ServerId(1);

/// Server 1 has the lower half, or everything.
fn map(version: u64, upper: u16) -> Arc<Cluster> {
    let owner = |server| Owner { server: ServerId(server), worker: WorkerId(0) };
    let owners = Prefix::equal(1).zip([1, upper].map(owner)).collect();
    let map = ClusterMap::new(version, owners).expect("they cover all");
    Arc::new(Cluster::without_addresses(map))
}

/// 0 is the lower one.
fn key_of_the_half(half: u64) -> String {
    let is_of_it = |word: &String| Key::new(word.as_bytes()).expect("short").hash() >> 63 == half;
    (0..).map(|number| format!("k{number}")).find(is_of_it).expect("endless")
}

fn two_workers() -> [Rig; 2] {
    let one = Rig::with(Settings { workers: 2, ..Settings::default() });
    let mut other = one.another_worker();
    other.open(CONN);
    [one, other]
}

#[test]
fn a_worker_that_has_not_heard_of_a_map_serves_nothing_that_has_left() {
    let [mut one, mut other] = two_workers();
    one.handle(Event::Mapped { here: HERE, cluster: map(9, 2) });
    other.check(&format!("get {}\r\n", key_of_the_half(1)), "END\r\n");
}

#[test]
fn who_owns_everything_by_a_map_does_not_serve_what_has_not_come_yet() {
    let [mut one, mut other] = two_workers();
    let key = key_of_the_half(1);
    // A batch that began before keeps what is released from being dropped, and so from coming anew.
    one.server.store.enter(WorkerId(1));
    one.handle(Event::Mapped { here: HERE, cluster: map(9, 2) });
    one.handle(Event::Mapped { here: HERE, cluster: map(10, 1) });
    let set = format!("set {key} 0 0 1\r\na\r\n");
    let actions = one.handle(Event::Received { conn: CONN, bytes: set.as_bytes() });
    assert_eq!(actions.bytes, b"SERVER_ERROR no route to owner\r\n");
    one.server.store.leave(WorkerId(1));
    one.pass_until(one.now.instant() + Duration::from_millis(10));
    one.handle(Event::Woken);
    other.check(&set, "STORED\r\n");
}

#[test]
fn an_older_map_that_comes_late_changes_nothing() {
    let [mut one, mut other] = two_workers();
    one.handle(Event::Mapped { here: HERE, cluster: map(9, 2) });
    for rig in [&mut one, &mut other] {
        rig.handle(Event::Mapped { here: HERE, cluster: map(8, 1) });
        rig.check(&format!("get {}\r\n", key_of_the_half(1)), "END\r\n");
        let told = rig.send(b"config get mbal\r\n");
        let told = String::from_utf8(told).expect("text");
        assert_eq!(told.lines().nth(2).map(|line| line.split('.').next()), Some(Some("version 9")));
    }
}

#[test]
fn stats_cluster_says_who_there_is_and_what_can_be_reached() {
    let [mut one, mut other] = two_workers();
    one.check("stats cluster\r\n", "ERROR\r\n");
    let text = "cluster shop\nversion 7\nserver 1 link 10.0.0.1:11311 client 10.0.0.1:11211\n\
        server 2 link 10.0.0.2:11311 client 10.0.0.2:11211\nequal 2\n";
    let cluster = Arc::new(Cluster::parse(text).expect("well formed"));
    for rig in [&mut one, &mut other] {
        rig.handle(Event::Mapped { here: HERE, cluster: Arc::clone(&cluster) });
    }
    let told = |links: [u8; 2], unreachable: u8| {
        format!(
            "STAT cluster shop\r\nSTAT server_id 1\r\nSTAT map_version 7\r\nSTAT servers 2\r\nSTAT cachelets 2\r\n\
             STAT links_up {}\r\nSTAT links_wanted {}\r\nSTAT moves 0\r\nSTAT moved_bytes 0\r\nSTAT left_behind 0\r\nSTAT get_unreachable {unreachable}\r\n\
             STAT 1:client 10.0.0.1:11211\r\nSTAT 1:cachelets 2\r\n\
             STAT 2:client 10.0.0.2:11211\r\nSTAT 2:cachelets 2\r\nSTAT 2:links_up {}\r\nEND\r\n",
            links[0], links[1], links[0]
        )
    };
    one.check("stats cluster\r\n", &told([0, 2], 0));
    let is_others = |word: &String| Key::new(word.as_bytes()).expect("short").hash() >> 62 == 1;
    let key = (0..).map(|number| format!("k{number}")).find(is_others).expect("endless");
    one.check(&format!("get {key}\r\n"), "END\r\n");
    let (server, credits) = (ServerId(2), 9);
    one.handle(Event::LinkUp { server, credits });
    other.handle(Event::LinkUp { server, credits });
    one.check("stats cluster\r\n", &told([2, 2], 1));
    other.handle(Event::LinkBroken { server });
    one.check("stats cluster\r\n", &told([1, 2], 1));
}

#[test]
fn a_get_with_a_key_that_is_too_long_is_an_error_whoever_has_the_others() {
    let [mut one, _] = two_workers();
    one.handle(Event::Mapped { here: HERE, cluster: map(9, 2) });
    let (key, long) = (key_of_the_half(1), "k".repeat(251));
    for command in ["get", "gets", "gat 10", "gats 10"] {
        let error = "CLIENT_ERROR bad command line format\r\n";
        one.check(&format!("{command} {key} {long}\r\n"), error);
        one.check(&format!("{command} {long} {key}\r\n"), error);
    }
}

#[test]
fn a_flush_that_was_begun_by_an_older_map_goes_on_to_servers_that_its_sender_does_not_know() {
    let (sender, newcomer) = (ServerId(2), ServerId(3));
    let did_not = "SERVER_ERROR flush_all did not reach 1 of 2 servers\r\n";
    for (map_version, asked, newcomer_says, answer) in [
        (8, " 1", Some("OK\r\n"), "OK\r\n"),
        (8, " 1", Some("SERVER_ERROR no route to owner\r\n"), did_not),
        // There is no link to it.
        (8, " 1", None, did_not),
        // Its sender knows it.
        (8, " 1,3", None, "OK\r\n"),
        (9, " 1", None, "OK\r\n"),
        (8, "", None, "OK\r\n"),
    ] {
        let mut rig = Rig::new();
        rig.handle(Event::Mapped { here: HERE, cluster: map(9, 3) });
        if newcomer_says.is_some() {
            rig.handle(Event::LinkUp { server: newcomer, credits: 8 });
        }
        let key = key_of_the_half(0);
        rig.check(&format!("set {key} 0 0 1\r\na\r\n"), "STORED\r\n");
        let (flush, mut bytes) = (format!("flush_all 0 5{asked}\r\n"), Vec::new());
        PeerRequest::new(1, map_version, flush.as_bytes()).encode(&mut bytes);
        let requests = [Ticketed::new(Ticket(70), &bytes)];
        let mut actions = rig.handle(Event::Forwarded { server: sender, requests: &requests });
        rig.check(&format!("get {key}\r\n"), "END\r\n");
        if let Some(reply) = newcomer_says {
            let [Action::Forward { server, ticket, request, .. }] = &actions.list[..] else {
                panic!("{:?}", actions.list)
            };
            let request = PeerRequest::decode(&actions.requests[request.clone()]);
            let goes_on = PeerRequest::new(2, 9, b"flush_all 0 5 1,2,3\r\n");
            assert_eq!((*server, request), (newcomer, Some(goes_on)));
            let replies = [Ticketed::new(*ticket, reply.as_bytes())];
            actions = rig.handle(Event::Answered { server: newcomer, replies: &replies });
        }
        let [Action::Answer { server, ticket: Ticket(70), reply }] = &actions.list[..] else {
            panic!("{:?}", actions.list)
        };
        let told = std::str::from_utf8(&actions.bytes[reply.clone()]).expect("text");
        assert_eq!((*server, told), (sender, answer), "map {map_version}, asked:{asked}");
    }
}
