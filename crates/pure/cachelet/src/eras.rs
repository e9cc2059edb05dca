//! The order in which pages are sealed, and the time that is told by it.
//!
//! Time is counted in eras, a part of all pages sealed each, so that policy forgets by what was written, not by the clock. `limit` is how
//! many pages there may be.

use crate::access::ERAS;
use crate::apart::Apart;
use crate::policy::ERAS_PER_TURN;
use crate::shim::{AtomicU32, AtomicU64, Ordering::*};

/// Values that were written last, and are to be found: more than clients that store at the same time and read then.
const LATEST_VALUES: u64 = 32;
/// What is known of long values has so many bits behind the point.
const LONG_SHIFT: u32 = 16;

pub struct Eras {
    /// Pages sealed so far, by anybody.
    seals: Apart<AtomicU64>,
    /// How long values are, see [`Eras::wrote_long`].
    long: AtomicU64,
    /// Main pages are not judged before so many have been sealed: items came from another server.
    judged_from: AtomicU64,
    /// The time that items' accesses carry.
    now: AtomicU32,
}

/// Pages sealed in an era.
pub fn seals_per_era(limit: u32) -> u64 {
    u64::from(limit / ERAS_PER_TURN).max(1)
}

impl Eras {
    pub fn new() -> Eras {
        Eras {
            seals: Apart(AtomicU64::new(0)),
            long: AtomicU64::new(0),
            judged_from: AtomicU64::new(0),
            now: AtomicU32::new(0),
        }
    }

    #[inline(always)]
    pub fn now(&self) -> u32 {
        self.now.load(Relaxed)
    }

    pub fn seals(&self) -> u64 {
        self.seals.load(Relaxed)
    }

    /// The order of a page that is sealed now.
    pub fn seal(&self, limit: u32) -> u64 {
        let order = self.seals.fetch_add(1, Relaxed) + 1;
        let long = self.long.load(Relaxed);
        if long > 0 {
            self.long.store(long - (long / seals_per_era(limit)).min(long), Relaxed);
        }
        let era = (order / seals_per_era(limit)) as u32 % ERAS;
        if era != self.now() {
            self.now.store(era, Relaxed);
        }
        order
    }

    /// A value of so many pages was written. Values count by their pages, against those that are sealed in an era: where few pages are
    /// full of long ones they count for nothing. Two that write at once may count as one.
    pub fn wrote_long(&self, pages: u64, limit: u32) {
        let (long, era) = (self.long.load(Relaxed), seals_per_era(limit));
        let toward = (pages << LONG_SHIFT).saturating_sub(long) / era * pages.min(era);
        self.long.store(long + toward, Relaxed);
    }

    /// Pages of the values that were written last, as many as clients may be about to read: few of the pages, unless values are long.
    pub fn pages_of_latest(&self) -> u64 {
        // Where all are as long, sealing has halved it.
        (2 * LATEST_VALUES * self.long.load(Relaxed)) >> LONG_SHIFT
    }

    /// What comes from other servers seals pages faster than anybody reads: in such eras no page has earned anything.
    pub fn judge_later(&self, limit: u32) {
        self.judged_from.store(self.seals() + seals_per_era(limit), Relaxed);
    }

    pub fn are_judged(&self) -> bool {
        self.seals() >= self.judged_from.load(Relaxed)
    }
}
