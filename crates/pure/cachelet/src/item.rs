//! An item in a page.
//!
//! ```text
//!   0             4             8     9     10       12
//!   | access      | sequence    | key | bits| value  | [flags] [deadline] [foreign cas] [chain] key value
//!   | s, f, r, era| low 32 bits | len |     | len    |   4        4           8           8
//! ```
//!
//! - `access`: second of the last read or write (24 bits, wraps after 194 days), frequency (2 bits),
//!   read at all (1), era of the last read or write (5, see `samples`). Readers store it without a lock; such a store may get lost.
//! - `sequence`: the cachelet's counter at the write, less the page's base; with the generation it is the cas.
//! - A value that does not fit a page is a chain of chunks; the item then has the value's
//!   whole length and the first chunk's offset in `chain`, and no value of its own.
//!
//! A chunk has the same first 12 bytes with key length 0: its item's hash in place of access and sequence,
//! then the next chunk's offset and its part of the value.

use mbal_model::{Key, Seconds};

use crate::access::Access;
use crate::memory::{Memory, Offset};
use crate::shim::{AtomicU32, Ordering::*};

pub const HEADER_BYTES: usize = 12;
/// What an item takes beside its key and its value: its header, and its part of the index, where a bucket of 64 bytes has ten
/// slots and is two thirds full.
pub const ITEM_OVERHEAD_BYTES: usize = HEADER_BYTES + 10;
pub const CHUNK_HEADER_BYTES: usize = 16;

pub mod bits {
    pub const FLAGS: u8 = 1;
    pub const DEADLINE: u8 = 2;
    pub const FOREIGN_CAS: u8 = 4;
    pub const CHAINED: u8 = 8;
    pub const STALE: u8 = 16;
    pub const WIN: u8 = 32;
    /// The key was sent in base64.
    pub const BINARY_KEY: u8 = 64;
    /// No bucket points here any more.
    pub const DEAD: u8 = 128;
    /// What decides the item's size, beside the lengths.
    pub const LAYOUT: u8 = FLAGS | DEADLINE | FOREIGN_CAS | CHAINED;

    pub const fn when(condition: bool, bit: u8) -> u8 {
        if condition { bit } else { 0 }
    }
}

/// A record in a page that the caller's epoch or lock protects.
#[derive(Clone, Copy)]
pub struct Item(*mut u8);

/// The parts of an item's header that decide its size: its third word, without the marks among its bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout(u32);

const LAYOUT_MASK: u32 = 0xffff_00ff | (bits::LAYOUT as u32) << 8;

/// Where the key begins, by the bits of the layout.
const KEY_AT: [u8; 1 + bits::LAYOUT as usize] = {
    let mut table = [HEADER_BYTES as u8; 1 + bits::LAYOUT as usize];
    let mut at = 0;
    while at < table.len() {
        let bits = at as u8;
        table[at] += bits::when(bits & bits::FLAGS != 0, 4)
            + bits::when(bits & bits::DEADLINE != 0, 4)
            + bits::when(bits & bits::FOREIGN_CAS != 0, 8)
            + bits::when(bits & bits::CHAINED != 0, 8);
        at += 1;
    }
    table
};

impl Layout {
    #[inline]
    pub fn new(bits: u8, key_bytes: usize, value_bytes: usize) -> Layout {
        let value_bytes = u16::try_from(value_bytes).expect("longer values are chained");
        let key_bytes = u32::from(key_bytes as u8);
        Layout(key_bytes | u32::from(bits & bits::LAYOUT) << 8 | u32::from(value_bytes) << 16)
    }

    #[inline(always)]
    pub fn bits(self) -> u8 {
        (self.0 >> 8) as u8
    }

    pub fn with_bits(self, bits: u8) -> Layout {
        Layout(self.0 & !0xff00 | u32::from(bits & bits::LAYOUT) << 8)
    }

    #[inline(always)]
    pub fn key_bytes(self) -> usize {
        usize::from(self.0 as u8)
    }

    /// Bytes in the item itself; 0 when chained.
    #[inline(always)]
    pub fn value_bytes(self) -> usize {
        (self.0 >> 16) as usize
    }

    #[inline(always)]
    fn key_at(bits: u8) -> usize {
        usize::from(KEY_AT[usize::from(bits & bits::LAYOUT)])
    }

    /// Unrounded.
    #[inline(always)]
    pub fn bytes(&self) -> usize {
        Layout::key_at(self.bits()) + self.key_bytes() + self.value_bytes()
    }
}

impl Item {
    #[inline(always)]
    pub fn at(memory: &Memory, offset: Offset) -> Item {
        Item(memory.at(offset))
    }

    /// Where in the memory the record lies, in bytes.
    #[inline(always)]
    pub fn position_in(&self, memory: &Memory) -> usize {
        self.0 as usize - memory.byte(0) as usize
    }

