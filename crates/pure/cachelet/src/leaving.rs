//! A cachelet that leaves for another server, slice by slice, while everything else of it is served.
//!
//! ```text
//!   hashes of the cachelet:   | gone ......... | frozen | here ................... |
//!   Store::route says:          Moving           Moving   Own or Neighbour
//! ```
//!
//! A slice is *frozen* before it is exported. When every worker has left the batch in which it could have been told that the slice
//! is here, nobody changes it any more but cleaning, which may still evict: so it is exported, and then forgotten, in steps that
//! each hold the writer lock for some microseconds, and nothing that a client was told is missing from it.

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{MoveId, Prefix, Seconds};

use crate::access::Access;
use crate::cachelet::Cachelet;
use crate::chosen::AgeThresholds;
use crate::entry::Entry;
use crate::item::Item;
use crate::locked::Locked;
use crate::memory::{Offset, prefetch};
use crate::part::{Fields, Heading, marks, write_further, write_item, write_length};
use crate::site::Site;
use crate::slice::Slice;
use crate::store::Store;

/// Items of one step: some microseconds each, where they have to come from memory.
const STEP_ITEMS: usize = 64;
/// A step writes no more than about this; a longer value travels in pieces of it.
const STEP_BYTES: usize = 16 << 10;
/// What a step of [`Store::export`] writes at most: an item of a step's length may begin where a step has nearly all of its bytes.
pub const EXPORT_BYTES_MAX: usize = 2 * STEP_BYTES + 512;
/// About as many bytes as a slice is to have at most: its keys wait while they travel, a millisecond for 200 to 300 KB.
const SLICE_BYTES: usize = 192 << 10;
/// A slice of fewer items is not halved: they may be longer than it is to be.
const HALVED_ITEMS_MIN: usize = 4;
/// Bytes of items that are removed in one step, since long values have a record for each page.
const FORGOTTEN_BYTES: usize = 256 << 10;

/// How far a cachelet's export has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    slice: u32,
    /// Of the next part of this slice.
    number: u32,
    /// Hashes of the frozen ones below this are done; 0 is none.
    from: u64,
    /// Slots of the index's slice there that are done.
    slots: usize,
    /// Bytes of the next item's value that have left, and its cas.
    value_at: usize,
    cas: u64,
}

impl Cursor {
    /// The slice is sent again from its first item: its link broke. By another number, since its parts are cut otherwise.
    pub fn restart_slice(&mut self) {
        *self = Cursor { slice: self.slice + 1, ..Cursor::default() };
    }

    /// What was written since the last part is one.
    pub fn end_part(&mut self) {
        self.number += 1;
    }
}

impl Store {
    /// A cachelet begins to leave by this move; its first slice has not. False if it is absent, leaves already,
    /// is still arriving or is being split; or if a flush that this server has only heard of may be under way: a destination that it has
    /// reached would drop what came.
    pub fn begin_to_leave(&self, prefix: Prefix, id: MoveId) -> bool {
        let _changes = self.slots.changes();
        let Some(cachelet) = self.present(prefix) else { return false };
        let (mut inner, front) = (cachelet.inner.lock(), &cachelet.front);
        let is_behind = inner.flushed.is_behind(front, self.flushed());
        if inner.split.is_under_way() || front.away.is_part() || is_behind {
            return false;
        }
        inner.chosen = None;
        front.away.begin_to_leave(id, prefix.first_hash());
        true
    }

    /// Halves the next slice if it has so many bytes that its keys would wait for long; true if it may still have. To be asked before
    /// [`Store::freeze`]. Where there is no memory for its halves it stays as it is. O(items of the slice).
    ///
    /// # Panics
    /// Unless the cachelet leaves.
    pub fn halve_next_slice(&self, prefix: Prefix, now: Seconds) -> bool {
        let mut locked = self.leaver(prefix, now);
        let gone = locked.site.front.away.gone();
        gone <= u128::from(prefix.last_hash()) && locked.halve_if_long(gone as u64)
    }

