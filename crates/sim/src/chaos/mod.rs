//! `mbal sim chaos`: the workers of one server in virtual time, and everything that can go wrong around them.
//!
//! A seed picks the server, its clients and strangers, delays, pieces, bursts, slow workers, and what is done to the
//! server meanwhile. [`World`](world::World) plays it on one thread; [`checks`] look at what clients were told. The
//! same seed makes the same run, so a failure is one line to replay.

mod balancing;
mod cases;
mod checks;
mod claims;
mod client;
mod compose;
mod coverage;
mod dice;
mod history;
mod link;
mod memory;
mod operator;
mod profile;
mod replies;
mod seat;
mod stranger;
mod values;
mod world;

use std::cell::Cell;
use std::panic;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

pub use checks::Violation;
pub use coverage::{Coverage, Sight};
pub use world::Ran;

const EXAMPLES: &str = "\
  mbal sim chaos --seed 42                      one run; what it met
  mbal sim chaos --seeds 10000 --seconds 90     as many as fit, on all cores
  nice -n 19 mbal sim chaos --seeds 1000000     a night";

/// The workers of one server under chaos; no acknowledged write may vanish, nothing may stall.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Replays one run.
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// So many runs, from --first on.
    #[arg(long, default_value_t = 100)]
    seeds: u64,
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
    /// Requests of each run, at least.
    #[arg(long, default_value_t = 1_000)]
    operations: usize,
}

/// So many runs meet all that there is to meet.
const COMPLETE_RUNS: u64 = 1_500;

/// One run.
pub fn chaos(seed: u64, operations: usize) -> Ran {
    RUNNING.set(Some(seed));
    let ran = world::World::new(seed, operations).run();
    RUNNING.set(None);
    ran
}

thread_local! {
    /// The seed that this thread is at: a panic says it.
    static RUNNING: Cell<Option<u64>> = const { Cell::new(None) };
}

pub fn run(args: &Args) -> Result<(), String> {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        usual(panic);
        if let Some(seed) = RUNNING.get() {
            eprintln!("invariant 6: a panic. To see it again:\n  {}", replay(seed));
        }
    }));
    match args.seed {
        Some(seed) => one(seed, args.operations),
        None => many(args),
    }
}

fn replay(seed: u64) -> String {
    format!("mbal sim chaos --seed {seed}")
}

fn one(seed: u64, operations: usize) -> Result<(), String> {
    let ran = chaos(seed, operations);
    print!("{}", ran.coverage.table());
    println!("seed {seed}: {} operations", ran.operations);
    ran.verdict.map_err(|violation| told(seed, &violation))
}

fn told(seed: u64, Violation { invariant, what }: &Violation) -> String {
    format!("invariant {invariant}: {what}\n{}", replay(seed))
}

/// Many runs, on several threads: what has been run, and the first failure.
#[derive(Default)]
struct Tally {
    coverage: Coverage,
    runs: u64,
    operations: u64,
    failed: Option<(u64, Violation)>,
}

fn many(args: &Args) -> Result<(), String> {
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
                    let ran = chaos(seed, args.operations);
                    let mut tally = tally.lock().expect("a panic ends the process");
                    tally.coverage.add(&ran.coverage);
                    tally.runs += 1;
                    tally.operations += ran.operations as u64;
                    if let Err(violation) = ran.verdict {
                        ends.store(true, Relaxed);
                        tally.failed.get_or_insert((seed, violation));
                    }
                }
            });
        }
        scope.spawn(|| report(&tally, args, begin, &ends, in_time));
    });
    let tally = tally.into_inner().expect("a panic ends the process");
    print!("{}", tally.coverage.table());
    let seconds = begin.elapsed().as_secs_f64();
    println!(
        "{} seeds from {}, {} operations, {seconds:.0} s",
        tally.runs, args.first, tally.operations
    );
    if let Some((seed, violation)) = tally.failed {
        return Err(told(seed, &violation));
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
        let runs = tally.lock().expect("a panic ends the process").runs;
        if ends.load(Relaxed) || runs >= args.seeds || !in_time() {
            return;
        }
        if said.elapsed().as_secs() >= 10 {
            said = Instant::now();
            eprintln!("{runs} of {} seeds, {:.0} s", args.seeds, begin.elapsed().as_secs_f64());
        }
    }
}
