//! What a worker does for its store between two batches, step by step.

use std::ops::ControlFlow;

use mbal_model::{Seconds, WorkerId};

use crate::cachelet::Cachelet;
use crate::shim::Ordering::*;
use crate::store::Store;

impl Store {
    /// At most `budget` steps for the cachelets of `worker`: of splits that have begun, of expiry and of eviction ahead, each a
    /// part of a page; true if there is more to do. Not between [`Store::enter`] and [`Store::leave`].
    pub fn background(&self, worker: WorkerId, now: Seconds, budget: usize) -> bool {
        let worker = usize::from(worker.0);
        for _ in 0..budget {
            if self.drop_released(now)
                || self.give_back_dropped(worker, now)
                || self.go_on_splitting(worker, now)
            {
                continue;
            }
            if self.pool.surplus() > 0 {
                match self.shrink(worker, now) {
                    ControlFlow::Continue(()) => continue,
                    ControlFlow::Break(more) => return more,
                }
            }
            if self.pool.available(worker) >= self.pages_ahead() {
                return self.expire_one(worker, now);
            }
            let waiting = self.pool.reap(worker, &self.epochs);
            if self.pool.available(worker) + waiting >= self.pages_ahead() {
                return true;
            }
            if !self.clean_one(worker, now) {
                return false;
            }
        }
        true
    }

    /// Cleans a part of a page whose items are all dead by their deadline. Looks once a second until it
    /// finds nothing.
    fn expire_one(&self, worker: usize, now: Seconds) -> bool {
        let looked_at = &self.looked_for_expired[worker];
        if self.ttl_classes == 0 || looked_at.load(Relaxed) == now {
            return false;
        }
        let owned = self.cachelets().filter(|c| c.owner() == worker);
        for cachelet in owned {
            if self.clean_expired(cachelet, worker, now) {
                return true;
            }
        }
        looked_at.store(now, Relaxed);
        false
    }

    pub(crate) fn clean_expired(&self, cachelet: &Cachelet, worker: usize, now: Seconds) -> bool {
        let mut locked = self.lock_cachelet(cachelet, now);
        locked.pool = worker;
        let Some(page) = locked.expired_page() else { return false };
        locked.clean(page)
    }
}
