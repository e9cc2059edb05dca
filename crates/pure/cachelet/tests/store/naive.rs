//! The slow and obvious store: one map per cachelet behind one lock. Oracle of the real one.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use mbal_model::{Key, Seconds};

use mbal_cachelet::{Draft, Full, Meta, Options, StoreStats};

struct Item {
    meta: Meta,
    value: Vec<u8>,
    sequence: u64,
}

#[derive(Default)]
struct Naive {
    items: BTreeMap<Vec<u8>, Item>,
    counter: u64,
    /// Items with a lower sequence are flushed.
    watermark: u64,
    /// Second at which the watermark rises to the counter; 0 is none.
    flush_at: Seconds,
    stats: StoreStats,
}

pub struct Store {
    options: Options,
    cachelets: Vec<Mutex<Naive>>,
}

/// What a reader is shown of an item. Valid only inside the closure that was given it.
pub struct View<'a> {
    meta: Meta,
    value: &'a [u8],
}

impl View<'_> {
    pub fn meta(&self) -> Meta {
        self.meta
    }

    /// Appends the value to `out`.
    pub fn copy_value(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.value);
    }
}

/// An item found under the writer lock; good until the next change of the cachelet.
#[derive(Clone, Copy)]
pub struct Found<'k> {
    key: Key<'k>,
}

/// The writer lock of one cachelet, held for one operation.
pub struct Locked<'a> {
    inner: MutexGuard<'a, Naive>,
    options: &'a Options,
    /// The upper 16 bits of a cas.
    generation: u16,
    now: Seconds,
}

impl Store {
    pub fn new(options: Options) -> Store {
        let nodes = (1 << 16) / options.cachelets as u64;
        // The counters of cachelets that are born together begin 2^28 a virtual node apart.
        let born = |at| Naive { counter: (at * nodes) << 28, ..Naive::default() };
        let cachelets = (0..options.cachelets as u64).map(|at| Mutex::new(born(at))).collect();
        Store { options, cachelets }
    }

    /// Index of the cachelet that serves `hash`: its highest bits.
    #[inline]
    pub fn cachelet_of(&self, hash: u64) -> usize {
        let bits = self.options.cachelets.trailing_zeros();
        if bits == 0 { 0 } else { (hash >> (64 - bits)) as usize }
    }

    /// Shows the live item of `key` to `show`, and counts as an access if `access`.
    ///
    /// Optimistic: `show` may be called again when a writer came in between, with `out` cut back
    /// to its length before, so it must have no other effect. `None` is a miss.
    pub fn read<R>(
        &self,
        key: &Key,
        now: Seconds,
        access: bool,
        out: &mut Vec<u8>,
        mut show: impl FnMut(&View, &mut Vec<u8>) -> R,
    ) -> Option<R> {
        let mut locked = self.lock(key.hash(), now);
        let found = locked.find(key)?;
        let shown = locked.view(&found, |view| show(view, out));
        if access {
            locked.accessed(&found);
        }
        Some(shown)
    }

    /// Takes the writer lock of the cachelet that serves `hash`.
    pub fn lock(&self, hash: u64, now: Seconds) -> Locked<'_> {
        let mut inner =
            self.cachelets[self.cachelet_of(hash)].lock().expect("no panics under lock");
        if inner.flush_at != 0 && inner.flush_at <= now {
            inner.watermark = inner.counter + 1;
            inner.flush_at = 0;
        }
        Locked { inner, options: &self.options, generation: self.options.generation, now }
    }

    /// `flush_all`: everything stored before second `at` dies then; at once if `at` ≤ `now`.
    pub fn flush(&self, at: Seconds, now: Seconds) {
        for cachelet in &self.cachelets {
            let mut inner = cachelet.lock().expect("no panics under lock");
            if at <= now {
                inner.watermark = inner.counter + 1;
                inner.flush_at = 0;
            } else {
                inner.flush_at = at;
            }
        }
    }
}

impl Locked<'_> {
    /// The key's live item. One that has expired or was flushed is removed on the way.
    pub fn find<'k>(&mut self, key: &Key<'k>) -> Option<Found<'k>> {
        let now = self.now;
        let watermark = self.inner.watermark;
        let item = self.inner.items.get(key.bytes())?;
        let expired = item.meta.deadline != 0 && item.meta.deadline <= now;
        if expired || item.sequence < watermark {
            self.inner.items.remove(key.bytes());
            return None;
        }
        Some(Found { key: *key })
    }

    pub fn view<R>(&self, found: &Found, show: impl FnOnce(&View) -> R) -> R {
        let item = &self.inner.items[found.key.bytes()];
        show(&View { meta: item.meta, value: &item.value })
    }

    /// Stores an item, replacing the key's old one; its cas.
    pub fn put(&mut self, key: &Key, draft: &Draft) -> Result<u64, Full> {
        let value = draft.parts.concat();
        if key.bytes().len() + value.len() > self.options.item_bytes_max {
            return Err(Full::TooLarge);
        }
        self.inner.counter += 1;
        let sequence = self.inner.counter;
        let cas = draft.cas.unwrap_or(u64::from(self.generation) << 48 | sequence);
        let meta = Meta {
            flags: draft.flags,
            deadline: draft.deadline,
            cas,
            last_access: self.now,
            fetched: false,
            stale: draft.stale,
            win: draft.win,
            binary_key: draft.binary_key,
            value_bytes: value.len() as u32,
        };
        self.inner.stats.total_items += 1;
        self.inner.items.insert(key.bytes().to_vec(), Item { meta, value, sequence });
        Ok(cas)
    }

    /// As [`Locked::put`]: it looks for itself.
    pub fn put_found(
        &mut self,
        key: &Key,
        _found: Option<&Found>,
        draft: &Draft,
    ) -> Result<u64, Full> {
        self.put(key, draft)
    }

    pub fn remove(&mut self, found: &Found) {
        self.inner.items.remove(found.key.bytes());
    }

    /// Changes the deadline, not the cas. May fail where a field has to be added to a full cache.
    pub fn touch(&mut self, found: &Found, deadline: Seconds) -> Result<(), Full> {
        self.item(found).deadline = deadline;
        Ok(())
    }

    /// Sets both marks of meta's stale items, and a new cas if one is given.
    pub fn mark(
        &mut self,
        found: &Found,
        stale: bool,
        win: bool,
        cas: Option<u64>,
    ) -> Result<(), Full> {
        let meta = self.item(found);
        meta.stale = stale;
        meta.win = win;
        if let Some(cas) = cas {
            meta.cas = cas;
        }
        Ok(())
    }

    /// The cas that the next stored item would get; consumes it.
    pub fn next_cas(&mut self) -> u64 {
        self.inner.counter += 1;
        u64::from(self.generation) << 48 | self.inner.counter
    }

    /// Counts as a read: last access, fetched, frequency.
    pub fn accessed(&mut self, found: &Found) {
        let now = self.now;
        let meta = self.item(found);
        meta.last_access = now;
        meta.fetched = true;
    }

    fn item(&mut self, found: &Found) -> &mut Meta {
        &mut self.inner.items.get_mut(found.key.bytes()).expect("found under this lock").meta
    }
}
