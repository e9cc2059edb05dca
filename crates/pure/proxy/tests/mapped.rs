//! A proxy that is told its cluster's map: keys go to the worker that has them, whatever is on its way keeps its order, and reads of
//! hot keys are spread over their copies.

mod common;

use std::time::Duration;

use common::transcript::World;
use common::{MS, server, settings};
use mbal_model::{Instant, Key};
use mbal_proxy::{ConnId, CopiedKey, Event, PoolTold, Settings, Slots};

fn upper(key: &str) -> bool {
    Key::new(key.as_bytes()).expect("short").hash() >> 63 == 1
}

/// A key of the upper half of all hashes, or of the lower one.
fn key(is_upper: bool) -> String {
    (0..).map(|number| format!("k{number}")).find(|key| upper(key) == is_upper).expect("many")
}

/// The lower half of all hashes is one member's, the upper one the other's.
fn halves(lower: u16, higher: u16) -> Slots {
    Slots::new(move |hash| if hash >> 63 == 1 { higher } else { lower })
}

/// Nobody is asked for its cluster: `ERROR` would make it none.
fn world(upstreams: usize, slots: Slots) -> World {
    World::new(Settings { slots: Some(slots), ..settings(upstreams) })
}

fn binary_get(key: &[u8]) -> Vec<u8> {
    let mut head = [0; 24];
    (head[0], head[3], head[11]) = (0x80, key.len() as u8, key.len() as u8);
    [&head[..], key].concat()
}

impl World {
    fn follows(&mut self, servers: &[usize], slots: Slots) {
        let servers = servers.iter().map(|at| server(*at)).collect();
        let pool = PoolTold { servers, slots: Some(slots), copies: Vec::new() };
        self.proxy.change(Instant::from_nanos(self.now), pool, |_, _| true);
        self.carry_out();
    }

    fn has_copies(&mut self, key: &str, members: &[u16]) {
        let (key, members) = (key.as_bytes().to_vec(), members.to_vec());
        self.proxy.know_copies(vec![CopiedKey { key, members }]);
    }

    /// Which of two upstreams is asked to get this key, and answers that there is none.
    fn asks(&mut self, client: mbal_proxy::ClientId, key: &str) -> usize {
        let get = format!("get {key}\r\n");
        self.says(client, &get);
        let at = usize::from(self.asked[0].is_empty());
        self.answers(at, &get, "END\r\n");
        self.hears(client, "END\r\n");
        at
    }
}

#[test]
fn keys_go_where_the_map_has_them_in_each_protocol() {
    let mut world = world(2, halves(0, 1));
    let client = world.client();
    let (low, high) = (key(false), key(true));
    assert_eq!((world.asks(client, &low), world.asks(client, &high)), (0, 1));
    world.says(client, &format!("get {high} {low}\r\nms {high} 1\r\nx\r\n"));
    world.answers(0, &format!("get {low}\r\n"), "END\r\n");
    world.answers(1, &format!("get {high}\r\nms {high} 1\r\nx\r\n"), "END\r\nHD\r\n");
    world.hears(client, "END\r\nHD\r\n");
    // A key in base64 has the hash of what it stands for.
    let encoded = format!("mg {} b\r\n", ["azA=", "azE="][usize::from(upper("k1"))]);
    let named = ["k0", "k1"][usize::from(upper("k1"))];
    world.says(client, &encoded);
    world.answers(usize::from(upper(named)), &encoded, "EN\r\n");
    world.hears(client, "EN\r\n");
    let (client, get) = (world.client(), binary_get(high.as_bytes()));
    world.event(Event::Received { client, bytes: &get });
    world.connect_all();
    assert!(world.asked[3].ends_with(&high), "binary has a connection of its own");
}

