//! How soon loads are even in a cluster, and whether they stay so: `mbal-lab model balance`.

use mbal_balance::Thresholds;

use super::coordinated::{Allowed, Cluster, Size};
use super::report::Report;
use super::workloads::{FEW, MANY, Workload, even, hotspot_of};

#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Servers of the cluster.
    #[arg(long, default_value_t = 20)]
    servers: usize,
    /// Workers of each server.
    #[arg(long, default_value_t = 4)]
    workers: usize,
    /// Epochs with each hot set.
    #[arg(long, default_value_t = 60)]
    epochs: u64,
    /// Mean load of a worker.
    #[arg(long, default_value_t = 0.5)]
    load: f64,
    /// Share of requests that stay with their connection.
    #[arg(long, default_value_t = 0.1)]
    immovable: f64,
    /// Part of the memory that cachelets have at the beginning; 1 is full.
    #[arg(long, default_value_t = 0.9)]
    full: f64,
    /// Seeds, from --seed on.
    #[arg(long, default_value_t = 5)]
    seeds: u64,
}

/// Loads are counted, and chance makes them wrong by so much in an epoch.
const NOISE: f64 = 0.02;

const RUNS: [(&str, Allowed); 4] = [
    ("none", Allowed { two: false, three: false }),
    ("phase 2", Allowed { two: true, three: false }),
    ("phase 3", Allowed { two: false, three: true }),
    ("both", Allowed { two: true, three: true }),
];

/// What came of one hot set.
#[derive(Clone, Copy, Debug, Default)]
struct Stretch {
    /// The busiest worker in the first epoch, in the last half, at most and on average.
    first: f64,
    late_max: f64,
    late_mean: f64,
    /// The first epoch from which on no worker is overloaded, if there is one.
    balanced_in: Option<u64>,
    lent: u64,
    moved: u64,
    restless: u64,
    /// Cachelets that changed servers in the last half.
    late_moved: u64,
}

/// Epochs with one workload on a cluster that has seen others before.
fn stretch(cluster: &mut Cluster, workload: &Workload, epochs: u64) -> Stretch {
    let limit = Thresholds::default().permissible + NOISE;
    let (lent, moved, restless) = (cluster.lent, cluster.moved, cluster.restless);
    let mut busiest = Vec::new();
    let mut moved_by_half = moved;
    for epoch in 0..epochs {
        busiest.push(cluster.expected_most(workload));
        cluster.epoch(workload);
        if epoch + 1 == epochs / 2 {
            moved_by_half = cluster.moved;
        }
    }
    let last_over = busiest.iter().rposition(|load| *load > limit);
    let balanced_in = last_over.map_or(0, |at| at as u64 + 1);
    let late = &busiest[busiest.len() / 2..];
    Stretch {
        first: busiest[0],
        late_max: late.iter().copied().fold(0.0, f64::max),
        late_mean: late.iter().sum::<f64>() / late.len() as f64,
        balanced_in: (balanced_in < epochs).then_some(balanced_in),
        lent: cluster.lent - lent,
        moved: cluster.moved - moved,
        restless: cluster.restless - restless,
        late_moved: cluster.moved - moved_by_half,
    }
}

/// Even load, workload B, its hot set elsewhere, and hot sets of so few keys that whole servers are hot.
fn workloads(size: Size, seed: u64) -> [(&'static str, Workload); 5] {
    let workers = (size.servers * size.workers) as u32;
    let hot = |keys, place| hotspot_of(workers, keys, seed, place);
    [
        ("even", even(workers, seed)),
        ("B", hot(MANY, 1)),
        ("B elsewhere", hot(MANY, 2)),
        ("few keys", hot(FEW, 3)),
        ("few elsewhere", hot(FEW, 4)),
    ]
}

pub fn run(options: &Options, seed: u64, report: &Report) -> Result<(), String> {
    let size = Size {
        servers: options.servers,
        workers: options.workers,
        load: options.load,
        immovable: options.immovable,
        full: options.full,
    };
    if options.servers == 0 || options.workers == 0 || size.servers * size.workers > 2048 {
        return Err("--servers, --workers: from 1 to 2,048 workers in all".into());
    }
    let mut rows = Vec::new();
    for seed in seed..seed + options.seeds {
        for (name, allowed) in RUNS {
            let mut cluster = Cluster::new(size, allowed, seed);
            for (workload, demand) in workloads(size, seed) {
                let Stretch {
                    first,
                    late_max,
                    late_mean,
                    balanced_in,
                    lent,
                    moved,
                    restless,
                    late_moved,
                } = stretch(&mut cluster, &demand, options.epochs);
                let balanced_in = balanced_in.map_or("never".to_owned(), |at| at.to_string());
                rows.push(format!(
                    "{seed},{name},{workload},{first:.2},{balanced_in},{late_mean:.2},{late_max:.2},{lent},{moved},{late_moved},{restless}",
                ));
            }
            eprintln!("seed {seed}, {name}: done");
        }
    }
    let header = "seed,run,workload,busiest_first,balanced_in,busiest_late_mean,busiest_late_max,\
                  lent,moved,moved_late,restless";
    report.table(&format!("balance-{}-servers", options.servers), header, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size = Size { servers: 6, workers: 4, load: 0.5, immovable: 0.1, full: 0.9 };

    fn stretches(seed: u64, allowed: Allowed, full: f64) -> Vec<(&'static str, Stretch)> {
        let size = Size { full, ..SIZE };
        let mut cluster = Cluster::new(size, allowed, seed);
        let all = workloads(size, seed);
        all.iter().map(|(name, demand)| (*name, stretch(&mut cluster, demand, 40))).collect()
    }

    const BOTH: Allowed = Allowed { two: true, three: true };

    #[test]
    fn loads_are_balanced_within_ten_epochs_and_nothing_goes_back_and_forth() {
        let mut overloads = 0;
        for seed in 1..=4 {
            for (name, stretch) in stretches(seed, BOTH, 0.9) {
                overloads += u64::from(stretch.first > 0.8);
                let within = stretch.balanced_in.is_some_and(|epochs| epochs <= 10);
                assert!(within, "seed {seed}, {name}: {stretch:?}");
                assert_eq!(stretch.restless, 0, "seed {seed}, {name}: {stretch:?}");
                if name == "even" {
                    assert_eq!((stretch.lent, stretch.moved), (0, 0), "seed {seed}");
                }
            }
        }
        assert!(overloads > 6, "{overloads} overloads are too few to have shown anything");
    }

    #[test]
    fn without_balancers_they_are_not_and_full_memory_is_no_obstacle() {
        let none = stretches(1, RUNS[0].1, 0.9);
        assert!(none.iter().any(|(_, stretch)| stretch.balanced_in.is_none()), "{none:?}");
        for (name, stretch) in stretches(2, BOTH, 1.0) {
            assert!(stretch.balanced_in.is_some(), "{name}: {stretch:?}");
        }
    }
}
