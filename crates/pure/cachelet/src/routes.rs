//! From a hash to who serves it: one table for connections, datagrams and links.
//!
//! ```text
//!  first 6 bits     first 10 bits        first 15 bits
//!  64 words   --->  1,024 words   --->   32,768 words     a word is a slot of this store, another server, a move,
//!        (where a prefix is longer)                       or, but in the last level, "see the next one"
//! ```
//!
//! So a map of few cachelets is four cache lines that stay in the core's nearest cache, and one of any widths is found in three
//! loads. A word changes alone: a cachelet's worth of them is not changed at once, which is why [`crate::Cachelets::release`] first marks the
//! cachelet.

use mbal_model::{Elsewhere, MoveId, Prefix, ServerId};

use crate::shim::{AtomicU32, Ordering::*};

/// Bits of a hash that a level goes by.
const LEVEL_BITS: [u32; 3] = [6, 10, Prefix::BITS_MAX];
const FIRST_WORDS: usize = 1 << LEVEL_BITS[0];

/// Word whose prefix is divided further.
const SEE_NEXT: u32 = u32::MAX;
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
    first: FirstLevel,
    /// Those behind it.
    further: [Box<[AtomicU32]>; LEVEL_BITS.len() - 1],
}

/// In whole cache lines, which hold nothing that changes.
#[repr(align(64))]
struct FirstLevel([AtomicU32; FIRST_WORDS]);

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

/// The word of a level that has the first of `bits` bits of a hash.
#[inline(always)]
fn place(hash: u64, bits: u32) -> usize {
    (hash >> (64 - bits)) as usize
}

impl Routes {
    /// Everything is served by nobody.
    pub fn new() -> Routes {
        let nobody = || AtomicU32::new(encode(NOBODY));
        let words = |bits| (0..1 << bits).map(|_| nobody()).collect();
        Routes {
            first: FirstLevel(std::array::from_fn(|_| nobody())),
            further: [words(LEVEL_BITS[1]), words(LEVEL_BITS[2])],
        }
    }

    #[inline(always)]
    pub fn of(&self, hash: u64) -> Way {
        let mut word = self.first.0[place(hash, LEVEL_BITS[0])].load(Acquire);
        if word == SEE_NEXT {
            word = self.further[0][place(hash, LEVEL_BITS[1])].load(Acquire);
            if word == SEE_NEXT {
                word = self.further[1][place(hash, LEVEL_BITS[2])].load(Acquire);
            }
        }
        match word & ELSEWHERE {
            0 => Way::Here(word as Slot),
            _ => Way::Away(decode(word)),
        }
    }

    fn level(&self, level: usize) -> &[AtomicU32] {
        match level {
            0 => &self.first.0,
            _ => &self.further[level - 1],
        }
    }

    /// By one thread at a time.
    pub fn set(&self, prefix: Prefix, way: Way) {
        let word = match way {
            Way::Here(slot) => slot as u32,
            Way::Away(elsewhere) => encode(elsewhere),
        };
        let first = prefix.first_hash();
        let mut level = 0;
        while LEVEL_BITS[level] < prefix.bits() {
            self.divide(level, first);
            level += 1;
        }
        let bits = LEVEL_BITS[level];
        self.level(level)[place(first, bits)..][..1 << (bits - prefix.bits())]
            .iter()
            .for_each(|at| at.store(word, Release));
    }

    /// Has the word of a hash see the next level, which says the same.
    fn divide(&self, level: usize, hash: u64) {
        let (bits, next_bits) = (LEVEL_BITS[level], LEVEL_BITS[level + 1]);
        let word = &self.level(level)[place(hash, bits)];
        let whole = word.load(Relaxed);
        if whole != SEE_NEXT {
            let fan = 1 << (next_bits - bits);
            let next = &self.level(level + 1)[place(hash, bits) * fan..][..fan];
            next.iter().for_each(|at| at.store(whole, Relaxed));
            word.store(SEE_NEXT, Release);
        }
    }

    /// True if nothing of `prefix` is served here.
    pub fn is_absent(&self, prefix: Prefix) -> bool {
        self.next_here(prefix.first_hash()).is_none_or(|here| !prefix.contains(here))
    }

    /// The first hash from `from` on that is served here.
    pub fn next_here(&self, from: u64) -> Option<u64> {
        let mut hash = from;
        loop {
            if let Way::Here(_) = self.of(hash) {
                return Some(hash);
            }
            let sees_next = |level: &usize| {
                self.level(*level)[place(hash, LEVEL_BITS[*level])].load(Acquire) == SEE_NEXT
            };
            let level = (0..LEVEL_BITS.len()).find(|level| !sees_next(level));
            let shift = 64 - LEVEL_BITS[level.expect("the last level sees none")];
            hash = (hash >> shift << shift).checked_add(1 << shift)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use mbal_random::Random;

    use super::*;

    const SHIFT: u32 = 64 - Prefix::BITS_MAX;

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
            let hash = (at as u64) << SHIFT | 5;
            assert_eq!(routes.of(hash), *way, "{hash:x}");
            let next = list[at..].iter().position(|way| matches!(way, Way::Here(_)));
            let next =
                next.map(|ahead| if ahead == 0 { hash } else { ((at + ahead) as u64) << SHIFT });
            if at % 97 == 0 {
                assert_eq!(routes.next_here(hash), next);
            }
        }
    }
}
