//! One cachelet: what readers of all workers see of it, and what its writer lock protects.

use std::collections::VecDeque;

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Elsewhere, Key, Prefix, Seconds, WorkerId};

use crate::blocks::Blocks;
use crate::bucket::Bucket;
use crate::classes::ByClass;
use crate::copy::overwrite_shared;
use crate::index::{Dir, hash_of};
use crate::item::{Access, CHUNK_HEADER_BYTES, Item, Layout, bits};
use crate::log::{LOGS, Log, temper_of};
use crate::memory::Offset;
use crate::policy::{Temper, temper_of_written};
use crate::pool::PageId;
use crate::routes::{MOVING, PARTLY, Slot, decode, encode};
use crate::shim::{AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use crate::slice::Place;
use crate::store::Store;
use crate::sync::{Guard, SpinLock};
use crate::types::{Birth, Draft, Full, StoreStats};
use crate::view::View;

pub struct Cachelet {
    pub(crate) dir: AtomicPtr<Dir>,
    /// Bits of the hash before those that the directory goes by: those of its prefix, or fewer after a split.
    pub(crate) prefix_bits: AtomicU32,
    /// Its prefix's code; 0 while it serves nothing under a name of its own.
    prefix: AtomicU32,
    /// Where requests for it are to go: 0 is here, else see [`crate::routes::encode`].
    away: AtomicU32,
    /// While it leaves in slices: which hashes have gone, and which have at least been frozen, see [`crate::leaving`].
    pub(crate) gone: AtomicU64,
    pub(crate) frozen: AtomicU64,
    /// While it arrives in slices: which hashes are served here, see [`crate::arriving`].
    pub(crate) arrived: AtomicU64,
    /// Of the store's, this one.
    pub(crate) slot: Slot,
    /// Second at which everything older dies; 0 is none.
    pub(crate) flush_at: AtomicU32,
    owner: AtomicU32,
    /// The store's version when it last changed its owner.
    given_at: AtomicU64,
    /// Where slices marked as moved have gone, plus one; 0 is nowhere.
    pub(crate) child: AtomicU32,
    /// Order of sealing of the oldest page, by temper; `u64::MAX` is none.
    pub(crate) oldest: [AtomicU64; 2],
    /// The second at which the first of the oldest pages holds nothing alive; `u32::MAX` is never.
    pub(crate) expires: AtomicU32,
    /// Pages in logs, by temper.
    pub(crate) log_pages: [AtomicU32; 2],
    pub(crate) generation: AtomicU32,
    pub(crate) inner: SpinLock<Inner>,
    work: Work,
}

/// A counter on a cache line of its own: its owner counts alone, but for the moment of a change.
#[derive(Default)]
#[repr(align(64))]
struct Work(AtomicU64);

/// What the writer lock protects.
#[derive(Default)]
pub struct Inner {
    /// The low 48 bits of the next cas, less one.
    pub counter: u64,
    /// What it was when the cachelet was born.
    pub counter_at_birth: u64,
    /// Of the last `flush_all` that this cachelet has seen, wherever it was; and of the one that comes at `flush_at`.
    pub flush_number: u32,
    pub flush_next: u32,
    /// Its upper half is on its way to `child`.
    pub splits: bool,
    pub logs: [Log; LOGS],
    /// Ghosts left in the index so far.
    pub ghosts: u32,
    pub blocks: Blocks,
    /// When the routes last changed after a split.
    pub split_done: Option<u64>,
    pub old_dirs: Vec<(u64, Box<Dir>)>,
    /// Bytes of dead records in the pages of the logs.
    pub dead_bytes: u64,
    pub stats: StoreStats,
    pub classes: ByClass,
    /// Pages that a flush has dropped, each with the order in which it was sealed; none is empty.
    pub dropped: Vec<VecDeque<(u64, PageId)>>,
    /// Scratch of `clean`: hash and place of a page's live records.
    pub records: Vec<(u64, Offset)>,
}

impl Cachelet {
    /// One that serves nothing yet.
    pub fn vacant(slot: Slot) -> Cachelet {
        Cachelet {
            dir: AtomicPtr::new(Box::into_raw(Dir::empty())),
            prefix_bits: AtomicU32::new(0),
            prefix: AtomicU32::new(0),
            away: AtomicU32::new(0),
            gone: AtomicU64::new(0),
            frozen: AtomicU64::new(0),
            arrived: AtomicU64::new(0),
            slot,
            flush_at: AtomicU32::new(0),
            owner: AtomicU32::new(0),
            given_at: AtomicU64::new(0),
            child: AtomicU32::new(0),
            oldest: [AtomicU64::new(u64::MAX), AtomicU64::new(u64::MAX)],
            expires: AtomicU32::new(Seconds::MAX),
            log_pages: [AtomicU32::new(0), AtomicU32::new(0)],
            generation: AtomicU32::new(0),
            inner: SpinLock::new(Inner::default()),
            work: Work::default(),
        }
    }

    /// The prefix that it serves; none of a vacant one, or of the upper half of one that is being split.
    #[inline]
    pub fn prefix(&self) -> Option<Prefix> {
        Prefix::from_code(self.prefix.load(Acquire) as u16)
    }

    pub fn set_prefix(&self, prefix: Option<Prefix>) {
        self.prefix.store(prefix.map_or(0, Prefix::code).into(), Release);
    }

    /// Where a request for this hash of it is to go, if not here.
    #[inline(always)]
    pub fn away(&self, hash: u64) -> Option<Elsewhere> {
        match self.away.load(Acquire) {
            0 => None,
            word => self.away_by(word, hash),
        }
    }

    #[cold]
    fn away_by(&self, word: u32, hash: u64) -> Option<Elsewhere> {
        let elsewhere = decode(word & !PARTLY);
        let frozen = match is_planted(Fault::FrozenIsServed) {
            true => &self.gone,
            false => &self.frozen,
        };
        let is_here = word & PARTLY != 0
            && match elsewhere {
                Elsewhere::Moving(_) => hash >> 1 >= frozen.load(Acquire),
                Elsewhere::Peer(_) => hash >> 1 < self.arrived.load(Acquire),
            };
        (!is_here).then_some(elsewhere)
    }

    /// All of it is elsewhere.
    pub fn is_away(&self) -> bool {
        let word = self.away.load(Acquire);
        word != 0 && word & PARTLY == 0
    }

    /// Some slices of it are here, and others are not: it leaves, or it arrives.
    pub fn is_partly_here(&self) -> bool {
        self.away.load(Acquire) & PARTLY != 0
    }

    pub fn leaves(&self) -> bool {
        self.is_partly_here() && self.away.load(Acquire) & MOVING != 0
    }

    pub fn arrives(&self) -> bool {
        self.is_partly_here() && !self.leaves()
    }

    /// A part of it is elsewhere: which one, `gone` and `frozen` say, or `arrived`.
    pub fn set_partly_away(&self, elsewhere: Elsewhere) {
        self.away.store(encode(elsewhere) | PARTLY, Release);
    }

    pub fn set_away(&self, elsewhere: Option<Elsewhere>) {
        self.away.store(elsewhere.map_or(0, encode), Release);
    }

    /// One that counts at the same moment may get lost.
    #[inline]
    pub fn count_work(&self, work: u64) {
        self.work.0.store(self.work.0.load(Relaxed) + work, Relaxed);
    }

    pub fn work(&self) -> u64 {
        self.work.0.load(Relaxed)
    }

    /// What a cachelet is born with, in a slot that no reader can be in. Statistics go on: they are the server's.
    pub fn is_born(&self, inner: &mut Inner, prefix: Prefix, owner: WorkerId, birth: Birth) {
        let Birth { generation, flush_number } = birth;
        self.owner.store(owner.0.into(), Relaxed);
        self.given_at.store(0, Relaxed);
        self.prefix_bits.store(prefix.bits(), Relaxed);
        self.generation.store(u32::from(generation) & GENERATION_MAX, Relaxed);
        self.flush_at.store(0, Relaxed);
        self.child.store(0, Relaxed);
        self.work.0.store(0, Relaxed);
        self.set_away(None);
        inner.counter_at_birth = u64::from(prefix.first()) << CAS_PER_NODE_BITS;
        inner.counter = inner.counter_at_birth;
        (inner.flush_number, inner.flush_next) = (flush_number, 0);
        inner.splits = false;
        inner.split_done = None;
    }

    #[inline]
    pub fn owner(&self) -> usize {
        self.owner.load(Relaxed) as usize
    }

    /// Counted by `version`. Under the writer lock, or before anybody can reach the cachelet.
    pub fn set_owner(&self, worker: usize, version: &AtomicU64) {
        self.owner.store(worker as u32, Relaxed);
        if is_planted(Fault::OwnerWithoutVersion) {
            return;
        }
        // Then the count: nobody reads a version whose owners are not there yet.
        self.given_at.store(version.fetch_add(1, Release) + 1, Relaxed);
    }

    /// True if the owner is still the one of `version`.
    pub fn owned_since(&self, version: u64) -> bool {
        self.given_at.load(Relaxed) <= version
    }
}

impl Drop for Cachelet {
    fn drop(&mut self) {
        // SAFETY: made by Box::into_raw; nobody else can have the cachelet any more.
        drop(unsafe { Box::from_raw(self.dir.load(Relaxed)) });
    }
}

/// The writer lock of one cachelet, held for one operation.
pub struct Locked<'a> {
    pub(crate) store: &'a Store,
    pub(crate) cachelet: &'a Cachelet,
    pub(crate) inner: Guard<'a, Inner>,
    pub(crate) now: Seconds,
    /// The worker whose pool gives pages and gets them back.
    pub(crate) pool: usize,
    /// Cleaning may use the last pages, which it needs to make others free.
    pub(crate) cleaning: bool,
    /// Of main pages that are cleaned, items survive that were read within so many eras.
    pub(crate) window: u32,
}

