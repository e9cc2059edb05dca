//! A cachelet's name, in bits and in text.

use std::fmt;
use std::num::NonZeroU16;

/// A virtual node is one of 2^16: the first bits of a key's hash.
const VIRTUAL_NODE_BITS: u32 = 16;

/// A cachelet's only name: the first bits of the hashes that it serves.
///
/// In text it is written like a network, first virtual node and number of bits: `2c00/6`. In 16 bits it is the first virtual
/// node with a mark behind the last bit of the prefix, so no two prefixes have the same number. Disjoint prefixes are ordered as
/// their hashes are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix(NonZeroU16);

impl Prefix {
    pub const BITS_MAX: u32 = VIRTUAL_NODE_BITS - 1;
    /// The cachelet that serves every hash.
    pub const ALL: Prefix = Prefix(NonZeroU16::new(1 << Prefix::BITS_MAX).expect("a mark"));

    /// `None` if there are more than [`Prefix::BITS_MAX`] bits, or `first` has others than these.
    pub const fn new(first: u16, bits: u32) -> Option<Prefix> {
        if bits > Prefix::BITS_MAX || (first as u32) << bits & 0xFFFF != 0 {
            return None;
        }
        match NonZeroU16::new(first | 1 << (Prefix::BITS_MAX - bits)) {
            Some(code) => Some(Prefix(code)),
            None => None,
        }
    }

    /// The first `bits` of a hash.
    ///
    /// # Panics
    /// If these are more than [`Prefix::BITS_MAX`].
    pub const fn of(hash: u64, bits: u32) -> Prefix {
        let node = (hash >> (64 - VIRTUAL_NODE_BITS)) as u32;
        let first = node >> (VIRTUAL_NODE_BITS - bits) << (VIRTUAL_NODE_BITS - bits);
        Prefix::new(first as u16, bits).expect("no more bits than a prefix has")
    }

    /// See [`Prefix::code`]. `None` for 0, which is no prefix.
    pub const fn from_code(code: u16) -> Option<Prefix> {
        match NonZeroU16::new(code) {
            Some(code) => Some(Prefix(code)),
            None => None,
        }
    }

    /// The prefix in 16 bits; never 0.
    pub const fn code(self) -> u16 {
        self.0.get()
    }

    pub const fn bits(self) -> u32 {
        Prefix::BITS_MAX - self.0.trailing_zeros()
    }

    /// The first of its virtual nodes.
    pub const fn first(self) -> u16 {
        self.code() & (self.code() - 1)
    }

    /// Its virtual nodes' number.
    pub const fn nodes(self) -> usize {
        1 << (VIRTUAL_NODE_BITS - self.bits())
    }

    pub const fn first_hash(self) -> u64 {
        (self.first() as u64) << (64 - VIRTUAL_NODE_BITS)
    }

    pub const fn last_hash(self) -> u64 {
        self.first_hash() | u64::MAX >> self.bits()
    }

    pub const fn contains(self, hash: u64) -> bool {
        self.first_hash() <= hash && hash <= self.last_hash()
    }

    /// True if some hash belongs to both: then one of them is a part of the other.
    pub const fn overlaps(self, other: Prefix) -> bool {
        self.contains(other.first_hash()) || other.contains(self.first_hash())
    }

    /// The two that it is split into; `None` if it is as narrow as cachelets get.
    pub const fn halves(self) -> Option<(Prefix, Prefix)> {
        if self.bits() == Prefix::BITS_MAX {
            return None;
        }
        let bits = self.bits() + 1;
        Some((Prefix::of(self.first_hash(), bits), Prefix::of(self.last_hash(), bits)))
    }

    /// The 2^`bits` that it is split into, in order.
    ///
    /// # Panics
    /// If they are narrower than cachelets get.
    pub fn parts(self, bits: u32) -> impl ExactSizeIterator<Item = Prefix> {
        (0..1 << bits).map(move |at| Prefix::nth((self.place() << bits) + at, self.bits() + bits))
    }

    /// What the binary protocol's vbucket field says of it. Never 0, which is a client that knows no cachelets, and it stays
    /// the first half's when the cachelet is split.
    pub const fn vbucket(self) -> u16 {
        self.first() | 1
    }

