//! What the kernel's data plane is told, and who waits for it: transcripts of clients, upstreams and the kernel.

use std::time::Duration;

use mbal_model::Instant;
use mbal_proxy::{
    Action, ClientId, ConnId, Dialect, Distribution, Event, KernelChange, KernelUpstream, KeyHash,
    Limits, Proxy, Replication, RingServer, Settings,
};

const MS: u64 = 1_000_000;
const INTERVAL: u64 = 100 * MS;
const ANSWER_BYTES_MAX: usize = 60;
const FILL: &str = "mg hot v f t\r\n";

struct World {
    proxy: Proxy,
    now: u64,
    /// By connection, by client: what was sent to it and not looked at.
    asked: Vec<String>,
    told: Vec<String>,
    changes: Vec<KernelChange>,
    dialing: Vec<ConnId>,
    /// In a row: changes of the kernel, and what clients and upstreams were told.
    order: Vec<&'static str>,
}

impl World {
    fn new(upstreams: usize, eject: bool) -> World {
        let server =
            |at: usize| RingServer { host: format!("s{at}"), port: 1, weight: 1, name: None };
        let settings = Settings {
            servers: (0..upstreams).map(server).collect(),
            distribution: Distribution::Ketama(Dialect::Twemproxy, None),
            conns_per_server: 1,
            timeout: Duration::from_nanos(1000 * MS),
            eject,
            failures_max: 1,
            retry: Duration::from_nanos(1000 * MS),
            limits: Limits::default(),
            replication: Some(Replication {
                interval: Duration::from_nanos(INTERVAL),
                target: 1.05,
                sampling: 1.0,
            }),
            peers: None,
            doubt: Duration::ZERO,
            pid: 1,
            started_at: 0,
            version: "1".into(),
            seed: 7,
        };
        let mut world = World {
            proxy: Proxy::new(settings).with_kernel(ANSWER_BYTES_MAX),
            now: 1,
            asked: vec![String::new(); 2 * upstreams],
            told: Vec::new(),
            changes: Vec::new(),
            dialing: Vec::new(),
            order: Vec::new(),
        };
        world.proxy.start(Instant::from_nanos(1));
        world.carry_out();
        world.connect_all();
        // Nobody is in doubt any more.
        let client = world.client();
        world.says(client, "flush_all\r\n");
        (0..upstreams).for_each(|at| world.replies(2 * at, "OK\r\n"));
        world.asked.iter_mut().for_each(String::clear);
        world
    }

    fn connect_all(&mut self) {
        for conn in std::mem::take(&mut self.dialing) {
            self.event(Event::Connected { conn });
        }
    }

    fn event(&mut self, event: Event<'_>) {
        self.now += 1;
        self.proxy.handle(Instant::from_nanos(self.now), event);
        self.carry_out();
    }

    fn carry_out(&mut self) {
        let mut actions = Vec::new();
        loop {
            let changes = self.proxy.take_kernel_changes();
            self.order.extend(changes.iter().map(|_| "kernel"));
            self.changes.extend(changes);
            self.proxy.take_actions(&mut actions);
            if actions.is_empty() {
                return;
            }
            for action in &actions {
                match *action {
                    Action::ToClient(client) => {
                        let out = self.proxy.client_output(client).to_vec();
                        self.told[client.0 as usize] += &String::from_utf8_lossy(&out);
                        self.proxy.client_took(client, out.len());
                        self.order.push("client");
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
                        self.order.push("upstream");
                    }
                    Action::Dial { conn, .. } => self.dialing.push(conn),
                    _ => {}
                }
            }
        }
    }

    fn client(&mut self) -> ClientId {
        let client = self.proxy.open();
        self.told.resize(self.told.len().max(client.0 as usize + 1), String::new());
        client
    }

    fn says(&mut self, client: ClientId, text: &str) {
        self.event(Event::Received { client, bytes: text.as_bytes() });
        self.wait(MS);
    }

