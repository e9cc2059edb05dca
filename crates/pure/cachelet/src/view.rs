//! A stored item, as a reader may look at it while a writer changes it.

use mbal_model::Seconds;

use crate::access::Access;
use crate::cas::cas_of;
use crate::copy::copy_shared;
use crate::front::Front;
use crate::item::{Item, Layout, bits};
use crate::memory::{Memory, Offset};
use crate::pages::Pages;
use crate::types::Meta;

/// What is shown of an item: to a reader, before it is known whether a writer came in between.
pub struct View<'a> {
    pages: &'a Pages,
    front: &'a Front,
    item: Item,
    /// Loaded once: it never changes.
    layout: Layout,
    now: Seconds,
}

impl<'a> View<'a> {
    #[inline(always)]
    pub(crate) fn new(pages: &'a Pages, front: &'a Front, item: Item, now: Seconds) -> View<'a> {
        View { pages, front, item, layout: item.layout(), now }
    }

    #[inline(always)]
    pub(crate) fn expired(&self) -> bool {
        self.item.expired_by(self.layout, self.now)
    }

    pub fn meta(&self) -> Meta {
        let access = Access(self.item.access());
        let marks = self.item.bits();
        Meta {
            flags: self.item.flags(),
            deadline: self.item.deadline(),
            cas: self.cas(),
            last_access: access.last(self.now),
            fetched: access.fetched(),
            stale: marks & bits::STALE != 0,
            win: marks & bits::WIN != 0,
            binary_key: marks & bits::BINARY_KEY != 0,
            value_bytes: self.value_bytes(),
        }
    }

    #[inline(always)]
    pub fn flags(&self) -> u32 {
        self.item.flags_by(self.layout)
    }

    #[inline(always)]
    pub fn value_bytes(&self) -> u32 {
        self.item.value_bytes_by(self.layout)
    }

    pub fn key(&self) -> &[u8] {
        self.item.key_by(self.layout)
    }

    /// Reads the page's base, another cache line.
    pub fn cas(&self) -> u64 {
        self.item.foreign_cas().unwrap_or_else(|| {
            let counter = self.pages.of(self.item).base() + u64::from(self.item.sequence());
            cas_of(self.front, counter)
        })
    }

    /// Appends `bytes` of the value, from `start` on; under the writer lock.
    pub(crate) fn copy_piece(&self, start: usize, bytes: usize, out: &mut Vec<u8>) {
        let pieces = match self.item.chain_by(self.layout) {
            None => vec![self.item.value_by(self.layout)],
            Some((_, first)) => chunks(&self.pages.memory, first),
        };
        let (mut skip, mut left) = (start, bytes);
        for (at, length) in pieces {
            let passed = skip.min(length);
            let taken = (length - passed).min(left);
            // SAFETY: protected by the caller's lock, and no more than the piece has.
            unsafe { copy_shared(at.add(passed), taken, out) }
            (skip, left) = (skip - passed, left - taken);
        }
    }

    /// Appends the value to `out`.
    #[inline(always)]
    pub fn copy_value(&self, out: &mut Vec<u8>) {
        if let Some((bytes, first)) = self.item.chain_by(self.layout) {
            return copy_chain(&self.pages.memory, bytes as usize, first, out);
        }
        let (at, len) = self.item.value_by(self.layout);
        // SAFETY: the item is protected by the caller's epoch or lock.
        unsafe { copy_shared(at, len, out) }
    }
}

fn chunks(memory: &Memory, first: Offset) -> Vec<(*mut u8, usize)> {
    let next = |at: Offset| (at != 0).then_some(at);
    let chunks = std::iter::successors(next(first), |at| next(Item::at(memory, *at).next_chunk()));
    chunks.map(|at| Item::at(memory, at).chunk_value()).collect()
}

#[cold]
fn copy_chain(memory: &Memory, bytes: usize, first: Offset, out: &mut Vec<u8>) {
    out.reserve(bytes);
    let end = out.len() + bytes;
    let mut next = first;
    // A chain whose item was overwritten meanwhile is never longer than it said.
    while next != 0 && out.len() < end {
        let chunk = Item::at(memory, next);
        let (at, len) = chunk.chunk_value();
        // SAFETY: as above; chunks of a replaced value keep their bytes and links until their epoch.
        unsafe { copy_shared(at, len.min(end - out.len()), out) }
        next = chunk.next_chunk();
    }
}
