//! `mbal sim chaos`: the workers of some servers in virtual time, and everything that can go wrong around them.
//!
//! A seed picks one to three servers, their clients and strangers, delays, pieces, bursts, slow workers, and what is
//! done to servers and links meanwhile. [`World`](world::World) plays it on one thread; [`checks`] look at what clients
//! were told. The same seed makes the same run, so a failure is one line to replay.

mod balancing;
mod cases;
mod checks;
mod claims;
mod client;
mod compose;
mod connection;
mod coverage;
mod dice;
mod history;
mod hosts;
mod journeys;
mod links;
mod maps;
mod memory;
mod operator;
mod profile;
mod replies;
mod seat;
mod stranger;
mod values;
mod world;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

pub use checks::Violation;
pub use coverage::{Coverage, Sight};
pub use world::Ran;

const EXAMPLES: &str = "\
EXAMPLES
  mbal sim chaos --seed 42                      one run; what it met
  mbal sim chaos --seeds 10000 --seconds 90     as many as fit, on all cores
  mbal sim chaos --servers 3 --seeds 1000       all of three servers
  nice -n 19 mbal sim chaos --seeds 1000000     a night";

/// The workers of one to three servers under chaos; no acknowledged write may vanish, nothing may stall.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Replays one run.
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// So many runs, from --first on.
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 1)]
    first: u64,
    /// Begin no further run after so many seconds.
    #[arg(long)]
    seconds: Option<u64>,
    /// Threads to run on; all cores if absent.
    #[arg(long)]
    threads: Option<usize>,
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

const OPERATIONS: usize = 1_000;

const UNBROKEN: &str = "runs panic without the lock";

/// So many runs meet all that there is to meet.
const COMPLETE_RUNS: u64 = 1_500;

/// One run.
pub fn chaos(run: Run) -> Ran {
    world::World::new(run).run()
}

pub fn run(args: &Args) -> Result<(), String> {
    match args.seed {
        Some(seed) => one(args.run(seed)),
        None => many(args, chaos),
    }
}

impl Args {
    fn run(&self, seed: u64) -> Run {
        Run { seed, operations: self.operations, servers: self.servers }
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
}

impl Run {
    /// As it is without flags.
    pub fn of(seed: u64) -> Run {
        Run { seed, operations: OPERATIONS, servers: None }
    }

    /// Makes it; a panic is what it broke.
    fn made(self, make: impl Fn(Run) -> Ran) -> Result<Ran, Violation> {
        catch_unwind(AssertUnwindSafe(|| make(self))).map_err(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("without a word");
            Violation::new(6, format!("a panic: {text}"))
        })
    }

    fn told(self, Violation { invariant, what }: &Violation) -> String {
        format!("invariant {invariant}: {what}\n{self}")
    }
}

/// The line that replays it.
impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mbal sim chaos --seed {}", self.seed)?;
        if let Some(servers) = self.servers {
            write!(f, " --servers {servers}")?;
        }
        match self.operations {
            OPERATIONS => Ok(()),
            other => write!(f, " --operations {other}"),
        }
    }
}

fn one(run: Run) -> Result<(), String> {
    let ran = run.made(chaos).map_err(|violation| run.told(&violation))?;
    print!("{}", ran.coverage.table());
    println!("seed {}: {} operations", run.seed, ran.operations);
    ran.verdict.map_err(|violation| run.told(&violation))
}

/// Many runs, on several threads: what has been run, and the first failure.
#[derive(Default)]
struct Tally {
    coverage: Coverage,
    runs: u64,
    operations: u64,
    failed: Option<(Run, Violation)>,
}

impl Tally {
    /// Counts a run; whether it held everything.
    fn add(&mut self, run: Run, made: Result<Ran, Violation>) -> bool {
        self.runs += 1;
        let verdict = made.and_then(|ran| {
            self.coverage.add(&ran.coverage);
            self.operations += ran.operations as u64;
            ran.verdict
        });
        match verdict {
            Ok(()) => true,
            Err(violation) => {
                self.failed.get_or_insert((run, violation));
                false
            }
        }
    }
}

fn many(args: &Args, make: impl Fn(Run) -> Ran + Copy + Send + Sync) -> Result<(), String> {
    let threads =
        args.threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
    let begin = Instant::now();
    let (next, ends) = (AtomicU64::new(args.first), AtomicBool::new(false));
    let tally = Mutex::new(Tally::default());
    // Rare things need some runs to be met.
    let wanted = args.first + if args.complete { COMPLETE_RUNS } else { 0 };
    let in_time = || {
        args.seconds.is_none_or(|most| begin.elapsed().as_secs() < most)
            || next.load(Relaxed) < wanted
    };
    memory::keep_what_is_freed();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !ends.load(Relaxed) && in_time() {
                    let seed = next.fetch_add(1, Relaxed);
                    if seed >= args.first + args.seeds {
                        break;
                    }
                    let run = args.run(seed);
                    let made = run.made(make);
                    if !tally.lock().expect(UNBROKEN).add(run, made) {
                        ends.store(true, Relaxed);
                    }
                }
            });
        }
        scope.spawn(|| report(&tally, args, begin, &ends, in_time));
    });
    let tally = tally.into_inner().expect(UNBROKEN);
    print!("{}", tally.coverage.table());
    let seconds = begin.elapsed().as_secs_f64();
    println!(
        "{} seeds from {}, {} operations, {seconds:.0} s",
        tally.runs, args.first, tally.operations
    );
    if let Some((run, violation)) = tally.failed {
        return Err(run.told(&violation));
    }
    match tally.coverage.never().next().filter(|_| args.complete) {
        Some(sight) => Err(format!("never met: {}", sight.name())),
        None => Ok(()),
    }
}

/// Says every ten seconds how far it is.
fn report(
    tally: &Mutex<Tally>,
    args: &Args,
    begin: Instant,
    ends: &AtomicBool,
    in_time: impl Fn() -> bool,
) {
    let mut said = begin;
    loop {
        thread::sleep(Duration::from_millis(20));
        let runs = tally.lock().expect(UNBROKEN).runs;
        if ends.load(Relaxed) || runs >= args.seeds || !in_time() {
            return;
        }
        if said.elapsed().as_secs() >= 10 {
            said = Instant::now();
            eprintln!("{runs} of {} seeds, {:.0} s", args.seeds, begin.elapsed().as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(operations: usize) -> Args {
        Args {
            seed: None,
            seeds: 40,
            first: 1,
            seconds: None,
            threads: Some(2),
            complete: false,
            servers: None,
            operations,
        }
    }

    fn fine() -> Ran {
        Ran { coverage: Coverage::default(), operations: 1, verdict: Ok(()) }
    }

    #[test]
    fn a_run_that_panics_ends_all_and_is_told_with_its_seed() {
        let make = |Run { seed, .. }| {
            if seed == 3 { panic!("seed {seed} has a hole") } else { fine() }
        };
        let told = "invariant 6: a panic: seed 3 has a hole\nmbal sim chaos --seed 3";
        assert_eq!(many(&args(OPERATIONS), make), Err(told.into()));
        assert_eq!(many(&args(70), make), Err(format!("{told} --operations 70")));
        let three = Args { servers: Some(3), ..args(OPERATIONS) };
        assert_eq!(many(&three, make), Err(format!("{told} --servers 3")));
    }

    #[test]
    fn runs_that_hold_everything_say_nothing() {
        assert_eq!(many(&args(OPERATIONS), |_| fine()), Ok(()));
    }
}
