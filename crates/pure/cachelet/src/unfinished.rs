//! A long value that arrives in pieces: written as they come, unseen until it is whole.
//!
//! ```text
//!   pages of its own, each full of one chunk               less than that, kept beside
//!   | chunk ------> | chunk ------> | chunk ------ ... --> | tail |
//! ```
//!
//! Its pages are in no log, so cleaning does not come to them; a flush drops them. With the last piece they join a log, and only
//! the tail is written then. So a step is short, however long the value.

use std::collections::VecDeque;

use mbal_model::Key;

use crate::chunks::chunk_bytes_max;
use crate::copy::write_parts;
use crate::item::Item;
use crate::items::Items;
use crate::memory::Offset;
use crate::pool::PageId;
use crate::records::{Arrival, New};
use crate::site::Site;
use crate::types::Full;

/// What has come of a value. A cachelet has one at most.
#[derive(Default)]
pub struct Unfinished(Option<Value>);

struct Value {
    hash: u64,
    bytes: usize,
    /// Of these, so many have come.
    done: usize,
    /// Each is full of one chunk, but for the last one, maybe.
    pages: Vec<PageId>,
    tail: Vec<u8>,
}

impl Unfinished {
    /// A value of so many bytes is to come, after what has come of another was dropped.
    pub fn begin(&mut self, hash: u64, bytes: usize) {
        self.0 = Some(Value { hash, bytes, done: 0, pages: Vec::new(), tail: Vec::new() });
    }

    /// A piece of a value of `bytes` that has been begun, from byte `start` on. Called again after an error it goes on where it was. False if
    /// that value has been dropped meanwhile. O(bytes of the piece).
    pub fn add_piece(
        &mut self,
        site: &Site,
        (hash, bytes): (u64, usize),
        start: usize,
        piece: &[u8],
    ) -> Result<bool, Full> {
        let Some(value) = &mut self.0 else { return Ok(false) };
        let known = value.done.checked_sub(start).and_then(|done| piece.get(done..));
        match known.filter(|_| (value.hash, value.bytes) == (hash, bytes)) {
            Some(rest) => value.write(site, rest).map(|()| true),
            None => Ok(false),
        }
    }

    /// Writes the record of the value, all of which has come; `None` if there is none. O(its pages), and its tail is
    /// written, less than a page. After an error it may be tried again. The draft has no parts.
    pub fn finish(
        &mut self,
        site: &Site,
        items: &mut Items,
        key: &Key,
        arrival: &Arrival,
    ) -> Result<Option<Offset>, Full> {
        let Some(value) = &self.0 else { return Ok(None) };
        assert_eq!((value.hash, value.done), (key.hash(), value.bytes), "all of it has come");
        let new =
            New::of(&arrival.draft, items.counter.classify(site.front, arrival.cas), value.bytes);
        let offset = value.write_ends(site, items, key, &new, arrival)?;
        let pages = self.0.take().map(|value| value.pages).unwrap_or_default();
        let pages =
            pages.into_iter().map(|page| (page, chunk_in(site, page).stride(site.memory()) as u32));
        items.logs.join(site, items.counter.last(), arrival.target(site), pages);
        Ok(Some(offset))
    }

    /// Gives up what has come of a value that is not whole; its pages.
    pub fn drop_all(&mut self) -> VecDeque<(u64, PageId)> {
        // They were never sealed.
        let pages = self.0.take().map(|value| value.pages).unwrap_or_default();
        pages.into_iter().map(|page| (0, page)).collect()
    }
}

impl Value {
    fn write(&mut self, site: &Site, mut rest: &[u8]) -> Result<(), Full> {
        let chunk_bytes = chunk_bytes_max(site.pages());
        while !rest.is_empty() {
            let within = self.done % chunk_bytes;
            let is_tail = self.bytes - (self.done - within) < chunk_bytes;
            let (now, later) = match is_tail {
                true => (rest, &[][..]),
                false => rest.split_at(rest.len().min(chunk_bytes - within)),
            };
            if is_tail {
                self.tail.extend_from_slice(now);
            } else {
                if within == 0 {
                    let page = site.take_page().ok_or(Full::OutOfMemory)?;
                    chunk_in(site, page).write_chunk(self.hash, 0, chunk_bytes);
                    if let Some(&last) = self.pages.last() {
                        chunk_in(site, last).set_next_chunk(offset_of(site, page));
                    }
                    self.pages.push(page);
                }
                let page = *self.pages.last().expect("one has just been taken");
                let (at, _) = chunk_in(site, page).chunk_value();
                // SAFETY: the chunk has `chunk_bytes`, of which `within` are written; nobody else knows its page.
                unsafe { write_parts(&[now], 0, now.len(), at.add(within)) }
            }
            self.done += now.len();
            rest = later;
        }
        Ok(())
    }

    /// Writes the tail, and the item's record; nothing of them is left after an error.
    fn write_ends(
        &self,
        site: &Site,
        items: &mut Items,
        key: &Key,
        new: &New,
        arrival: &Arrival,
    ) -> Result<Offset, Full> {
        let target = arrival.target(site);
        let tail =
            items.write_chunks(site, self.hash, &[&self.tail], self.tail.len(), target, 0)?;
        let first = self.pages.first().map_or(tail, |page| offset_of(site, *page));
        let offset = items.write_record(site, key, new, arrival.access, target, Some(first));
        if offset.is_err() {
            items.kill_chunks(site, tail);
        } else if let Some(&last) = self.pages.last() {
            chunk_in(site, last).set_next_chunk(tail);
        }
        offset
    }
}

fn offset_of(site: &Site, page: PageId) -> Offset {
    site.memory().offset(site.pages().start(page))
}

/// The one chunk of a page.
fn chunk_in(site: &Site, page: PageId) -> Item {
    site.item(offset_of(site, page))
}
