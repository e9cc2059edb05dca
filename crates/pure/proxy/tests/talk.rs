//! What proxies say to each other, as a transcript: one of two, and the test speaks for the other and for the upstream.

use std::time::Duration;

use mbal_model::Instant;
use mbal_proxy::{
    Action, ClientId, ConnId, Distribution, Event, KeyHash, Limits, Peers, Proxy, Replication,
    RingServer, Settings,
};

const MS: u64 = 1_000_000;
const LEASE: u64 = 1000 * MS;
/// Connections: to the upstream, for what is passed on, for promises.
const HOME: ConnId = ConnId(0);
const PASSED: ConnId = ConnId(2);
const PROMISES: ConnId = ConnId(4);

struct World {
    proxy: Proxy,
    now: u64,
    asked: Vec<String>,
    told: Vec<String>,
    closed: Vec<ClientId>,
}

impl World {
    fn new() -> World {
        let names = vec!["a:1".to_owned(), "b:2".to_owned()];
        let server = RingServer { host: "s".into(), port: 1, weight: 1, name: None };
        let proxy = Proxy::new(Settings {
            servers: vec![server],
            distribution: Distribution::Modula(KeyHash::Fnv1a64),
            conns_per_server: 1,
            timeout: Duration::from_nanos(10_000 * MS),
            eject: false,
            failures_max: 1,
            retry: Duration::from_nanos(1000 * MS),
            limits: Limits::default(),
            replication: Some(Replication {
                interval: Duration::from_nanos(LEASE),
                target: 1.1,
                sampling: 1.0,
            }),
            peers: Some(
                Peers::new(names, "a:1", Duration::from_nanos(LEASE)).expect("two proxies"),
            ),
            doubt: Duration::ZERO,
            pid: 1,
            started_at: 0,
            version: "1".into(),
            seed: 7,
        });
        let (asked, told) = (vec![String::new(); 6], vec![String::new(); 8]);
        let mut world = World { proxy, now: MS, asked, told, closed: Vec::new() };
        world.proxy.start(Instant::from_nanos(world.now));
        for conn in [HOME, PASSED, PROMISES] {
            world.event(Event::Connected { conn });
        }
        world
    }

    fn event(&mut self, event: Event<'_>) {
        self.proxy.handle(Instant::from_nanos(self.now), event);
        let mut actions = Vec::new();
        self.proxy.take_actions(&mut actions);
        for action in actions {
            match action {
                Action::ToClient(client) => {
                    let out = self.proxy.client_output(client).to_vec();
                    self.told[client.0 as usize] += &String::from_utf8_lossy(&out);
                    self.proxy.client_took(client, out.len());
                }
                Action::ToUpstream(conn) => {
                    let out = self.proxy.conn_output(conn).to_vec();
                    self.proxy.conn_took(conn, out.len());
                    let out = String::from_utf8_lossy(&out);
                    let rest = out.strip_prefix("config get mbal\r\n");
                    self.asked[conn.0 as usize] += rest.unwrap_or(&out);
                    if rest.is_some() {
                        let event = Event::Replied { conn, bytes: b"ERROR\r\n" };
                        self.proxy.handle(Instant::from_nanos(self.now), event);
                    }
                }
                Action::Close(client) => self.closed.push(client),
                _ => {}
            }
        }
    }

    fn wait(&mut self, time: u64) {
        self.now += time;
        self.event(Event::Woken);
    }

    fn says(&mut self, client: ClientId, text: &str, hears: &str) {
        self.event(Event::Received { client, bytes: text.as_bytes() });
        assert_eq!(self.hears(client), hears, "to {text:?}");
    }

    fn hears(&mut self, client: ClientId) -> String {
        std::mem::take(&mut self.told[client.0 as usize])
    }

    fn asked(&mut self, conn: ConnId) -> String {
        // What gathers has left by then.
        self.wait(MS);
        std::mem::take(&mut self.asked[conn.0 as usize])
    }

    fn replies(&mut self, conn: ConnId, text: &str) {
        self.event(Event::Replied { conn, bytes: text.as_bytes() });
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
    let mut world = World::new();
    let hello = format!("peer hello 1 {}\r\n", world.list());
    let (peer, client) = (world.proxy.open_peer(), world.proxy.open());
    world.says(peer, "peer hello 1 123\r\n", "DIFFERS\r\n");
    world.says(peer, &hello, "WAIT\r\n");
    // A proxy that starts lets its clients wait for a lease.
    world.says(client, "set k0 0 0 1\r\n1\r\n", "");
    assert_eq!(world.asked(HOME), "");
    world.wait(LEASE);
    assert_eq!(world.asked(HOME), "set k0 0 0 1\r\n1\r\n");
    world.replies(HOME, "STORED\r\n");
    assert_eq!(world.hears(client), "STORED\r\n");
    world.event(Event::Received { client: peer, bytes: hello.as_bytes() });
    let said = world.hears(peer);
    let id = said.strip_prefix("OK ").expect("a session").trim_end().to_owned();
    world.says(peer, &hello, "WAIT\r\n");
    world.says(peer, "peer keep 123\r\n", "GONE\r\n");
    world.says(peer, &format!("peer keep {id}\r\n"), "OK\r\n");

    // One of these keys is the other's.
    let mut key = None;
    for number in 0..64 {
        let other = world.proxy.open_peer();
        world.told.resize(80, String::new());
        let request = format!("peer claim {id} k{number}\r\n");
        world.event(Event::Received { client: other, bytes: request.as_bytes() });
        match world.hears(other).as_str() {
            "OK\r\n" => {
                key = Some(format!("k{number}"));
                break;
            }
            said => assert_eq!((said, world.closed.pop()), ("", Some(other))),
        }
    }
    let key = key.expect("some are the other's");
    world.says(client, &format!("get {key}\r\n"), "");
    assert_eq!(world.asked(PASSED), format!("get {key}\r\n"));
    world.replies(PASSED, "END\r\n");
    assert_eq!(world.hears(client), "END\r\n");

    // The other is silent for a lease: what it has not answered is lost, and deleted at home.
    world.says(client, &format!("set {key} 0 0 1\r\n2\r\n"), "");
    assert_eq!(world.asked(PASSED), format!("set {key} 0 0 1\r\n2\r\n"));
    world.wait(LEASE);
    assert_eq!(world.hears(client), "SERVER_ERROR upstream timed out\r\n");
    assert_eq!(world.asked(HOME), format!("md {key}\r\n"));
    world.says(peer, &format!("peer keep {id}\r\n"), "GONE\r\n");
}

#[test]
fn what_is_no_talk_ends_the_connection() {
    let mut world = World::new();
    world.wait(2 * LEASE);
    let long = format!("peer {}", "x".repeat(600));
    let lines = ["nonsense\r\n", "peer\r\n", "peer sing 1\r\n", "peer keep x\r\n", &long];
    for line in lines {
        let peer = world.proxy.open_peer();
        world.says(peer, line, "");
        assert_eq!(world.closed.pop(), Some(peer), "{line:?}");
    }
}
