//! Whose page is cleaned next, for a worker that needs one.

use mbal_model::Seconds;

use crate::cachelet::Cachelet;
use crate::locked::Locked;
use crate::policy::{Temper, Victim};
use crate::pool::PageId;
use crate::routes::Slot;
use crate::shim::Ordering::*;
use crate::store::Store;

/// Every so many evictions the oldest page of the whole server goes, whoever owns it: so memory
/// flows to the workers whose items live shortest.
const TRADE_EVERY: u32 = 8;
/// Dropped pages that are given back in one go, at a cache miss each: some ten microseconds.
const GIVEN_BACK_AT_ONCE: usize = 64;

/// A page that eviction has cleaned a part of, and what its choice went by: the rest goes by the same.
#[derive(Clone, Copy)]
pub(crate) struct Begun {
    cachelet: Slot,
    page: PageId,
    victim: Victim,
}

impl Store {
    /// Gives some of the pages that a flush has dropped to `worker`; false if there are none.
    pub(crate) fn give_back_dropped(&self, worker: usize, now: Seconds) -> bool {
        if self.with_dropped.load(Relaxed) == 0 {
            return false;
        }
        self.cachelets().any(|cachelet| {
            let mut locked = self.lock_cachelet(cachelet, now);
            locked.pool = worker;
            locked.give_back_dropped(GIVEN_BACK_AT_ONCE)
        })
    }

    /// Cleans a part of a page of a cachelet of `worker`, or of another; false if there is none to clean.
    pub(crate) fn clean_one(&self, worker: usize, now: Seconds) -> bool {
        if self.give_back_dropped(worker, now) {
            return true;
        }
        let mut cachelets = self.cachelets();
        if let Some(cachelet) = cachelets.find(|c| c.expires.load(Relaxed) <= now) {
            if self.clean_expired(cachelet, worker, now) {
                return true;
            }
        }
        if self.collect_spare(worker) {
            return true;
        }
        if !self.options().evict {
            return self.cachelets().any(|cachelet| {
                let mut locked = self.lock_cachelet(cachelet, now);
                // What is won is for who needs it, whoever has the cachelet.
                locked.pool = worker;
                locked.compact()
            });
        }
        if self.go_on_cleaning(worker, now) {
            return true;
        }
        let turn = self.evictions.fetch_add(1, Relaxed);
        let of_all = turn % TRADE_EVERY == 0 || self.are_values_long();
        (!of_all && self.clean_among(worker, now, |cachelet| cachelet.owner() == worker))
            || self.clean_among(worker, now, |_| true)
    }

    /// Takes what other workers keep free beyond twice their need: they may have been given back much that they do not use.
    /// False if that is nothing.
    fn collect_spare(&self, worker: usize) -> bool {
        let keep = self.pages_left();
        if !self.pool.is_spare_elsewhere(worker, 2 * keep) {
            return false;
        }
        let before = self.pool.available(worker);
        self.pool.collect(worker, keep, &self.epochs);
        self.pool.available(worker) > before
    }

    /// Cleans another part of the page that `worker` has begun; false if that page is not the oldest any more.
    fn go_on_cleaning(&self, worker: usize, now: Seconds) -> bool {
        let Some(begun) = self.begun[worker].lock().take() else { return false };
        let mut locked = self.lock_cachelet(self.at(begun.cachelet), now);
        let is_oldest = locked.peek_oldest(begun.victim.temper) == Some(begun.page);
        is_oldest && self.clean_for(worker, &mut locked, begun.victim)
    }

    fn clean_for(&self, worker: usize, locked: &mut Locked, victim: Victim) -> bool {
        locked.pool = worker;
        locked.window = victim.window;
        let cleaned = locked.clean_oldest(victim.temper);
        let begun = locked.peek_oldest(victim.temper).filter(|&page| locked.is_begun(page));
        let cachelet = locked.cachelet.slot;
        *self.begun[worker].lock() = begun.map(|page| Begun { cachelet, page, victim });
        cleaned
    }

    /// Cleans a part of the oldest page among these cachelets, for `worker` to use.
    fn clean_among(
        &self,
        worker: usize,
        now: Seconds,
        eligible: impl Fn(&Cachelet) -> bool,
    ) -> bool {
        let cachelets = || self.cachelets().filter(|c| eligible(c));
        let Victim { temper: first, window } = self.next_victim(worker, now, cachelets);
        let second = if first == Temper::New { Temper::Main } else { Temper::New };
        for temper in [first, second] {
            let age = |c: &&Cachelet| c.oldest[temper as usize].load(Relaxed);
            let fill = |c: &&Cachelet| c.log_pages[temper as usize].load(Relaxed);
            // Where no page is sealed, the cachelet with most open ones gives one.
            let victim = cachelets()
                .filter(|c| fill(c) > 0)
                .min_by_key(|c| (age(c), std::cmp::Reverse(fill(c))));
            if let Some(victim) = victim {
                let mut locked = self.lock_cachelet(victim, now);
                if self.clean_for(worker, &mut locked, Victim { temper, window }) {
                    return true;
                }
            }
        }
        false
    }
}
