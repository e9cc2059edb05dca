//! Where pages come from: global pool → worker's pool → a cachelet's logs and index (MBal, EuroSys 2015, §2.4).
//!
//! The memory may have room for more pages than there may be: the limit moves while others take and release.
//! What is above it is a surplus, which workers give back to the system in their background time.
//!
//! A page that nothing points to any more waits in its worker's limbo until every worker has passed
//! its stamp (see [`crate::sync::Epochs`]).

use std::collections::VecDeque;

use mbal_locks::ranks;

use crate::apart::Apart;
use crate::shim::{AtomicU32, Ordering::*};
use crate::sync::{Epochs, SpinLock};

/// Index of a page in the memory; page 0 is never given out, so that offset 0 is nowhere.
pub type PageId = u32;

#[derive(Default)]
struct Global {
    /// Pages from here on were never used.
    next: PageId,
    free: Vec<PageId>,
    /// Pages whose memory the system has back.
    returned: Vec<PageId>,
}

impl Global {
    /// Pages with memory behind them, whoever has them; page 0 is one.
    fn existing(&self) -> u32 {
        self.next - self.returned.len() as u32
    }
}

#[derive(Default)]
struct Local {
    free: Vec<PageId>,
    limbo: VecDeque<(u64, PageId)>,
    /// Pages in limbo that have no stamp yet.
    unstamped: Vec<PageId>,
}

impl Local {
    fn waiting(&self) -> u32 {
        (self.limbo.len() + self.unstamped.len()) as u32
    }

    fn stamp(&mut self, epochs: &Epochs) {
        if !self.unstamped.is_empty() {
            let stamp = epochs.stamp();
            self.limbo.extend(self.unstamped.drain(..).map(|page| (stamp, page)));
        }
    }
}

#[repr(C)]
struct WorkerPool {
    /// Lengths of `free` and of what waits in limbo, for those who only look.
    free: AtomicU32,
    waiting: AtomicU32,
    local: SpinLock<ranks::LocalPool, Local>,
}

impl WorkerPool {
    fn tell(&self, local: &Local) {
        self.free.store(local.free.len() as u32, Relaxed);
        self.waiting.store(local.waiting(), Relaxed);
    }
}

/// What every request looks at, and who has locked `global` writes.
struct Levels {
    /// So many pages may exist, page 0 among them.
    limit: AtomicU32,
    /// Pages that exist all the same.
    surplus: AtomicU32,
    /// Pages that `global` could give.
    free: AtomicU32,
    /// With fewer pages, those that wait counted, a worker makes room.
    to_refill: AtomicU32,
    /// Pages from here on were never used.
    untouched: AtomicU32,
}

pub struct Pool {
    epochs: Epochs,
    told: Apart<Levels>,
    global: Apart<SpinLock<ranks::GlobalPool, Global>>,
    workers: Box<[Apart<WorkerPool>]>,
    /// Pages that a worker takes from the global pool at a time.
    chunk: u32,
}

/// Pages that a worker stamps at once, where it is not alone and its share is not small: all workers look at a stamp before their next
/// batch.
const STAMPED_AT_ONCE: u32 = 2;
const SHARE_SMALL: u32 = 256;

/// Pages that a surplus leaves to those who write.
const SPARE: u32 = 2;

impl Pool {
    pub fn new(limit: PageId, workers: usize, chunk: u32) -> Pool {
        let worker = || {
            let local = SpinLock::new(Local::default());
            Apart(WorkerPool { free: AtomicU32::new(0), waiting: AtomicU32::new(0), local })
        };
        let told = Levels {
            limit: AtomicU32::new(limit),
            surplus: AtomicU32::new(0),
            free: AtomicU32::new(limit - 1),
            to_refill: AtomicU32::new(0),
            untouched: AtomicU32::new(1),
        };
        Pool {
            epochs: Epochs::new(workers),
            told: Apart(told),
            global: Apart(SpinLock::new(Global { next: 1, ..Global::default() })),
            workers: (0..workers).map(|_| worker()).collect(),
            chunk,
        }
    }

    #[inline(always)]
    pub fn epochs(&self) -> &Epochs {
        &self.epochs
    }

    /// Pages from here on were never used.
    #[inline]
    pub fn untouched(&self) -> PageId {
        self.told.untouched.load(Relaxed)
    }

    /// Pages that may exist.
    pub fn limit(&self) -> PageId {
        self.told.limit.load(Relaxed)
    }

    /// Pages that exist have to go before the limit holds: see [`Pool::take_surplus`].
    pub fn set_limit(&self, limit: PageId) {
        let global = self.global.lock();
        self.told.limit.store(limit, Relaxed);
        self.tell(&global);
    }

    /// With fewer pages of its own, those that wait counted, a worker makes room.
    #[inline]
    pub fn to_refill(&self) -> u32 {
        self.told.to_refill.load(Relaxed)
    }

    pub fn set_to_refill(&self, pages: u32) {
        self.told.to_refill.store(pages, Relaxed);
    }

    /// Publishes what `global` could give, and what there is too much of.
    fn tell(&self, global: &Global) {
        let (existing, limit) = (global.existing(), self.limit());
        let left = global.free.len() as u32 + limit.saturating_sub(existing);
        self.told.free.store(left, Relaxed);
        self.told.surplus.store(existing.saturating_sub(limit), Relaxed);
        self.told.untouched.store(global.next, Relaxed);
    }

