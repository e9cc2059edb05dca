//! How long the planner of a whole cluster takes, once an epoch: `cargo run --release -p mbal-exact --example cluster_speed`.

#[path = "../tests/clusters/mod.rs"]
mod clusters;

use std::time::Instant;

use clusters::{Clusters, Recipe};
use mbal_balance::{ClusterPlanner, Thresholds};
use mbal_model::{Outlook, ServerOutlook, Standing};

/// Every fifth server is half as busy again: it asks, and is helped.
const HOT_EVERY: usize = 5;

fn outlook(servers: usize, workers: usize, cachelets: usize) -> Outlook {
    let recipe =
        Recipe { servers, workers_per_server: workers, cachelets, load: 0.6, ..Recipe::SMALL };
    let snapshot = Clusters::new(1).draw(&recipe);
    let servers = snapshot.workers.chunks(workers).enumerate().map(|(at, own)| {
        let mut own = own.to_vec();
        let hot = if at % HOT_EVERY == 0 { 1.5 } else { 1.0 };
        for held in own.iter_mut().flat_map(|worker| &mut worker.cachelets) {
            held.load *= hot;
        }
        ServerOutlook {
            server: own[0].at.server,
            standing: Standing::Serving,
            memory_bytes: u64::MAX / 1024,
            workers: own,
            helpless: true,
            refuses: false,
            copying: Vec::new(),
            hottest: Vec::new(),
            room_bytes: None,
        }
    });
    Outlook { servers: servers.collect(), ..Outlook::default() }
}

fn main() {
    println!("servers,workers,cachelets,moves,ms_quiet,ms_planning");
    for (servers, workers, cachelets) in [(20, 4, 2_048), (100, 8, 16_384), (500, 16, 32_768)] {
        let mut outlook = outlook(servers, workers, cachelets);
        let mut planner = ClusterPlanner::new(Thresholds::default());
        let mut times = Vec::new();
        let mut moves = 0;
        // Nothing is planned before the fourth.
        for epoch in 1..=4 {
            outlook.epoch = epoch;
            let begun = Instant::now();
            moves = planner.plan(&outlook).moves.len();
            times.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        println!("{servers},{workers},{cachelets},{moves},{:.2},{:.2}", times[2], times[3]);
    }
}
