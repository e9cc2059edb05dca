//! FuseCache beside a heap merge and a sort, on lists that do not fit any CPU cache.
//!
//!     cargo run --release -p mbal-bench --example fusecache_speed
//!
//! 1,000 lists of a million ages (4 GB), the hottest million, for lists that are alike and for
//! adversarial splits; then smaller k and n, to fit the growth. All answers are compared.
//! Writes `docs/results/deciders/fusecache.csv` and `fusecache-growth.csv`.

#[path = "../../pure/sketch/examples/support/mod.rs"]
mod support;

use mbal_elastic::{Age, fuse_counting};
use mbal_sketch::Random;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt::Write;
use std::time::Instant;

const LISTS: usize = 1_000;
const AGES: usize = 1_000_000;
const ROUNDS: usize = 11;

/// A list's number to its youngest age and its mean gap between ages.
type Shape = fn(usize) -> (f64, f64);

/// How the hottest items are spread over the lists.
const SPLITS: [(&str, Shape); 5] = [
    ("alike", |_| (0.0, 4_000.0)),
    // Each list begins where a thousandth of the one before has passed.
    ("staircase", |list| (list as f64 * 4_000_000.0, 4.0)),
    ("halving", |list| (0.0, 2_f64.powf(list as f64 / 100.0))),
    ("one hot", |list| if list == 617 { (0.0, 0.8) } else { (1_000_000.0, 3_000.0) }),
    ("equal ages", |list| (0.0, 0.0005 * (1 + list % 3) as f64)),
];

fn main() {
    let mut ages: Vec<Age> = vec![0; LISTS * AGES];
    let mut rows = String::from("split,method,k,n,ms_median,ms_least,ms_most,rounds,probes\n");
    for (split, shape) in SPLITS {
        for (list, ages) in ages.chunks_mut(AGES).enumerate() {
            fill(ages, list, shape(list));
        }
        let lists: Vec<&[Age]> = ages.chunks(AGES).collect();
        let (items, ms, effort) = timed_fuse(&lists, AGES);
        writeln!(
            rows,
            "{split},fusecache,{LISTS},{AGES},{:.3},{:.3},{:.3},{},{}",
            ms[ROUNDS / 2],
            ms[0],
            ms[ROUNDS - 1],
            effort.rounds,
            effort.probes
        )
        .expect("a string grows");
        let start = Instant::now();
        let merged = heap_merge(&lists, AGES);
        let heap_ms = start.elapsed().as_secs_f64() * 1e3;
        writeln!(rows, "{split},heap merge,{LISTS},{AGES},{heap_ms:.1},,,,").expect("grows");
        assert_eq!(items, merged, "{split}: both pick the same");
        eprint!("{rows}");
    }

    // Growth, on lists that are alike and of n ages each, as in the paper.
    let mut growth =
        String::from("k,n,ms_median,probes,k_log2n_squared,ns_per_unit,probes_per_unit\n");
    for (list, ages) in ages.chunks_mut(AGES).enumerate() {
        fill(ages, list, SPLITS[0].1(list));
    }
    for k in [10, 32, 100, 316, 1_000] {
        for n in [1_000, 10_000, 100_000, 1_000_000] {
            let lists: Vec<&[Age]> = ages.chunks(AGES).take(k).map(|list| &list[..n]).collect();
            let (_, ms, effort) = timed_fuse(&lists, n);
            let unit = k as f64 * (n as f64).log2().powi(2);
            writeln!(
                growth,
                "{k},{n},{:.4},{},{unit:.0},{:.2},{:.4}",
                ms[ROUNDS / 2],
                effort.probes,
                ms[ROUNDS / 2] * 1e6 / unit,
                effort.probes as f64 / unit
            )
            .expect("a string grows");
        }
    }

    // The stable sort finds the thousand sorted runs and merges them.
    let start = Instant::now();
    ages.sort();
    let sort_ms = start.elapsed().as_secs_f64() * 1e3;
    writeln!(rows, "alike,sort,{LISTS},{AGES},{sort_ms:.0},,,,").expect("a string grows");
    print!("{rows}\n{growth}");
    support::write_result("fusecache.csv", &rows);
    support::write_result("fusecache-growth.csv", &growth);
}

// Sorted ages with random gaps of a mean, from a base.
fn fill(ages: &mut [Age], list: usize, (base, gap): (f64, f64)) {
    let mut bits = Random::new(list as u64);
    let mut age = base;
    for slot in ages {
        age += gap * 2.0 * (bits.word() >> 40) as f64 / f64::from(1 << 24);
        *slot = age as Age;
    }
}

fn timed_fuse(lists: &[&[Age]], n: usize) -> (Vec<usize>, Vec<f64>, mbal_elastic::Effort) {
    let mut ms = Vec::new();
    let mut last = None;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        last = Some(fuse_counting(lists, n));
        ms.push(start.elapsed().as_secs_f64() * 1e3);
    }
    ms.sort_by(f64::total_cmp);
    let (picks, effort) = last.expect("at least one round");
    (picks.iter().map(|pick| pick.items).collect(), ms, effort)
}

fn heap_merge(lists: &[&[Age]], n: usize) -> Vec<usize> {
    let mut items = vec![0; lists.len()];
    let mut heads: BinaryHeap<Reverse<(Age, usize)>> =
        lists.iter().enumerate().map(|(list, ages)| Reverse((ages[0], list))).collect();
    for _ in 0..n {
        let Some(Reverse((_, list))) = heads.pop() else { break };
        items[list] += 1;
        if let Some(&age) = lists[list].get(items[list]) {
            heads.push(Reverse((age, list)));
        }
    }
    items
}
