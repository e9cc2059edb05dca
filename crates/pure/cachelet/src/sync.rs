//! How threads meet in a cachelet: the one module with shared words in it, and its proof.
//!
//! Four agreements, each checked by a loom model at the end of this file:
//!
//! 1. **Writer lock** ([`SpinLock`]): whoever changes a cachelet holds its lock for one operation.
//!    Clients that know the workers never contend for it.
//! 2. **Version** ([`Version`]): a reader takes no lock. It looks at the version of the key's home
//!    bucket (odd: a writer is at it), reads, and looks again. Every change that a reader of that
//!    key could notice lies between two bumps of that version, so an unchanged version means that
//!    what was read was there at one moment. A torn copy of a value ([`crate::copy`]) is a wrong value
//!    that the version betrays.
//! 3. **Epochs** ([`Epochs`]): memory that a reader may still look at is not reused. A worker enters
//!    before a batch and leaves after it; a page is stamped when the last pointer to it is gone,
//!    and is free when every worker has left or entered since. So any offset that a reader sees
//!    in a bucket points to an item with a whole header and key, and the stores that a get does (last
//!    access, frequency) cannot land in somebody else's bytes.
//!
//! 4. **Batches**, which are epochs too: what a worker was told of a route holds until its batch ends ([`enter`], [`leave`]). Whoever
//!    freezes a slice changes the route, and then waits for the batches that were running: so nobody writes what is exported.
//!
//! From 2 and 3: a hit is a value that the key had between the call and the return; a miss means
//! that the key was absent at one moment between them.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use mbal_locks::{Held, Ranked};
use mbal_model::planted::{Fault, is_planted};

use crate::apart::Apart;
use crate::shim::{AtomicU32, AtomicU64, Ordering::*, UnsafeCell, fence, spin_loop, yield_now};

/// Spins this often before giving the core to a holder that may have lost its own.
const SPINS_BEFORE_YIELD: u32 = 64;

/// A lock held for one operation, of a rank. Not fair, not reentrant; poisoning is a panic, which aborts.
#[repr(C)]
pub struct SpinLock<R, T> {
    held: AtomicU32,
    rank: PhantomData<fn() -> R>,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through a Guard, of which there is one at a time.
unsafe impl<R, T: Send> Send for SpinLock<R, T> {}
// SAFETY: as above; `held` orders one holder's accesses before the next one's.
unsafe impl<R, T: Send> Sync for SpinLock<R, T> {}

impl<R: Ranked, T> SpinLock<R, T> {
    pub fn new(value: T) -> SpinLock<R, T> {
        let (held, rank) = (AtomicU32::new(0), PhantomData);
        SpinLock { held, rank, value: UnsafeCell::new(value) }
    }

    #[inline(always)]
    pub fn lock(&self) -> Guard<'_, R, T> {
        self.lock_as(Held::enter(R::RANK))
    }

    /// In another place of the order than others of its kind: while one of these is held.
    #[inline(always)]
    pub fn lock_as(&self, place: Held) -> Guard<'_, R, T> {
        let mut spins = 0;
        while self.held.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            pause(&mut spins);
        }
        Guard { lock: self, _place: place }
    }
}

/// Waits a moment, longer once it has been called often.
#[inline]
pub fn pause(spins: &mut u32) {
    *spins += 1;
    if *spins % SPINS_BEFORE_YIELD == 0 || cfg!(loom) {
        yield_now();
    } else {
        spin_loop();
    }
}

pub struct Guard<'a, R, T> {
    lock: &'a SpinLock<R, T>,
    _place: Held,
}

impl<R, T> Deref for Guard<'_, R, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this guard is the only one, so nobody writes while `&self` lives.
        self.lock.value.with_mut(|value| unsafe { &*value })
    }
}

impl<R, T> DerefMut for Guard<'_, R, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard is the only one, and it is borrowed mutably.
        self.lock.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<R, T> Drop for Guard<'_, R, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.held.store(0, Release);
    }
}

