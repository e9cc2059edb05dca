//! The paper's rivals: one table that all threads share, under one lock (memcached then) or a lock per
//! bucket (Mercury), with free lists by size class that all threads share.
//!
//! ```text
//! bucket, one line:  | lock | more | 7 × (tag 16, read 1, offset 32) |
//! item, in words:    | hash | lengths | key... | value... |
//! ```
//!
//! As good as the design allows: tags in the bucket's own line, so that a get costs two cache misses as
//! ours does; values of the same length are overwritten in place; eviction is a CLOCK per size class,
//! whose bit a hit sets without another lock; in batches, misses overlap and the one lock is taken once.
//! Shared bytes are relaxed atomics, which cost what plain ones do.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Mutex, MutexGuard};

use mbal_model::Key;

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Locking {
    Table,
    Bucket,
}

const SLOTS: usize = 7;
const OFFSET: u64 = u32::MAX as u64;
const READ: u64 = 1 << 32;
const TAG_SHIFT: u32 = 48;
const HEADER_WORDS: usize = 2;

/// Words of a slab page, cut into slots of one class.
const PAGE_WORDS: usize = (1 << 20) / 8;

#[derive(Default)]
#[repr(align(64))]
struct Bucket {
    lock: AtomicU32,
    /// Index of the next bucket of this chain; 0 is none.
    more: AtomicU32,
    slots: [AtomicU64; SLOTS],
}

#[derive(Default)]
struct Class {
    slot_words: usize,
    free: Vec<u32>,
    pages: Vec<u32>,
    /// Where the CLOCK's hand stands, in slots of its pages.
    hand: usize,
}

/// What all threads allocate from.
struct Slabs {
    classes: Vec<Class>,
    /// Words from here on were never used; 0 is nowhere.
    fresh: usize,
}

pub struct Rival {
    locking: Locking,
    buckets: Box<[Bucket]>,
    /// Buckets that hashes choose from; the rest are for chains.
    homes: usize,
    /// The next bucket for a chain.
    chained: AtomicU32,
    words: Box<[AtomicU64]>,
    slabs: Mutex<Slabs>,
}

/// Where an item hangs: bucket and slot.
type Place = (usize, usize);

impl Rival {
    /// For so many bytes, index and items together, of which each item takes about `item_bytes`.
    pub fn new(locking: Locking, memory_bytes: usize, item_bytes: usize) -> Rival {
        let slot_bytes = 8 * HEADER_WORDS + item_bytes;
        // Two to four of seven slots full on average: few chains.
        let homes = memory_bytes / (slot_bytes + 16) / 4;
        let buckets = homes + homes / 8;
        let words = (memory_bytes - buckets * size_of::<Bucket>()) / 8;
        let step = |&words: &usize| (words < PAGE_WORDS / 2).then_some((words * 5).div_ceil(4));
        let classes = std::iter::successors(Some(HEADER_WORDS + 1), step);
        let class = |slot_words| Class { slot_words, ..Class::default() };
        Rival {
            locking,
            buckets: (0..buckets).map(|_| Bucket::default()).collect(),
            homes,
            words: (0..words).map(|_| AtomicU64::new(0)).collect(),
            slabs: Mutex::new(Slabs { classes: classes.map(class).collect(), fresh: PAGE_WORDS }),
            chained: AtomicU32::new(homes as u32),
        }
    }

