//! Servers' workers under chaos: a few runs; `./test` has thousands.

use mbal_sim::chaos::{Coverage, Run, Sight, chaos};

#[test]
fn some_runs_hold_every_invariant() {
    let mut coverage = Coverage::default();
    for seed in 1..=60 {
        let run = Run::of(seed);
        let ran = chaos(run);
        assert_eq!(ran.verdict, Ok(()), "{run}");
        assert!(ran.operations >= run.operations);
        assert!(ran.coverage.of(Sight::OwnerChanged) > 0, "seed {seed} moves nothing");
        coverage.add(&ran.coverage);
    }
    // What a few runs need not meet, thousands do: `./test` asks them.
    assert!(coverage.never().count() < 5, "{}", coverage.table());
}

#[test]
fn three_servers_hold_every_invariant() {
    for seed in 1..=20 {
        let run = Run { servers: Some(3), ..Run::of(seed) };
        let ran = chaos(run);
        assert_eq!(ran.verdict, Ok(()), "{run}");
        assert!(ran.coverage.of(Sight::ActionForward) > 0, "seed {seed} asks no peer");
    }
}

#[test]
fn a_seed_makes_the_same_run_again() {
    let tables = [5, 5].map(|seed| chaos(Run::of(seed)).coverage.table());
    assert_eq!(tables[0], tables[1]);
}