    fn replies(&mut self, conn: usize, reply: &str) {
        self.event(Event::Replied { conn: ConnId(conn as u32), bytes: reply.as_bytes() });
    }

    fn wait(&mut self, time: u64) {
        let until = self.now + time;
        while let Some(wake) =
            self.proxy.next_wake().map(Instant::as_nanos).filter(|wake| *wake <= until)
        {
            self.now = self.now.max(wake);
            self.event(Event::Woken);
        }
        self.now = self.now.max(until);
        self.carry_out();
    }

    fn key(&self, at: usize) -> String {
        (0..).map(|i| format!("k{i}")).find(|key| self.home(key) == at).expect("there are many")
    }

    fn home(&self, key: &str) -> usize {
        let servers: Vec<RingServer> = (0..self.asked.len() / 2)
            .map(|at| RingServer { host: format!("s{at}"), port: 1, weight: 1, name: None })
            .collect();
        mbal_routing::ketama::Ring::new(Dialect::Twemproxy, None, &servers).owner(key.as_bytes())
    }

    /// The kernel sees reads of `hot` until its home is asked for the value.
    fn becomes_hot(&mut self) -> usize {
        let conn = 2 * self.home("hot");
        for _ in 0..200 {
            self.event(Event::Sampled { key: b"hot" });
        }
        self.wait(INTERVAL);
        assert_eq!(std::mem::take(&mut self.asked[conn]), FILL);
        conn
    }

    fn is_answered(&mut self) -> usize {
        let conn = self.becomes_hot();
        self.changes.clear();
        self.replies(conn, "VA 1 f7 t-1\r\nx\r\n");
        self.hears_put(b"x", 7);
        conn
    }

    fn hears_put(&mut self, expected: &[u8], expected_flags: u32) {
        match &std::mem::take(&mut self.changes)[..] {
            [KernelChange::Put { key, flags, value, lives }] => {
                assert_eq!((&key[..], &value[..], *flags), (&b"hot"[..], expected, expected_flags));
                assert!((1..=60).contains(&lives.as_secs()));
            }
            other => panic!("{other:?}"),
        }
    }

    fn hears_forget(&mut self) -> u64 {
        match &std::mem::take(&mut self.changes)[..] {
            [KernelChange::Forget { key, number }] if &key[..] == b"hot" => *number,
            other => panic!("{other:?}"),
        }
    }

    fn served(&mut self) -> Vec<bool> {
        let mut rings = std::mem::take(&mut self.changes).into_iter().filter_map(|one| match one {
            KernelChange::Ring { upstreams, .. } => Some(upstreams),
            _ => None,
        });
        let last: Vec<KernelUpstream> = rings.next_back().expect("a ring");
        last.into_iter().map(|one| one.serves).collect()
    }
}

#[test]
fn the_ring_of_the_kernel_places_keys_as_the_proxy_does() {
    let mut world = World::new(4, false);
    let Some(KernelChange::Ring { points, upstreams }) = world.changes.first().cloned() else {
        panic!("it is told first")
    };
    let continuum = mbal_routing::Continuum::new(points).expect("a ring");
    for key in (0..2000).map(|i| format!("key:{i}")) {
        let place = continuum.upstream(KeyHash::Fnv1a64.place(key.as_bytes())) as usize;
        assert_eq!(upstreams[place].number, world.home(&key), "{key}");
    }
    world.changes.clear();
    world.wait(10 * INTERVAL);
    assert_eq!(world.changes, [], "it has not changed");
}

