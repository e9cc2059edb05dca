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
mod fencing;
mod host;
mod profile;
mod requests;
mod trouble;
mod truth;
mod world;

use mbal_testkit::{Seeds, planted};
use world::World;

/// Trouble is counted by the state of a key that it meets.
static COPIES: Seeds = Seeds {
    name: "COPIES",
    test: "cargo test -p mbal-replica --test copies",
    usual: 300,
    complete: 10_000,
    to_meet: &[
        "hot",
        "cold again",
        "widened",
        "read at home",
        "read from a copy by a smart client",
        "read from a copy by a lease of a server",
        "read from a copy at a client's own server",
        "a copy was older than what was seen",
        "read from a copy that was overwritten",
        "marked read passed on",
        "passed on, and told of copies",
        "missed",
        "a miss waited",
        "executed",
        "conflict",
        "a write waited",
        "a write waited for a lease to end",
        "a waiting write was given up",
        "a waiting write goes on elsewhere",
        "no route",
        "newborn",
        "a newborn served when all had fenced",
        "a newborn served when leases were over",
        "a copy was fenced off",
        "fence lost",
        "fenced late",
        "refused for want of room",
        "died at a shadow",
        "died at home",
        "evicted at home",
        "lease over at a shadow",
        "flushed",
        "flush in the middle of copies",
        "grant over at a shadow",
        "hold lost",
        "hold late",
        "hold doubled",
        "held lost",
        "held late",
        "held doubled",
        "hold failed",
        "request lost",
        "reply lost",
        "a client gave up",
        "a client changed its server",
        "silence between servers",
        "restarted",
        "a stopped owner lost its keys",
        "moved",
        "moved to a shadow",
        "a shadow becomes home",
        "a newborn waits to leave",
        "a move found its destination dead",
        "home died in HotPending",
        "home died in Hot",
        "home died in ColdPending",
        "home died in Cold",
        "home stopped in HotPending",
        "home stopped in Hot",
        "home stopped in ColdPending",
        "home stopped in Cold",
        "shadow died in HotPending",
        "shadow died in Hot",
        "shadow died in ColdPending",
        "shadow stopped in HotPending",
        "shadow stopped in Hot",
        "shadow stopped in ColdPending",
        "leaves in HotPending",
        "leaves in Hot",
        "leaves in ColdPending",
        "leaves in Cold",
        "flushed in HotPending",
        "flushed in Hot",
        "flushed in ColdPending",
        "evicted in HotPending",
        "evicted in Hot",
        "evicted in ColdPending",
    ],
    run: |seed, tells| World::new(seed, tells).run(),
};

#[test]
fn nobody_reads_what_is_over_whatever_happens_to_copies() {
    COPIES.hold();
}

planted! {
    COPIES up to 20_000:
    older_copy_taken: OlderCopyTaken breaks 3,
    older_copy_answers: OlderCopyAnswers breaks 3,
    lease_forgets_newest: LeaseForgetsNewest breaks 3,
    lease_not_taken: LeaseNotTaken breaks 3,
    old_lease_taken: OldLeaseTaken breaks 3,
    writes_do_not_wait: WritesDoNotWait breaks 3,
    miss_does_not_wait: MissDoesNotWait breaks 3,
    newborn_serves: NewbornServes breaks 3,
    newborn_leaves: NewbornLeaves breaks 3,
    fenced_is_read: FencedIsRead breaks 3,
    leases_outlive_map: LeasesOutliveMap breaks 3,
    ttl_from_arrival: TtlFromArrival breaks 3,
    ttl_forgets_drift: TtlForgetsDrift breaks 3,
    read_after_lease: ReadAfterLease breaks 4,
    shadow_lease_from_now: ShadowLeaseFromNow breaks 4,
    home_forgets_drift: HomeForgetsDrift breaks 4,
    client_keeps_lease: ClientKeepsLease breaks 4,
    silent_is_given_more: SilentIsGivenMore breaks 5,
    restarted_is_kept: RestartedIsKept breaks 5,
    given_up_stays_let_go: GivenUpStaysLetGo breaks 5,
}
