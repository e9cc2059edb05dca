//! Servers' workers under chaos: a few runs; `./test` has thousands.

use mbal_sim::chaos::{Coverage, Run, Sight, chaos};

#[test]
fn some_runs_hold_every_invariant() {
    let mut coverage = Coverage::default();
    for seed in 1..=40 {
        let run = Run::of(seed);
        let ran = chaos(run);
        assert_eq!(ran.verdict, Ok(()), "{run}");
        assert!(ran.operations >= run.operations);
        coverage.add(&ran.coverage);
    }
    // What a few runs need not meet, thousands do: `./test` asks them.
    assert!(coverage.never().count() < 20, "{}", coverage.table());
}

#[test]
fn three_servers_hold_every_invariant() {
    let mut coverage = Coverage::default();
    for seed in 1..=10 {
        let run = Run { servers: Some(3), ..Run::of(seed) };
        let ran = chaos(run);
        assert_eq!(ran.verdict, Ok(()), "{run}");
        coverage.add(&ran.coverage);
    }
    for sight in [Sight::ActionForward, Sight::MoveSealed, Sight::ServerDied, Sight::Settled] {
        assert!(coverage.of(sight) > 0, "{}", sight.name());
    }
}

#[test]
fn a_seed_makes_the_same_run_again() {
    let tables = [5, 5].map(|seed| chaos(Run::of(seed)).coverage.table());
    assert_eq!(tables[0], tables[1]);
}
