//! Hot keys of one server, copied to two others. The test is the network: what is sent arrives at once, unless it is kept back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use mbal_cachelet::{Options, Store};
use mbal_migration::Incarnation;
use mbal_model::{
    Address, Addresses, Cluster, ClusterMap, Instant, Key, Owner, Prefix, ReplicaVersion, ServerId,
    WorkerId,
};
use mbal_replica::HomeState;
use mbal_wire::PeerRequest;
use mbal_worker::{
    Action, Actions, ConnId, Event, HotMode, HotTerms, Now, Quota, Settings, Shared, Ticket,
    Ticketed, Worker,
};

use crate::rig::START;

const SERVERS: u16 = 3;
const CREDITS: u32 = 64;
/// A client of each server.
const CONN: ConnId = ConnId(0);
const BINARY: ConnId = ConnId(1);

struct Net {
    now: Now,
    shared: Vec<Arc<Shared>>,
    workers: Vec<Worker>,
    /// By server, what its client has got.
    replies: Vec<String>,
    /// From one to another: what is sent does not arrive, and is not answered.
    silent: BTreeSet<(u16, u16)>,
    /// When who has asked is told that no answer comes.
    lost: Vec<(Instant, u16, u16, Ticket)>,
}

fn id_of(server: u16) -> ServerId {
    ServerId(server + 1)
}

/// All servers, on one machine; the first `owning` have all cachelets.
fn cluster(owning: u16, version: u64) -> Arc<Cluster> {
    cluster_at(owning, version, |server| Address::at([127, 0, 0, 1].into(), 11_211 + server))
}

fn cluster_at(owning: u16, version: u64, address: impl Fn(u16) -> Address) -> Arc<Cluster> {
    let owners = Prefix::equal(2)
        .zip(0..)
        .map(|(prefix, nth)| (prefix, Owner { server: id_of(nth % owning), worker: WorkerId(0) }));
    let map = ClusterMap::new(version, owners.collect()).expect("they cover all");
    let addresses = |server: u16| Addresses {
        link: Some(address(server)),
        client: address(server),
        workers: Vec::new(),
        resolved: None,
    };
    let servers = (0..SERVERS).map(|server| (id_of(server), addresses(server))).collect();
    Arc::new(Cluster { servers, ..Cluster::without_addresses(map) })
}

impl Net {
    fn new(mode: HotMode) -> Net {
        Net::with_owners(mode, SERVERS)
    }

    /// The first `owning` servers have all cachelets.
    fn with_owners(mode: HotMode, owning: u16) -> Net {
        let cluster = cluster(owning, 1);
        let sampled = Settings { hot_sample: 1.0, stack_distances: true, ..Settings::default() };
        let settings = Settings { workers: 1, ..sampled };
        let options = || Options {
            memory_bytes: 16 << 20,
            workers: 1,
            cachelets: 4,
            item_bytes_max: 1 << 20,
            evict: true,
            generation: 1,
        };
        let shared: Vec<Arc<Shared>> = (0..SERVERS)
            .map(|_| Arc::new(Shared::new(settings.clone(), Store::new(options()))))
            .collect();
        let workers =
            shared.iter().map(|shared| Worker::new(WorkerId(0), Arc::clone(shared))).collect();
        let mut net = Net {
            now: START,
            shared,
            workers,
            replies: vec![String::new(); usize::from(SERVERS)],
            silent: BTreeSet::new(),
            lost: Vec::new(),
        };
        for server in 0..SERVERS {
            let at = usize::from(server);
            net.shared[at].set_hot_terms(HotTerms {
                mode,
                threshold: 100.0,
                ..HotTerms::default()
            });
            net.event(server, Event::Mapped { here: id_of(server), cluster: Arc::clone(&cluster) });
            net.event(server, Event::Opened { conn: CONN, own_port: false });
            for other in (0..SERVERS).filter(|other| *other != server) {
                net.event(server, Event::LinkUp { server: id_of(other), credits: CREDITS });
            }
            net.event(server, Event::Tick);
        }
        net
    }

    /// All servers follow a map.
    fn map(&mut self, cluster: Arc<Cluster>) {
        for server in 0..SERVERS {
            let cluster = Arc::clone(&cluster);
            self.event(server, Event::Mapped { here: id_of(server), cluster });
        }
    }

    fn lease_now(&self) -> Instant {
        self.now.instant()
    }

    fn event(&mut self, server: u16, event: Event<'_>) {
        let lease_now = self.lease_now();
        let worker = &mut self.workers[usize::from(server)];
        // As servers do: before there are copies, nobody reads that clock.
        if self.shared[usize::from(server)].counts_leases(&event) {
            worker.look_at_lease(lease_now);
        }
        let mut actions = Actions::default();
        worker.handle(self.now, event, &mut actions);
        self.carry_out(server, &actions);
    }

    fn carry_out(&mut self, server: u16, actions: &Actions) {
        for action in &actions.list {
            match action {
                Action::Send { bytes, .. } => {
                    let text = String::from_utf8_lossy(&actions.bytes[bytes.clone()]);
                    self.replies[usize::from(server)].push_str(&text);
                }
                Action::Forward { server: to, ticket, request, .. } => {
                    let to = to.0 - 1;
                    if self.silent.contains(&(server, to)) {
                        self.is_lost(server, to, *ticket);
                    } else {
                        let request = actions.requests[request.clone()].to_vec();
                        self.ask(server, to, *ticket, &request);
                    }
                }
                Action::Answer { server: to, ticket, reply } => {
                    let to = to.0 - 1;
                    if self.silent.contains(&(server, to)) {
                        self.is_lost(to, server, *ticket);
                    } else {
                        let reply = [Ticketed::new(*ticket, &actions.bytes[reply.clone()])];
                        self.event(to, Event::Answered { server: id_of(server), replies: &reply });
                    }
                }
                Action::Pause { .. } | Action::Resume { .. } => {}
                other => panic!("not expected: {other:?}"),
            }
        }
    }

    fn is_lost(&mut self, asking: u16, asked: u16, ticket: Ticket) {
        self.lost.push((self.now.instant() + Duration::from_secs(1), asking, asked, ticket));
    }

