//! Stack distances of the server's reads, for which all its workers share a sketch: a key's requests come to any of them.
//!
//! A request costs a mask and a branch. One key in 64 is shown to the sketch, while no other worker shows it one.
//! Only keys that are here count: who passes a request on does not, nor who answers from a copy.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, TryLockError};

use mbal_cachelet::View;
use mbal_model::{Key, METRICS, Seconds};
use mbal_sketch::{Curve, Found, StackDistances, is_chosen};
use mbal_wire::{Binary, Chunk, Command, Request, Storage, Verb};

use crate::batch::Job;
use crate::shared::Shared;
use crate::turn::Turn;

/// Keys that the sketch holds: 0.8 MB.
const SAMPLES_MOST: usize = 16_384;
/// Once a minute what is known weighs nine tenths of itself: a curve tells of the last ten minutes.
const FADES_EVERY: Seconds = 60;
const FADES_TO: f64 = 0.9;
/// Header, and the item's part of the index: a slot of 6.4 bytes, of which two thirds are used.
const ITEM_OVERHEAD: usize = 12 + 10;

/// The keys that one worker showed last. A key that comes again at once has a distance of next to nothing, which the
/// sketch takes it to have if it is not shown: so a hot key costs no more than any other.
pub(crate) type Shown = [u64; 4];

pub(crate) struct Distances {
    sketch: Mutex<Sketch>,
    /// Bytes of all items, as it was when a curve was told last.
    bytes: AtomicU64,
}

struct Sketch {
    distances: StackDistances,
    /// The server's reads that it has been told of.
    reads: u64,
    faded: Seconds,
    flush_number: u32,
}

/// What a server knows of its hit ratio by size.
#[derive(Clone, Debug)]
pub struct CurveTold {
    /// By bytes of items, overhead included, of the last ten minutes.
    pub curve: Curve,
    /// Memory that the sketch has, in bytes.
    pub state_bytes: u64,
    /// Reads of keys since the start, and how many hit.
    pub reads: u64,
    pub hits: u64,
}

impl Distances {
    pub fn new() -> Distances {
        let sketch = Sketch {
            distances: StackDistances::of_chosen(SAMPLES_MOST),
            reads: 0,
            faded: 0,
            flush_number: 0,
        };
        Distances { sketch: Mutex::new(sketch), bytes: AtomicU64::new(0) }
    }

    /// Nobody waits: what comes while another worker is at it is not shown.
    fn sketch(&self) -> Option<MutexGuard<'_, Sketch>> {
        match self.sketch.try_lock() {
            Ok(sketch) => Some(sketch),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(_)) => unreachable!("nothing panics with it held"),
        }
    }
}

impl Shared {
    /// None of a server that is not to know.
    pub fn curve(&self, second: Seconds) -> Option<CurveTold> {
        let distances = self.distances.as_ref()?;
        let sums = self.sums_ever();
        distances.bytes.store(self.store.stats().bytes, Relaxed);
        let mut sketch = distances.sketch.lock().expect("nothing panics with it held");
        let reads = sums.get_hits + sums.get_misses;
        let more = reads - std::mem::replace(&mut sketch.reads, reads);
        sketch.distances.count(more);
        let curve = sketch.distances.by_bytes();
        if sketch.faded + FADES_EVERY <= second {
            sketch.faded = second;
            sketch.distances.fade(FADES_TO);
        }
        let state_bytes = sketch.distances.state_bytes() as u64;
        Some(CurveTold { curve, state_bytes, reads, hits: sums.get_hits })
    }
}

/// What a request does to an item.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Does {
    Reads,
    Stores { value_bytes: usize, exptime: i64 },
    Removes,
    /// Its item stays, or becomes another of about the same size.
    Other,
}

