//! What this thread holds.

use std::cell::RefCell;
use std::marker::PhantomData;

use crate::{CHECKED, Rank};

thread_local! {
    /// In the order of taking.
    static HELD: RefCell<Vec<Rank>> = const { RefCell::new(Vec::new()) };
}

/// A lock's place among those that this thread holds, until it is dropped. Kinds of locks that this crate does not have keep one of
/// these beside their guard.
#[must_use]
pub struct Held {
    rank: Rank,
    /// It is of this thread.
    not_send: PhantomData<*const ()>,
}

impl Held {
    /// Before a lock is waited for.
    ///
    /// # Panics
    /// In builds that check the order: if this thread holds one of the same rank, or of one further down.
    #[inline(always)]
    pub fn enter(rank: Rank) -> Held {
        if CHECKED {
            check(rank);
        }
        Held::note(rank)
    }

    /// Of a lock that was not waited for.
    #[inline(always)]
    pub fn note(rank: Rank) -> Held {
        if CHECKED {
            HELD.with_borrow_mut(|held| held.push(rank));
        }
        Held { rank, not_send: PhantomData }
    }

    /// Before its thread sleeps on a condition. Other locks would be kept meanwhile.
    pub(crate) fn is_alone(&self) {
        if CHECKED {
            HELD.with_borrow(|held| {
                assert!(
                    held.len() == 1,
                    "{:?} waits for a condition with {held:?} held",
                    self.rank
                );
            });
        }
    }
}

impl Drop for Held {
    #[inline(always)]
    fn drop(&mut self) {
        if CHECKED {
            // A thread that ends drops its guards after its locals.
            let _gone = HELD.try_with(|held| {
                let mut held = held.borrow_mut();
                if let Some(at) = held.iter().rposition(|rank| *rank == self.rank) {
                    held.remove(at);
                }
            });
        }
    }
}

#[cold]
fn out_of_order(rank: Rank, held: &[Rank]) -> ! {
    panic!("lock order: {rank:?} is taken while {held:?} are held: see the list in mbal-locks")
}

fn check(rank: Rank) {
    let over = HELD.with_borrow(|held| match held.iter().all(|other| *other < rank) {
        true => None,
        false => Some(held.clone()),
    });
    if let Some(held) = over {
        out_of_order(rank, &held);
    }
}
