//! What the kernel's data plane is told, and who waits for it: transcripts of clients, upstreams and the kernel.

mod common;

use common::transcript::World;
use common::{KETAMA, MS, replication, server, settings};
use mbal_proxy::{
    ConnId, Dialect, Event, KernelChange, KernelUpstream, KeyHash, Proxy, RingServer, Settings,
};

const INTERVAL: u64 = 100 * MS;
const ANSWER_BYTES_MAX: usize = 60;
const FILL: &str = "mg hot v f t\r\n";

fn world(eject: bool) -> World {
    with_upstreams(2, eject)
}

fn with_upstreams(upstreams: usize, eject: bool) -> World {
    let (distribution, replication) = (KETAMA, replication(100, 1.05));
    let settings = Settings {
        distribution,
        replication,
        eject,
        timeout: std::time::Duration::from_secs(1),
        ..settings(upstreams)
    };
    let mut world = World::with(Proxy::new(settings).with_kernel(ANSWER_BYTES_MAX), "ERROR\r\n");
    // Nobody is in doubt any more.
    let client = world.client();
    world.asks(client, "flush_all\r\n");
    (0..upstreams).for_each(|at| world.replies(at, "OK\r\n"));
    world.asked.iter_mut().for_each(String::clear);
    world
}

impl World {
    fn asks(&mut self, client: mbal_proxy::ClientId, text: &str) {
        self.says(client, text);
        self.wait(MS);
    }

    fn home(&self, key: &str) -> usize {
        let servers: Vec<RingServer> = (0..self.proxy.upstreams().count()).map(server).collect();
        mbal_routing::ketama::Ring::new(Dialect::Twemproxy, None, &servers).owner(key.as_bytes())
    }

    fn key_of(&self, at: usize) -> String {
        (0..).map(|i| format!("k{i}")).find(|key| self.home(key) == at).expect("there are many")
    }

    /// The kernel sees reads of `hot` until its home is asked for the value.
    fn becomes_hot(&mut self) -> usize {
        let at = self.home("hot");
        for _ in 0..200 {
            self.event(Event::Sampled { key: b"hot" });
        }
        self.wait(INTERVAL);
        assert_eq!(std::mem::take(&mut self.asked[2 * at]), FILL);
        at
    }

    fn is_answered(&mut self) -> usize {
        let at = self.becomes_hot();
        self.changes.clear();
        self.replies(at, "VA 1 f7 t-1\r\nx\r\n");
        self.hears_put(b"x", 7);
        at
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
    let mut world = with_upstreams(4, false);
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
        let mut world = crate::world(false);
        let at = world.is_answered();
        let (client, other) = (world.client(), world.client());
        let binary = [&[0x80, 0x04, 0, 3], &[0; 7][..], &[3], &[0; 12], b"hot"].concat();
        let bytes = if write == "\u{80}" { &binary[..] } else { write.as_bytes() };
        world.event(Event::Received { client, bytes });
        world.wait(MS);
        let number = world.hears_forget();
        assert!(world.asked.iter().all(String::is_empty), "{write:?}: {:?}", world.asked);
        // Nobody else waits.
        world.asks(other, "get hot\r\n");
        assert!(std::mem::take(&mut world.asked[2 * at]).ends_with("get hot\r\n"));
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
        let mut world = crate::world(false);
        world.is_answered();
        let client = world.client();
        world.asks(client, read);
        assert_eq!(world.changes, [], "{read:?}");
    }
}

#[test]
fn a_later_write_waits_for_the_same_forgetting_and_an_earlier_number_frees_nobody() {
    let mut world = crate::world(false);
    let at = world.is_answered();
    let (a, b) = (world.client(), world.client());
    world.asks(a, "set hot 0 0 1\r\na\r\n");
    let number = world.hears_forget();
    world.asks(b, "set hot 0 0 1\r\nb\r\n");
    assert_eq!(world.changes, []);
    world.event(Event::KernelForgot { number: number - 1 });
    assert_eq!(world.asked[2 * at], "");
    world.event(Event::KernelForgot { number });
    world.wait(MS);
    let asked = &world.asked[2 * at];
    assert!(
        ["a", "b"].iter().all(|value| asked.contains(&format!("set hot 0 0 1\r\n{value}\r\n")))
    );
}

