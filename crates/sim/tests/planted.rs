//! A checker is trusted only after it caught a fault: one is planted in product code for each invariant that the runs
//! check, and the runs must find it. The checkers do not know of it.

#![cfg(feature = "planted")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

use mbal_model::planted::{Fault, plant};
use mbal_sim::chaos::{Run, chaos};

/// No fault needs more runs than this.
const SEEDS: u64 = 20_000;

/// The first seed that says that the fault breaks this invariant; others may see it break another one first.
fn found(fault: Fault, invariant: u8) -> Option<u64> {
    let (next, first) = (AtomicU64::new(1), AtomicU64::new(u64::MAX));
    let look = || {
        plant(Some(fault));
        loop {
            let seed = next.fetch_add(1, Relaxed);
            if seed > first.load(Relaxed).min(SEEDS) {
                break;
            }
            // A panic is what invariant 6 forbids.
            let ran = catch_unwind(AssertUnwindSafe(|| chaos(Run::of(seed)).verdict));
            let broken =
                ran.map_or(Some(6), |verdict| verdict.err().map(|broken| broken.invariant));
            if broken == Some(invariant) {
                first.fetch_min(seed, Relaxed);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(look);
        }
    });
    Some(first.into_inner()).filter(|first| *first <= SEEDS)
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
    an_older_map_in_the_place_of_a_newer_one: OlderMapFollowed breaks 1,
    a_request_that_its_owner_executes_twice: ServedTwice breaks 2,
    a_reply_that_overtakes_a_peers: RepliesOvertake breaks 3,
    a_cas_that_is_smaller_where_its_cachelet_went: BornTooOld breaks 3,
    a_slice_that_is_served_before_it_is_gone: ServedBeforeGone breaks 1,
    a_link_of_moves_that_breaks_and_is_not_dialed_again: BrokenMoveLinksStay breaks 5,
    a_slice_that_waits_for_a_silent_destination: FrozenForEver breaks 5,
    a_miss_that_nobody_counts: MissNotCounted breaks 2,
    a_slice_that_is_served_before_all_of_it_has_come: ServedWhileItComes breaks 1,
    a_flush_that_has_not_reached_all_and_says_so_to_nobody: FlushForgetsServers breaks 3,
    a_link_that_breaks_and_nobody_is_told: LostAreForgotten breaks 5,
    a_deadline_that_passes_and_nobody_is_told: LateAreForgotten breaks 5,
    a_write_that_is_executed_after_its_deadline: LateAreExecuted breaks 3,
    a_write_that_is_called_lost_and_executed: LostAreToldAtOnce breaks 3,
    a_client_that_sends_no_more_and_gets_no_more: HalfClosedIsClosed breaks 5,
    a_wait_for_room_that_nobody_ends: NobodyIsWoken breaks 5,
    a_planner_that_levels_what_is_even: LevelsTheLastPercent breaks 7,
    servers_of_which_nobody_chooses_who_retires: NobodyIsChosen breaks 5,
    a_server_that_is_stopped_with_what_it_has: StopsBeforeEmpty breaks 2,
    an_epoch_that_counts_what_was_before_it: EpochCountsAll breaks 7,
    a_server_that_is_said_to_be_dead_while_its_lease_lasts: DeadWhenGone breaks 1,
    a_server_that_serves_though_its_lease_is_over: ServesWithoutLease breaks 2,
    a_server_that_does_not_say_how_far_its_moves_are: MovesUnreported breaks 5,
    a_write_that_does_not_wait_for_copies: WritesDoNotWait breaks 3,
    leases_that_forget_what_their_home_has: LeaseForgetsNewest breaks 3,
    a_copy_that_answers_who_has_seen_a_newer_one: OlderCopyAnswers breaks 3,
    a_client_that_keeps_its_lease: ClientKeepsLease breaks 4,
    a_move_that_takes_along_what_was_not_chosen: ColdestTravel breaks 2,
    ages_that_count_from_another_moment: AgesFromTheMove breaks 2,
    a_request_that_came_too_far_and_is_served: TooFarIsServed breaks 6,
}