    fn slabs(&self) -> MutexGuard<'_, Slabs> {
        self.slabs.lock().expect("nobody panics with it held")
    }

    /// The one lock of the table, where it has one.
    pub fn table(&self) -> Table<'_> {
        Table { whole: (self.locking == Locking::Table).then(|| self.slabs()), rival: self }
    }

    fn home(&self, hash: u64) -> usize {
        ((hash & u64::from(u32::MAX)) as usize * self.homes) >> 32
    }

    /// Loads what a lookup will need, so that the misses of a group overlap.
    pub fn prefetch_bucket(&self, hash: u64) -> u64 {
        self.buckets[self.home(hash)].slots[0].load(Relaxed)
    }

    pub fn prefetch_item(&self, hash: u64) -> u64 {
        let slots = &self.buckets[self.home(hash)].slots;
        let tagged = |slot: &&AtomicU64| slot.load(Relaxed) >> TAG_SHIFT == hash >> TAG_SHIFT;
        let offset = slots.iter().find(tagged).map_or(0, |slot| slot.load(Relaxed) & OFFSET);
        self.words[offset as usize].load(Relaxed)
    }

    fn locked<R>(&self, hash: u64, act: impl FnOnce() -> R) -> R {
        if self.locking == Locking::Table {
            return act();
        }
        let lock = &self.buckets[self.home(hash)].lock;
        let mut spins = 0;
        while lock.compare_exchange_weak(0, 1, Acquire, Relaxed).is_err() {
            spins += 1;
            if spins % 64 == 0 { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
        let done = act();
        lock.store(0, Release);
        done
    }

    fn chain(&self, hash: u64) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(Some(self.home(hash)), |&at| {
            Some(self.buckets[at].more.load(Relaxed) as usize).filter(|&more| more != 0)
        })
    }

    fn find(&self, hash: u64, accept: impl Fn(usize) -> bool) -> Option<Place> {
        self.chain(hash).find_map(|bucket| {
            let slot = self.buckets[bucket].slots.iter().position(|slot| {
                let word = slot.load(Relaxed);
                let offset = (word & OFFSET) as usize;
                word >> TAG_SHIFT == hash >> TAG_SHIFT && offset != 0 && accept(offset)
            })?;
            Some((bucket, slot))
        })
    }

    fn find_key(&self, key: &Key) -> Option<Place> {
        self.find(key.hash(), |offset| self.is_key(offset, key))
    }

    fn is_key(&self, offset: usize, key: &Key) -> bool {
        self.words[offset + 1].load(Relaxed) as u32 as usize == key.bytes().len()
            && key
                .bytes()
                .chunks(8)
                .zip(&self.words[offset + HEADER_WORDS..])
                .all(|(part, word)| word.load(Relaxed) == word_of(part))
    }

    fn offset(&self, (bucket, slot): Place) -> usize {
        (self.buckets[bucket].slots[slot].load(Relaxed) & OFFSET) as usize
    }

    fn value_words(&self, offset: usize) -> (usize, usize) {
        let lengths = self.words[offset + 1].load(Relaxed);
        let (key_bytes, value_bytes) = (lengths as u32 as usize, (lengths >> 32) as usize);
        (offset + HEADER_WORDS + key_bytes.div_ceil(8), value_bytes)
    }

    fn write(&self, mut at: usize, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            self.words[at].store(word_of(part), Relaxed);
            at += 1;
        }
    }

    /// Hangs an item into its chain, longer by a bucket if it must; what hung there under its key.
    fn link(&self, key: &Key, offset: usize) -> Option<usize> {
        let word = key.hash() >> TAG_SHIFT << TAG_SHIFT | offset as u64;
        if let Some((bucket, slot)) = self.find_key(key) {
            let old = self.offset((bucket, slot));
            self.buckets[bucket].slots[slot].store(word, Relaxed);
            return Some(old);
        }
        let slots = self.chain(key.hash()).flat_map(|bucket| &self.buckets[bucket].slots);
        let free = slots.into_iter().find(|slot| slot.load(Relaxed) == 0);
        let slot = free.unwrap_or_else(|| {
            let more = self.chained.fetch_add(1, Relaxed);
            let last = self.chain(key.hash()).last().expect("its home is in it");
            self.buckets[last].more.store(more, Relaxed);
            &self.buckets[more as usize].slots[0]
        });
        slot.store(word, Relaxed);
        None
    }

    fn words_of(&self, offset: usize) -> usize {
        let (at, bytes) = self.value_words(offset);
        at + bytes.div_ceil(8) - offset
    }
}

/// A rival, its one lock taken if it has one: for one operation, or for a batch.
pub struct Table<'r> {
    rival: &'r Rival,
    whole: Option<MutexGuard<'r, Slabs>>,
}

impl Table<'_> {
    pub fn get(&mut self, key: &Key, out: &mut Vec<u8>) -> bool {
        let rival = self.rival;
        rival.locked(key.hash(), || {
            let Some((bucket, slot)) = rival.find_key(key) else { return false };
            let slot = &rival.buckets[bucket].slots[slot];
            let word = slot.load(Relaxed);
            if word & READ == 0 {
                slot.store(word | READ, Relaxed);
            }
            let (at, bytes) = rival.value_words((word & OFFSET) as usize);
            let begin = out.len();
            for word in &rival.words[at..at + bytes.div_ceil(8)] {
                out.extend_from_slice(&word.load(Relaxed).to_le_bytes());
            }
            out.truncate(begin + bytes);
            true
        })
    }

    pub fn set(&mut self, key: &Key, value: &[u8]) {
        let rival = self.rival;
        let in_place = rival.locked(key.hash(), || {
            let Some(place) = rival.find_key(key) else { return false };
            let (at, bytes) = rival.value_words(rival.offset(place));
            if bytes == value.len() {
                rival.write(at, value);
            }
            bytes == value.len()
        });
        if in_place {
            return;
        }
        let words = HEADER_WORDS + key.bytes().len().div_ceil(8) + value.len().div_ceil(8);
        let offset = self.slabs(|slabs| slabs.take(rival, words));
        rival.words[offset].store(key.hash(), Relaxed);
        let lengths = key.bytes().len() as u64 | (value.len() as u64) << 32;
        rival.words[offset + 1].store(lengths, Relaxed);
        rival.write(offset + HEADER_WORDS, key.bytes());
        rival.write(rival.value_words(offset).0, value);
        if let Some(old) = rival.locked(key.hash(), || rival.link(key, offset)) {
            let words = rival.words_of(old);
            self.slabs(|slabs| slabs.class(words).free.push(old as u32));
        }
    }

    fn slabs<R>(&mut self, act: impl FnOnce(&mut Slabs) -> R) -> R {
        match &mut self.whole {
            Some(slabs) => act(slabs),
            None => act(&mut self.rival.slabs()),
        }
    }
}