#[test]
fn a_value_comes_back_after_the_write_and_not_one_that_was_asked_for_before_it() {
    let mut world = crate::world(false);
    let at = world.becomes_hot();
    let client = world.client();
    // The fill is on its way: the write waits for nothing, and ends it.
    world.asks(client, "set hot 0 0 1\r\ny\r\n");
    world.changes.clear();
    world.replies(at, "VA 1 f0 t-1\r\nx\r\nSTORED\r\n");
    assert_eq!(world.changes, [], "it may be older");
    world.asked[2 * at].clear();
    world.becomes_hot();
    world.replies(at, "VA 1 f0 t-1\r\ny\r\n");
    world.hears_put(b"y", 0);
}

#[test]
fn what_binary_writes_meanwhile_is_not_filled_before_it_is_answered() {
    let mut world = crate::world(false);
    let client = world.client();
    let at = world.home("hot");
    let delete = [&[0x80, 0x04, 0, 3], &[0; 7][..], &[3], &[0; 12], b"hot"].concat();
    world.event(Event::Received { client, bytes: &delete });
    world.wait(MS);
    world.connect_all();
    for _ in 0..200 {
        world.event(Event::Sampled { key: b"hot" });
    }
    world.wait(INTERVAL);
    assert_eq!(world.asked[2 * at], "");
    let deleted = [&[0x81, 0x04], &[0; 22][..]].concat();
    world.event(Event::Replied { conn: ConnId(2 * at as u32 + 1), bytes: &deleted });
    world.becomes_hot();
}

#[test]
fn what_is_missing_expires_or_is_too_long_is_not_given_to_the_kernel() {
    let long = format!("VA 40 f0 t-1\r\n{}\r\n", "x".repeat(40));
    for reply in ["EN\r\n", "VA 1 f0 t1\r\nx\r\n", "VA 1 f0 t-1 W\r\nx\r\n", &long] {
        let mut world = crate::world(false);
        let at = world.becomes_hot();
        world.changes.clear();
        world.replies(at, reply);
        assert_eq!(world.changes, [], "{reply:?}");
    }
}

#[test]
fn a_key_with_a_blank_is_never_asked_for() {
    let mut world = crate::world(false);
    let client = world.client();
    // "ho t" in base64, by the clients' own requests: an upstream would take it for two words.
    for _ in 0..200 {
        world.asks(client, "mg aG8gdA== v b\r\n");
        let home = world.asked.iter().position(|asked| !asked.is_empty()).expect("it is asked");
        world.asked[home].clear();
        world.replies(home / 2, "EN\r\n");
    }
    world.wait(2 * INTERVAL);
    assert!(world.asked.iter().all(String::is_empty), "{:?}", world.asked);
}

#[test]
fn a_key_that_cools_and_a_connection_that_is_lost_are_forgotten() {
    let mut world = crate::world(false);
    world.is_answered();
    for _ in 0..10 {
        for key in (0..400).map(|i| format!("key:{}", i % 100)) {
            world.event(Event::Sampled { key: key.as_bytes() });
        }
        world.wait(INTERVAL);
    }
    world.hears_forget();
    let mut world = crate::world(false);
    let at = world.is_answered();
    world.event(Event::Lost { conn: ConnId(2 * at as u32) });
    world.hears_forget();
}

#[test]
fn the_kernel_reads_no_upstream_that_is_left_out_and_knows_it_before_clients() {
    let mut world = crate::world(true);
    world.served();
    world.order.clear();
    let (key, client) = (world.key_of(0), world.client());
    world.asks(client, &format!("set {key} 0 0 1\r\nx\r\n"));
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
    let mut world = crate::world(false);
    let mut served = world.served();
    let (key, client) = (world.key_of(0), world.client());
    world.asks(client, &format!("set {key} 0 0 1\r\nx\r\n"));
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
    let mut world = crate::world(false);
    world.is_answered();
    let client = world.client();
    world.asks(client, "set hot 0 0 1\r\ny\r\n");
    assert_eq!(world.changes, [], "it was to be forgotten");
    plant(Some(Fault::KernelReadsUnsure));
    assert_eq!(an_upstream_with_a_write_of_unknown_outcome(), [true, true]);
    plant(None);
}
