//! NetKV's Figure 18: what sampling does to the hot-key detector's accuracy.
//!
//!     cargo run --release -p mbal-sketch --example hot_key_sampling
//!
//! 28 million requests of the Wikipedia shape, sampled at several rates into a lossy counter; the
//! true top 100 looked for among the 1,000 keys that it counted most. Writes
//! `docs/results/deciders/figure-18.csv` and, for the plot, `figure-18-keys.csv`.

mod support;

use mbal_lossy::LossyCounter;
use mbal_sketch::{Random, Sampler, mix};
use std::collections::BTreeMap;
use std::fmt::Write;
use support::wikipedia;

const TOP: usize = 100;
const TRACKED: usize = 1_000;
const SEEDS: u64 = 5;

fn main() {
    let shape = wikipedia::shape();
    let ranks = shape.ranks();
    let mut rows = String::from(
        "seed,one_in,sampled,counter_keys,of_top_100,error_median,error_p90,top_25_share,rare_keys\n",
    );
    let mut keys = String::from("rank,true_count,one_in,estimated_count\n");
    for seed in 1..=SEEDS {
        let mut bits = Random::new(seed);
        let mut counts = vec![0_u32; shape.keys + 1];
        let stream: Vec<u32> = (0..wikipedia::REQUESTS)
            .map(|_| {
                let key = ranks.draw(&mut bits) as u32;
                counts[key as usize] += 1;
                key
            })
            .collect();
        let rare_keys = counts.iter().filter(|&&count| (1..=10).contains(&count)).count();
        let mut top: Vec<u32> = (0..counts.len() as u32).collect();
        top.sort_by_key(|&key| std::cmp::Reverse(counts[key as usize]));
        let top_25: u32 = top[..25].iter().map(|&key| counts[key as usize]).sum();
        for one_in in [1, 10, 100, 1_000, 10_000] {
            let mut sampler = Sampler::new(1.0 / f64::from(one_in), seed);
            // Support and error ask for a thousand keys of a stream of this length.
            let mut counter = LossyCounter::new(0.0005, 0.00015);
            for &key in stream.iter().filter(|_| sampler.choose()) {
                counter.observe(mix(u64::from(key)));
            }
            let tracked: BTreeMap<u64, f64> = counter
                .top(TRACKED)
                .into_iter()
                .map(|key| (key.hash, f64::from(key.count) * f64::from(one_in)))
                .collect();
            let mut errors = Vec::new();
            for (rank, &key) in top[..TOP].iter().enumerate() {
                let Some(&estimate) = tracked.get(&mix(u64::from(key))) else { continue };
                let truth = f64::from(counts[key as usize]);
                errors.push((estimate - truth).abs() / truth);
                if seed == 1 {
                    writeln!(keys, "{},{truth},{one_in},{estimate}", rank + 1)
                        .expect("a string grows");
                }
            }
            errors.sort_by(f64::total_cmp);
            writeln!(
                rows,
                "{seed},{one_in},{},{},{},{:.4},{:.4},{:.4},{rare_keys}",
                counter.seen(),
                counter.tracked(),
                errors.len(),
                errors[errors.len() / 2],
                errors[errors.len() * 9 / 10],
                f64::from(top_25) / wikipedia::REQUESTS as f64,
            )
            .expect("a string grows");
        }
    }
    println!("Zipf exponent {:.4}, {} keys", shape.exponent, shape.keys);
    print!("{rows}");
    support::write_result("figure-18.csv", &rows);
    support::write_result("figure-18-keys.csv", &keys);
}
