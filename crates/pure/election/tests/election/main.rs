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
mod rules;
mod world;

use mbal_testkit::{Seeds, planted};
use world::World;

static ELECTION: Seeds = Seeds {
    name: "ELECTION",
    test: "cargo test -p mbal-election --test election",
    usual: 200,
    complete: 5_000,
    to_meet: &[
        "elected",
        "elected with a state",
        "lost a campaign",
        "campaign unanswered",
        "deposed: LeaseOver",
        "deposed: Replaced",
        "deposed: Unsettled",
        "told: Saved",
        "told: NotSaved",
        "told: Unknown",
        "saved by an attempt that was not answered",
        "save asked again",
        "save refused by its term",
        "save executed after its caller gave up",
        "lease renewed that was being revoked",
        "lease renewed by a replaced leader of etcd",
        "read as leader",
        "stopped while leading",
        "etcd away",
        "saves hang",
        "another leads after the first",
    ],
    run: |seed, tells| World::new(seed, tells).run(),
};

#[test]
fn one_leads_and_nobody_is_told_what_is_not_so() {
    ELECTION.hold();
}

planted! {
    ELECTION up to 5_000:
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