    #[inline(always)]
    fn word(&self, index: usize) -> &AtomicU32 {
        // SAFETY: records are 4-aligned and have at least the words that their bits announce; epochs
        // keep the memory from being reused while anybody holds an Item.
        unsafe { &*(self.0.add(4 * index) as *const AtomicU32) }
    }

    #[inline(always)]
    fn layout_word(&self) -> u32 {
        self.word(2).load(Relaxed)
    }

    #[inline(always)]
    pub fn bits(&self) -> u8 {
        (self.layout_word() >> 8) as u8
    }

    pub fn set_bits(&self, bits: u8) {
        let rest = self.layout_word() & !0xff00;
        self.word(2).store(rest | u32::from(bits) << 8, Relaxed);
    }

    #[inline(always)]
    pub fn layout(&self) -> Layout {
        Layout(self.layout_word() & LAYOUT_MASK)
    }

    #[inline(always)]
    pub fn is_chunk(&self) -> bool {
        self.layout_word() as u8 == 0
    }

    /// Rounded up to granules: where the next record of the page begins.
    #[inline]
    pub fn stride(&self, memory: &Memory) -> usize {
        let layout = self.layout();
        let bytes = match layout.key_bytes() {
            0 => CHUNK_HEADER_BYTES + layout.value_bytes(),
            _ => layout.bytes(),
        };
        memory.round_up(bytes)
    }

    #[inline(always)]
    pub fn key(&self) -> &[u8] {
        self.key_by(self.layout())
    }

    /// The key, by the record's layout.
    #[inline(always)]
    pub fn key_by(&self, layout: Layout) -> &[u8] {
        // SAFETY: a published key is never written again, and epochs keep its memory from reuse.
        unsafe {
            let at = self.0.add(Layout::key_at(layout.bits()));
            std::slice::from_raw_parts(at, layout.key_bytes())
        }
    }

    /// Of its key.
    pub fn hash(&self) -> u64 {
        Key::new(self.key()).expect("a stored key has a valid length").hash()
    }

    /// Whether this is its key.
    #[inline(always)]
    pub fn has_key(&self, key: &[u8]) -> bool {
        same(self.key(), key)
    }

    /// The value inside the item: where it begins and its length.
    #[inline(always)]
    pub fn value(&self) -> (*mut u8, usize) {
        self.value_by(self.layout())
    }

    /// The value inside the item, by the record's layout.
    #[inline(always)]
    pub fn value_by(&self, layout: Layout) -> (*mut u8, usize) {
        let at = Layout::key_at(layout.bits()) + layout.key_bytes();
        // SAFETY: inside the record.
        (unsafe { self.0.add(at) }, layout.value_bytes())
    }

    #[inline(always)]
    fn field(&self, bits: u8, field: u8) -> Option<&AtomicU32> {
        // Fields lie in the order of their bits, so a field follows those of the lower bits.
        (bits & field != 0).then(|| self.word(Layout::key_at(bits & (field - 1)) / 4))
    }

    #[inline(always)]
    pub fn flags(&self) -> u32 {
        self.flags_by(self.layout())
    }

    #[inline(always)]
    pub fn flags_by(&self, layout: Layout) -> u32 {
        self.field(layout.bits(), bits::FLAGS).map_or(0, |word| word.load(Relaxed))
    }

    pub fn set_flags(&self, flags: u32) {
        self.field(self.bits(), bits::FLAGS).expect("laid out with flags").store(flags, Relaxed);
    }

    /// 0 is never.
    #[inline(always)]
    pub fn deadline(&self) -> Seconds {
        self.deadline_by(self.layout())
    }

    #[inline(always)]
    fn deadline_by(&self, layout: Layout) -> Seconds {
        self.field(layout.bits(), bits::DEADLINE).map_or(0, |word| word.load(Relaxed))
    }

    pub fn set_deadline(&self, deadline: Seconds) {
        let word = self.field(self.bits(), bits::DEADLINE).expect("laid out with a deadline");
        word.store(deadline, Relaxed);
    }

    #[inline(always)]
    pub fn expired(&self, now: Seconds) -> bool {
        self.expired_by(self.layout(), now)
    }

    #[inline(always)]
    pub fn expired_by(&self, layout: Layout, now: Seconds) -> bool {
        let deadline = self.deadline_by(layout);
        deadline != 0 && deadline <= now
    }

    #[inline(always)]
    fn pair(&self, bits: u8, field: u8) -> Option<(&AtomicU32, &AtomicU32)> {
        let first = Layout::key_at(bits & (field - 1)) / 4;
        (bits & field != 0).then(|| (self.word(first), self.word(first + 1)))
    }

    pub fn foreign_cas(&self) -> Option<u64> {
        let (low, high) = self.pair(self.bits(), bits::FOREIGN_CAS)?;
        Some(u64::from(low.load(Relaxed)) | u64::from(high.load(Relaxed)) << 32)
    }

    pub fn set_foreign_cas(&self, cas: u64) {
        let (low, high) =
            self.pair(self.bits(), bits::FOREIGN_CAS).expect("laid out with a foreign cas");
        low.store(cas as u32, Relaxed);
        high.store((cas >> 32) as u32, Relaxed);
    }