impl Slabs {
    fn class(&mut self, words: usize) -> &mut Class {
        let fits = |class: &&mut Class| class.slot_words >= words;
        self.classes.iter_mut().find(fits).expect("the largest class takes half a page")
    }

    /// A slot for so many words, by eviction where nothing is free.
    fn take(&mut self, rival: &Rival, words: usize) -> usize {
        let fresh = self.fresh;
        if self.class(words).free.is_empty() && fresh + PAGE_WORDS <= rival.words.len() {
            let class = self.class(words);
            let slots = (0..PAGE_WORDS / class.slot_words).rev();
            class.free.extend(slots.map(|slot| (fresh + slot * class.slot_words) as u32));
            class.pages.push(fresh as u32);
            self.fresh += PAGE_WORDS;
        }
        let class = self.class(words);
        class.free.pop().map_or_else(|| class.evict(rival), |slot| slot as usize)
    }
}

impl Class {
    /// Goes round its slots: whoever was read since the last round stays for another.
    fn evict(&mut self, rival: &Rival) -> usize {
        let per_page = PAGE_WORDS / self.slot_words;
        assert!(!self.pages.is_empty(), "a memory has pages of every size that it is asked for");
        loop {
            let offset =
                self.pages[self.hand / per_page] as usize + self.hand % per_page * self.slot_words;
            self.hand = (self.hand + 1) % (self.pages.len() * per_page);
            let hash = rival.words[offset].load(Relaxed);
            let evicted = rival.locked(hash, || {
                // None where another thread is about to link it.
                let (bucket, slot) = rival.find(hash, |other| other == offset)?;
                let slot = &rival.buckets[bucket].slots[slot];
                let word = slot.load(Relaxed);
                slot.store(if word & READ == 0 { 0 } else { word & !READ }, Relaxed);
                (word & READ == 0).then_some(offset)
            });
            if let Some(offset) = evicted {
                return offset;
            }
        }
    }
}

fn word_of(part: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    bytes[..part.len()].copy_from_slice(part);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn with_key<R>(number: u32, act: impl FnOnce(&Key) -> R) -> R {
        act(&Key::new(format!("{number:010}").as_bytes()).expect("ten bytes"))
    }

    #[test]
    fn a_rival_answers_as_a_map_does_or_has_evicted() {
        for locking in [Locking::Table, Locking::Bucket] {
            let rival = Rival::new(locking, 8 << 20, 16);
            let mut random = mbal_bench::Random::new(5);
            let mut map = HashMap::new();
            let mut hits = 0;
            for step in 0..400_000u32 {
                let number = random.below(300_000) as u32;
                let mut out = Vec::new();
                let hit = with_key(number, |key| rival.table().get(key, &mut out));
                if hit {
                    assert_eq!(map.get(&number), Some(&out), "{locking:?}, step {step}");
                    hits += 1;
                }
                let value = vec![step as u8; 8 + step as usize % 3];
                with_key(number, |key| rival.table().set(key, &value));
                map.insert(number, value);
            }
            assert!((40_000..250_000).contains(&hits), "{locking:?}: {hits} hits");
        }
    }

    #[test]
    fn threads_share_a_table_by_bucket_locks() {
        let rival = Rival::new(Locking::Bucket, 8 << 20, 16);
        std::thread::scope(|scope| {
            for seed in 0..3 {
                let rival = &rival;
                scope.spawn(move || {
                    let mut random = mbal_bench::Random::new(seed);
                    for _ in 0..200_000 {
                        let number = random.below(200_000) as u32;
                        let value = number.to_le_bytes().repeat(1 + seed as usize);
                        let mut out = Vec::new();
                        if with_key(number, |key| rival.table().get(key, &mut out)) {
                            assert!(out.chunks(4).all(|part| part == number.to_le_bytes()));
                        }
                        with_key(number, |key| rival.table().set(key, &value));
                    }
                });
            }
        });
    }
}
