//! Sampled curves against the exact ones, on real traces and on parts of a partitioned cache.

#[path = "../examples/support/mod.rs"]
mod support;

mod mattson;

use mbal_sketch::{Curve, Random, StackDistances, mix};
use support::traces;

const SAMPLES: usize = 16_384;

fn mean_error(curve: &Curve, exact: &mattson::ExactCurve) -> f64 {
    let sizes = 1_000;
    let step = |i: u64| exact.size_most() * i / sizes;
    (1..=sizes).map(|i| (curve.miss_ratio(step(i)) - exact.miss_ratio(step(i))).abs()).sum::<f64>()
        / sizes as f64
}

fn sampled(requests: &[(u64, u32)], samples: usize) -> StackDistances {
    let mut distances = StackDistances::new(samples);
    requests.iter().for_each(|&(key, bytes)| distances.observe(key, bytes));
    distances
}

#[test]
fn curves_of_every_small_trace_are_within_a_hundredth() {
    for name in traces::NAMES.into_iter().filter(|name| !name.starts_with("cloudphysics")) {
        let Some(trace) = traces::load(name) else { continue };
        let (by_items, by_bytes) = mattson::exact(&trace.requests);
        let distances = sampled(&trace.requests, SAMPLES);
        assert!(distances.state_bytes() <= 1_000_000, "{}", distances.state_bytes());
        let errors = [
            mean_error(&distances.by_items(), &by_items),
            mean_error(&distances.by_bytes(), &by_bytes),
        ];
        assert!(errors.iter().all(|&error| error <= 0.01), "{name}: {errors:?}");
    }
}

#[test]
fn while_all_keys_fit_only_their_order_is_rounded() {
    for (keys, error) in [(100.0, 1e-9), (1_000.0, 0.01), (10_000.0, 0.01)] {
        let mut bits = Random::new(9);
        let requests: Vec<(u64, u32)> =
            (0..50_000).map(|_| (mix((keys * bits.unit().powi(3)) as u64), 100)).collect();
        let (exact, _) = mattson::exact(&requests);
        let distances = sampled(&requests, SAMPLES);
        assert_eq!((distances.rate(), distances.samples() as f64), (1.0, distances.distinct()));
        for size in (0..=keys as u64).step_by(keys as usize / 100) {
            let off = distances.by_items().miss_ratio(size) - exact.miss_ratio(size);
            assert!(off.abs() < error, "{keys} keys, size {size}: {off}");
        }
    }
}

#[test]
fn the_rate_falls_to_keep_the_state_bounded() {
    let mut distances = StackDistances::new(1_000);
    for key in 0..200_000_u64 {
        distances.observe(mix(key), 50);
        assert!(distances.samples() <= 1_000);
    }
    assert!(distances.state_bytes() <= 43 * 1_000 + 83_000, "{}", distances.state_bytes());
    assert!((distances.distinct() / 200_000.0 - 1.0).abs() < 0.1, "{}", distances.distinct());
}

#[test]
fn keys_of_one_cachelet_are_sampled_like_any() {
    let mut distances = StackDistances::with_rate(4_096, 0.05);
    (0..20_000_u64).for_each(|key| distances.observe(0x0003 << 48 | key, 1));
    assert!((800..1_200).contains(&distances.samples()), "{}", distances.samples());
}

#[test]
fn merged_curves_of_partitions_are_the_partitioned_cache() {
    let mut bits = Random::new(4);
    let requests: Vec<(u64, u32)> =
        (0..300_000).map(|_| (mix((30_000.0 * bits.unit().powi(4)) as u64), 80)).collect();
    let part_of = |key: u64| (key % 4) as usize;
    let parts: Vec<Vec<(u64, u32)>> = (0..4)
        .map(|part| requests.iter().copied().filter(|&(key, _)| part_of(key) == part).collect())
        .collect();
    let merged = Curve::merged(
        &parts.iter().map(|part| (sampled(part, SAMPLES).by_items(), 0.25)).collect::<Vec<_>>(),
    );
    let exact_parts: Vec<_> = parts.iter().map(|part| mattson::exact(part).0).collect();
    let whole = sampled(&requests, SAMPLES).by_items();
    for size in (0..20_000).step_by(400) {
        let misses: f64 = exact_parts
            .iter()
            .zip(&parts)
            .map(|(curve, part)| curve.miss_ratio(size / 4) * part.len() as f64)
            .sum();
        assert!((merged.miss_ratio(size) - misses / 300_000.0).abs() < 0.005, "{size}");
        assert!((merged.miss_ratio(size) - whole.miss_ratio(size)).abs() < 0.02, "{size}");
    }
}

#[test]
fn faded_requests_stop_counting() {
    let mut distances = StackDistances::new(1_000);
    let scan = |distances: &mut StackDistances, keys: u64| {
        (0..10_000).for_each(|i| distances.observe(mix(i % keys), 10));
    };
    scan(&mut distances, 800);
    (0..20).for_each(|_| distances.fade(0.5));
    scan(&mut distances, 10);
    assert!(distances.by_items().miss_ratio(10) < 0.01);
    assert!(distances.by_bytes().miss_ratio(100) < 0.01);
}
