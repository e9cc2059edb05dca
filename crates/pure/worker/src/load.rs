//! What keeps the workers busy, and for whom: from counts to the balancer's reading.
//!
//! A worker's load is measured: the time from waking to the next wait. What makes it up is counted as
//! *work*, and the time is divided by it. Clients that know the workers follow a cachelet with all
//! they cost; the others' cost stays with their connections.

use std::sync::atomic::Ordering::Relaxed;

use mbal_balance::Reading;
use mbal_model::{CacheletId, CacheletLoad, Owner, ServerId, Snapshot, WorkerId, WorkerLoad};

use crate::counters::Counter;
use crate::server::Server;

/// Work is counted in nanoseconds that it took once (decision 0200); only the ratios matter. One
/// turn of a connection: waking, receiving, sending.
const TURN_WORK: u64 = 5_000;
/// One key of a request: parsing, finding, replying.
const KEY_WORK: u64 = 250;
/// Bytes in or out that cost one unit of work: copies, in the kernel and here.
const BYTES_PER_WORK: u64 = 4;

/// Work for one cachelet's sake, on a cache line of its own: its owner counts alone, but for the
/// moment of a change.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct CacheletWork(pub Counter);

pub(crate) fn turn_work(keys: u64, bytes: u64) -> u64 {
    TURN_WORK + key_work(keys, bytes)
}

pub(crate) fn key_work(keys: u64, bytes: u64) -> u64 {
    keys * KEY_WORK + bytes / BYTES_PER_WORK
}

/// All counts at one moment.
#[derive(Clone, Debug, Default)]
pub struct Tallies {
    at_ns: u64,
    seen: u64,
    workers: Vec<WorkerTally>,
    /// By cachelet: its owner, and its work.
    cachelets: Vec<(WorkerId, u64)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct WorkerTally {
    busy_ns: u64,
    work: u64,
    /// Of it, work that follows cachelets, and work of connections that can be handed over.
    followed: u64,
    handable: u64,
}

impl Server {
    /// Ends an epoch, at `now_ns` of any clock that does not jump: what has been counted so far.
    /// Called by one thread alone.
    pub fn end_epoch(&self, now_ns: u64) -> Tallies {
        self.epoch.fetch_add(1, Relaxed);
        let workers = (0..self.settings.workers.into()).map(|worker| {
            let counters = self.counters(worker);
            WorkerTally {
                busy_ns: counters.busy_ns.get(),
                work: counters.work.get(),
                followed: counters.work_followed.get(),
                handable: counters.work_handable.get(),
            }
        });
        let workers = workers.collect();
        // Before the owners: an order that goes by it is stale if one of them has changed since.
        let seen = self.store.version();
        let cachelets = (0..self.store.cachelets())
            .map(|cachelet| (self.store.owner(cachelet), self.cachelet_work[cachelet].0.get()));
        Tallies { at_ns: now_ns, seen, workers, cachelets: cachelets.collect() }
    }
}

impl Tallies {
    /// Loads of the epoch from `before` to this moment.
    pub fn since(&self, before: &Tallies) -> Reading {
        let elapsed_ns = (self.at_ns - before.at_ns).max(1) as f64;
        let work_of = |cachelet: usize| {
            let then = before.cachelets.get(cachelet).map_or(0, |(_, work)| *work);
            // Two owners that count at once may lose some.
            self.cachelets[cachelet].1.saturating_sub(then) as f64
        };
        let mut snapshot = Snapshot::default();
        let mut handable = Vec::new();
        for (index, now) in self.workers.iter().enumerate() {
            let id = WorkerId(index as u16);
            let then = before.workers.get(index).copied().unwrap_or_default();
            let load = (now.busy_ns - then.busy_ns) as f64 / elapsed_ns;
            let per_work = load / ((now.work - then.work).max(1) as f64);
            let owned = (0..self.cachelets.len()).filter(|&at| self.cachelets[at].0 == id);
            let work: f64 = owned.clone().map(work_of).sum();
            let followed = (now.followed - then.followed) as f64 * per_work;
            let movable = if work > 0.0 { followed } else { 0.0 };
            let cachelets = owned.map(|at| CacheletLoad {
                cachelet: CacheletId(at as u16),
                load: movable * work_of(at) / work.max(1.0),
                bytes: 0,
                pinned: false,
            });
            snapshot.workers.push(WorkerLoad {
                at: owner(id),
                fixed: (load - movable).max(0.0),
                // All workers of a server share its memory.
                bytes_max: u64::MAX,
                cachelets: cachelets.collect(),
            });
            handable.push((now.handable - then.handable) as f64 * per_work);
        }
        Reading { snapshot, handable, seen: self.seen }
    }
}

/// A worker of this server, as planners name it.
pub fn owner(worker: WorkerId) -> Owner {
    Owner { server: ServerId(0), worker }
}
