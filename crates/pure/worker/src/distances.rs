//! Stack distances of the server's reads, for which all its workers share a sketch: a key's requests come to any of them.
//!
//! A request costs a multiplication and a branch. A sampled key is shown to the sketch, while no other worker shows it one.
//! Only keys that are here count: who passes a request on does not, nor who answers from a copy.
//!
//! A sketch forgets no key, so that keys that nobody asks for any more would crowd out the others. Every few hours it has a
//! successor, which learns beside it before it takes its place.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, TryLockError};

use mbal_cachelet::{ITEM_OVERHEAD_BYTES, View};
use mbal_model::{Key, METRICS, Seconds};
use mbal_sketch::{Chosen, Curve, Found, StackDistances};
use mbal_wire::{Binary, Chunk, Command, Request, Storage, Verb};

use crate::batch::Job;
use crate::shared::Shared;
use crate::turn::Turn;

/// Keys that a sketch holds: 0.44 MB, and twice that while it has a successor.
const SAMPLES_MOST: usize = 8_192;
/// The share of keys that is sampled at first: what is shown costs so much that it must not be every request.
const RATE: f64 = 0.125;
/// Requests that are shown in a second: 0.3% of a core. Beyond that fewer keys are sampled.
const SHOWN_MOST: u32 = 20_000;
/// A sketch counts for so long, and its successor learns for so long before.
const RENEWED_EVERY: Seconds = 6 * 3600;
const LEARNS: Seconds = 1800;
/// Once a minute what is known weighs so much of itself: a curve tells of the last hour.
const FADES_EVERY: Seconds = 60;
const FADES_TO: f64 = 0.983;
/// While a sketch learns it takes many keys for new, which miss at every size. So it tells of the last ten minutes.
const LEARNING_FADES_TO: f64 = 0.9;

/// The keys whose reads one worker showed last. One that comes again at once is not shown: if it hit, it has a distance of next to
/// nothing, which the sketch takes it to have, and what missed misses. So a hot key costs no more than any other.
#[derive(Default)]
pub(crate) struct Shown {
    last: [Option<(u64, bool)>; 4],
    /// Reads that missed again.
    missed: u32,
}

impl Shown {
    /// Whether this key's last read hit, if it is among the last.
    fn last(&self, hash: u64) -> Option<bool> {
        self.last.iter().flatten().find(|shown| shown.0 == hash).map(|shown| shown.1)
    }

    fn put(&mut self, hash: u64, hit: bool) {
        self.last.rotate_right(1);
        self.last[0] = Some((hash, hit));
    }

    fn forget(&mut self, hash: u64) {
        let is_it = |shown: &(u64, bool)| shown.0 == hash;
        self.last
            .iter_mut()
            .filter(|shown| shown.as_ref().is_some_and(is_it))
            .for_each(|it| *it = None);
    }
}

pub(crate) struct Distances {
    sketches: Mutex<Sketches>,
    /// What is sampled: see [`Chosen`].
    chosen: AtomicU64,
    /// Bytes of all items, as it was when a curve was told last.
    bytes: AtomicU64,
}

struct Sketches {
    counting: Sketch,
    learning: Option<Sketch>,
    /// The server's reads that they were told of.
    reads: u64,
    faded: Seconds,
    flush_number: u32,
}

struct Sketch {
    distances: StackDistances,
    since: Seconds,
    /// What was shown in that second.
    second: Seconds,
    shown: u32,
}

impl Sketch {
    fn new(since: Seconds) -> Sketch {
        let distances = StackDistances::with_rate(SAMPLES_MOST, RATE);
        Sketch { distances, since, second: 0, shown: 0 }
    }

    /// Whether it samples this key; counts what is shown.
    fn takes(&mut self, hash: u64, second: Seconds) -> bool {
        if !self.distances.chosen().has(hash) {
            return false;
        }
        if self.second != second {
            (self.second, self.shown) = (second, 0);
        }
        self.shown += 1;
        if self.shown > SHOWN_MOST && self.shown % (SHOWN_MOST / 16) == 0 {
            self.distances.sample_less();
        }
        true
    }
}

impl Sketches {
    fn each(&mut self) -> impl Iterator<Item = &mut Sketch> {
        std::iter::once(&mut self.counting).chain(&mut self.learning)
    }

    fn pass_to(&mut self, second: Seconds) {
        if self.faded + FADES_EVERY <= second {
            self.faded = second;
            self.each().for_each(|sketch| {
                let learns = second < sketch.since + LEARNS;
                sketch.distances.fade(if learns { LEARNING_FADES_TO } else { FADES_TO });
            });
        }
        match &self.learning {
            None if self.counting.since + RENEWED_EVERY <= second => {
                self.learning = Some(Sketch::new(second));
            }
            Some(learning) if learning.since + LEARNS <= second => {
                self.counting = self.learning.take().expect("it has just been seen");
            }
            _ => {}
        }
    }

    /// What any of them samples.
    fn chosen(&mut self) -> u64 {
        self.each().map(|sketch| sketch.distances.chosen().most).max().expect("one counts")
    }
}

/// What a server knows of its hit ratio by size.
#[derive(Clone, Debug)]
pub struct CurveTold {
    /// By bytes of items, overhead included, of the last hour.
    pub curve: Curve,
    /// Memory that the sketch has, in bytes.
    pub state_bytes: u64,
    /// Reads of keys since the start, and how many hit.
    pub reads: u64,
    pub hits: u64,
}

