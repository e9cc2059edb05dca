//! Samples in the order of their last access, as far as a curve needs it: in buckets of age.
//!
//! ```text
//!   oldest                                          newest
//!   | 131 | 87 | 0 | 120 | ... | 128 | 127 |  64 → |  free  |     samples in each, and their bytes
//!   |16253|16166|  ...              | 191 |  64 |   0 |           samples in newer buckets
//! ```
//!
//! An access takes a sample out of its bucket and puts it into the newest one, which is closed after so
//! many accesses. How much is newer than a bucket is summed up every few accesses, so that asking
//! is one load. When no place is free, neighbours are joined until about half of them are.
//! This is MIMIR's list of buckets (Saemundsson et al., SoCC 2014), which ElMem uses.

/// Buckets at most.
const PLACES: usize = 256;

/// Neighbours are joined up to this part of all samples: less than twice as many buckets are left.
const JOINED: usize = 64;

/// While there are fewer samples than this, each has a bucket of its own.
const CLOSED_PER_SAMPLES: usize = 128;

/// How often, while a bucket fills, it is summed up what is newer than each.
const SUMS_PER_BUCKET: u32 = 4;

/// A number of samples, at most 2^16 - 1, and of their bytes, each below 2^32: one addition for both.
#[derive(Clone, Copy, Debug, Default)]
struct Sum(u64);

const BYTES_BITS: u32 = 48;

impl Sum {
    #[inline]
    fn one(bytes: u32) -> Sum {
        Sum(1 << BYTES_BITS | u64::from(bytes))
    }

    #[inline]
    fn samples(self) -> u32 {
        (self.0 >> BYTES_BITS) as u32
    }

    /// Signed, for which there is an instruction that makes it a float.
    #[inline]
    fn bytes(self) -> i64 {
        (self.0 & ((1 << BYTES_BITS) - 1)) as i64
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    held: Sum,
    /// In all newer buckets, when that was last summed up.
    newer: Sum,
}

/// What is newer than a sample, its own bucket cut in the middle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Newer {
    pub samples: f64,
    pub bytes: f64,
}

/// Where a bucket's samples are after [`Ages::join`].
pub(crate) type Renamed = [u32; PLACES];

#[derive(Clone, Debug)]
pub(crate) struct Ages {
    buckets: [Bucket; PLACES],
    newest: usize,
    /// Accesses until it is summed up what is newer than each, and how often before the newest is closed.
    sums_in: u32,
    sums_left: u32,
}

impl Ages {
    pub(crate) const SAMPLES_MOST: usize = (1 << (64 - BYTES_BITS)) - 1;

    pub(crate) fn new() -> Ages {
        Ages { buckets: [Bucket::default(); PLACES], newest: 0, sums_in: 1, sums_left: 1 }
    }

    /// The bucket that [`put`](Ages::put) puts into.
    #[inline]
    pub(crate) fn newest(&self) -> u32 {
        self.newest as u32
    }

    #[inline]
    pub(crate) fn newer_than(&self, bucket: u32, bytes: u32) -> Newer {
        let Bucket { held, newer } = self.buckets[bucket as usize];
        Newer {
            samples: 0.5 * f64::from(2 * newer.samples() + held.samples() - 1),
            bytes: 0.5 * (2 * newer.bytes() + held.bytes() - i64::from(bytes)) as f64,
        }
    }

    #[inline]
    pub(crate) fn take(&mut self, bucket: u32, bytes: u32) {
        self.buckets[bucket as usize].held.0 -= Sum::one(bytes).0;
    }

    /// Into the newest bucket. Says whether no place is left, so that the buckets must be
    /// [joined](Ages::join) before the next; `samples` are there by now.
    #[inline]
    pub(crate) fn put(&mut self, bytes: u32, samples: usize) -> bool {
        self.buckets[self.newest].held.0 += Sum::one(bytes).0;
        self.sums_in -= 1;
        self.sums_in == 0 && self.sum_up(samples)
    }

