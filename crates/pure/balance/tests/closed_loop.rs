//! The balancer in a closed loop: it acts at once, evens out, and then is still.

mod closed;

use closed::{Allowed, KEYS, World};

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
        let mut crossed = vec![0; 6];
        let mut best: f64 = 0.0;
        for _ in 0..30 {
            let before = world.quotients();
            world.epoch();
            let changes = before.iter().zip(world.quotients()).enumerate();
            changes
                .filter(|(_, (was, is))| **was <= 1.15 && 1.15 < *is)
                .for_each(|(at, _)| crossed[at] += 1);
            if world.epoch > began + 25 {
                best = best.max(world.throughput());
            }
        }
        let first = world.moved.first().copied().unwrap_or(u64::MAX) - began;
        let lent = world.lent.len();
        println!(
            "seed {seed}: phase 3 after {first}, {lent} lent, {} moved, {best:.2}",
            world.moved.len()
        );
        assert!(first <= 6, "seed {seed}");
        assert!(crossed.iter().all(|times| *times <= 2), "seed {seed}: {crossed:?}");
        assert!(world.restless == 0 && world.moved.len() + lent < 60, "seed {seed}");
        // Sixteen hot cachelets for six workers: three for some.
        assert!(world.most() < 1.15 && best > 0.85, "seed {seed}: {:?}", world.quotients());
    }
}

#[test]
fn either_phase_alone_acts_and_ends() {
    for (two, three) in [(true, false), (false, true)] {
        let mut world = workload_b(3, 2, Allowed { two, three }, 1);
        let before = world.throughput();
        (0..30).for_each(|_| world.epoch());
        assert!(world.throughput() > 1.8 * before, "{two} {three}");
        assert_eq!((world.lent.is_empty(), world.moved.is_empty()), (!two, !three));
    }
}

#[test]
fn an_even_cluster_is_left_alone() {
    // Requests a second that a worker can serve: where few come, chance makes workers differ most.
    for rate in [1_400.0, 4_000.0, 20_000.0, 60_000.0, 120_000.0] {
        for clients in [4.0, 24.0, 96.0, 960.0] {
            let mut world = World::new(3, 2, BOTH, 1);
            (world.clients, world.capacities) = (clients, vec![rate / KEYS; 6]);
            (0..1_000).for_each(|_| world.epoch());
            let done = world.lent.len() + world.moved.len();
            assert!(done <= 5, "{done} with {clients} clients, {rate} requests a second");
        }
    }
}

#[test]
fn workers_that_can_do_less_get_less() {
    let mut world = World::new(4, 2, BOTH, 1);
    world.capacities[0] = 0.4;
    world.capacities[5] = 0.6;
    (0..40).for_each(|_| world.epoch());
    assert!(world.most() < 1.25, "{:?}", world.quotients());
}
