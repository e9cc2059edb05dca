//! A cachelet changes its owner, a connection its worker; who knows the workers is told.

use std::sync::Arc;

use mbal_cachelet::{Options, Store};
use mbal_model::{Key, Outcome, Prefix, WorkerId};
use mbal_worker::{Action, Actions, ConnId, Event, OrderId, Report, Settings, Shared};
use mbal_worker::{Carried, Worker};

use crate::rig::{CONN, START};

const ORDER: OrderId = OrderId(5);

/// Two workers with two cachelets each, and a connection on worker 0.
pub struct Pair {
    pub server: Arc<Shared>,
    workers: [Worker; 2],
}

impl Pair {
    pub fn new() -> Pair {
        let settings = Settings {
            workers: 2,
            worker_addresses: ["127.0.0.1:7000", "127.0.0.1:7001"]
                .map(|at| at.parse().unwrap())
                .to_vec(),
            ..Settings::default()
        };
        let store = Store::new(Options {
            memory_bytes: 8 << 20,
            workers: 2,
            cachelets: 4,
            item_bytes_max: settings.item_bytes_max,
            evict: true,
            generation: 0,
        });
        let server = Arc::new(Shared::new(settings, store));
        let workers = [0, 1].map(|worker| Worker::new(WorkerId(worker), Arc::clone(&server)));
        let mut pair = Pair { server, workers };
        pair.handle(0, Event::Opened { conn: CONN, own_port: false });
        pair
    }

    pub fn handle(&mut self, worker: usize, event: Event<'_>) -> Actions {
        let mut actions = Actions::default();
        self.workers[worker].handle(START, event, &mut actions);
        actions
    }

    #[track_caller]
    fn check(&mut self, worker: usize, input: &str, replies: &str) {
        let actions = self.handle(worker, Event::Received { conn: CONN, bytes: input.as_bytes() });
        assert_eq!(String::from_utf8_lossy(&actions.bytes), replies, "after {input:?}");
    }

    /// What `worker` reports when it is told to lend.
    fn lend(&mut self, worker: usize, cachelet: usize, to: u16, seen: u64) -> Outcome {
        let cachelet = Prefix::nth(cachelet, 2);
        let actions =
            self.handle(worker, Event::Lend { order: ORDER, cachelet, to: WorkerId(to), seen });
        match actions.list[..] {
            [Action::Report(Report { order: ORDER, worker: by, outcome })] => {
                assert_eq!(usize::from(by.0), worker);
                outcome
            }
            _ => panic!("{:?}", actions.list),
        }
    }

    fn hand_over(&mut self, worker: usize, conn: ConnId, to: u16) -> Actions {
        self.handle(worker, Event::HandOver { order: ORDER, conn, to: WorkerId(to) })
    }

    fn owners(&self) -> Vec<u16> {
        Prefix::equal(2).map(|cachelet| self.server.store.owner(cachelet).unwrap().0).collect()
    }
}

fn outcome(actions: &Actions) -> Outcome {
    let mut outcomes = actions.list.iter().filter_map(|action| match action {
        Action::Report(report) => Some(report.outcome),
        _ => None,
    });
    outcomes.next_back().expect("an order is reported")
}

fn carried(actions: Actions) -> Carried {
    let mut sessions = actions.list.into_iter().filter_map(|action| match action {
        Action::HandOver { conn: CONN, to: WorkerId(1), session } => Some(session),
        _ => None,
    });
    sessions.next_back().expect("the connection leaves")
}

/// A key of the cachelet with this prefix of two bits.
pub fn key(prefix: u64) -> String {
    let keys = (0..).map(|number| format!("key-{number}"));
    let mut of_prefix = keys.filter(|key| Key::new(key.as_bytes()).unwrap().hash() >> 62 == prefix);
    of_prefix.next().unwrap()
}

#[test]
fn only_the_owner_lends_and_only_what_it_still_has() {
    let mut pair = Pair::new();
    assert_eq!(pair.owners(), [0, 0, 1, 1]);
    assert_eq!(pair.lend(0, 1, 1, 0), Outcome::Done);
    assert_eq!((pair.owners(), pair.server.store.version()), (vec![0, 1, 1, 1], 1));
    assert_eq!(pair.lend(0, 1, 1, 1), Outcome::Stale, "it has gone");
    assert_eq!(pair.lend(0, 2, 1, 1), Outcome::Stale, "it was never worker 0's");
    for to in [2, 0] {
        assert_eq!(pair.lend(0, 0, to, 1), Outcome::Refused, "to {to}");
    }
    let [absent, to] = [Prefix::nth(0, 3), Prefix::nth(1, 1)];
    for cachelet in [absent, to, Prefix::ALL] {
        let lend = Event::Lend { order: ORDER, cachelet, to: WorkerId(1), seen: 1 };
        assert_eq!(outcome(&pair.handle(0, lend)), Outcome::Refused, "{cachelet}");
    }
    assert_eq!(pair.lend(1, 1, 0, 1), Outcome::Done);
    assert_eq!(pair.lend(0, 1, 1, 1), Outcome::Stale, "it was away meanwhile");
    assert_eq!((pair.owners(), pair.server.store.version()), (vec![0, 0, 1, 1], 2));
    assert_eq!(pair.lend(0, 0, 1, 0), Outcome::Done, "another cachelet's move is no matter");
}

