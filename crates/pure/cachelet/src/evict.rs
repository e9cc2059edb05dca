//! Whose page is cleaned next, for a worker that needs one.

use std::cmp::Reverse;
use std::ops::ControlFlow;
use std::sync::Arc;

use mbal_locks::ranks;
use mbal_model::Seconds;

use crate::apart::Apart;
use crate::cachelet::Cachelet;
use crate::cachelets::Cachelets;
use crate::locked::Locked;
use crate::policy::{Gauge, Temper, Victim};
use crate::pool::PageId;
use crate::reserves::{pages_left, share};
use crate::routes::Slot;
use crate::samples::next_victim;
use crate::shim::{AtomicU32, Ordering::*};
use crate::sync::SpinLock;

/// Every so many pages a worker looks at what the others have. The oldest page of the whole server goes then, whoever owns it: so memory
/// flows to the workers whose items live shortest.
const TRADE_EVERY: u32 = 8;
/// Where workers' oldest pages are of one age it looks less often, up to once in so many pages...
const TRADE_SELDOM: u32 = 64;
/// ...or in this part of its share, if that is less.
const TRADE_PART: u32 = 32;
/// Of one age is what differs by no more than one part in so many.
const AGE_PART: u64 = 16;
/// Dropped pages that are given back in one go, at a cache miss each: some ten microseconds.
const GIVEN_BACK_AT_ONCE: usize = 64;
/// Cleaned ahead of other workers' batches.
const WAITING_MAX: u32 = 8;
/// Values are long if the latest ones take more than one page in so many of a worker's.
const LONG_PART: u64 = 5;

/// A page that eviction has cleaned a part of, and what its choice went by: the rest goes by the same.
#[derive(Clone, Copy)]
struct Begun {
    cachelet: Slot,
    page: PageId,
    victim: Victim,
}

/// Cleans pages, a part of one at a time.
pub struct Cleaner {
    workers: Box<[Apart<OfWorker>]>,
}

struct OfWorker {
    owned: SpinLock<ranks::OwnSlots, OwnSlots>,
    gauge: SpinLock<ranks::Gauge, Gauge>,
    /// The page that it has cleaned a part of.
    begun: SpinLock<ranks::Begun, Option<Begun>>,
    /// The second in which it last found no expired page.
    looked_for_expired: AtomicU32,
    /// Pages that it cleans before it looks at what others have, and after that again.
    pages_alone: AtomicU32,
    trade_every: AtomicU32,
}

/// The cachelets of a worker, as they were when owners had changed so often.
struct OwnSlots {
    changes: (u64, u32),
    slots: Arc<[Slot]>,
}

impl OwnSlots {
    /// Of a time that has never been.
    fn unknown() -> OwnSlots {
        OwnSlots { changes: (u64::MAX, 0), slots: Arc::new([]) }
    }
}

impl Cleaner {
    pub fn new(workers: usize) -> Cleaner {
        let worker = || {
            Apart(OfWorker {
                owned: SpinLock::new(OwnSlots::unknown()),
                gauge: SpinLock::new(Gauge::default()),
                begun: SpinLock::new(None),
                looked_for_expired: AtomicU32::new(0),
                pages_alone: AtomicU32::new(0),
                trade_every: AtomicU32::new(TRADE_EVERY),
            })
        };
        Cleaner { workers: (0..workers).map(|_| worker()).collect() }
    }

    /// The cachelets of a worker. Others' are written by others with every page, and are not looked at for this.
    pub fn owned(&self, all: &Cachelets, worker: usize) -> Arc<[Slot]> {
        // Before the owners: one that changes meanwhile makes this list an old one.
        let changes = (all.version(), all.slots.half_owners());
        let mut owned = self.workers[worker].owned.lock();
        if owned.changes != changes {
            let of_worker = all.slots.used().filter(|cachelet| cachelet.front.owner() == worker);
            let slots = of_worker.map(|cachelet| cachelet.front.slot).collect();
            *owned = OwnSlots { changes, slots };
        }
        owned.slots.clone()
    }

