//! From what workers count to the loads that the balancer reads.

use mbal_model::Prefix;
use mbal_worker::{ConnId, Event, Tallies};

use crate::orders::{Pair, key};
use crate::rig::CONN;

/// The loads of an epoch of a second, in thousandths, in which worker 0 was busy for half of it.
fn reading(
    pair: &mut Pair,
    before: &Tallies,
    requests: &[(ConnId, String)],
) -> (Vec<i64>, Vec<i64>, Vec<i64>) {
    for (conn, request) in requests {
        pair.handle(0, Event::Received { conn: *conn, bytes: request.as_bytes() });
    }
    pair.handle(0, Event::Rests { busy_ns: 500_000_000 });
    let reading = pair.server.end_epoch(1_000_000_000).since(before);
    let thousandths = |load: f64| (load * 1000.0).round() as i64;
    let workers = &reading.snapshot.workers;
    let cachelets = workers.iter().flat_map(|worker| &worker.cachelets);
    assert!(cachelets.clone().map(|held| held.cachelet).eq(Prefix::equal(2)));
    (
        workers.iter().map(|worker| thousandths(worker.fixed)).collect(),
        reading.handable.iter().map(|load| thousandths(*load)).collect(),
        cachelets.map(|held| thousandths(held.load)).collect(),
    )
}

#[test]
fn clients_that_know_the_workers_are_their_cachelets_load() {
    let mut pair = Pair::new();
    let before = pair.server.end_epoch(0);
    let request = |prefix| (CONN, format!("mg {} L1.0\r\n", key(prefix)));
    let requests = [request(0), request(0), request(0), request(1)];
    let (fixed, handable, cachelets) = reading(&mut pair, &before, &requests);
    assert_eq!((fixed, handable, cachelets), (vec![0, 0], vec![0, 0], vec![375, 125, 0, 0]));
}

#[test]
fn other_clients_are_their_workers_load() {
    let mut pair = Pair::new();
    let before = pair.server.end_epoch(0);
    let chose = ConnId(1);
    pair.handle(0, Event::Opened { conn: chose, own_port: true });
    let plain = format!("mg {}\r\n", key(0));
    let requests = [(CONN, plain.clone()), (chose, plain)];
    let (fixed, handable, cachelets) = reading(&mut pair, &before, &requests);
    assert_eq!((fixed, handable, cachelets), (vec![500, 0], vec![250, 0], vec![0; 4]));
}

#[test]
fn both_share_a_worker_by_their_work() {
    let mut pair = Pair::new();
    let before = pair.server.end_epoch(0);
    let follows = ConnId(1);
    pair.handle(0, Event::Opened { conn: follows, own_port: true });
    let plain = (CONN, format!("mg {}\r\n", key(0)));
    let smart = (follows, format!("mg {} L1.0\r\n", key(1)));
    let requests = [plain.clone(), smart, plain.clone(), plain];
    let (fixed, handable, cachelets) = reading(&mut pair, &before, &requests);
    assert_eq!((fixed, handable, cachelets), (vec![375, 0], vec![375, 0], vec![0, 125, 0, 0]));
}