    /// Pages that exist beyond the limit.
    #[inline]
    pub fn surplus(&self) -> u32 {
        self.told.surplus.load(Relaxed)
    }

    /// A free page of the surplus, for [`Pool::returned`] once the system has its memory back.
    pub fn take_surplus(&self, worker: usize) -> Option<PageId> {
        let wanted = self.surplus() > 0 && self.available(worker) > SPARE;
        if wanted { self.take(worker) } else { None }
    }

    /// The memory of this page is the system's.
    pub fn returned(&self, page: PageId) {
        let mut global = self.global.lock();
        global.returned.push(page);
        self.tell(&global);
    }

    /// Pages that [`Pool::take`] could give to `worker` without waiting.
    #[inline]
    pub fn available(&self, worker: usize) -> u32 {
        self.workers[worker].free.load(Relaxed) + self.told.free.load(Relaxed)
    }

    /// Pages that somebody has, or that wait in limbo; a surplus is used.
    pub fn used(&self) -> u32 {
        (self.limit() + self.surplus() - 1).saturating_sub(self.unused())
    }

    /// Pages that nobody has, limbo not counted.
    pub fn unused(&self) -> u32 {
        self.workers.iter().map(|pool| pool.free.load(Relaxed)).sum::<u32>()
            + self.told.free.load(Relaxed)
    }

    /// Pages that `worker` has taken back, and that other workers' batches may still see.
    #[inline]
    pub fn waiting(&self, worker: usize) -> u32 {
        self.workers[worker].waiting.load(Relaxed)
    }

    pub fn take(&self, worker: usize) -> Option<PageId> {
        let pool = &self.workers[worker];
        let mut local = pool.local.lock();
        if local.free.is_empty() {
            self.reap_into(&mut local);
        }
        if local.free.is_empty() {
            self.refill(&mut local);
        }
        let page = local.free.pop();
        pool.tell(&local);
        page
    }

    fn refill(&self, local: &mut Local) {
        let mut global = self.global.lock();
        for _ in 0..self.chunk {
            let may_grow = global.existing() < self.limit();
            let mut page = global.free.pop();
            if may_grow {
                page = page.or_else(|| global.returned.pop()).or_else(|| {
                    global.next += 1;
                    Some(global.next - 1)
                });
            }
            let Some(page) = page else { break };
            local.free.push(page);
        }
        self.tell(&global);
    }

    /// Takes a page back whose last pointer has just been removed.
    pub fn release(&self, worker: usize, page: PageId) {
        let mut local = self.workers[worker].local.lock();
        local.unstamped.push(page);
        if local.unstamped.len() as u32 >= self.stamped_at_once() {
            local.stamp(&self.epochs);
        }
        self.workers[worker].tell(&local);
    }

    fn stamped_at_once(&self) -> u32 {
        let workers = self.workers.len() as u32;
        if workers == 1 || self.limit() / workers < SHARE_SMALL { 1 } else { STAMPED_AT_ONCE }
    }

    /// [`Pool::release`] for many.
    pub fn release_all(&self, worker: usize, pages: impl Iterator<Item = PageId>) {
        let stamp = self.epochs.stamp();
        let mut local = self.workers[worker].local.lock();
        local.limbo.extend(pages.map(|page| (stamp, page)));
        self.workers[worker].tell(&local);
    }

    /// Makes pages free whose stamp has been passed, and evens out between worker and global pool.
    /// The number of those that still wait.
    pub fn reap(&self, worker: usize) -> u32 {
        let pool = &self.workers[worker];
        let mut local = pool.local.lock();
        self.reap_into(&mut local);
        if self.told.free.load(Relaxed) < self.global_low() {
            let keep = self.worker_high().max(self.chunk) as usize;
            if local.free.len() > 2 * keep {
                self.give(local.free.drain(keep..));
            }
        }
        pool.tell(&local);
        local.waiting()
    }

    /// True if [`Pool::collect`] may find something.
    pub fn is_spare_elsewhere(&self, worker: usize, keep: u32) -> bool {
        let others = self.workers.iter().enumerate().filter(|&(other, _)| other != worker);
        others
            .map(|(_, pool)| pool)
            .any(|pool| pool.free.load(Relaxed) + pool.waiting.load(Relaxed) > keep)
    }

    /// Moves what the other workers keep free beyond `keep` pages each to the global pool.
    pub fn collect(&self, worker: usize, keep: u32) {
        for (_, pool) in self.workers.iter().enumerate().filter(|&(other, _)| other != worker) {
            let mut local = pool.local.lock();
            self.reap_into(&mut local);
            let keep = (keep as usize).min(local.free.len());
            self.give(local.free.drain(keep..));
            pool.tell(&local);
        }
    }

    fn give(&self, pages: impl ExactSizeIterator<Item = PageId>) {
        if pages.len() == 0 {
            return;
        }
        let mut global = self.global.lock();
        global.free.extend(pages);
        self.tell(&global);
    }

    /// `glob_mem_low_thresh`: below this, workers give back.
    fn global_low(&self) -> u32 {
        self.limit() / 10
    }

    /// `thr_mem_high_thresh`: what a worker may keep free while the global pool is low.
    fn worker_high(&self) -> u32 {
        self.limit() / self.workers.len() as u32 / 10
    }

    fn reap_into(&self, local: &mut Local) {
        local.stamp(&self.epochs);
        while let Some(&(stamp, page)) = local.limbo.front() {
            if !self.epochs.passed(stamp) {
                break;
            }
            local.limbo.pop_front();
            local.free.push(page);
        }
    }
}
