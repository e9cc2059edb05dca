//! How long requests took as the server sees it: from the wake-up that received them to the moment
//! when all of that wake-up's replies had been handed to the kernel.
//!
//! The driver times some wake-ups (all of them on a server with little to do), and how many requests
//! of each class a wake-up served is known from the counters: no request pays for its own timing.

use mbal_wire::Class;

use crate::observing::counters::{Counter, Counters};

/// Requests that cost alike, by the counters that tell how many there were.
pub const TIMED: [Class; 5] =
    [Class::Get, Class::Set, Class::Touch, Class::Delete, Class::Arithmetic];

/// Requests so far, by class.
pub(crate) type ByClass = [u64; TIMED.len()];

impl Counters {
    pub fn served(&self) -> ByClass {
        let arithmetic = [&self.incr_hits, &self.incr_misses, &self.decr_hits, &self.decr_misses];
        [
            self.cmd_get.get(),
            self.cmd_set.get(),
            self.cmd_touch.get(),
            self.delete_hits.get() + self.delete_misses.get(),
            arithmetic.iter().map(|counter| counter.get()).sum(),
        ]
    }
}

/// Latencies are told apart in units of 1/16 µs up to 1 µs, then in sixteenths of each power of two.
const PARTS_BITS: u32 = 4;
const PARTS: usize = 1 << PARTS_BITS;
/// Up to 2^26 µs, which is 67 s; what took longer counts as that.
const POWERS: usize = 26;
const BUCKETS: usize = PARTS * (POWERS + 1);

fn bucket_of(ns: u64) -> usize {
    let units = ns.saturating_mul(PARTS as u64) / 1000;
    let shift = (u64::BITS - PARTS_BITS - 1).saturating_sub((units | 1).leading_zeros());
    (PARTS * shift as usize + (units >> shift) as usize).min(BUCKETS - 1)
}

/// Where a bucket ends, in ns: the latencies in it are below.
fn end_ns(bucket: usize) -> u64 {
    let shift = (bucket / PARTS).saturating_sub(1);
    let units = ((bucket - PARTS * shift) as u64 + 1) << shift;
    (units * 1000).div_ceil(PARTS as u64)
}

/// One worker's, written by it alone.
#[derive(Default)]
pub(crate) struct Latency {
    classes: [WorkerHistogram; TIMED.len()],
}

/// A histogram that one worker writes.
pub(crate) struct WorkerHistogram {
    buckets: [Counter; BUCKETS],
    sum_ns: Counter,
}

impl Default for WorkerHistogram {
    fn default() -> WorkerHistogram {
        WorkerHistogram { buckets: [const { Counter::new() }; BUCKETS], sum_ns: Counter::default() }
    }
}

impl WorkerHistogram {
    /// So many of them took so long.
    pub fn add(&self, count: u64, each_ns: u64) {
        self.buckets[bucket_of(each_ns)].add(count);
        self.sum_ns.add(count * each_ns);
    }

    pub fn add_to(&self, histogram: &mut Histogram) {
        for (from, to) in self.buckets.iter().zip(&mut histogram.buckets) {
            *to += from.get();
        }
        histogram.sum_ns += self.sum_ns.get();
    }
}

impl Latency {
    /// What was served between two readings of the counters took so long; it happened in one of
    /// `stands_for` wake-ups.
    pub fn record(&self, before: &ByClass, after: &ByClass, elapsed_ns: u64, stands_for: u32) {
        for (class, (before, after)) in self.classes.iter().zip(before.iter().zip(after)) {
            let requests = (after - before) * u64::from(stands_for);
            if requests > 0 {
                class.add(requests, elapsed_ns);
            }
        }
    }

    pub fn add_to(&self, histograms: &mut Histograms) {
        self.classes.iter().zip(&mut histograms.0).for_each(|(class, to)| class.add_to(to));
    }
}

/// Latencies at one moment, by class, over all workers.
#[derive(Clone, Default)]
pub struct Histograms([Histogram; TIMED.len()]);

