//! Control between threads: a queue, and a bell that wakes an epoll.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use mbal_locks::{Mutex, ranks};

use crate::sys;
use crate::watchdog::{self, Pulse};

/// Carries control between threads and wakes the one that reads it. Never a client's request.
pub struct Mailbox<T> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    letters: Mutex<ranks::Letters, Vec<T>>,
    bell: OwnedFd,
}

impl<T> Mailbox<T> {
    pub fn new() -> io::Result<Mailbox<T>> {
        let shared = Shared { letters: Mutex::new(Vec::new()), bell: sys::eventfd()? };
        Ok(Mailbox { shared: Arc::new(shared) })
    }

    pub fn post(&self, letter: T) {
        let mut letters = self.shared.letters.lock();
        letters.push(letter);
        // One ring per batch: the reader empties the box after it has heard the bell.
        if letters.len() == 1 {
            sys::eventfd_ring(self.shared.bell.as_fd());
        }
    }

    /// Everything that has been posted, in order; the bell is silent afterwards.
    pub(crate) fn collect(&self) -> Vec<T> {
        let mut letters = self.shared.letters.lock();
        sys::eventfd_silence(self.shared.bell.as_fd());
        std::mem::take(&mut *letters)
    }

    /// Has the thread that reads it watched, from that thread.
    pub(crate) fn watched(&self) -> Pulse
    where
        T: Send + 'static,
    {
        let shared = Arc::clone(&self.shared);
        watchdog::watch(move || sys::eventfd_ring(shared.bell.as_fd()))
    }

    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.shared.bell.as_fd()
    }
}

impl<T> Clone for Mailbox<T> {
    fn clone(&self) -> Mailbox<T> {
        Mailbox { shared: Arc::clone(&self.shared) }
    }
}
