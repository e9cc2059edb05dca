//! One cachelet: what readers of all workers see of it, and what its writer lock protects.

use std::collections::VecDeque;

use mbal_locks::ranks;
use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Elsewhere, Prefix, Seconds, WorkerId};

use crate::blocks::Blocks;
use crate::chosen::AgeThresholds;
use crate::classes::ByClass;
use crate::index::Dir;
use crate::log::{LOGS, Log};
use crate::memory::Offset;
use crate::pool::PageId;
use crate::routes::{MOVING, PARTLY, Slot, decode, encode};
use crate::shim::{AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use crate::sync::SpinLock;
use crate::types::{Birth, StoreStats};
use crate::unfinished::Unfinished;

/// Cachelets that are born together begin to count so far apart, by virtual node: a cas of one is not another's.
const CAS_PER_NODE_BITS: u32 = 28;
/// Some clients keep a cas in a signed number, others in 19 digits.
pub(crate) const GENERATION_MAX: u32 = 0x7FFF;

/// The first cache line is what every request looks at and hardly ever changes. The second begins with the writer lock, which
/// changes with every write.
#[repr(C, align(64))]
pub struct Cachelet {
    pub(crate) dir: AtomicPtr<Dir>,
    /// Bits of the hash before those that the directory goes by: those of its prefix, or fewer after a split.
    pub(crate) prefix_bits: AtomicU32,
    /// Its prefix's code; 0 while it serves nothing under a name of its own.
    prefix: AtomicU32,
    /// Where requests for it are to go: 0 is here, else see [`crate::routes::encode`].
    away: AtomicU32,
    owner: AtomicU32,
    /// Second at which everything older dies; 0 is none.
    pub(crate) flush_at: AtomicU32,
    /// Where slices marked as moved have gone, plus one; 0 is nowhere.
    pub(crate) child: AtomicU32,
    pub(crate) generation: AtomicU32,
    /// While it leaves in slices: which hashes have gone, and which have at least been frozen, see [`crate::leaving`].
    pub(crate) gone: AtomicU64,
    pub(crate) frozen: AtomicU64,
    /// While it arrives in slices: which hashes are served here, see [`crate::arriving`].
    pub(crate) arrived: AtomicU64,
    pub(crate) inner: SpinLock<ranks::Cachelet, Inner>,
    /// Of the store's, this one.
    pub(crate) slot: Slot,
    /// The store's version when it last changed its owner.
    given_at: AtomicU64,
    /// Order of sealing of the oldest page, by temper; `u64::MAX` is none.
    pub(crate) oldest: [AtomicU64; 2],
    /// The second at which the first of the oldest pages holds nothing alive; `u32::MAX` is never.
    pub(crate) expires: AtomicU32,
    /// Pages in logs, by temper.
    pub(crate) log_pages: [AtomicU32; 2],
    work: Work,
}

#[cfg(not(loom))]
const _: () = assert!(std::mem::offset_of!(Cachelet, inner) == 64, "it begins a cache line");

/// A counter on a cache line of its own: its owner counts alone, but for the moment of a change.
#[derive(Default)]
#[repr(align(64))]
struct Work(AtomicU64);

/// What the writer lock protects; first what every write changes.
#[derive(Default)]
#[repr(C)]
pub struct Inner {
    /// The low 48 bits of the next cas, less one.
    pub counter: u64,
    pub stats: StoreStats,
    /// What the counter was when the cachelet was born.
    pub counter_at_birth: u64,
    /// Of the last `flush_all` that this cachelet has seen, wherever it was; and of the one that comes at `flush_at`.
    pub flush_number: u32,
    pub flush_next: u32,
    /// Its upper half is on its way to `child`.
    pub splits: bool,
    pub logs: [Log; LOGS],
    /// Ghosts left in the index so far.
    pub ghosts: u32,
    pub blocks: Blocks,
    /// When the routes last changed after a split.
    pub split_done: Option<u64>,
    pub old_dirs: Vec<(u64, Box<Dir>)>,
    /// Bytes of dead records in the pages of the logs.
    pub dead_bytes: u64,
    pub classes: ByClass,
    /// While it leaves: what it takes along, if not everything.
    pub chosen: Option<Box<AgeThresholds>>,
    /// A long value of which not all pieces have come.
    pub unfinished: Option<Unfinished>,
    /// Pages that a flush has dropped, each with the order in which it was sealed; none is empty.
    pub dropped: Vec<VecDeque<(u64, PageId)>>,
    /// Scratch of `clean`: hash and place of a page's live records.
    pub records: Vec<(u64, Offset)>,
}

impl Cachelet {
    /// One that serves nothing yet.
    pub fn vacant(slot: Slot) -> Cachelet {
        Cachelet {
            dir: AtomicPtr::new(Box::into_raw(Dir::empty())),
            prefix_bits: AtomicU32::new(0),
            prefix: AtomicU32::new(0),
            away: AtomicU32::new(0),
            gone: AtomicU64::new(0),
            frozen: AtomicU64::new(0),
            arrived: AtomicU64::new(0),
            slot,
            flush_at: AtomicU32::new(0),
            owner: AtomicU32::new(0),
            given_at: AtomicU64::new(0),
            child: AtomicU32::new(0),
            oldest: [AtomicU64::new(u64::MAX), AtomicU64::new(u64::MAX)],
            expires: AtomicU32::new(Seconds::MAX),
            log_pages: [AtomicU32::new(0), AtomicU32::new(0)],
            generation: AtomicU32::new(0),
            inner: SpinLock::new(Inner::default()),
            work: Work::default(),
        }
    }

    /// The prefix that it serves; none of a vacant one, or of the upper half of one that is being split.
    #[inline]
    pub fn prefix(&self) -> Option<Prefix> {
        Prefix::from_code(self.prefix.load(Acquire) as u16)
    }

    pub fn set_prefix(&self, prefix: Option<Prefix>) {
        self.prefix.store(prefix.map_or(0, Prefix::code).into(), Release);
    }

    /// Where a request for this hash of it is to go, if not here.
    #[inline(always)]
    pub fn away(&self, hash: u64) -> Option<Elsewhere> {
        match self.away.load(Acquire) {
            0 => None,
            word => self.away_by(word, hash),
        }
    }

    #[cold]
    fn away_by(&self, word: u32, hash: u64) -> Option<Elsewhere> {
        let elsewhere = decode(word & !PARTLY);
        let frozen = match is_planted(Fault::FrozenIsServed) {
            true => &self.gone,
            false => &self.frozen,
        };
        let is_here = word & PARTLY != 0
            && match elsewhere {
                Elsewhere::Moving(_) => hash >> 1 >= frozen.load(Acquire),
                Elsewhere::Peer(_) => hash >> 1 < self.arrived.load(Acquire),
            };
        (!is_here).then_some(elsewhere)
    }

    /// All of it is elsewhere.
    pub fn is_away(&self) -> bool {
        let word = self.away.load(Acquire);
        word != 0 && word & PARTLY == 0
    }

    /// Some slices of it are here, and others are not: it leaves, or it arrives.
    pub fn is_partly_here(&self) -> bool {
        self.away.load(Acquire) & PARTLY != 0
    }

    pub fn leaves(&self) -> bool {
        self.is_partly_here() && self.away.load(Acquire) & MOVING != 0
    }

    pub fn arrives(&self) -> bool {
        self.is_partly_here() && !self.leaves()
    }

    /// A part of it is elsewhere: which one, `gone` and `frozen` say, or `arrived`.
    pub fn set_partly_away(&self, elsewhere: Elsewhere) {
        self.away.store(encode(elsewhere) | PARTLY, Release);
    }

    pub fn set_away(&self, elsewhere: Option<Elsewhere>) {
        self.away.store(elsewhere.map_or(0, encode), Release);
    }

    /// One that counts at the same moment may get lost.
    #[inline]
    pub fn count_work(&self, work: u64) {
        self.work.0.store(self.work.0.load(Relaxed) + work, Relaxed);
    }

    pub fn work(&self) -> u64 {
        self.work.0.load(Relaxed)
    }

    /// What a cachelet is born with, in a slot that no reader can be in. Statistics go on: they are the server's.
    pub fn is_born(&self, inner: &mut Inner, prefix: Prefix, owner: WorkerId, birth: Birth) {
        let Birth { generation, flush_number } = birth;
        self.owner.store(owner.0.into(), Relaxed);
        self.given_at.store(0, Relaxed);
        self.prefix_bits.store(prefix.bits(), Relaxed);
        self.generation.store(u32::from(generation) & GENERATION_MAX, Relaxed);
        self.flush_at.store(0, Relaxed);
        self.child.store(0, Relaxed);
        self.work.0.store(0, Relaxed);
        self.set_away(None);
        inner.counter_at_birth = u64::from(prefix.first()) << CAS_PER_NODE_BITS;
        inner.counter = inner.counter_at_birth;
        (inner.flush_number, inner.flush_next) = (flush_number, 0);
        inner.splits = false;
        inner.split_done = None;
    }

    #[inline]
    pub fn owner(&self) -> usize {
        self.owner.load(Relaxed) as usize
    }

    /// Counted by `version`. Under the writer lock, or before anybody can reach the cachelet.
    pub fn set_owner(&self, worker: usize, version: &AtomicU64) {
        self.owner.store(worker as u32, Relaxed);
        if is_planted(Fault::OwnerWithoutVersion) {
            return;
        }
        // Then the count: nobody reads a version whose owners are not there yet.
        self.given_at.store(version.fetch_add(1, Release) + 1, Relaxed);
    }

    /// True if the owner is still the one of `version`.
    pub fn owned_since(&self, version: u64) -> bool {
        self.given_at.load(Relaxed) <= version
    }
}

impl Drop for Cachelet {
    fn drop(&mut self) {
        // SAFETY: made by Box::into_raw; nobody else can have the cachelet any more.
        drop(unsafe { Box::from_raw(self.dir.load(Relaxed)) });
    }
}
