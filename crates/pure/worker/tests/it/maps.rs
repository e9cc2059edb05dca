//! Maps of the cluster reach workers at different times, and not in order.

use std::sync::Arc;

use mbal_model::{Cluster, ClusterMap, Key, Owner, Prefix, ServerId, WorkerId};
use mbal_worker::{Event, Settings};

use crate::rig::{CONN, Rig};

const HERE: ServerId = ServerId(1);

/// Server 1 has the lower half, or everything.
fn map(version: u64, upper: u16) -> Arc<Cluster> {
    let owner = |server| Owner { server: ServerId(server), worker: WorkerId(0) };
    let owners = Prefix::equal(1).zip([1, upper].map(owner)).collect();
    let map = ClusterMap::new(version, owners).expect("they cover all");
    Arc::new(Cluster::without_addresses(map))
}

fn key_of_the_upper_half() -> String {
    let is_upper = |word: &String| Key::new(word.as_bytes()).expect("short").hash() >> 63 == 1;
    (0..).map(|number| format!("k{number}")).find(is_upper).expect("endless")
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
    other.check(&format!("get {}\r\n", key_of_the_upper_half()), "END\r\n");
}

#[test]
fn an_older_map_that_comes_late_changes_nothing() {
    let [mut one, mut other] = two_workers();
    one.handle(Event::Mapped { here: HERE, cluster: map(9, 2) });
    for rig in [&mut one, &mut other] {
        rig.handle(Event::Mapped { here: HERE, cluster: map(8, 1) });
        rig.check(&format!("get {}\r\n", key_of_the_upper_half()), "END\r\n");
        let told = rig.send(b"config get mbal\r\n");
        let told = String::from_utf8(told).expect("text");
        assert_eq!(told.lines().nth(2).map(|line| line.split('.').next()), Some(Some("version 9")));
    }
}

#[test]
fn a_get_with_a_key_that_is_too_long_is_an_error_whoever_has_the_others() {
    let [mut one, _] = two_workers();
    one.handle(Event::Mapped { here: HERE, cluster: map(9, 2) });
    let (key, long) = (key_of_the_upper_half(), "k".repeat(251));
    for command in ["get", "gets", "gat 10", "gats 10"] {
        let error = "CLIENT_ERROR bad command line format\r\n";
        one.check(&format!("{command} {key} {long}\r\n"), error);
        one.check(&format!("{command} {long} {key}\r\n"), error);
    }
}