    #[inline(never)]
    fn sum_up(&mut self, samples: usize) -> bool {
        let closed_after = (samples / CLOSED_PER_SAMPLES).max(1) as u32;
        self.sums_in = (closed_after / SUMS_PER_BUCKET).max(1);
        self.sums_left -= 1;
        if self.sums_left == 0 {
            self.sums_left = closed_after.min(SUMS_PER_BUCKET);
            self.newest += 1;
        }
        let mut newer = Sum::default();
        for bucket in self.buckets[..(self.newest + 1).min(PLACES)].iter_mut().rev() {
            bucket.newer = newer;
            newer.0 += bucket.held.0;
        }
        self.newest == PLACES
    }

    /// Joins neighbours that are small together, and says which bucket became which.
    pub(crate) fn join(&mut self) -> Renamed {
        let samples: u32 = self.buckets.iter().map(|bucket| bucket.held.samples()).sum();
        let most = (samples / JOINED as u32).max(1);
        let old = std::mem::replace(&mut self.buckets, [Bucket::default(); PLACES]);
        let mut renamed = [0; PLACES];
        let mut to = 0;
        for (bucket, renamed) in old.iter().zip(&mut renamed) {
            let held = self.buckets[to].held.samples();
            if held > 0 && held + bucket.held.samples() > most {
                to += 1;
            }
            *renamed = to as u32;
            let joined = &mut self.buckets[to];
            joined.held.0 += bucket.held.0;
            // The newer neighbour comes last.
            joined.newer = bucket.newer;
        }
        self.newest = to + 1;
        renamed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    /// The samples' buckets, and the samples by their last access, newest first.
    struct Played {
        ages: Ages,
        bucket_of: Vec<u32>,
        order: Vec<usize>,
    }

    impl Played {
        fn new(samples: usize) -> Played {
            Played { ages: Ages::new(), bucket_of: vec![u32::MAX; samples], order: Vec::new() }
        }

        fn access(&mut self, sample: usize) {
            if self.bucket_of[sample] != u32::MAX {
                self.ages.take(self.bucket_of[sample], 10);
            }
            self.order.retain(|other| *other != sample);
            self.order.insert(0, sample);
            self.bucket_of[sample] = self.ages.newest();
            if self.ages.put(10, self.order.len()) {
                let renamed = self.ages.join();
                assert!(self.ages.newest <= 2 * JOINED + 1, "{}", self.ages.newest);
                let known = self.bucket_of.iter_mut().filter(|bucket| **bucket != u32::MAX);
                known.for_each(|bucket| *bucket = renamed[*bucket as usize]);
            }
        }

        /// Over all samples: the largest error in the number of newer ones.
        fn error_most(&self) -> f64 {
            let error = |(newer, sample): (usize, &usize)| {
                let estimate = self.ages.newer_than(self.bucket_of[*sample], 10);
                assert_eq!(estimate.bytes, 10.0 * estimate.samples);
                (estimate.samples - newer as f64).abs()
            };
            self.order.iter().enumerate().map(error).fold(0.0, f64::max)
        }
    }

    #[test]
    fn few_samples_are_in_their_exact_order() {
        let mut bits = Random::new(3);
        let mut played = Played::new(100);
        for _ in 0..20_000 {
            played.access(bits.word() as usize % (1 + bits.word() as usize % 100));
            assert_eq!(played.error_most(), 0.0);
        }
    }

    #[test]
    fn many_samples_are_where_they_are_to_within_two_percent() {
        let mut bits = Random::new(4);
        let mut played = Played::new(2_000);
        for step in 0..60_000 {
            played.access((2_000.0 * bits.unit().powi(3)) as usize % 2_000);
            if step % 997 == 0 {
                let most = 0.02 * played.order.len() as f64 + 1.0;
                assert!(played.error_most() <= most, "{step}: {} {most}", played.error_most());
            }
        }
    }
}