    /// `2c00/6`; `None` if `text` is no prefix.
    pub fn parse(text: &[u8]) -> Option<Prefix> {
        let (first, bits) = std::str::from_utf8(text).ok()?.split_once('/')?;
        let is_plain = first.len() == 4
            && first.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
            && bits.bytes().all(|digit| digit.is_ascii_digit());
        let first = u16::from_str_radix(first, 16).ok().filter(|_| is_plain)?;
        Prefix::new(first, bits.parse().ok()?)
    }

    /// The prefixes of so many bits, in order.
    pub fn equal(bits: u32) -> impl ExactSizeIterator<Item = Prefix> {
        (0..1 << bits).map(move |at| Prefix::nth(at, bits))
    }

    /// One of [`Prefix::equal`].
    ///
    /// # Panics
    /// If there are fewer, or `bits` are more than a prefix has.
    pub const fn nth(at: usize, bits: u32) -> Prefix {
        assert!(at < 1 << bits);
        Prefix::of((at as u64) << 1 << (63 - bits), bits)
    }

    /// Which of the prefixes of its width it is.
    pub const fn place(self) -> usize {
        (self.first() as usize) >> (VIRTUAL_NODE_BITS - self.bits())
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Padded as a whole, for tables.
        out.pad(&format!("{:04x}/{}", self.first(), self.bits()))
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_but_zero_is_a_prefix_and_reads_as_it_is_written() {
        for code in 1..=u16::MAX {
            let prefix = Prefix::from_code(code).expect("it is not 0");
            assert_eq!(Prefix::new(prefix.first(), prefix.bits()), Some(prefix));
            assert_eq!(Prefix::parse(prefix.to_string().as_bytes()), Some(prefix));
            assert_eq!(Prefix::of(prefix.last_hash(), prefix.bits()), prefix);
            assert_eq!(prefix.last_hash().wrapping_add(1) % (1 << 48), 0);
            assert_ne!(prefix.vbucket(), 0);
            assert_eq!(Prefix::nth(prefix.place(), prefix.bits()), prefix);
        }
        assert_eq!(Prefix::from_code(0), None);
    }

    #[test]
    fn halves_are_disjoint_in_order_and_all_of_it() {
        for code in 1..=u16::MAX {
            let whole = Prefix::from_code(code).expect("it is not 0");
            let Some((low, high)) = whole.halves() else {
                assert_eq!(whole.bits(), 15);
                continue;
            };
            assert_eq!(low.first_hash(), whole.first_hash());
            assert_eq!(low.last_hash() + 1, high.first_hash());
            assert_eq!(high.last_hash(), whole.last_hash());
            assert!(low < high && !low.overlaps(high) && whole.overlaps(high));
            assert_eq!(low.vbucket(), whole.vbucket());
            assert_eq!(low.nodes() + high.nodes(), whole.nodes());
            assert!(whole.parts(1).eq([low, high]) && whole.parts(0).eq([whole]));
            let quarters = low.halves().into_iter().chain(high.halves());
            let quarters: Vec<Prefix> = quarters.flat_map(|(low, high)| [low, high]).collect();
            assert!(quarters.is_empty() || whole.parts(2).eq(quarters));
        }
    }

    #[test]
    fn what_is_no_prefix_is_refused() {
        for text in [
            "", "/", "2c00", "2c00/", "2c00/5", "2C00/6", "2c00/16", "2c0/6", "02c00/6", "2c00/+6",
            "+c00/6", "2c00/6 ", "0000/0/0",
        ] {
            assert_eq!(Prefix::parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(Prefix::parse(b"2c00/6").map(|prefix| prefix.to_string()).unwrap(), "2c00/6");
        assert_eq!(Prefix::ALL.to_string(), "0000/0");
        assert_eq!(Prefix::new(0x2c01, 6), None);
    }

    #[test]
    fn equal_prefixes_cover_the_hashes() {
        assert!(Prefix::equal(0).eq([Prefix::ALL]));
        let quarters: Vec<String> = Prefix::equal(2).map(|prefix| prefix.to_string()).collect();
        assert_eq!(quarters, ["0000/2", "4000/2", "8000/2", "c000/2"]);
        assert_eq!(Prefix::equal(15).len(), 1 << 15);
    }
}
