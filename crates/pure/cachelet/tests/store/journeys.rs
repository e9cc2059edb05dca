//! Two stores whose cachelets travel to each other and back, while clients of both read and write the same few keys, slices and
//! cachelets split, pages are cleaned, everything is flushed, links break and parts come twice.
//!
//! Nothing that was acknowledged is lost but by eviction or a flush, nothing comes back, nothing is torn or stale, no cas is given
//! twice. Where memory suffices nothing is evicted, and every key is where it was written. `MBAL_TORTURE_SECONDS` says for how long (default 2).

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering::*};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mbal_cachelet::{
    Arriving, Birth, Crowded, Cursor, Draft, Due, ImportStep, Memory, Options, Part, Store,
};
use mbal_model::planted::{Fault::*, is_planted};
use mbal_model::{Elsewhere, Key, MoveId, Prefix, Route, ServerId, WorkerId};
use mbal_random::Random;

use crate::support::{make_room, options};
use crate::torture::{check, value};

const KEYS: u64 = 300;
const FILLERS: u64 = 30_000;
const CLIENTS: usize = 3;
const MOVER: WorkerId = WorkerId(3);
const TROUBLE: WorkerId = WorkerId(4);
const WORKERS: usize = 5;
const NOW: u32 = 9;
/// Cachelets are no narrower.
const BITS_MAX: u32 = 4;
const PATIENCE: Duration = Duration::from_secs(120);

/// What is known of a key beside the stores.
#[derive(Default)]
struct Known {
    /// Versions are given, and take effect, in the order of this lock.
    writing: Mutex<Written>,
    started: AtomicU64,
    finished: AtomicU64,
    /// Versions up to this one have been flushed.
    flushed: AtomicU64,
}

#[derive(Default)]
struct Written {
    cas: BTreeSet<u64>,
    /// Of the last version: it was stored, and so many flushes had begun and ended before, none in the middle.
    there: Option<u64>,
}

/// The move that is under way; there is one at a time.
#[derive(Clone, Copy)]
struct Move {
    id: MoveId,
    to: usize,
    /// The last hash that the destination serves; `None` before the first slice has gone.
    gone: Option<u64>,
}

#[derive(Default, Debug)]
struct Met {
    moves: AtomicU64,
    slices: AtomicU64,
    again: AtomicU64,
    thawed: AtomicU64,
    twice: AtomicU64,
    flushes: AtomicU64,
    splits: AtomicU64,
    waits: AtomicU64,
    elsewhere: AtomicU64,
}

struct World {
    stores: [Store; 2],
    /// By the first bits of a hash: which store has it, as a map says.
    homes: Vec<AtomicU16>,
    current: Mutex<Option<Move>>,
    known: Vec<Known>,
    /// That have begun, and that have ended.
    flushes: AtomicU64,
    stop: AtomicBool,
    met: Met,
    /// Nothing is evicted, so nothing may be missing.
    ample: bool,
}

fn count(met: &AtomicU64) {
    met.fetch_add(1, Relaxed);
}

fn serves(route: Route) -> bool {
    matches!(route, Route::Own | Route::Neighbour(_))
}

impl World {
    fn new(options: Options, ample: bool) -> World {
        let store = || Store::vacant(options.clone(), Memory::heap(options.memory_bytes));
        let stores = [(); 2].map(|_| store().expect("memory"));
        let homes = (0..1 << BITS_MAX).map(|cell| AtomicU16::new(cell >> (BITS_MAX - 1))).collect();
        for (at, prefix) in Prefix::equal(2).enumerate() {
            let birth = Birth { generation: at as u16 + 1, flush_number: 0 };
            assert!(stores[at / 2].adopt(prefix, WorkerId(at as u16), birth));
        }
        World {
            stores,
            homes,
            current: Mutex::new(None),
            known: (0..KEYS).map(|_| Known::default()).collect(),
            flushes: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            met: Met::default(),
            ample,
        }
    }

