//! What a sketch costs per key, in nanoseconds, beside the cost of drawing the keys alone.
//!
//!     cargo run --release -p mbal-bench --example sketch_speed
//!
//! Keys have the shape of the Wikipedia trace; drawn before the clock starts. Writes
//! `docs/results/deciders/sketch-speed.csv`: the median of 31 rounds, their spread.

#[path = "../../pure/sketch/examples/support/mod.rs"]
mod support;

use mbal_lossy::LossyCounter;
use mbal_sketch::*;
use std::fmt::Write;
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: usize = 31;
const BYTES: u32 = 300;
/// Of each key: the tracker keeps those of its keys.
const NAME: &[u8] = b"enwiki:page:12345678";

/// Requests to a worker in a second, after which the tracker's epoch ends.
const EPOCH: usize = 1_000_000;

fn main() {
    let ranks = support::wikipedia::shape().ranks();
    let mut bits = Random::new(1);
    let stream: Vec<u64> = (0..4_000_000).map(|_| mix(ranks.draw(&mut bits) as u64)).collect();
    // What a sampler lets through, gathered, so that each sketch is timed on sampled keys alone.
    let mut sampler = Sampler::new(0.03, 5);
    let sampled: Vec<u64> = stream.iter().copied().filter(|_| sampler.choose()).collect();

    let mut rows = String::from("sketch,keys,ns_median,ns_least,ns_most\n");
    let mut row = |name: &str, keys: &[u64], run: &mut dyn FnMut(&[u64])| {
        run(keys);
        let mut ns: Vec<f64> = (0..ROUNDS)
            .map(|_| {
                let start = Instant::now();
                run(keys);
                start.elapsed().as_nanos() as f64 / keys.len() as f64
            })
            .collect();
        ns.sort_by(f64::total_cmp);
        writeln!(
            rows,
            "{name},{},{:.2},{:.2},{:.2}",
            keys.len(),
            ns[ROUNDS / 2],
            ns[0],
            ns[ROUNDS - 1]
        )
        .expect("a string grows");
    };

    // A worker has every request's hash at hand; the sum stands for that in all three rows.
    let touch = |keys: &[u64]| black_box(keys.iter().fold(0, |sum: u64, &key| sum ^ key));
    row("sum of hashes alone, per request", &stream, &mut |keys| {
        for batch in keys.chunks(64) {
            touch(batch);
        }
    });
    let mut sampler = Sampler::new(0.03, 1);
    row("with a sampler at 3%, per request", &stream, &mut |keys| {
        for batch in keys.chunks(64) {
            touch(batch);
            each_chosen(&mut sampler, batch, |key| _ = black_box(key));
        }
    });
    let mut sampler = Sampler::new(0.03, 1);
    let mut tracker = HotKeys::new(512, 0.5);
    row("with sampler and hot-key tracker, per request", &stream, &mut |keys| {
        for epoch in keys.chunks(EPOCH) {
            for batch in epoch.chunks(64) {
                touch(batch);
                each_chosen(&mut sampler, batch, |key| {
                    tracker.observe(key, NAME, Access::Read);
                });
            }
            tracker.tick();
        }
    });
    let mut tracker = HotKeys::new(512, 0.5);
    row("hot-key tracker of 512, per sampled key", &sampled, &mut |keys| {
        for epoch in keys.chunks(EPOCH * 3 / 100) {
            for &key in epoch {
                tracker.observe(key, NAME, Access::Read);
            }
            tracker.tick();
        }
    });
    let mut counter = LossyCounter::new(0.0005, 0.00015);
    row("lossy counter at error 1.5e-4, per sampled key", &sampled, &mut |keys| {
        keys.iter().for_each(|&key| counter.observe(key));
    });
    let mut distinct = HyperLogLog::new(12);
    row("HyperLogLog at precision 12, per sampled key", &sampled, &mut |keys| {
        keys.iter().for_each(|&key| distinct.observe(key));
    });
    for samples_most in [4_096, 16_384] {
        let mut distances = StackDistances::new(samples_most);
        row(&format!("stack distances of {samples_most}, per key offered"), &stream, &mut |keys| {
            keys.iter().for_each(|&key| distances.observe(key, BYTES));
        });
        // Only keys under the hash threshold that the run above settled at.
        let chosen: Vec<u64> = stream
            .iter()
            .copied()
            .filter(|&key| mix(key) as f64 / u64::MAX as f64 <= distances.rate())
            .collect();
        row(&format!("stack distances of {samples_most}, per sampled key"), &chosen, &mut |keys| {
            keys.iter().for_each(|&key| distances.observe(key, BYTES));
        });
    }
    print!("{rows}");
    support::write_result("sketch-speed.csv", &rows);
}

fn each_chosen(sampler: &mut Sampler, mut batch: &[u64], mut look: impl FnMut(u64)) {
    while let Some(place) = sampler.next_among(batch.len() as u32) {
        look(batch[place as usize]);
        batch = &batch[place as usize + 1..];
    }
}
