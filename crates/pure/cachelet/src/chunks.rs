//! Values that do not fit a page: chains of chunks, which a log's pages are filled up with.

use mbal_model::Seconds;

use crate::index::hash_of;
use crate::item::{CHUNK_HEADER_BYTES, Item};
use crate::locked::Locked;
use crate::memory::Offset;
use crate::pool::PageId;
use crate::records::Rewrite;
use crate::shim::Ordering::*;
use crate::slice::Place;
use crate::store::Store;
use crate::types::Full;

/// Chunks of one item that follow each other, all in one page.
struct Run {
    chunks: Vec<Offset>,
    page: PageId,
    /// Nothing else lives in the page, so it goes with them where the item goes.
    is_alone: bool,
}

/// An item that has been taken in from another cachelet.
pub(crate) struct Adopted {
    pub offset: Offset,
    /// Chunks of the old item that did not go along.
    pub left: Vec<Offset>,
}

impl Store {
    /// Of a value in one chunk, which then has a page for itself.
    pub(crate) fn chunk_bytes_max(&self) -> usize {
        self.page_bytes.min(1 << 16) - CHUNK_HEADER_BYTES - 8
    }
}

impl<'a> Locked<'a> {
    /// Writes a value, or a part of one, as a chain of chunks that fill up the log's pages and lead to `next`;
    /// the first one.
    pub(crate) fn write_chunks(
        &mut self,
        hash: u64,
        parts: &[&[u8]],
        bytes: usize,
        deadline: Seconds,
        log: usize,
        next: Offset,
    ) -> Result<Offset, Full> {
        /// A shorter piece at a page's end is not worth a header.
        const PIECE_BYTES_MIN: usize = 64;
        let piece_max = self.store.chunk_bytes_max();
        let (mut first, mut last, mut done) = (0, None::<Item>, 0);
        while done < bytes {
            let room = self.room(log).saturating_sub(CHUNK_HEADER_BYTES + 8);
            let room = if room < PIECE_BYTES_MIN { piece_max } else { room };
            let piece = (bytes - done).min(room).min(piece_max);
            let stride = self.store.memory.round_up(CHUNK_HEADER_BYTES + piece);
            let offset = match self.append(log, stride, deadline) {
                Ok(offset) => offset,
                Err(full) => {
                    self.kill_chunks(first);
                    return Err(full);
                }
            };
            let chunk = self.item(offset);
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

    pub(crate) fn kill_chunks(&mut self, first: Offset) {
        let mut at = first;
        while at != 0 {
            let next = self.item(at).next_chunk();
            self.kill(at);
            at = next;
        }
    }

    pub(crate) fn chunks(&self, item: Item) -> impl Iterator<Item = Offset> + use<'a> {
        let memory = &self.store.memory;
        let first = item.chain().map(|(_, first)| first);
        std::iter::successors(first, |&at| Some(Item::at(memory, at).next_chunk()))
            .take_while(|&at| at != 0)
    }

    fn parts(&self, chunks: impl Iterator<Item = Offset>) -> Vec<&'a [u8]> {
        let values = chunks.map(|at| self.item(at).chunk_value());
        // SAFETY: chunks are never written again once they are published, and this lock keeps them.
        let slice = |(at, len): (*mut u8, usize)| unsafe {
            std::slice::from_raw_parts(at.cast_const(), len)
        };
        values.map(slice).collect()
    }

    /// Moves the chunk at `offset` of the item at `place`, and those that follow it in the same page, to a log.
    pub(crate) fn relocate_chunks(
        &mut self,
        hash: u64,
        place: Place,
        offset: Offset,
        log: usize,
    ) -> Result<(), Full> {
        let item = self.item(place.offset);
        let (value_bytes, _) = item.chain().expect("the item has chunks");
        let before = self.chunks(item).take_while(|&chunk| chunk != offset).last();
        let page = self.page_of(offset);
        let from = self.chunks(item).skip_while(|&chunk| chunk != offset);
        let run: Vec<Offset> = from.take_while(|&chunk| self.page_of(chunk) == page).collect();
        let last = self.item(*run.last().expect("the chunk itself"));
        let parts = self.parts(run.iter().copied());
        let bytes = parts.iter().map(|part| part.len()).sum();
        let first =
            self.write_chunks(hash, &parts, bytes, item.deadline(), log, last.next_chunk())?;
        self.inner.stats.copied_bytes += bytes as u64;
        self.change(hash, || match before {
            None => item.set_chain(value_bytes, first),
            Some(before) => self.item(before).set_next_chunk(first),
        });
        run.into_iter().for_each(|chunk| self.kill(chunk));
        Ok(())
    }

