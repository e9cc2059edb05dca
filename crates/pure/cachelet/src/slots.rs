//! Room for cachelets, and what is on its way between being one and being none.

use std::collections::VecDeque;
use std::ptr;

use mbal_locks::ranks;
use mbal_model::{Elsewhere, Prefix, Seconds};

use crate::cachelet::Cachelet;
use crate::routes::Slot;
use crate::shim::{AtomicPtr, AtomicU32, Ordering::*};
use crate::sync::{Epochs, Guard, SpinLock};

/// Cachelets of one store, whatever becomes of them.
pub const CACHELETS_MAX: usize = 1 << 12;

/// Room for cachelets. What was one stays, to be used again.
pub struct Slots {
    /// Each is null until it is used, and then leads to one cachelet for as long as there are slots.
    all: Box<[AtomicPtr<Cachelet>]>,
    used: AtomicU32,
    /// Grows whenever a cachelet has an owner that no version of the store tells of.
    half_owners: AtomicU32,
    changes: SpinLock<ranks::Changes, Changes>,
    /// Whether `changes` has anything that goes.
    going: AtomicU32,
}

/// What is on its way, by those who change which cachelets there are: one at a time.
#[derive(Default)]
pub struct Changes {
    leaving: VecDeque<Leaving>,
    /// Vacant, since this stamp.
    free: VecDeque<(u64, Slot)>,
    /// When the last `flush_all` that was asked for a later second comes, and its number.
    pub flush_next: (Seconds, u32),
}

/// A cachelet that has been released.
#[derive(Clone, Copy)]
pub struct Leaving {
    /// Of the batches.
    pub stamp: u64,
    pub slot: Slot,
    pub prefix: Prefix,
    pub to: Elsewhere,
}

impl Slots {
    pub fn new() -> Slots {
        Slots {
            all: (0..CACHELETS_MAX).map(|_| AtomicPtr::new(ptr::null_mut())).collect(),
            used: AtomicU32::new(0),
            half_owners: AtomicU32::new(0),
            changes: SpinLock::new(Changes::default()),
            going: AtomicU32::new(0),
        }
    }

    /// The cachelets of all slots in use: what is served here, and what comes or goes.
    #[inline]
    pub fn used(&self) -> impl Iterator<Item = &Cachelet> + Clone {
        (0..self.used.load(Acquire) as Slot).map(|slot| self.at(slot))
    }

    /// The cachelet of a slot in use: one below `used`, or one that a route has led to.
    ///
    /// # Panics
    /// If the slot has never been used.
    #[inline(always)]
    pub fn at(&self, slot: Slot) -> &Cachelet {
        let cachelet = self.all[slot].load(Acquire);
        assert!(!cachelet.is_null(), "a route leads to a slot in use");
        // SAFETY: `use_next` stored it, after the cachelet was made; it is freed with the slots alone, and nobody has it mutably.
        unsafe { &*cachelet }
    }

    /// Puts a cachelet into the first slot that has never been used; `None` if all have. By one thread at a time.
    fn use_next(&self) -> Option<&Cachelet> {
        let slot = self.used.load(Relaxed) as Slot;
        let room = self.all.get(slot)?;
        room.store(Box::into_raw(Box::new(Cachelet::vacant(slot))), Release);
        self.used.store(slot as u32 + 1, Release);
        Some(self.at(slot))
    }

    /// The upper half of a cachelet that is split has got its owner.
    pub fn count_half_owner(&self) {
        self.half_owners.fetch_add(1, Release);
    }

    pub fn half_owners(&self) -> u32 {
        self.half_owners.load(Acquire)
    }

    pub fn changes(&self) -> Guard<'_, ranks::Changes, Changes> {
        self.changes.lock()
    }

    /// A cachelet's room that no reader can be in.
    pub fn vacant(&self, changes: &mut Changes, epochs: &Epochs) -> Option<&Cachelet> {
        if let Some(&(stamp, slot)) = changes.free.front() {
            if epochs.passed(stamp) {
                changes.free.pop_front();
                return Some(self.at(slot));
            }
        }
        self.use_next()
    }

    /// A cachelet has been released.
    pub fn leave(&self, changes: &mut Changes, leaving: Leaving) {
        changes.leaving.push_back(leaving);
        self.going.fetch_add(1, Release);
    }

    pub fn has_leaving(&self) -> bool {
        self.going.load(Acquire) != 0
    }

    /// What has been released first has gone; its slot is free since this stamp.
    pub fn has_gone(&self, changes: &mut Changes, slot: Slot, stamp: u64) {
        changes.free.push_back((stamp, slot));
        self.going.fetch_sub(1, Release);
    }
}

impl Changes {
    /// The one that was released first, if all batches are over in which somebody could have asked for it.
    pub fn next_leaving(&mut self, batches: &Epochs) -> Option<Leaving> {
        let is_over = self.leaving.front().is_some_and(|leaving| batches.passed(leaving.stamp));
        if is_over { self.leaving.pop_front() } else { None }
    }

    /// Its keys are served elsewhere than was said when it was released. Its slot.
    pub fn redirect(&mut self, prefix: Prefix, to: Elsewhere) -> Option<Slot> {
        let leaving = self.leaving.iter_mut().find(|leaving| leaving.prefix == prefix)?;
        leaving.to = to;
        Some(leaving.slot)
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        for slot in 0..self.used.load(Relaxed) as Slot {
            // SAFETY: from Box::into_raw, and whoever had borrowed it had borrowed the slots.
            drop(unsafe { Box::from_raw(self.all[slot].load(Relaxed)) });
        }
    }
}