#[test]
fn a_key_is_served_wherever_its_cachelet_goes() {
    let mut pair = Pair::new();
    let key = key(1);
    pair.handle(1, Event::Opened { conn: CONN, own_port: false });
    pair.check(0, &format!("set {key} 0 0 1\r\nv\r\n"), "STORED\r\n");
    pair.lend(0, 1, 1, 0);
    for worker in [0, 1] {
        pair.check(worker, &format!("get {key}\r\n"), &format!("VALUE {key} 0 1\r\nv\r\nEND\r\n"));
    }
    pair.check(1, &format!("append {key} 0 0 1\r\nw\r\n"), "STORED\r\n");
    pair.check(0, &format!("get {key}\r\n"), &format!("VALUE {key} 0 2\r\nvw\r\nEND\r\n"));
}

#[test]
fn a_client_that_sends_its_version_is_told_where_a_cachelet_has_gone() {
    let mut pair = Pair::new();
    let (key, stays) = (key(1), key(0));
    pair.check(0, &format!("ms {key} 2 L1.0\r\nab\r\n"), "HD\r\n");
    pair.lend(0, 1, 1, 0);
    for (request, reply) in [
        (format!("mg {key} v L1.0"), "VA 2 L1.1.1\r\nab\r\n".to_string()),
        (format!("mg {key} L1.0 k s"), format!("HD k{key} s2 L1.1.1\r\n")),
        (format!("mg {key} v"), "VA 2\r\nab\r\n".to_string()),
        (format!("mg {stays} v L1.0"), "EN\r\n".to_string()),
        (format!("md {key} L1.0 C7"), "EX L1.1.1\r\n".to_string()),
        (format!("md {key} L1.0 q"), String::new()),
        (format!("mg {key} L1.0"), "EN L1.1.1\r\n".to_string()),
        (format!("ma {key} L1.0 N0"), "HD L1.1.1\r\n".to_string()),
        (format!("ma {key} L1.0 v"), "VA 1 L1.1.1\r\n1\r\n".to_string()),
        (format!("ms {key} 1 ME L1.0\r\nx"), "NS L1.1.1\r\n".to_string()),
        (
            format!("ms {key} 1 L1.0\r\nxyz!!"),
            "CLIENT_ERROR bad data chunk\r\nERROR\r\n".to_string(),
        ),
    ] {
        pair.check(0, &format!("{request}\r\n"), &reply);
    }
}

#[test]
fn ownership_is_told_to_whom_it_is_news() {
    let mut pair = Pair::new();
    let payload = "cluster mbal\nversion 1.0\n\
                   server 0 client 127.0.0.1:11211 workers 127.0.0.1:7000,127.0.0.1:7001\n\
                   cachelet 0000/2 0/0\ncachelet 4000/2 0/0\ncachelet 8000/2 0/1\ncachelet c000/2 0/1\n";
    let whole = format!("CONFIG mbal 0 {}\r\n{payload}\r\nEND\r\n", payload.len());
    pair.check(0, "config get mbal\r\nconfig get mbal 1.0\r\n", &format!("{whole}END\r\n"));
    pair.check(0, "config get mbal 0.9\r\n", &whole);
    pair.lend(0, 1, 1, 0);
    let whole = whole.replace("version 1.0", "version 1.1").replace("4000/2 0/0", "4000/2 0/1");
    pair.check(0, "config get mbal 1.0\r\n", &whole);
    pair.check(0, "config get mbal x\r\n", "CLIENT_ERROR bad command line format\r\n");
    pair.check(0, "config get\r\nconfig set mbal 1.0\r\n", "ERROR\r\nERROR\r\n");
}

#[test]
fn a_connection_leaves_at_once_if_it_is_idle() {
    let mut pair = Pair::new();
    let actions = pair.hand_over(0, CONN, 1);
    assert_eq!(outcome(&actions), Outcome::Done);
    let conn = ConnId(3);
    pair.handle(1, Event::Adopted { conn, session: carried(actions) });
    let actions = pair.handle(1, Event::Received { conn, bytes: b"mn\r\n" });
    assert_eq!(actions.bytes, b"MN\r\n");
    // The name is free for the next one.
    pair.handle(0, Event::Opened { conn: CONN, own_port: true });
    assert_eq!(outcome(&pair.hand_over(0, CONN, 1)), Outcome::Refused, "it chose its worker");
}

#[test]
fn a_connection_in_the_middle_of_a_request_leaves_after_it() {
    let mut pair = Pair::new();
    pair.check(0, "set k 0 0 2\r\na", "");
    let actions = pair.hand_over(0, CONN, 1);
    assert_eq!((outcome(&actions), actions.list.len()), (Outcome::Due, 1));
    let actions = pair.handle(0, Event::Received { conn: CONN, bytes: b"b\r\nget" });
    assert_eq!((&actions.bytes[..], actions.list.len()), (&b"STORED\r\n"[..], 1));
    let actions = pair.handle(0, Event::Received { conn: CONN, bytes: b" k\r\n" });
    assert_eq!(actions.bytes, b"VALUE k 0 2\r\nab\r\nEND\r\n");
    assert!(matches!(actions.list[0], Action::Send { .. }), "its replies go first");
    carried(actions);
}

