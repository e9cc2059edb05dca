//! `mbal-lab closed`: the balancers as one, in a closed loop with clients that wait, over situations drawn from seeds.
//!
//! ```text
//!   Situation ──► Placement ──► Network, solved ──► what each worker measures ──► the product's own balancers
//!                     ▲                                                                  │ loans, moves, connections
//!                     └──────────────────────────────────────────────────────────────────┘ once an epoch
//! ```

mod brains;
mod copying;
mod costs;
mod demand;
mod events;
mod joining;
mod judge;
mod network;
mod oracle;
pub mod phases;
mod placement;
mod situation;
pub mod spore;
mod sweep;
mod testbed;
mod trial;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread;

use costs::CostArgs;
use judge::{Verdict, Verdicts};
use situation::{Clients, Situation};
use testbed::TestbedArgs;
use trial::{RULES, Rules, World};

const EXAMPLES: &str = "\
  mbal-lab closed                                       100 situations, all rules
  mbal-lab closed --situations 1000 --out all.csv
  mbal-lab closed --rules all --against before.csv      beside what an earlier build came to
  mbal-lab closed --seed 7 --rules all --tell           one situation, epoch by epoch
  mbal-lab closed --testbed 0.8 --situations 10         what real processes can play, and what they should come to";

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
    /// Names of rules; the losses of the last are listed.
    #[arg(long, value_delimiter = ',', default_value = "off,one,two,three,oracle,all")]
    rules: Vec<String>,
    /// By events, each request on its own, instead of mean values.
    #[arg(long)]
    events: bool,
    /// Only clusters of eight servers at most.
    #[arg(long)]
    small: bool,
    /// In each situation the keys of one cachelet have several times an even worker's part.
    #[arg(long)]
    one_cachelet: bool,
    /// Fails if a figure of the last rule is below its floor.
    #[arg(long)]
    floors: bool,
    /// Both, and how far they are apart, in situations that are not too large for events.
    #[arg(long)]
    check: bool,
    /// Says what happens in each epoch.
    #[arg(long)]
    tell: bool,
    #[command(flatten)]
    costs: CostArgs,
    #[command(flatten)]
    testbed: TestbedArgs,
    /// Threads; as many as there are cores.
    #[arg(long)]
    jobs: Option<usize>,
    /// A file for what came of each situation, as CSV.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Such a file of an earlier build: its rules are compared too, by their name and `-then` where this build has them.
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    #[cfg(feature = "planted")]
    #[arg(skip)]
    planted: Option<mbal_model::planted::Fault>,
}

/// Whether figures stay above their floors with a fault in the product.
#[cfg(feature = "planted")]
pub fn floors_with(
    fault: Option<mbal_model::planted::Fault>,
    situations: u64,
) -> Result<(), String> {
    use clap::{Args as _, FromArgMatches};
    let count = situations.to_string();
    let words = ["closed", "--small", "--floors", "--situations", &count];
    let matches = Args::augment_args(clap::Command::new("closed")).get_matches_from(words);
    let args = Args::from_arg_matches(&matches).expect("such words");
    run(&Args { planted: fault, ..args })
}

pub fn run(args: &Args) -> Result<(), String> {
    let named = |name: &String| {
        RULES.iter().find(|rules| rules.name == name).ok_or(format!("--rules: no {name}"))
    };
    let rules: Vec<&Rules> = args.rules.iter().map(named).collect::<Result<_, _>>()?;
    if args.testbed.is_asked_for() {
        let drawn = (args.seed..).map(|seed| drawn(args, seed));
        let count = args.situations as usize;
        testbed::print(&args.testbed, drawn, count, &rules, args.events, args.tell);
        return Ok(());
    }
    if args.tell {
        tell(args, &rules);
        return Ok(());
    }
    if args.check {
        check(args, &rules);
        return Ok(());
    }
    let mut verdicts = verdicts(args, args.events, &rules, |one| !args.small || one.servers <= 8);
    if let Some(file) = &args.out {
        fs::write(file, judge::csv(&verdicts)).map_err(|error| in_words(file, &error))?;
    }
    let mut names = args.rules.clone();
    if let Some(file) = &args.against {
        let text = fs::read_to_string(file).map_err(|error| in_words(file, &error))?;
        let then = judge::parse(&text).ok_or(format!("{}: no such table", file.display()))?;
        let added = join(&mut verdicts, &then)?;
        names.splice(0..0, added);
    }
    print!("{}", judge::report(&verdicts, &names));
    let last = names.last().map_or("", String::as_str);
    match judge::broken(&verdicts, last) {
        broken if args.floors && !broken.is_empty() => {
            Err(format!("{last}: {}", broken.join("; ")))
        }
        _ => Ok(()),
    }
}