impl Turn<'_> {
    /// Shows requests that are about to be executed, or keys of a `get` that have been.
    #[inline]
    pub fn show(&mut self, keys: &[Option<Key<'_>>], jobs: &[Option<Job<'_>>]) {
        if !METRICS || self.shared.distances.is_none() {
            return;
        }
        if keys.iter().any(|key| key.is_some_and(|key| is_chosen(key.hash()))) {
            self.show_chosen(keys, jobs);
        }
    }

    #[cold]
    fn show_chosen(&mut self, keys: &[Option<Key<'_>>], jobs: &[Option<Job<'_>>]) {
        for (at, key) in keys.iter().enumerate() {
            let Some(key) = key.filter(|key| is_chosen(key.hash())) else { continue };
            // Without a job it is a further key of a `get`.
            let does = jobs.get(at).map_or(Does::Reads, |job| job.as_ref().map_or(Does::Other, done_by));
            if does == Does::Reads && self.shown.contains(&key.hash()) {
                continue;
            }
            self.shown.rotate_right(1);
            self.shown[0] = if does == Does::Reads { key.hash() } else { 0 };
            self.show_one(&key, does);
        }
    }

    fn show_one(&mut self, key: &Key<'_>, does: Does) {
        let distances = self.shared.distances.as_ref().expect("it was looked whether it is");
        let (store, now, hash) = (&self.shared.store, self.now, key.hash());
        if does == Does::Other || store.cachelet_of(hash).is_none() {
            return;
        }
        let Some(mut sketch) = distances.sketch() else { return };
        let flushed = store.flushed();
        if std::mem::replace(&mut sketch.flush_number, flushed) != flushed {
            sketch.distances.flush();
        }
        match does {
            Does::Reads => sketch.distances.read(hash, now.second, || {
                let within = distances.bytes.load(Relaxed);
                let found = |view: &View<'_>, _: &mut Vec<u8>| Found {
                    bytes: item_bytes(key, view.value_bytes() as usize),
                    deadline: view.meta().deadline,
                    within,
                };
                store.read(key, now.second, false, self.out, found)
            }),
            Does::Stores { value_bytes, exptime } => {
                let bytes = item_bytes(key, value_bytes);
                sketch.distances.write(hash, bytes, now.deadline(exptime));
            }
            Does::Removes => sketch.distances.remove(hash),
            Does::Other => {}
        }
    }
}

fn item_bytes(key: &Key<'_>, value_bytes: usize) -> u32 {
    (ITEM_OVERHEAD + key.bytes().len() + value_bytes) as u32
}

fn done_by(job: &Job<'_>) -> Does {
    let stored = |value_bytes, exptime| Does::Stores { value_bytes, exptime };
    match &job.request {
        Request::Get(_) | Request::MetaGet(_) => Does::Reads,
        Request::Binary(Binary { command, .. }) => match command {
            Command::Get { .. } => Does::Reads,
            Command::Store(storage) => done_by_storage(storage),
            Command::Delete { .. } | Command::TooLarge { remove: true, .. } => Does::Removes,
            _ => Does::Other,
        },
        Request::Store(storage) => done_by_storage(storage),
        // Without a mode it sets.
        Request::MetaSet(meta, Chunk::Value(value)) if matches!(meta.mode, 0 | b'S' | b's') => {
            stored(value.len(), meta.exptime.into())
        }
        Request::Delete { .. } | Request::TooLarge { remove: true, .. } => Does::Removes,
        // With I, D or others it is made stale, or has another value.
        Request::MetaDelete(meta) if meta.words.is_empty() => Does::Removes,
        _ => Does::Other,
    }
}

/// An add or replace that is refused is taken for one that is not: whoever asks for it uses the key.
fn done_by_storage(storage: &Storage<'_>) -> Does {
    match (storage.verb, storage.chunk) {
        (Verb::Append | Verb::Prepend, _) | (_, Chunk::Bad) => Does::Other,
        (_, Chunk::Value(value)) => {
            Does::Stores { value_bytes: value.len(), exptime: storage.exptime }
        }
    }
}