    fn ask(&mut self, from: u16, to: u16, ticket: Ticket, bytes: &[u8]) {
        self.event(
            to,
            Event::Forwarded { server: id_of(from), requests: &[Ticketed::new(ticket, bytes)] },
        );
    }

    /// Time passes, and everybody is woken as they wish.
    fn pass(&mut self, millis: u64) {
        let end = self.now.instant() + Duration::from_millis(millis);
        while self.now.instant() < end {
            let micros = u64::from(self.now.micros) + 1_000;
            self.now.second += (micros / 1_000_000) as u32;
            self.now.unix += micros / 1_000_000;
            self.now.micros = (micros % 1_000_000) as u32;
            let is_late = |lost: &(Instant, u16, u16, Ticket)| lost.0 <= self.now.instant();
            let (late, lost) = std::mem::take(&mut self.lost).into_iter().partition(is_late);
            self.lost = lost;
            let late: Vec<_> = late;
            for (_, asking, asked, ticket) in late {
                self.event(asking, Event::Unanswered { server: id_of(asked), ticket });
            }
            for server in 0..SERVERS {
                let wake = self.workers[usize::from(server)].next_wake();
                if wake.is_some_and(|wake| wake <= self.now.instant()) {
                    self.event(server, Event::Woken);
                }
            }
        }
    }

    /// What a client of a server gets for this at once.
    fn send(&mut self, server: u16, request: &str) -> String {
        self.replies[usize::from(server)].clear();
        self.event(server, Event::Received { conn: CONN, bytes: request.as_bytes() });
        std::mem::take(&mut self.replies[usize::from(server)])
    }

    /// What it gets in the end, if this is what it got at once.
    fn waited(&mut self, server: u16, told: String) -> String {
        if !told.is_empty() {
            return told;
        }
        self.pass(5);
        std::mem::take(&mut self.replies[usize::from(server)])
    }

    /// A server has been busy since its last look.
    fn is_busy(&mut self, server: u16) {
        self.event(server, Event::Rests { busy_ns: 200_000_000, before_ns: 0 });
    }

    /// Reads the key at its home often enough to have it copied, for so long.
    fn read_often(&mut self, key: &str, home: u16, millis: u64) {
        self.send_often(&format!("mg {key} v\r\n"), home, millis);
    }

    fn send_often(&mut self, request: &str, home: u16, millis: u64) {
        for _ in 0..millis / 20 {
            for _ in 0..20 {
                self.send(home, request);
            }
            self.is_busy(home);
            self.pass(20);
        }
    }

    fn state(&self, server: u16, key: &str) -> Option<HomeState> {
        let homes = self.shared[usize::from(server)].hot_homes(100);
        homes.iter().find(|home| home.key == key.as_bytes()).and_then(|home| home.state)
    }
}

/// A key of this server.
fn key_of(server: u16) -> String {
    keys_of(server).next().expect("there is one")
}

fn keys_of(server: u16) -> impl Iterator<Item = String> {
    let is_of = move |key: &String| {
        let hash = Key::new(key.as_bytes()).expect("a key").hash();
        (hash >> 62) as u16 % SERVERS == server
    };
    (0..).map(|nth| format!("key{nth}")).filter(is_of)
}

/// What copies have of a key that was not written since it is hot: map 1, the first grant, the first version.
const FIRST_VERSION: &str = "4294967296.1";

fn hot(mode: HotMode) -> (Net, String) {
    hot_in(Net::new(mode))
}

fn hot_in(mut net: Net) -> (Net, String) {
    let key = key_of(0);
    assert_eq!(net.send(0, &format!("ms {key} 1 F7\r\na\r\n")), "HD\r\n");
    net.read_often(&key, 0, 1_000);
    assert_eq!(net.state(0, &key), Some(HomeState::Hot));
    (net, key)
}

fn copies(net: &Net) -> BTreeMap<u16, u64> {
    let keys = |server: u16| net.shared[usize::from(server)].copies_here().keys;
    (0..SERVERS).map(|server| (server, keys(server))).filter(|(_, keys)| *keys > 0).collect()
}

#[test]
fn a_key_that_is_read_often_at_a_busy_server_gets_copies_and_loses_them_when_it_is_not() {
    let (mut net, key) = hot(HotMode::Async);
    assert_eq!(copies(&net), BTreeMap::from([(1, 1), (2, 1)]));
    let told = net.send(0, "stats hot 1\r\n");
    assert!(told.ends_with("\r\nSTAT 1:state hot\r\nSTAT 1:copies 2\r\nEND\r\n"), "{told}");
    net.silent = BTreeSet::from([(1, 0)]);
    net.send(0, &format!("ms {key} 1\r\nc\r\n"));
    let told = net.send(0, "stats hot 1\r\n");
    assert!(told.contains("STAT 1:state pending\r\nSTAT 1:copies 2\r\n"), "{told}");
    net.silent.clear();
    net.pass(4_000);
    assert_eq!((net.state(0, &key), copies(&net)), (None, BTreeMap::new()));
    net.send(0, &format!("mg {key}\r\n"));
    let told = net.send(0, "stats hot 1\r\n");
    assert!(told.contains("STAT 1:state cold\r\nSTAT 1:copies 0\r\n"), "{told}");
}

fn knows_no_threshold(net: &Net, mode: HotMode) {
    for shared in &net.shared {
        shared.set_hot_terms(HotTerms { mode, ..HotTerms::default() });
    }
}

#[test]
fn a_key_that_takes_a_quarter_of_a_worker_is_copied_before_a_coordinator_has_said_anything() {
    let mut net = Net::new(HotMode::Atomic);
    knows_no_threshold(&net, HotMode::Atomic);
    let [key, other] = [0, 1].map(|nth| keys_of(0).nth(nth).expect("there are many"));
    for key in [&key, &other] {
        net.send(0, &format!("ms {key} 1\r\na\r\n"));
    }
    let reads = |key: &str| format!("mg {key} v\r\n");
    let mixed = reads(&key).repeat(9) + &reads(&other);
    for _ in 0..50 {
        net.send(0, &mixed);
        net.event(0, Event::Rests { busy_ns: 18_000_000, before_ns: 0 });
        net.pass(20);
    }
    assert_eq!((net.state(0, &key), net.state(0, &other)), (Some(HomeState::Hot), None));
}

