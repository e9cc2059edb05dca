//! All workers read and write the same few keys while slices and cachelets split, pages are cleaned
//! and reused, cachelets change owners, leave and come, the memory limit moves and everything is flushed. No value may be
//! torn, none stale.
//!
//! `MBAL_TORTURE_SECONDS` says for how long (default 2).

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mbal_cachelet::{Birth, Draft, Memory, Store};
use mbal_model::{Elsewhere, Key, Prefix, Route, ServerId, WorkerId};
use mbal_random::Random;

use crate::limit::Fragile;
use crate::support::{make_room, options};

const KEYS: u64 = 200;
const WORKERS: usize = 4;
const CACHELETS: usize = 4;
const PATIENCE: Duration = Duration::from_secs(120);

/// What is known of a key beside the store.
#[derive(Default)]
struct Known {
    /// Versions are given, and take effect, in the order of this lock.
    writing: Mutex<()>,
    started: AtomicU64,
    finished: AtomicU64,
}

/// A value of words that all say the same: key and version. The first says its length too.
pub fn value(key: u64, version: u64, out: &mut Vec<u8>) {
    out.clear();
    // Few lengths, so that most writes overwrite in place, and some that need chunks.
    let words = [2, 5, 40, 40, 40, 40, 300, 5_000][(version % 8) as usize];
    out.extend(std::iter::repeat_n((key << 48 | version).to_le_bytes(), words).flatten());
}

pub fn check(key: u64, bytes: &[u8]) -> u64 {
    let word = |chunk: &[u8]| u64::from_le_bytes(chunk.try_into().expect("chunks of 8"));
    let first = word(&bytes[..8]);
    let version = first & ((1 << 48) - 1);
    assert_eq!(first >> 48, key, "another key's value");
    let mut whole = Vec::new();
    value(key, version, &mut whole);
    assert!(bytes == whole, "a torn value of version {version}");
    version
}

/// How often what is rare has happened.
#[derive(Default, Debug)]
struct Met {
    splits: AtomicU64,
    released: AtomicU64,
    adopted: AtomicU64,
}

impl Met {
    fn is_enough(&self) -> bool {
        [&self.splits, &self.released, &self.adopted].iter().all(|met| met.load(Relaxed) > 5)
    }
}

