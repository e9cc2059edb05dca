//! Cachelets that part: a split in two inside the server, and slices that travel to another one.
//!
//! Both go slice by slice, so that nobody waits for more than some hundred items.

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Key, Seconds, WorkerId};

use crate::cachelet::{Cachelet, Locked};
use crate::index::hash_of;
use crate::item::{Access, Item};
use crate::shim::Ordering::*;
use crate::slice::{Entry, Slice};
use crate::store::Store;
use crate::types::{Draft, Full};

/// The bytes of a slice do not read as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// An item on its way: fixed fields, then key and value.
const RECORD_BYTES: usize = 1 + 1 + 4 + 4 + 4 + 1 + 8 + 4;

mod travel_bits {
    pub const STALE: u8 = 1;
    pub const WIN: u8 = 2;
    pub const BINARY_KEY: u8 = 4;
    pub const FETCHED: u8 = 8;
}

impl Store {
    /// Begins to split a cachelet: its upper half will be the new cachelet that is returned, once
    /// [`Store::split_step`] has said that it is done. Every key stays reachable throughout.
    ///
    /// `None` if it is as narrow as cachelets get, the server has no more room for cachelets, or
    /// its last split is too recent.
    pub fn split(&self, id: usize, now: Seconds) -> Option<usize> {
        let parent = &self.cachelets[id];
        let mut locked = self.lock_cachelet(parent, now);
        if self.route_run(id).len() < 2 || self.is_splitting(parent) {
            return None;
        }
        if locked.inner.split_done.is_some_and(|stamp| !self.epochs.passed(stamp)) {
            return None;
        }
        let more = |used: u32| (self.cachelets.len() as u32 > used).then_some(used + 1);
        let child_id = self.in_use.fetch_update(AcqRel, Relaxed, more).ok()? as usize;
        let child = &self.cachelets[child_id];
        child.set_owner(parent.owner(), &self.version);
        child.prefix_bits.store(parent.prefix_bits.load(Relaxed), Relaxed);
        child.generation.store(parent.generation.load(Relaxed), Relaxed);
        child.flush_at.store(parent.flush_at.load(Relaxed), Relaxed);
        locked.inner.split_done = None;
        parent.child.store(child_id as u32 + 1, Release);
        if is_planted(Fault::RoutesBeforeItems) {
            let routes = self.route_run(id);
            for route in &self.routes[routes.start + routes.len() / 2..routes.end] {
                route.store(child_id as u32, Release);
            }
            self.version.fetch_add(1, Release);
        }
        Some(child_id)
    }

    fn is_splitting(&self, parent: &Cachelet) -> bool {
        let child = parent.child.load(Relaxed);
        child != 0 && self.route_run(child as usize - 1).is_empty()
    }

    /// Moves one slice of a cachelet that is being split; false once all have moved and the split is
    /// done. O(items of a slice).
    pub fn split_step(&self, id: usize, now: Seconds) -> bool {
        let parent = &self.cachelets[id];
        let mut locked = self.lock_cachelet(parent, now);
        if !self.is_splitting(parent) {
            return false;
        }
        let child_id = parent.child.load(Relaxed) as usize - 1;
        let routes = self.route_run(id);
        let upper = routes.start + routes.len() / 2..routes.end;
        let first = (upper.start as u64) << self.route_shift;
        let end =
            ((upper.end - 1) as u64) << self.route_shift | (u64::MAX >> (64 - self.route_shift));
        locked.part_at(first);
        let dir = locked.dir();
        let entries = locked.entry(first)..locked.entry(end) + 1;
        let next = entries.clone().find(|&entry| !dir.entries[entry].has_moved());
        let Some(entry) = next else {
            for route in upper {
                self.routes[route].store(child_id as u32, Release);
            }
            // The child may have been lent meanwhile: then these keys change their owner now.
            self.version.fetch_add(1, Release);
            locked.inner.split_done = Some(self.epochs.stamp());
            return false;
        };
        let mut child = self.lock_cachelet(&self.cachelets[child_id], now);
        child.inner.counter = child.inner.counter.max(locked.inner.counter);
        locked.hand_over(entry, &mut child);
        true
    }

    /// Entries of the route table that lead to cachelet `id`.
    pub(crate) fn route_run(&self, id: usize) -> std::ops::Range<usize> {
        let leads = |route: &usize| self.routes[*route].load(Relaxed) as usize == id;
        let Some(start) = (0..self.routes.len()).find(leads) else { return 0..0 };
        start..start + (start..self.routes.len()).take_while(leads).count()
    }

    /// The lowest hash that cachelet `id` serves.
    pub fn first_hash(&self, id: usize) -> u64 {
        (self.route_run(id).start as u64) << self.route_shift
    }

