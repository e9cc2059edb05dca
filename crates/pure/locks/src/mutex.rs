//! std's mutex and condition, in their order. Poisoning is a panic: nothing panics with a lock held.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::{self, TryLockError};
use std::time::Duration;

use crate::waiting::wait;
use crate::{Held, Ranked};

const POISONED: &str = "nothing panics with it held";

/// A mutex of a rank.
pub struct Mutex<R, T> {
    inner: sync::Mutex<T>,
    rank: PhantomData<fn() -> R>,
}

pub struct MutexGuard<'a, R, T> {
    guard: sync::MutexGuard<'a, T>,
    held: Held,
    rank: PhantomData<fn() -> R>,
}

impl<R: Ranked, T> Mutex<R, T> {
    pub const fn new(value: T) -> Mutex<R, T> {
        Mutex { inner: sync::Mutex::new(value), rank: PhantomData }
    }

    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, R, T> {
        let held = Held::enter(R::RANK);
        let guard = match self.inner.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::WouldBlock) => wait(R::RANK, || self.inner.lock().expect(POISONED)),
            Err(TryLockError::Poisoned(_)) => panic!("{POISONED}"),
        };
        MutexGuard { guard, held, rank: PhantomData }
    }

    /// `None` if somebody has it. Nobody waits, so its rank does not matter.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, R, T>> {
        match self.inner.try_lock() {
            Ok(guard) => Some(MutexGuard { guard, held: Held::note(R::RANK), rank: PhantomData }),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(_)) => panic!("{POISONED}"),
        }
    }
}

impl<R: Ranked, T: Default> Default for Mutex<R, T> {
    fn default() -> Mutex<R, T> {
        Mutex::new(T::default())
    }
}

impl<R, T: fmt::Debug> fmt::Debug for Mutex<R, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<R, T> Deref for MutexGuard<'_, R, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<R, T> DerefMut for MutexGuard<'_, R, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// What threads sleep on that hold one mutex, and no other lock.
#[derive(Debug, Default)]
pub struct Condvar(sync::Condvar);

impl Condvar {
    pub const fn new() -> Condvar {
        Condvar(sync::Condvar::new())
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    pub fn wait_timeout<'a, R: Ranked, T>(
        &self,
        guard: MutexGuard<'a, R, T>,
        timeout: Duration,
    ) -> MutexGuard<'a, R, T> {
        let MutexGuard { guard, held, rank } = guard;
        held.is_alone();
        let (guard, _) = self.0.wait_timeout(guard, timeout).expect(POISONED);
        MutexGuard { guard, held, rank }
    }

    /// Until the time is over, or the condition is false.
    pub fn wait_timeout_while<'a, R: Ranked, T>(
        &self,
        guard: MutexGuard<'a, R, T>,
        timeout: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, R, T> {
        let MutexGuard { guard, held, rank } = guard;
        held.is_alone();
        let waited = self.0.wait_timeout_while(guard, timeout, condition).expect(POISONED);
        MutexGuard { guard: waited.0, held, rank }
    }
}
