//! FuseCache beside a heap merge and a sort, on lists that do not fit any CPU cache.
//!
//!     cargo run --release -p mbal-bench --example fusecache_speed [-- sizes]
//!
//! `sizes`: lists as a resize has them (samples of ten servers in ten classes, whole lists of a pool), within what fits, beside a walk
//! through all of them sorted. No file is written.
//!
//! 1,000 lists of a million ages (4 GB), the hottest million, for lists that are alike and for
//! adversarial splits; then smaller k and n, to fit the growth. All answers are compared.
//! Writes `docs/results/deciders/fusecache.csv` and `fusecache-growth.csv`.

#[path = "../../pure/sketch/examples/support/mod.rs"]
mod support;

use mbal_elastic::{Age, WeightedAges, fuse_by_weight, fuse_counting};
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
    match std::env::args().nth(1).as_deref() {
        Some("sizes") => sizes(),
        _ => speed(),
    }
}

/// A walk through all items sorted by age, to the first that does not fit.
fn walk(lists: &[WeightedAges], room: u64) -> Vec<usize> {
    let mut all: Vec<(Age, u32)> = Vec::with_capacity(lists.iter().map(|one| one.0.len()).sum());
    for (list, (ages, _)) in lists.iter().enumerate() {
        all.extend(ages.iter().map(|&age| (age, list as u32)));
    }
    all.sort_unstable();
    let (mut items, mut left) = (vec![0; lists.len()], room);
    for (_, list) in all {
        let Some(less) = left.checked_sub(lists[list as usize].1) else { break };
        left = less;
        items[list as usize] += 1;
    }
    items
}

fn sizes() {
    println!(
        "| lists, ages of each | ages, MB | fuse, ms | sorted, ms; MB more | times |\n|---|---|---|---|---|"
    );
    for (lists, len) in [(100, 820), (10, 100_000), (10, 1_000_000), (100, 1_000_000)] {
        let mut ages: Vec<Age> = vec![0; lists * len];
        for (list, ages) in ages.chunks_mut(len).enumerate() {
            fill(ages, list, (list as f64 * 50.0, 4.0e6 / len as f64));
        }
        // Classes of sizes from 64 bytes on.
        let weighed = |(list, ages)| (ages, 64 + 60 * (list % 10) as u64);
        let weighed: Vec<WeightedAges> = ages.chunks(len).enumerate().map(weighed).collect();
        let room =
            weighed.iter().map(|(ages, weight)| ages.len() as u64 * weight).sum::<u64>() * 2 / 3;
        let timed = |work: &dyn Fn() -> Vec<usize>| {
            let mut all: Vec<(f64, Vec<usize>)> = (0..ROUNDS)
                .map(|_| {
                    let start = Instant::now();
                    let items = work();
                    (start.elapsed().as_secs_f64() * 1e3, items)
                })
                .collect();
            all.sort_by(|one, other| one.0.total_cmp(&other.0));
            all.swap_remove(ROUNDS / 2)
        };
        let fuse = || fuse_by_weight(&weighed, room).iter().map(|pick| pick.items).collect();
        let ((fused_ms, fused), (sorted_ms, sorted)) =
            (timed(&fuse), timed(&|| walk(&weighed, room)));
        assert_eq!(fused, sorted, "both pick the same");
        let (mb, times) = ((lists * len) as f64 / 1e6, sorted_ms / fused_ms);
        println!(
            "| {lists}, {len} | {:.1} | {fused_ms:.3} | {sorted_ms:.1}; {:.1} | {times:.0} |",
            4.0 * mb,
            8.0 * mb
        );
    }
}

fn speed() {
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
