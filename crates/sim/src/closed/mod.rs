//! `mbal-lab closed`: the balancers as one, in a closed loop with clients that wait, over situations drawn from seeds.
//!
//! ```text
//!   Situation ──► Placement ──► Network, solved ──► what each worker measures ──► the product's own balancers
//!                     ▲                                                                  │ loans, moves, connections
//!                     └──────────────────────────────────────────────────────────────────┘ once an epoch
//! ```

mod brains;
mod demand;
mod network;
mod placement;
mod situation;
mod trial;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread;

use trial::{RULES, Rules, World};

const EXAMPLES: &str = "\
  mbal-lab closed                           100 situations, ratios of throughput
  mbal-lab closed --situations 1000 --rules off,all
  mbal-lab closed --seed 7 --rules all --tell     one situation, epoch by epoch";

/// Judges the balancer as a whole: rules against each other in drawn situations, clients waiting for replies.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// So many of them; with --tell one.
    #[arg(long, default_value_t = 100)]
    situations: u64,
    /// Names of rules, the first is what the others are compared with.
    #[arg(long, value_delimiter = ',', default_value = "off,two,three,all")]
    rules: Vec<String>,
    /// Says what happens in each epoch.
    #[arg(long)]
    tell: bool,
    #[arg(long)]
    jobs: Option<usize>,
}

/// One situation's mean throughputs, by rules.
struct Row {
    seed: u64,
    means: Vec<f64>,
}

pub fn run(args: &Args) -> Result<(), String> {
    let named = |name: &String| {
        RULES.iter().find(|rules| rules.name == name).ok_or(format!("--rules: no {name}"))
    };
    let rules: Vec<&Rules> = args.rules.iter().map(named).collect::<Result<_, _>>()?;
    if args.tell {
        let world = World::draw(args.seed);
        println!("seed {}: {}", args.seed, world.situation.told());
        for rules in rules {
            println!("{}:", rules.name);
            let trial = world.run(rules, true);
            println!("{:?} {:?}", trial.settled(&world.situation), trial.done);
        }
        return Ok(());
    }
    let next = AtomicU64::new(args.seed);
    let rows = Mutex::new(Vec::new());
    let jobs = args.jobs.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Relaxed);
                    if seed >= args.seed + args.situations {
                        return;
                    }
                    let world = World::draw(seed);
                    let mean = |rules: &&Rules| world.run(rules, false).mean(&world.situation);
                    let row = Row { seed, means: rules.iter().map(mean).collect() };
                    rows.lock().unwrap_or_else(PoisonError::into_inner).push(row);
                }
            });
        }
    });
    let mut rows = rows.into_inner().unwrap_or_else(PoisonError::into_inner);
    rows.sort_by_key(|row| row.seed);
    report(&rules, &rows);
    Ok(())
}

fn report(rules: &[&Rules], rows: &[Row]) {
    println!("throughput by that of {}: worst (seed), p1, p10, median, mean", rules[0].name);
    for (at, rule) in rules.iter().enumerate().skip(1) {
        let mut ratios: Vec<(f64, u64)> =
            rows.iter().map(|row| (row.means[at] / row.means[0], row.seed)).collect();
        ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
        let quantile = |share: f64| ratios[((ratios.len() - 1) as f64 * share) as usize].0;
        let mean = ratios.iter().map(|one| one.0).sum::<f64>() / ratios.len() as f64;
        println!(
            "{:8} {:.3} ({}) {:.3} {:.3} {:.3} {mean:.3}",
            rule.name,
            ratios[0].0,
            ratios[0].1,
            quantile(0.01),
            quantile(0.1),
            quantile(0.5)
        );
        let worst: Vec<String> =
            ratios.iter().take(8).map(|(ratio, seed)| format!("{seed}: {ratio:.3}")).collect();
        println!("         worst {}", worst.join(", "));
    }
}