/// An item found under the writer lock; good until the next change of the cachelet.
#[derive(Clone, Copy)]
pub struct Found<'k> {
    key: Key<'k>,
    place: Place,
}

/// An item to be stored, with what follows from its draft.
struct New<'d> {
    draft: &'d Draft<'d>,
    cas: Cas,
    /// The optional fields of its header.
    fields: u8,
    value_bytes: usize,
}

/// What a rewritten item keeps or gets.
struct Rewrite {
    deadline: Seconds,
    cas: Cas,
    marks: u8,
    log: usize,
    access: Access,
}

#[derive(Clone, Copy)]
enum Cas {
    /// A value of this cachelet's counter.
    Own(u64),
    Foreign(u64),
}

/// What [`Locked::mark`] sets.
const MARKS: u8 = bits::STALE | bits::WIN;
/// What a copy keeps, beside its layout.
const KEPT: u8 = MARKS | bits::BINARY_KEY;
const COUNTER_BITS: u32 = 48;
/// Cachelets that are born together begin to count so far apart, by virtual node: a cas of one is not another's.
const CAS_PER_NODE_BITS: u32 = 28;
/// Some clients keep a cas in a signed number, others in 19 digits.
pub(crate) const GENERATION_MAX: u32 = 0x7FFF;
/// A cas this far behind the counter is written out: a page's base may lie above it.
const OWN_CAS_REACH: u64 = 1 << 30;