#[test]
fn a_connection_that_owes_replies_leaves_after_them() {
    let mut pair = Pair::new();
    let value = "v".repeat(1 << 17);
    pair.check(0, &format!("set k 0 0 131072\r\n{value}\r\n"), "STORED\r\n");
    let actions =
        pair.handle(0, Event::Received { conn: CONN, bytes: b"get k\r\nget k\r\nget k\r\n" });
    assert!(actions.list.contains(&Action::Stall { conn: CONN }));
    assert_eq!(outcome(&pair.hand_over(0, CONN, 1)), Outcome::Due);
    let actions = pair.handle(0, Event::Drained { conn: CONN });
    assert!(actions.bytes.ends_with(b"END\r\n"));
    carried(actions);
}

#[test]
fn a_connection_that_closes_first_goes_nowhere() {
    let mut pair = Pair::new();
    pair.check(0, "get", "");
    assert_eq!(outcome(&pair.hand_over(0, CONN, 1)), Outcome::Due);
    let actions = pair.handle(0, Event::Received { conn: CONN, bytes: b" k\r\nquit\r\n" });
    assert_eq!(actions.list.last(), Some(&Action::Close { conn: CONN }));
    assert_eq!(pair.handle(0, Event::Closed { conn: CONN }).list, []);
    for (conn, to) in [(CONN, 1), (ConnId(9), 1)] {
        assert_eq!(outcome(&pair.hand_over(0, conn, to)), Outcome::Stale);
    }
    assert_eq!(outcome(&pair.hand_over(0, CONN, 2)), Outcome::Refused);
}

/// Connections 0 to 4 of worker 0 with so many requests each, in the epoch that then ends.
fn busy(requests: [usize; 5]) -> Pair {
    let mut pair = Pair::new();
    pair.server.end_epoch(0);
    for (conn, count) in requests.into_iter().enumerate() {
        let conn = ConnId(conn as u32);
        pair.handle(0, Event::Opened { conn, own_port: conn == ConnId(4) });
        for _ in 0..count {
            pair.handle(0, Event::Received { conn, bytes: b"mg k\r\n" });
        }
    }
    pair.server.end_epoch(1);
    pair
}

/// Which connections leave.
fn leaving(pair: &mut Pair, share: f64, share_max: f64) -> Vec<u32> {
    let to = WorkerId(1);
    let actions = pair.handle(0, Event::Lighten { order: ORDER, to, share, share_max });
    let left: Vec<u32> = actions
        .list
        .iter()
        .filter_map(|action| match action {
            Action::HandOver { conn, to: WorkerId(1), .. } => Some(conn.0),
            _ => None,
        })
        .collect();
    assert_eq!(outcome(&actions), Outcome::Leaving(left.len() as u32));
    left
}

#[test]
fn connections_are_picked_by_what_they_cost() {
    assert_eq!(
        leaving(&mut busy([10, 40, 30, 20, 99]), 0.5, 1.0),
        [1, 0],
        "not the one that chose"
    );
    assert_eq!(
        leaving(&mut busy([10, 40, 30, 20, 0]), 0.3, 1.0),
        [1],
        "a little too much is close"
    );
    assert_eq!(leaving(&mut busy([0, 0, 90, 0, 0]), 0.3, 1.0), [0; 0], "it is all there is");
    assert_eq!(
        leaving(&mut busy([50, 50, 0, 0, 0]), 0.2, 0.9),
        [1],
        "too much, and better than that"
    );
    assert_eq!(leaving(&mut busy([50, 50, 0, 0, 0]), 0.2, 0.4), [0; 0]);
}

#[test]
fn a_connection_that_was_handed_over_rests_unless_it_changes() {
    let mut pair = busy([10, 10, 10, 10, 0]);
    let to = WorkerId(1);
    let actions = pair.handle(0, Event::Lighten { order: ORDER, to, share: 0.25, share_max: 1.0 });
    let conn = ConnId(7);
    let session = actions.list.into_iter().find_map(|action| match action {
        Action::HandOver { session, .. } => Some(session),
        _ => None,
    });
    pair.handle(1, Event::Adopted { conn, session: session.expect("one leaves") });
    let mut epoch = |requests: usize| {
        for _ in 0..requests {
            pair.handle(1, Event::Received { conn, bytes: b"mg k\r\n" });
        }
        pair.server.end_epoch(1);
        let back = Event::Lighten { order: ORDER, to: WorkerId(0), share: 1.0, share_max: 2.0 };
        outcome(&pair.handle(1, back))
    };
    for _ in 0..9 {
        assert_eq!(epoch(10), Outcome::Leaving(0));
    }
    assert_eq!(epoch(10), Outcome::Leaving(1), "ten epochs are over");
}