fn worker(
    id: usize,
    store: &Store,
    known: &[Known],
    stop: &AtomicBool,
    met: &Met,
    seed: u64,
) -> u64 {
    let count = |met: &AtomicU64, done: bool| met.fetch_add(done.into(), Relaxed);
    let me = WorkerId(id as u16);
    let mut random = Random::new(seed + id as u64);
    let (mut out, mut bytes) = (Vec::new(), Vec::new());
    let mut operations = 0;
    while !stop.load(Relaxed) {
        store.enter(me);
        for _ in 0..1 + random.below(16) {
            operations += 1;
            let n = random.below(KEYS) * random.below(KEYS) / KEYS;
            let text = format!("key:{n}");
            let key = Key::new(text.as_bytes()).expect("a valid key");
            let state = &known[n as usize];
            let what = random.below(100);
            if (60..90).contains(&what) {
                // The longest; what follows is of one epoch.
                make_room(store, me, key.hash(), 40_000, 9);
            }
            let ahead = store.prefetch_bucket(key.hash());
            if !matches!(store.route(me, key.hash()), Route::Own | Route::Neighbour(_)) {
                if random.below(50) == 0 {
                    // By another generation, as every time.
                    let generation = state.started.load(Relaxed) as u16;
                    let birth = Birth { generation, flush_number: 0 };
                    let prefix = Prefix::of(key.hash(), 2 + random.below(5) as u32);
                    count(&met.adopted, store.adopt(prefix, me, birth));
                }
                continue;
            }
            match what {
                0..60 => {
                    let before = state.finished.load(Acquire);
                    out.clear();
                    let hit = store.read(&key, 9, true, &mut out, |view, out| view.copy_value(out));
                    if hit.is_some() {
                        let version = check(n, &out);
                        assert!(
                            version >= before,
                            "stale: {version} after {before} was acknowledged"
                        );
                        assert!(version <= state.started.load(Acquire), "from the future");
                    }
                }
                60..90 => {
                    let Ok(_writing) = state.writing.try_lock() else { continue };
                    let version = state.started.fetch_add(1, AcqRel) + 1;
                    value(n, version, &mut bytes);
                    let mut locked = store.lock_ahead(ahead, key.hash(), 9);
                    let draft = Draft { parts: &[&bytes], ..Draft::default() };
                    let found = locked.find(&key);
                    if locked.put_found(&key, found.as_ref(), &draft).is_err() {
                        // The old value must not outlive a write that failed.
                        if let Some(found) = locked.find(&key) {
                            locked.remove(&found);
                        }
                    }
                    drop(locked);
                    state.finished.store(version, Release);
                }
                90..95 => {
                    let Ok(_writing) = state.writing.try_lock() else { continue };
                    let version = state.started.fetch_add(1, AcqRel) + 1;
                    let mut locked = store.lock(key.hash(), 9);
                    if let Some(found) = locked.find(&key) {
                        locked.remove(&found);
                    }
                    drop(locked);
                    state.finished.store(version, Release);
                }
                95 => {
                    // Filler, so that pages are cleaned and slices split.
                    let text = format!("filler:{}", random.below(60_000));
                    let key = Key::new(text.as_bytes()).expect("a valid key");
                    let filler = [0xee; 700];
                    let filler = &filler[..random.below(700) as usize];
                    make_room(store, me, key.hash(), filler.len(), 9);
                    if !matches!(store.route(me, key.hash()), Route::Own | Route::Neighbour(_)) {
                        continue;
                    }
                    let draft = Draft { parts: &[filler], ..Draft::default() };
                    // Refused where memory is short: then it is just not there.
                    store.lock(key.hash(), 9).put(&key, &draft).ok();
                }
                96 => {
                    let Some((prefix, owner)) = store.cachelet_of(key.hash()) else { continue };
                    store.give(prefix, owner, me, u64::MAX);
                    if random.below(500) == 0 {
                        let to = Elsewhere::Peer(ServerId(1));
                        count(&met.released, store.release(prefix, to));
                    }
                }
                97 if random.below(2_000) == 0 => _ = store.flush(0, 9),
                97 if random.below(200) == 0 => {
                    assert!(store.set_memory_limit((3 + random.below(5) as usize) << 20));
                }
                98 if random.below(40) == 0 => {
                    let whole = store.cachelet_of(key.hash()).filter(|(whole, _)| whole.bits() < 6);
                    let split = whole.is_some_and(|(whole, _)| store.split(whole, 9));
                    count(&met.splits, split);
                }
                99 => {
                    for whole in store.prefixes() {
                        store.split_step(whole, 9);
                    }
                }
                _ => {}
            }
        }
        store.leave(me);
        store.background(me, 9, 2);
    }
    operations
}

#[test]
fn no_value_is_torn_or_stale() {
    let seconds = std::env::var("MBAL_TORTURE_SECONDS")
        .map_or(2.0, |text| text.parse().expect("MBAL_TORTURE_SECONDS is a number of seconds"));
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    let seed = clock.as_nanos() as u64 | 1;
    println!("seed {seed}, {seconds} s");
    let memory = Memory::of(Box::new(Fragile::new(8 << 20)));
    let store = Store::with_memory(options(4, WORKERS, CACHELETS), memory);
    let known: Vec<Known> = (0..KEYS).map(|_| Known::default()).collect();
    let stop = AtomicBool::new(false);
    let met = Met::default();
    let operations: u64 = std::thread::scope(|scope| {
        let (store, known, stop, met) = (&store, &known, &stop, &met);
        let workers: Vec<_> = (0..WORKERS)
            .map(|id| scope.spawn(move || worker(id, store, known, stop, met, seed)))
            .collect();
        let begin = Instant::now();
        // On a slow machine it goes on until it was torture, if that ever happens.
        let enough = || store.stats().evictions > 1_000 && met.is_enough();
        while begin.elapsed().as_secs_f64() < seconds || !enough() && begin.elapsed() < PATIENCE {
            if workers.iter().any(|worker| worker.is_finished()) {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        stop.store(true, Relaxed);
        workers.into_iter().map(|worker| worker.join().expect("a worker's checks hold")).sum()
    });
    println!("{operations} operations, {met:?}, {:?}", store.stats());
    assert!(met.is_enough(), "{met:?}");
    assert!(store.stats().evictions > 1_000, "the memory is too large for this to be torture");
}
