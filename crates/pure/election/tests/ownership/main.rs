//! Servers that own by leases, coordinators of which one leads at a time, and a model of etcd, in virtual time. Clocks run apart, calls are
//! slow or lost, processes are stopped, cut off and killed; etcd revokes leases, changes its leader, and is away.
//!
//! ```text
//!   servers: Ownership ──renew, look──► etcd ◄──look── the leader: a Watch for each server
//!        └──────heartbeats, "who leads?"────────────────────┘ says who is dead
//! ```
//! A seed decides everything. `MBAL_OWNERSHIP_SEEDS=N` runs so many, `MBAL_OWNERSHIP_SEED=N` tells what happens in one.

mod etcd;
mod world;

use std::time::Duration;

use mbal_election::{OwnerNext, OwnerResponse, Ownership, Terms};
use mbal_model::Instant;
use mbal_testkit::{Seeds, planted};
use world::World;

static OWNERSHIP: Seeds = Seeds {
    name: "OWNERSHIP",
    test: "cargo test -p mbal-election --test ownership",
    usual: 300,
    complete: 300,
    to_meet: &[
        "owns",
        "lapsed",
        "lapsed while it was stopped",
        "owns without etcd",
        "wrote its key anew",
        "found dead",
        "found dead after a kill",
        "refused by a coordinator",
        "lease revoked",
    ],
    run: |seed, tells| World::new(seed, tells).run(),
};

#[test]
fn nobody_owns_who_is_said_to_be_dead_and_whoever_is_dead_is_found() {
    OWNERSHIP.hold();
}

planted! {
    OWNERSHIP up to 4_000:
    a_renewal_by_a_leader_that_was_replaced: RenewedByAnyone breaks 1,
    a_key_of_which_no_coordinator_has_heard: OwnsWithoutWord breaks 1,
    one_of_two_coordinators_that_does_not_lead: OneDoesNotLead breaks 1,
    a_death_as_soon_as_the_key_is_gone: DeadWhenGone breaks 1,
    a_death_of_who_was_heard_of: DeadThoughHeard breaks 1,
}

/// Stopped between two renewals for longer than a lease, it has been called dead by a coordinator that had accepted a heartbeat of it.
#[test]
fn word_of_a_coordinator_does_not_outlast_the_renewals_that_it_goes_by() {
    let at = Instant::from_millis;
    let terms = Terms { lease: Duration::from_secs(3), grace: Some(Duration::ZERO) };
    let renewed = |ownership: &mut Ownership, now| {
        for answer in [
            OwnerResponse::Renewed { raft_term: 1 },
            OwnerResponse::Seen { is_there: true, raft_term: 1 },
        ] {
            assert!(matches!(ownership.next(now), OwnerNext::Ask(_)));
            ownership.answered(now, answer);
        }
    };
    for (stopped, owns) in [(1_000, true), (5_000, false)] {
        let mut ownership = Ownership::new(terms);
        for answer in [OwnerResponse::Granted { lease: 7 }, OwnerResponse::Written] {
            assert!(matches!(ownership.next(at(1)), OwnerNext::Ask(_)));
            ownership.answered(at(1), answer);
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
