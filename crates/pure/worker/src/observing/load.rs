//! What keeps the workers busy, and for whom: from counts to the balancer's reading.
//!
//! A worker's load is measured: the time from waking to the next wait. What makes it up is counted as
//! *work*, and the time is divided by it. Clients that know the workers follow a cachelet with all
//! they cost; the others' cost stays with their connections. What other servers ask goes where the cachelet
//! goes, but only from server to server: their links end at workers that chance has chosen.

use mbal_cachelet::{CacheletWork, Held, Store};
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
    ran_ns: u64,
    waited_ns: u64,
    keys: u64,
    /// What follows cachelets: its turns, and their keys.
    turns: u64,
    turns_keys: u64,
    work: u64,
    /// Of it: what follows cachelets between workers, what follows them between servers, and what is connections' that can be handed over.
    followed: u64,
    linked: u64,
    handable: u64,
    caused_followed: u64,
    caused_linked: u64,
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
            ran_ns: counters.ran_ns.get(),
            waited_ns: counters.waited_ns.get(),
            keys: counters.keyed(),
            turns: counters.turns_followed.get(),
            turns_keys: counters.keys_followed.get(),
            work: counters.work.get(),
            followed: counters.work_followed.get(),
            linked: counters.work_linked.get(),
            handable: counters.work_handable.get(),
            caused_followed: counters.caused_followed.get(),
            caused_linked: counters.caused_linked.get(),
        };
        let workers = counters.iter().map(tally).collect();
        // Before the owners: an order that goes by it is stale if one of them has changed since.
        let seen = store.version();
        Tallies { at_ns, seen, workers, here, memory_bytes, cachelets: store.held() }
    }

    /// Loads of the epoch from `before` to this moment. A cachelet has what goes with it to another worker of this server: links of
    /// other servers stay with their workers.
    pub fn since(&self, before: &Tallies) -> Reading {
        let handable = |index: usize| {
            let Spent { now, then, per_work, .. } = self.spent(before, index);
            (now.handable - then.handable) as f64 * per_work
        };
        let handable = (0..self.workers.len()).map(handable).collect();
        let workers = self.loads(before, false);
        Reading { snapshot: Snapshot { workers }, handable, seen: self.seen }
    }

    /// The same, and a cachelet has what goes with it to another server.
    pub fn leaves_since(&self, before: &Tallies) -> Vec<WorkerLoad> {
        self.loads(before, true)
    }

    fn spent(&self, before: &Tallies, index: usize) -> Spent {
        let now = self.workers[index];
        let then = before.workers.get(index).copied().unwrap_or_default();
        let elapsed_ns = (self.at_ns - before.at_ns).max(1) as f64;
        let load = (now.busy_ns - then.busy_ns) as f64 / elapsed_ns;
        let per_work = load / (now.work - then.work).max(1) as f64;
        Spent { now, then, load, per_work, elapsed_ns }
    }

    fn loads(&self, before: &Tallies, leaves_server: bool) -> Vec<WorkerLoad> {
        let caused = |now: &Held| {
            // The lower half of a split goes on with the count of the whole.
            let first = now.prefix.first();
            let then = before.cachelets.binary_search_by_key(&first, |held| held.prefix.first());
            let then = then.map_or(CacheletWork::default(), |at| before.cachelets[at].work);
            // Two owners that count at once may lose some.
            let followed = now.work.followed.saturating_sub(then.followed) as f64;
            (followed, now.work.linked.saturating_sub(then.linked) as f64)
        };
        let worker = |index: usize| {
            let id = WorkerId(index as u16);
            let spent = self.spent(before, index);
            let (now, then) = (spent.now, spent.then);
            // Work of turns for each that a cachelet has caused. What has gone since is nobody's any more: the others cause no more than before.
            let of = |work: u64, caused: u64| match caused {
                0 => 0.0,
                _ => work as f64 * spent.per_work / caused as f64,
            };
            let followed = now.followed - then.followed;
            let by_followed = of(followed, now.caused_followed - then.caused_followed);
            let linked = if leaves_server { now.linked - then.linked } else { 0 };
            let by_linked = of(linked, now.caused_linked - then.caused_linked);
            let mut leaves = 0.0;
            leaves += if by_followed > 0.0 { followed as f64 } else { 0.0 };
            leaves += if by_linked > 0.0 { linked as f64 } else { 0.0 };
            let owned = self.cachelets.iter().filter(|held| held.owner == id);
            let owned = owned.map(|held| (held, caused(held)));
            let cachelets = owned.map(|(held, caused)| CacheletLoad {
                cachelet: held.prefix,
                load: caused.0 * by_followed + caused.1 * by_linked,
                bytes: held.bytes,
                pinned: false,
            });
            WorkerLoad {
                at: Owner { server: self.here, worker: id },
                service: spent.service(),
                fixed: (spent.load - leaves * spent.per_work).max(0.0),
                // All workers of a server share its memory.
                bytes_max: self.memory_bytes,
                cachelets: cachelets.collect(),
            }
        };
        (0..self.workers.len()).map(worker).collect()
    }
}

/// What a worker has done in an epoch.
struct Spent {
    now: WorkerTally,
    then: WorkerTally,
    load: f64,
    /// Load for each unit of work.
    per_work: f64,
    elapsed_ns: f64,
}

impl Spent {
    fn service(&self) -> Service {
        let (now, then) = (&self.now, &self.then);
        let (busy_ns, work) = (now.busy_ns - then.busy_ns, now.work - then.work);
        let (keys, ran_ns) = (now.keys - then.keys, now.ran_ns - then.ran_ns);
        // All keys, in as many turns as they would come in if they came as those do that follow cachelets.
        let turns =
            (now.turns - then.turns) as f64 / (now.turns_keys - then.turns_keys).max(1) as f64;
        Service {
            waiting: Some((now.waited_ns - then.waited_ns) as f64 / self.elapsed_ns),
            capacity: work as f64 * 1e9 / busy_ns.max(1) as f64,
            part: (ran_ns > 0).then(|| (ran_ns as f64 / busy_ns.max(1) as f64).min(1.0)),
            keys,
            turns: (keys as f64 * turns) as u64,
        }
    }
}