#[test]
fn a_write_waits_until_the_kernel_has_forgotten_its_key() {
    let writes = [
        "set hot 0 0 1\r\ny\r\n",
        "ms hot 1\r\ny\r\n",
        "ms aG90 1 b\r\ny\r\n",
        "append hot 0 0 1 noreply\r\ny\r\n",
        "incr hot 1\r\n",
        "delete hot\r\n",
        "md hot\r\n",
        "touch hot 1\r\n",
        "gat 1 hot\r\n",
        "gat 1 other hot\r\n",
        "mg hot v T1\r\n",
        "flush_all\r\n",
        "\u{80}",
    ];
    for write in writes {
        let mut world = World::new(2, false);
        let conn = world.is_answered();
        let (client, other) = (world.client(), world.client());
        let binary = [&[0x80, 0x04, 0, 3], &[0; 7][..], &[3], &[0; 12], b"hot"].concat();
        let bytes = if write == "\u{80}" { &binary[..] } else { write.as_bytes() };
        world.event(Event::Received { client, bytes });
        world.wait(MS);
        let number = world.hears_forget();
        assert!(world.asked.iter().all(String::is_empty), "{write:?}: {:?}", world.asked);
        // Nobody else waits.
        world.says(other, "get hot\r\n");
        assert!(std::mem::take(&mut world.asked[conn]).ends_with("get hot\r\n"));
        world.event(Event::KernelForgot { number });
        // Binary has a connection of its own.
        world.connect_all();
        world.wait(MS);
        assert!(world.asked.iter().any(|asked| !asked.is_empty()), "{write:?}");
    }
}

#[test]
fn reads_do_not_make_the_kernel_forget() {
    for read in ["get hot\r\n", "gets hot\r\n", "mg hot v\r\n", "get other hot\r\n", "me hot\r\n"] {
        let mut world = World::new(2, false);
        world.is_answered();
        let client = world.client();
        world.says(client, read);
        assert_eq!(world.changes, [], "{read:?}");
    }
}

#[test]
fn a_later_write_waits_for_the_same_forgetting_and_an_earlier_number_frees_nobody() {
    let mut world = World::new(2, false);
    let conn = world.is_answered();
    let (a, b) = (world.client(), world.client());
    world.says(a, "set hot 0 0 1\r\na\r\n");
    let number = world.hears_forget();
    world.says(b, "set hot 0 0 1\r\nb\r\n");
    assert_eq!(world.changes, []);
    world.event(Event::KernelForgot { number: number - 1 });
    assert_eq!(world.asked[conn], "");
    world.event(Event::KernelForgot { number });
    world.wait(MS);
    let asked = &world.asked[conn];
    assert!(
        ["a", "b"].iter().all(|value| asked.contains(&format!("set hot 0 0 1\r\n{value}\r\n")))
    );
}

#[test]
fn a_value_comes_back_after_the_write_and_not_one_that_was_asked_for_before_it() {
    let mut world = World::new(2, false);
    let conn = world.becomes_hot();
    let client = world.client();
    // The fill is on its way: the write waits for nothing, and ends it.
    world.says(client, "set hot 0 0 1\r\ny\r\n");
    world.changes.clear();
    world.replies(conn, "VA 1 f0 t-1\r\nx\r\nSTORED\r\n");
    assert_eq!(world.changes, [], "it may be older");
    world.asked[conn].clear();
    world.becomes_hot();
    world.replies(conn, "VA 1 f0 t-1\r\ny\r\n");
    world.hears_put(b"y", 0);
}

#[test]
fn what_binary_writes_meanwhile_is_not_filled_before_it_is_answered() {
    let mut world = World::new(2, false);
    let client = world.client();
    let conn = 2 * world.home("hot");
    let delete = [&[0x80, 0x04, 0, 3], &[0; 7][..], &[3], &[0; 12], b"hot"].concat();
    world.event(Event::Received { client, bytes: &delete });
    world.wait(MS);
    world.connect_all();
    for _ in 0..200 {
        world.event(Event::Sampled { key: b"hot" });
    }
    world.wait(INTERVAL);
    assert_eq!(world.asked[conn], "");
    let deleted = [&[0x81, 0x04], &[0; 22][..]].concat();
    world.event(Event::Replied { conn: ConnId(conn as u32 + 1), bytes: &deleted });
    world.becomes_hot();
}

