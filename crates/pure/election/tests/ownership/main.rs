//! Servers that own by leases, coordinators of which one leads at a time, and a model of etcd, in virtual time. Clocks run apart, calls are
//! slow or lost, processes are stopped, cut off and killed; etcd revokes leases, changes its leader, and is away.
//!
//! ```text
//!   servers: Ownership ──renew, look──► etcd ◄──look── the leader: a Watch for each server
//!        └──────heartbeats, "who leads?"────────────────────┘ says who is dead
//! ```
//! A seed decides everything. `MBAL_OWNERSHIP_SEEDS=N` runs so many, `MBAL_OWNERSHIP_SEED=N` tells what happens in one.

mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use mbal_election::{OwnerAnswer, OwnerNext, Ownership, Terms};
use mbal_model::Instant;
use world::{Met, World};

const SEEDS: u64 = 300;
/// So many meet all that a run can meet.
const SEEDS_MEET_ALL: u64 = 300;

fn from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

#[test]
fn nobody_owns_who_is_said_to_be_dead_and_whoever_is_dead_is_found() {
    if let Some(seed) = from_environment("MBAL_OWNERSHIP_SEED") {
        let mut world = World::new(seed);
        world.tells = true;
        println!("{:#?}", world.run().unwrap_or_else(|failed| panic!("seed {seed}: {failed}")));
        return;
    }
    let seeds = from_environment("MBAL_OWNERSHIP_SEEDS").unwrap_or(SEEDS);
    let mut met = Met::default();
    for seed in 1..=seeds {
        let replay =
            format!("MBAL_OWNERSHIP_SEED={seed} cargo test -p mbal-election --test ownership");
        match catch_unwind(AssertUnwindSafe(|| World::new(seed).run())) {
            Ok(Ok(one)) => one.into_iter().for_each(|(what, count)| {
                *met.entry(what).or_default() += count;
            }),
            Ok(Err(failed)) => panic!("{failed}; again: {replay}"),
            Err(_) => panic!("a panic; again: {replay}"),
        }
    }
    println!("{seeds} seeds, {met:#?}");
    if seeds >= SEEDS_MEET_ALL {
        let never = world::ALL.iter().filter(|what| !met.contains_key(*what));
        assert_eq!(never.collect::<Vec<_>>(), [&""; 0], "a run of {seeds} seeds meets all");
    }
}

/// A checker is trusted only after it caught a fault.
/// Stopped between two renewals for longer than a lease, it has been called dead by a coordinator that had accepted a heartbeat of it.
#[test]
fn word_of_a_coordinator_does_not_outlast_the_renewals_that_it_goes_by() {
    let at = Instant::from_millis;
    let terms = Terms { lease: Duration::from_secs(3), grace: Some(Duration::ZERO) };
    let renewed = |ownership: &mut Ownership, now| {
        for answer in [
            OwnerAnswer::Renewed { raft_term: 1 },
            OwnerAnswer::Seen { is_there: true, raft_term: 1 },
        ] {
            assert!(matches!(ownership.next(now), OwnerNext::Ask(_)));
            ownership.told(now, answer);
        }
    };
    for (stopped, owns) in [(1_000, true), (5_000, false)] {
        let mut ownership = Ownership::new(terms);
        for answer in [OwnerAnswer::Granted { lease: 7 }, OwnerAnswer::Written] {
            assert!(matches!(ownership.next(at(1)), OwnerNext::Ask(_)));
            ownership.told(at(1), answer);
        }
        renewed(&mut ownership, at(1_000));
        let sent = at(1_100);
        let now = at(1_100 + stopped);
        renewed(&mut ownership, now);
        ownership.accepted(now, sent);
        assert_eq!(ownership.until() > now, owns, "{stopped} ms");
        ownership.accepted(now, now);
        assert!(ownership.until() > now, "a coordinator that has seen the newer renewal");
    }
}

#[cfg(feature = "planted")]
mod planted {
    use mbal_model::planted::{Fault, plant};

    use super::*;

    /// No fault needs more.
    const SEEDS: u64 = 4_000;

    fn is_found(fault: Fault) {
        plant(Some(fault));
        let found = (1..=SEEDS).find_map(|seed| match catch_unwind(|| World::new(seed).run()) {
            Ok(ran) => ran.err().map(|failed| format!("seed {seed}: {failed}")),
            Err(_) => None,
        });
        plant(None);
        println!("{fault:?}: {found:?}");
        let found = found.unwrap_or_else(|| panic!("{fault:?} is found by no seed up to {SEEDS}"));
        assert!(found.contains("owns, and is said to be dead"), "{found}");
    }

    macro_rules! is_found {
        ($($name:ident: $fault:ident,)*) => {
            $(#[test]
            fn $name() {
                is_found(Fault::$fault);
            })*
        };
    }

    is_found! {
        a_renewal_by_a_leader_that_was_replaced: RenewedByAnyone,
        a_key_of_which_no_coordinator_has_heard: OwnsWithoutWord,
        one_of_two_coordinators_that_does_not_lead: OneDoesNotLead,
        a_death_as_soon_as_the_key_is_gone: DeadWhenGone,
        a_death_of_who_was_heard_of: DeadThoughHeard,
    }
}
