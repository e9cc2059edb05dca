//! std's lock of many readers or one writer, in its order. A thread that reads must not read again: a writer may have come between.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::{self, TryLockError};

use crate::waiting::wait;
use crate::{Held, Ranked};

const POISONED: &str = "nothing panics with it held";

pub struct RwLock<R, T> {
    inner: sync::RwLock<T>,
    rank: PhantomData<fn() -> R>,
}

pub struct ReadGuard<'a, T> {
    guard: sync::RwLockReadGuard<'a, T>,
    _held: Held,
}

pub struct WriteGuard<'a, T> {
    guard: sync::RwLockWriteGuard<'a, T>,
    _held: Held,
}

impl<R: Ranked, T> RwLock<R, T> {
    pub const fn new(value: T) -> RwLock<R, T> {
        RwLock { inner: sync::RwLock::new(value), rank: PhantomData }
    }

    #[inline]
    pub fn read(&self) -> ReadGuard<'_, T> {
        let held = Held::enter(R::RANK);
        let guard = match self.inner.try_read() {
            Ok(guard) => guard,
            Err(TryLockError::WouldBlock) => wait(R::RANK, || self.inner.read().expect(POISONED)),
            Err(TryLockError::Poisoned(_)) => panic!("{POISONED}"),
        };
        ReadGuard { guard, _held: held }
    }

    #[inline]
    pub fn write(&self) -> WriteGuard<'_, T> {
        let held = Held::enter(R::RANK);
        let guard = match self.inner.try_write() {
            Ok(guard) => guard,
            Err(TryLockError::WouldBlock) => wait(R::RANK, || self.inner.write().expect(POISONED)),
            Err(TryLockError::Poisoned(_)) => panic!("{POISONED}"),
        };
        WriteGuard { guard, _held: held }
    }
}

impl<R: Ranked, T: Default> Default for RwLock<R, T> {
    fn default() -> RwLock<R, T> {
        RwLock::new(T::default())
    }
}

impl<R, T: fmt::Debug> fmt::Debug for RwLock<R, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T> Deref for ReadGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> Deref for WriteGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for WriteGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}