#[test]
fn a_server_that_forwards_a_key_often_gets_a_copy_as_long_as_it_does() {
    for mode in [HotMode::Async, HotMode::Atomic] {
        let mut net = Net::new(mode);
        knows_no_threshold(&net, mode);
        let (key, forwarder) = (key_of(0), 1);
        net.send(0, &format!("ms {key} 1\r\na\r\n"));
        let forwards = |net: &mut Net, busy_ns, millis| {
            for _ in 0..millis / 20 {
                (0..20).for_each(|_| drop(net.send(forwarder, &format!("mg {key} v\r\n"))));
                net.event(forwarder, Event::Rests { busy_ns, before_ns: 0 });
                net.pass(20);
            }
        };
        forwards(&mut net, 18_000_000, 1_000);
        assert_eq!(copies(&net), BTreeMap::from([(forwarder, 1)]), "{mode:?}");
        let before = net.shared[1].copies_here().reads;
        // Answering from the copy it is busy no more; without it, it would be.
        forwards(&mut net, 8_000_000, 3_000);
        assert!(net.shared[1].copies_here().reads > before + 1_000, "{mode:?}");
        assert_eq!(copies(&net), BTreeMap::from([(forwarder, 1)]), "{mode:?}");
        net.pass(4_000);
        assert_eq!(copies(&net), BTreeMap::new(), "{mode:?}");
    }
}

#[test]
fn hot_keys_are_named_though_none_is_copied() {
    let mut net = Net::new(HotMode::Off);
    let key = key_of(0);
    net.send(0, &format!("ms {key} 1\r\na\r\n"));
    net.read_often(&key, 0, 2_000);
    let homes = net.shared[0].hot_homes(9);
    assert_eq!((&*homes[0].key, homes[0].state), (key.as_bytes(), None));
    assert!((900.0..1_100.0).contains(&homes[0].reads), "{} reads", homes[0].reads);
    assert_eq!(copies(&net), BTreeMap::new());
}

#[test]
fn how_long_a_key_has_been_hot_is_counted_from_its_copies_on() {
    let mut net = Net::new(HotMode::Async);
    net.pass(9_000);
    let begun = net.lease_now();
    let (net, key) = hot_in(net);
    let homes = net.shared[0].hot_homes(100);
    let home = homes.iter().find(|home| home.key == key.as_bytes()).expect("it is hot");
    assert!(home.since > begun && home.since < net.lease_now(), "{:?}", home.since);
}

#[test]
fn a_server_that_is_not_busy_copies_nothing() {
    let mut net = Net::new(HotMode::Async);
    let key = key_of(0);
    net.send(0, &format!("ms {key} 1\r\na\r\n"));
    for _ in 0..100 {
        (0..20).for_each(|_| drop(net.send(0, &format!("mg {key} v\r\n"))));
        net.pass(20);
    }
    assert_eq!((net.state(0, &key), copies(&net)), (None, BTreeMap::new()));
}

/// The key's home is busy for so long, in which its thread runs for a part of the time.
fn runs(net: &mut Net, key: &str, part: f64, millis: u64) {
    for _ in 0..millis / 200 {
        net.read_often(key, 0, 200);
        let ran_ns = (part * 2e8) as u64;
        net.event(0, Event::Unseen { busy_ns: 0, delay_ns: 0, ran_ns });
    }
}

#[test]
fn copies_on_one_machine_go_unless_their_home_fills_its_core_or_a_quota() {
    let ends = |mode, part: f64, quota: Option<Quota>, elsewhere: bool| {
        let (mut net, key) = hot(mode);
        if elsewhere {
            let elsewhere = |server| Address::at([10, 0, 0, server as u8].into(), 11_211);
            net.map(cluster_at(SERVERS, 2, elsewhere));
        }
        net.shared[0].worker_has_quota(0, quota);
        runs(&mut net, &key, part, 1_600);
        assert_eq!(net.state(0, &key), Some(HomeState::Hot), "it takes two seconds");
        runs(&mut net, &key, part, 2_000);
        net.state(0, &key).is_none()
    };
    let (none, tenth, two) = (None, Quota::of(1_000, 10_000), Quota::of(200_000, 100_000));
    assert!(ends(HotMode::Atomic, 0.5, none, false));
    assert!(ends(HotMode::Atomic, 0.5, two, false), "more than its core");
    assert!(!ends(HotMode::Atomic, 1.0, none, false));
    assert!(!ends(HotMode::Atomic, 0.1, tenth, false));
    assert!(!ends(HotMode::Atomic, 0.5, none, true));
    assert!(!ends(HotMode::Async, 0.5, none, false), "somebody has asked for copies");
}

#[test]
fn who_forwards_a_key_has_a_copy_on_one_machine_too() {
    let (mut net, key) = hot(HotMode::Atomic);
    for _ in 0..20 {
        net.send_often(&format!("mg {key} v\r\n"), 1, 200);
        runs(&mut net, &key, 0.5, 200);
    }
    assert_eq!(net.state(0, &key), Some(HomeState::Hot));
}

#[test]
fn a_key_is_not_copied_for_reads_that_its_home_alone_answers() {
    let mut net = Net::new(HotMode::Async);
    let key = key_of(0);
    net.send(0, &format!("ms {key} 1 T300\r\na\r\n"));
    for flags in ["v N30 R30", "v T300", "v h t"] {
        net.send_often(&format!("mg {key} {flags}\r\n"), 0, 2_000);
        assert_eq!((net.state(0, &key), copies(&net)), (None, BTreeMap::new()), "{flags}");
    }
    net.send_often(&format!("mg {key} v k\r\n"), 0, 2_000);
    assert_eq!(net.state(0, &key), Some(HomeState::Hot));
}