fn in_words(file: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", file.display())
}

fn tell(args: &Args, rules: &[&Rules]) {
    let world = World::of(drawn(args, args.seed));
    println!("seed {}: {}", args.seed, world.situation.told());
    for rules in rules {
        println!("{}:", rules.name);
        let trial = world.run(rules, args.events, true);
        println!("{:?}", Verdict::new(&world.situation, &trial));
    }
}

fn drawn(args: &Args, seed: u64) -> Situation {
    let situation = Situation::draw(seed, args.costs.costs());
    if args.one_cachelet { situation.with_one_cachelet() } else { situation }
}

/// Mean values by events, of the first situations that have no more than so many clients.
fn check(args: &Args, rules: &[&Rules]) {
    let is_small = |situation: &Situation| {
        let Clients { smart, ordinary, .. } = &situation.clients;
        smart + ordinary.iter().sum::<f64>() < 10_000.0 && situation.all_workers() <= 64
    };
    let by_events = verdicts(args, true, rules, is_small);
    let means = verdicts(args, false, rules, is_small);
    print!("{}", judge::apart(&means, &by_events));
}

fn verdicts(
    args: &Args,
    by_events: bool,
    rules: &[&Rules],
    is_wanted: impl Fn(&Situation) -> bool + Sync,
) -> Verdicts {
    let next = AtomicU64::new(args.seed);
    let verdicts = Mutex::new(Verdicts::new());
    let left = AtomicI64::new(args.situations as i64);
    let jobs = args.jobs.unwrap_or_else(sweep::cores);
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                #[cfg(feature = "planted")]
                mbal_model::planted::plant(args.planted);
                while left.fetch_sub(1, Relaxed) > 0 {
                    let world = loop {
                        let seed = next.fetch_add(1, Relaxed);
                        let situation = drawn(args, seed);
                        if is_wanted(&situation) {
                            break World::of(situation);
                        }
                    };
                    let judged = |rules: &&Rules| {
                        let trial = world.run(rules, by_events, false);
                        (rules.name.to_owned(), Verdict::new(&world.situation, &trial))
                    };
                    let judged = rules.iter().map(judged).collect();
                    let mut all = verdicts.lock().unwrap_or_else(PoisonError::into_inner);
                    all.insert(world.situation.seed, judged);
                }
            });
        }
    });
    verdicts.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Adds what came of the same situations in an earlier build, and returns its rules' names.
fn join(verdicts: &mut Verdicts, then: &Verdicts) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for (seed, now) in verdicts.iter_mut() {
        let Some(then) = then.get(seed) else { continue };
        if let (Some(now), Some(then)) = (now.get("off"), then.get("off")) {
            if (now.throughput / then.throughput - 1.0).abs() > 1e-3 {
                return Err(format!("--against: situation {seed} was another one"));
            }
        }
        for (rules, verdict) in then {
            let name = match now.contains_key(rules) {
                true => format!("{rules}-then"),
                false => rules.clone(),
            };
            if !names.contains(&name) {
                names.push(name.clone());
            }
            now.insert(name, verdict.clone());
        }
    }
    names.retain(|name| name != "off-then" && name != "oracle-then");
    Ok(names)
}
