//! What the workers of a server have counted and seen.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use mbal_cachelet::Classes;
use mbal_model::{Key, Prefix, Seconds, WorkerId};

use crate::observing::chores::CHORES;
use crate::observing::counted::Totals;
use crate::observing::counters::{Counters, Sums, sum};
use crate::observing::distances::CurveTold;
use crate::observing::hot::{Heat, HotKey, hottest};
use crate::observing::latency::{Histogram, Histograms};
use crate::observing::load::Tallies;
use crate::shared::Shared;

impl Shared {
    /// What all workers counted since the start or the last `stats reset`.
    pub fn sums(&self) -> Sums {
        let then = &self.counted.reset.lock().0;
        self.sums_ever().since(&then.sums)
    }

    /// Latencies since the start or the last `stats reset`, over all workers.
    pub fn latencies(&self) -> Histograms {
        let then = self.counted.reset.lock();
        self.latencies_ever().since(&then.1)
    }

    pub fn latencies_ever(&self) -> Histograms {
        let mut histograms = Histograms::default();
        self.counted.latency.iter().for_each(|latency| latency.add_to(&mut histograms));
        histograms
    }

    /// How long steps of background work took since the start, by [`CHORES`], over all workers.
    pub fn background_steps(&self) -> [Histogram; CHORES.len()] {
        let mut all = std::array::from_fn(|_| Histogram::default());
        self.counted.steps.iter().for_each(|steps| steps.add_to(&mut all));
        all
    }

    /// The keys with the most requests in the last second. Who asks is taken to watch for a while.
    pub fn hottest(&self, count: usize, second: Seconds) -> Vec<HotKey> {
        self.hot.watch(second);
        let mut all = BTreeMap::new();
        for (worker, counters) in self.counted.workers.iter().enumerate() {
            self.hot(worker).add_to(&mut all, second, counters.keyed());
        }
        hottest(all, count)
    }

    /// By cachelet, estimates of its requests ever, and in the last second.
    pub fn cachelet_requests(&self, second: Seconds) -> BTreeMap<Prefix, (f64, f64)> {
        let present = self.store.prefixes().into_iter();
        let mut all = present.map(|prefix| (prefix, (0.0, 0.0))).collect();
        for (worker, counters) in self.counted.workers.iter().enumerate() {
            self.hot(worker).add_cachelets_to(&mut all, second, counters.keyed());
        }
        all
    }

    /// What each worker was asked for in the last second: of a cachelet, and of a key. Who asks is taken to watch for
    /// a while.
    pub fn heat(&self, cachelet: Prefix, key: Option<&Key<'_>>, second: Seconds) -> Vec<Heat> {
        self.hot.watch(second);
        let heat = |(worker, counters): (usize, &Counters)| {
            self.hot(worker).heat(cachelet, key, second, counters.keyed())
        };
        self.counted.workers.iter().enumerate().map(heat).collect()
    }

    /// The share of requests to look at now. The sampler knows no rate of 0, but one that no server
    /// lives to see chosen.
    pub(crate) fn hot_sample(&self, second: Seconds, worker: WorkerId) -> f64 {
        match self.settings.hot_sample {
            0.0 => 1e-9,
            _ if self.hot.is_watched(second) => 1.0,
            share => self.copies.sample(worker.0).map_or(share, |more| more.max(share)),
        }
    }

    /// What one worker has counted since the start.
    pub fn sums_of(&self, worker: usize) -> Sums {
        sum(&self.counted.workers[worker..=worker])
    }

    /// What all workers counted since the start.
    pub(crate) fn sums_ever(&self) -> Sums {
        sum(&self.counted.workers)
    }

    fn totals(&self) -> Totals {
        let mut totals = Totals { sums: self.sums_ever(), ..Totals::default() };
        for classes in &self.counted.classes {
            for (counters, sums) in classes.iter().zip(totals.classes.iter_mut()) {
                counters.add_to(sums);
            }
        }
        Totals {
            store: self.store.stats(),
            total_connections: self.gauges.total_connections.load(Relaxed),
            rejected_connections: self.gauges.rejected_connections.load(Relaxed),
            log: [&self.log.written, &self.log.skipped, &self.log.sent]
                .map(|one| one.load(Relaxed)),
            ..totals
        }
    }

    pub(crate) fn since_reset(&self) -> Totals {
        let then = &self.counted.reset.lock().0;
        let mut now = self.totals();
        now.sums = now.sums.since(&then.sums);
        now.total_connections -= then.total_connections;
        now.rejected_connections -= then.rejected_connections;
        let (store, old) = (&mut now.store, &then.store);
        store.total_items -= old.total_items;
        store.evictions -= old.evictions;
        store.evicted_unfetched -= old.evicted_unfetched;
        store.expired -= old.expired;
        store.expired_unfetched -= old.expired_unfetched;
        for (class, old) in now.classes.iter_mut().zip(then.classes.iter()) {
            *class = class.since(old);
        }
        for (line, old) in now.log.iter_mut().zip(then.log) {
            *line -= old;
        }
        now
    }

    /// The store's statistics by class, counters since the start or the last `stats reset`.
    pub(crate) fn class_stats(&self) -> Box<Classes> {
        let then = &self.counted.reset.lock().0;
        let mut now = self.store.class_stats();
        for (class, old) in now.iter_mut().zip(then.class_stats.iter()) {
            class.evicted -= old.evicted;
            class.evicted_nonzero -= old.evicted_nonzero;
            class.evicted_unfetched -= old.evicted_unfetched;
            class.expired -= old.expired;
            class.expired_unfetched -= old.expired_unfetched;
        }
        now
    }

    /// `stats reset`.
    pub(crate) fn reset(&self) {
        *self.counted.reset.lock() = (
            Totals { class_stats: self.store.class_stats(), ..self.totals() },
            self.latencies_ever(),
        );
        self.details.clear();
    }

    /// Ends an epoch, at `now_ns` of any clock that does not jump: what has been counted so far.
    /// Called by one thread alone.
    pub fn end_epoch(&self, now_ns: u64) -> Tallies {
        self.counted.epoch.fetch_add(1, Relaxed);
        Tallies::of(&self.counted.workers, &self.store, now_ns, self.here(), self.memory_limit())
    }

    /// None of a server that is not to know.
    pub fn curve(&self, second: Seconds) -> Option<CurveTold> {
        let distances = self.distances.as_ref()?;
        let stored = self.store.stats();
        Some(distances.curve((stored.items, stored.bytes), &self.sums_ever(), second))
    }

    /// Links of this server's workers that are up, and those that there would be if all other servers could be reached.
    pub fn links(&self) -> (u64, u64) {
        let others = self.map.others();
        let up = others.iter().map(|server| self.links_up.to(*server)).sum();
        (up, others.len() as u64 * u64::from(self.settings.workers))
    }
}
