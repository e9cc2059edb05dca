//! Moves of cachelets between real stores, in virtual time: two or three servers, a coordinator and clients on one thread.
//!
//! ```text
//!   clients --> hosts: Source, Destination, Store --- links: delay, break, fall silent one way, come up again
//!                ^  heartbeats, orders, maps
//!              coordinator: is down now and then; orders moves, cancels them, hears of deaths
//! ```
//! A seed decides everything. `truth` knows what was executed, in its order, so every read is compared with the newest value. `MBAL_MOVES_SEEDS=N` runs so
//! many seeds, `MBAL_MOVES_SEED=N` tells what happens in one.

mod arrivals;
mod clients;
mod coordinator;
mod host;
mod links;
mod trouble;
mod truth;
mod world;

use mbal_testkit::{Seeds, planted};
use world::World;

static MOVES: Seeds = Seeds {
    name: "MOVES",
    test: "cargo test -p mbal-migration --test moves",
    usual: 100,
    complete: 1_000,
    to_meet: &[
        "a coordinator was down",
        "a flush",
        "a link broke",
        "a link broke while a slice was gone and not confirmed",
        "a link broke while a slice was on its way",
        "a server died",
        "a slice thawed",
        "a way fell silent",
        "arrived",
        "born empty",
        "cancel is said",
        "cancelled too late",
        "dropped",
        "evicted something",
        "executed",
        "gave up what came",
        "handed over",
        "inherited",
        "refused",
        "sent on, since it is gone",
        "slowed down",
        "stayed",
        "taken back",
        "unreachable",
        "waited for a batch",
        "waited for a slice",
        "written in a slice that froze",
    ],
    run: |seed, tells| World::new(seed, tells).run(),
};

#[test]
fn nothing_is_lost_stale_or_served_twice_whatever_happens_to_a_move() {
    MOVES.hold();
}

planted! {
    MOVES up to 12_000:
    a_slice_that_is_served_before_it_is_gone: ServedBeforeGone breaks 1,
    a_slice_that_is_taken_back_since_a_link_broke: TakenBackUnasked breaks 1,
    a_slice_that_is_gone_before_it_is_taken: GoneBeforeTaken breaks 2,
    a_slice_that_is_forgotten_before_it_is_served: ForgottenBeforeServed breaks 2,
    a_slice_that_was_gone_and_is_given_up: GivesUpWhatIsServed breaks 2,
    a_slice_that_is_exported_while_somebody_writes_it: ExportBeforeBatchesEnd breaks 2,
    a_slice_that_is_served_while_it_is_copied: FrozenIsServed breaks 2,
    an_unfinished_slice_of_a_dead_source: KeepsUnfinished breaks 3,
    an_old_copy_that_thaws_when_the_destination_dies: ThawsWhatIsGone breaks 3,
    a_cas_that_is_given_again: TakenBackWithoutLeap breaks 3,
    what_came_before_the_link_broke: KeepsWhatArrived breaks 3,
    a_flush_that_is_undone: FlushNumberIgnored breaks 3,
    a_slice_that_waits_for_a_silent_destination: FrozenForEver breaks 5,
    parts_without_a_bound: SendsWithoutBound breaks 5,
}
