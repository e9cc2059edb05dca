//! One cachelet: what readers of all workers see of it, and what its writer lock protects.

use mbal_locks::ranks;
use mbal_model::{Prefix, WorkerId};

use crate::cas::Counter;
use crate::chosen::AgeThresholds;
use crate::flushes::Flushed;
use crate::front::Front;
use crate::index::Index;
use crate::items::Items;
use crate::routes::Slot;
use crate::sync::{Epochs, SpinLock};
use crate::types::Birth;
use crate::unfinished::Unfinished;

/// The writer lock begins a cache line, which changes with every write.
#[repr(C)]
pub struct Cachelet {
    pub front: Front,
    pub inner: SpinLock<ranks::Cachelet, Inner>,
}

#[cfg(not(loom))]
const _: () = assert!(std::mem::offset_of!(Cachelet, inner) % 64 == 0, "it begins a cache line");

/// What the writer lock protects; first what every write changes.
#[derive(Default)]
#[repr(C)]
pub struct Inner {
    pub items: Items,
    pub index: Index,
    pub flushed: Flushed,
    pub split: Split,
    /// While it leaves: what it takes along, if not everything.
    pub chosen: Option<Box<AgeThresholds>>,
    /// A long value of which not all pieces have come.
    pub unfinished: Unfinished,
}

/// Whether its upper half goes to its child.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum Split {
    #[default]
    Never,
    UnderWay,
    /// The routes changed last at this stamp.
    Done(u64),
}

impl Split {
    /// The next one may begin: nobody goes by the routes of before.
    pub fn may_begin(self, epochs: &Epochs) -> bool {
        match self {
            Split::Never => true,
            Split::UnderWay => false,
            Split::Done(stamp) => epochs.passed(stamp),
        }
    }

    pub fn is_under_way(self) -> bool {
        self == Split::UnderWay
    }
}

impl Cachelet {
    /// One that serves nothing yet.
    pub fn vacant(slot: Slot) -> Cachelet {
        Cachelet { front: Front::vacant(slot), inner: SpinLock::new(Inner::default()) }
    }

    /// What a cachelet is born with, in a slot that no reader can be in. Statistics go on: they are the server's.
    pub fn is_born(&self, inner: &mut Inner, prefix: Prefix, owner: WorkerId, birth: Birth) {
        self.front.is_born(prefix, owner, birth.generation);
        inner.items.counter = Counter::born(prefix);
        inner.flushed = Flushed::born(birth.flush_number, 0);
        inner.split = Split::Never;
    }
}
