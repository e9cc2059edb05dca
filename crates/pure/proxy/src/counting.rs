//! Requests by what they do, and how long upstreams take to answer.

use mbal_wire::{Class, Request};

/// Requests of clients, by class. A `get` of several keys is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByClass([u64; Class::ALL.len()]);

impl ByClass {
    #[inline]
    pub(crate) fn count(&mut self, request: &Request<'_>) {
        self.0[Class::of(request) as usize] += 1;
    }

    pub(crate) fn of(&self, class: Class) -> u64 {
        self.0[class as usize]
    }

    pub fn each(&self) -> impl Iterator<Item = (Class, u64)> {
        Class::ALL.into_iter().map(|class| (class, self.0[class as usize]))
    }
}

/// Below 1 µs, 2 µs, 4 µs and so on up to 2^25 µs, which is 34 s; what took longer counts as that.
const POWERS: usize = 26;

/// How long replies took, from the moment when the request was appended to its connection's output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    buckets: [u64; POWERS],
    sum_ns: u64,
}

impl Latency {
    #[inline]
    pub(crate) fn record(&mut self, ns: u64) {
        let power = (u64::BITS - (ns / 1000).leading_zeros()) as usize;
        self.buckets[power.min(POWERS - 1)] += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }

    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// Adds those of another upstream.
    pub(crate) fn add(&mut self, other: &Latency) {
        self.buckets.iter_mut().zip(other.buckets).for_each(|(own, more)| *own += more);
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }

    /// By the bucket's end in ns, the replies in it.
    pub(crate) fn by_bucket(&self) -> impl Iterator<Item = (u64, u64)> {
        self.buckets.iter().enumerate().map(|(power, count)| (1000 << power, *count))
    }

    /// Replies that took less than so many ns, for each power of two of a µs but the last, which has no end.
    pub fn by_powers(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut below = 0;
        self.buckets[..POWERS - 1].iter().enumerate().map(move |(power, count)| {
            below += count;
            (1000 << power, below)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_counts_where_its_power_of_two_begins() {
        let mut latency = Latency::default();
        [0, 999, 1000, 1999, 2000, u64::MAX / 2].iter().for_each(|ns| latency.record(*ns));
        let below: Vec<(u64, u64)> = latency.by_powers().take(3).collect();
        assert_eq!(below, [(1000, 2), (2000, 4), (4000, 5)]);
        assert_eq!((latency.by_powers().last(), latency.count()), (Some((1000 << 24, 5)), 6));
    }
}