#[test]
fn what_is_missing_expires_or_is_too_long_is_not_given_to_the_kernel() {
    let long = format!("VA 40 f0 t-1\r\n{}\r\n", "x".repeat(40));
    for reply in ["EN\r\n", "VA 1 f0 t1\r\nx\r\n", "VA 1 f0 t-1 W\r\nx\r\n", &long] {
        let mut world = World::new(2, false);
        let conn = world.becomes_hot();
        world.changes.clear();
        world.replies(conn, reply);
        assert_eq!(world.changes, [], "{reply:?}");
    }
}

#[test]
fn a_key_with_a_blank_is_never_asked_for() {
    let mut world = World::new(2, false);
    let client = world.client();
    // "ho t" in base64, by the clients' own requests: an upstream would take it for two words.
    for _ in 0..200 {
        world.says(client, "mg aG8gdA== v b\r\n");
        let home = world.asked.iter().position(|asked| !asked.is_empty()).expect("it is asked");
        world.asked[home].clear();
        world.replies(home, "EN\r\n");
    }
    world.wait(2 * INTERVAL);
    assert!(world.asked.iter().all(String::is_empty), "{:?}", world.asked);
}

#[test]
fn a_key_that_cools_and_a_connection_that_is_lost_are_forgotten() {
    let mut world = World::new(2, false);
    world.is_answered();
    for _ in 0..10 {
        for key in (0..400).map(|i| format!("key:{}", i % 100)) {
            world.event(Event::Sampled { key: key.as_bytes() });
        }
        world.wait(INTERVAL);
    }
    world.hears_forget();
    let mut world = World::new(2, false);
    let conn = world.is_answered();
    world.event(Event::Lost { conn: ConnId(conn as u32) });
    world.hears_forget();
}

#[test]
fn the_kernel_reads_no_upstream_that_is_left_out_and_knows_it_before_clients() {
    let mut world = World::new(2, true);
    world.served();
    world.order.clear();
    let (key, client) = (world.key(0), world.client());
    world.says(client, &format!("set {key} 0 0 1\r\nx\r\n"));
    world.wait(MS);
    world.order.clear();
    world.event(Event::Lost { conn: ConnId(0) });
    assert_eq!(world.order, ["kernel", "client"]);
    assert_eq!(world.served(), [false, true]);
    world.wait(1000 * MS);
    world.connect_all();
    // It is asked what it is, and deletes what it has missed; then what was written before, which may come behind that.
    for reply in ["VERSION 1\r\n", "VERSION 1\r\n", "NF\r\n"] {
        assert_eq!(world.changes, []);
        world.replies(0, reply);
    }
    assert_eq!(world.served(), [true, true]);
}

fn an_upstream_with_a_write_of_unknown_outcome() -> Vec<bool> {
    let mut world = World::new(2, false);
    let mut served = world.served();
    let (key, client) = (world.key(0), world.client());
    world.says(client, &format!("set {key} 0 0 1\r\nx\r\n"));
    world.wait(MS);
    world.event(Event::Lost { conn: ConnId(0) });
    served.extend(if world.changes.is_empty() { vec![] } else { world.served() });
    world.connect_all();
    // It is deleted again when nothing can be executed any more.
    for _ in 0..2 {
        world.replies(0, "NF\r\n");
        world.wait(MS);
    }
    served.extend(if world.changes.is_empty() { vec![] } else { world.served() });
    served
}

#[test]
fn the_kernel_reads_no_upstream_before_its_unsure_keys_are_deleted() {
    let served = an_upstream_with_a_write_of_unknown_outcome();
    assert_eq!(served, [true, true, false, true, true, true]);
}

#[cfg(feature = "planted")]
#[test]
fn planted_faults_are_found() {
    use mbal_model::planted::{Fault, plant};
    plant(Some(Fault::KernelAnswersOutliveWrites));
    let mut world = World::new(2, false);
    world.is_answered();
    let client = world.client();
    world.says(client, "set hot 0 0 1\r\ny\r\n");
    assert_eq!(world.changes, [], "it was to be forgotten");
    plant(Some(Fault::KernelReadsUnsure));
    assert_eq!(an_upstream_with_a_write_of_unknown_outcome(), [true, true]);
    plant(None);
}