#[test]
fn ordinary_clients_of_a_server_with_a_copy_read_it_if_writes_are_atomic() {
    let (mut net, key) = hot(HotMode::Atomic);
    net.silent = BTreeSet::from([(1, 0), (2, 0)]);
    assert_eq!(
        net.send(1, &format!("mg {key} v f s c k Oq\r\n"))
            .split_once(" c")
            .map(|(a, _)| a.to_owned()),
        Some("VA 1 f7 s1".to_owned())
    );
    assert_eq!(net.send(1, &format!("get {key}\r\n")), format!("VALUE {key} 7 1\r\na\r\nEND\r\n"));
    let other = key_of(1);
    assert_eq!(
        net.send(1, &format!("get {other} {key}\r\n")),
        format!("VALUE {key} 7 1\r\na\r\nEND\r\n")
    );
    assert_eq!(net.shared[1].copies_here().reads, 3);
}

#[test]
fn a_write_is_told_to_copies_and_waits_for_them_if_it_is_atomic() {
    for mode in [HotMode::Async, HotMode::Atomic] {
        let (mut net, key) = hot(mode);
        // Shadows get what is said, and their answers are lost.
        net.silent = BTreeSet::from([(1, 0)]);
        let told = net.send(0, &format!("ms {key} 1\r\nb\r\n"));
        assert_eq!(told, if mode == HotMode::Async { "HD\r\n" } else { "" }, "{mode:?}");
        assert_eq!(net.state(0, &key), Some(HomeState::HotPending));
        if mode == HotMode::Atomic {
            // The copy has let go, so it is asked at home, which has not been written yet.
            net.silent = BTreeSet::from([(1, 0), (2, 1)]);
            assert_eq!(
                net.send(2, &format!("get {key}\r\n")),
                format!("VALUE {key} 7 1\r\na\r\nEND\r\n")
            );
            net.pass(900);
            assert_eq!(std::mem::take(&mut net.replies[0]), "HD\r\n", "when the lease is over");
        }
        net.silent.clear();
        net.read_often(&key, 0, 1_200);
        assert_eq!(net.state(0, &key), Some(HomeState::Hot));
        let read = format!("VALUE {key} 0 1\r\nb\r\nEND\r\n");
        for server in 0..SERVERS {
            assert_eq!(net.send(server, &format!("get {key}\r\n")), read, "{mode:?} at {server}");
        }
    }
}

#[test]
fn a_smart_client_is_told_of_copies_and_reads_them_by_its_lease() {
    let (mut net, key) = hot(HotMode::Async);
    assert_eq!(
        net.send(0, &format!("mg {key} v L1.2\r\n")),
        "VA 1 L~1000.1,2@4294967296.1\r\na\r\n"
    );
    net.silent = BTreeSet::from([(1, 0), (2, 0)]);
    let replica_version = FIRST_VERSION;
    let told = format!("VA 1 L@{replica_version}\r\na\r\n");
    assert_eq!(net.send(1, &format!("mg {key} v L1.2*\r\n")), told);
    assert_eq!(net.send(2, &format!("mg {key} v L1.2*{replica_version}\r\n")), told);
    net.pass(2_000);
    net.silent.clear();
    // Its lease was over: it has gone home.
    net.send(0, &format!("ms {key} 1\r\nc\r\n"));
    assert_eq!(net.send(1, &format!("mg {key} v L1.2*\r\n")), "VA 1 L1.2.1/0\r\nc\r\n");
}

#[test]
fn a_server_holds_leases_for_each_connection_and_its_own_writes_end_them() {
    let (mut net, key) = hot(HotMode::Async);
    let get = format!("get {key}\r\n");
    let value = |value: &str| format!("VALUE {key} 7 1\r\n{value}\r\nEND\r\n");
    // It hears of copies. Which it chose shows by who is asked.
    let mut from_copies = 0;
    for _ in 0..40 {
        assert_eq!(net.send(1, &get), value("a"));
        let reads =
            |net: &Net| net.shared[1].copies_here().reads + net.shared[2].copies_here().reads;
        let before = reads(&net);
        assert_eq!(net.send(1, &get), value("a"));
        from_copies += reads(&net) - before;
        net.pass(1_100);
        net.read_often(&key, 0, 100);
    }
    assert_eq!(from_copies, 40, "its own server has a copy");
    assert_eq!(net.send(1, &format!("set {key} 7 0 1\r\nz\r\n")), "STORED\r\n");
    assert_eq!(net.send(1, &get), value("z"), "a writer sees its write");
}

#[test]
fn copies_are_read_on_while_a_write_is_told_to_them() {
    let (mut net, key) = hot(HotMode::Async);
    let home = |net: &mut Net| net.send(0, &format!("mg {key} v L1.2\r\n"));
    let by_lease = |net: &mut Net, seen| net.send(1, &format!("mg {key} v L1.2*{seen}\r\n"));
    // One of two copies does not hear of the write.
    net.silent = BTreeSet::from([(0, 1)]);
    net.send(0, &format!("ms {key} 1\r\nb\r\n"));
    net.silent.clear();
    assert_eq!(net.state(0, &key), Some(HomeState::HotPending));
    let second = "4294967296.2";
    assert_eq!(home(&mut net), format!("VA 1 L~1000.1,2@{second}\r\nb\r\n"));
    // Who has seen no more than it has is answered, and others are passed on, with no less of a lease.
    assert_eq!(by_lease(&mut net, FIRST_VERSION), format!("VA 1 L@{FIRST_VERSION}\r\na\r\n"));
    assert_eq!(by_lease(&mut net, second), format!("VA 1 L~1000.1,2@{second}\r\nb\r\n"));
    // Binary requests cannot say what was seen.
    let vbucket = (Key::new(key.as_bytes()).expect("a key").hash() >> 56) as u8 & 0xc0;
    let bytes = key.len() as u8;
    let mut get = vec![0x80, 0, 0, bytes, 0, 0, vbucket, 1, 0, 0, 0, bytes];
    get.extend_from_slice(&[0; 12]);
    get.extend_from_slice(key.as_bytes());
    let gamma = |net: &mut Net| {
        net.event(0, Event::Opened { conn: BINARY, own_port: false });
        net.replies[0].clear();
        net.event(0, Event::Received { conn: BINARY, bytes: &get });
        net.event(0, Event::Closed { conn: BINARY });
        net.replies[0].chars().nth(5).map(u32::from)
    };
    assert_eq!(gamma(&mut net), Some(0));
    net.pass(1_100);
    net.read_often(&key, 0, 100);
    assert_eq!(net.state(0, &key), Some(HomeState::Hot));
    assert_eq!(gamma(&mut net), Some(2));
}