    fn runs(&self, item: Item) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for chunk in self.chunks(item) {
            let page = self.page_of(chunk);
            match runs.last_mut().filter(|run| run.page == page) {
                Some(run) => run.chunks.push(chunk),
                None => runs.push(Run { chunks: vec![chunk], page, is_alone: false }),
            }
        }
        for run in &mut runs {
            let page = self.page(run.page);
            let is_sealed = page.sealed.load(Relaxed) != 0;
            run.is_alone =
                is_sealed && page.live_records.load(Relaxed) as usize == run.chunks.len();
        }
        runs
    }

    fn run_bytes(&self, run: &Run) -> usize {
        run.chunks.iter().map(|chunk| self.item(*chunk).chunk_value().1).sum()
    }

    /// Bytes that [`Locked::adopt`] has to copy of an item.
    pub(crate) fn adoption_bytes(&self, item: Item) -> usize {
        let shared = self.runs(item).into_iter().filter(|run| !run.is_alone);
        item.stride(&self.store.memory) + shared.map(|run| self.run_bytes(&run)).sum::<usize>()
    }

    /// Takes in an item of another cachelet: a copy of its record, which the index is still to lead to. Of its chunks, those go along
    /// that have pages for themselves, with their pages; the others are copied. Readers that are in the old item still find all of
    /// its value. O(its chunks), and copies of the value's ends: mostly two pages.
    pub(crate) fn adopt(
        &mut self,
        parent: &mut Locked<'_>,
        old: Offset,
        log: usize,
    ) -> Result<Adopted, Full> {
        let item = self.item(old);
        let runs = self.runs(item);
        let mut copies = Vec::with_capacity(runs.len());
        let rewrite = Rewrite { log, ..self.as_it_is(item, old) };
        let copied = self.copy_runs(old, &runs, log, &mut copies);
        let offset = match copied.and_then(|()| self.copy_item(item, rewrite)) {
            Ok(offset) => offset,
            Err(full) => {
                copies.into_iter().for_each(|first| self.kill_chunks(first));
                return Err(full);
            }
        };
        let (mut next, mut left) = (0, Vec::new());
        for (run, first) in runs.into_iter().zip(copies).rev() {
            let new = if run.is_alone { run.chunks[0] } else { first };
            let mut last = self.item(new);
            if run.is_alone {
                last = self.item(*run.chunks.last().expect("a run has chunks"));
                parent.hand_over_page(run.page, self);
            } else {
                while last.next_chunk() != 0 {
                    last = self.item(last.next_chunk());
                }
                left.extend(run.chunks);
            }
            // What followed before has the same bytes.
            last.set_next_chunk(next);
            next = new;
        }
        if let Some((bytes, _)) = item.chain() {
            self.item(offset).set_chain(bytes, next);
            self.inner.stats.bytes += u64::from(bytes);
        }
        self.inner.stats.bytes += self.item(offset).stride(&self.store.memory) as u64;
        self.count_born(self.item(offset));
        Ok(Adopted { offset, left })
    }

    /// The first chunk of each run's copy; 0 for a run that goes along.
    fn copy_runs(
        &mut self,
        old: Offset,
        runs: &[Run],
        log: usize,
        copies: &mut Vec<Offset>,
    ) -> Result<(), Full> {
        let deadline = self.item(old).deadline();
        for run in runs {
            let mut first = 0;
            if !run.is_alone {
                let hash = hash_of(&self.store.memory, old);
                let (parts, bytes) = (self.parts(run.chunks.iter().copied()), self.run_bytes(run));
                self.inner.stats.copied_bytes += bytes as u64;
                first = self.write_chunks(hash, &parts, bytes, deadline, log, 0)?;
            }
            copies.push(first);
        }
        Ok(())
    }
}

/// Copies `bytes` bytes of the joined parts, from `skip` on, to memory that nobody sees yet.
///
/// # Safety
/// `target` has room for `bytes`, and the parts have `skip + bytes`.
pub(crate) unsafe fn write_parts(
    parts: &[&[u8]],
    mut skip: usize,
    mut bytes: usize,
    mut target: *mut u8,
) {
    for part in parts {
        let here = part.get(skip..).unwrap_or(&[]);
        skip = skip.saturating_sub(part.len());
        let taken = here.len().min(bytes);
        // SAFETY: `taken` bytes remain on both sides.
        unsafe {
            std::ptr::copy_nonoverlapping(here.as_ptr(), target, taken);
            target = target.add(taken);
        }
        bytes -= taken;
    }
}