#[test]
fn what_waits_at_a_worker_that_loses_a_key_is_answered_first() {
    let mut world = world(3, halves(0, 1));
    let client = world.client();
    let (low, high) = (key(false), key(true));
    let set = format!("set {low} 0 0 1\r\nx\r\n");
    world.says(client, &set);
    world.says(client, &format!("get {high}\r\n"));
    world.follows(&[0, 1, 2], halves(2, 1));
    world.says(client, &format!("get {low}\r\nget {high}\r\n"));
    assert_eq!(world.asked[4], "", "the write may not be executed yet");
    world.answers(0, &set, "STORED\r\n");
    world.answers(
        2,
        &format!("get {low}\r\n"),
        "VALUE k 0 1\r\nx\r\nEND\r\n".replace("VALUE k", &format!("VALUE {low}")).as_str(),
    );
    world.answers(1, &format!("get {high}\r\nget {high}\r\n"), "END\r\nEND\r\n");
    world.hears(client, &format!("STORED\r\nEND\r\nVALUE {low} 0 1\r\nx\r\nEND\r\nEND\r\n"));
    // What waits elsewhere holds nobody up.
    world.says(client, &format!("get {high}\r\n"));
    world.follows(&[0, 1, 2], halves(0, 1));
    world.says(client, &format!("get {low}\r\n"));
    world.answers(0, &format!("get {low}\r\n"), "END\r\n");
}

#[test]
fn a_map_names_others_and_no_other_server_is_asked_for_its_cluster() {
    let mut world = world(2, halves(0, 1));
    let client = world.client();
    world.follows(&[0, 2], halves(0, 1));
    world.connect_all();
    world.asked.iter_mut().for_each(String::clear);
    let high = key(true);
    world.says(client, &format!("get {high}\r\n"));
    world.answers(2, &format!("get {high}\r\n"), "END\r\n");
    assert_eq!(world.proxy.counters().pool_changes, 1);
    world.follows(&[0, 2], halves(1, 0));
    assert_eq!(world.proxy.counters().pool_changes, 1, "the same upstreams have other keys");
}

#[test]
fn while_a_worker_is_away_another_is_asked() {
    let mut world = world(2, halves(0, 1));
    let (client, high) = (world.client(), key(true));
    world.event(Event::Lost { conn: ConnId(2) });
    assert_eq!(world.asks(client, &high), 0);
    world.wait(1_000 * MS);
    world.connect_all();
    assert_eq!(world.asks(client, &high), 1);
    assert_eq!(world.proxy.counters().failovers, 1);
}

#[test]
fn reads_of_a_hot_key_are_spread_and_come_behind_its_writes() {
    let mut world = world(2, halves(0, 1));
    let (client, low) = (world.client(), key(false));
    world.has_copies(&low, &[0, 1]);
    let mut asked = [0; 2];
    (0..200).for_each(|_| asked[world.asks(client, &low)] += 1);
    assert!(asked.iter().all(|count| *count > 60), "{asked:?}");
    world.says(client, &format!("stats explain {low}\r\n"));
    let told = std::mem::take(&mut world.told[client.0 as usize]);
    for part in ["by its cluster's map among 2 workers", "read by turns at s0:11211 s1:11211"] {
        assert!(told.contains(part), "{told}");
    }
    // A multi-get too; a write never, nor what stands behind it.
    let (set, get) = (format!("set {low} 0 0 1\r\nx\r\n"), format!("get {low}\r\n"));
    for _ in 0..20 {
        world.says(client, &set);
        world.says(client, &get.repeat(3));
        world.answers(0, &(set.clone() + &get.repeat(3)), "STORED\r\nEND\r\nEND\r\nEND\r\n");
        world.hears(client, "STORED\r\nEND\r\nEND\r\nEND\r\n");
    }
    let high = key(true);
    let multi = format!("get {low} {high}\r\n");
    let mut at_home = 0;
    for _ in 0..100 {
        world.says(client, &multi);
        match world.asked[0].is_empty() {
            true => world.answers(1, &multi, "END\r\n"),
            false => {
                at_home += 1;
                world.answers(0, &get, "END\r\n");
                world.answers(1, &format!("get {high}\r\n"), "END\r\n");
            }
        }
        world.hears(client, "END\r\n");
    }
    assert!((20..80).contains(&at_home), "{at_home}");
}

/// A write in base64, and a touch, are writes of the same key.
#[test]
fn what_stands_behind_a_write_in_other_words_goes_where_it_goes() {
    let mut world = world(2, halves(0, 1));
    let (client, low) = (world.client(), key(false));
    world.has_copies(&low, &[0, 1]);
    let mut encoded = Vec::new();
    mbal_wire::base64_encode(low.as_bytes(), &mut encoded);
    let set = format!("ms {} 1 b\r\nx\r\n", String::from_utf8(encoded).expect("letters"));
    let (gat, get) = (format!("gat 9 {low}\r\n"), format!("get {low}\r\n"));
    for _ in 0..20 {
        world.says(client, &(set.clone() + &get));
        world.answers(0, &(set.clone() + &get), "HD\r\nEND\r\n");
        world.says(client, &(gat.clone() + &get));
        world.answers(0, &(gat.clone() + &get), "END\r\nEND\r\n");
        world.hears(client, "HD\r\nEND\r\nEND\r\nEND\r\n");
    }
}

