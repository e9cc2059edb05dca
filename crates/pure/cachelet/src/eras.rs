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

/// Orders that a worker takes at a time, where it is not alone: no more than this...
const BLOCK_MAX: u32 = 32;
/// ...and this part of its share.
const BLOCK_PART: u32 = 64;

pub struct Eras {
    /// Pages sealed so far, by anybody; of a block all, as soon as it begins.
    seals: Apart<AtomicU64>,
    /// By worker, the order that it gave last: the next one, until its block is over.
    given: Box<[Apart<AtomicU64>]>,
    /// Orders that a worker takes at a time: all look at `seals` when they clean a page.
    block: u64,
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
    pub fn new(workers: usize, pages: u32) -> Eras {
        let block = (pages / workers as u32 / BLOCK_PART).clamp(1, BLOCK_MAX);
        Eras {
            seals: Apart(AtomicU64::new(0)),
            given: (0..workers).map(|_| Apart(AtomicU64::new(0))).collect(),
            block: if workers == 1 { 1 } else { block.into() },
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

    /// The order of a page that is sealed now for `worker`: no less than any that it got before.
    pub fn seal(&self, worker: usize, limit: u32) -> u64 {
        let given = &self.given[worker];
        let order = loop {
            let last = given.load(Relaxed);
            let order = 1 + if last % self.block == 0 { self.begin_block(limit) } else { last };
            // Another's thread may seal for this worker, too. Then a block may be lost.
            if given.compare_exchange(last, order, Relaxed, Relaxed).is_ok() {
                break order;
            }
        };
        let long = self.long.load(Relaxed);
        if long > 0 {
            self.long.store(long - (long / seals_per_era(limit)).min(long), Relaxed);
        }
        order
    }

    /// The order before the first one of a block.
    fn begin_block(&self, limit: u32) -> u64 {
        let before = self.seals.fetch_add(self.block, Relaxed);
        let era = ((before + self.block) / seals_per_era(limit)) as u32 % ERAS;
        if era != self.now() {
            self.now.store(era, Relaxed);
        }
        before
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
