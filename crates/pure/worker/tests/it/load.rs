//! From what workers count to the loads that the balancer reads.

use mbal_model::{Prefix, ServerId, WorkerId};
use mbal_wire::PeerRequest;
use mbal_worker::{ConnId, Event, OrderId, Tallies, Ticket, Ticketed};

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
    pair.handle(0, Event::Rests { busy_ns: 500_000_000, before_ns: 0 });
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

/// Other servers ask worker 0, which owns the first two cachelets, for keys of these, together.
fn forward(pair: &mut Pair, prefixes: &[u64]) {
    let encoded = |prefix: &u64| {
        let mut bytes = Vec::new();
        PeerRequest::new(1, 1, format!("get {}\r\n", key(*prefix)).as_bytes()).encode(&mut bytes);
        bytes
    };
    let all: Vec<Vec<u8>> = prefixes.iter().map(encoded).collect();
    let requests: Vec<Ticketed<'_>> =
        all.iter().enumerate().map(|(at, bytes)| Ticketed::new(Ticket(at as u64), bytes)).collect();
    let actions = pair.handle(0, Event::Forwarded { server: ServerId(7), requests: &requests });
    assert_eq!(actions.list.len(), prefixes.len(), "each is answered");
}

#[test]
fn what_other_servers_ask_leaves_with_its_cachelet_but_goes_to_no_neighbour() {
    let mut pair = Pair::new();
    let before = pair.server.end_epoch(0);
    // The last one is worker 1's: what it costs here does not leave with anything of worker 0's.
    forward(&mut pair, &[0, 0, 1, 2]);
    pair.handle(0, Event::Rests { busy_ns: 400_000_000, before_ns: 0 });
    let now = pair.server.end_epoch(1_000_000_000);
    let loads = |workers: &[mbal_model::WorkerLoad]| {
        let thousandths = |load: f64| (load * 1000.0).round() as i64;
        let held = workers.iter().flat_map(|worker| &worker.cachelets);
        let loads: Vec<i64> = held.map(|held| thousandths(held.load)).collect();
        (thousandths(workers[0].fixed), loads)
    };
    assert_eq!(loads(&now.since(&before).snapshot.workers), (400, vec![0; 4]));
    assert_eq!(loads(&now.leaves_since(&before)), (100, vec![200, 100, 0, 0]));
}

#[test]
fn what_has_gone_leaves_its_load_to_nobody() {
    let mut pair = Pair::new();
    let before = pair.server.end_epoch(0);
    let request = |prefix| format!("mg {} L1.0\r\n", key(prefix));
    for prefix in [0, 0, 0, 1] {
        pair.handle(0, Event::Received { conn: CONN, bytes: request(prefix).as_bytes() });
    }
    let (order, seen) = (OrderId(1), u64::MAX);
    let lend = Event::Lend { order, cachelet: Prefix::nth(0, 2), to: WorkerId(1), seen };
    pair.handle(0, lend);
    pair.handle(0, Event::Rests { busy_ns: 400_000_000, before_ns: 0 });
    let reading = pair.server.end_epoch(1_000_000_000).since(&before);
    let workers = &reading.snapshot.workers;
    let loads = |at: usize| workers[at].cachelets.iter().map(|held| held.load).collect::<Vec<_>>();
    // Worker 1 has done nothing yet: what it has now shows in its next epoch.
    assert!((loads(0)[0] - 0.1).abs() < 1e-9 && workers[0].fixed < 1e-9, "{workers:?}");
    assert_eq!(loads(1), [0.0; 3]);
}

#[test]
fn turns_and_keys_of_what_follows_cachelets_tell_of_batches() {
    let mut pair = Pair::new();
    let before = pair.server.end_epoch(0);
    let smart = format!("mg {} L1.0\r\n", key(0));
    for _ in 0..3 {
        let bytes = smart.repeat(4);
        pair.handle(0, Event::Received { conn: CONN, bytes: bytes.as_bytes() });
    }
    // Of another client, whose turns stay.
    let plain = format!("mg {}\r\n", key(0)).repeat(8);
    pair.handle(0, Event::Received { conn: CONN, bytes: plain.as_bytes() });
    let service = pair.server.end_epoch(1_000_000_000).leaves_since(&before)[0].service;
    assert_eq!((service.keys, service.turns), (20, 5));
}

#[test]
fn who_stood_in_line_is_told_by_turns_and_by_how_long_they_took() {
    let mut pair = Pair::new();
    let before = pair.server.end_epoch(0);
    let others = [ConnId(1), ConnId(2), ConnId(3)];
    for conn in others {
        pair.handle(0, Event::Opened { conn, own_port: false });
    }
    let get = format!("get {}\r\n", key(0));
    for conn in [CONN].into_iter().chain(others) {
        pair.handle(0, Event::Received { conn, bytes: get.as_bytes() });
    }
    // 0, 50, 100 and 150 ms behind each other, and all of them for half of what was done before.
    pair.handle(0, Event::Rests { busy_ns: 200_000_000, before_ns: 100_000_000 });
    pair.handle(0, Event::Unseen { busy_ns: 300_000_000, delay_ns: 0, ran_ns: 100_000_000 });
    let epoch = pair.server.end_epoch(1_000_000_000);
    let worker = &epoch.leaves_since(&before)[0];
    assert_eq!((worker.service.waiting, worker.service.part), (Some(0.5), Some(0.2)));
    assert!((worker.load() - 0.5).abs() < 1e-9, "{worker:?}");
}
