//! Threads that take locks in an order that could have them wait for each other are found at once, whether they met or not.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use mbal_locks::ranks::{Following, Letters, MoveSides, Moves};
use mbal_locks::{CHECKED, Condvar, Held, Mutex, Rank, RwLock, waiting};

fn panics(f: impl FnOnce()) -> String {
    let payload = catch_unwind(AssertUnwindSafe(f)).expect_err("it breaks the order");
    payload.downcast_ref::<String>().expect("a text").clone()
}

#[test]
fn the_order_of_the_list_may_be_taken() {
    let (sides, moves, letters) =
        (Mutex::<MoveSides, u8>::new(1), RwLock::<Moves, u8>::new(2), Mutex::<Letters, u8>::new(3));
    let first = sides.lock();
    let second = moves.read();
    let third = letters.lock();
    assert_eq!(*first + *second + *third, 6);
    // In any order back.
    drop(first);
    drop(third);
    drop(second);
    assert_eq!(*sides.lock(), 1);
}

#[test]
fn a_planted_inversion_is_found() {
    const { assert!(CHECKED, "tests are built with debug assertions") };
    let (sides, following) = (Mutex::<MoveSides, ()>::default(), Mutex::<Following, ()>::default());
    // What a thread with a move's lock did by asking for the map is allowed ...
    {
        let _move = sides.lock();
        let _map = following.lock();
    }
    // ... so the other way round is not.
    let said = panics(|| {
        let _map = following.lock();
        let _move = sides.lock();
    });
    assert!(said.contains("MoveSides is taken while [Following] are held"), "{said}");
    // Nothing is held any more.
    drop(sides.lock());
}

#[test]
fn two_of_one_rank_are_found() {
    let (one, other) = (Mutex::<MoveSides, ()>::default(), Mutex::<MoveSides, ()>::default());
    let said = panics(|| {
        let _one = one.lock();
        let _other = other.lock();
    });
    assert!(said.contains("MoveSides is taken while [MoveSides]"), "{said}");
    let moves = RwLock::<Moves, ()>::default();
    let said = panics(|| {
        let _one = moves.read();
        let _again = moves.read();
    });
    assert!(said.contains("Moves is taken while [Moves]"), "{said}");
}

#[test]
fn what_is_not_waited_for_may_be_tried_in_any_order_but_counts_afterwards() {
    let (sides, following) = (Mutex::<MoveSides, ()>::default(), Mutex::<Following, ()>::default());
    let map = following.lock();
    let one = sides.try_lock().expect("nobody has it");
    drop(map);
    assert!(sides.try_lock().is_none());
    let said = panics(|| drop(Held::enter(Rank::Settling)));
    assert!(said.contains("Settling is taken while [MoveSides]"), "{said}");
    drop(one);
}

#[test]
fn nothing_else_is_held_while_a_condition_is_waited_for() {
    let (sides, letters, changed) =
        (Mutex::<MoveSides, ()>::default(), Mutex::<Letters, u8>::default(), Condvar::new());
    let _same = changed.wait_timeout(letters.lock(), Duration::from_millis(1));
    drop(_same);
    let said = panics(|| {
        let _one = sides.lock();
        drop(changed.wait_timeout_while(letters.lock(), Duration::from_millis(1), |_| true));
    });
    assert!(said.contains("with [MoveSides, Letters] held"), "{said}");
}

#[test]
fn who_waits_says_for_what() {
    let letters = Mutex::<Letters, u8>::default();
    let held = letters.lock();
    thread::scope(|scope| {
        let (tell, told) = std::sync::mpsc::channel();
        let letters = &letters;
        let waits = scope.spawn(move || {
            tell.send(waiting()).unwrap();
            *letters.lock() += 1;
            waiting().rank()
        });
        let its = told.recv().unwrap();
        while its.rank() != Some(Rank::Letters) {
            thread::yield_now();
        }
        drop(held);
        assert_eq!((waits.join().unwrap(), its.rank()), (None, None));
    });
    assert_eq!(*letters.lock(), 1);
}