#[test]
fn deleted_expired_and_flushed_keys_are_read_nowhere() {
    for mode in [HotMode::Async, HotMode::Atomic] {
        for end in ["delete", "flush_all", "touch"] {
            let (mut net, key) = hot(mode);
            let told = match end {
                "delete" => net.send(2, &format!("delete {key}\r\n")),
                "touch" => net.send(2, &format!("touch {key} -1\r\n")),
                _ => net.send(2, "flush_all\r\n"),
            };
            let told = net.waited(2, told);
            assert!(
                ["DELETED\r\n", "TOUCHED\r\n", "OK\r\n"].contains(&told.as_str()),
                "{end}: {told}"
            );
            net.pass(5);
            for server in 0..SERVERS {
                let told = net.send(server, &format!("get {key}\r\n"));
                assert_eq!(net.waited(server, told), "END\r\n", "{mode:?}, {end}");
            }
        }
    }
}

#[test]
fn what_a_connection_has_read_with_other_keys_or_removed_is_not_read_again_from_an_older_copy() {
    let (other, big) = (key_of(1), 1 << 21);
    for news in ["get", "set"] {
        let (mut net, key) = hot(HotMode::Async);
        let get = format!("get {key}\r\n");
        net.send(1, &get);
        net.send(1, &get);
        assert_eq!(net.shared[1].copies_here().reads, 1);
        // That copy does not hear of the write.
        net.silent = BTreeSet::from([(0, 1)]);
        assert_eq!(net.send(0, &format!("ms {key} 1\r\nb\r\n")), "HD\r\n");
        net.silent.clear();
        let newest = format!("VALUE {key} 0 1\r\nb\r\nEND\r\n");
        let (told, then) = match news {
            "set" => {
                let set = format!("set {key} 0 0 {big}\r\n{}\r\n", "v".repeat(big));
                (net.send(1, &set), "END\r\n".to_owned())
            }
            _ => (net.send(1, &format!("get {other} {key}\r\n")), newest.clone()),
        };
        match news {
            "set" => assert_eq!(told, "SERVER_ERROR object too large for cache\r\n"),
            _ => assert_eq!(told, newest),
        }
        assert_eq!(net.send(1, &get), then, "{news}");
    }
}

#[test]
fn a_server_that_has_all_cachelets_tells_those_with_copies_of_a_flush() {
    for mode in [HotMode::Async, HotMode::Atomic] {
        let (mut net, key) = hot_in(Net::with_owners(mode, 1));
        assert_eq!(copies(&net), BTreeMap::from([(1, 1), (2, 1)]));
        assert_eq!(net.send(0, "flush_all\r\n"), "OK\r\n");
        for server in 0..SERVERS {
            let told = net.send(server, &format!("get {key}\r\n"));
            assert_eq!(net.waited(server, told), "END\r\n", "{mode:?}");
        }
    }
}

#[test]
fn a_read_by_a_lease_does_not_overtake_one_that_has_gone_home() {
    for mode in [HotMode::Async, HotMode::Atomic] {
        let mut net = Net::new(mode);
        let key = key_of(0);
        net.send(0, &format!("ms {key} 1\r\na\r\n"));
        let read = format!("mg {key} v L1.2*\r\n");
        // There is no copy yet, and the home's answer takes a second.
        net.silent = BTreeSet::from([(1, 0)]);
        assert_eq!(net.send(1, &read), "");
        net.silent.clear();
        net.read_often(&key, 0, 800);
        assert!(copies(&net).contains_key(&1), "{mode:?}");
        net.send(1, &read);
        assert_eq!(net.shared[1].copies_here().reads, 0, "{mode:?}");
    }
}

#[test]
fn a_read_by_a_lease_behind_one_that_its_home_has_answered_is_no_older() {
    let (mut net, key) = hot(HotMode::Async);
    let by_lease = format!("mg {key} v L1.2*\r\n");
    let told = format!("VA 1 L@{FIRST_VERSION}\r\na\r\n");
    assert_eq!(net.send(1, &by_lease), told);
    // The copy is not told of the write at once.
    net.silent = BTreeSet::from([(0, 1)]);
    assert_eq!(net.send(0, &format!("ms {key} 1\r\nb\r\n")), "HD\r\n");
    net.silent.clear();
    // A client that sends both without waiting has not heard yet that its lease is taken.
    let told = net.send(1, &format!("get {key}\r\n{by_lease}"));
    let (first, second) = told.split_once("END\r\n").expect("a get ends");
    assert_eq!(first, format!("VALUE {key} 0 1\r\nb\r\n"));
    assert!(second.ends_with("\r\nb\r\n"), "{second}");
    assert_eq!(net.send(1, &by_lease), second);
    // A lease later nothing is as old as what it was told.
    net.pass(1_100);
    net.read_often(&key, 0, 500);
    assert!(net.send(1, &by_lease).starts_with("VA 1 L@"), "from the copy");
}

#[test]
fn a_copy_passes_on_who_has_seen_a_newer_one() {
    let (mut net, key) = hot(HotMode::Async);
    let read = |replica_version: &str| format!("mg {key} v L1.2*{replica_version}\r\n");
    // The write reaches one of two copies.
    net.silent = BTreeSet::from([(0, 2)]);
    net.send(0, &format!("ms {key} 1\r\nb\r\n"));
    net.silent.clear();
    let newer = net.send(1, &read(""));
    let (replica_version, value) = newer["VA 1 L@".len()..].split_once("\r\n").expect("a line");
    assert_eq!(value, "b\r\n");
    assert_eq!(net.send(2, &read("")), format!("VA 1 L@{FIRST_VERSION}\r\na\r\n"));
    let passed_on = format!("VA 1 L~1000.1,2@{replica_version}\r\nb\r\n");
    assert_eq!(net.send(2, &read(replica_version)), passed_on);
}

