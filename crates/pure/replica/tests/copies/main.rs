//! Copies of hot keys in virtual time: a few servers, one to three keys, clients that hold leases and clients whose server does.
//!
//! ```text
//!   smart clients: Leases ──► homes: Home, a store ── Hold ──► shadows: Shadow, a value ◄── reads by a lease
//!   ordinary clients ──► their server: Leases ──┘ └── Held ──┘      lost, late, doubled; servers die, are stopped
//! ```
//! A seed decides everything, the mode too. `truth` has the order of all writes. `MBAL_COPIES_SEEDS=N` runs so many seeds, `MBAL_COPIES_SEED=N` tells
//! what happens in one.

mod client;
mod copies;
mod host;
mod met;
mod profile;
mod requests;
mod trouble;
mod truth;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use met::{Failed, Met};
use world::World;

/// Of the short run: some seconds.
const SEEDS: u64 = 300;
/// So many meet all that a run can meet.
const SEEDS_MEET_ALL: u64 = 10_000;
/// Of a key's history, before it failed.
const LINES_MAX: usize = 150;

fn run(seed: u64) -> Result<Met, Failed> {
    let mut world = World::new(seed);
    world.run()?;
    Ok(world.met)
}

/// What happens in a run: to the key by which it fails, or to all.
fn story(seed: u64) -> String {
    let mut world = World::new(seed);
    world.log = Some(Vec::new());
    let ran = catch_unwind(AssertUnwindSafe(|| world.run()));
    let key = match &ran {
        Ok(Err(failed)) => Some(failed.key),
        _ => None,
    };
    let lines = world.log.unwrap_or_default();
    let is_told = |of: &Option<usize>| key.is_none() || of.is_none() || *of == key;
    let lines: Vec<String> =
        lines.into_iter().filter(|(of, _)| is_told(of)).map(|(_, line)| line).collect();
    let first = if key.is_some() { lines.len().saturating_sub(LINES_MAX) } else { 0 };
    format!("{}\n{ran:?}", lines[first..].join("\n"))
}

fn from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

#[test]
fn nobody_reads_what_is_over_whatever_happens_to_copies() {
    if let Some(seed) = from_environment("MBAL_COPIES_SEED") {
        println!("{}", story(seed));
        run(seed).unwrap_or_else(|failed| panic!("seed {seed}: {failed}"));
        return;
    }
    let seeds = from_environment("MBAL_COPIES_SEEDS").unwrap_or(SEEDS);
    let mut met = Met::default();
    for seed in 1..=seeds {
        let replay = format!("MBAL_COPIES_SEED={seed} cargo test -p mbal-replica --test copies");
        match catch_unwind(AssertUnwindSafe(|| run(seed))) {
            Ok(Ok(one)) => met.add(&one),
            Ok(Err(failed)) => panic!("{}\n{failed}; again: {replay}", story(seed)),
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
    const SEEDS: u64 = 20_000;

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
        planted_older_copy_taken: OlderCopyTaken breaks 3,
        planted_older_copy_answers: OlderCopyAnswers breaks 3,
        planted_hot_before_all_have: HotBeforeAllHave breaks 3,
        planted_lease_not_taken: LeaseNotTaken breaks 3,
        planted_old_lease_taken: OldLeaseTaken breaks 3,
        planted_writes_do_not_wait: WritesDoNotWait breaks 3,
        planted_miss_does_not_wait: MissDoesNotWait breaks 3,
        planted_newborn_serves: NewbornServes breaks 3,
        planted_newborn_leaves: NewbornLeaves breaks 3,
        planted_leases_outlive_map: LeasesOutliveMap breaks 3,
        planted_ttl_from_arrival: TtlFromArrival breaks 3,
        planted_ttl_forgets_drift: TtlForgetsDrift breaks 3,
        planted_read_after_lease: ReadAfterLease breaks 4,
        planted_shadow_lease_from_now: ShadowLeaseFromNow breaks 4,
        planted_home_forgets_drift: HomeForgetsDrift breaks 4,
        planted_client_keeps_lease: ClientKeepsLease breaks 4,
        planted_silent_is_given_more: SilentIsGivenMore breaks 5,
        planted_restarted_is_kept: RestartedIsKept breaks 5,
        planted_given_up_stays_let_go: GivenUpStaysLetGo breaks 5,
    }
}