    /// Freezes the next slice. When [`Store::all_have_left`] says so of the stamp that is returned, it can be exported. `None`: all
    /// slices are gone.
    ///
    /// # Panics
    /// Unless the cachelet leaves, and its last frozen slice is gone or thawed.
    pub fn freeze(&self, prefix: Prefix, now: Seconds) -> Option<u64> {
        let locked = self.leaver(prefix, now);
        let (site, away) = (&locked.site, &locked.site.front.away);
        let gone = away.gone();
        assert_eq!(gone, away.frozen(), "one slice at a time");
        if gone > u128::from(prefix.last_hash()) {
            return None;
        }
        away.freeze(site.end_of_slice(gone as u64).min(u128::from(prefix.last_hash()) + 1));
        drop(locked);
        Some(self.batches.stamp())
    }

    /// Of this moment: [`Store::all_have_left`] says when every batch is over that goes on now.
    pub fn stamp_batches(&self) -> u64 {
        self.batches.stamp()
    }

    /// True if nobody who was told that a slice is here before the stamp was made can still be in it.
    pub fn all_have_left(&self, stamp: u64) -> bool {
        self.batches.passed(stamp) || is_planted(Fault::ExportBeforeBatchesEnd)
    }

    /// Appends items of the frozen slice to `out`, as the next ones of a part that begins where `out` is empty; false when it was
    /// the last of the slice. O([`STEP_ITEMS`]), no more than [`STEP_BYTES`] and an item of that length.
    ///
    /// # Panics
    /// Unless a slice of the cachelet is frozen.
    pub fn export(
        &self,
        prefix: Prefix,
        cursor: &mut Cursor,
        now: Seconds,
        out: &mut Vec<u8>,
    ) -> bool {
        let mut locked = self.leaver(prefix, now);
        let away = &locked.site.front.away;
        let (gone, frozen) = (away.gone(), away.frozen());
        assert!(gone < frozen, "a slice is frozen");
        cursor.from = cursor.from.max(gone as u64);
        locked.end_slice_at(prefix, cursor.from, frozen);
        if out.is_empty() {
            locked.heading(cursor).write(out);
        }
        if let Some(slice) = locked.site.slice_at(locked.site.entry(cursor.from)) {
            if locked.export_some(slice, cursor, out) {
                return true;
            }
        }
        cursor.slots = 0;
        // Who wrote to it before it froze may have split it since.
        let end = locked.site.end_of_slice(cursor.from);
        cursor.from = end as u64;
        if end < frozen {
            return true;
        }
        cursor.from = 0;
        false
    }

    /// Removes some items of the frozen slice, whose parts have all arrived; false when none is left, and the slice is gone.
    /// O([`STEP_ITEMS`]).
    pub fn forget(&self, prefix: Prefix, cursor: &mut Cursor, now: Seconds) -> bool {
        let mut locked = self.leaver(prefix, now);
        let away = &locked.site.front.away;
        let (gone, frozen) = (away.gone(), away.frozen());
        if gone < frozen {
            let from = gone as u64;
            locked.end_slice_at(prefix, from, frozen);
            if locked.forget_some(from) {
                return true;
            }
            let end = locked.site.end_of_slice(from).min(frozen);
            away.have_gone(end);
            if end < frozen {
                return true;
            }
        }
        cursor.restart_slice();
        false
    }

    /// The frozen slice is served here again: the destination has confirmed that it gave up what had arrived of it, see
    /// [`Store::give_up`], or cannot serve it any more.
    pub fn thaw(&self, prefix: Prefix, cursor: &mut Cursor, now: Seconds) {
        let locked = self.leaver(prefix, now);
        let away = &locked.site.front.away;
        away.freeze(away.gone());
        // What has been written meanwhile is to be sent.
        cursor.restart_slice();
    }

