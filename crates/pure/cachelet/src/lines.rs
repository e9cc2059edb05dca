//! Workers that own their keys, on real threads, and the cache lines that they share (`docs/design/cores.md`).

use std::sync::Barrier;
use std::thread;

use mbal_model::{Key, Route, WorkerId};
use mbal_random::Random;

use crate::apart::Apart;
use crate::counted::{ByLine, counted};
use crate::room::Room;
use crate::shim::{AtomicU64, Ordering};
use crate::store::Store;
use crate::types::{Draft, Options};

const WORKERS: usize = 2;
const MEMORY_BYTES: usize = 32 << 20;
const BATCH: usize = 8;
const REQUESTS: usize = 40_000;
/// Of a worker's requests, one in so many may touch a line that another writes...
const SHARED_PER: u64 = 1_000;
/// ...at least once in so many of its own.
const WRITTEN_PER: u64 = 16;

fn options() -> Options {
    Options {
        memory_bytes: MEMORY_BYTES,
        workers: WORKERS,
        cachelets: 2 * WORKERS,
        item_bytes_max: 1 << 20,
        evict: true,
        generation: 1,
    }
}

/// Requests of one worker, of which every fourth is a get, as a server's loop does them.
struct Worker<'s> {
    store: &'s Store,
    id: WorkerId,
    random: Random,
    value: Vec<u8>,
    keys: u64,
    out: Vec<u8>,
}

impl Worker<'_> {
    fn batch(&mut self) {
        const NOW: u32 = 1;
        self.store.enter(self.id);
        for at in 0..BATCH {
            let text = loop {
                let text = self.random.below(self.keys).to_string();
                let key = Key::new(text.as_bytes()).expect("digits");
                if self.store.route(self.id, key.hash()) == Route::Own {
                    break text;
                }
            };
            let key = Key::new(text.as_bytes()).expect("digits");
            if at % 4 == 0 {
                self.out.clear();
                self.store.read(&key, NOW, true, &mut self.out, |view, out| view.copy_value(out));
                continue;
            }
            let (hash, bytes) = (key.hash(), self.value.len());
            while self.store.reserve_at_once(self.id, hash, bytes, NOW) == Room::InUse {
                thread::yield_now();
            }
            let draft = Draft { parts: &[&self.value], ..Draft::default() };
            self.store.lock(hash, NOW).put(&key, &draft).expect("there is room");
        }
        self.store.leave(self.id);
        self.store.background(self.id, NOW, 1);
    }
}

/// What each worker did to each line, in [`REQUESTS`] each, `beside` done with every one.
fn run(value_bytes: usize, beside: impl Fn(usize) + Sync) -> Vec<ByLine> {
    let store = Store::new(options());
    let (barrier, beside, store) = (Barrier::new(WORKERS), &beside, &store);
    let work = |at: usize| {
        let keys = (2 * MEMORY_BYTES / (value_bytes + 30)) as u64;
        let (id, value) = (WorkerId(at as u16), vec![7; value_bytes]);
        let random = Random::new(at as u64);
        let mut worker = Worker { store, id, random, value, keys, out: Vec::new() };
        (0..2 * keys as usize / WORKERS / BATCH).for_each(|_| worker.batch());
        barrier.wait();
        counted(|| {
            for _ in 0..REQUESTS / BATCH {
                worker.batch();
                (0..BATCH).for_each(|_| beside(at));
            }
        })
    };
    thread::scope(|scope| {
        let work = &work;
        let all: Vec<_> = (0..WORKERS).map(|at| scope.spawn(move || work(at))).collect();
        all.into_iter().map(|one| one.join().expect("no thread panics")).collect()
    })
}

/// Lines that one worker writes with its requests and another touches, with how often each did.
fn shared(by_worker: &[ByLine]) -> Vec<String> {
    let mut found = Vec::new();
    for (one, lines) in by_worker.iter().enumerate() {
        for (line, mine) in lines {
            let others = by_worker.iter().enumerate().filter(|&(other, _)| other != one);
            let others = others.filter_map(|(_, lines)| lines.get(line));
            let touched: u64 = others.map(|other| other.reads + other.writes).sum();
            let is_written = mine.writes * WRITTEN_PER >= REQUESTS as u64;
            if is_written && touched * SHARED_PER > REQUESTS as u64 {
                found.push(format!("{line:x}: {mine:?} by {one}, {touched} by others"));
            }
        }
    }
    found
}

/// Pages of longer items are full after fewer of them, and with each some line goes from one worker to the other.
#[test]
fn no_line_that_one_worker_writes_per_request_is_anothers() {
    for value_bytes in [32, 100] {
        let found = shared(&run(value_bytes, |_| ()));
        assert!(found.is_empty(), "{value_bytes} B: shared {found:#?}");
    }
}

#[test]
fn a_counter_of_all_is_found() {
    let counter = AtomicU64::new(0);
    let found = shared(&run(32, |_| {
        counter.fetch_add(1, Ordering::Relaxed);
    }));
    assert!(!found.is_empty());
}

#[test]
fn a_line_that_one_writes_and_all_read_is_found() {
    let words = Apart([AtomicU64::new(0), AtomicU64::new(0)]);
    let found = shared(&run(32, |worker| match worker {
        0 => words[0].store(1, Ordering::Relaxed),
        _ => drop(words[1].load(Ordering::Relaxed)),
    }));
    assert_eq!(found.len(), 1, "{found:#?}");
}
