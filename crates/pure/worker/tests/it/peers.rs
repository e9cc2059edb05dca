//! Keys that other servers own: order, credits, lost links. Servers are workers without sockets;
//! the test is the network between them.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;

use crate::rig::{CONN, Rig};
use mbal_cachelet::{Cursor, Part};
use mbal_migration::{Ask, Begin, Incarnation};
use mbal_model::{Cluster, ClusterMap, Key, MoveId, Owner, Prefix, Route, ServerId, WorkerId};
use mbal_wire::{Gone, PeerRequest};
use mbal_worker::{
    Action, Actions, Event, MoveLink, MoveMessage, NO_ROUTE, Sender, Ticket, Ticketed,
};

const HERE: ServerId = ServerId(1);
const PEERS: [ServerId; 2] = [ServerId(2), ServerId(3)];
const SENDER: Sender =
    Sender { socket: 0, address: SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9)) };

/// Four cachelets: the first two of server 1, then one each of 2 and 3.
fn map() -> Arc<ClusterMap> {
    let owner = |server| Owner { server: ServerId(server), worker: WorkerId(0) };
    let owners = Prefix::equal(2).zip([1, 1, 2, 3].map(owner)).collect();
    Arc::new(ClusterMap::new(9, owners).expect("they cover all"))
}

fn cluster() -> Arc<Cluster> {
    Arc::new(Cluster::without_addresses(ClusterMap::clone(&map())))
}

/// The `nth` key that `server` owns.
fn key(server: u16, nth: usize) -> String {
    let map = map();
    let owned = |word: &String| {
        let key = Key::new(word.as_bytes()).expect("short");
        map.at(key.hash()).1.server == ServerId(server)
    };
    (0..).map(|number| format!("k{number}")).filter(owned).nth(nth).expect("endless")
}

/// A server, the requests that it has on its links, and what its client has got.
struct Client {
    rig: Rig,
    forwarded: Vec<(ServerId, Ticket, Vec<u8>)>,
    replies: String,
    closed: bool,
    paused: bool,
}

impl Client {
    fn new(credits: u32) -> Client {
        let mut rig = Rig::new();
        rig.handle(Event::Mapped { here: HERE, cluster: cluster() });
        for server in PEERS {
            rig.handle(Event::LinkUp { server, credits });
        }
        Client { rig, forwarded: vec![], replies: String::new(), closed: false, paused: false }
    }

    fn event(&mut self, event: Event<'_>) {
        let Actions { bytes, requests, list } = self.rig.handle(event);
        let mut stalled = false;
        for action in list {
            match action {
                Action::Send { bytes: range, .. } => {
                    self.replies += std::str::from_utf8(&bytes[range]).expect("text");
                }
                Action::Forward { server, ticket, request } => {
                    self.forwarded.push((server, ticket, requests[request].to_vec()));
                }
                Action::Close { .. } => self.closed = true,
                Action::Datagram { .. } => unreachable!("no datagram has come"),
                Action::Pause { .. } => assert!(!std::mem::replace(&mut self.paused, true)),
                Action::Resume { .. } => assert!(std::mem::replace(&mut self.paused, false)),
                Action::Stall { .. } => stalled = true,
                Action::Answer { .. }
                | Action::RefreshCerts { .. }
                | Action::Shutdown { .. }
                | Action::HandOver { .. }
                | Action::Nudge { .. }
                | Action::TellMove { .. }
                | Action::BreakMoveLink { .. }
                | Action::Say { .. }
                | Action::Report(_) => panic!("nobody asked"),
            }
        }
        if stalled {
            self.event(Event::Drained { conn: CONN });
        }
    }

    fn unreachable(&mut self) -> u64 {
        self.rig.server.sums().get_unreachable
    }

    fn send(&mut self, input: &str) {
        self.event(Event::Received { conn: CONN, bytes: input.as_bytes() });
    }

    /// Answers the request that was forwarded `nth` of those that are unanswered.
    fn answer(&mut self, nth: usize, reply: &str) {
        let (server, ticket, _) = self.forwarded.remove(nth);
        self.event(Event::Answered {
            server,
            replies: &[Ticketed { ticket, bytes: reply.as_bytes() }],
        });
    }