/// The version of a bucket, with room for a small number in its low bits: how far its items reach.
///
/// 27 bits count writes: a reader is fooled only if it sleeps through an exact multiple of 134 million
/// writes of one bucket.
#[repr(transparent)]
pub struct Version(AtomicU32);

/// Room for the last bucket of a window.
const REACH_BITS: u32 = 4;
const ODD: u32 = 1 << REACH_BITS;
const REACH_MASK: u32 = ODD - 1;

impl Version {
    #[cfg(loom)]
    pub fn new() -> Version {
        Version(AtomicU32::new(0))
    }

    /// The version to compare with afterwards; `None` while a writer is at it.
    #[inline(always)]
    pub fn begin(&self) -> Option<u32> {
        let seen = self.0.load(Acquire);
        (seen & ODD == 0).then_some(seen)
    }

    /// True if nothing has changed since [`Version::begin`] returned `seen`.
    #[inline(always)]
    pub fn unchanged(&self, seen: u32) -> bool {
        if cfg!(planted = "no-version-check") {
            return true;
        }
        // The relaxed loads of the copy stay above this fence; a writer's first store of the copied
        // words comes after its odd version, so having read one of them means seeing that version.
        fence(Acquire);
        self.0.load(Relaxed) == seen
    }

    /// How many buckets further on an item of this one lies, at most.
    #[inline(always)]
    pub fn reach(&self) -> usize {
        (self.0.load(Relaxed) & REACH_MASK) as usize
    }

    /// Runs `change` between two bumps. Only under the cachelet's writer lock.
    #[inline(always)]
    pub fn write<R>(&self, change: impl FnOnce() -> R) -> R {
        let before = self.0.load(Relaxed);
        debug_assert!(before & ODD == 0, "writers hold the lock, and a dead bucket is not written");
        self.0.store(before.wrapping_add(ODD), Relaxed);
        fence(Release);
        let result = change();
        let reach = self.0.load(Relaxed) & REACH_MASK;
        self.0.store((before & !REACH_MASK).wrapping_add(2 * ODD) | reach, Release);
        result
    }

    /// Only inside [`Version::write`], or while nobody sees the bucket.
    #[inline]
    pub fn set_reach(&self, reach: usize) {
        debug_assert!(reach <= REACH_MASK as usize);
        self.0.store(self.0.load(Relaxed) & !REACH_MASK | reach as u32, Relaxed);
    }

    /// Leaves the version odd for good: whoever still reads here starts again from the directory.
    pub fn retire(&self) {
        self.0.store(self.0.load(Relaxed) | ODD, Relaxed);
        fence(Release);
    }
}

const AWAY: u64 = u64::MAX;

/// Which workers may still be looking at memory that has been taken out of every index; or are in a batch.
pub struct Epochs {
    /// Read before every batch, and written whenever something is stamped.
    now: Apart<AtomicU64>,
    /// Since when each worker has been in, which it says before every batch.
    marks: Box<[Apart<AtomicU64>]>,
}

impl Epochs {
    pub fn new(workers: usize) -> Epochs {
        Epochs {
            now: Apart(AtomicU64::new(0)),
            marks: (0..workers).map(|_| Apart(AtomicU64::new(AWAY))).collect(),
        }
    }

    /// [`Epochs::enter`] for who enters other epochs right after, whose fence is this one's too.
    #[inline]
    fn enter_before_fence(&self, worker: usize) {
        self.marks[worker].store(self.now.load(Acquire), Relaxed);
    }

    /// Before a batch. Costs one full fence where there are several workers; one that is alone is in nobody's
    /// way but its own, whose order is the program's.
    #[inline]
    pub fn enter(&self, worker: usize) {
        if is_planted(Fault::MarksAreRead) {
            self.marks[0].load(Relaxed);
        }
        self.enter_before_fence(worker);
        if self.marks.len() > 1 || cfg!(loom) {
            // Either this worker's mark is seen by `passed`, or the unlinking before `stamp` is seen
            // by this worker: the two fences allow no third case.
            fence(SeqCst);
        }
    }

