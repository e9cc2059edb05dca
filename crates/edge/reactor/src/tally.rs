//! How many connections there are, and with whom.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use crate::sys::{Epoll, Ready};

/// Of one worker, as many connections that have hung up are looked for among its ready sockets.
const READY_SEEN: usize = 256;

/// Counts the server's connections: who has how many, and whether one more may come in.
///
/// Relaxed throughout: the numbers guard no memory, and a limit that two threads reach at once is
/// still kept, because a place is taken by one atomic addition.
#[derive(Debug)]
pub struct Tally {
    per_worker: Box<[AtomicUsize]>,
    /// By worker, what its connections wait in.
    waiting: Box<[OnceLock<Arc<Epoll>>]>,
    current: AtomicUsize,
    limit: usize,
    waits_at_limit: bool,
    turn: AtomicUsize,
    total: AtomicU64,
    rejected: AtomicU64,
    paused: AtomicBool,
    pauses: AtomicU64,
    /// When the pause began, and how long earlier ones lasted.
    paused_at_ns: AtomicU64,
    paused_ns: AtomicU64,
}

impl Tally {
    /// At most `limit` connections at a time (`-c`), over `workers` workers. One more is told so
    /// and closed, or waits in the kernel's queue if `waits_at_limit` (`-o no_maxconns_fast`).
    pub fn new(workers: usize, limit: usize, waits_at_limit: bool) -> Tally {
        assert!(workers > 0, "a server has at least one worker");
        Tally {
            per_worker: (0..workers).map(|_| AtomicUsize::new(0)).collect(),
            waiting: (0..workers).map(|_| OnceLock::new()).collect(),
            current: AtomicUsize::new(0),
            limit,
            waits_at_limit,
            turn: AtomicUsize::new(0),
            total: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            paused: AtomicBool::new(false),
            pauses: AtomicU64::new(0),
            paused_at_ns: AtomicU64::new(0),
            paused_ns: AtomicU64::new(0),
        }
    }

    /// Client connections open now.
    pub fn current(&self) -> usize {
        self.current.load(Relaxed)
    }

    pub fn of_worker(&self, worker: usize) -> usize {
        self.per_worker[worker].load(Relaxed)
    }

    /// Connections ever admitted.
    pub fn total(&self) -> u64 {
        self.total.load(Relaxed)
    }

    /// Connections ever turned away at the limit.
    pub fn rejected(&self) -> u64 {
        self.rejected.load(Relaxed)
    }

    /// How often accepting had to pause, for want of descriptors or at the limit.
    pub fn pauses(&self) -> u64 {
        self.pauses.load(Relaxed)
    }

    /// False while new connections are left waiting in the kernel's queue.
    pub fn accepting(&self) -> bool {
        !self.paused.load(Relaxed)
    }

    /// A worker's connections will wait in this epoll.
    pub(crate) fn watch(&self, worker: usize, epoll: Arc<Epoll>) {
        assert!(self.waiting[worker].set(epoll).is_ok(), "a worker has one event loop");
    }

    /// By worker, how many of its connections have hung up without its having noticed.
    ///
    /// A worker counts a connection out when its turn comes. Whoever closes eight connections and opens eight has often
    /// done both by then: without this look, the worker that comes first would get nearly all of the new ones.
    pub(crate) fn hung_up(&self) -> io::Result<Vec<usize>> {
        // Where there is no choice there is nothing to know.
        if self.per_worker.len() == 1 {
            return Ok(vec![0]);
        }
        let mut ready = [Ready::NONE; READY_SEEN];
        let mut of = |epoll: &OnceLock<Arc<Epoll>>| {
            let seen = epoll.get().map_or(Ok(0), |epoll| epoll.wait(&mut ready, 0))?;
            Ok(ready[..seen].iter().filter(|event| event.is_hung_up()).count())
        };
        self.waiting.iter().map(&mut of).collect()
    }

    /// The worker with the fewest connections, without those that have [hung up](Tally::hung_up); equals take turns.
    pub(crate) fn fewest(&self, hung_up: &[usize]) -> usize {
        let workers = self.per_worker.len();
        let turn = self.turn.fetch_add(1, Relaxed);
        (0..workers)
            .map(|step| (turn + step) % workers)
            // A worker may have noticed some of them since.
            .min_by_key(|&worker| self.of_worker(worker).saturating_sub(hung_up[worker]))
            .expect("a server has at least one worker")
    }

    /// Takes a place, before the connection is accepted for good.
    pub(crate) fn enter(&self) -> bool {
        let entered = self.current.fetch_add(1, Relaxed) < self.limit;
        if !entered {
            self.current.fetch_sub(1, Relaxed);
        }
        entered
    }

    /// Gives back a place that [`Tally::enter`] took and nobody came for.
    pub(crate) fn give_back(&self) {
        self.current.fetch_sub(1, Relaxed);
    }

    pub(crate) fn waits_at_limit(&self) -> bool {
        self.waits_at_limit
    }

    pub(crate) fn assign(&self, worker: usize) {
        self.per_worker[worker].fetch_add(1, Relaxed);
        self.total.fetch_add(1, Relaxed);
    }

    /// A connection goes from one worker to another.
    pub(crate) fn hand_over(&self, from: usize, to: usize) {
        self.per_worker[from].fetch_sub(1, Relaxed);
        self.per_worker[to].fetch_add(1, Relaxed);
    }

    pub(crate) fn leave(&self, worker: usize) {
        self.per_worker[worker].fetch_sub(1, Relaxed);
        self.give_back();
    }

    pub(crate) fn reject(&self) {
        self.rejected.fetch_add(1, Relaxed);
    }

    /// How long new connections were left waiting, in microseconds, as far as that is over.
    pub fn paused_us(&self) -> u64 {
        self.paused_ns.load(Relaxed) / 1000
    }

    pub(crate) fn pause(&self, now_ns: u64) {
        self.pauses.fetch_add(1, Relaxed);
        self.paused_at_ns.store(now_ns, Relaxed);
        self.paused.store(true, Relaxed);
    }

    pub(crate) fn resume(&self, now_ns: u64) {
        let paused_ns = now_ns.saturating_sub(self.paused_at_ns.load(Relaxed));
        self.paused_ns.fetch_add(paused_ns, Relaxed);
        self.paused.store(false, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_connections_on_four_workers_are_four_each() {
        let tally = Tally::new(4, 1024, false);
        for _ in 0..16 {
            assert!(tally.enter());
            tally.assign(tally.fewest(&[0; 4]));
        }
        assert_eq!([0, 1, 2, 3].map(|worker| tally.of_worker(worker)), [4, 4, 4, 4]);
    }

    #[test]
    fn a_worker_that_lost_connections_gets_the_next_ones() {
        let tally = Tally::new(3, 1024, false);
        for worker in [0, 0, 0, 1, 1, 1, 2, 2, 2] {
            assert!(tally.enter());
            tally.assign(worker);
        }
        tally.leave(1);
        tally.leave(1);
        let next = [0, 1].map(|_| {
            let worker = tally.fewest(&[0; 3]);
            tally.assign(worker);
            worker
        });
        assert_eq!(next, [1, 1]);
    }

    #[test]
    fn the_limit_holds_until_somebody_leaves() {
        let tally = Tally::new(1, 2, false);
        assert_eq!([tally.enter(), tally.enter(), tally.enter()], [true, true, false]);
        tally.assign(0);
        tally.leave(0);
        assert_eq!([tally.enter(), tally.enter()], [true, false]);
    }
}
