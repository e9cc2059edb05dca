//! Stack distances of the server's reads, for which all its workers share a sketch: a key's requests come to any of them.
//!
//! A sampled key is shown to the sketch, while no other worker shows it one. Only keys that are here count: who passes a request
//! on does not, nor who answers from a copy.
//!
//! They are shown in bursts, with rests between ([`LastingDistances`]). While the sketch rests a request costs next to nothing,
//! else a multiplication and a branch.

use std::mem::take;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use mbal_cachelet::{ITEM_OVERHEAD_BYTES, Store, View};
use mbal_locks::{Mutex, MutexGuard, ranks};
use mbal_model::{Key, METRICS, Seconds};
use mbal_sketch::{Chosen, Curve, Found, LastingDistances, StackDistances};
use mbal_wire::{Binary, Chunk, Command, Request, Storage, Verb};

use crate::observing::counters::{Counters, Sums, sum};
use crate::sessions::job::Job;
use crate::time::Now;

/// The keys whose reads one worker showed last. One that comes again at once is not shown: if it hit, it has a distance of next to
/// nothing, which the sketch takes it to have, and what missed misses. So a hot key costs no more than any other.
#[derive(Default)]
pub(crate) struct Shown {
    /// Their hashes; 0 is none.
    last: [u64; 4],
    hit: [bool; 4],
    /// The oldest of them.
    next: usize,
    /// Reads that missed again.
    missed: u32,
    /// Reads that came while another worker had the sketch.
    lost: u32,
}

impl Shown {
    /// Whether this key's last read hit, if it is among the last.
    #[inline]
    fn last(&self, hash: u64) -> Option<bool> {
        self.last.iter().position(|last| *last == hash).map(|at| self.hit[at])
    }

    #[inline]
    fn put(&mut self, hash: u64, hit: bool) {
        (self.last[self.next], self.hit[self.next]) = (hash, hit);
        self.next = (self.next + 1) % self.last.len();
    }

    #[inline]
    fn forget(&mut self, hash: u64) {
        self.last.iter_mut().for_each(|last| *last *= u64::from(*last != hash));
    }

    /// Tells what was not shown.
    #[cold]
    fn tell(&mut self, sketches: &mut Sketches) {
        let (missed, lost) = (take(&mut self.missed), take(&mut self.lost));
        sketches.lasting.each().for_each(|distances| {
            distances.missed(missed);
            distances.lost(lost);
        });
    }
}

pub(crate) struct Distances {
    sketches: Mutex<ranks::Distances, Sketches>,
    /// What is sampled: see [`Chosen`].
    chosen: AtomicU64,
    /// Nothing is shown before that second.
    rests_until: AtomicU32,
    /// Bytes of all items, as it was when a curve was told last.
    bytes: AtomicU64,
}

#[derive(Default)]
struct Sketches {
    lasting: LastingDistances,
    flush_number: u32,
}

impl Sketches {
    #[inline]
    fn pass_to_flush(&mut self, number: u32) {
        if self.flush_number != number {
            self.flush_number = number;
            self.lasting.each().for_each(StackDistances::flush);
        }
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
    /// Mean bytes of an item, overhead included; 0 if there is none.
    pub item_bytes: u64,
}

impl Distances {
    pub fn new() -> Distances {
        Distances {
            sketches: Mutex::new(Sketches::default()),
            chosen: AtomicU64::new(u64::MAX),
            rests_until: AtomicU32::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    /// `items` and `bytes`: what the store has now; `sums`: what all workers have counted ever.
    pub fn curve(&self, (items, bytes): (u64, u64), sums: &Sums, second: Seconds) -> CurveTold {
        self.bytes.store(bytes, Relaxed);
        let mut sketches = self.sketches.lock();
        let lasting = &mut sketches.lasting;
        let reads = reads_of(sums);
        lasting.count(reads);
        let curve = lasting.curve();
        lasting.pass_to(second);
        self.chosen.store(lasting.chosen().most, Relaxed);
        CurveTold {
            curve,
            state_bytes: lasting.state_bytes(),
            reads,
            hits: sums.get_hits,
            item_bytes: bytes / items.max(1),
        }
    }

    /// Nobody waits.
    fn try_lock(&self) -> Option<MutexGuard<'_, ranks::Distances, Sketches>> {
        self.sketches.try_lock()
    }
}

/// What requests are shown with.
pub(crate) struct Showing<'a> {
    pub distances: &'a Distances,
    pub store: &'a Store,
    /// By worker.
    pub counters: &'a [Counters],
    pub now: Now,
}

impl Showing<'_> {
    /// Whether requests are shown now. Begins a burst if it is time.
    #[inline]
    fn shows(&self, sketches: &mut Sketches) -> bool {
        !sketches.lasting.rests() || self.next_burst(sketches)
    }

