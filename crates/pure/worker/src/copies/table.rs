//! A table that all workers look into, and that is mostly empty: who finds that a key cannot be in it takes no lock.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering::SeqCst};

use mbal_locks::{Mutex, MutexGuard, Ranked};

/// Locks, by a key's hash.
pub(crate) const SHARDS: usize = 64;
/// Counts of keys by other bits of the hash: with 300 keys 7% of the others take a lock in vain.
const MARKS: usize = 4096;

pub(crate) type Shard<T> = BTreeMap<u64, T>;

/// By the hash of a key. What is in it knows its key.
pub(crate) struct Table<R, T> {
    /// Looked at first: mostly there is nothing, and nothing else is touched.
    count: AtomicU32,
    marks: Box<[AtomicU16]>,
    shards: Box<[Mutex<R, Shard<T>>]>,
}

impl<R: Ranked, T> Default for Table<R, T> {
    fn default() -> Table<R, T> {
        let marks = (0..MARKS).map(|_| AtomicU16::new(0)).collect();
        Table {
            count: AtomicU32::new(0),
            marks,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }
}

impl<R: Ranked, T> Table<R, T> {
    fn mark(&self, hash: u64) -> &AtomicU16 {
        &self.marks[hash as usize % MARKS]
    }

    /// False: it is not in there. Who was told so in a batch may be wrong until the batch ends.
    #[inline]
    pub fn may_have(&self, hash: u64) -> bool {
        self.count.load(SeqCst) > 0 && self.mark(hash).load(SeqCst) > 0
    }

    /// The keys that share a lock with this one.
    pub fn lock(&self, hash: u64) -> MutexGuard<'_, R, Shard<T>> {
        self.shard((hash >> 32) as usize % SHARDS)
    }

    pub fn shard(&self, at: usize) -> MutexGuard<'_, R, Shard<T>> {
        self.shards[at].lock()
    }

    pub fn is_empty(&self) -> bool {
        self.count.load(SeqCst) == 0
    }

    /// False if there is one of this hash.
    pub fn insert(&self, hash: u64, one: T) -> bool {
        let mut shard = self.lock(hash);
        if shard.contains_key(&hash) {
            return false;
        }
        shard.insert(hash, one);
        self.mark(hash).fetch_add(1, SeqCst);
        self.count.fetch_add(1, SeqCst);
        true
    }

    /// Takes those out of a shard that are not to be kept.
    pub fn retain(&self, at: usize, mut keeps: impl FnMut(u64, &mut T) -> bool) {
        if self.is_empty() {
            return;
        }
        self.shard(at).retain(|hash, one| {
            let keep = keeps(*hash, one);
            if !keep {
                self.mark(*hash).fetch_sub(1, SeqCst);
                self.count.fetch_sub(1, SeqCst);
            }
            keep
        });
    }

    pub fn each(&self, mut look: impl FnMut(u64, &mut T)) {
        if self.is_empty() {
            return;
        }
        (0..SHARDS)
            .for_each(|at| self.shard(at).iter_mut().for_each(|(hash, one)| look(*hash, one)));
    }
}
