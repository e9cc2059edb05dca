//! Where pages come from: global pool → worker's pool → a cachelet's logs and index (papers/mbal §2.4).
//!
//! A page that nothing points to any more waits in its worker's limbo until every worker has passed
//! its stamp (see [`crate::sync::Epochs`]).

use std::collections::VecDeque;

use crate::shim::{AtomicU32, AtomicU64, Ordering::*};
use crate::sync::{Epochs, SpinLock};

/// Index of a page in the memory; page 0 is never given out, so that offset 0 is nowhere.
pub type PageId = u32;

/// What is known of a page. Written under the lock of the cachelet that has the page.
#[derive(Default)]
pub struct Page {
    /// Sequence 0 of this page's items; readers load it too, to tell a cas.
    pub base: AtomicU64,
    /// Place in the order of sealing, which is the order of eviction; 0 while open, free or being cleaned.
    pub sealed: AtomicU64,
    /// Bytes appended so far.
    pub fill: AtomicU32,
    /// Records that are not dead.
    pub live_records: AtomicU32,
    pub live_bytes: AtomicU32,
    /// The second at which the last of its items dies; `u32::MAX` if one never does.
    pub latest: AtomicU32,
    /// The log that it belongs to, by index.
    pub log: AtomicU32,
}

#[derive(Default)]
struct Global {
    /// Pages from here on were never used.
    next: PageId,
    free: Vec<PageId>,
}

#[derive(Default)]
struct Local {
    free: Vec<PageId>,
    limbo: VecDeque<(u64, PageId)>,
}

#[repr(align(64))]
struct WorkerPool {
    /// Length of `free`, for those who only look.
    free: AtomicU32,
    local: SpinLock<Local>,
}

pub struct Pool {
    pages: PageId,
    global: SpinLock<Global>,
    global_free: AtomicU32,
    workers: Box<[WorkerPool]>,
    /// Pages that a worker takes from the global pool at a time.
    chunk: u32,
    /// `glob_mem_low_thresh`: below this, workers give back.
    global_low: u32,
    /// `thr_mem_high_thresh`: what a worker may keep free while the global pool is low.
    worker_high: u32,
}

impl Pool {
    pub fn new(pages: PageId, workers: usize, chunk: u32) -> Pool {
        let worker =
            || WorkerPool { free: AtomicU32::new(0), local: SpinLock::new(Local::default()) };
        Pool {
            pages,
            global: SpinLock::new(Global { next: 1, free: Vec::new() }),
            global_free: AtomicU32::new(pages - 1),
            workers: (0..workers).map(|_| worker()).collect(),
            chunk,
            global_low: pages / 10,
            worker_high: pages / workers as u32 / 10,
        }
    }

    pub fn pages(&self) -> PageId {
        self.pages
    }

    /// Pages that [`Pool::take`] could give to `worker` without waiting.
    #[inline]
    pub fn available(&self, worker: usize) -> u32 {
        self.workers[worker].free.load(Relaxed) + self.global_free.load(Relaxed)
    }

    /// Pages that nobody has, limbo not counted.
    pub fn unused(&self) -> u32 {
        self.workers.iter().map(|pool| pool.free.load(Relaxed)).sum::<u32>()
            + self.global_free.load(Relaxed)
    }

    pub fn take(&self, worker: usize, epochs: &Epochs) -> Option<PageId> {
        let pool = &self.workers[worker];
        let mut local = pool.local.lock();
        if local.free.is_empty() {
            Self::reap_into(&mut local, epochs);
        }
        if local.free.is_empty() {
            self.refill(&mut local);
        }
        let page = local.free.pop();
        pool.free.store(local.free.len() as u32, Relaxed);
        page
    }

    fn refill(&self, local: &mut Local) {
        let mut global = self.global.lock();
        for _ in 0..self.chunk {
            let page = match global.free.pop() {
                Some(page) => page,
                None if global.next < self.pages => {
                    global.next += 1;
                    global.next - 1
                }
                None => break,
            };
            local.free.push(page);
        }
        let left = global.free.len() as u32 + (self.pages - global.next);
        self.global_free.store(left, Relaxed);
    }

    /// Takes a page back whose last pointer has just been removed.
    pub fn release(&self, worker: usize, page: PageId, epochs: &Epochs) {
        let stamp = epochs.stamp();
        self.workers[worker].local.lock().limbo.push_back((stamp, page));
    }

    /// [`Pool::release`] for many.
    pub fn release_all(&self, worker: usize, pages: impl Iterator<Item = PageId>, epochs: &Epochs) {
        let stamp = epochs.stamp();
        let mut local = self.workers[worker].local.lock();
        local.limbo.extend(pages.map(|page| (stamp, page)));
    }

    /// Makes pages free whose stamp has been passed, and evens out between worker and global pool.
    /// The number of those that still wait.
    pub fn reap(&self, worker: usize, epochs: &Epochs) -> u32 {
        let pool = &self.workers[worker];
        let mut local = pool.local.lock();
        Self::reap_into(&mut local, epochs);
        if self.global_free.load(Relaxed) < self.global_low {
            let keep = self.worker_high.max(self.chunk) as usize;
            if local.free.len() > 2 * keep {
                self.give(local.free.drain(keep..));
            }
        }
        pool.free.store(local.free.len() as u32, Relaxed);
        local.limbo.len() as u32
    }

    /// Moves what the other workers keep free beyond `keep` pages each to the global pool.
    pub fn collect(&self, worker: usize, keep: u32, epochs: &Epochs) {
        for (_, pool) in self.workers.iter().enumerate().filter(|&(other, _)| other != worker) {
            let mut local = pool.local.lock();
            Self::reap_into(&mut local, epochs);
            let keep = (keep as usize).min(local.free.len());
            self.give(local.free.drain(keep..));
            pool.free.store(local.free.len() as u32, Relaxed);
        }
    }

    fn give(&self, pages: impl Iterator<Item = PageId>) {
        let mut global = self.global.lock();
        global.free.extend(pages);
        let left = global.free.len() as u32 + (self.pages - global.next);
        self.global_free.store(left, Relaxed);
    }

    fn reap_into(local: &mut Local, epochs: &Epochs) {
        while let Some(&(stamp, page)) = local.limbo.front() {
            if !epochs.passed(stamp) {
                break;
            }
            local.limbo.pop_front();
            local.free.push(page);
        }
    }
}
