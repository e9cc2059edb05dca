//! A server's workers under chaos: a few runs; `./test` has thousands.

use mbal_sim::chaos::{Coverage, Sight, chaos};

const OPERATIONS: usize = 1_000;

#[test]
fn some_runs_hold_every_invariant() {
    let mut coverage = Coverage::default();
    for seed in 1..=60 {
        let ran = chaos(seed, OPERATIONS);
        assert_eq!(ran.verdict, Ok(()), "mbal sim chaos --seed {seed}");
        assert!(ran.operations >= OPERATIONS);
        assert!(ran.coverage.of(Sight::OwnerChanged) > 0, "seed {seed} moves nothing");
        coverage.add(&ran.coverage);
    }
    // What a few runs need not meet, thousands do: `./test` asks them.
    assert!(coverage.never().count() < 5, "{}", coverage.table());
}

#[test]
fn a_seed_makes_the_same_run_again() {
    let tables = [5, 5].map(|seed| chaos(seed, OPERATIONS).coverage.table());
    assert_eq!(tables[0], tables[1]);
}
