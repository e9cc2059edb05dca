//! What a cluster costs its coordinator by its size: `mbal-lab model size`.
//!
//! The coordinator, its planner and the texts of its API as they are; servers say loads that are drawn. Times are of this
//! machine, of one thread; the web framework and the network are not in them.

use std::time::{self, Duration};

use mbal_balance::{ClusterPlanner, Thresholds};
use mbal_control::api::{
    Heartbeat, Incarnation, News, Registration, WorkerReport, cachelets_listed,
};
use mbal_control::{Coordinator, Request, Response, Settings};
use mbal_model::{Instant, ServerId};
use mbal_sketch::Random;

use super::report::Report;

#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Servers of the cluster; several sizes are told one after the other.
    #[arg(long, value_delimiter = ',', default_values_t = [10, 100, 1000])]
    servers: Vec<u16>,
    /// Workers of each server.
    #[arg(long, default_value_t = 64)]
    workers: usize,
    /// Epochs that are timed.
    #[arg(long, default_value_t = 5)]
    epochs: u64,
}

/// Loads that cachelets bring to the workers of every other server, and of the others.
const LOADS: [f64; 2] = [0.75, 0.25];
const CACHELET_BYTES: u64 = 64 << 20;

/// Of one epoch, and of one heartbeat, answer and map.
#[derive(Default)]
struct Cost {
    heartbeats: Duration,
    plans: Duration,
    moves: usize,
    heartbeat_bytes: usize,
    answer_bytes: usize,
    map_bytes: usize,
    saved: Duration,
    saved_bytes: usize,
}

pub fn run(options: &Options, seed: u64, report: &Report) -> Result<(), String> {
    if options.servers.contains(&0) || options.workers == 0 || options.epochs == 0 {
        return Err("--servers, --workers, --epochs: at least 1".into());
    }
    let mut rows = Vec::new();
    for &servers in &options.servers {
        let (cost, cachelets) = cost(servers, options, seed);
        let ms = |all: Duration| all.as_secs_f64() * 1e3 / options.epochs as f64;
        rows.push(format!(
            "{servers},{},{cachelets},{},{},{:.1},{:.1},{},{},{:.1},{}",
            options.workers,
            cost.heartbeat_bytes,
            cost.answer_bytes,
            ms(cost.heartbeats),
            ms(cost.plans),
            cost.moves / options.epochs as usize,
            cost.map_bytes,
            cost.saved.as_secs_f64() * 1e3,
            cost.saved_bytes,
        ));
    }
    let header = "servers,workers,cachelets,heartbeat_bytes,answer_bytes,heartbeats_ms,plan_ms,\
                  moves,map_bytes,save_ms,state_bytes";
    report.table("size", header, &rows)
}

/// Heartbeats as they come by the API, text to text.
fn cost(servers: u16, options: &Options, seed: u64) -> (Cost, usize) {
    let mut coordinator = registered(servers, options.workers);
    let mut random = Random::new(seed);
    let mut planner = ClusterPlanner::new(Thresholds::default());
    let mut cost = Cost::default();
    let map = coordinator.state().map.clone().expect("all servers have registered");
    for epoch in 1..=options.epochs {
        let now = Instant::from_micros(epoch * 1_000_000);
        for id in 1..=servers {
            let heartbeat = heartbeat(&coordinator, ServerId(id), options.workers, &mut random);
            let text = serde_json::to_vec(&heartbeat).expect("a heartbeat is JSON");
            let begun = time::Instant::now();
            let heartbeat = serde_json::from_slice(&text).expect("it was written so");
            let done = coordinator.handle(now, Request::Heartbeat(ServerId(id), heartbeat));
            let Ok(Response::News(news)) = done.answer else { unreachable!("the server is known") };
            let answer = serde_json::to_vec(&News { map: None, ..news }).expect("news are JSON");
            cost.heartbeats += begun.elapsed();
            (cost.heartbeat_bytes, cost.answer_bytes) =
                (cost.heartbeat_bytes.max(text.len()), cost.answer_bytes.max(answer.len()));
        }
        let begun = time::Instant::now();
        let Ok(Response::Outlook(outlook)) =
            coordinator.handle(now, Request::Outlook(epoch)).answer
        else {
            unreachable!("an outlook is answered by one");
        };
        let plan = planner.plan(&outlook);
        let before = coordinator.state().moves.len();
        drop(coordinator.handle(now, Request::Planned(plan)));
        cost.plans += begun.elapsed();
        cost.moves += coordinator.state().moves.len() - before;
    }
    let begun = time::Instant::now();
    cost.saved_bytes = coordinator.state().to_json().len();
    cost.saved = begun.elapsed();
    cost.map_bytes = coordinator.state().document().expect("there is a map").to_string().len();
    (cost, map.cachelets().len())
}

fn registered(servers: u16, workers: usize) -> Coordinator {
    let settings = Settings { servers_first: servers.into(), ..Settings::default() };
    let mut coordinator = Coordinator::new(settings);
    for id in 1..=servers {
        let host = format!("cache-{id:04}.example.net");
        let registration = Registration {
            id: Some(id),
            incarnation: Incarnation(u64::from(id)),
            cluster: "mbal".into(),
            client: format!("{host}:11211"),
            link: format!("{host}:11311"),
            workers: (0..workers).map(|at| format!("{host}:{}", 11_400 + at)).collect(),
            memory_bytes: 64 << 30,
            moves: true,
            ..Registration::default()
        };
        let done = coordinator.handle(Instant::ZERO, Request::Register(registration));
        done.answer.expect("nobody is in the way");
    }
    coordinator
}

/// Half of the servers have twice the load of the others.
fn heartbeat(
    coordinator: &Coordinator,
    server: ServerId,
    workers: usize,
    random: &mut Random,
) -> Heartbeat {
    let map = coordinator.state().map.clone().expect("there is a map");
    let mut held = vec![Vec::new(); workers];
    let own = map.cachelets().iter().filter(|(_, owner)| owner.server == server);
    for (prefix, owner) in own {
        let drawn = random.below(1_000) as f64 / 1_000.0;
        held[usize::from(owner.worker.0)].push((prefix.to_string(), drawn, CACHELET_BYTES));
    }
    let share = LOADS[usize::from(server.0 % 2)];
    let report = |mut cachelets: Vec<(String, f64, u64)>| {
        let sum: f64 = cachelets.iter().map(|one| one.1).sum();
        cachelets.iter_mut().for_each(|one| one.1 *= share / sum.max(1e-9));
        WorkerReport::new(0.05, cachelets, cachelets_listed(workers))
    };
    Heartbeat {
        incarnation: Incarnation(u64::from(server.0)),
        map_version: map.version(),
        workers: held.into_iter().map(report).collect(),
        version: env!("CARGO_PKG_VERSION").into(),
        ..Heartbeat::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heartbeat_stays_short_however_many_cachelets_there_are() {
        let options = Options { servers: vec![4], workers: 64, epochs: 1 };
        let (cost, cachelets) = cost(4, &options, 1);
        assert_eq!(cachelets, 4_096);
        assert!((1_000..32_768).contains(&cost.heartbeat_bytes), "{}", cost.heartbeat_bytes);
    }
}
