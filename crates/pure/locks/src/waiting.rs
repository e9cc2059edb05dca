//! Which lock a thread waits for, for whoever looks why it does not move.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use crate::Rank;

thread_local! {
    static WAITING: Waiting = Waiting(Arc::new(AtomicU8::new(0)));
}

/// Of one thread; read by others.
#[derive(Clone, Debug)]
pub struct Waiting(Arc<AtomicU8>);

impl Waiting {
    /// The lock that it waits for now.
    pub fn rank(&self) -> Option<Rank> {
        let number = self.0.load(Relaxed).checked_sub(1)?;
        Rank::ALL.get(usize::from(number)).copied()
    }
}

/// Of this thread.
pub fn waiting() -> Waiting {
    WAITING.with(Waiting::clone)
}

/// Takes a lock that somebody else has.
#[cold]
pub(crate) fn wait<G>(rank: Rank, take: impl FnOnce() -> G) -> G {
    let say = |number| {
        let _ending = WAITING.try_with(|waiting| waiting.0.store(number, Relaxed));
    };
    say(rank as u8 + 1);
    let guard = take();
    say(0);
    guard
}
