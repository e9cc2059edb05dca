//! Three coordinators and a model of etcd in virtual time. Clocks run apart, calls are slow, lost or executed twice, processes are
//! stopped and go on, etcd changes its leader and is away.
//!
//! ```text
//!   clients ask and change at any coordinator ──► hosts: Election, what they know of the state
//!                                                    │ ▲  calls: delayed, lost, refused, late, twice
//!                                                    ▼ │
//!                                                  etcd: leases, leader key, state; the history of what was written
//! ```
//! A seed decides everything. `MBAL_ELECTION_SEEDS=N` runs so many, `MBAL_ELECTION_SEED=N` tells what happens in one.

mod etcd;
mod met;
mod rules;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use met::{Failed, Met};
use world::World;

const SEEDS: u64 = 200;
/// So many meet all that a run can meet.
const SEEDS_MEET_ALL: u64 = 5_000;

fn run(seed: u64) -> Result<Met, Failed> {
    World::new(seed).run()
}

fn from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

#[test]
fn one_leads_and_nobody_is_told_what_is_not_so() {
    if let Some(seed) = from_environment("MBAL_ELECTION_SEED") {
        let mut world = World::new(seed);
        world.tells = true;
        println!("{:#?}", world.run().unwrap_or_else(|failed| panic!("seed {seed}: {failed}")));
        return;
    }
    let seeds = from_environment("MBAL_ELECTION_SEEDS").unwrap_or(SEEDS);
    let mut met = Met::default();
    for seed in 1..=seeds {
        let replay =
            format!("MBAL_ELECTION_SEED={seed} cargo test -p mbal-election --test election");
        match catch_unwind(AssertUnwindSafe(|| run(seed))) {
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
    const SEEDS: u64 = 5_000;

    fn is_found(fault: Fault, invariant: u8) {
        plant(Some(fault));
        let found = (1..=SEEDS).find_map(|seed| match catch_unwind(|| run(seed)) {
            Ok(ran) => ran
                .err()
                .filter(|failed| failed.invariant == invariant)
                .map(|failed| format!("seed {seed}: {failed}")),
            Err(_) => None,
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
        a_save_by_who_leads_no_more: SavedWithoutTerm breaks 1,
        a_save_that_comes_late_over_a_newer_one: SavedWithoutRevision breaks 1,
        a_lease_that_is_counted_from_its_answer: LeaseFromItsAnswer breaks 1,
        a_lease_without_room_for_drift: LeaseToItsEnd breaks 1,
        a_renewal_of_a_lease_that_was_revoked: RenewedUnseen breaks 1,
        a_renewal_by_a_leader_that_was_replaced: RenewedByAnyone breaks 1,
        an_unanswered_save_that_is_called_done: UnansweredIsSaved breaks 2,
        an_unanswered_save_that_is_called_undone: UnansweredIsUnsaved breaks 2,
        a_save_that_holds_the_leadership_for_ever: SettledForEver breaks 5,
    }
}
