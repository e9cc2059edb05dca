//! The judge of balancing as a whole is trusted only after it has seen faults in the rules: with each of them some figure is below its floor. It does
//! not see a ledger that nobody reads: there `pure/balance/tests/rules.rs` does.

#![cfg(feature = "planted")]

use mbal_model::planted::Fault;
use mbal_sim::closed::floors_with;

/// As `./test` runs it.
const SITUATIONS: u64 = 60;

macro_rules! is_seen {
    ($($name:ident: $fault:ident,)*) => {
        $(#[test]
        fn $name() {
            let broken = floors_with(Some(Fault::$fault), SITUATIONS);
            println!("{:?}: {}", Fault::$fault, broken.expect_err("the fault is seen"));
        })*
    };
}

is_seen! {
    loads_that_are_capped: LoadsAreCapped,
    servers_that_keep_their_cases: ServersKeepTheirCases,
    moves_that_nothing_damps: NothingIsDamped,
    cases_that_never_open: CasesStayClosed,
}

#[test]
fn without_a_fault_all_figures_are_above_their_floors() {
    assert_eq!(floors_with(None, SITUATIONS), Ok(()));
}