    /// The cachelet leaves no more: all of it is served here. What has gone is empty, and may have been served elsewhere, by who is dead
    /// now: so its cas leap ahead of all that were given there.
    ///
    /// # Panics
    /// Unless the cachelet leaves, and no slice of it is frozen.
    pub fn stay(&self, prefix: Prefix, now: Seconds) {
        let _changes = self.slots.changes();
        let cachelet = self.leaving(prefix);
        let (mut locked, away) = (self.lock_cachelet(cachelet, now), &cachelet.front.away);
        assert_eq!(away.gone(), away.frozen(), "what was frozen has thawed, or has gone");
        let any_gone = away.gone() > u128::from(prefix.first_hash());
        if any_gone && !is_planted(Fault::TakenBackWithoutLeap) {
            locked.inner.items.counter.leap();
        }
        locked.inner.chosen = None;
        drop(locked);
        self.becomes_whole(cachelet);
    }

    fn leaver(&self, prefix: Prefix, now: Seconds) -> Locked<'_> {
        self.lock_cachelet(self.leaving(prefix), now)
    }

    fn leaving(&self, prefix: Prefix) -> &Cachelet {
        let cachelet = self.present(prefix).filter(|one| one.front.away.leaves());
        cachelet.expect("the cachelet leaves")
    }
}

impl Locked<'_> {
    /// After a flush the index's slice may reach beyond what was frozen, and those who write there would move its items.
    fn end_slice_at(&mut self, prefix: Prefix, from: u64, frozen: u128) {
        let (site, goes_on) = (&self.site, frozen <= u128::from(prefix.last_hash()));
        if goes_on && site.end_of_slice(from) > frozen && site.slice_at(site.entry(from)).is_some()
        {
            self.part_at(frozen as u64);
        }
    }

    /// False if the slice of `hash` is short enough, or cannot be halved.
    fn halve_if_long(&mut self, hash: u64) -> bool {
        let Some(slice) = self.site.slice_of(hash) else { return false };
        let (items, mut some, mut count) = (slice.items().count(), [0; STEP_ITEMS], 0);
        for (at, offset) in some.iter_mut().zip(slice.offsets()) {
            prefetch(self.site.memory().at(offset));
            *at = offset;
            count += 1;
        }
        // The first ones stand for all: their order is that of hashes.
        let value_bytes = |&offset: &Offset| self.site.item(offset).value_bytes() as usize;
        let bytes: usize = some[..count].iter().map(value_bytes).sum();
        items >= HALVED_ITEMS_MIN
            && bytes * items > SLICE_BYTES * count
            && self.inner.index.split_slice(&mut self.site, hash)
    }

    /// True if there is more to be removed of the index's slice. Nobody reads it any more.
    fn forget_some(&mut self, from: u64) -> bool {
        let (site, inner) = (&self.site, &mut *self.inner);
        let (items, chosen) = (&mut inner.items, inner.chosen.as_deref());
        let entry = site.entry(from);
        let Some(slice) = site.slice_at(entry) else { return false };
        let (mut some, mut count) = ([(0, 0); STEP_ITEMS], 0);
        let mut all = slice.items_from(0);
        for (at, (slot, offset)) in some.iter_mut().zip(&mut all) {
            prefetch(site.memory().at(offset));
            *at = (slot, offset);
            count += 1;
        }
        let mut more = all.next().is_some();
        drop(all);
        let (mut bytes, mut left_behind) = (0, 0);
        for (done, &(slot, offset)) in some[..count].iter().enumerate() {
            if bytes >= FORGOTTEN_BYTES {
                (count, more) = (done, true);
                break;
            }
            let item = site.item(offset);
            bytes += item.value_bytes() as usize;
            left_behind += u64::from(!goes_along(site, chosen, item));
            slice.clear(slot);
            items.kill_record(site, offset);
        }
        items.counts.remove(count as u64);
        items.counts.left_behind(left_behind);
        if !more {
            self.inner.index.take_slice(&mut self.site, entry, &Entry::empty());
        }
        more
    }

    fn heading(&self, cursor: &Cursor) -> Heading {
        let (site, front, flushed) = (&self.site, self.site.front, &self.inner.flushed);
        let (gone, frozen) = (front.away.gone(), front.away.frozen());
        let slice = site.slice_at(site.entry(gone as u64));
        Heading {
            slice: cursor.slice,
            number: cursor.number,
            first: gone as u64,
            last: (frozen - 1) as u64,
            blocks: slice.map_or(0, |slice| slice.blocks() as u8),
            flush_next: flushed.next(),
            generation: front.generation() as u16,
            counter: self.inner.items.counter.last(),
            flush_number: flushed.number(),
            flush_in: remaining(front.flush_at(), site.now),
            unix: site.shared.clock.unix_at(site.now),
        }
    }

    /// True if there is more of the slice.
    fn export_some(&self, slice: Slice<'_>, cursor: &mut Cursor, out: &mut Vec<u8>) -> bool {
        let site = &self.site;
        let (mut next, mut count) = ([(0, 0); STEP_ITEMS + 1], 0);
        for (at, (place, offset)) in next.iter_mut().zip(slice.items_from(cursor.slots)) {
            prefetch(site.memory().at(offset));
            *at = (place, offset);
            count += 1;
        }
        let most = out.len() + STEP_BYTES;
        for &(place, offset) in &next[..count.min(STEP_ITEMS)] {
            if out.len() >= most {
                return true;
            }
            let item = site.item(offset);
            let goes =
                !item.expired(site.now) && goes_along(site, self.inner.chosen.as_deref(), item);
            if cursor.value_at > 0 && (place > cursor.slots || !goes) {
                // Cleaning has evicted the item whose value was on its way, or its time has come.
                abandon(cursor, out);
            }
            cursor.slots = place;
            if goes && export_item(site, offset, cursor, out) {
                return true;
            }
            cursor.slots = place + 1;
        }
        if cursor.value_at > 0 {
            abandon(cursor, out);
        }
        count > STEP_ITEMS
    }
}

