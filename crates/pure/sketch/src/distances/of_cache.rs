//! Stack distances of what a look-aside cache is asked for: reads count, writes bring items, removals take them away.
//!
//! Whoever knows a whole cache asks [`Chosen`] first, which costs a multiplication and a branch, and shows chosen keys alone. How many
//! reads there were in all, [`count`](StackDistances::count) is told. Curves are by bytes: a cache has so many.

use super::{BUCKET, BUCKET_BITS, NEVER, StackDistances};
use crate::ages::Ages;

/// Which keys a sketch samples at this moment. The share only falls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// Of a scrambled hash, at most.
    pub most: u64,
}

impl Chosen {
    #[inline]
    pub fn has(self, hash: u64) -> bool {
        scrambled(hash) <= self.most
    }
}

/// High bits that depend on all others: cachelets are told apart by high bits of the hash. An odd factor maps no two
/// hashes to one.
#[inline]
fn scrambled(hash: u64) -> u64 {
    hash.wrapping_mul(0xd129_42f8_4b5f_3a6d)
}

/// An item of which a sketch has not heard: it was there before, or has come from another server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Memory overhead included.
    pub bytes: u32,
    /// The second in which it dies; 0 is never.
    pub deadline: u32,
    /// Bytes of all items of the cache: one as large as that has it.
    pub within: u64,
}

impl StackDistances {
    pub fn chosen(&self) -> Chosen {
        Chosen { most: self.hash_most }
    }

    /// So many reads in all, shown or not. What was not shown is taken to hit at the smallest size, on average: a key that is
    /// read again at once need not be shown, nor reads that are answered by copies.
    pub fn count(&mut self, reads: u64) {
        self.seen += reads;
    }

    /// So many reads of sampled keys are among those that are counted, but how they went is not known.
    pub fn lost(&mut self, reads: u32) {
        self.faded -= f64::from(reads) * self.weight;
    }

    /// So many reads of sampled keys missed that were not shown.
    pub fn missed(&mut self, reads: u32) {
        self.by_bytes.add_miss(f64::from(reads) * self.weight);
    }

    /// A read in that second. `look` says whether the cache has a key that the sketch does not know. Returns whether a cache
    /// that is large enough hits, if the key is sampled.
    #[inline]
    pub fn read(
        &mut self,
        hash: u64,
        second: u32,
        look: impl FnOnce() -> Option<Found>,
    ) -> Option<bool> {
        let hash = scrambled(hash);
        if hash > self.hash_most {
            return None;
        }
        let known = self.samples.find_mut(hash);
        let Some(cell) = known.filter(|cell| cell.mark >= NEVER || second < deadline(cell.mark))
        else {
            return Some(self.read_unknown(hash, look()));
        };
        let (bucket, bytes) = (cell.mark & BUCKET, cell.amount);
        let newer = self.ages.newer_than(bucket, bytes).bytes;
        self.by_bytes.add(newer * self.weight + f64::from(bytes), self.weight);
        // Within a bucket there is no order.
        if bucket != self.ages.newest() {
            self.ages.take(bucket, bytes);
            cell.mark = cell.mark & !BUCKET | self.ages.newest();
            if self.ages.put(bytes, self.samples.len()) {
                self.join();
            }
        }
        Some(true)
    }

    /// Of a key of which the sketch does not know, or that it is gone. It may have come again since: not all is shown.
    #[cold]
    #[inline(never)]
    fn read_unknown(&mut self, hash: u64, found: Option<Found>) -> bool {
        let Some(found) = found else {
            if self.samples.find(hash).is_some() {
                self.renew(hash, 1, GONE);
            }
            self.missed(1);
            return false;
        };
        if self.put(hash, found.bytes, found.deadline) {
            self.by_bytes.add(found.within as f64, self.weight);
        }
        true
    }

    /// An item of so many bytes, memory overhead included, is stored. It dies in that second; 0 is never.
    pub fn write(&mut self, hash: u64, bytes: u32, deadline: u32) {
        let hash = scrambled(hash);
        if hash > self.hash_most {
            return;
        }
        self.put(hash, bytes, deadline);
    }

    /// False if it is not sampled any more, now that the samples are full.
    fn put(&mut self, hash: u64, bytes: u32, deadline: u32) -> bool {
        let (bytes, deadline) = (bytes.max(1), marked(deadline));
        if self.samples.find(hash).is_none() {
            return self.admit(hash, bytes, deadline);
        }
        self.renew(hash, bytes, deadline);
        true
    }

    /// No cache has it, until it is stored again.
    pub fn remove(&mut self, hash: u64) {
        let hash = scrambled(hash);
        if self.samples.find(hash).is_some() {
            self.renew(hash, 1, GONE);
        }
    }

    /// No cache has anything.
    pub fn flush(&mut self) {
        self.samples.clear();
        self.ages = Ages::new();
    }

    /// The newest of all, with these bytes.
    #[inline]
    fn renew(&mut self, hash: u64, bytes: u32, deadline: u32) {
        let cell = self.samples.cell(hash);
        self.ages.take(cell.mark & BUCKET, cell.amount);
        (cell.amount, cell.mark) = (bytes, self.ages.newest() | deadline);
        if self.ages.put(bytes, self.samples.len()) {
            self.join();
        }
    }
}

/// Of what is known to be in no cache: it keeps its place, with one byte, so that reads of it are known to miss.
const GONE: u32 = 0;

