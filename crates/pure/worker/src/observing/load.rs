//! What keeps the workers busy, and for whom: from counts to the balancer's reading.
//!
//! A worker's load is measured: the time from waking to the next wait. What makes it up is counted as
//! *work*, and the time is divided by it. Clients that know the workers follow a cachelet with all
//! they cost; the others' cost stays with their connections.

use mbal_cachelet::{Held, Store};
use mbal_model::{CacheletLoad, Owner, Reading, ServerId, Service, Snapshot, WorkerId, WorkerLoad};

use crate::observing::counters::Counters;

/// Work is counted in nanoseconds that it took once (decision 0200); only the ratios matter. One
/// turn of a connection: waking, receiving, sending.
const TURN_WORK: u64 = 5_000;
/// One key of a request: parsing, finding, replying.
const KEY_WORK: u64 = 250;
/// Bytes in or out that cost one unit of work: copies, in the kernel and here.
const BYTES_PER_WORK: u64 = 4;

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
    here: ServerId,
    memory_bytes: u64,
    /// In the prefixes' order.
    cachelets: Vec<Held>,
}

#[derive(Clone, Copy, Debug, Default)]
struct WorkerTally {
    busy_ns: u64,
    keys: u64,
    work: u64,
    /// Of it, work that follows cachelets, and work of connections that can be handed over.
    followed: u64,
    handable: u64,
}

impl Tallies {
    /// What has been counted so far, by worker, at `at_ns` of any clock that does not jump.
    pub(crate) fn of(
        counters: &[Counters],
        store: &Store,
        at_ns: u64,
        here: ServerId,
        memory_bytes: u64,
    ) -> Tallies {
        let tally = |counters: &Counters| WorkerTally {
            busy_ns: counters.busy_ns.get(),
            keys: counters.keyed(),
            work: counters.work.get(),
            followed: counters.work_followed.get(),
            handable: counters.work_handable.get(),
        };
        let workers = counters.iter().map(tally).collect();
        // Before the owners: an order that goes by it is stale if one of them has changed since.
        let seen = store.version();
        Tallies { at_ns, seen, workers, here, memory_bytes, cachelets: store.held() }
    }

    /// Loads of the epoch from `before` to this moment.
    pub fn since(&self, before: &Tallies) -> Reading {
        let elapsed_ns = (self.at_ns - before.at_ns).max(1) as f64;
        let work_of = |now: &Held| {
            // The lower half of a split goes on with the count of the whole.
            let first = now.prefix.first();
            let then = before.cachelets.binary_search_by_key(&first, |held| held.prefix.first());
            let then = then.map_or(0, |at| before.cachelets[at].work);
            // Two owners that count at once may lose some.
            now.work.saturating_sub(then) as f64
        };
        let mut snapshot = Snapshot::default();
        let mut handable = Vec::new();
        for (index, now) in self.workers.iter().enumerate() {
            let id = WorkerId(index as u16);
            let then = before.workers.get(index).copied().unwrap_or_default();
            let busy_ns = (now.busy_ns - then.busy_ns) as f64;
            let (load, done) = (busy_ns / elapsed_ns, now.work - then.work);
            let per_work = load / done.max(1) as f64;
            let service = Service {
                capacity: done as f64 * 1e9 / busy_ns.max(1.0),
                keys: now.keys - then.keys,
                ..Service::default()
            };
            let owned = self.cachelets.iter().filter(|held| held.owner == id);
            let work: f64 = owned.clone().map(work_of).sum();
            let followed = (now.followed - then.followed) as f64 * per_work;
            let movable = if work > 0.0 { followed } else { 0.0 };
            let cachelets = owned.map(|held| CacheletLoad {
                cachelet: held.prefix,
                load: movable * work_of(held) / work.max(1.0),
                bytes: held.bytes,
                pinned: false,
            });
            snapshot.workers.push(WorkerLoad {
                at: Owner { server: self.here, worker: id },
                service,
                fixed: (load - movable).max(0.0),
                // All workers of a server share its memory.
                bytes_max: self.memory_bytes,
                cachelets: cachelets.collect(),
            });
            handable.push((now.handable - then.handable) as f64 * per_work);
        }
        Reading { snapshot, handable, seen: self.seen }
    }
}
