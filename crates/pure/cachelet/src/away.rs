//! Which hashes of a cachelet are served elsewhere: none, all, or those of some slices while it leaves or arrives.
//!
//! Boundaries are kept halved: the end of all hashes has 65 bits, and no slice is as narrow as that.

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Elsewhere, MoveId, ServerId};

use crate::routes::{MOVING, PARTLY, decode, encode};
use crate::shim::{AtomicU32, AtomicU64, Ordering::*};

#[repr(C)]
pub struct Away {
    /// While it leaves in slices: which hashes have gone, and which have at least been frozen, see [`crate::leaving`].
    gone: AtomicU64,
    frozen: AtomicU64,
    /// While it arrives in slices: which hashes are served here, see [`crate::arriving`].
    arrived: AtomicU64,
    /// Where requests for it are to go: 0 is here, else see [`crate::routes::encode`].
    word: AtomicU32,
}

impl Away {
    pub fn nowhere() -> Away {
        Away {
            gone: AtomicU64::new(0),
            frozen: AtomicU64::new(0),
            arrived: AtomicU64::new(0),
            word: AtomicU32::new(0),
        }
    }

    /// Where a request for this hash of it is to go, if not here.
    #[inline(always)]
    pub fn of(&self, hash: u64) -> Option<Elsewhere> {
        match self.word.load(Acquire) {
            0 => None,
            word => self.by_word(word, hash),
        }
    }

    #[cold]
    fn by_word(&self, word: u32, hash: u64) -> Option<Elsewhere> {
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
    pub fn is_all(&self) -> bool {
        let word = self.word.load(Acquire);
        word != 0 && word & PARTLY == 0
    }

    /// Some slices of it are here, and others are not: it leaves, or it arrives.
    pub fn is_part(&self) -> bool {
        self.word.load(Acquire) & PARTLY != 0
    }

    pub fn leaves(&self) -> bool {
        self.is_part() && self.word.load(Acquire) & MOVING != 0
    }

    pub fn arrives(&self) -> bool {
        self.is_part() && !self.leaves()
    }

    pub fn set(&self, elsewhere: Option<Elsewhere>) {
        self.word.store(elsewhere.map_or(0, encode), Release);
    }

    /// A part of it is elsewhere: which one, `gone` and `frozen` say, or `arrived`.
    fn set_part(&self, elsewhere: Elsewhere) {
        self.word.store(encode(elsewhere) | PARTLY, Release);
    }

    pub fn begin_to_leave(&self, id: MoveId, first: u64) {
        self.gone.store(first >> 1, Relaxed);
        self.frozen.store(first >> 1, Relaxed);
        self.set_part(Elsewhere::Moving(id));
    }

    pub fn gone(&self) -> u128 {
        u128::from(self.gone.load(Relaxed)) << 1
    }

    pub fn frozen(&self) -> u128 {
        u128::from(self.frozen.load(Relaxed)) << 1
    }

    pub fn freeze(&self, end: u128) {
        self.frozen.store((end >> 1) as u64, Release);
    }

    pub fn have_gone(&self, end: u128) {
        self.gone.store((end >> 1) as u64, Release);
    }

    pub fn begin_to_arrive(&self, first: u64, from: ServerId) {
        self.arrived.store(first >> 1, Relaxed);
        self.set_part(Elsewhere::Peer(from));
    }

    pub fn have_arrived(&self, end: u128) {
        self.arrived.fetch_max((end >> 1) as u64, Release);
    }
}
