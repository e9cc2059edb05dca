//! Moves of cachelets between real stores, in virtual time: two or three servers, a coordinator and clients on one thread.
//!
//! ```text
//!   clients --> hosts: Source, Destination, Store --- links: delay, break, fall silent one way, come up again
//!                ^  heartbeats, orders, maps
//!              coordinator: is down now and then; orders moves, cancels them, hears of deaths
//! ```
//! A seed decides everything. `truth` knows what was executed, in its order, so every read is compared with the newest value. `MBAL_MOVES_SEEDS=N` runs so
//! many seeds, `MBAL_MOVES_SEED=N` tells what happens in one.

mod arrivals;
mod clients;
mod coordinator;
mod host;
mod links;
mod met;
mod trouble;
mod truth;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use met::{Failed, Met};
use world::World;

/// Of the short run: some seconds.
const SEEDS: u64 = 100;
/// So many meet all that a run can meet.
const SEEDS_MEET_ALL: u64 = 1_000;

fn run(seed: u64) -> Result<Met, Failed> {
    World::new(seed).run()
}

fn from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

#[test]
fn nothing_is_lost_stale_or_served_twice_whatever_happens_to_a_move() {
    if let Some(seed) = from_environment("MBAL_MOVES_SEED") {
        let mut world = World::new(seed);
        world.tells = true;
        println!("{:#?}", world.run().unwrap_or_else(|failed| panic!("seed {seed}: {failed}")));
        return;
    }
    let seeds = from_environment("MBAL_MOVES_SEEDS").unwrap_or(SEEDS);
    let mut met = Met::default();
    for seed in 1..=seeds {
        let replay = format!("MBAL_MOVES_SEED={seed} cargo test -p mbal-migration --test moves");
        let ran = catch_unwind(AssertUnwindSafe(|| run(seed)));
        match ran {
            Ok(Ok(one)) => met.add(&one),
            Ok(Err(failed)) => panic!("{failed}; again: {replay}"),
            Err(_) => panic!("a panic; again: {replay}"),
        }
    }
    println!("{seeds} seeds, {met:#?}");
    if seeds >= SEEDS_MEET_ALL {
        assert_eq!(met.never(), [""; 0], "a run of {seeds} seeds meets all");
    }
}

/// A checker is trusted only after it caught a fault.
#[cfg(feature = "planted")]
mod planted {
    use mbal_model::planted::{Fault, plant};

    use super::*;

    /// No fault needs more.
    const SEEDS: u64 = 12_000;

    fn is_found(fault: Fault, invariant: u8) {
        plant(Some(fault));
        let broken = |seed| match catch_unwind(AssertUnwindSafe(|| run(seed))) {
            Ok(ran) => ran.err().map(|failed| (failed.invariant, failed.text)),
            Err(_) => Some((6, "a panic".to_owned())),
        };
        let found = (1..=SEEDS).find_map(|seed| {
            let (of, text) = broken(seed)?;
            (of == invariant).then(|| format!("seed {seed}: {text}"))
        });
        plant(None);
        println!("{fault:?}: {found:?}");
        assert!(found.is_some(), "{fault:?} is found by no seed up to {SEEDS}");
    }

    macro_rules! is_found {
        ($($name:ident: $fault:ident breaks $invariant:literal,)*) => {
            $(#[test]
            fn $name() {
                is_found(Fault::$fault, $invariant);
            })*
        };
    }

    is_found! {
        a_slice_that_is_served_before_it_is_gone: ServedBeforeGone breaks 1,
        a_slice_that_is_taken_back_since_a_link_broke: TakenBackUnasked breaks 1,
        a_slice_that_is_gone_before_it_is_taken: GoneBeforeTaken breaks 2,
        a_slice_that_is_forgotten_before_it_is_served: ForgottenBeforeServed breaks 2,
        a_slice_that_was_gone_and_is_given_up: GivesUpWhatIsServed breaks 2,
        a_slice_that_is_exported_while_somebody_writes_it: ExportBeforeBatchesEnd breaks 2,
        a_slice_that_is_served_while_it_is_copied: FrozenIsServed breaks 2,
        an_unfinished_slice_of_a_dead_source: KeepsUnfinished breaks 3,
        an_old_copy_that_thaws_when_the_destination_dies: ThawsWhatIsGone breaks 3,
        a_cas_that_is_given_again: TakenBackWithoutLeap breaks 3,
        what_came_before_the_link_broke: KeepsWhatArrived breaks 3,
        a_flush_that_is_undone: FlushNumberIgnored breaks 3,
        a_slice_that_waits_for_a_silent_destination: FrozenForEver breaks 5,
        parts_without_a_bound: SendsWithoutBound breaks 5,
    }
}