#[derive(Clone)]
pub struct Histogram {
    buckets: Vec<u64>,
    sum_ns: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { buckets: vec![0; BUCKETS], sum_ns: 0 }
    }
}

impl Histograms {
    pub fn of(&self, class: Class) -> &Histogram {
        &self.0[class as usize]
    }

    /// Of all classes together, the buckets that are not empty: where each ends, in ns, and the requests in it.
    pub fn all_buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        let requests = |at: usize| self.0.iter().map(|class| class.buckets[at]).sum();
        let all = (0..BUCKETS).map(move |at| (end_ns(at), requests(at)));
        all.filter(|(_, requests)| *requests > 0)
    }

    /// What was recorded since `earlier`.
    pub fn since(mut self, earlier: &Histograms) -> Histograms {
        for (now, then) in self.0.iter_mut().zip(&earlier.0) {
            now.buckets.iter_mut().zip(&then.buckets).for_each(|(now, then)| *now -= then);
            now.sum_ns -= then.sum_ns;
        }
        self
    }
}

impl Histogram {
    /// Requests: as many as were served, or estimated from those in the wake-ups that were timed.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// The buckets that are not empty: where each ends, in ns, and the requests in it.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        let all = self.buckets.iter().enumerate();
        all.filter(|(_, requests)| **requests > 0).map(|(at, requests)| (end_ns(at), *requests))
    }

    /// Requests below 1 µs, 2 µs, 4 µs and so on, all but the last by the power of two.
    pub fn by_powers(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut below = 0;
        self.buckets.chunks(PARTS).enumerate().map(move |(power, parts)| {
            below += parts.iter().sum::<u64>();
            (1000 << power, below)
        })
    }

    /// The time below which so much of all requests stayed, in ns, to within a sixteenth; 0 if there were none.
    pub fn quantile_ns(&self, share: f64) -> u64 {
        quantile_ns(self.buckets(), self.count(), share)
    }
}

/// The end of the bucket in which a share of `count` requests is reached; `buckets` in order.
pub fn quantile_ns(buckets: impl Iterator<Item = (u64, u64)>, count: u64, share: f64) -> u64 {
    let rank = ((count as f64 * share).ceil() as u64).max(1);
    let mut below = 0;
    for (end_ns, requests) in buckets {
        below += requests;
        if below >= rank {
            return end_ns;
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bucket_ends_where_the_next_begins() {
        for bucket in 0..BUCKETS - 1 {
            let end = end_ns(bucket);
            assert_eq!(bucket_of(end), bucket + 1, "{end} ns");
            assert_eq!(bucket_of(end - 1), bucket, "{end} ns");
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn a_latency_is_told_to_within_a_sixteenth() {
        for ns in [1_000, 1_500, 7_777, 123_456, 200_000_000, 59_000_000_000u64] {
            let told = end_ns(bucket_of(ns));
            assert!(ns <= told && told <= ns + ns / 16 + 1, "{ns} told as {told}");
        }
    }

    #[test]
    fn requests_count_for_their_wake_up_and_those_that_it_stands_for() {
        let latency = Latency::default();
        latency.record(&[0; 5], &[98, 0, 0, 0, 1], 5_000, 1);
        latency.record(&[98, 0, 0, 0, 1], &[99, 0, 0, 0, 1], 1_000_000, 2);
        let mut histograms = Histograms::default();
        latency.add_to(&mut histograms);
        let gets = histograms.of(Class::Get);
        assert_eq!((gets.count(), gets.sum_ns()), (100, 98 * 5_000 + 2 * 1_000_000));
        assert_eq!([0.5, 0.98, 0.981].map(|q| gets.quantile_ns(q)), [5_250, 5_250, 1_024_000]);
        assert_eq!(histograms.of(Class::Set).quantile_ns(0.5), 0);
        assert_eq!(histograms.of(Class::Arithmetic).count(), 1);
        let powers: Vec<_> =
            gets.by_powers().filter(|(end, _)| [4_000, 8_000].contains(end)).collect();
        assert_eq!(powers, [(4_000, 0), (8_000, 98)]);
    }
}