    fn current(&self) -> MutexGuard<'_, Option<Move>> {
        self.current.lock().expect("nobody has failed")
    }

    /// The store to go to, for a worker that has entered both; `None`: ask again in another batch.
    fn place(&self, me: WorkerId, hash: u64) -> Option<&Store> {
        let home = usize::from(self.homes[(hash >> (64 - BITS_MAX)) as usize].load(Acquire));
        match self.stores[home].route(me, hash) {
            Route::Own | Route::Neighbour(_) => {
                let other = self.stores[1 - home].route(me, hash);
                assert!(!serves(other), "served from two places");
                Some(&self.stores[home])
            }
            Route::Peer(_) => None,
            Route::Moving(id) => {
                let current = self.current().filter(|of| of.id == id && of.gone >= Some(hash))?;
                let target = &self.stores[current.to];
                if !serves(target.route(me, hash)) {
                    let arriving = target.cachelet_of(hash).expect("some of it has come").0;
                    target.serve_until(arriving, current.gone.expect("some of it has gone"));
                }
                assert!(serves(target.route(me, hash)), "gone, and not there");
                count(&self.met.elsewhere);
                Some(target)
            }
        }
    }

    fn between_batches(&self, me: WorkerId, during: impl FnOnce()) {
        for store in self.stores.iter().rev() {
            store.leave(me);
        }
        during();
        for store in &self.stores {
            store.background(me, NOW, 2);
        }
        for store in &self.stores {
            store.enter(me);
        }
    }

    fn client(&self, me: WorkerId, seed: u64) {
        let mut random = Random::new(seed + u64::from(me.0));
        let (mut out, mut bytes) = (Vec::new(), Vec::new());
        self.stores.iter().for_each(|store| store.enter(me));
        while !self.stop.load(Relaxed) {
            for _ in 0..1 + random.below(16) {
                let what = random.below(100);
                if what < 20 {
                    self.fill(me, random.below(FILLERS));
                    continue;
                }
                let n = random.below(KEYS) * random.below(KEYS) / KEYS;
                let text = format!("key:{n}");
                let key = Key::new(text.as_bytes()).expect("a valid key");
                let state = &self.known[n as usize];
                let longest = 40_000;
                // It leaves the epoch, so what is asked for comes after it.
                for store in &self.stores {
                    make_room(store, me, key.hash(), longest, NOW);
                }
                let Some(store) = self.place(me, key.hash()) else {
                    count(&self.met.waits);
                    break;
                };
                if what < 55 {
                    let before = state.finished.load(Acquire);
                    let flushed = state.flushed.load(Acquire);
                    out.clear();
                    let hit =
                        store.read(&key, NOW, true, &mut out, |view, out| view.copy_value(out));
                    if hit.is_some() {
                        let version = check(n, &out);
                        assert!(
                            version >= before,
                            "stale: {version} after {before} was acknowledged"
                        );
                        assert!(version > flushed, "back after a flush: {version} of {flushed}");
                        assert!(version <= state.started.load(Acquire), "from the future");
                    }
                    continue;
                }
                let Ok(mut written) = state.writing.try_lock() else { continue };
                let flushes = self.flushes.load(SeqCst);
                let mut locked = store.lock(key.hash(), NOW);
                let found = locked.find(&key);
                let flushed = self.flushes.load(SeqCst) != flushes;
                let must_be_there = self.ample && written.there == Some(flushes) && !flushed;
                if must_be_there && found.is_none() {
                    drop(locked);
                    let (version, evictions) = (state.finished.load(Relaxed), self.evictions());
                    panic!("lost: version {version}, evictions {evictions:?}");
                }
                let version = state.started.fetch_add(1, AcqRel) + 1;
                written.there = None;
                if what < 90 {
                    value(n, version, &mut bytes);
                    let draft = Draft { parts: &[&bytes], ..Draft::default() };
                    match locked.put(&key, &draft) {
                        Ok(cas) => {
                            assert!(written.cas.insert(cas), "cas {cas:x} twice");
                            written.there = (flushes % 2 == 0).then_some(flushes);
                        }
                        // The old value must not outlive a write that failed.
                        Err(_) => drop(locked.find(&key).map(|found| locked.remove(&found))),
                    }
                } else if let Some(found) = found {
                    locked.remove(&found);
                }
                drop(locked);
                state.finished.store(version, Release);
            }
            self.between_batches(me, std::thread::yield_now);
        }
        self.stores.iter().for_each(|store| store.leave(me));
    }

    /// So that there are several slices, and pages to be cleaned.
    fn fill(&self, me: WorkerId, n: u64) {
        let text = format!("filler:{n}");
        let key = Key::new(text.as_bytes()).expect("a valid key");
        for store in &self.stores {
            make_room(store, me, key.hash(), 40, NOW);
        }
        if let Some(store) = self.place(me, key.hash()) {
            let draft = Draft { parts: &[&[0xee; 40][..n as usize % 40]], ..Draft::default() };
            // Refused where memory is short: then it is just not there.
            store.lock(key.hash(), NOW).put(&key, &draft).ok();
        }
    }

    fn mover(&self, seed: u64) {
        let mut random = Random::new(seed);
        let (mut id, mut generation) = (0, 10);
        while !self.stop.load(Relaxed) {
            self.stores.iter().for_each(|store| _ = store.background(MOVER, NOW, 2));
            let from = random.below(2) as usize;
            let (source, target) = (&self.stores[from], &self.stores[1 - from]);
            let prefixes = source.prefixes();
            if prefixes.is_empty() {
                continue;
            }
            let prefix = prefixes[random.below(prefixes.len() as u64) as usize];
            (id, generation) = (id + 1, (generation + 1) % 0x7000);
            let owner = WorkerId(random.below(WORKERS as u64) as u16);
            if !source.begin_to_leave(prefix, MoveId(id)) {
                continue;
            }
            // What was there before may still be on its way out.
            let (birth, server) = (Birth { generation, flush_number: 0 }, ServerId(from as u16));
            self.wait_until(|| target.begin_to_arrive(prefix, owner, birth, server));
            *self.current() = Some(Move { id: MoveId(id), to: 1 - from, gone: None });
            self.travel(source, prefix, target, &mut random);
            assert!(source.release(prefix, Elsewhere::Peer(ServerId(1 - from as u16))));
            let first = prefix.first_hash() >> (64 - BITS_MAX);
            let cells = 1 << (BITS_MAX - prefix.bits());
            for cell in &self.homes[first as usize..][..cells] {
                cell.store(1 - from as u16, Release);
            }
            count(&self.met.moves);
        }
    }

    fn wait_until(&self, mut is_so: impl FnMut() -> bool) {
        let mut late = 0;
        while !is_so() {
            self.stores.iter().for_each(|store| _ = store.background(MOVER, NOW, 2));
            std::thread::yield_now();
            // One that has failed never leaves its batch.
            late += u32::from(self.stop.load(Relaxed));
            assert!(late < 100_000, "somebody has failed");
        }
    }

    fn travel(&self, source: &Store, prefix: Prefix, target: &Store, random: &mut Random) {
        let (mut cursor, mut arriving) = (Cursor::default(), Arriving::new(prefix));
        let mut old = Vec::new();
        while let Some(stamp) = source.freeze(prefix, NOW) {
            self.wait_until(|| source.all_have_left(stamp));
            let (mut more, mut last) = (true, 0);
            while more {
                let mut out = Vec::new();
                let most = random.below(20_000) as usize;
                while more && out.len() <= most {
                    more = source.export(prefix, &mut cursor, NOW, &mut out);
                }
                cursor.end_part();
                last = Part::read(&out).expect("whole").heading.last;
                assert_eq!(self.deliver(target, &mut arriving, &out), Due::Now);
                old.push(out);
                match random.below(60) {
                    0..4 => {
                        let part = &old[random.below(old.len() as u64) as usize];
                        self.deliver(target, &mut arriving, part);
                        count(&self.met.twice);
                    }
                    4 => {
                        cursor.restart_slice();
                        more = true;
                        count(&self.met.again);
                    }
                    5 => {
                        while random.below(2) == 0 && target.give_up(&mut arriving, NOW) {}
                        source.thaw(prefix, &mut cursor, NOW);
                        count(&self.met.thawed);
                        std::thread::sleep(Duration::from_micros(random.below(300)));
                        let stamp = source.freeze(prefix, NOW).expect("it has not gone");
                        self.wait_until(|| source.all_have_left(stamp));
                        more = true;
                    }
                    _ => {}
                }
            }
            // All of it was acknowledged. The destination hears that it is gone by a request, or by the next slice.
            if random.below(2) == 0 || last == prefix.last_hash() {
                target.serve_until(prefix, arriving.last());
            }
            if let Some(current) = self.current().as_mut() {
                current.gone = Some(last);
            }
            while source.forget(prefix, &mut cursor, NOW) {}
            count(&self.met.slices);
            old.drain(..old.len().saturating_sub(50));
            // A late one, of a slice whose keys are written there now.
            let part = &old[random.below(old.len() as u64) as usize];
            self.deliver(target, &mut arriving, part);
        }
    }

    fn deliver(&self, target: &Store, arriving: &mut Arriving, bytes: &[u8]) -> Due {
        let mut part = Part::read(bytes).expect("whole");
        let due = arriving.due(&part.heading);
        if due == Due::Now {
            let mut more = true;
            while more {
                target.enter(MOVER);
                let imported = target.import(MOVER, arriving, &mut part, NOW, Crowded::Drops);
                // A part that comes again may begin in the middle of a value.
                let may_break = is_planted(ImportAgain) || is_planted(ImportOverNewer);
                assert!(imported.is_ok() || may_break, "it reads");
                more = imported.unwrap_or(ImportStep::All) == ImportStep::More;
                target.leave(MOVER);
                target.background(MOVER, NOW, 1);
            }
        }
        due
    }

    fn trouble(&self, seed: u64) {
        let mut random = Random::new(seed + 77);
        while !self.stop.load(Relaxed) {
            let store = &self.stores[random.below(2) as usize];
            match random.below(1_000) {
                0 => self.flush(&mut random),
                1 => {
                    let prefixes = store.prefixes();
                    let narrow = prefixes.iter().filter(|prefix| prefix.bits() < BITS_MAX);
                    if narrow.clone().any(|prefix| store.split(*prefix, NOW)) {
                        count(&self.met.splits);
                    }
                }
                2..200 => {
                    for prefix in store.prefixes() {
                        store.split_step(prefix, NOW);
                    }
                }
                200..220 => {
                    let prefixes = store.prefixes();
                    if let Some(prefix) = prefixes.get(random.below(32) as usize) {
                        if let Some(owner) = store.owner(*prefix) {
                            let to = WorkerId(random.below(WORKERS as u64) as u16);
                            store.give(*prefix, owner, to, u64::MAX);
                        }
                    }
                }
                _ => std::thread::sleep(Duration::from_micros(50)),
            }
            self.stores.iter().for_each(|store| _ = store.background(TROUBLE, NOW, 2));
        }
    }

    /// As a client's `flush_all` goes through a cluster: one server after the other, in any order.
    fn flush(&self, random: &mut Random) {
        // Odd while it is under way.
        self.flushes.fetch_add(1, SeqCst);
        let finished: Vec<u64> =
            self.known.iter().map(|known| known.finished.load(Acquire)).collect();
        let first = random.below(2) as usize;
        let number = self.stores[first].flush(0, NOW);
        std::thread::sleep(Duration::from_micros(random.below(300)));
        self.stores[1 - first].flush_as(number, 0, NOW);
        for (known, finished) in self.known.iter().zip(finished) {
            known.flushed.fetch_max(finished, AcqRel);
        }
        self.flushes.fetch_add(1, SeqCst);
        count(&self.met.flushes);
    }

    fn evictions(&self) -> [u64; 2] {
        self.stores.each_ref().map(|store| store.stats().evictions)
    }

    fn is_enough(&self) -> bool {
        let Met { moves, slices, again, thawed, twice, flushes, splits, waits, elsewhere } =
            &self.met;
        let often = [moves, slices, again, thawed, twice, waits, elsewhere];
        let met = often.into_iter().chain([flushes, splits]).all(|met| met.load(Relaxed) > 3);
        met && (self.ample || self.evictions() != [0, 0])
    }

    /// For `MBAL_TORTURE_SECONDS`.
    fn run_and_check(self) {
        let seconds = std::env::var("MBAL_TORTURE_SECONDS")
            .map_or(2.0, |text| text.parse().expect("MBAL_TORTURE_SECONDS is a number of seconds"));
        let world = self;
        assert_eq!(world.run(seconds, || ()), [""; 0]);
        let evictions = world.evictions();
        println!("{:?}, evictions {evictions:?}", world.met);
        assert!(world.is_enough(), "{:?}", world.met);
        assert_eq!(evictions == [0, 0], world.ample, "{evictions:?}");
    }

    /// For so many seconds, or until somebody's checks fail: what they say. `before` is for the thread that moves.
    fn run(&self, seconds: f64, before: impl FnOnce() + Send) -> Vec<String> {
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
        let seed = clock.as_nanos() as u64 | 1;
        println!("seed {seed}, {seconds} s");
        std::thread::scope(|scope| {
            let world = self;
            world.stores.iter().for_each(|store| store.enter(TROUBLE));
            (0..FILLERS).for_each(|n| world.fill(TROUBLE, n));
            world.stores.iter().for_each(|store| store.leave(TROUBLE));
            let mut workers = vec![
                scope.spawn(move || {
                    before();
                    world.mover(seed)
                }),
                scope.spawn(move || world.trouble(seed)),
            ];
            let clients = 0..CLIENTS as u16;
            workers.extend(clients.map(|id| scope.spawn(move || world.client(WorkerId(id), seed))));
            let begin = Instant::now();
            while begin.elapsed().as_secs_f64() < seconds
                || !self.is_enough() && begin.elapsed() < PATIENCE
            {
                if workers.iter().any(|worker| worker.is_finished()) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            self.stop.store(true, Relaxed);
            let said = |panic: Box<dyn Any + Send>| match panic.downcast::<String>() {
                Ok(text) => *text,
                Err(other) => {
                    other.downcast_ref::<&str>().map_or(String::new(), |text| text.to_string())
                }
            };
            let failed = workers.into_iter().filter_map(|worker| worker.join().err());
            failed.map(said).collect()
        })
    }
}

