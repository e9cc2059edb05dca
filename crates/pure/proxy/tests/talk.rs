//! What proxies say to each other, as a transcript: one of two, and the test speaks for the other and for the upstream.

mod common;

use std::time::Duration;

use common::transcript::World;
use common::{MS, replication, settings};
use mbal_proxy::{ClientId, ConnId, Event, Peers, Settings};

const LEASE: u64 = 1000 * MS;
/// Connections: to the upstream, for what is passed on, for promises.
const HOME: ConnId = ConnId(0);
const PASSED: ConnId = ConnId(2);
const PROMISES: ConnId = ConnId(4);

fn world() -> World {
    let names = vec!["a:1".to_owned(), "b:2".to_owned()];
    let peers = Peers::new(names, "a:1", Duration::from_nanos(LEASE)).expect("two proxies");
    let timeout = Duration::from_secs(10);
    let (peers, replication) = (Some(peers), replication(1000, 1.1));
    World::new(Settings { peers, replication, timeout, ..settings(1) })
}

impl World {
    fn peer(&mut self) -> ClientId {
        let peer = self.proxy.open_peer();
        self.listens(peer)
    }

    fn asks(&mut self, client: ClientId, text: &str, hears: &str) {
        self.says(client, text);
        assert_eq!(self.heard(client), hears, "to {text:?}");
    }

    fn heard(&mut self, client: ClientId) -> String {
        std::mem::take(&mut self.told[client.0 as usize])
    }

    fn asked(&mut self, conn: ConnId) -> String {
        // What gathers has left by then.
        self.wait(MS);
        std::mem::take(&mut self.asked[conn.0 as usize])
    }

    /// The hash that both proxies have to agree on.
    fn list(&mut self) -> String {
        let hello = self.asked(PROMISES);
        let list = hello.strip_prefix("peer hello 0 ").expect("a greeting").trim_end();
        list.to_owned()
    }
}

#[test]
fn a_promise_is_given_behind_the_replies_that_are_under_way() {
    let mut world = crate::world();
    let hello = format!("peer hello 1 {}\r\n", world.list());
    let (peer, client) = (world.peer(), world.client());
    world.asks(peer, "peer hello 1 123\r\n", "DIFFERS\r\n");
    world.asks(peer, &hello, "WAIT\r\n");
    // A proxy that starts lets its clients wait for a lease.
    world.asks(client, "set k0 0 0 1\r\n1\r\n", "");
    assert_eq!(world.asked(HOME), "");
    world.wait(LEASE);
    assert_eq!(world.asked(HOME), "set k0 0 0 1\r\n1\r\n");
    world.replies(0, "STORED\r\n");
    assert_eq!(world.heard(client), "STORED\r\n");
    world.event(Event::Received { client: peer, bytes: hello.as_bytes() });
    let said = world.heard(peer);
    let id = said.strip_prefix("OK ").expect("a session").trim_end().to_owned();
    world.asks(peer, &hello, "WAIT\r\n");
    world.asks(peer, "peer keep 123\r\n", "GONE\r\n");
    world.asks(peer, &format!("peer keep {id}\r\n"), "OK\r\n");

    // One of these keys is the other's.
    let mut key = None;
    for number in 0..64 {
        let other = world.peer();
        let request = format!("peer claim {id} k{number}\r\n");
        world.event(Event::Received { client: other, bytes: request.as_bytes() });
        match world.heard(other).as_str() {
            "OK\r\n" => {
                key = Some(format!("k{number}"));
                break;
            }
            said => assert_eq!((said, world.closed.pop()), ("", Some(other))),
        }
    }
    let key = key.expect("some are the other's");
    world.asks(client, &format!("get {key}\r\n"), "");
    assert_eq!(world.asked(PASSED), format!("get {key}\r\n"));
    world.replies(1, "END\r\n");
    assert_eq!(world.heard(client), "END\r\n");

    // The other is silent for a lease: what it has not answered is lost, and deleted at home.
    world.asks(client, &format!("set {key} 0 0 1\r\n2\r\n"), "");
    assert_eq!(world.asked(PASSED), format!("set {key} 0 0 1\r\n2\r\n"));
    world.wait(LEASE);
    assert_eq!(world.heard(client), "SERVER_ERROR upstream timed out\r\n");
    assert_eq!(world.asked(HOME), format!("md {key}\r\n"));
    world.asks(peer, &format!("peer keep {id}\r\n"), "GONE\r\n");
}

#[test]
fn what_is_no_talk_ends_the_connection() {
    let mut world = crate::world();
    world.wait(2 * LEASE);
    let long = format!("peer {}", "x".repeat(600));
    let lines = ["nonsense\r\n", "peer\r\n", "peer sing 1\r\n", "peer keep x\r\n", &long];
    for line in lines {
        let peer = world.peer();
        world.asks(peer, line, "");
        assert_eq!(world.closed.pop(), Some(peer), "{line:?}");
    }
}
