//! How items are written to pages, copied and forgotten. Their chunks are in `chunks`.

use mbal_model::{Key, Seconds};

use crate::access::Access;
use crate::cas::Cas;
use crate::chunks::write_parts;
use crate::copy::overwrite_shared;
use crate::item::{Item, Layout, bits};
use crate::locked::Locked;
use crate::memory::Offset;
use crate::shim::Ordering::*;
use crate::slice::Place;
use crate::types::{Draft, Full};

/// What [`Locked::mark`] sets.
pub(crate) const MARKS: u8 = bits::STALE | bits::WIN;
/// What a copy keeps, beside its layout.
pub(crate) const KEPT: u8 = MARKS | bits::BINARY_KEY;

/// An item to be stored, with what follows from its draft.
pub(crate) struct New<'d> {
    pub draft: &'d Draft<'d>,
    pub cas: Cas,
    /// The optional fields of its header.
    pub fields: u8,
    pub value_bytes: usize,
}

/// What a rewritten item keeps or gets.
pub(crate) struct Rewrite {
    pub deadline: Seconds,
    pub cas: Cas,
    pub marks: u8,
    pub log: usize,
    pub access: Access,
}

impl Locked<'_> {
    /// Writes into the old item's bytes if the new one has the very same layout.
    pub(crate) fn overwrite(&self, hash: u64, place: Place, new: &New) -> bool {
        let &New { draft, cas, fields, value_bytes } = new;
        // Several parts may divide the value into other words than its readers do.
        let &[value] = draft.parts else { return false };
        let item = self.item(place.offset);
        let old = item.layout();
        if old.bits() != fields || old.value_bytes() != value_bytes {
            return false;
        }
        let page = self.page_of(place.offset);
        let Some(sequence) = self.sequence(page, cas) else { return false };
        let access =
            Access::new(self.now, Access(item.access()).frequency() + 1, false, self.store.era());
        self.change(hash, || {
            item.set_access(access.0);
            item.set_sequence(sequence);
            fill_fields(item, draft, cas);
            item.set_bits(item.bits() & !KEPT | marks(draft));
            // SAFETY: the value has this length; we are between the two bumps.
            unsafe { overwrite_shared(item.value().0, value) }
        });
        self.outlive(page, draft.deadline);
        true
    }

    /// Writes the item into a log, unseen by anybody.
    pub(crate) fn write_new(
        &mut self,
        key: &Key,
        new: &New,
        access: Access,
        log: usize,
    ) -> Result<Offset, Full> {
        let &New { draft, fields, value_bytes, .. } = new;
        let inline = Layout::new(fields, key.bytes().len(), value_bytes.min(usize::from(u16::MAX)));
        let chained =
            inline.bytes() > self.store.inline_bytes_max || value_bytes > usize::from(u16::MAX);
        if !chained {
            return self.write_record(key, new, access, log, None);
        }
        self.store.wrote_long((value_bytes >> self.store.page_shift) as u64);
        let first =
            self.write_chunks(key.hash(), draft.parts, value_bytes, draft.deadline, log, 0)?;
        let offset = self.write_record(key, new, access, log, Some(first));
        offset.inspect_err(|_| self.kill_chunks(first))
    }

    /// Writes the item's record: with its value, or leading to the first chunk of it.
    pub(crate) fn write_record(
        &mut self,
        key: &Key,
        new: &New,
        access: Access,
        log: usize,
        chunk: Option<Offset>,
    ) -> Result<Offset, Full> {
        let &New { draft, cas, fields, value_bytes } = new;
        let layout = match chunk {
            Some(_) => Layout::new(fields | bits::CHAINED, key.bytes().len(), 0),
            None => Layout::new(fields, key.bytes().len(), value_bytes),
        };
        let bytes = self.store.memory.round_up(layout.bytes());
        let offset = self.append(log, bytes, draft.deadline)?;
        let item = self.item(offset);
        let sequence =
            self.sequence(self.page_of(offset), cas).expect("append chose the page by it");
        item.write_header(access.0, sequence, layout, marks(draft));
        item.write_key(key.bytes());
        fill_fields(item, draft, cas);
        if let Some(first) = chunk {
            item.set_chain(value_bytes as u32, first);
            self.inner.stats.bytes += value_bytes as u64;
        } else {
            // SAFETY: the record has room for exactly the parts.
            unsafe { write_parts(draft.parts, 0, value_bytes, item.value().0) }
        }
        self.inner.stats.bytes += bytes as u64;
        self.count_born(item);
        Ok(offset)
    }

    pub(crate) fn as_it_is(&self, item: Item, offset: Offset) -> Rewrite {
        let page = self.page(self.page_of(offset));
        let own = page.base.load(Relaxed) + u64::from(item.sequence());
        Rewrite {
            deadline: item.deadline(),
            cas: item.foreign_cas().map_or(Cas::Own(own), Cas::Foreign),
            marks: item.bits() & KEPT,
            log: page.log.load(Relaxed) as usize,
            access: Access(item.access()),
        }
    }

    /// Moves an item to a log, with this access word; its chunks stay where they are.
    pub(crate) fn relocate(
        &mut self,
        hash: u64,
        place: Place,
        log: usize,
        access: Access,
    ) -> Result<(), Full> {
        let as_it_is = self.as_it_is(self.item(place.offset), place.offset);
        self.rewrite(hash, place, Rewrite { log, access, ..as_it_is }).map(drop)
    }

    /// Replaces the item by a copy of itself with other fields.
    pub(crate) fn rewrite(
        &mut self,
        hash: u64,
        place: Place,
        rewrite: Rewrite,
    ) -> Result<Offset, Full> {
        let old = self.item(place.offset);
        let offset = self.copy_item(old, rewrite)?;
        let stride = |item: Item| item.stride(&self.store.memory) as u64;
        let (new_bytes, old_bytes) = (stride(self.item(offset)), stride(old));
        self.inner.stats.bytes = self.inner.stats.bytes + new_bytes - old_bytes;
        self.repoint(hash, place, offset);
        self.kill(place.offset);
        Ok(offset)
    }

    /// Writes a copy of an item into a log, unseen by anybody; a chain is shared with it.
    pub(crate) fn copy_item(&mut self, old: Item, rewrite: Rewrite) -> Result<Offset, Full> {
        let was = old.layout();
        let cas = self.classify(self.cas_value(rewrite.cas));
        let dies = rewrite.deadline != 0 || was.bits() & bits::DEADLINE != 0;
        let fields = was.bits() & (bits::FLAGS | bits::CHAINED)
            | bits::when(dies, bits::DEADLINE)
            | bits::when(matches!(cas, Cas::Foreign(_)), bits::FOREIGN_CAS);
        let layout = was.with_bits(fields);
        let bytes = self.store.memory.round_up(layout.bytes());
        let offset = self.append(rewrite.log, bytes, rewrite.deadline)?;
        let new = self.item(offset);
        let sequence =
            self.sequence(self.page_of(offset), cas).expect("append chose the page by it");
        new.write_header(rewrite.access.0, sequence, layout, rewrite.marks);
        new.write_key(old.key());
        if fields & bits::FLAGS != 0 {
            new.set_flags(old.flags());
        }
        if dies {
            new.set_deadline(rewrite.deadline);
        }
        if let Cas::Foreign(cas) = cas {
            new.set_foreign_cas(cas);
        }
        let (from, value_bytes) = old.value();
        // SAFETY: both records have a value of this length; the new one is unseen, and only this
        // lock's holder may change the old one.
        unsafe { std::ptr::copy_nonoverlapping(from, new.value().0, value_bytes) }
        if let Some((bytes, first)) = old.chain() {
            new.set_chain(bytes, first);
        }
        self.inner.stats.copied_bytes += layout.bytes() as u64;
        Ok(offset)
    }

    /// An item that another cachelet has taken in, but for the chunks that are `left`.
    pub(crate) fn kill_adopted(&mut self, offset: Offset, left: Vec<Offset>) {
        self.uncount(offset);
        left.into_iter().for_each(|chunk| self.kill(chunk));
        self.kill(offset);
    }

    /// A whole item whose last pointer is gone, or never was there.
    pub(crate) fn kill_record(&mut self, offset: Offset) {
        self.uncount(offset);
        if let Some((_, first)) = self.item(offset).chain() {
            self.kill_chunks(first);
        }
        self.kill(offset);
    }

    fn uncount(&mut self, offset: Offset) {
        let item = self.item(offset);
        let chained = item.chain().map_or(0, |(bytes, _)| u64::from(bytes));
        self.count_dead(item);
        self.inner.stats.bytes -= item.stride(&self.store.memory) as u64 + chained;
    }
}

/// The optional fields that an item of this draft has in its header.
pub(crate) fn fields_of(draft: &Draft, cas: Cas) -> u8 {
    bits::when(draft.flags != 0, bits::FLAGS)
        | bits::when(draft.deadline != 0, bits::DEADLINE)
        | bits::when(matches!(cas, Cas::Foreign(_)), bits::FOREIGN_CAS)
}

fn marks(draft: &Draft) -> u8 {
    bits::when(draft.stale, bits::STALE)
        | bits::when(draft.win, bits::WIN)
        | bits::when(draft.binary_key, bits::BINARY_KEY)
}

/// Flags, deadline and foreign cas, where the layout has them.
fn fill_fields(item: Item, draft: &Draft, cas: Cas) {
    if draft.flags != 0 {
        item.set_flags(draft.flags);
    }
    if draft.deadline != 0 {
        item.set_deadline(draft.deadline);
    }
    if let Cas::Foreign(cas) = cas {
        item.set_foreign_cas(cas);
    }
}
