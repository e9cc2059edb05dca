//! What workers see of a cachelet without its lock.

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Prefix, Seconds, WorkerId};

use crate::aged::Aged;
use crate::away::Away;
use crate::dir::Root;
use crate::routes::Slot;
use crate::shim::{AtomicU32, AtomicU64, Ordering::*};

/// Some clients keep a cas in a signed number, others in 19 digits.
const GENERATION_MAX: u16 = 0x7FFF;

/// The first cache line is what every request looks at and hardly ever changes.
#[repr(C, align(64))]
pub struct Front {
    pub root: Root,
    /// Its prefix's code; 0 while it serves nothing under a name of its own.
    prefix: AtomicU32,
    owner: AtomicU32,
    /// Second at which everything older dies; 0 is none.
    flush_at: AtomicU32,
    generation: AtomicU32,
    pub away: Away,
    /// Of the store's, this one.
    pub slot: Slot,
    /// The store's version when it last changed its owner.
    given_at: AtomicU64,
    pub aged: Aged,
    work: Work,
}

#[cfg(not(loom))]
const _: () = assert!(std::mem::offset_of!(Front, slot) == 64, "what every request sees is a line");

/// Counters on a cache line of their own: its owner counts alone, but for the moment of a change.
#[derive(Default)]
#[repr(align(64))]
struct Work {
    followed: AtomicU64,
    linked: AtomicU64,
}

/// What has been done for a cachelet's sake since it was born.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheletWork {
    /// For clients that know the workers: it goes where the cachelet goes.
    pub followed: u64,
    /// For other servers, whose links stay with their workers: it leaves when the cachelet leaves the server.
    pub linked: u64,
}

impl Front {
    pub fn vacant(slot: Slot) -> Front {
        Front {
            root: Root::new(),
            prefix: AtomicU32::new(0),
            owner: AtomicU32::new(0),
            flush_at: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            away: Away::nowhere(),
            slot,
            given_at: AtomicU64::new(0),
            aged: Aged::new(),
            work: Work::default(),
        }
    }

    /// In a slot that no reader can be in.
    pub fn is_born(&self, prefix: Prefix, owner: WorkerId, generation: u16) {
        self.owner.store(owner.0.into(), Relaxed);
        self.given_at.store(0, Relaxed);
        self.root.set_prefix_bits(prefix.bits());
        self.set_generation(generation & GENERATION_MAX);
        self.set_flush_at(0);
        self.root.set_child(None);
        self.work.followed.store(0, Relaxed);
        self.work.linked.store(0, Relaxed);
        self.away.set(None);
    }

    /// The prefix that it serves; none of a vacant one, or of the upper half of one that is being split.
    #[inline]
    pub fn prefix(&self) -> Option<Prefix> {
        Prefix::from_code(self.prefix.load(Acquire) as u16)
    }

    pub fn set_prefix(&self, prefix: Option<Prefix>) {
        self.prefix.store(prefix.map_or(0, Prefix::code).into(), Release);
    }

    /// Serves keys under a name of its own, and has not been released.
    pub fn is_here(&self) -> bool {
        !self.away.is_all() && !self.away.arrives()
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

    /// One that counts at the same moment may get lost.
    #[inline]
    pub fn count_work(&self, work: u64) {
        self.work.followed.store(self.work.followed.load(Relaxed) + work, Relaxed);
    }

    #[inline]
    pub fn count_linked(&self, work: u64) {
        self.work.linked.store(self.work.linked.load(Relaxed) + work, Relaxed);
    }

    pub fn work(&self) -> CacheletWork {
        let Work { followed, linked } = &self.work;
        CacheletWork { followed: followed.load(Relaxed), linked: linked.load(Relaxed) }
    }

    /// The upper part of the cas that it gives.
    #[inline(always)]
    pub fn generation(&self) -> u32 {
        self.generation.load(Relaxed)
    }

    pub fn set_generation(&self, generation: u16) {
        self.generation.store(generation.into(), Relaxed);
    }

    #[inline(always)]
    pub fn flush_at(&self) -> Seconds {
        self.flush_at.load(Relaxed)
    }

    /// A flush has come that nobody has done yet.
    #[inline(always)]
    pub fn is_flush_due(&self, now: Seconds) -> bool {
        let flush_at = self.flush_at();
        flush_at != 0 && flush_at <= now
    }

    pub fn set_flush_at(&self, at: Seconds) {
        self.flush_at.store(at, Relaxed);
    }
}