    /// Appends the slice that `from` falls into to `out`; the first hash of the next slice, if the
    /// cachelet has one. Times travel as what remains and what has passed.
    pub fn export(&self, id: usize, from: u64, now: Seconds, out: &mut Vec<u8>) -> Option<u64> {
        let locked = self.lock_cachelet(&self.cachelets[id], now);
        let (cachelet, now) = (locked.cachelet, locked.now);
        let entry = locked.entry(from);
        let all = locked.slice_at(entry).into_iter().flat_map(Slice::offsets);
        let is_live = |&offset: &_| !Item::at(&self.memory, offset).expired(now);
        let offsets: Vec<_> = all.filter(is_live).collect();
        let flush_at = cachelet.flush_at.load(Relaxed);
        out.extend((cachelet.generation.load(Relaxed) as u16).to_le_bytes());
        out.extend(locked.inner.counter.to_le_bytes());
        out.extend(remaining(flush_at, now).to_le_bytes());
        out.extend((offsets.len() as u32).to_le_bytes());
        for offset in offsets {
            self.export_item(cachelet, Item::at(&self.memory, offset), now, out);
        }
        let next = locked.end_of(entry)?;
        (self.cachelet_of(next) == id).then_some(next)
    }

    fn export_item(&self, cachelet: &Cachelet, item: Item, now: Seconds, out: &mut Vec<u8>) {
        let view = crate::view::View::new(self, cachelet, item, now);
        let meta = view.meta();
        let bit = |set: bool, bit: u8| if set { bit } else { 0 };
        out.push(item.key().len() as u8);
        out.push(
            bit(meta.stale, travel_bits::STALE)
                | bit(meta.win, travel_bits::WIN)
                | bit(meta.binary_key, travel_bits::BINARY_KEY)
                | bit(meta.fetched, travel_bits::FETCHED),
        );
        out.extend(meta.flags.to_le_bytes());
        out.extend(remaining(meta.deadline, now).to_le_bytes());
        out.extend((now - meta.last_access).to_le_bytes());
        out.push(Access(item.access()).frequency() as u8);
        out.extend(meta.cas.to_le_bytes());
        out.extend(meta.value_bytes.to_le_bytes());
        out.extend_from_slice(item.key());
        view.copy_value(out);
    }

    /// Removes every item of the slice that `from` falls into.
    pub fn forget(&self, id: usize, from: u64, now: Seconds) {
        let mut locked = self.lock_cachelet(&self.cachelets[id], now);
        let entry = locked.entry(from);
        if locked.dir().entries[entry].has_moved() {
            return;
        }
        for (_, offset) in locked.take_slice(entry, &Entry::empty()) {
            locked.inner.stats.items -= 1;
            locked.kill_record(offset);
        }
    }

    /// Stores what [`Store::export`] wrote; how many items. A cachelet that has given no cas yet goes
    /// on with the source's generation and counter, so that no cas is given twice.
    ///
    /// An item that finds no room is left out, as if evicted. Called by worker `worker`, which has entered.
    pub fn import(&self, worker: WorkerId, bytes: &[u8], now: Seconds) -> Result<usize, Broken> {
        let mut reader = Reader(bytes);
        let generation = u16::from_le_bytes(reader.array()?);
        let counter = u64::from_le_bytes(reader.array()?);
        let flush_in = u32::from_le_bytes(reader.array()?);
        let items = u32::from_le_bytes(reader.array()?) as usize;
        // Read whole before anything is stored: a broken slice changes nothing.
        let mut records = Vec::with_capacity(items.min(bytes.len() / RECORD_BYTES));
        for _ in 0..items {
            records.push(Record::read(&mut reader)?);
        }
        if !reader.0.is_empty() {
            return Err(Broken);
        }
        let mut stored = 0;
        for record in &records {
            let hash = record.key.hash();
            self.reserve(worker, hash, record.value.len(), now);
            let mut locked = self.lock(hash, now);
            locked.join_generation(generation, counter);
            if flush_in != 0 {
                locked.cachelet.flush_at.store(locked.now.saturating_add(flush_in), Relaxed);
            }
            stored += usize::from(record.store(&mut locked).is_ok());
        }
        Ok(stored)
    }
}

/// Seconds until `deadline`; 0 stays "never".
fn remaining(deadline: Seconds, now: Seconds) -> Seconds {
    if deadline == 0 { 0 } else { deadline.saturating_sub(now).max(1) }
}

