//! The balancer in a closed loop: it acts at once, evens out, and then is still.

mod closed;

use closed::{Allowed, World};

const BOTH: Allowed = Allowed { two: true, three: true };

/// Workload B of MBal's paper: 95% of the operations are one worker's.
fn workload_b(servers: usize, workers: usize, allowed: Allowed, seed: u64) -> World {
    let mut world = World::new(servers, workers, allowed, seed);
    let all = world.shares.len() as f64;
    (0..20).for_each(|_| world.epoch());
    world.shares.iter_mut().enumerate().for_each(|(at, share)| {
        *share = if at < 16 { 0.95 / 16.0 } else { 0.05 / (all - 16.0) };
    });
    world
}

#[test]
fn a_hot_worker_is_relieved_by_both_phases_and_then_all_is_still() {
    for seed in 1..=10 {
        let mut world = workload_b(3, 2, BOTH, seed);
        let began = world.epoch;
        let mut crossed = 0;
        let mut trace = Vec::new();
        for _ in 0..30 {
            let before = world.quotients();
            world.epoch();
            let now = world.quotients();
            crossed +=
                before.iter().zip(&now).skip(1).filter(|(a, b)| **a <= 1.15 && 1.15 < **b).count();
            trace.push(format!("{:.2}", world.throughput()));
            println!(
                "{} {:?}",
                world.epoch - began,
                now.iter().map(|q| (q * 100.0).round() / 100.0).collect::<Vec<_>>()
            );
        }
        let first = world.moved.first().copied().unwrap_or(u64::MAX) - began;
        println!(
            "seed {seed}: phase 3 after {first}, crossed {crossed}, moved {} lent {} restless {}, {}",
            world.moved.len(),
            world.lent.len(),
            world.restless,
            trace.join(" ")
        );
        assert!(first <= 6);
        assert!(world.most() < 1.15 && world.throughput() > 0.85, "{:?}", world.quotients());
    }
}
