//! Values that do not fit a page: chains of chunks, which a log's pages are filled up with.

use crate::copy::write_parts;
use crate::item::{CHUNK_HEADER_BYTES, Item};
use crate::items::Items;
use crate::kinds::Target;
use crate::memory::{Memory, Offset};
use crate::pages::Pages;
use crate::pool::PageId;
use crate::site::Site;
use crate::slice::Place;
use crate::types::Full;

/// Chunks of one item that follow each other, all in one page.
pub struct Run {
    pub chunks: Vec<Offset>,
    pub page: PageId,
    /// Nothing else lives in the page, so it goes with them where the item goes.
    pub is_alone: bool,
}

/// Of a value in one chunk, which then has a page for itself.
pub fn chunk_bytes_max(pages: &Pages) -> usize {
    pages.bytes.min(1 << 16) - CHUNK_HEADER_BYTES - 8
}

pub fn chunks(memory: &Memory, item: Item) -> impl Iterator<Item = Offset> + use<'_> {
    let first = item.chain().map(|(_, first)| first);
    std::iter::successors(first, |&at| Some(Item::at(memory, at).next_chunk()))
        .take_while(|&at| at != 0)
}

pub fn parts<'a>(site: &Site<'a>, chunks: impl Iterator<Item = Offset>) -> Vec<&'a [u8]> {
    let values = chunks.map(|at| site.item(at).chunk_value());
    // SAFETY: chunks are never written again once they are published, and the lock of this site keeps them.
    let slice =
        |(at, len): (*mut u8, usize)| unsafe { std::slice::from_raw_parts(at.cast_const(), len) };
    values.map(slice).collect()
}

pub fn runs(site: &Site, item: Item) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for chunk in chunks(site.memory(), item) {
        let page = site.pages().id_at(chunk);
        match runs.last_mut().filter(|run| run.page == page) {
            Some(run) => run.chunks.push(chunk),
            None => runs.push(Run { chunks: vec![chunk], page, is_alone: false }),
        }
    }
    for run in &mut runs {
        let page = site.page(run.page);
        let is_sealed = page.order() != 0;
        run.is_alone = is_sealed && page.live_records() as usize == run.chunks.len();
    }
    runs
}

impl Run {
    pub fn bytes(&self, site: &Site) -> usize {
        self.chunks.iter().map(|chunk| site.item(*chunk).chunk_value().1).sum()
    }
}

impl Items {
    /// Writes a value, or a part of one, as a chain of chunks that fill up the log's pages and lead to `next`;
    /// the first one.
    pub fn write_chunks(
        &mut self,
        site: &Site,
        hash: u64,
        parts: &[&[u8]],
        bytes: usize,
        target: Target,
        next: Offset,
    ) -> Result<Offset, Full> {
        /// A shorter piece at a page's end is not worth a header.
        const PIECE_BYTES_MIN: usize = 64;
        let piece_max = chunk_bytes_max(site.pages());
        let (mut first, mut last, mut done) = (0, None::<Item>, 0);
        while done < bytes {
            let room = self.logs.room(site, target.log).saturating_sub(CHUNK_HEADER_BYTES + 8);
            let room = if room < PIECE_BYTES_MIN { piece_max } else { room };
            let piece = (bytes - done).min(room).min(piece_max);
            let stride = site.memory().round_up(CHUNK_HEADER_BYTES + piece);
            let offset = match self.append(site, target, stride) {
                Ok(offset) => offset,
                Err(full) => {
                    self.kill_chunks(site, first);
                    return Err(full);
                }
            };
            let chunk = site.item(offset);
            chunk.write_chunk(hash, 0, piece);
            // SAFETY: the chunk has room for the piece, which lies inside the parts.
            unsafe { write_parts(parts, done, piece, chunk.chunk_value().0) }
            match last {
                None => first = offset,
                Some(last) => last.set_next_chunk(offset),
            }
            (last, done) = (Some(chunk), done + piece);
        }
        if let Some(last) = last {
            last.set_next_chunk(next);
        }
        Ok(first)
    }

    pub fn kill_chunks(&mut self, site: &Site, first: Offset) {
        let mut at = first;
        while at != 0 {
            let next = site.item(at).next_chunk();
            self.logs.kill(site, at);
            at = next;
        }
    }

    /// Moves the chunk at `offset` of the item at `place`, and those that follow it in the same page, to a log.
    pub fn relocate_chunks(
        &mut self,
        site: &Site,
        hash: u64,
        place: Place,
        offset: Offset,
        log: usize,
    ) -> Result<(), Full> {
        let item = site.item(place.offset);
        let (value_bytes, _) = item.chain().expect("the item has chunks");
        let all = || chunks(site.memory(), item);
        let before = all().take_while(|&chunk| chunk != offset).last();
        let page = site.pages().id_at(offset);
        let from = all().skip_while(|&chunk| chunk != offset);
        let run: Vec<Offset> =
            from.take_while(|&chunk| site.pages().id_at(chunk) == page).collect();
        let last = site.item(*run.last().expect("the chunk itself"));
        let parts = parts(site, run.iter().copied());
        let bytes = parts.iter().map(|part| part.len()).sum();
        let target = Target { log, deadline: item.deadline() };
        let first = self.write_chunks(site, hash, &parts, bytes, target, last.next_chunk())?;
        self.counts.copied(bytes);
        site.change(hash, || match before {
            None => item.set_chain(value_bytes, first),
            Some(before) => site.item(before).set_next_chunk(first),
        });
        run.into_iter().for_each(|chunk| self.logs.kill(site, chunk));
        Ok(())
    }
}
