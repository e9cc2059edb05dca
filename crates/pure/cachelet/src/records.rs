//! How items are written to pages, copied and forgotten. Their chunks are in `chunks`.

use mbal_model::Key;

use crate::access::Access;
use crate::cas::Cas;
use crate::copy::{overwrite_shared, write_parts};
use crate::item::{Item, Layout, bits};
use crate::items::Items;
use crate::kinds::Target;
use crate::memory::Offset;
use crate::policy::temper_of_arrived;
use crate::site::Site;
use crate::slice::Place;
use crate::types::{Draft, Full};

/// What [`crate::Locked::mark`] sets.
pub const MARKS: u8 = bits::STALE | bits::WIN;
/// What a copy keeps, beside its layout.
pub const KEPT: u8 = MARKS | bits::BINARY_KEY;

/// An item to be stored, with what follows from its draft.
pub struct New<'d> {
    pub draft: &'d Draft<'d>,
    pub cas: Cas,
    /// The optional fields of its header.
    fields: u8,
    value_bytes: usize,
}

impl<'d> New<'d> {
    #[inline]
    pub fn of(draft: &'d Draft<'d>, cas: Cas, value_bytes: usize) -> New<'d> {
        New { draft, cas, fields: fields_of(draft, cas), value_bytes }
    }
}

/// An item that comes from another server, where it was counted and got its cas.
pub struct Arrival<'d> {
    pub draft: Draft<'d>,
    pub cas: u64,
    pub access: Access,
    /// It is among those that travel alone.
    pub is_chosen: bool,
}

impl Arrival<'_> {
    pub fn target(&self, site: &Site) -> Target {
        let temper = temper_of_arrived(self.access.frequency(), self.is_chosen);
        site.target(temper, self.draft.deadline)
    }
}

/// What a rewritten item keeps or gets.
pub struct Rewrite {
    pub target: Target,
    pub cas: Cas,
    pub marks: u8,
    pub access: Access,
}

/// Writes into the old item's bytes if the new one has the very same layout.
#[inline]
pub fn overwrite(site: &Site, hash: u64, place: Place, new: &New) -> bool {
    let &New { draft, cas, fields, value_bytes } = new;
    // Several parts may divide the value into other words than its readers do.
    let &[value] = draft.parts else { return false };
    let item = site.item(place.offset);
    let old = item.layout();
    if old.bits() != fields || old.value_bytes() != value_bytes {
        return false;
    }
    let page = site.page_at(place.offset);
    let Some(sequence) = cas.sequence(page) else { return false };
    let access = Access::new(site.now, Access(item.access()).frequency() + 1, false, site.era());
    site.change(hash, || {
        item.set_access(access.0);
        item.set_sequence(sequence);
        fill_fields(item, draft, cas);
        item.set_bits(item.bits() & !KEPT | marks(draft));
        // SAFETY: the value has this length; we are between the two bumps.
        unsafe { overwrite_shared(item.value().0, value) }
    });
    page.outlive(draft.deadline);
    true
}

pub fn as_it_is(site: &Site, offset: Offset) -> Rewrite {
    let (item, page) = (site.item(offset), site.page_at(offset));
    let own = page.base() + u64::from(item.sequence());
    Rewrite {
        target: Target { log: page.log(), deadline: item.deadline() },
        cas: item.foreign_cas().map_or(Cas::Own(own), Cas::Foreign),
        marks: item.bits() & KEPT,
        access: Access(item.access()),
    }
}

impl Items {
    /// Writes the item into a log, unseen by anybody.
    #[inline]
    pub fn write_new(
        &mut self,
        site: &Site,
        key: &Key,
        new: &New,
        access: Access,
        target: Target,
    ) -> Result<Offset, Full> {
        let &New { draft, fields, value_bytes, .. } = new;
        let pages = site.pages();
        let inline = Layout::new(fields, key.bytes().len(), value_bytes.min(usize::from(u16::MAX)));
        let chained =
            inline.bytes() > pages.inline_bytes_max || value_bytes > usize::from(u16::MAX);
        if !chained {
            return self.write_record(site, key, new, access, target, None);
        }
        pages.eras.wrote_long((value_bytes >> pages.shift) as u64, pages.pool.limit());
        let first = self.write_chunks(site, key.hash(), draft.parts, value_bytes, target, 0)?;
        let offset = self.write_record(site, key, new, access, target, Some(first));
        offset.inspect_err(|_| self.kill_chunks(site, first))
    }

