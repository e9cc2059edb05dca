//! The store as a worker drives it: an epoch around each batch, room reserved before each write.

use std::thread;

use mbal_cachelet::{Draft, Full, Options, Room, Store};
use mbal_model::{Key, Seconds, WorkerId};

/// Steps of background work between two looks at the clock, as the server asks for.
const BACKGROUND_STEPS: usize = 1;

/// One of the store's workers.
pub struct Engine<'s> {
    pub store: &'s Store,
    pub worker: WorkerId,
    value: Vec<u8>,
}

pub fn options(memory_bytes: usize, workers: usize, cachelets: usize) -> Options {
    Options {
        memory_bytes,
        workers,
        cachelets,
        item_bytes_max: 1 << 20,
        evict: true,
        generation: 1,
    }
}

impl<'s> Engine<'s> {
    pub fn new(store: &'s Store, worker: u16) -> Engine<'s> {
        Engine { store, worker: WorkerId(worker), value: Vec::new() }
    }

    /// What a worker does between two batches.
    pub fn rest(&self, now: Seconds) {
        self.store.background(self.worker, now, BACKGROUND_STEPS);
    }

    /// Reads and copies the value; whether there is one.
    pub fn get(&mut self, key: &Key, now: Seconds) -> bool {
        self.value.clear();
        self.store.enter(self.worker);
        let read =
            self.store.read(key, now, true, &mut self.value, |view, out| view.copy_value(out));
        self.store.leave(self.worker);
        read.is_some()
    }

    /// Reads through: whether it hit. What misses is stored, unless it finds no room.
    pub fn ask(&mut self, key: &Key, value: &[u8], now: Seconds) -> bool {
        let hits = self.get(key, now);
        if !hits {
            let draft = Draft { parts: &[value], ..Draft::default() };
            let _kept = self.set(key, &draft, now);
        }
        hits
    }

    pub fn set(&mut self, key: &Key, draft: &Draft, now: Seconds) -> Result<u64, Full> {
        let bytes = draft.parts.iter().map(|part| part.len()).sum();
        self.store.enter(self.worker);
        make_room(self.store, self.worker, key.hash(), bytes, now);
        let stored = self.store.lock(key.hash(), now).put(key, draft);
        self.store.leave(self.worker);
        self.rest(now);
        stored
    }
}

/// Sees to it that there is room, coming again while memory is in use, as a server's worker does.
pub fn make_room(store: &Store, worker: WorkerId, hash: u64, bytes: usize, now: Seconds) {
    while store.reserve_at_once(worker, hash, bytes, now) == Room::InUse {
        thread::yield_now();
    }
}
