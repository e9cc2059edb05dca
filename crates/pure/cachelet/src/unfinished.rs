//! A long value that arrives in pieces: written as they come, unseen until it is whole.
//!
//! ```text
//!   pages of its own, each full of one chunk               less than that, kept beside
//!   | chunk ------> | chunk ------> | chunk ------ ... --> | tail |
//! ```
//!
//! Its pages are in no log, so cleaning does not come to them; a flush drops them. With the last piece they join a log, and only
//! the tail is written then. So a step is short, however long the value.

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Key, Seconds};

use crate::access::Access;
use crate::chunks::write_parts;
use crate::item::Item;
use crate::locked::Locked;
use crate::memory::Offset;
use crate::policy::temper_of_arrived;
use crate::pool::PageId;
use crate::records::{New, fields_of};
use crate::types::{Draft, Full};

/// What has come of a value. A cachelet has one at most.
pub struct Unfinished {
    hash: u64,
    bytes: usize,
    /// Of these, so many have come.
    done: usize,
    /// Each is full of one chunk, but for the last one, maybe.
    pages: Vec<PageId>,
    tail: Vec<u8>,
}

impl Locked<'_> {
    /// A value of so many bytes is to come; what has come of another is dropped.
    pub(crate) fn begin_value(&mut self, hash: u64, bytes: usize) {
        self.drop_value();
        let (pages, tail) = (Vec::new(), Vec::new());
        self.inner.unfinished = Some(Unfinished { hash, bytes, done: 0, pages, tail });
    }

    /// A piece of a value of `bytes` that has been begun, from byte `start` on. Called again after an error it goes on where it was. False if
    /// that value has been dropped meanwhile. O(bytes of the piece).
    pub(crate) fn add_piece(
        &mut self,
        hash: u64,
        bytes: usize,
        start: usize,
        piece: &[u8],
    ) -> Result<bool, Full> {
        let Some(mut value) = self.inner.unfinished.take() else { return Ok(false) };
        let known = value.done.checked_sub(start).and_then(|done| piece.get(done..));
        let Some(rest) = known.filter(|_| (value.hash, value.bytes) == (hash, bytes)) else {
            self.inner.unfinished = Some(value);
            return Ok(false);
        };
        let written = self.write_piece(&mut value, rest);
        self.inner.unfinished = Some(value);
        written.map(|()| true)
    }

    fn write_piece(&mut self, value: &mut Unfinished, mut rest: &[u8]) -> Result<(), Full> {
        let chunk_bytes = self.store.chunk_bytes_max();
        while !rest.is_empty() {
            let within = value.done % chunk_bytes;
            let is_tail = value.bytes - (value.done - within) < chunk_bytes;
            let (now, later) = match is_tail {
                true => (rest, &[][..]),
                false => rest.split_at(rest.len().min(chunk_bytes - within)),
            };
            if is_tail {
                value.tail.extend_from_slice(now);
            } else {
                if within == 0 {
                    let page = self.take_page().ok_or(Full::OutOfMemory)?;
                    self.chunk_in(page).write_chunk(value.hash, 0, chunk_bytes);
                    if let Some(&last) = value.pages.last() {
                        self.chunk_in(last).set_next_chunk(self.offset_of(page));
                    }
                    value.pages.push(page);
                }
                let page = *value.pages.last().expect("one has just been taken");
                let (at, _) = self.chunk_in(page).chunk_value();
                // SAFETY: the chunk has `chunk_bytes`, of which `within` are written; nobody else knows its page.
                unsafe { write_parts(&[now], 0, now.len(), at.add(within)) }
            }
            value.done += now.len();
            rest = later;
        }
        Ok(())
    }

    fn offset_of(&self, page: PageId) -> Offset {
        self.store.memory.offset((page as usize) << self.store.page_shift)
    }

    /// The one chunk of a page.
    fn chunk_in(&self, page: PageId) -> Item {
        Item::at(&self.store.memory, self.offset_of(page))
    }

    /// Stores the value, all of which has come, as an item from another server: see [`Locked::take_in`]. O(its pages), and its tail is
    /// written, less than a page. After an error it may be tried again. The draft has no parts.
    pub(crate) fn finish_value(
        &mut self,
        key: &Key,
        draft: &Draft,
        cas: u64,
        access: Access,
        is_chosen: bool,
    ) -> Result<(), Full> {
        let old = self.place_of(key);
        if old.is_some() && !is_planted(Fault::ImportOverNewer) {
            self.drop_value();
            return Ok(());
        }
        let Some(value) = self.inner.unfinished.take() else { return Ok(()) };
        assert_eq!((value.hash, value.done), (key.hash(), value.bytes), "all of it has come");
        let cas = self.classify(cas);
        let (fields, value_bytes) = (fields_of(draft, cas), value.bytes);
        let new = New { draft, cas, fields, value_bytes };
        let log = self.log_for(temper_of_arrived(access.frequency(), is_chosen), draft.deadline);
        match self.write_ends(key, &new, access, log, &value) {
            Ok(offset) => {
                self.join(log, value.pages, draft.deadline);
                self.publish(key.hash(), old, offset)
            }
            Err(full) => {
                self.inner.unfinished = Some(value);
                Err(full)
            }
        }
    }

    /// Writes the tail, and the item's record; nothing of them is left after an error.
    fn write_ends(
        &mut self,
        key: &Key,
        new: &New,
        access: Access,
        log: usize,
        value: &Unfinished,
    ) -> Result<Offset, Full> {
        let (hash, deadline) = (key.hash(), new.draft.deadline);
        let tail = self.write_chunks(hash, &[&value.tail], value.tail.len(), deadline, log, 0)?;
        let first = value.pages.first().map_or(tail, |page| self.offset_of(*page));
        let offset = self.write_record(key, new, access, log, Some(first));
        if offset.is_err() {
            self.kill_chunks(tail);
        } else if let Some(&last) = value.pages.last() {
            self.chunk_in(last).set_next_chunk(tail);
        }
        offset
    }

    /// Pages that are full of one chunk each join a log, as if they had been filled there.
    fn join(&mut self, log: usize, pages: Vec<PageId>, deadline: Seconds) {
        for &page in &pages {
            let bytes = self.chunk_in(page).stride(&self.store.memory) as u32;
            self.join_log(log, page, bytes, deadline);
        }
        self.publish_oldest();
    }

    /// Gives up what has come of a value that is not whole.
    pub(crate) fn drop_value(&mut self) {
        if let Some(value) = self.inner.unfinished.take() {
            // They were never sealed.
            self.drop_pages(value.pages.into_iter().map(|page| (0, page)).collect());
        }
    }
}
