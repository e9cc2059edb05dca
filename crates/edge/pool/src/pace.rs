//! How far the work is, how fast it may go, and whether it is to stop: what all its threads share.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

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
    free_from: Mutex<Instant>,
}

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

    pub fn is_stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// Waits until as much has passed as those before have taken.
    pub(crate) fn take(&self, bytes: u64) {
        let Some(rate) = &self.rate else { return };
        let until = {
            let mut free_from = rate.free_from.lock().expect("nothing panics under this lock");
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
