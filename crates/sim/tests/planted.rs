//! A checker is trusted only after it caught a fault: one is planted in product code for each invariant that the runs
//! check, and the runs must find it. The checkers do not know of it.

#![cfg(feature = "planted")]

use std::panic::{AssertUnwindSafe, catch_unwind};

use mbal_model::planted::{Fault, plant};
use mbal_sim::chaos::chaos;

/// No fault needs more runs than this.
const SEEDS: u64 = 2_000;

/// The first seed that says that the fault breaks this invariant; others may see it break another one first.
fn found(fault: Fault, invariant: u8) -> Option<u64> {
    plant(Some(fault));
    let seed = (1..=SEEDS).find(|&seed| {
        // A panic is what invariant 6 forbids.
        let ran = catch_unwind(AssertUnwindSafe(|| chaos(seed, 1_000).verdict));
        let broken = ran.map_or(Some(6), |verdict| verdict.err().map(|broken| broken.invariant));
        broken == Some(invariant)
    });
    plant(None);
    seed
}

macro_rules! is_caught {
    ($($name:ident: $fault:ident breaks $invariant:literal,)*) => {
        $(#[test]
        fn $name() {
            let seed = found(Fault::$fault, $invariant).expect("the fault is found");
            println!("{:?} is found by seed {seed}", Fault::$fault);
        })*
    };
}

is_caught! {
    an_owner_that_changes_without_a_version: OwnerWithoutVersion breaks 1,
    requests_that_are_sent_to_items_that_are_not_there_yet: RoutesBeforeItems breaks 2,
    a_flush_that_passes_over_the_new_half: FlushSkipsNewHalf breaks 3,
    a_connection_that_is_handed_over_while_it_waits: StalledIsIdle breaks 5,
    bytes_that_are_not_looked_at: Base64Unchecked breaks 6,
}
