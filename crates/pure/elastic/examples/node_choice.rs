//! ElMem's Figure 7: which server to retire, and how many items each choice would move.
//!
//!     cargo run --release -p mbal-elastic --example node_choice
//!
//! Servers are LRU caches, filled by generated popularity or by a trace of the data folder; keys
//! are placed by hash on shares that differ from server to server, as on a ring with few points.
//! For every server the items are counted that would truly travel were it retired: FuseCache over
//! all destinations and classes. Compared: a shortlist by ElMem's medians of which the
//! one that moves least is kept, the medians alone, and chance. Writes `docs/results/deciders/node-choice.csv`, and `figure-7.csv` for one case.

#[path = "../../sketch/examples/support/mod.rs"]
mod support;

use mbal_elastic::{
    Age, ClassAge, Inventory, SHORTLIST, SizeClass, choose_retiring, plan_transfer,
};
use mbal_model::ServerId;
use mbal_sketch::{Random, mix};
use std::collections::BTreeMap;
use std::fmt::Write;
use support::wikipedia::Shape;

const CLASSES: usize = 3;
/// Seeds 0 to 4 had been seen when the shortlist's length was set; these had not.
const SEEDS: std::ops::Range<u64> = 5..10;

/// One server's items: per class, (age, key, bytes), youngest first.
type Items = Vec<Vec<(Age, u64, u32)>>;

fn main() {
    let mut rows = String::from("case,servers,choice,cases,best_share,excess_mean,excess_most\n");
    let mut figure = String::from("server,age_score,items_moved\n");
    let mut tallies: BTreeMap<(String, usize, &str), Vec<f64>> = BTreeMap::new();
    let traces: Vec<_> =
        support::traces::NAMES.into_iter().filter_map(support::traces::load).collect();
    for servers in [4, 10, 20] {
        for seed in SEEDS {
            for exponent in [0.6, 0.8, 0.99, 1.2] {
                let ranks = Shape { exponent, keys: 100_000 }.ranks();
                let mut bits = Random::new(seed);
                let stream: Vec<(u64, u32)> = (0..300_000)
                    .map(|_| {
                        let key = mix(ranks.draw(&mut bits) as u64);
                        (key, support::traces::value_bytes(key))
                    })
                    .collect();
                let cluster = fill(&stream, servers, 20_000 / servers, seed);
                let tally = |tallies: &mut BTreeMap<_, _>, figure: &mut String| {
                    judge(&cluster, &format!("Zipf {exponent}"), seed, tallies, figure)
                };
                let mut unused = String::new();
                let wanted = servers == 10 && seed == 5 && exponent == 0.99;
                tally(&mut tallies, if wanted { &mut figure } else { &mut unused });
            }
        }
        // The largest trace would take most of the time and says what the others do.
        for trace in traces.iter().filter(|trace| trace.requests.len() < 1_000_000) {
            let keys = trace
                .requests
                .iter()
                .map(|&(key, _)| key)
                .collect::<std::collections::BTreeSet<_>>();
            for seed in SEEDS {
                let cluster = fill(&trace.requests, servers, keys.len() / 2 / servers, seed);
                judge(&cluster, trace.name, seed, &mut tallies, &mut String::new());
            }
        }
    }
    for ((case, servers, choice), excess) in &tallies {
        let cases = excess.len() as f64;
        writeln!(
            rows,
            "{case},{servers},{choice},{cases},{:.3},{:.4},{:.4}",
            excess.iter().filter(|&&excess| excess == 0.0).count() as f64 / cases,
            excess.iter().sum::<f64>() / cases,
            excess.iter().fold(0.0, |most: f64, &excess| most.max(excess)),
        )
        .expect("a string grows");
    }
    for choice in ["counted", "median", "chance"] {
        let all: Vec<f64> = tallies
            .iter()
            .filter(|((_, _, other), _)| *other == choice)
            .flat_map(|(_, excess)| excess.iter().copied())
            .collect();
        writeln!(
            rows,
            "all,all,{choice},{},{:.3},{:.4},{:.4}",
            all.len(),
            all.iter().filter(|&&excess| excess == 0.0).count() as f64 / all.len() as f64,
            all.iter().sum::<f64>() / all.len() as f64,
            all.iter().fold(0.0, |most: f64, &excess| most.max(excess)),
        )
        .expect("a string grows");
    }
    print!("{rows}");
    support::write_result("node-choice.csv", &rows);
    support::write_result("figure-7.csv", &figure);
}

