//! Slices that travel to another server.

use mbal_model::{Key, Prefix, Seconds, WorkerId};

use crate::cachelet::{Cachelet, Locked};
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
    /// Appends the slice that `from` falls into to `out`; the first hash of the next slice, if the
    /// cachelet has one. Times travel as what remains and what has passed.
    ///
    /// # Panics
    /// If no key of the cachelet is served here.
    pub fn export(
        &self,
        prefix: Prefix,
        from: u64,
        now: Seconds,
        out: &mut Vec<u8>,
    ) -> Option<u64> {
        let locked = self.lock_cachelet(self.present(prefix).expect("it is here"), now);
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
        locked.end_of(entry).filter(|next| prefix.contains(*next))
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
    pub fn forget(&self, prefix: Prefix, from: u64, now: Seconds) {
        let Some(cachelet) = self.present(prefix) else { return };
        let mut locked = self.lock_cachelet(cachelet, now);
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
        let first = self.cachelet.prefix().expect("it is here").first_hash();
        Prefix::of(first, self.cachelet.prefix_bits.load(Relaxed)).first_hash()
    }

    fn join_generation(&mut self, generation: u16, counter: u64) {
        if self.inner.counter == self.inner.counter_at_birth {
            self.inner.counter = 0;
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