    #[inline]
    pub fn leave(&self, worker: usize) {
        self.marks[worker].store(AWAY, Release);
    }

    /// The moment after which no new reader can find what has just been unlinked.
    pub fn stamp(&self) -> u64 {
        fence(SeqCst);
        self.now.fetch_add(1, AcqRel)
    }

    /// True if nobody who was in before `stamp` is still in.
    pub fn passed(&self, stamp: u64) -> bool {
        fence(SeqCst);
        let passed = self.marks.iter().all(|mark| mark.load(Acquire) > stamp);
        passed || cfg!(planted = "no-epochs")
    }
}

/// A worker begins a batch: it enters the batches, and the epochs, which it may leave and enter again in the middle. One fence does
/// for both.
#[inline]
pub fn enter(batches: &Epochs, epochs: &Epochs, worker: usize) {
    if cfg!(planted = "no-batches") {
        epochs.enter(worker);
        return batches.enter_before_fence(worker);
    }
    batches.enter_before_fence(worker);
    epochs.enter(worker);
}

/// See [`enter`].
#[inline]
pub fn leave(batches: &Epochs, epochs: &Epochs, worker: usize) {
    epochs.leave(worker);
    batches.leave(worker);
}

/// The model of the four agreements: `RUSTFLAGS="--cfg loom" cargo test -p mbal-cachelet --lib sync`.
#[cfg(all(test, loom))]
mod model {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::bucket::Bucket;

    #[test]
    fn one_holder_at_a_time() {
        loom::model(|| {
            let lock = Arc::new(SpinLock::<mbal_locks::ranks::Cachelet, u32>::new(0));
            let other = {
                let lock = lock.clone();
                thread::spawn(move || *lock.lock() += 1)
            };
            *lock.lock() += 1;
            other.join().unwrap();
            assert_eq!(*lock.lock(), 2);
        });
    }

    #[test]
    fn what_a_version_confirms_was_there_at_one_moment() {
        loom::model(|| {
            let shared = Arc::new((Version::new(), AtomicU64::new(0), AtomicU64::new(0)));
            let writer = {
                let shared = shared.clone();
                thread::spawn(move || {
                    for value in 1..3 {
                        shared.0.write(|| {
                            shared.1.store(value, Relaxed);
                            shared.2.store(value, Relaxed);
                        });
                    }
                })
            };
            let (version, first, second) = &*shared;
            if let Some(seen) = version.begin() {
                let words = (first.load(Relaxed), second.load(Relaxed));
                if version.unchanged(seen) {
                    assert_eq!(words.0, words.1, "torn");
                }
            }
            writer.join().unwrap();
        });
    }

    /// A reader follows a slot to an item; a writer takes the item out, and reuses its memory
    /// when the epoch has passed. The cell tells loom of every access, so any overlap fails.
    #[test]
    fn memory_is_not_reused_under_a_reader() {
        struct Shared {
            epochs: Epochs,
            bucket: Bucket,
            item: UnsafeCell<u32>,
        }
        // SAFETY: that accesses to the cell never overlap is what the model checks.
        unsafe impl Sync for Shared {}
        // SAFETY: as above.
        unsafe impl Send for Shared {}
        loom::model(|| {
            let shared = Arc::new(Shared {
                epochs: Epochs::new(1),
                bucket: Bucket::new(),
                item: UnsafeCell::new(7),
            });
            shared.bucket.set(0, 5, 1);
            let reader = {
                let shared = shared.clone();
                thread::spawn(move || {
                    shared.epochs.enter(0);
                    if shared.bucket.find(5, |_| true).is_some() {
                        // SAFETY: the model checks it.
                        let item = shared.item.with(|item| unsafe { *item });
                        assert_eq!(item, 7, "reused under the reader");
                    }
                    shared.epochs.leave(0);
                })
            };
            shared.bucket.version.write(|| shared.bucket.set(0, 5, 0));
            let stamp = shared.epochs.stamp();
            if shared.epochs.passed(stamp) {
                // SAFETY: the model checks it.
                shared.item.with_mut(|item| unsafe { *item = 8 });
            }
            reader.join().unwrap();
        });
    }