#[test]
fn a_server_remembers_what_a_connection_has_seen_of_copies_elsewhere_and_here() {
    let (mut net, key) = hot(HotMode::Async);
    let get = format!("get {key}\r\n");
    let reads = |net: &Net| net.shared[1].copies_here().reads + net.shared[2].copies_here().reads;
    let (mut seen, mut from_copies) = (0, 0);
    // The client's own server has one of the copies. Each write reaches one of them.
    for number in 1..=60 {
        net.send(1, &get);
        net.silent = BTreeSet::from([(0, 1 + number % 2)]);
        net.send(0, &format!("ms {key} 2\r\n{number:02}\r\n"));
        net.silent.clear();
        let before = reads(&net);
        for _ in 0..6 {
            let told = net.send(1, &get);
            let value = told.lines().nth(1).and_then(|value| value.parse().ok()).unwrap_or(0);
            assert!(seen <= value, "{value} after {seen}");
            seen = value;
        }
        from_copies += reads(&net) - before;
        net.pass(1_100);
        net.read_often(&key, 0, 200);
    }
    assert!(from_copies > 60, "{from_copies}");
}

#[test]
fn what_was_asked_for_under_an_older_map_gives_no_lease() {
    let (mut net, key) = hot(HotMode::Async);
    let get = format!("get {key}\r\n");
    // What the home has told is on its way when the map changes.
    net.silent = BTreeSet::from([(0, 1)]);
    assert_eq!(net.send(1, &get), "");
    net.silent.clear();
    let (_, asking, asked, ticket) = net.lost.remove(0);
    assert_eq!((asking, asked), (1, 0));
    net.pass(1);
    net.event(1, Event::Mapped { here: id_of(1), cluster: cluster(SERVERS, 2) });
    let value = format!("VALUE {key} 7 1\r\na\r\nEND\r\n");
    // It names copies so often that hardly any read would choose the home.
    let token = format!("~1000.1,2{}@{FIRST_VERSION}", ",1,2".repeat(9));
    let told = [&[0x83, token.len() as u8], token.as_bytes(), value.as_bytes()].concat();
    let replies = [Ticketed::new(ticket, &told)];
    net.event(1, Event::Answered { server: id_of(0), replies: &replies });
    assert_eq!(std::mem::take(&mut net.replies[1]), value);
    let reads = |net: &Net| net.shared[1].copies_here().reads + net.shared[2].copies_here().reads;
    let before = reads(&net);
    net.silent = BTreeSet::from([(0, 1)]);
    for _ in 0..20 {
        net.send(1, &get);
    }
    assert_eq!(reads(&net), before, "they went home");
}

#[test]
fn a_flush_of_a_server_with_a_copy_ends_it_though_its_home_has_seen_one_more() {
    for mode in [HotMode::Async, HotMode::Atomic] {
        let mut net = Net::new(mode);
        let key = key_of(0);
        net.silent = BTreeSet::from([(0, 1), (0, 2)]);
        assert_eq!(net.send(0, "flush_all\r\n"), "");
        net.silent.clear();
        net.pass(1_100);
        let failed = "SERVER_ERROR flush_all did not reach 2 of 3 servers\r\n";
        assert_eq!(std::mem::take(&mut net.replies[0]), failed);
        net.send(0, &format!("ms {key} 1\r\na\r\n"));
        net.read_often(&key, 0, 1_000);
        assert!(copies(&net).contains_key(&1), "{mode:?}");
        assert_eq!(net.send(1, "flush_all\r\n"), "OK\r\n");
        let told = net.send(1, &format!("mg {key} v L1.2*\r\n"));
        assert_eq!(net.waited(1, told).get(..2), Some("EN"), "{mode:?}");
    }
}

#[test]
fn a_read_that_finds_nothing_at_home_waits_for_copies_if_writes_are_atomic() {
    for mode in [HotMode::Async, HotMode::Atomic] {
        for others in ["", "a b c d e f "] {
            let (mut net, key) = hot(mode);
            let is_here = |other: &&str| {
                Key::new(other.as_bytes())
                    .is_some_and(|other| (other.hash() >> 62) as u16 % SERVERS == 0)
            };
            let others: Vec<&str> = others.split_terminator(' ').filter(is_here).collect();
            let read = format!("get {} {key}\r\n", others.join(" "));
            // The other servers have not heard of the flush, and the home does not hear of what they have let go.
            net.silent = BTreeSet::from([(1, 0), (2, 0)]);
            net.shared[0].store.flush(0, net.now.second);
            let told = net.send(0, &read);
            assert_eq!(told.is_empty(), mode == HotMode::Atomic, "{told}");
            net.pass(900);
            let told = net.waited(0, told);
            assert_eq!(told, "END\r\n", "{mode:?}, {read}");
            assert_eq!(copies(&net), BTreeMap::new());
        }
    }
}

#[test]
fn a_flush_that_a_home_has_heard_of_before_it_comes_ends_its_copies() {
    for mode in [HotMode::Async, HotMode::Atomic] {
        let mut net = Net::new(mode);
        let key = key_of(0);
        net.send(0, &format!("ms {key} 1\r\na\r\n"));
        // Heartbeats have told of it; it has reached server 1 alone.
        net.shared.iter().for_each(|shared| shared.store.know_flush(1));
        net.read_often(&key, 0, 1_000);
        let second = net.now.second;
        net.shared[0].store.flush_as(1, second, second);
        let told = net.send(1, &format!("mg {key} v L1.2*\r\n"));
        assert_eq!(net.waited(1, told).get(..2), Some("EN"), "{mode:?}");
    }
}

#[test]
fn a_peers_read_by_a_lease_does_not_overtake_one_that_was_passed_on() {
    for mode in [HotMode::Async, HotMode::Atomic] {
        let mut net = Net::new(mode);
        let key = key_of(0);
        net.send(0, &format!("ms {key} 1\r\na\r\n"));
        let mut read = Vec::new();
        let request = format!("mg {key} v\r\n");
        let peer = PeerRequest::new(1, 1, request.as_bytes());
        PeerRequest { by_lease: Some(ReplicaVersion::default()), ..peer }.encode(&mut read);
        // There is no copy yet, and the home's answer takes a second.
        net.silent = BTreeSet::from([(2, 0)]);
        net.ask(1, 2, Ticket(1_000), &read);
        net.silent.clear();
        net.read_often(&key, 0, 800);
        assert!(copies(&net).contains_key(&2), "{mode:?}");
        net.ask(1, 2, Ticket(1_001), &read);
        assert_eq!(net.shared[2].copies_here().reads, 0, "{mode:?}");
    }
}

