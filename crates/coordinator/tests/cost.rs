//! What a large cluster's heartbeats and questions cost its coordinator, of one transaction each:
//! `cargo test --release -p mbal-coordinator --test cost -- --ignored --nocapture`.

use std::hint::black_box;
use std::time::{self, Duration};

use mbal_control::api::{
    Heartbeat, Incarnation, MoveCall, MoveReport, Progress, Registration, WorkerReport,
};
use mbal_control::{Coordinator, Request, Response, Settings};
use mbal_model::{Cluster, ClusterView, Instant, MapVersion, ServerId};

const SERVERS: u16 = 1_000;
const WORKERS: u16 = 64;
const ROUNDS: u32 = 20;

fn heartbeat(id: u16, map_version: u64) -> Heartbeat {
    let worker = WorkerReport { fixed: 0.5, ..WorkerReport::default() };
    let workers = vec![worker; WORKERS.into()];
    let incarnation = Incarnation(u64::from(id));
    Heartbeat { incarnation, map_version, workers, ..Heartbeat::default() }
}

#[test]
#[ignore = "a measurement"]
fn of_a_thousand_servers_of_64_workers() {
    let settings = Settings { servers_first: SERVERS.into(), ..Settings::default() };
    let mut coordinator = Coordinator::new(settings);
    let mut now = Instant::ZERO;
    for id in 1..=SERVERS {
        let (high, low) = (id / 250, id % 250);
        let registration = Registration {
            id: Some(id),
            incarnation: Incarnation(id.into()),
            cluster: "mbal".into(),
            client: format!("10.0.{high}.{low}:11211"),
            link: format!("10.0.{high}.{low}:11311"),
            workers: (0..WORKERS).map(|at| format!("10.0.{high}.{low}:{}", 12_000 + at)).collect(),
            memory_bytes: 64 << 30,
            moves: true,
            ..Registration::default()
        };
        now += Duration::from_micros(1);
        coordinator.handle(now, Request::Register(registration)).answer.expect("it is taken");
    }
    let mut ask = |coordinator: &mut Coordinator, ask: Request| {
        now += Duration::from_micros(1_000);
        coordinator.handle(now, ask).answer.expect("it is answered")
    };
    let version = coordinator.state().map.as_ref().expect("there is a map").version();
    for id in 1..=SERVERS {
        ask(&mut coordinator, Request::Heartbeat(ServerId(id), heartbeat(id, version)));
    }
    let beats: Vec<Heartbeat> = (1..=SERVERS).map(|id| heartbeat(id, version)).collect();
    let mut elapsed = Duration::ZERO;
    for _ in 0..ROUNDS {
        for (id, beat) in (1..).zip(beats.clone()) {
            let begun = time::Instant::now();
            drop(black_box(ask(&mut coordinator, Request::Heartbeat(ServerId(id), beat))));
            elapsed += begun.elapsed();
        }
    }
    let count = ROUNDS * u32::from(SERVERS);
    println!("a heartbeat: {:.2} us", elapsed.as_secs_f64() * 1e6 / f64::from(count));
    let begun = time::Instant::now();
    (0..ROUNDS).for_each(|_| drop(black_box(ask(&mut coordinator, Request::Status))));
    println!("a status: {:.2} us", begun.elapsed().as_secs_f64() * 1e6 / f64::from(ROUNDS));
    let Response::Map(map) = ask(&mut coordinator, Request::Map) else { panic!("it is a map") };
    let map = Cluster::parse(&map).expect("it is one");
    println!("{} cachelets, a map of {} bytes", map.map.cachelets().len(), map.to_string().len());
    let mut behind = |coordinator: &mut Coordinator, id: u16, map_version: u64, sealed: u32| {
        let mut beat = Heartbeat { takes_changes: true, ..heartbeat(id, map_version) };
        if sealed > 0 {
            let (number, progress) = (sealed, Progress::Sealed);
            beat.moves = vec![MoveReport { number, progress, ..MoveReport::default() }];
        }
        let begun = time::Instant::now();
        let Response::News(news) = ask(coordinator, Request::Heartbeat(ServerId(id), beat)) else {
            panic!("there is news")
        };
        let elapsed = begun.elapsed().as_secs_f64() * 1e6;
        let bytes = serde_json::to_string(&news).expect("it is JSON").len();
        println!(
            "after {} moves, server {id}: {bytes} bytes, {elapsed:.2} us",
            map_version - version + 1
        );
        bytes
    };
    // The first change after a start is told whole.
    for (number, (prefix, owner)) in (1..).zip(map.map.cachelets()).take(2) {
        let server = 1 + owner.server.0 % SERVERS;
        let call = MoveCall { prefix: prefix.to_string(), server, worker: None };
        let asked = coordinator.handle(Instant::from_micros(1 << 40), Request::Move(call));
        asked.answer.expect("it begins");
        let followed = version + u64::from(number) - 1;
        let told = [(owner.server.0, number), (500, 0), (501, 0)]
            .map(|(id, sealed)| behind(&mut coordinator, id, followed, sealed));
        assert!(number == 1 || told.into_iter().all(|bytes| bytes <= 1024), "{told:?}");
    }
    // What a server then tells its clients.
    let Response::Map(moved) = ask(&mut coordinator, Request::Map) else { panic!("it is a map") };
    let moved = Cluster::parse(&moved).expect("it is one");
    let begun = time::Instant::now();
    let difference = [moved.difference(&map)];
    println!("what changed: {:.0} us", begun.elapsed().as_secs_f64() * 1e6);
    println!("to a proxy: {} bytes", moved.without_cachelets().len());
    let view = ClusterView { cluster: moved, local: 40 };
    for local in [40, 0] {
        let known = MapVersion { map: version, local };
        let begun = time::Instant::now();
        let bytes = view.changes(ServerId(500), known, &difference).len();
        let us = begun.elapsed().as_secs_f64() * 1e6;
        println!("to a client that knows {known}: {bytes} bytes, {us:.0} us");
    }
}
