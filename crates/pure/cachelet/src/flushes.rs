//! Which `flush_all` of a cluster have come to pass, by their numbers.

use mbal_model::Seconds;

use crate::front::Front;
use crate::shim::{AtomicU32, Ordering::*};

pub struct Flushes {
    /// The highest number of one that has been done to a cachelet here.
    done: AtomicU32,
    /// None up to this number is under way anywhere.
    over: AtomicU32,
}

impl Flushes {
    pub fn new() -> Flushes {
        Flushes { done: AtomicU32::new(0), over: AtomicU32::new(0) }
    }

    pub fn newest(&self) -> u32 {
        self.done.load(Relaxed)
    }

    /// Somewhere one of this number has come to pass; the newest known.
    pub fn know(&self, number: u32) -> u32 {
        self.done.fetch_max(number, Relaxed).max(number)
    }

    pub fn over(&self) -> u32 {
        self.over.load(Relaxed)
    }

    pub fn are_over(&self, number: u32) {
        self.over.fetch_max(number, Relaxed);
    }
}

/// Which of them have come to pass in a cachelet, wherever it was.
#[derive(Default)]
pub struct Flushed {
    /// The last one.
    number: u32,
    /// The one that comes at [`Front::flush_at`].
    next: u32,
}

impl Flushed {
    pub fn born(number: u32, next: u32) -> Flushed {
        Flushed { number, next }
    }

    pub fn number(&self) -> u32 {
        self.number
    }

    pub fn next(&self) -> u32 {
        self.next
    }

    /// That of this number has just come to pass. A later one that is to come still comes.
    pub fn pass(&mut self, front: &Front, number: u32) {
        self.number = self.number.max(number);
        if !self.awaits_later(front, number) {
            front.set_flush_at(0);
        }
    }

    /// One is to come.
    pub fn await_next(&mut self, front: &Front, at: Seconds, number: u32) {
        front.set_flush_at(at);
        self.next = number;
    }

    /// One with a delay, of a higher number than this, is to come.
    pub fn awaits_later(&self, front: &Front, number: u32) -> bool {
        front.flush_at() != 0 && self.next > number
    }

    /// True if that of this number has come to pass elsewhere, and neither here nor in a moment.
    pub fn is_behind(&self, front: &Front, number: u32) -> bool {
        let is_to_come = front.flush_at() != 0 && number <= self.next;
        self.number < number && !is_to_come
    }

    /// What one up to this number has not reached here came to be after it.
    pub fn count_as_stored_since(&mut self, front: &Front, number: u32) {
        if self.is_behind(front, number) {
            self.number = number;
        }
    }
}
