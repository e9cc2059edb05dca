//! Control between threads: a queue, and a bell that wakes an epoll.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use mbal_locks::{Mutex, ranks};

use crate::sys;
use crate::watchdog::{self, Pulse};

/// Letters that nobody has read: more than a server may have connections. What comes then comes from a thread that has lost its way, or goes to one, and the
/// process ends as by the watchdog (a panic ends it): its memory would.
const LETTERS_MAX: usize = 1 << 20;

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
        assert!(letters.len() < LETTERS_MAX, "a thread has not read {LETTERS_MAX} letters");
        letters.push(letter);
        // One ring per batch: the reader empties the box after it has heard the bell. Once it may: it would wait for this thread, and this
        // thread for it. A bell that rings for what has been read already costs the reader a look.
        let is_first = letters.len() == 1;
        drop(letters);
        if is_first {
            sys::eventfd_ring(self.shared.bell.as_fd());
        }
    }

    /// Everything that has been posted, in order. The bell is silent first: it rings again for what comes from then on.
    pub(crate) fn collect(&self) -> Vec<T> {
        sys::eventfd_silence(self.shared.bell.as_fd());
        std::mem::take(&mut *self.shared.letters.lock())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mailbox_that_nobody_reads_has_a_bound() {
        let mailbox = Mailbox::new().expect("an eventfd can be had");
        (0..LETTERS_MAX).for_each(|_| mailbox.post(()));
        assert_eq!(mailbox.collect().len(), LETTERS_MAX, "as many are carried");
        (0..LETTERS_MAX).for_each(|_| mailbox.post(()));
        let posts = std::panic::AssertUnwindSafe(|| mailbox.post(()));
        assert!(std::panic::catch_unwind(posts).is_err());
    }
}