    #[cold]
    fn next_burst(&self, sketches: &mut Sketches) -> bool {
        let sums = sum(self.counters);
        sketches.lasting.count(reads_of(&sums));
        let requests = sums.requests_own + sums.requests_neighbour;
        let goes_on = sketches.lasting.goes_on(self.now.second, requests);
        if !goes_on {
            self.distances.rests_until.store(self.now.second + 1, Relaxed);
        }
        goes_on
    }
}

fn reads_of(sums: &Sums) -> u64 {
    sums.get_hits + sums.get_misses
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

impl Shown {
    /// Shows requests that are about to be executed, or keys of a `get` that have been.
    #[inline]
    pub fn show(&mut self, of: &Showing<'_>, keys: &[Option<Key<'_>>], jobs: &[Option<Job<'_>>]) {
        if !METRICS {
            return;
        }
        let distances = of.distances;
        if of.now.second < distances.rests_until.load(Relaxed) {
            return;
        }
        let chosen = Chosen { most: distances.chosen.load(Relaxed) };
        if keys.iter().any(|key| key.is_some_and(|key| chosen.has(key.hash()))) {
            self.show_chosen(of, keys, jobs, chosen);
        }
    }

    #[cold]
    fn show_chosen(
        &mut self,
        of: &Showing<'_>,
        keys: &[Option<Key<'_>>],
        jobs: &[Option<Job<'_>>],
        chosen: Chosen,
    ) {
        let Showing { distances, store, .. } = *of;
        let lock = || {
            let mut sketches = distances.try_lock()?;
            sketches.pass_to_flush(store.flushed());
            Some(sketches)
        };
        let mut sketches = None;
        for (at, key) in keys.iter().enumerate() {
            let Some(key) = key.as_ref().filter(|key| chosen.has(key.hash())) else { continue };
            // Without a job it is a further key of a `get`.
            let job = jobs.get(at).map(Option::as_ref);
            let does = job.map_or(Does::Reads, |job| job.map_or(Does::Other, done_by));
            match does {
                Does::Other => continue,
                Does::Reads => {
                    if let Some(hit) = self.last(key.hash()) {
                        self.missed += u32::from(!hit);
                        continue;
                    }
                }
                Does::Stores { .. } | Does::Removes => self.forget(key.hash()),
            }
            if store.cachelet_of(key.hash()).is_none() {
                continue;
            }
            let Some(sketches) = sketches.get_or_insert_with(lock) else {
                self.lost += u32::from(does == Does::Reads);
                continue;
            };
            if !of.shows(sketches) {
                return;
            }
            if self.missed | self.lost != 0 {
                self.tell(sketches);
            }
            self.show_one(of, sketches, key, does);
        }
        let most = sketches.flatten().map(|mut sketches| sketches.lasting.chosen().most);
        if let Some(most) = most.filter(|most| *most != chosen.most) {
            distances.chosen.store(most, Relaxed);
        }
    }

    fn show_one(&mut self, of: &Showing<'_>, sketches: &mut Sketches, key: &Key<'_>, does: Does) {
        let (now, hash) = (of.now, key.hash());
        sketches.lasting.spend(|| reads_of(&sum(of.counters)));
        let out = &mut Vec::new();
        let mut look = || {
            let within = of.distances.bytes.load(Relaxed);
            let found = |view: &View<'_>, _: &mut Vec<u8>| Found {
                bytes: item_bytes(key, view.value_bytes() as usize),
                deadline: view.meta().deadline,
                within,
            };
            of.store.read(key, now.second, false, out, found)
        };
        let mut each = sketches.lasting.each();
        match does {
            Does::Reads => {
                let counting = each.next().expect("one counts");
                let hit = counting.read(hash, now.second, &mut look);
                for learning in each {
                    learning.read(hash, now.second, &mut look);
                }
                if let Some(hit) = hit {
                    self.put(hash, hit);
                }
            }
            Does::Stores { value_bytes, exptime } => {
                let (bytes, deadline) = (item_bytes(key, value_bytes), now.deadline(exptime));
                each.for_each(|distances| distances.write(hash, bytes, deadline));
            }
            Does::Removes => each.for_each(|distances| distances.remove(hash)),
            Does::Other => {}
        }
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
