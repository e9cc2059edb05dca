//! What a cachelet tells those who look for a page to clean.

use mbal_model::Seconds;

use crate::policy::Temper;
use crate::shim::{AtomicU32, AtomicU64, Ordering::*};

/// Written under the writer lock, read without it.
pub struct Aged {
    /// Order of sealing of the oldest page, by temper; `u64::MAX` is none.
    oldest: [AtomicU64; 2],
    /// Pages in logs, by temper.
    pages: [AtomicU32; 2],
    /// The second at which the first of the oldest pages holds nothing alive; `u32::MAX` is never.
    expires: AtomicU32,
}

impl Aged {
    pub fn new() -> Aged {
        Aged {
            oldest: [AtomicU64::new(u64::MAX), AtomicU64::new(u64::MAX)],
            pages: [AtomicU32::new(0), AtomicU32::new(0)],
            expires: AtomicU32::new(Seconds::MAX),
        }
    }

    pub fn oldest(&self, temper: Temper) -> u64 {
        self.oldest[temper as usize].load(Relaxed)
    }

    pub fn pages(&self, temper: Temper) -> u32 {
        self.pages[temper as usize].load(Relaxed)
    }

    pub fn all_pages(&self) -> u32 {
        self.pages.iter().map(|pages| pages.load(Relaxed)).sum()
    }

    pub fn expires(&self) -> Seconds {
        self.expires.load(Relaxed)
    }

    pub fn publish(&self, oldest: [u64; 2], expires: Seconds) {
        for (told, oldest) in self.oldest.iter().zip(oldest) {
            told.store(oldest, Relaxed);
        }
        self.expires.store(expires, Relaxed);
    }

    pub fn count_pages(&self, temper: Temper, change: i32) {
        let count = &self.pages[temper as usize];
        count.store(count.load(Relaxed).wrapping_add_signed(change), Relaxed);
    }

    pub fn have_no_pages(&self) {
        self.pages.iter().for_each(|pages| pages.store(0, Relaxed));
    }
}