fn goes_along(site: &Site, chosen: Option<&AgeThresholds>, item: Item) -> bool {
    chosen.is_none_or(|chosen| chosen.choose(site.pages(), item, site.now))
}

/// True if there is more of its value.
fn export_item(site: &Site, offset: Offset, cursor: &mut Cursor, out: &mut Vec<u8>) -> bool {
    let (item, view) = (site.item(offset), site.view(offset));
    let meta = view.meta();
    if cursor.value_at > 0 && cursor.cas != meta.cas {
        abandon(cursor, out);
    }
    let value_bytes = meta.value_bytes as usize;
    let in_pieces = value_bytes > STEP_BYTES;
    if cursor.value_at == 0 {
        let mark = |set: bool, mark: u8| if set { mark } else { 0 };
        let fields = Fields {
            marks: mark(meta.stale, marks::STALE)
                | mark(meta.win, marks::WIN)
                | mark(meta.binary_key, marks::BINARY_KEY)
                | mark(meta.fetched, marks::FETCHED),
            flags: meta.flags,
            remaining: remaining(meta.deadline, site.now),
            idle: site.now.saturating_sub(meta.last_access),
            frequency: Access(item.access()).frequency() as u8,
            cas: meta.cas,
            value_bytes: meta.value_bytes,
        };
        write_item(&fields, item.key(), in_pieces, out);
    } else {
        write_further(out);
    }
    if !in_pieces {
        view.copy_value(out);
        return false;
    }
    let piece = (value_bytes - cursor.value_at).min(STEP_BYTES);
    write_length(piece, out);
    view.copy_piece(cursor.value_at, piece, out);
    cursor.value_at += piece;
    cursor.cas = meta.cas;
    if cursor.value_at == value_bytes {
        cursor.value_at = 0;
        return false;
    }
    true
}

fn abandon(cursor: &mut Cursor, out: &mut Vec<u8>) {
    write_further(out);
    write_length(0, out);
    cursor.value_at = 0;
}

/// Seconds until `deadline`; 0 stays "never".
fn remaining(deadline: Seconds, now: Seconds) -> Seconds {
    if deadline == 0 { 0 } else { deadline.saturating_sub(now).max(1) }
}
