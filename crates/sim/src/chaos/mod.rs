//! `mbal-lab chaos`: a whole cluster in virtual time, and everything that can go wrong around it.
//!
//! A seed picks one to three servers, their coordinator, clients and strangers, delays, pieces, bursts, slow workers, and what is
//! done to processes, links and cachelets meanwhile; of several servers some have hot keys, whose copies are asked too. [`World`](world::World) plays it on one thread; [`checks`] look at what clients
//! were told. The same seed makes the same run, so a failure is one line to replay.

mod actions;
mod answers;
mod autoscaling;
mod balancing;
mod cases;
mod checks;
mod claims;
mod client;
mod clock;
mod compose;
mod connection;
mod control;
mod copies;
mod coverage;
mod dice;
mod doubt;
#[path = "../../../pure/election/tests/ownership/etcd.rs"]
mod etcd;
mod faults;
mod history;
mod hosts;
mod judging;
mod letters;
mod links;
mod member;
mod memory;
mod migrator;
mod net;
mod operator;
mod owning;
mod places;
mod profile;
mod replies;
mod running;
mod scaling;
mod seat;
mod settling;
mod stranger;
mod values;
mod wishes;
mod world;

use std::fmt;
use std::str::FromStr;

pub use checks::Violation;
pub use coverage::{Coverage, Sight};
pub use world::Ran;

const EXAMPLES: &str = "\
EXAMPLES
  mbal-lab chaos --seed 42                      one run; what it met
  mbal-lab chaos --seeds 10000 --seconds 90     as many as fit, on all cores
  mbal-lab chaos --servers 3 --seeds 1000       all of three servers
  mbal-lab chaos --seed 42 --tell               what happened to the cluster in it
  nice -n 19 mbal-lab chaos --seeds 1..1000001  a night; what is left of the range is told now and then";

/// The workers of one to three servers under chaos; no acknowledged write may vanish, nothing may stall.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Replays one run.
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Says what happens to the cluster in that run.
    #[arg(long, requires = "seed")]
    tell: bool,
    /// So many runs, or those of a range, like 5000..9000, whose end is not among them.
    #[arg(long, default_value = "100")]
    seeds: Seeds,
    /// Begin no further run after so many seconds.
    #[arg(long)]
    seconds: Option<u64>,
    /// Threads to run on; all cores if absent.
    #[arg(long)]
    jobs: Option<usize>,
    /// Fail if anything in the table was never met; whatever --seconds says, 1,500 runs are made for it.
    #[arg(long)]
    complete: bool,
    /// Servers of each run, 1 to 3; the seed chooses if absent.
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=3))]
    servers: Option<u8>,
    /// Requests of each run, at least.
    #[arg(long, default_value_t = OPERATIONS)]
    operations: usize,
}

const OPERATIONS: usize = 600;

/// From the first seed to the one before the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seeds {
    first: u64,
    end: u64,
}

impl FromStr for Seeds {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Seeds, &'static str> {
        let number = |text: &str| text.parse::<u64>().ok();
        let seeds = match text.split_once("..") {
            Some((first, end)) => number(first).zip(number(end)),
            None => number(text).and_then(|count| Some((1, count.checked_add(1)?))),
        };
        let seeds = seeds.filter(|(first, end)| first < end);
        let seeds = seeds.map(|(first, end)| Seeds { first, end });
        seeds.ok_or("seeds are a number, or a range like 5000..9000")
    }
}

/// One run.
pub fn chaos(run: Run) -> Ran {
    world::World::new(run).run()
}

pub fn run(args: &Args) -> Result<(), String> {
    match args.seed {
        Some(seed) => running::one(args.run(seed), chaos),
        None => running::many(args, chaos),
    }
}

impl Args {
    fn run(&self, seed: u64) -> Run {
        Run { seed, operations: self.operations, servers: self.servers, tells: self.tell }
    }
}

/// What a run is made from.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub seed: u64,
    /// Requests, at least.
    pub operations: usize,
    /// The seed chooses if absent.
    pub servers: Option<u8>,
    /// Says what happens.
    pub tells: bool,
}

impl Run {
    /// As it is without flags.
    pub fn of(seed: u64) -> Run {
        Run { seed, operations: OPERATIONS, servers: None, tells: false }
    }
}

/// The line that replays it.
impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mbal-lab chaos --seed {}", self.seed)?;
        if let Some(servers) = self.servers {
            write!(f, " --servers {servers}")?;
        }
        match self.operations {
            OPERATIONS => Ok(()),
            other => write!(f, " --operations {other}"),
        }
    }
}