    /// Writes the item's record: with its value, or leading to the first chunk of it.
    pub fn write_record(
        &mut self,
        site: &Site,
        key: &Key,
        new: &New,
        access: Access,
        target: Target,
        chunk: Option<Offset>,
    ) -> Result<Offset, Full> {
        let &New { draft, cas, fields, value_bytes } = new;
        let layout = match chunk {
            Some(_) => Layout::new(fields | bits::CHAINED, key.bytes().len(), 0),
            None => Layout::new(fields, key.bytes().len(), value_bytes),
        };
        let mut bytes = site.memory().round_up(layout.bytes());
        let offset = self.append(site, target, bytes)?;
        let item = site.item(offset);
        let sequence = cas.sequence(site.page_at(offset)).expect("append chose the page by it");
        item.write_header(access.0, sequence, layout, marks(draft));
        item.write_key(key.bytes());
        fill_fields(item, draft, cas);
        if let Some(first) = chunk {
            item.set_chain(value_bytes as u32, first);
            bytes += value_bytes;
        } else {
            // SAFETY: the record has room for exactly the parts.
            unsafe { write_parts(draft.parts, 0, value_bytes, item.value().0) }
        }
        self.counts.born(item, bytes as u64);
        Ok(offset)
    }

    /// Moves an item to a log, with this access word; its chunks stay where they are.
    pub fn relocate(
        &mut self,
        site: &Site,
        hash: u64,
        place: Place,
        log: usize,
        access: Access,
    ) -> Result<(), Full> {
        let mut rewrite = as_it_is(site, place.offset);
        (rewrite.target.log, rewrite.access) = (log, access);
        self.rewrite(site, hash, place, rewrite)
    }

    /// Replaces the item by a copy of itself with other fields.
    pub fn rewrite(
        &mut self,
        site: &Site,
        hash: u64,
        place: Place,
        rewrite: Rewrite,
    ) -> Result<(), Full> {
        let old = site.item(place.offset);
        let offset = self.copy_item(site, old, rewrite)?;
        self.counts.resized(site.stride(site.item(offset)), site.stride(old));
        site.repoint(hash, place, offset);
        self.logs.kill(site, place.offset);
        Ok(())
    }

    /// Writes a copy of an item into a log, unseen by anybody; a chain is shared with it.
    pub fn copy_item(&mut self, site: &Site, old: Item, rewrite: Rewrite) -> Result<Offset, Full> {
        let (was, deadline) = (old.layout(), rewrite.target.deadline);
        let cas = self.counter.classify(site.front, rewrite.cas.value(site.front));
        let dies = deadline != 0 || was.bits() & bits::DEADLINE != 0;
        let fields = was.bits() & (bits::FLAGS | bits::CHAINED)
            | bits::when(dies, bits::DEADLINE)
            | bits::when(matches!(cas, Cas::Foreign(_)), bits::FOREIGN_CAS);
        let layout = was.with_bits(fields);
        let bytes = site.memory().round_up(layout.bytes());
        let offset = self.append(site, rewrite.target, bytes)?;
        let new = site.item(offset);
        let sequence = cas.sequence(site.page_at(offset)).expect("append chose the page by it");
        new.write_header(rewrite.access.0, sequence, layout, rewrite.marks);
        new.write_key(old.key());
        if fields & bits::FLAGS != 0 {
            new.set_flags(old.flags());
        }
        if dies {
            new.set_deadline(deadline);
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
        self.counts.copied(layout.bytes());
        Ok(offset)
    }

    /// An item that another cachelet has taken in, but for the chunks that are `left`.
    pub fn kill_adopted(&mut self, site: &Site, offset: Offset, left: Vec<Offset>) {
        self.uncount(site, offset);
        left.into_iter().for_each(|chunk| self.logs.kill(site, chunk));
        self.logs.kill(site, offset);
    }

    /// A whole item whose last pointer is gone, or never was there.
    #[inline]
    pub fn kill_record(&mut self, site: &Site, offset: Offset) {
        self.uncount(site, offset);
        if let Some((_, first)) = site.item(offset).chain() {
            self.kill_chunks(site, first);
        }
        self.logs.kill(site, offset);
    }

    #[inline]
    fn uncount(&mut self, site: &Site, offset: Offset) {
        let item = site.item(offset);
        let chained = item.chain().map_or(0, |(bytes, _)| u64::from(bytes));
        self.counts.dead(item, site.stride(item) + chained);
    }
}

/// The optional fields that an item of this draft has in its header.
fn fields_of(draft: &Draft, cas: Cas) -> u8 {
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
