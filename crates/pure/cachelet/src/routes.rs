//! From a hash to who serves it: one table for connections, datagrams and links.
//!
//! ```text
//!  first 10 bits        first 15 bits
//!  root: 1,024 words -> fine: 32,768 words     a word is a slot of this store, another server, a move,
//!                    (where a prefix is longer)  or, in the root, "see fine"
//! ```
//!
//! So a map of few cachelets is 4 KiB that stay in the core's nearest cache, and one of any widths is found in two loads.
//! A word changes alone: a cachelet's worth of them is not changed at once, which is why [`Store::release`] first marks the cachelet.

use mbal_model::{Elsewhere, MoveId, Prefix, ServerId};

#[cfg(doc)]
use crate::Store;
use crate::shim::{AtomicU32, Ordering::*};

const ROOT_BITS: u32 = 10;
const FINE_SHIFT: u32 = 64 - Prefix::BITS_MAX;
/// Entries of `fine` for one of the root.
const FAN: usize = 1 << (Prefix::BITS_MAX - ROOT_BITS);

/// Word of the root whose prefix is divided further.
const SEE_FINE: u32 = u32::MAX;
const ELSEWHERE: u32 = 1 << 31;
pub(crate) const MOVING: u32 = 1 << 30;
/// In a cachelet: only some slices of it are there. It leaves by a move, or it arrives from a peer.
pub(crate) const PARTLY: u32 = 1 << 29;

/// Which of the store's cachelets: an index, and no name, since it is used again.
pub(crate) type Slot = usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Here(Slot),
    Away(Elsewhere),
}

pub(crate) struct Routes {
    root: Box<[AtomicU32]>,
    fine: Box<[AtomicU32]>,
}

/// The server of hashes that nobody has been named for.
const NOBODY: Elsewhere = Elsewhere::Peer(ServerId::NOBODY);

/// An [`Elsewhere`] in 32 bits; never 0.
pub(crate) fn encode(elsewhere: Elsewhere) -> u32 {
    match elsewhere {
        Elsewhere::Peer(server) => ELSEWHERE | u32::from(server.0),
        Elsewhere::Moving(MoveId(id)) => {
            assert!(id < PARTLY, "moves are named in 29 bits");
            ELSEWHERE | MOVING | id
        }
    }
}

pub(crate) fn decode(word: u32) -> Elsewhere {
    match word & MOVING {
        0 => Elsewhere::Peer(ServerId(word as u16)),
        _ => Elsewhere::Moving(MoveId(word & (PARTLY - 1))),
    }
}

impl Routes {
    /// Everything is served by nobody.
    pub fn new() -> Routes {
        let words = |count| (0..count).map(|_| AtomicU32::new(encode(NOBODY))).collect();
        Routes { root: words(1 << ROOT_BITS), fine: words(1 << Prefix::BITS_MAX) }
    }

    #[inline(always)]
    pub fn of(&self, hash: u64) -> Way {
        let mut word = self.root[(hash >> (64 - ROOT_BITS)) as usize].load(Acquire);
        if word == SEE_FINE {
            word = self.fine[(hash >> FINE_SHIFT) as usize].load(Acquire);
        }
        match word & ELSEWHERE {
            0 => Way::Here(word as Slot),
            _ => Way::Away(decode(word)),
        }
    }

    /// By one thread at a time.
    pub fn set(&self, prefix: Prefix, way: Way) {
        let word = match way {
            Way::Here(slot) => slot as u32,
            Way::Away(elsewhere) => encode(elsewhere),
        };
        let first = prefix.first_hash();
        let run = |words: &[AtomicU32], bits: u32| {
            let start = (first >> (64 - bits)) as usize;
            words[start..start + (1 << (bits - prefix.bits()))]
                .iter()
                .for_each(|at| at.store(word, Release));
        };
        if prefix.bits() <= ROOT_BITS {
            return run(&self.root, ROOT_BITS);
        }
        let root = (first >> (64 - ROOT_BITS)) as usize;
        let whole = self.root[root].load(Relaxed);
        if whole != SEE_FINE {
            self.fine[root * FAN..][..FAN].iter().for_each(|at| at.store(whole, Relaxed));
            self.root[root].store(SEE_FINE, Release);
        }
        run(&self.fine, Prefix::BITS_MAX);
    }

    /// True if nothing of `prefix` is served here.
    pub fn is_absent(&self, prefix: Prefix) -> bool {
        let words = prefix.nodes() / 2;
        let hashes = (0..words as u64).map(|at| prefix.first_hash() + (at << FINE_SHIFT));
        hashes.into_iter().all(|hash| matches!(self.of(hash), Way::Away(_)))
    }

    /// The first hash from `from` on that is served here.
    pub fn next_here(&self, from: u64) -> Option<u64> {
        let mut hash = from;
        loop {
            if let Way::Here(_) = self.of(hash) {
                return Some(hash);
            }
            let root_shift = 64 - ROOT_BITS;
            let is_fine = self.root[(hash >> root_shift) as usize].load(Acquire) == SEE_FINE;
            let shift = if is_fine { FINE_SHIFT } else { root_shift };
            hash = (hash >> shift << shift).checked_add(1 << shift)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use mbal_random::Random;

    use super::*;

    /// The naive table: a word for each of the narrowest prefixes.
    #[test]
    fn any_prefixes_in_any_order_are_found_as_in_a_list() {
        let routes = Routes::new();
        let mut list = vec![Way::Away(NOBODY); 1 << Prefix::BITS_MAX];
        let mut random = Random::new(1);
        for round in 0..2_000u32 {
            let prefix = Prefix::of(random.word(), 4 + random.below(12) as u32);
            let way = match round % 3 {
                0 => Way::Here(round as Slot),
                1 => Way::Away(Elsewhere::Peer(ServerId(round as u16))),
                _ => Way::Away(Elsewhere::Moving(MoveId(round << 16))),
            };
            routes.set(prefix, way);
            let start = usize::from(prefix.first()) / 2;
            list[start..start + prefix.nodes() / 2].fill(way);
        }
        for (at, way) in list.iter().enumerate() {
            let hash = (at as u64) << FINE_SHIFT | 5;
            assert_eq!(routes.of(hash), *way, "{hash:x}");
            let next = list[at..].iter().position(|way| matches!(way, Way::Here(_)));
            let next = next
                .map(|ahead| if ahead == 0 { hash } else { ((at + ahead) as u64) << FINE_SHIFT });
            if at % 97 == 0 {
                assert_eq!(routes.next_here(hash), next);
            }
        }
    }
}
