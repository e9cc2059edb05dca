//! Many seeds of a world, and the line that replays the one that fails.

use std::panic::catch_unwind;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

use crate::met::{Failed, Met};

pub struct Seeds {
    /// Of the variables `MBAL_NAME_SEEDS` and `MBAL_NAME_SEED`.
    pub name: &'static str,
    /// Runs this test again.
    pub test: &'static str,
    /// Of the short run: some seconds.
    pub usual: u64,
    /// So many meet all of `to_meet`.
    pub complete: u64,
    pub to_meet: &'static [&'static str],
    /// Runs a seed, and tells what happens if it is to.
    pub run: fn(u64, bool) -> Result<Met, Failed>,
}

impl Seeds {
    /// Runs all on several threads.
    ///
    /// # Panics
    /// A seed fails, or something is not met that has to be.
    pub fn hold(&self) {
        let variable = format!("MBAL_{}_SEED", self.name);
        if let Some(seed) = number(&variable) {
            let met = (self.run)(seed, true);
            return println!("{:#?}", met.unwrap_or_else(|failed| panic!("{failed}")));
        }
        let count = number(&format!("{variable}S")).unwrap_or(self.usual);
        let next = AtomicU64::new(1);
        let work = || {
            let mut met = Met::default();
            loop {
                let seed = next.fetch_add(1, Relaxed);
                if seed > count {
                    return Ok(met);
                }
                match self.ran(seed) {
                    Ok(one) => met.add(&one),
                    Err(failed) => {
                        next.store(count + 1, Relaxed);
                        return Err(format!("{failed}; again: {variable}={seed} {}", self.test));
                    }
                }
            }
        };
        let mut met = Met::default();
        let ran: Vec<Result<Met, String>> = thread::scope(|scope| {
            let jobs = thread::available_parallelism().map_or(1, usize::from);
            let threads: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
            threads.into_iter().map(|one| one.join().expect("panics are caught")).collect()
        });
        for one in ran {
            met.add(&one.unwrap_or_else(|failed| panic!("{failed}")));
        }
        println!("{count} seeds, {met:#?}");
        if count >= self.complete {
            assert_eq!(met.never(self.to_meet), [""; 0], "{count} seeds meet all");
        }
    }

    /// The first seed that breaks this invariant. Others may break another one before.
    pub fn first_to_break(&self, invariant: u8, most: u64) -> Option<String> {
        (1..=most).find_map(|seed| {
            let failed = self.ran(seed).err().filter(|failed| failed.invariant == invariant)?;
            Some(format!("seed {seed}: {failed}"))
        })
    }

    /// A panic is what invariant 6 forbids.
    fn ran(&self, seed: u64) -> Result<Met, Failed> {
        let ran = catch_unwind(|| (self.run)(seed, false));
        ran.unwrap_or_else(|_| Err(Failed::new(6, "a panic")))
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

/// A checker is trusted only after it caught a fault: tests, a fault each, of which the seeds have to break its invariant. `up to` is more than any
/// fault needs.
#[macro_export]
macro_rules! planted {
    ($seeds:ident up to $most:literal: $($name:ident: $fault:ident breaks $invariant:literal,)*) => {
        #[cfg(feature = "planted")]
        mod planted {
            use mbal_model::planted::{Fault, plant};

            fn is_found(fault: Fault, invariant: u8) {
                plant(Some(fault));
                let found = super::$seeds.first_to_break(invariant, $most);
                plant(None);
                println!("{fault:?}: {found:?}");
                assert!(found.is_some(), "{fault:?} is found by no seed up to {}", $most);
            }

            $(#[test]
            fn $name() {
                is_found(Fault::$fault, $invariant);
            })*
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sim;

    /// Seed 3 fails, seed 5 panics, and every second one meets something.
    fn run(seed: u64, tells: bool) -> Result<Met, Failed> {
        let mut sim = Sim::new(seed, tells);
        sim.after(7, "later");
        sim.at(2, "sooner");
        assert_eq!(
            [sim.advance(), sim.advance_until(6), sim.advance()],
            [Some("sooner"), None, Some("later")]
        );
        assert_eq!((sim.now, sim.next_at()), (7, None));
        match seed {
            3 => return Err(Failed::new(2, "it is lost")),
            5 => panic!("it breaks"),
            even if even % 2 == 0 => sim.met.count("even"),
            _ => {}
        }
        Ok(sim.met)
    }

    const KIT: Seeds = Seeds {
        name: "TESTKIT",
        test: "cargo test -p mbal-testkit",
        usual: 2,
        complete: 2,
        to_meet: &["even"],
        run,
    };

    fn said(seeds: Seeds) -> Option<String> {
        catch_unwind(|| seeds.hold()).err()?.downcast_ref::<String>().cloned()
    }

    #[test]
    fn the_seed_that_fails_is_told_with_what_runs_it_again() {
        assert_eq!(said(KIT), None);
        let again = "again: MBAL_TESTKIT_SEED=3 cargo test -p mbal-testkit";
        let failed = format!("invariant 2 is broken: it is lost; {again}");
        assert_eq!(said(Seeds { usual: 4, ..KIT }), Some(failed));
        let never = said(Seeds { to_meet: &["even", "odd"], ..KIT }).expect("odd is never met");
        assert!(never.contains("odd") && !never.contains("\"even\""), "{never}");
    }

    #[test]
    fn faults_are_found_by_the_invariant_that_they_break() {
        let found = |invariant, most| KIT.first_to_break(invariant, most);
        assert_eq!(found(2, 9).as_deref(), Some("seed 3: invariant 2 is broken: it is lost"));
        assert_eq!(found(6, 9).as_deref(), Some("seed 5: invariant 6 is broken: a panic"));
        assert_eq!((found(2, 2), found(1, 9)), (None, None));
    }
}