// Runs a stream through LRU caches of `room` items per server, `room` / CLASSES per class.
fn fill(stream: &[(u64, u32)], servers: usize, room: usize, seed: u64) -> Vec<Items> {
    let mut bits = Random::new(seed + 1_000);
    // The servers' shares of the hash space: five points each on a ring.
    let mut ring: Vec<(u64, usize)> =
        (0..5 * servers).map(|point| (bits.word(), point % servers)).collect();
    ring.sort_unstable();
    let home = |key: u64| {
        let at = ring.partition_point(|&(point, _)| point < mix(key ^ 0x5555));
        ring[at % ring.len()].1
    };
    let mut last: Vec<BTreeMap<u64, usize>> = vec![BTreeMap::new(); servers * CLASSES];
    let mut order: Vec<BTreeMap<usize, (u64, u32)>> = vec![BTreeMap::new(); servers * CLASSES];
    for (now, &(key, bytes)) in stream.iter().enumerate() {
        let class = match bytes {
            0..150 => 0,
            150..400 => 1,
            _ => 2,
        };
        let shelf = home(key) * CLASSES + class;
        if let Some(before) = last[shelf].insert(key, now) {
            order[shelf].remove(&before);
        }
        order[shelf].insert(now, (key, bytes));
        if order[shelf].len() > room / CLASSES {
            let (_, (evicted, _)) = order[shelf].pop_first().expect("one was just inserted");
            last[shelf].remove(&evicted);
        }
    }
    let end = stream.len();
    (0..servers)
        .map(|server| {
            order[server * CLASSES..][..CLASSES]
                .iter()
                .map(|shelf| {
                    shelf
                        .iter()
                        .rev()
                        .map(|(&at, &(key, bytes))| ((end - at) as Age, key, bytes))
                        .collect()
                })
                .collect()
        })
        .collect()
}

fn judge(
    cluster: &[Items],
    case: &str,
    seed: u64,
    tallies: &mut BTreeMap<(String, usize, &'static str), Vec<f64>>,
    figure: &mut String,
) {
    let servers = cluster.len();
    let moved: Vec<usize> = (0..servers).map(|retiring| items_moved(cluster, retiring)).collect();
    let best = *moved.iter().min().expect("there are servers") as f64;
    let medians = scores(cluster);
    let shortlist = choose_retiring(&medians, 1 + SHORTLIST);
    let counted = shortlist.iter().map(|server| server.0 as usize).min_by_key(|&at| moved[at]);
    let by_chance = mix(seed) as usize % servers;
    for (choice, server) in [
        ("counted", counted.expect("a shortlist is never empty")),
        ("median", shortlist[0].0 as usize),
        ("chance", by_chance),
    ] {
        let excess = moved[server] as f64 / best.max(1.0) - 1.0;
        tallies.entry((case.to_owned(), servers, choice)).or_default().push(excess);
    }
    for (server, (_, classes)) in medians.iter().enumerate() {
        let score: f64 =
            classes.iter().map(|class| class.memory_share * f64::from(class.median_age)).sum();
        writeln!(figure, "{server},{score:.0},{}", moved[server]).expect("a string grows");
    }
}

fn scores(cluster: &[Items]) -> Vec<(ServerId, Vec<ClassAge>)> {
    let class_ages = |items: &Items| {
        let bytes =
            |class: &[(Age, u64, u32)]| class.iter().map(|item| f64::from(item.2)).sum::<f64>();
        let all: f64 = items.iter().map(|class| bytes(class)).sum();
        items
            .iter()
            .filter(|class| !class.is_empty())
            .map(|class| ClassAge {
                memory_share: bytes(class) / all,
                median_age: class[class.len() / 2].0,
            })
            .collect()
    };
    cluster.iter().enumerate().map(|(at, items)| (ServerId(at as u16), class_ages(items))).collect()
}

// Every retained server is a destination of every class; keys are spread over them by hash.
fn items_moved(cluster: &[Items], retiring: usize) -> usize {
    let retained: Vec<usize> = (0..cluster.len()).filter(|&server| server != retiring).collect();
    let mut moved = 0;
    for (class, leaving) in cluster[retiring].iter().enumerate() {
        let mut arriving: Vec<Vec<Age>> = vec![Vec::new(); retained.len()];
        for &(age, key, _) in leaving {
            arriving[mix(key ^ 0xaaaa) as usize % retained.len()].push(age);
        }
        for (&destination, arriving) in retained.iter().zip(&arriving) {
            let own: Vec<Age> = cluster[destination][class].iter().map(|&(age, ..)| age).collect();
            moved += plan_transfer(&Inventory {
                destination: ServerId(destination as u16),
                class: SizeClass(class as u8),
                room: own.len(),
                own: &own,
                arriving: vec![(ServerId(retiring as u16), arriving)],
            })
            .items();
        }
    }
    moved
}