    /// Cleans a part of a page of a cachelet of `worker`, or of another; false if there is none to clean.
    pub fn clean_one(&self, all: &Cachelets, worker: usize, now: Seconds) -> bool {
        if give_back_dropped(all, worker, now) {
            return true;
        }
        let owned = self.owned(all, worker);
        let own = || owned.iter().map(|&slot| all.at(slot));
        if clean_expired_among(all, worker, now, own()) {
            return true;
        }
        let of_worker = &self.workers[worker];
        let looks_around = of_worker.pages_alone.load(Relaxed) == 0 || !all.options().evict;
        // It goes on looking until there is nothing more to be had for nothing.
        if looks_around
            && (clean_expired_among(all, worker, now, all.slots.used())
                || collect_spare(all, worker))
        {
            return true;
        }
        if !all.options().evict {
            // What is won is for who needs it, whoever has the cachelet.
            return all.slots.used().any(|c| all.lock_for(worker, c, now).compact());
        }
        if self.go_on_cleaning(all, worker, now) {
            return true;
        }
        let trades = of_worker.is_to_trade(looks_around, all, own) || are_values_long(all);
        (!trades && self.clean_among(all, worker, now, own))
            || self.clean_among(all, worker, now, || all.slots.used())
    }

    /// Cleans another part of the page that `worker` has begun; false if that page is not the oldest any more.
    fn go_on_cleaning(&self, all: &Cachelets, worker: usize, now: Seconds) -> bool {
        let Some(begun) = self.workers[worker].begun.lock().take() else { return false };
        let mut locked = all.lock_for(worker, all.at(begun.cachelet), now);
        let is_oldest = locked.peek_oldest(begun.victim.temper) == Some(begun.page);
        is_oldest && self.clean_for(worker, &mut locked, begun.victim)
    }

    fn clean_for(&self, worker: usize, locked: &mut Locked, victim: Victim) -> bool {
        let cleaned = locked.clean_oldest(victim.temper, victim.window);
        let oldest = locked.peek_oldest(victim.temper);
        let begun = oldest.filter(|&page| locked.site.page(page).cleaned() > 0);
        let cachelet = locked.site.front.slot;
        *self.workers[worker].begun.lock() = begun.map(|page| Begun { cachelet, page, victim });
        cleaned
    }

    /// Cleans a part of the oldest page among these cachelets, for `worker` to use.
    fn clean_among<'a, C: Iterator<Item = &'a Cachelet>>(
        &self,
        all: &'a Cachelets,
        worker: usize,
        now: Seconds,
        cachelets: impl Fn() -> C,
    ) -> bool {
        let gauge = &self.workers[worker].gauge;
        let Victim { temper: first, window } = next_victim(all, gauge, now, &cachelets);
        let second = if first == Temper::New { Temper::Main } else { Temper::New };
        for temper in [first, second] {
            let age = |c: &&Cachelet| c.front.aged.oldest(temper);
            let fill = |c: &&Cachelet| c.front.aged.pages(temper);
            // Where no page is sealed, the cachelet with most open ones gives one.
            let victim =
                cachelets().filter(|c| fill(c) > 0).min_by_key(|c| (age(c), Reverse(fill(c))));
            if let Some(victim) = victim {
                let mut locked = all.lock_for(worker, victim, now);
                if self.clean_for(worker, &mut locked, Victim { temper, window }) {
                    return true;
                }
            }
        }
        false
    }

    /// Cleans a part of a page whose items are all dead by their deadline. Looks once a second until it
    /// finds nothing.
    pub fn expire_one(&self, all: &Cachelets, worker: usize, now: Seconds) -> bool {
        let looked_at = &self.workers[worker].looked_for_expired;
        if all.shared.pages.ttl_classes == 0 || looked_at.load(Relaxed) == now {
            return false;
        }
        let owned = self.owned(all, worker);
        let mut owned = owned.iter().map(|&slot| all.at(slot));
        let found = owned.any(|cachelet| all.lock_for(worker, cachelet, now).clean_expired());
        if !found {
            looked_at.store(now, Relaxed);
        }
        found
    }