#[test]
fn a_peers_get_of_several_keys_does_not_overtake_one_that_was_passed_on() {
    let mut net = Net::new(HotMode::Atomic);
    let key = key_of(0);
    net.send(0, &format!("ms {key} 1\r\na\r\n"));
    let encoded = |request: &str| {
        let mut bytes = Vec::new();
        PeerRequest::new(1, 1, request.as_bytes()).encode(&mut bytes);
        bytes
    };
    // There is no copy yet, and the home's answer takes a second.
    net.silent = BTreeSet::from([(2, 0)]);
    net.ask(1, 2, Ticket(1_000), &encoded(&format!("get {key}\r\n")));
    net.silent.clear();
    net.read_often(&key, 0, 800);
    assert!(copies(&net).contains_key(&2));
    let several = encoded(&format!("get {key} {}\r\n", key_of(2)));
    net.ask(1, 2, Ticket(1_001), &several);
    assert_eq!(net.shared[2].copies_here().reads, 0);
    net.pass(1_500);
    net.ask(1, 2, Ticket(1_002), &several);
    assert_eq!(net.shared[2].copies_here().reads, 1, "nothing is under way any more");
}

#[test]
fn a_key_that_is_written_too_often_is_left_alone_for_a_while_though_a_shadow_is_silent() {
    // When it falls silent: some of these are moments before the key cools.
    for silent_from in (0..100).step_by(10) {
        let (mut net, key) = hot(HotMode::Async);
        for turn in 0..100 {
            if turn == silent_from {
                net.silent = BTreeSet::from([(0, 2)]);
            }
            for _ in 0..20 {
                net.send(0, &format!("mg {key} v\r\n"));
                net.send(0, &format!("ms {key} 1\r\nb\r\n"));
            }
            net.is_busy(0);
            net.pass(20);
        }
        net.silent.clear();
        net.pass(1_000);
        assert_eq!(net.state(0, &key), None);
        net.read_often(&key, 0, 4_000);
        assert_eq!(net.state(0, &key), Some(HomeState::Hot), "{silent_from}");
    }
}

/// A copy answers whatever its server's size is, and the original's server hears of none of it.
#[test]
fn reads_of_copies_are_hits_at_every_size() {
    let (mut net, key) = hot(HotMode::Atomic);
    net.silent = BTreeSet::from([(1, 0), (2, 0)]);
    let at_home = net.shared[0].curve(net.now.second).expect("it is sampled").reads;
    for _ in 0..100 {
        assert_eq!(net.send(1, &format!("mg {key} v\r\n")), "VA 1\r\na\r\n");
    }
    let told = net.shared[1].curve(net.now.second).expect("it is sampled");
    assert_eq!((told.reads, told.hits, told.curve.miss_ratio(0)), (100, 100, 0.0));
    let told = net.shared[0].curve(net.now.second).expect("it is sampled");
    assert_eq!(told.reads, at_home);
}

/// How a hot key comes to be refilled: what is done, and after how many ms it counts.
const RECACHES: [(&str, &str, u64); 3] = [
    ("is about to expire", "mg {key} T20\r\n", 0),
    ("is stale", "md {key} I T300\r\n", 0),
    ("has expired", "mg {key} T1\r\n", 1_500),
];

#[test]
fn one_client_of_the_whole_cluster_wins_what_is_to_be_refilled() {
    for mode in [HotMode::Async, HotMode::Atomic] {
        for (what, change, millis) in RECACHES {
            let case = format!("{mode:?}, it {what}");
            let (mut net, key) = hot(mode);
            let told = net.send(1, &change.replace("{key}", &key));
            assert_eq!(net.waited(1, told), "HD\r\n", "{case}");
            net.pass(millis);
            let mut won = 0;
            for round in 0..6 {
                // Where copies are comes first.
                for server in (0..SERVERS).rev() {
                    // By a lease, too; and without N and R, once somebody has won.
                    let flags = ["N30 R30 L1.2*", "N30 R30 t", "k L1.2*"][round % 3];
                    let told = net.send(server, &format!("mg {key} v {flags}\r\n"));
                    let told = net.waited(server, told);
                    let marks: Vec<&str> = told.split([' ', '\r']).collect();
                    let (wins, has_winner) = (marks.contains(&"W"), marks.contains(&"Z"));
                    assert!(wins != has_winner, "{case}: {told:?}");
                    won += u32::from(wins);
                }
                net.read_often(&key, 0, 40);
            }
            assert_eq!(won, 1, "{case}");
            net.read_often(&key, 0, 1_000);
            assert_eq!(copies(&net), BTreeMap::new(), "{case}: what has a winner is not copied");
            let told = net.send(2, &format!("ms {key} 1 T300\r\nb\r\n"));
            assert_eq!(net.waited(2, told), "HD\r\n", "{case}");
            net.read_often(&key, 0, 1_000);
            assert_eq!(copies(&net), BTreeMap::from([(1, 1), (2, 1)]), "{case}");
            for server in 0..SERVERS {
                let told = net.send(server, &format!("mg {key} v N30 R30\r\n"));
                assert_eq!(net.waited(server, told), "VA 1\r\nb\r\n", "{case}");
            }
        }
    }
}

#[test]
fn a_copy_that_has_not_heard_of_a_winner_lets_nobody_win() {
    for mode in [HotMode::Async, HotMode::Atomic] {
        let (mut net, key) = hot(mode);
        net.silent = BTreeSet::from([(0, 1), (0, 2)]);
        let told = net.send(0, &format!("md {key} I T300\r\n"));
        assert_eq!(told, if mode == HotMode::Async { "HD\r\n" } else { "" }, "{mode:?}");
        // By its lease it is still what it was.
        for server in [1, 2] {
            let told = net.send(server, &format!("mg {key} v L1.2*\r\n"));
            let token =
                if mode == HotMode::Async { format!(" L@{FIRST_VERSION}") } else { String::new() };
            assert_eq!(told, format!("VA 1{token}\r\na\r\n"), "{mode:?} at {server}");
        }
        net.pass(1_200);
        net.silent.clear();
        let asked: Vec<String> = (0..6)
            .map(|nth| {
                let told = net.send(nth % SERVERS, &format!("mg {key} v N30 R30 L1.2*\r\n"));
                let told = net.waited(nth % SERVERS, told);
                let is_word = |word: &&str| ["W", "X", "Z"].contains(word);
                told.split([' ', '\r']).filter(is_word).collect()
            })
            .collect();
        assert_eq!(asked, ["XW", "ZX", "ZX", "ZX", "ZX", "ZX"], "{mode:?}");
    }
}