/// Of a mark.
#[inline]
fn deadline(mark: u32) -> u32 {
    mark >> BUCKET_BITS
}

#[inline]
fn marked(deadline: u32) -> u32 {
    match deadline {
        0 => NEVER,
        second => second.min(NEVER >> BUCKET_BITS) << BUCKET_BITS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Random, mix};

    fn key(number: u64) -> u64 {
        mix(number)
    }

    fn none() -> Option<Found> {
        None
    }

    #[test]
    fn what_was_removed_or_has_died_misses_at_every_size() {
        let mut distances = StackDistances::new(1_024);
        distances.write(key(1), 100, 0);
        distances.write(key(2), 100, 50);
        distances.write(key(3), 100, 0);
        for (number, second) in [(1, 10), (2, 10), (3, 10)] {
            distances.read(key(number), second, || unreachable!("it is known"));
        }
        distances.count(3);
        assert_eq!(distances.by_bytes().hit_ratio_most(), 1.0);
        distances.remove(key(1));
        distances.read(key(1), 60, none);
        distances.read(key(2), 60, none);
        distances.read(key(3), 60, none);
        distances.count(3);
        assert!((distances.by_bytes().hit_ratio_most() - 4.0 / 6.0).abs() < 1e-9);
        distances.flush();
        distances.read(key(3), 60, none);
        distances.count(1);
        assert!((distances.by_bytes().hit_ratio_most() - 4.0 / 7.0).abs() < 1e-9);
    }

    #[test]
    fn an_item_that_was_there_before_hits_at_the_cache_s_size_and_not_below() {
        let mut distances = StackDistances::new(1_024);
        let found = Found { bytes: 100, deadline: 0, within: 1 << 20 };
        distances.read(key(1), 1, || Some(found));
        distances.count(1);
        let curve = distances.by_bytes();
        assert_eq!(curve.miss_ratio(1 << 19), 1.0);
        assert_eq!(curve.miss_ratio(1 << 21), 0.0);
    }

    /// Not every write is shown.
    #[test]
    fn what_was_removed_and_is_found_has_come_again() {
        let mut distances = StackDistances::new(1_024);
        let found = Found { bytes: 100, deadline: 90, within: 1_000 };
        distances.write(key(1), 100, 50);
        distances.remove(key(1));
        assert_eq!(distances.read(key(1), 60, || Some(found)), Some(true));
        let known = || unreachable!("it is known");
        assert_eq!(distances.read(key(1), 61, known), Some(true));
        assert_eq!(distances.read(key(1), 90, none), Some(false));
        assert_eq!(distances.read(key(1), 91, none), Some(false));
        distances.count(4);
        assert_eq!(distances.by_bytes().hit_ratio_most(), 0.5);
    }

    #[test]
    fn reads_of_which_nothing_is_known_do_not_count() {
        let mut distances = StackDistances::new(1_024);
        distances.write(key(1), 100, 0);
        distances.read(key(1), 1, none);
        distances.read(key(2), 1, none);
        distances.lost(8);
        distances.count(10);
        assert_eq!(distances.by_bytes().requests(), 2.0);
        assert_eq!(distances.by_bytes().hit_ratio_most(), 0.5);
    }

    #[test]
    fn reads_that_were_not_shown_hit_at_every_size() {
        let mut distances = StackDistances::new(1_024);
        distances.read(key(1), 1, none);
        distances.count(10);
        assert!((distances.by_bytes().miss_ratio(0) - 0.1).abs() < 1e-9);
    }

    #[test]
    fn keys_of_one_cachelet_are_chosen_like_any() {
        let chosen = Chosen { most: u64::MAX / 64 };
        for prefix in 0..32_u64 {
            let mut bits = Random::new(prefix);
            let of_prefix = (0..64_000).map(|_| prefix << 59 | bits.word() >> 5);
            let count = of_prefix.filter(|&hash| chosen.has(hash)).count();
            assert!((850..1_150).contains(&count), "{prefix}: {count}");
        }
    }

    /// A look-aside cache asks for what a stream asks for, and stores what misses. Which keys are hot decides how far one sample of
    /// them is off, so several are taken.
    #[test]
    fn the_curve_of_reads_and_writes_is_that_of_the_stream() {
        const SALTS: u64 = 12;
        let sizes: Vec<u64> = (18..26).map(|log| 1 << log).collect();
        let mut off = vec![0.0; sizes.len()];
        for salt in 0..SALTS {
            let mut bits = Random::new(3);
            let mut plain = StackDistances::new(16_384);
            let mut of_cache = StackDistances::new(2_048);
            let reads = 500_000;
            for _ in 0..reads {
                let hash = mix((100_000.0 * bits.unit().powi(3)) as u64 ^ salt << 40);
                plain.observe(hash, 100);
                if of_cache.chosen().has(hash) {
                    let mut missed = false;
                    of_cache.read(hash, 1, || {
                        missed = true;
                        None
                    });
                    if missed {
                        of_cache.write(hash, 100, 0);
                    }
                }
            }
            of_cache.count(reads);
            let (plain, of_cache) = (plain.by_bytes(), of_cache.by_bytes());
            for (off, &size) in off.iter_mut().zip(&sizes) {
                *off += (of_cache.miss_ratio(size) - plain.miss_ratio(size)) / SALTS as f64;
            }
        }
        assert!(off.iter().all(|off| off.abs() < 0.02), "{off:?}");
    }
}
