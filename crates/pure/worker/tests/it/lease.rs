//! A server that owns by a lease: what it answers when that is over, and how it begins anew.

use std::sync::Arc;
use std::time::Duration;

use mbal_model::{Cluster, ClusterMap, Instant, Key, Owner, Prefix, ServerId, WorkerId};
use mbal_worker::Event;

use crate::rig::{CONN, Rig};

const HERE: ServerId = ServerId(1);
const UNTIL: Instant = Instant::from_secs(10);

/// Server 1 has the first half, server 2 the second; no link leads there.
fn cluster(version: u64) -> Arc<Cluster> {
    let owner = |server| Owner { server: ServerId(server), worker: WorkerId(0) };
    let owners = Prefix::equal(1).zip([1, 2].map(owner)).collect();
    let map = ClusterMap::new(version, owners).expect("they cover all");
    Arc::new(Cluster::without_addresses(map))
}

/// The first key in that half.
fn key(half: u64) -> String {
    let is_there = |word: &String| Key::new(word.as_bytes()).expect("short").hash() >> 63 == half;
    (0..).map(|number| format!("k{number}")).find(is_there).expect("endless")
}

fn owning() -> Rig {
    let mut rig = Rig::new();
    rig.server.own_until(UNTIL);
    rig.worker.look_at_lease(Instant::from_secs(9));
    rig.handle(Event::Mapped { here: HERE, cluster: cluster(1) });
    let own = key(0);
    rig.check(
        &format!("set {own} 0 0 1\r\nv\r\nget {own}\r\n"),
        &format!("STORED\r\nVALUE {own} 0 1\r\nv\r\nEND\r\n"),
    );
    rig
}

const NO_ROUTE: &str = "SERVER_ERROR no route to owner\r\n";

#[test]
fn a_lease_that_is_over_makes_misses_of_reads_and_refuses_writes_before_the_next_request() {
    let mut rig = owning();
    let own = key(0);
    rig.worker.look_at_lease(UNTIL - Duration::from_nanos(1));
    rig.check(&format!("get {own}\r\n"), &format!("VALUE {own} 0 1\r\nv\r\nEND\r\n"));
    let missed = rig.server.sums().get_unreachable;
    rig.worker.look_at_lease(UNTIL);
    rig.check(&format!("get {own}\r\n"), "END\r\n");
    rig.check(&format!("get {own} {}\r\n", key(1)), "END\r\n");
    rig.check(&format!("mg {own} v\r\n"), "EN\r\n");
    assert_eq!(rig.server.sums().get_unreachable, missed + 4);
    for write in [
        format!("set {own} 0 0 1\r\nw\r\n"),
        format!("delete {own}\r\n"),
        format!("incr {own} 1\r\n"),
        format!("touch {own} 10\r\n"),
        format!("ms {own} 1\r\nw\r\n"),
    ] {
        rig.check(&write, NO_ROUTE);
    }
}

#[test]
fn a_flush_all_of_a_server_whose_lease_is_over_is_not_the_clusters() {
    let mut rig = Rig::new();
    rig.server.own_until(UNTIL);
    rig.worker.look_at_lease(Instant::ZERO);
    let alone = Owner { server: HERE, worker: WorkerId(0) };
    let map = ClusterMap::new(1, vec![(Prefix::ALL, alone)]).expect("it covers all");
    let cluster = Arc::new(Cluster::without_addresses(map));
    rig.handle(Event::Mapped { here: HERE, cluster });
    rig.check("flush_all\r\n", "OK\r\n");
    rig.worker.look_at_lease(UNTIL);
    rig.check("flush_all\r\n", "SERVER_ERROR flush_all did not reach 1 of 1 servers\r\n");
    rig.check("flush_all noreply\r\nmn\r\n", "MN\r\n");
}

#[test]
fn a_process_that_was_stopped_finds_its_lease_over_with_requests_that_had_arrived_before() {
    let mut rig = owning();
    let own = key(0);
    // Half a request is there already.
    rig.handle(Event::Received { conn: CONN, bytes: format!("get {own}").as_bytes() });
    rig.worker.look_at_lease(UNTIL + Duration::from_secs(60));
    let rest = rig.handle(Event::Received { conn: CONN, bytes: b"\r\n" });
    assert_eq!(rest.bytes, b"END\r\n");
}

#[test]
fn what_is_forsaken_is_dropped_and_the_server_owns_anew_by_a_newer_map_alone() {
    let mut rig = owning();
    let own = key(0);
    rig.worker.look_at_lease(UNTIL);
    rig.server.own_until(Instant::ZERO);
    assert_eq!(rig.server.fence_off(rig.now), None, "nobody is in a batch, and nothing moves");
    assert_eq!(rig.server.store.prefixes(), []);
    // It is under a lease again; the map that it forsook does not come back.
    rig.server.own_until(Instant::from_secs(20));
    rig.worker.look_at_lease(UNTIL);
    rig.handle(Event::Mapped { here: HERE, cluster: cluster(1) });
    rig.check(&format!("get {own}\r\n"), "END\r\n");
    rig.check(&format!("set {own} 0 0 1\r\nw\r\n"), NO_ROUTE);
    rig.handle(Event::Mapped { here: HERE, cluster: cluster(2) });
    rig.check(&format!("get {own}\r\n"), "END\r\n");
    rig.check(&format!("set {own} 0 0 1\r\nw\r\n"), "STORED\r\n");
}

#[test]
fn a_server_without_a_lease_owns_for_ever() {
    let mut rig = Rig::new();
    rig.worker.look_at_lease(Instant::from_secs(u64::from(u32::MAX)));
    rig.check("set k 0 0 1\r\nv\r\n", "STORED\r\n");
}
