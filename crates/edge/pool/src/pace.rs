//! How far the work is, how fast it may go, and whether it is to stop: what all its threads share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use mbal_locks::{Mutex, ranks};

/// Items of a stage; read by whoever shows them.
#[derive(Debug, Default)]
pub struct Progress {
    pub total: AtomicU64,
    pub done: AtomicU64,
    /// Of values and keys that were copied.
    pub bytes: AtomicU64,
}

impl Progress {
    pub fn begin(&self, total: u64) {
        self.done.store(0, Relaxed);
        self.total.store(total, Relaxed);
    }

    pub fn add(&self, items: u64, bytes: u64) {
        self.done.fetch_add(items, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }
}

#[derive(Debug, Default)]
pub struct Pace {
    pub progress: Progress,
    /// Set from outside: no further batch begins.
    pub stop: AtomicBool,
    rate: Option<Rate>,
}

/// Bytes a second, of all threads together.
#[derive(Debug)]
struct Rate {
    bytes_per_second: f64,
    free_from: Mutex<ranks::Pace, Instant>,
}

/// memcached's crawler sleeps whenever it has listed so many items.
const LISTED_PER_SLEEP: u64 = 1000;
/// An item that is listed counts as so many bytes that are copied, one that is deleted as so many: what they cost a server.
const LISTED_BYTES: u64 = 20;
pub(crate) const DELETED_BYTES: u64 = 100;
/// memcached takes no longer sleep, in microseconds.
const SLEEP_MICROS_MAX: u64 = 1_000_000;
/// Items of a batch. Who has given a rate wants nothing to be felt: a server of a small CPU quota stands still over 128 of them.
const BATCH_ITEMS: usize = 128;
const BATCH_ITEMS_WITH_RATE: usize = 32;

/// A wait is cut into such pieces, to see that it is to stop.
const STEP: Duration = Duration::from_millis(50);

impl Pace {
    /// `bytes_per_second` of copied keys and values; `None` is as fast as it goes.
    pub fn new(bytes_per_second: Option<u64>) -> Pace {
        let rate = bytes_per_second.map(|bytes| Rate {
            bytes_per_second: bytes as f64,
            free_from: Mutex::new(Instant::now()),
        });
        Pace { rate, ..Pace::default() }
    }

    pub(crate) fn has_rate(&self) -> bool {
        self.rate.is_some()
    }

    pub fn is_stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }

    pub(crate) fn batch_items(&self) -> usize {
        if self.has_rate() { BATCH_ITEMS_WITH_RATE } else { BATCH_ITEMS }
    }

    /// How long a crawler is to sleep each time, in microseconds, so that listings of so many servers keep to the rate.
    pub(crate) fn crawler_sleep(&self, servers: usize) -> Option<u64> {
        let rate = self.rate.as_ref()?.bytes_per_second;
        let bytes = LISTED_PER_SLEEP * LISTED_BYTES * servers as u64;
        Some(((bytes as f64 / rate * 1e6) as u64).clamp(1, SLEEP_MICROS_MAX))
    }

    /// Waits until as much has passed as those before have taken.
    pub(crate) fn take(&self, bytes: u64) {
        let Some(rate) = &self.rate else { return };
        let until = {
            let mut free_from = rate.free_from.lock();
            let until = (*free_from).max(Instant::now());
            *free_from = until + Duration::from_secs_f64(bytes as f64 / rate.bytes_per_second);
            until
        };
        while !self.is_stopped() {
            match until.checked_duration_since(Instant::now()) {
                Some(left) if !left.is_zero() => thread::sleep(left.min(STEP)),
                _ => break,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_a_rate_listings_are_slow_and_batches_small() {
        let sleep = |rate, servers| Pace::new(rate).crawler_sleep(servers);
        assert_eq!(sleep(None, 10), None);
        assert_eq!(sleep(Some(4_000_000), 10), Some(50_000));
        assert_eq!(sleep(Some(1), 10), Some(1_000_000), "as long as memcached takes");
        assert!(Pace::new(Some(4_000_000)).batch_items() < Pace::new(None).batch_items());
    }
}