fn ample() -> World {
    World::new(Options { evict: false, ..options(96, WORKERS, 4) }, true)
}

#[test]
fn nothing_is_lost_on_a_journey_where_memory_suffices() {
    ample().run_and_check();
}

#[test]
fn nothing_is_stale_or_comes_back_on_a_journey_where_it_does_not() {
    World::new(options(2, WORKERS, 4), false).run_and_check();
}

/// A checker is trusted only after it caught a fault.
#[cfg(feature = "planted")]
mod planted {
    use mbal_model::planted::{Fault, plant};

    use super::*;

    /// What the torture says of a fault that the thread has that moves.
    fn is_caught(fault: Fault, says: &[&str]) {
        let begin = Instant::now();
        let said = ample().run(60.0, || plant(Some(fault)));
        let is_it = |text: &&String| says.iter().any(|says| text.starts_with(says));
        let found = said.iter().find(is_it);
        println!("{fault:?} is found in {:.1} s: {found:?}", begin.elapsed().as_secs_f64());
        assert!(found.is_some(), "{said:?}");
    }

    #[test]
    fn an_export_that_does_not_wait_for_the_batches() {
        is_caught(ExportBeforeBatchesEnd, &["lost", "stale"]);
    }

    #[test]
    fn an_import_over_a_newer_item() {
        is_caught(ImportOverNewer, &["stale", "lost", "a torn value"]);
    }

    #[test]
    fn an_import_of_what_has_been_deleted() {
        is_caught(ImportAgain, &["stale", "lost", "a torn value"]);
    }

    #[test]
    fn what_arrived_of_a_slice_that_thawed() {
        is_caught(KeepsWhatArrived, &["stale"]);
    }

    #[test]
    fn a_flush_number_that_is_ignored() {
        is_caught(FlushNumberIgnored, &["back after a flush"]);
    }
}