    /// A writer asks for the route and writes; who freezes the slice changes the route, and copies what is there once the batch is
    /// over. The cell tells loom of every access, so a copy beside a write fails.
    #[test]
    fn nobody_writes_what_is_exported() {
        struct Shared {
            batches: Epochs,
            epochs: Epochs,
            /// As in `leaving`: hashes from here on are here.
            frozen: AtomicU64,
            item: UnsafeCell<u32>,
        }
        // SAFETY: that accesses to the cell never overlap is what the model checks.
        unsafe impl Sync for Shared {}
        // SAFETY: as above.
        unsafe impl Send for Shared {}
        const HASH: u64 = 3;
        loom::model(|| {
            let shared = Arc::new(Shared {
                batches: Epochs::new(1),
                epochs: Epochs::new(1),
                frozen: AtomicU64::new(0),
                item: UnsafeCell::new(1),
            });
            let writer = {
                let shared = shared.clone();
                thread::spawn(move || {
                    enter(&shared.batches, &shared.epochs, 0);
                    let is_here = HASH >= shared.frozen.load(Acquire);
                    // It makes room, for which it leaves the epoch, but not the batch.
                    shared.epochs.leave(0);
                    if is_here {
                        // SAFETY: the model checks it.
                        shared.item.with_mut(|item| unsafe { *item = 2 });
                    }
                    leave(&shared.batches, &shared.epochs, 0);
                    is_here
                })
            };
            shared.frozen.store(HASH + 1, Release);
            let stamp = shared.batches.stamp();
            let exported = shared.batches.passed(stamp).then(|| {
                // SAFETY: the model checks it.
                shared.item.with(|item| unsafe { *item })
            });
            let written = writer.join().unwrap();
            assert!(exported.is_none_or(|item| item == 1 + u32::from(written)), "lost");
        });
    }

    /// A slice grows by a block under a reader, and is put into one again, as `slice` does it: the reader finds the
    /// key in the old blocks or in the new ones.
    #[test]
    fn a_slice_that_changes_hides_no_key() {
        struct Slice {
            /// What an entry of the directory is: a block, and how many there are.
            words: [AtomicU32; 2],
            blocks: [Bucket; 4],
        }
        const NUMBER: u32 = 3;
        /// The key's block: with two the second, with one the only one.
        const OF_ONE: u32 = 1;
        const OF_TWO: u32 = 2;
        loom::model(|| {
            let slice = Arc::new(Slice {
                // The second word is stale: its block has long been another slice's.
                words: [AtomicU32::new(OF_ONE), AtomicU32::new(3 << 2 | OF_TWO)],
                blocks: std::array::from_fn(|_| Bucket::new()),
            });
            slice.blocks[0].set(3, 5, 9);
            let writer = {
                let slice = slice.clone();
                thread::spawn(move || {
                    let [first, second, third, _] = &slice.blocks;
                    second.set(0, 5, 9);
                    first.version.retire();
                    slice.words[1].store(1 << 2 | OF_TWO, Release);
                    // The other block of the two, which has no key: not looked at here.
                    slice.words[0].store(OF_TWO, Release);
                    third.set(0, 5, 9);
                    second.version.retire();
                    slice.words[0].store(2 << 2 | OF_ONE, Release);
                    // Only to have the old blocks look reused at once.
                    first.set(3, 0, 0);
                    second.set(0, 0, 0);
                })
            };
            for _ in 0..3 {
                let number = slice.words[0].load(Acquire) & NUMBER;
                let word = slice.words[number as usize - 1].load(Acquire);
                if word & NUMBER == number {
                    let bucket = &slice.blocks[(word >> 2) as usize];
                    if let Some(seen) = bucket.version.begin() {
                        let found = bucket.find(5, |_| true);
                        if bucket.version.unchanged(seen) {
                            assert!(found.is_some(), "hidden by the change");
                            break;
                        }
                    }
                }
                thread::yield_now();
            }
            writer.join().unwrap();
        });
    }
}