    /// One step towards a smaller surplus. Breaks with whether it is worth trying again soon.
    pub fn shrink(&self, all: &Cachelets, worker: usize, now: Seconds) -> ControlFlow<bool> {
        let pages = &all.shared.pages;
        let waiting = pages.pool.reap(worker);
        if let Some(page) = pages.pool.take_surplus(worker) {
            let start = pages.start(page);
            pages.memory.decommit(start..start + pages.bytes);
            pages.pool.returned(page);
        } else if waiting >= pages.pool.surplus().min(WAITING_MAX) {
            return ControlFlow::Break(true);
        } else if !self.clean_one(all, worker, now) {
            return ControlFlow::Break(false);
        }
        ControlFlow::Continue(())
    }
}

impl OfWorker {
    /// A worker that cleans another page takes one of another's, if it `looks` and finds older ones there.
    fn is_to_trade<'a, C: Iterator<Item = &'a Cachelet>>(
        &self,
        looks: bool,
        all: &'a Cachelets,
        own: impl Fn() -> C,
    ) -> bool {
        if !looks {
            // Another's thread may be in this worker's cachelets: a page more or less does not matter.
            self.pages_alone.store(self.pages_alone.load(Relaxed).saturating_sub(1), Relaxed);
            return false;
        }
        let trades = [Temper::New, Temper::Main].into_iter().any(|temper| {
            let age = |order: u64| all.shared.pages.eras.seals().saturating_sub(order);
            let (own, of_all) = (oldest(own(), temper), oldest(all.slots.used(), temper));
            own.is_none_or(|own| age(of_all.unwrap_or(own)) > age(own) + age(own) / AGE_PART)
        });
        let seldom = TRADE_SELDOM.min(share(&all.shared) / TRADE_PART).max(TRADE_EVERY);
        let every = if trades { TRADE_EVERY } else { self.trade_every.load(Relaxed) * 2 };
        self.trade_every.store(every.min(seldom), Relaxed);
        self.pages_alone.store(every.min(seldom) - 1, Relaxed);
        trades
    }
}

/// The order of the oldest sealed page of this temper.
fn oldest<'a>(cachelets: impl Iterator<Item = &'a Cachelet>, temper: Temper) -> Option<u64> {
    cachelets.map(|c| c.front.aged.oldest(temper)).min().filter(|order| *order != u64::MAX)
}

/// Cleans a part of a page whose items are all dead by their deadline; false if none of these cachelets has one.
fn clean_expired_among<'a>(
    all: &Cachelets,
    worker: usize,
    now: Seconds,
    mut cachelets: impl Iterator<Item = &'a Cachelet>,
) -> bool {
    let expired = cachelets.find(|c| c.front.aged.expires() <= now);
    expired.is_some_and(|cachelet| all.lock_for(worker, cachelet, now).clean_expired())
}

/// Gives some of the pages that a flush has dropped to `worker`; false if there are none.
pub fn give_back_dropped(all: &Cachelets, worker: usize, now: Seconds) -> bool {
    all.shared.pages.any_dropped()
        && all.slots.used().any(|cachelet| {
            let mut locked = all.lock_for(worker, cachelet, now);
            locked.inner.items.logs.give_back_dropped(&locked.site, GIVEN_BACK_AT_ONCE)
        })
}

/// Takes what other workers keep free beyond twice their need: they may have been given back much that they do not use.
/// False if that is nothing.
fn collect_spare(all: &Cachelets, worker: usize) -> bool {
    let (pool, keep) = (&all.shared.pages.pool, pages_left(&all.shared));
    if !pool.is_spare_elsewhere(worker, 2 * keep) {
        return false;
    }
    let before = pool.available(worker);
    pool.collect(worker, keep);
    pool.available(worker) > before
}

/// The latest values are more than a worker's own new pages may hold: then its share of them says nothing.
fn are_values_long(all: &Cachelets) -> bool {
    all.shared.pages.eras.pages_of_latest() > u64::from(share(&all.shared)) / LONG_PART
}