    /// Whole length and first chunk of a chained value.
    pub fn chain(&self) -> Option<(u32, Offset)> {
        self.chain_by(self.layout())
    }

    #[inline(always)]
    pub fn chain_by(&self, layout: Layout) -> Option<(u32, Offset)> {
        let (bytes, first) = self.pair(layout.bits(), bits::CHAINED)?;
        Some((bytes.load(Relaxed), first.load(Acquire)))
    }

    pub fn set_chain(&self, bytes: u32, first: Offset) {
        let (total, head) = self.pair(self.bits(), bits::CHAINED).expect("laid out as chained");
        total.store(bytes, Relaxed);
        head.store(first, Release);
    }

    #[inline(always)]
    pub fn value_bytes(&self) -> u32 {
        self.value_bytes_by(self.layout())
    }

    #[inline(always)]
    pub fn value_bytes_by(&self, layout: Layout) -> u32 {
        self.chain_by(layout).map_or(layout.value_bytes() as u32, |(bytes, _)| bytes)
    }

    #[inline(always)]
    pub fn sequence(&self) -> u32 {
        self.word(1).load(Relaxed)
    }

    pub fn set_sequence(&self, sequence: u32) {
        self.word(1).store(sequence, Relaxed);
    }

    #[inline(always)]
    pub fn access(&self) -> u32 {
        self.word(0).load(Relaxed)
    }

    pub fn set_access(&self, access: u32) {
        self.word(0).store(access, Relaxed);
    }

    /// A read at `now`. Stores only what changes, so that a hot item's line stays shared.
    #[inline(always)]
    pub fn touch_access(&self, now: Seconds, era: u32) {
        let before = self.access();
        let after = Access(before).read_at(now, era).0;
        if after != before {
            self.set_access(after);
        }
    }

    /// Writes the header of a record that nobody can see yet.
    pub fn write_header(&self, access: u32, sequence: u32, layout: Layout, marks: u8) {
        self.set_access(access);
        self.set_sequence(sequence);
        self.word(2).store(layout.0 | u32::from(marks) << 8, Relaxed);
    }

    /// Writes the key of a record that nobody can see yet.
    pub fn write_key(&self, key: &[u8]) {
        let at = Layout::key_at(self.bits());
        // SAFETY: inside the record, which is unpublished.
        unsafe { std::ptr::copy_nonoverlapping(key.as_ptr(), self.0.add(at), key.len()) }
    }

    /// Makes this unpublished record a chunk of the item with `hash`.
    pub fn write_chunk(&self, hash: u64, next: Offset, bytes: usize) {
        let layout = Layout::new(0, 0, bytes);
        self.write_header(hash as u32, (hash >> 32) as u32, layout, 0);
        self.set_next_chunk(next);
    }

    pub fn chunk_hash(&self) -> u64 {
        u64::from(self.access()) | u64::from(self.sequence()) << 32
    }

    pub fn next_chunk(&self) -> Offset {
        self.word(3).load(Acquire)
    }

    pub fn set_next_chunk(&self, next: Offset) {
        self.word(3).store(next, Release);
    }

    /// A chunk's part of the value: where it begins and its length.
    pub fn chunk_value(&self) -> (*mut u8, usize) {
        let bytes = self.layout().value_bytes();
        // SAFETY: inside the record.
        (unsafe { self.0.add(CHUNK_HEADER_BYTES) }, bytes)
    }

    pub fn kill(&self) {
        self.set_bits(self.bits() | bits::DEAD);
    }

    pub fn is_dead(&self) -> bool {
        self.bits() & bits::DEAD != 0
    }
}

/// Equality of keys, inline: they are too short for a call to be worth it.
#[inline(always)]
fn same(a: &[u8], b: &[u8]) -> bool {
    let len = b.len();
    if a.len() != len {
        return false;
    }
    let word =
        |text: &[u8], at: usize| u64::from_le_bytes(*text[at..].first_chunk().expect("8 bytes"));
    let half =
        |text: &[u8], at: usize| u32::from_le_bytes(*text[at..].first_chunk().expect("4 bytes"));
    if len >= 8 {
        let mut at = 0;
        while at + 8 < len {
            if word(a, at) != word(b, at) {
                return false;
            }
            at += 8;
        }
        return word(a, len - 8) == word(b, len - 8);
    }
    match len {
        4.. => half(a, 0) == half(b, 0) && half(a, len - 4) == half(b, len - 4),
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_the_same_if_all_their_bytes_are() {
        let text: Vec<u8> = (0..40).collect();
        for len in 0..40 {
            let copy = text[..len].to_vec();
            assert!(same(&text[..len], &copy));
            assert!(!same(&text[..len], &text[..len + 1]));
            for at in 0..len {
                let mut other = text[..len].to_vec();
                other[at] ^= 1;
                assert!(!same(&text[..len], &other), "byte {at} of {len}");
            }
        }
    }
}