impl Locked<'_> {
    /// The first hash after the slice of this entry, if there is one.
    fn end_of(&self, entry: usize) -> Option<u64> {
        let dir = self.dir();
        let prefix_bits = self.cachelet.prefix_bits.load(Relaxed);
        let prefix = match prefix_bits {
            0 => 0,
            bits => self.first_hash_of_dir() >> (64 - bits),
        };
        let place = (u128::from(prefix) << dir.depth()) + dir.run(entry).end as u128;
        u64::try_from(place << (64 - prefix_bits - dir.depth())).ok()
    }

    fn first_hash_of_dir(&self) -> u64 {
        let first = self.store.first_hash(self.store.id_of(self.cachelet));
        let prefix_bits = self.cachelet.prefix_bits.load(Relaxed);
        if prefix_bits == 0 { 0 } else { first >> (64 - prefix_bits) << (64 - prefix_bits) }
    }

    /// Sees to it that a slice begins at `hash`.
    fn part_at(&mut self, hash: u64) {
        loop {
            let entry = self.entry(hash);
            let begins = hash == 0 || self.entry(hash - 1) != entry;
            let run = self.dir().run(entry);
            let has_slice = self.slice_at(entry).is_some();
            if begins && (run.start == entry || !has_slice) {
                return;
            }
            let parted = has_slice && self.split_slice(hash);
            if !parted {
                // Empty, or no memory to split it: then the directory grows, and a full slice
                // that still spans the place is given up below.
                self.double_dir();
                let entry = self.entry(hash);
                if has_slice && self.dir().run(entry).start != entry {
                    for (_, offset) in self.take_slice(entry, &Entry::empty()) {
                        self.inner.stats.evictions += 1;
                        self.inner.stats.items -= 1;
                        self.kill_record(offset);
                    }
                }
            }
        }
    }

    /// Moves the slice of `entry` to `child`.
    fn hand_over(&mut self, entry: usize, child: &mut Locked<'_>) {
        let memory = &self.store.memory;
        for offset in self.slice_at(entry).into_iter().flat_map(Slice::offsets) {
            let log = self.page(self.page_of(offset)).log.load(Relaxed) as usize;
            // No room: as if evicted.
            if child.adopt(hash_of(memory, offset), offset, log).is_err() {
                child.inner.stats.evictions += 1;
            }
        }
        for (_, offset) in self.take_slice(entry, &Entry::moved()) {
            self.inner.stats.items -= 1;
            self.kill_record(offset);
        }
    }

    fn join_generation(&mut self, generation: u16, counter: u64) {
        if self.inner.counter == 0 {
            self.cachelet.generation.store(u32::from(generation), Relaxed);
        }
        if self.cachelet.generation.load(Relaxed) == u32::from(generation) {
            self.inner.counter = self.inner.counter.max(counter);
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Broken> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(Broken)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Broken> {
        Ok(self.take(N)?.try_into().expect("taken by this length"))
    }

    fn seconds(&mut self) -> Result<Seconds, Broken> {
        Ok(u32::from_le_bytes(self.array()?))
    }
}

struct Record<'a> {
    key: Key<'a>,
    marks: u8,
    flags: u32,
    remaining: Seconds,
    idle: Seconds,
    frequency: u8,
    cas: u64,
    value: &'a [u8],
}

impl<'a> Record<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Record<'a>, Broken> {
        let [key_bytes, marks] = reader.array()?;
        let flags = u32::from_le_bytes(reader.array()?);
        let (remaining, idle) = (reader.seconds()?, reader.seconds()?);
        let [frequency] = reader.array()?;
        let cas = u64::from_le_bytes(reader.array()?);
        let value_bytes = u32::from_le_bytes(reader.array()?) as usize;
        let key = Key::new(reader.take(usize::from(key_bytes))?).ok_or(Broken)?;
        let value = reader.take(value_bytes)?;
        Ok(Record { key, marks, flags, remaining, idle, frequency, cas, value })
    }

    fn store(&self, locked: &mut Locked<'_>) -> Result<(), Full> {
        let has = |bit: u8| self.marks & bit != 0;
        let draft = Draft {
            flags: self.flags,
            deadline: if self.remaining == 0 {
                0
            } else {
                locked.now.saturating_add(self.remaining)
            },
            parts: &[self.value],
            cas: Some(self.cas),
            stale: has(travel_bits::STALE),
            win: has(travel_bits::WIN),
            binary_key: has(travel_bits::BINARY_KEY),
        };
        locked.put(&self.key, &draft)?;
        let last = locked.now.saturating_sub(self.idle);
        let (frequency, era) = (u32::from(self.frequency), locked.store.era());
        let access = Access::new(last, frequency, has(travel_bits::FETCHED), era);
        let place = locked.place_of(&self.key).expect("stored just now");
        Item::at(&locked.store.memory, place.offset).set_access(access.0);
        Ok(())
    }
}