    fn requests(&self) -> Vec<(u16, String)> {
        let text = |bytes: &[u8]| {
            let peer = PeerRequest::decode(bytes).expect("well formed");
            assert_eq!((peer.hops, peer.map_version), (1, 9));
            String::from_utf8(peer.request.to_vec()).expect("text")
        };
        self.forwarded.iter().map(|(server, _, bytes)| (server.0, text(bytes))).collect()
    }

    #[track_caller]
    fn check(&mut self, replies: &str) {
        assert_eq!(std::mem::take(&mut self.replies), replies);
    }
}

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
            } else if way == 1 {
                let (server, ticket, _) = client.forwarded.remove(0);
                client.event(Event::Unanswered { server, ticket });
                // One that comes too late is nobody's.
                client.event(Event::Answered {
                    server,
                    replies: &[Ticketed { ticket, bytes: b"OK\r\n" }],
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
fn flush_all_is_the_clusters() {
    let mut client = Client::new(8);
    let here = key(1, 0);
    client.send(&format!("set {here} 0 0 1\r\nH\r\nflush_all\r\nget {here}\r\n"));
    let to_all = |exptime, number| {
        [2, 3].map(|server| (server, format!("flush_all {exptime} {number} 2,3\r\n")))
    };
    assert_eq!(client.requests(), to_all(0, 1));
    client.answer(1, "OK\r\n");
    client.check("");
    client.answer(0, "OK\r\n");
    client.check("STORED\r\nOK\r\nEND\r\n");
    // A server that does not, and one that is not there.
    client.send("flush_all 10\r\n");
    assert_eq!(client.requests(), to_all(10, 2));
    client.answer(0, "CLIENT_ERROR flush_all not allowed\r\n");
    client.event(Event::LinkBroken { server: PEERS[1] });
    client.check("SERVER_ERROR flush_all did not reach 2 of 3 servers\r\n");
    client.forwarded.clear();
    client.send("flush_all\r\nflush_all noreply\r\nflush_all x\r\n");
    // One after the other: who has not heard of the first could take what is stored between.
    for number in [3, 4] {
        assert_eq!(client.requests(), [(2, format!("flush_all 0 {number} 2,3\r\n"))]);
        client.answer(0, "OK\r\n");
    }
    client.check(
        "SERVER_ERROR flush_all did not reach 1 of 3 servers\r\n\
         CLIENT_ERROR invalid exptime argument\r\n",
    );
}

#[test]
fn a_get_of_many_keys_is_gathered_in_parts_and_fails_once() {
    let keys: Vec<String> = (0..100).map(|nth| key(2 + nth as u16 % 2, nth / 2)).collect();
    let get = format!("get {}\r\nmn\r\n", keys.join(" "));
    let mut client = Client::new(8);
    client.send(&get);
    assert_eq!(client.forwarded.len(), 4);
    for _ in 0..4 {
        client.answer(0, "END\r\n");
    }
    client.check("END\r\nMN\r\n");
    client.send(&get);
    client.answer(0, "END\r\n");
    client.answer(0, "SERVER_ERROR out of memory\r\n");
    client.check("SERVER_ERROR out of memory\r\n");
    client.answer(0, &format!("VALUE {} 0 0\r\n\r\nEND\r\n", keys[64]));
    client.answer(0, "END\r\n");
    client.check("MN\r\n");
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
    let replies = [Ticketed { ticket, bytes: b"HD Oa\r\n" }];
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

/// What `rig` answers server 7, whose request has ticket 70, or passes on: to whom, by which ticket.
fn ask(rig: &mut Rig, hops: u8, request: &str) -> Result<String, (ServerId, Ticket, Vec<u8>)> {
    let mut bytes = Vec::new();
    PeerRequest::new(hops, 9, request.as_bytes()).encode(&mut bytes);
    let requests = [Ticketed { ticket: Ticket(70), bytes: &bytes }];
    let actions = rig.handle(Event::Asked { server: ServerId(7), requests: &requests });
    match &actions.list[..] {
        [Action::Forward { server, ticket, request }] => {
            Err((*server, *ticket, actions.requests[request.clone()].to_vec()))
        }
        _ => Ok(answer(&actions)),
    }
}

/// What server 7 is told, by the ticket of its request.
fn answer(actions: &Actions) -> String {
    let [Action::Answer { server: ServerId(7), ticket: Ticket(70), reply }] = &actions.list[..]
    else {
        panic!("{:?}", actions.list)
    };
    String::from_utf8(actions.bytes[reply.clone()].to_vec()).expect("text")
}

#[test]
fn who_begins_before_a_flush_that_is_to_come_is_told_of_it() {
    let mut client = Client::new(8);
    client.send("flush_all 10\r\n");
    client.answer(0, "OK\r\n");
    client.answer(0, "OK\r\n");
    client.check("OK\r\n");
    let begins_anew = |client: &mut Client| {
        client.event(Event::LinkBroken { server: PEERS[0] });
        client.event(Event::LinkUp { server: PEERS[0], credits: 8 });
    };
    client.rig.now.second += 3;
    begins_anew(&mut client);
    assert_eq!(client.requests(), [(2, "flush_all 7 1\r\n".into())]);
    client.answer(0, "OK\r\n");
    client.check("");
    client.rig.now.second += 6;
    begins_anew(&mut client);
    assert_eq!(client.requests(), []);
}

#[test]
fn word_of_a_flush_that_is_to_come_does_not_put_it_off() {
    let mut client = Client::new(8);
    let here = key(1, 0);
    client.send(&format!("set {here} 0 0 1\r\nH\r\n"));
    for seconds in [4, 4] {
        assert_eq!(ask(&mut client.rig, 1, "flush_all 10 1\r\n"), Ok("OK\r\n".into()));
        client.rig.now.second += seconds;
    }
    client.send(&format!("get {here}\r\n"));
    client.rig.now.second += 1;
    client.send(&format!("get {here}\r\n"));
    client.check(&format!("STORED\r\nVALUE {here} 0 1\r\nH\r\nEND\r\nEND\r\n"));
}

#[test]
fn a_flush_has_one_number_on_all_servers() {
    let mut client = Client::new(8);
    let here = key(1, 0);
    client.send(&format!("set {here} 0 0 1\r\nH\r\n"));
    assert_eq!(ask(&mut client.rig, 1, "flush_all 0 41\r\n"), Ok("OK\r\n".into()));
    client.send(&format!("get {here}\r\n"));
    client.check("STORED\r\nEND\r\n");
    client.send("flush_all\r\n");
    assert_eq!(client.requests(), [2, 3].map(|server| (server, "flush_all 0 42 2,3\r\n".into())));
}

#[test]
fn what_a_flush_was_not_asked_for_may_leave_when_nobody_waits_for_its_answer() {
    let mut rig = Rig::new();
    rig.handle(Event::Mapped { here: HERE, cluster: cluster() });
    let prefix = Prefix::equal(2).next().expect("four");
    rig.server.store.know_flush(5);
    rig.handle(Event::Tick);
    rig.pass_until(rig.now.moment().after(1_000_000));
    rig.handle(Event::Tick);
    assert!(!rig.server.store.begin_to_leave(prefix, MoveId(1)));
    rig.pass_until(rig.now.moment().after(1_000_000));
    rig.handle(Event::Tick);
    assert!(rig.server.store.begin_to_leave(prefix, MoveId(1)));
}

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
    let replies = [Ticketed { ticket, bytes: b"EN\r\n" }];
    let answered = rig.handle(Event::Answered { server, replies: &replies });
    assert_eq!(answer(&answered), "EN\r\n");
    // A part of it is another's: that is asked for, and both make one answer.
    let both = format!("get {here} {two}\r\n");
    let (server, ticket, request) = ask(&mut rig, 2, &both).expect_err("a part is passed on");
    let request = PeerRequest::decode(&request).expect("well formed");
    assert_eq!((request.hops, request.request), (3, format!("get {two} \r\n").as_bytes()));
    let reply = format!("VALUE {two} 0 1\r\nw\r\nEND\r\n");
    let replies = [Ticketed { ticket, bytes: reply.as_bytes() }];
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
    let requests = [Ticketed { ticket: Ticket(70), bytes: &bytes }];
    let actions = rig.handle(Event::Asked { server: ServerId(7), requests: &requests });
    assert_eq!(actions.list, [], "it could be the same client's");
    assert_eq!(ask(&mut rig, 3, &set), Ok("STORED\r\n".into()), "it has come back");
    let replies = [Ticketed { ticket, bytes: b"STORED\r\n" }];
    assert_eq!(answer(&rig.handle(Event::Answered { server, replies: &replies })), "STORED\r\n");
    rig.pass_until(rig.now.moment().after(10_000));
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
    for ask in [Ask::Begin(begin), Ask::Part(&part)] {
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
    let requests = [Ticketed { ticket: Ticket(71), bytes: &bytes }];
    let actions = rig.handle(Event::Asked { server: ServerId(7), requests: &requests });
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
        .map(|(bytes, n)| Ticketed { ticket: Ticket(n), bytes })
        .collect();
    let Actions { bytes, list, .. } =
        rig.handle(Event::Asked { server: ServerId(7), requests: &requests });
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
        .map(|((_, ticket, _), word)| Ticketed { ticket: *ticket, bytes: word.as_bytes() })
        .rev()
        .collect();
    let actions = client.rig.handle(Event::Answered { server: PEERS[0], replies: &replies });
    assert_eq!(actions.list, [Action::Send { conn: CONN, bytes: 0..actions.bytes.len() }]);
    assert_eq!(actions.bytes, words.concat().as_bytes());
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
            if let Action::Forward { server, ticket, request } = action {
                let peer = PeerRequest::decode(&actions.requests[request.clone()]);
                let peer = peer.expect("well formed");
                let request = String::from_utf8(peer.request.to_vec()).expect("text");
                forwarded.push((*server, *ticket, request));
            }
        }
        (datagrams(&actions), std::mem::take(&mut forwarded))
    };
    let answer = |client: &mut Client, server: ServerId, ticket: Ticket, reply: &str| {
        let replies = [Ticketed { ticket, bytes: reply.as_bytes() }];
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
    assert_eq!(datagrams(&actions), [format!("{NO_ROUTE}\r\n")]);
}

/// All slices of the cachelet that has the key are frozen, or gone.
fn begin_to_move(client: &Client, key: &str) -> Prefix {
    let store = &client.rig.server.store;
    let hash = Key::new(key.as_bytes()).expect("short").hash();
    let prefix = store.prefixes().into_iter().find(|prefix| prefix.contains(hash)).expect("here");
    let now = client.rig.now.second;
    assert!(store.begin_to_leave(prefix, MoveId(1)));
    assert!(store.freeze(prefix, now).is_some());
    let serves = Route::Moving(MoveId(1));
    assert_eq!(store.route(WorkerId(0), hash), serves);
    prefix
}

/// Until whoever waits for a slice has waited long enough.
fn a_second_later(client: &mut Client) {
    let end = client.rig.now.moment().after(1_100_000);
    while let Some(wake) = client.rig.worker.next_wake().filter(|wake| *wake < end) {
        client.rig.pass_until(wake);
        client.event(Event::Woken);
    }
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
        let requests = [Ticketed { ticket: Ticket(70), bytes: &bytes }];
        let mut actions =
            client.rig.handle(Event::Asked { server: ServerId(7), requests: &requests });
        assert!(actions.list.is_empty(), "it waits");
        while actions.list.is_empty() {
            client.rig.pass_until(client.rig.worker.next_wake().expect("it waits"));
            actions = client.rig.handle(Event::Woken);
        }
        assert_eq!(answer(&actions), format!("{NO_ROUTE}\r\n"), "{text}");
    }
}