impl Distances {
    pub fn new() -> Distances {
        let sketches = Sketches {
            counting: Sketch::new(0),
            learning: None,
            reads: 0,
            faded: 0,
            flush_number: 0,
        };
        Distances {
            sketches: Mutex::new(sketches),
            chosen: AtomicU64::new(u64::MAX),
            bytes: AtomicU64::new(0),
        }
    }

    /// Nobody waits: what comes while another worker is at it is not shown.
    fn with(&self, show: impl FnOnce(&mut Sketches)) {
        let mut sketches = match self.sketches.try_lock() {
            Ok(sketches) => sketches,
            Err(TryLockError::WouldBlock) => return,
            Err(TryLockError::Poisoned(_)) => unreachable!("nothing panics with it held"),
        };
        show(&mut sketches);
        self.chosen.store(sketches.chosen(), Relaxed);
    }
}

impl Shared {
    /// None of a server that is not to know.
    pub fn curve(&self, second: Seconds) -> Option<CurveTold> {
        let distances = self.distances.as_ref()?;
        distances.bytes.store(self.store.stats().bytes, Relaxed);
        let mut sketches = distances.sketches.lock().expect("nothing panics with it held");
        let sums = self.sums_ever();
        let reads = sums.get_hits + sums.get_misses;
        let more = reads - std::mem::replace(&mut sketches.reads, reads);
        sketches.each().for_each(|sketch| sketch.distances.count(more));
        let curve = sketches.counting.distances.by_bytes();
        sketches.pass_to(second);
        distances.chosen.store(sketches.chosen(), Relaxed);
        let state_bytes = sketches.each().map(|sketch| sketch.distances.state_bytes() as u64);
        Some(CurveTold { curve, state_bytes: state_bytes.sum(), reads, hits: sums.get_hits })
    }
}

/// What a request does to an item.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Does {
    Reads,
    Stores {
        value_bytes: usize,
        exptime: i64,
    },
    Removes,
    /// Its item stays, or becomes another of about the same size.
    Other,
}

impl Turn<'_> {
    /// Shows requests that are about to be executed, or keys of a `get` that have been.
    #[inline]
    pub fn show(&mut self, keys: &[Option<Key<'_>>], jobs: &[Option<Job<'_>>]) {
        if !METRICS {
            return;
        }
        let Some(distances) = &self.shared.distances else { return };
        let chosen = Chosen { most: distances.chosen.load(Relaxed) };
        if keys.iter().any(|key| key.is_some_and(|key| chosen.has(key.hash()))) {
            self.show_chosen(keys, jobs, chosen);
        }
    }

    #[cold]
    fn show_chosen(&mut self, keys: &[Option<Key<'_>>], jobs: &[Option<Job<'_>>], chosen: Chosen) {
        for (at, key) in keys.iter().enumerate() {
            let Some(key) = key.filter(|key| chosen.has(key.hash())) else { continue };
            // Without a job it is a further key of a `get`.
            let job = jobs.get(at).map(Option::as_ref);
            let does = job.map_or(Does::Reads, |job| job.map_or(Does::Other, done_by));
            match does {
                Does::Other => continue,
                Does::Reads => {
                    if let Some(hit) = self.shown.last(key.hash()) {
                        self.shown.missed += u32::from(!hit);
                        continue;
                    }
                }
                Does::Stores { .. } | Does::Removes => self.shown.forget(key.hash()),
            }
            self.show_one(&key, does);
        }
    }

    fn show_one(&mut self, key: &Key<'_>, does: Does) {
        let distances = self.shared.distances.as_ref().expect("it was looked whether it is");
        let (store, now, hash) = (&self.shared.store, self.now, key.hash());
        if store.cachelet_of(hash).is_none() {
            return;
        }
        let (out, shown) = (&mut *self.out, &mut *self.shown);
        let mut look = || {
            let within = distances.bytes.load(Relaxed);
            let found = |view: &View<'_>, _: &mut Vec<u8>| Found {
                bytes: item_bytes(key, view.value_bytes() as usize),
                deadline: view.meta().deadline,
                within,
            };
            store.read(key, now.second, false, out, found)
        };
        distances.with(|sketches| {
            let flushed = store.flushed();
            if std::mem::replace(&mut sketches.flush_number, flushed) != flushed {
                sketches.each().for_each(|sketch| sketch.distances.flush());
            }
            let missed = std::mem::take(&mut shown.missed);
            for sketch in sketches.each() {
                sketch.distances.missed(missed);
                if !sketch.takes(hash, now.second) {
                    continue;
                }
                match does {
                    Does::Reads => {
                        let hit = sketch.distances.read(hash, now.second, &mut look);
                        shown.forget(hash);
                        shown.put(hash, hit);
                    }
                    Does::Stores { value_bytes, exptime } => {
                        let bytes = item_bytes(key, value_bytes);
                        sketch.distances.write(hash, bytes, now.deadline(exptime));
                    }
                    Does::Removes => sketch.distances.remove(hash),
                    Does::Other => {}
                }
            }
        });
    }
}

fn item_bytes(key: &Key<'_>, value_bytes: usize) -> u32 {
    (ITEM_OVERHEAD_BYTES + key.bytes().len() + value_bytes) as u32
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
