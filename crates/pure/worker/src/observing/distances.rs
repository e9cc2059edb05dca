//! Stack distances of the server's reads, for which all its workers share a sketch: a key's requests come to any of them.
//!
//! A sampled key is shown to the sketch, while no other worker shows it one. Only keys that are here count: who passes a request
//! on does not, nor who answers from a copy.
//!
//! A shown request costs 300 to 430 instructions, so it must be few of a busy server's. They are shown in bursts, with rests
//! between ([`Bursts`]). While the sketch rests a request costs next to nothing, else a multiplication and a branch.
//!
//! A sketch forgets no key, so that keys that nobody asks for any more would crowd out the others. Every few hours it has a
//! successor, which learns beside it before it takes its place.

use std::mem::take;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use mbal_cachelet::{ITEM_OVERHEAD_BYTES, Store, View};
use mbal_locks::{Mutex, MutexGuard, ranks};
use mbal_model::{Key, METRICS, Seconds};
use mbal_sketch::{Chosen, Curve, Found, StackDistances};
use mbal_wire::{Binary, Chunk, Command, Request, Storage, Verb};

use crate::observing::counters::{Counters, Sums, sum};
use crate::sessions::job::Job;
use crate::time::Now;

/// Keys that a sketch holds: 0.35 MB, and twice that while it has a successor. As many as fit into its table.
const SAMPLES_MOST: usize = 12_000;
/// Requests that are shown in a burst: ten for each key, so that what was not seen before it matters little.
const BURST: u32 = 1 << 17;
/// A burst is paid for by so many requests for each that it shows, or by time.
const REQUESTS_PER_SHOWN: u64 = 25;
const SHOWN_PER_SECOND: u64 = 500;
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
        sketches.each().for_each(|sketch| {
            sketch.distances.missed(missed);
            sketch.distances.lost(lost);
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

struct Sketches {
    counting: Sketch,
    learning: Option<Sketch>,
    bursts: Bursts,
    /// The server's reads that they were told of.
    reads: u64,
    faded: Seconds,
    flush_number: u32,
}

struct Sketch {
    distances: StackDistances,
    /// All reads, seen or not, that fade like those that are counted.
    reads: f64,
    since: Seconds,
}

impl Sketch {
    fn new(since: Seconds) -> Sketch {
        Sketch { distances: StackDistances::new(SAMPLES_MOST), reads: 0.0, since }
    }

    fn fade(&mut self, share: f64) {
        self.distances.fade(share);
        self.reads *= share;
    }
}

/// When a server's requests are shown: so many one after another, and then none until that is paid for.
///
/// ```text
///   shown        BURST   rests                       BURST   rests
///   ─────────── ▆▆▆▆▆▆▆ ··························· ▆▆▆▆▆▆▆ ················
///               requests / 25 + seconds × 500 ≥ BURST
/// ```
///
/// Where less is shown than is paid for, one burst follows on another.
struct Bursts {
    /// When the last one began, and how many requests there were by then.
    began: Seconds,
    requests: u64,
    left: u32,
}

impl Bursts {
    fn new() -> Bursts {
        Bursts { began: 0, requests: 0, left: BURST }
    }

    fn rests(&self) -> bool {
        self.left == 0
    }

    /// Whether the next one begins.
    fn goes_on(&mut self, second: Seconds, requests: u64) -> bool {
        let seconds = u64::from(second.saturating_sub(self.began));
        let by_requests = requests.saturating_sub(self.requests) / REQUESTS_PER_SHOWN;
        let paid = by_requests + seconds * SHOWN_PER_SECOND;
        if paid >= u64::from(BURST) {
            *self = Bursts { began: second, requests, left: BURST };
        }
        !self.rests()
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
                sketch.fade(if learns { LEARNING_FADES_TO } else { FADES_TO });
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

    /// So many reads in all. Those while it rests are taken to be like the others.
    fn count(&mut self, reads: u64) {
        let more = reads - std::mem::replace(&mut self.reads, reads);
        let rests = self.bursts.rests();
        self.each().for_each(|sketch| {
            sketch.reads += more as f64;
            sketch.distances.count(if rests { 0 } else { more });
        });
    }

    #[inline]
    fn pass_to_flush(&mut self, number: u32) {
        if self.flush_number != number {
            self.flush_number = number;
            self.each().for_each(|sketch| sketch.distances.flush());
        }
    }

    /// One more request is shown, to each.
    #[inline]
    fn spend(&mut self, counters: &[Counters]) {
        let shown = 1 + u32::from(self.learning.is_some());
        if self.bursts.left <= shown {
            self.count(reads_of(&sum(counters)));
        }
        self.bursts.left = self.bursts.left.saturating_sub(shown);
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
            bursts: Bursts::new(),
            reads: 0,
            faded: 0,
            flush_number: 0,
        };
        Distances {
            sketches: Mutex::new(sketches),
            chosen: AtomicU64::new(u64::MAX),
            rests_until: AtomicU32::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    /// `bytes`: of all items now; `sums`: what all workers have counted ever.
    pub fn curve(&self, bytes: u64, sums: &Sums, second: Seconds) -> CurveTold {
        self.bytes.store(bytes, Relaxed);
        let mut sketches = self.sketches.lock();
        let reads = reads_of(sums);
        sketches.count(reads);
        let counting = &sketches.counting;
        let curve = counting.distances.by_bytes().of_requests(counting.reads);
        sketches.pass_to(second);
        self.chosen.store(sketches.chosen(), Relaxed);
        let state_bytes = sketches.each().map(|sketch| sketch.distances.state_bytes() as u64);
        CurveTold { curve, state_bytes: state_bytes.sum(), reads, hits: sums.get_hits }
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
        !sketches.bursts.rests() || self.next_burst(sketches)
    }

    #[cold]
    fn next_burst(&self, sketches: &mut Sketches) -> bool {
        let sums = sum(self.counters);
        sketches.count(reads_of(&sums));
        let requests = sums.requests_own + sums.requests_neighbour;
        let goes_on = sketches.bursts.goes_on(self.now.second, requests);
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
        let most = sketches.flatten().map(|mut sketches| sketches.chosen());
        if let Some(most) = most.filter(|most| *most != chosen.most) {
            distances.chosen.store(most, Relaxed);
        }
    }

    fn show_one(&mut self, of: &Showing<'_>, sketches: &mut Sketches, key: &Key<'_>, does: Does) {
        let (now, hash) = (of.now, key.hash());
        sketches.spend(of.counters);
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
        let Sketches { counting, learning, .. } = sketches;
        match does {
            Does::Reads => {
                let hit = counting.distances.read(hash, now.second, &mut look);
                if let Some(learning) = learning {
                    learning.distances.read(hash, now.second, &mut look);
                }
                if let Some(hit) = hit {
                    self.put(hash, hit);
                }
            }
            Does::Stores { value_bytes, exptime } => {
                let (bytes, deadline) = (item_bytes(key, value_bytes), now.deadline(exptime));
                sketches.each().for_each(|sketch| sketch.distances.write(hash, bytes, deadline));
            }
            Does::Removes => sketches.each().for_each(|sketch| sketch.distances.remove(hash)),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_paid_for_by_requests_or_by_time() {
        let burst = u64::from(BURST);
        for (seconds, requests, goes_on) in [
            (0, 0, false),
            (1, 24 * burst, false),
            (1, 25 * burst, true),
            (200, 0, false),
            (263, 0, true),
            (132, 25 * burst / 2, true),
        ] {
            let mut bursts = Bursts { began: 1_000, requests: 7, left: 0 };
            assert_eq!(
                bursts.goes_on(1_000 + seconds, 7 + requests),
                goes_on,
                "{seconds} {requests}"
            );
            assert_eq!(bursts.rests(), !goes_on);
        }
    }
}