#[test]
fn a_request_that_could_win_and_does_not_waits_for_no_copy_and_ends_none() {
    for mode in [HotMode::Async, HotMode::Atomic] {
        let (mut net, key) = hot(mode);
        let asked = format!("mg {key} v N30 R30\r\n");
        // What shadows answer is lost.
        net.silent = BTreeSet::from([(1, 0), (2, 0)]);
        assert_eq!(net.send(0, &asked), "VA 1\r\na\r\n", "{mode:?}");
        assert_eq!(net.state(0, &key), Some(HomeState::Hot), "{mode:?}");
        let told = net.send(0, &format!("md {key} I T300\r\n"));
        net.pass(1_000);
        assert_eq!(told + &std::mem::take(&mut net.replies[0]), "HD\r\n", "{mode:?}");
        let told = net.send(0, &asked);
        assert_eq!(net.waited(0, told), "VA 1 X W\r\na\r\n", "{mode:?}");
        for _ in 0..3 {
            assert_eq!(net.send(0, &asked), "VA 1 Z X\r\na\r\n", "{mode:?}");
        }
    }
}

/// The first server is dead: the second one has its cachelets.
fn without_the_first() -> Arc<Cluster> {
    let all = cluster(SERVERS, 2);
    let heir = |owner: Owner| match owner.server == id_of(0) {
        true => Owner { server: id_of(1), ..owner },
        false => owner,
    };
    let owners = all.map.cachelets().iter().map(|(prefix, owner)| (*prefix, heir(*owner)));
    let map = ClusterMap::new(2, owners.collect()).expect("they cover all");
    let mut servers = all.servers.clone();
    servers.remove(&id_of(0));
    Arc::new(Cluster { servers, ..Cluster::without_addresses(map) })
}

impl Net {
    fn first_is_dead(&mut self) {
        self.silent.extend([(1, 0), (2, 0), (0, 1), (0, 2)]);
        for server in [1, 2] {
            let cluster = without_the_first();
            self.event(server, Event::Mapped { here: id_of(server), cluster });
        }
    }
}

const NO_ROUTE: &str = "SERVER_ERROR no route to owner\r\n";

#[test]
fn a_cachelet_that_begins_empty_serves_when_all_have_fenced_off_its_copies() {
    let (mut net, key) = hot(HotMode::Atomic);
    assert_eq!(net.send(2, &format!("mg {key} v\r\n")), "VA 1\r\na\r\n", "by its copy");
    net.first_is_dead();
    let told = net.send(1, &format!("ms {key} 1\r\nb\r\n"));
    assert_eq!(told, "", "nobody is asked yet");
    assert_eq!(net.waited(1, told), "HD\r\n");
    assert_eq!(net.send(2, &format!("mg {key} v\r\n")), "VA 1\r\nb\r\n");
    // Its own copy is fenced off, too: it may give the cachelet away.
    assert_eq!(copies(&net), BTreeMap::new());
}

#[test]
fn a_cachelet_that_begins_empty_waits_for_leases_of_who_is_silent() {
    let (mut net, key) = hot(HotMode::Atomic);
    net.silent = BTreeSet::from([(1, 2), (2, 1)]);
    net.first_is_dead();
    let write = format!("ms {key} 1\r\nb\r\n");
    assert_eq!(net.send(1, &write), "");
    net.pass(900);
    assert_eq!(net.replies[1], "");
    // Nobody waits longer than for a slice that moves.
    net.pass(110);
    assert_eq!(std::mem::take(&mut net.replies[1]), NO_ROUTE);
    assert_eq!(net.send(1, &write), "");
    net.silent.remove(&(1, 2));
    net.silent.remove(&(2, 1));
    // It is asked again when the first word has not been answered within the link's timeout.
    net.pass(200);
    assert_eq!(std::mem::take(&mut net.replies[1]), "HD\r\n");
    let (mut net, key) = hot(HotMode::Atomic);
    net.silent = BTreeSet::from([(1, 2), (2, 1)]);
    net.first_is_dead();
    net.pass(2_000);
    assert_eq!(net.send(1, &format!("ms {key} 1\r\nb\r\n")), "HD\r\n", "they are over");
}

#[test]
fn a_link_that_comes_up_is_asked_at_once() {
    let (mut net, key) = hot(HotMode::Atomic);
    net.event(1, Event::LinkBroken { server: id_of(2) });
    net.first_is_dead();
    net.pass(300);
    assert_eq!(net.send(1, &format!("ms {key} 1\r\nb\r\n")), "");
    net.event(1, Event::LinkUp { server: id_of(2), credits: CREDITS });
    net.pass(25);
    assert_eq!(std::mem::take(&mut net.replies[1]), "HD\r\n");
}

/// A later owner of the key asks it for no fence: it is not in the map any more.
#[test]
fn a_server_whose_lease_is_over_reads_no_copy_nor_does_the_process_that_it_becomes() {
    for mode in [HotMode::Async, HotMode::Atomic] {
        let (mut net, key) = hot(mode);
        let read = format!("mg {key} v\r\n");
        // In mode async it takes a read at home for a lease.
        net.send(1, &read);
        net.silent = BTreeSet::from([(1, 0), (2, 0)]);
        assert_eq!(net.send(1, &read), "VA 1\r\na\r\n", "{mode:?}");
        net.shared[1].own_until(Instant::ZERO);
        assert_eq!(net.send(1, &read), "", "{mode:?}: it is sent on");
        net.shared[1].own_until(Instant::from_secs(1 << 30));
        net.shared[1].set_incarnation(Incarnation(7));
        net.pass(1_100);
        net.replies[1].clear();
        assert_eq!(copies(&net).get(&1), None, "{mode:?}");
    }
}