impl<'a> Locked<'a> {
    fn item(&self, offset: Offset) -> Item {
        Item::at(&self.store.memory, offset)
    }

    /// The key's live item. One that has expired is removed on the way.
    #[inline]
    pub fn find<'k>(&mut self, key: &Key<'k>) -> Option<Found<'k>> {
        let place = self.place_of(key)?;
        let found = Found { key: *key, place };
        if self.item(place.offset).expired(self.now) {
            self.count_expired(place.offset);
            self.remove(&found);
            return None;
        }
        Some(found)
    }

    pub fn view<R>(&self, found: &Found, show: impl FnOnce(&View) -> R) -> R {
        show(&View::new(self.store, self.cachelet, self.item(found.place.offset), self.now))
    }

    /// The cas that the next stored item would get; consumes it.
    pub fn next_cas(&mut self) -> u64 {
        self.inner.counter += 1;
        self.cas_of(self.inner.counter)
    }

    /// How an item can have this cas: short, if the cachelet gave it and not too long ago.
    fn classify(&self, cas: u64) -> Cas {
        let own = cas >> COUNTER_BITS == u64::from(self.cachelet.generation.load(Relaxed));
        let counter = cas & ((1 << COUNTER_BITS) - 1);
        let recent = counter <= self.inner.counter && counter + OWN_CAS_REACH >= self.inner.counter;
        if own && recent { Cas::Own(counter) } else { Cas::Foreign(cas) }
    }

    fn cas_value(&self, cas: Cas) -> u64 {
        match cas {
            Cas::Own(counter) => self.cas_of(counter),
            Cas::Foreign(cas) => cas,
        }
    }

    /// What an item in this page has to say of its cas beside the page's base; `None` if it cannot.
    fn sequence(&self, page: PageId, cas: Cas) -> Option<u32> {
        match cas {
            Cas::Own(counter) => {
                u32::try_from(counter.checked_sub(self.page(page).base.load(Relaxed))?).ok()
            }
            Cas::Foreign(_) => Some(0),
        }
    }

    fn cas_of(&self, counter: u64) -> u64 {
        u64::from(self.cachelet.generation.load(Relaxed)) << COUNTER_BITS | counter
    }

    /// Stores an item, replacing the key's old one; its cas.
    pub fn put(&mut self, key: &Key, draft: &Draft) -> Result<u64, Full> {
        let value_bytes = draft.parts.iter().map(|part| part.len()).sum::<usize>();
        if key.bytes().len() + value_bytes > self.store.options().item_bytes_max {
            return Err(Full::TooLarge);
        }
        self.inner.counter += 1;
        let cas = draft.cas.map_or(Cas::Own(self.inner.counter), |cas| self.classify(cas));
        let new = New { draft, cas, fields: fields_of(draft, cas), value_bytes };
        self.inner.stats.total_items += 1;
        let (home, old) = self.home_and_place(key).unzip();
        let old = old.flatten();
        if let Some((home, place)) = home.zip(old) {
            if self.overwrite(home, place, &new) {
                return Ok(self.cas_value(cas));
            }
        }
        let frequency =
            old.map_or(0, |place| Access(self.item(place.offset).access()).frequency() + 1);
        let access = Access::new(self.now, frequency, false, self.store.era());
        let returns = old.is_none() && self.is_ghost(key.hash());
        let log = self.log_for(temper_of_written(returns), draft.deadline);
        let offset = self.write_new(key, &new, access, log)?;
        self.publish(key.hash(), old, offset)?;
        Ok(self.cas_value(cas))
    }

    /// Stores an item that comes from another server, where it was counted and got its cas, unless the key has one here.
    pub(crate) fn take_in(
        &mut self,
        key: &Key,
        draft: &Draft,
        cas: u64,
        access: Access,
    ) -> Result<(), Full> {
        let value_bytes = draft.parts.iter().map(|part| part.len()).sum::<usize>();
        if key.bytes().len() + value_bytes > self.store.options().item_bytes_max {
            return Err(Full::TooLarge);
        }
        let old = self.place_of(key);
        if old.is_some() && !is_planted(Fault::ImportOverNewer) {
            return Ok(());
        }
        let cas = self.classify(cas);
        let new = New { draft, cas, fields: fields_of(draft, cas), value_bytes };
        let log = self.log_for(Temper::New, draft.deadline);
        let offset = self.write_new(key, &new, access, log)?;
        self.publish(key.hash(), old, offset)
    }

    /// Makes a record that was written just now the key's item.
    pub(crate) fn publish(
        &mut self,
        hash: u64,
        old: Option<Place>,
        offset: Offset,
    ) -> Result<(), Full> {
        match old {
            Some(place) => {
                self.repoint(hash, place, offset);
                self.kill_record(place.offset);
            }
            None => {
                if let Err(full) = self.insert(hash, offset) {
                    self.kill_record(offset);
                    return Err(full);
                }
            }
        }
        self.inner.stats.items += u64::from(old.is_none());
        Ok(())
    }

    /// Writes into the old item's bytes if the new one has the very same layout.
    fn overwrite(&self, home: &Bucket, place: Place, new: &New) -> bool {
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
        home.version.write(|| {
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
    fn write_new(
        &mut self,
        key: &Key,
        new: &New,
        access: Access,
        log: usize,
    ) -> Result<Offset, Full> {
        let &New { draft, cas, fields, value_bytes } = new;
        let inline = Layout::new(fields, key.bytes().len(), value_bytes.min(usize::from(u16::MAX)));
        let chained =
            inline.bytes() > self.store.inline_bytes_max || value_bytes > usize::from(u16::MAX);
        let layout = match chained {
            true => Layout::new(fields | bits::CHAINED, key.bytes().len(), 0),
            false => inline,
        };
        let first = match chained {
            true => {
                self.write_chunks(key.hash(), draft.parts, value_bytes, draft.deadline, log, 0)?
            }
            false => 0,
        };
        let bytes = self.store.memory.round_up(layout.bytes());
        let offset = match self.append(log, bytes, draft.deadline) {
            Ok(offset) => offset,
            Err(full) => {
                self.kill_chunks(first);
                return Err(full);
            }
        };
        let item = self.item(offset);
        let sequence =
            self.sequence(self.page_of(offset), cas).expect("append chose the page by it");
        item.write_header(access.0, sequence, layout, marks(draft));
        item.write_key(key.bytes());
        fill_fields(item, draft, cas);
        if chained {
            item.set_chain(value_bytes as u32, first);
        } else {
            // SAFETY: the record has room for exactly the parts.
            unsafe { write_parts(draft.parts, 0, value_bytes, item.value().0) }
        }
        self.inner.stats.bytes += bytes as u64 + value_bytes as u64 * u64::from(chained);
        self.count_born(item);
        Ok(offset)
    }

    /// Writes a value, or a part of one, as a chain of chunks that fill up the log's pages and lead to `next`;
    /// the first one.
    fn write_chunks(
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
        let piece_max = self.store.page_bytes.min(1 << 16) - CHUNK_HEADER_BYTES - 8;
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

    fn kill_chunks(&mut self, first: Offset) {
        let mut at = first;
        while at != 0 {
            let next = self.item(at).next_chunk();
            self.kill(at);
            at = next;
        }
    }

    /// A whole item whose last pointer is gone, or never was there.
    pub(crate) fn kill_record(&mut self, offset: Offset) {
        let item = self.item(offset);
        let stride = item.stride(&self.store.memory) as u64;
        let chained = item.chain();
        self.count_dead(item);
        self.inner.stats.bytes -= stride + chained.map_or(0, |(bytes, _)| u64::from(bytes));
        if let Some((_, first)) = chained {
            self.kill_chunks(first);
        }
        self.kill(offset);
    }

    pub fn remove(&mut self, found: &Found) {
        self.unlink(found.key.hash(), found.place);
    }

    pub(crate) fn unlink(&mut self, hash: u64, place: Place) {
        self.repoint(hash, place, 0);
        self.kill_record(place.offset);
        self.inner.stats.items -= 1;
    }

    /// Evicts the item at `offset`, whose key has `hash`; one from a new log is remembered.
    pub(crate) fn evict(&mut self, hash: u64, offset: Offset) {
        let place = self.place_at(hash, offset).expect("a live record has its place");
        self.count_evicted(offset);
        let temper = temper_of(self.page(self.page_of(offset)).log.load(Relaxed) as usize);
        self.unlink(hash, place);
        if temper == Temper::New {
            self.haunt(hash, place);
        }
    }

    /// Changes the deadline, not the cas. May fail where a field has to be added to a full cache.
    pub fn touch(&mut self, found: &Found, deadline: Seconds) -> Result<(), Full> {
        let item = self.item(found.place.offset);
        if item.bits() & bits::DEADLINE != 0 {
            self.change(found.key.hash(), || item.set_deadline(deadline));
            self.outlive(self.page_of(found.place.offset), deadline);
            return Ok(());
        }
        if deadline == 0 {
            return Ok(());
        }
        let temper =
            temper_of(self.page(self.page_of(found.place.offset)).log.load(Relaxed) as usize);
        let log = self.log_for(temper, deadline);
        let rewrite = Rewrite { deadline, log, ..self.as_it_is(item, found.place.offset) };
        self.rewrite(found.key.hash(), found.place, rewrite).map(drop)
    }

    /// Sets both marks of meta's stale items, and a new cas if one is given.
    pub fn mark(
        &mut self,
        found: &Found,
        stale: bool,
        win: bool,
        cas: Option<u64>,
    ) -> Result<(), Full> {
        let item = self.item(found.place.offset);
        let marks = bits::when(stale, bits::STALE) | bits::when(win, bits::WIN);
        let Some(cas) = cas else {
            self.change(found.key.hash(), || item.set_bits(item.bits() & !MARKS | marks));
            return Ok(());
        };
        let cas = self.classify(cas);
        let as_it_is = self.as_it_is(item, found.place.offset);
        let marks = marks | as_it_is.marks & !MARKS;
        self.rewrite(found.key.hash(), found.place, Rewrite { cas, marks, ..as_it_is }).map(drop)
    }

    fn as_it_is(&self, item: Item, offset: Offset) -> Rewrite {
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

    /// Replaces the item by a copy of itself with other fields.
    fn rewrite(&mut self, hash: u64, place: Place, rewrite: Rewrite) -> Result<Offset, Full> {
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
    fn copy_item(&mut self, old: Item, rewrite: Rewrite) -> Result<Offset, Full> {
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

    /// Takes in a copy of an item of another cachelet, whose lock the caller holds too: the record, which the index is still to lead to.
    pub(crate) fn adopt(&mut self, old: Offset, log: usize) -> Result<Offset, Full> {
        let item = self.item(old);
        let first = match item.chain() {
            Some((bytes, _)) => {
                let (parts, hash) =
                    (self.parts(self.chunks(item)), hash_of(&self.store.memory, old));
                self.write_chunks(hash, &parts, bytes as usize, item.deadline(), log, 0)?
            }
            None => 0,
        };
        let rewrite = Rewrite { log, ..self.as_it_is(item, old) };
        let offset = self.copy_item(item, rewrite).inspect_err(|_| self.kill_chunks(first))?;
        if let Some((bytes, _)) = item.chain() {
            self.item(offset).set_chain(bytes, first);
            self.inner.stats.bytes += u64::from(bytes);
        }
        self.inner.stats.bytes += self.item(offset).stride(&self.store.memory) as u64;
        self.count_born(self.item(offset));
        Ok(offset)
    }

    /// Counts as a read: last access, fetched, frequency.
    #[inline]
    pub fn accessed(&mut self, found: &Found) {
        self.item(found.place.offset).touch_access(self.now, self.store.era());
    }

    /// `flush_all` of this number: forgets every item.
    pub(crate) fn flush(&mut self, number: u32) {
        self.drop_index();
        self.drop_logs();
        self.inner.flush_number = self.inner.flush_number.max(number);
        self.store.flushes.fetch_max(number, Relaxed);
        self.cachelet.flush_at.store(0, Relaxed);
        self.inner.stats.items = 0;
        self.inner.stats.bytes = 0;
        for class in self.inner.classes.iter_mut() {
            (class.items, class.bytes) = (0, 0);
        }
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

/// Copies `bytes` bytes of the joined parts, from `skip` on, to memory that nobody sees yet.
///
/// # Safety
/// `target` has room for `bytes`, and the parts have `skip + bytes`.
unsafe fn write_parts(parts: &[&[u8]], mut skip: usize, mut bytes: usize, mut target: *mut u8) {
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