/// A write with no known outcome may come late: copies know nothing of it.
#[test]
fn while_a_write_is_in_doubt_no_copy_is_read() {
    let doubt = Duration::from_secs(5);
    let slots = Some(halves(0, 1));
    let mut world = World::new(Settings { slots, doubt, ..settings(2) });
    let (client, low) = (world.client(), key(false));
    world.has_copies(&low, &[0, 1]);
    world.says(client, &format!("set {low} 0 0 1\r\nx\r\n"));
    world.asked[0].clear();
    world.wait(200 * MS);
    world.hears(client, "SERVER_ERROR upstream timed out\r\n");
    world.has_copies(&low, &[0, 1]);
    for _ in 0..20 {
        world.says(client, &format!("get {low}\r\n"));
        assert_eq!(world.asked[2], "");
    }
}

/// Another server deletes what a dead one may have executed, though the map knows it no more.
#[test]
fn what_a_server_owes_that_has_left_its_cluster_is_deleted_by_another() {
    let doubt = Duration::from_secs(5);
    let slots = Some(halves(0, 1));
    let mut world = World::new(Settings { slots, doubt, ..settings(2) });
    let (client, high) = (world.client(), key(true));
    world.says(client, &format!("set {high} 0 0 1\r\nx\r\n"));
    world.asked[2].clear();
    world.event(Event::Lost { conn: ConnId(2) });
    world.hears(client, "SERVER_ERROR upstream connection lost\r\n");
    world.follows(&[0], Slots::new(|_| 0));
    world.says(client, &format!("get {high}\r\n"));
    world.hears(client, "SERVER_ERROR upstream is down\r\n");
    world.wait(4_999 * MS);
    assert_eq!(world.asked[0], "");
    world.wait(2 * MS);
    world.answers(0, &format!("md {high}\r\n"), "NF\r\n");
    world.says(client, &format!("get {high}\r\n"));
    world.answers(0, &format!("get {high}\r\n"), "END\r\n");
    world.hears(client, "END\r\n");
}

#[test]
fn what_a_stand_in_was_asked_is_answered_before_keys_go_to_a_third() {
    let mut world = world(3, halves(0, 1));
    let (client, high) = (world.client(), key(true));
    world.event(Event::Lost { conn: ConnId(2) });
    let set = |value: u8| format!("set {high} 0 0 1\r\n{value}\r\n");
    world.says(client, &set(1));
    let stand_in = if world.asked[0].is_empty() { 2 } else { 0 };
    let third = 2 - stand_in;
    world.follows(&[0, 2], halves(third as u16 / 2, third as u16 / 2));
    world.says(client, &set(2));
    assert_eq!(world.asked[2 * third], "", "the first write may not be executed yet");
    world.answers(stand_in, &set(1), "STORED\r\n");
    world.answers(third, &set(2), "STORED\r\n");
    world.hears(client, "STORED\r\nSTORED\r\n");
}

/// Of more keys than are remembered the rest is forgotten: a flush would take what all servers have.
#[test]
fn a_cluster_is_never_flushed_for_writes_of_unknown_outcome() {
    let (slots, doubt) = (Some(halves(0, 1)), Duration::from_secs(5));
    let mut world = World::new(Settings { slots, doubt, ..settings(2) });
    let client = world.client();
    let keys = (0..40_000).map(|number| format!("k{number}")).filter(|key| upper(key));
    let sets: String =
        keys.take(10_500).map(|key| format!("set {key} 0 0 1 noreply\r\nx\r\n")).collect();
    world.says(client, &sets);
    assert!(world.asked[2].matches("set ").count() > 10_000, "all are under way");
    world.asked[2].clear();
    world.event(Event::Lost { conn: ConnId(2) });
    world.connect_all();
    let asked = std::mem::take(&mut world.asked[2]);
    assert!(asked.contains("md k") && !asked.contains("flush"), "{asked:.100}");
}
