//! One run, or many of them on several threads: what they met, and the line that replays the first failure.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use super::checks::Violation;
use super::coverage::Coverage;
use super::world::Ran;
use super::{Args, Run, memory};

const UNBROKEN: &str = "runs panic without the lock";

/// So many runs meet all that there is to meet.
const COMPLETE_RUNS: u64 = 1_500;

impl Run {
    /// Makes it; a panic is what it broke.
    pub fn made(self, make: impl Fn(Run) -> Ran) -> Result<Ran, Violation> {
        catch_unwind(AssertUnwindSafe(|| make(self))).map_err(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("without a word");
            Violation::new(6, format!("a panic: {text}"))
        })
    }

    pub fn told(self, Violation { invariant, what }: &Violation) -> String {
        format!("invariant {invariant}: {what}\n{self}")
    }
}

pub fn one(run: Run, make: impl Fn(Run) -> Ran) -> Result<(), String> {
    let ran = run.made(make).map_err(|violation| run.told(&violation))?;
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
    /// Seeds that are being run: all before the least of them are done.
    under_way: Vec<u64>,
}

impl Tally {
    /// Counts a run; whether it held everything.
    fn add(&mut self, run: Run, made: Result<Ran, Violation>) -> bool {
        self.runs += 1;
        self.under_way.retain(|seed| *seed != run.seed);
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

pub fn many(args: &Args, make: impl Fn(Run) -> Ran + Copy + Send + Sync) -> Result<(), String> {
    let jobs = args.jobs.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
    let begin = Instant::now();
    let seeds = args.seeds;
    let (next, ends) = (AtomicU64::new(seeds.first), AtomicBool::new(false));
    let tally = Mutex::new(Tally::default());
    // Rare things need some runs to be met.
    let wanted = seeds.first + if args.complete { COMPLETE_RUNS } else { 0 };
    let in_time = || {
        args.seconds.is_none_or(|most| begin.elapsed().as_secs() < most)
            || next.load(Relaxed) < wanted
    };
    memory::keep_what_is_freed();
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while !ends.load(Relaxed) && in_time() {
                    let seed = {
                        let mut tally = tally.lock().expect(UNBROKEN);
                        let seed = next.fetch_add(1, Relaxed);
                        if seeds.end <= seed {
                            break;
                        }
                        tally.under_way.push(seed);
                        seed
                    };
                    let run = args.run(seed);
                    let made = run.made(make);
                    if !tally.lock().expect(UNBROKEN).add(run, made) {
                        ends.store(true, Relaxed);
                    }
                }
            });
        }
        scope.spawn(|| report(&tally, args, begin, &next, &ends, in_time));
    });
    let tally = tally.into_inner().expect(UNBROKEN);
    print!("{}", tally.coverage.table());
    let seconds = begin.elapsed().as_secs_f64();
    let Tally { runs, operations, .. } = tally;
    println!("{runs} seeds from {}, {operations} operations, {seconds:.0} s", seeds.first);
    if let Some((run, violation)) = tally.failed {
        return Err(run.told(&violation));
    }
    match tally.coverage.never().next().filter(|_| args.complete) {
        Some(sight) => Err(format!("never met: {}", sight.name())),
        None => Ok(()),
    }
}

/// Says every ten seconds how far it is, and with which range it would go on if it were ended now.
fn report(
    tally: &Mutex<Tally>,
    args: &Args,
    begin: Instant,
    next: &AtomicU64,
    ends: &AtomicBool,
    in_time: impl Fn() -> bool,
) {
    let mut said = begin;
    let count = args.seeds.end - args.seeds.first;
    loop {
        thread::sleep(Duration::from_millis(20));
        let (runs, least) = {
            let tally = tally.lock().expect(UNBROKEN);
            (tally.runs, tally.under_way.iter().copied().min())
        };
        if ends.load(Relaxed) || runs >= count || !in_time() {
            return;
        }
        if said.elapsed().as_secs() >= 10 {
            said = Instant::now();
            let left = least.unwrap_or_else(|| next.load(Relaxed));
            let seconds = begin.elapsed().as_secs_f64();
            eprintln!(
                "{runs} of {count} seeds, {seconds:.0} s; left: --seeds {left}..{}",
                args.seeds.end
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{OPERATIONS, Seeds};
    use super::*;

    fn args(operations: usize) -> Args {
        Args {
            seed: None,
            tell: false,
            seeds: Seeds { first: 1, end: 41 },
            seconds: None,
            jobs: Some(2),
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
        let told = "invariant 6: a panic: seed 3 has a hole\nmbal-lab chaos --seed 3";
        assert_eq!(many(&args(OPERATIONS), make), Err(told.into()));
        assert_eq!(many(&args(70), make), Err(format!("{told} --operations 70")));
        let three = Args { servers: Some(3), ..args(OPERATIONS) };
        assert_eq!(many(&three, make), Err(format!("{told} --servers 3")));
    }

    #[test]
    fn runs_that_hold_everything_say_nothing_and_are_all_in_the_range() {
        let ran = Mutex::new(Vec::new());
        let make = |run: Run| {
            ran.lock().expect("no run panics").push(run.seed);
            fine()
        };
        assert_eq!(many(&args(OPERATIONS), make), Ok(()));
        let mut ran = ran.into_inner().expect("no run panics");
        ran.sort_unstable();
        assert_eq!(ran, (1..41).collect::<Vec<u64>>());
    }

    #[test]
    fn seeds_are_a_count_or_a_range() {
        assert_eq!("40".parse(), Ok(Seeds { first: 1, end: 41 }));
        assert_eq!("300..400".parse(), Ok(Seeds { first: 300, end: 400 }));
        for wrong in ["", "a", "4..", "5..4", "0"] {
            assert!(wrong.parse::<Seeds>().is_err(), "{wrong}");
        }
    }
}
