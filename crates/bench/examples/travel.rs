//! What it costs that a cachelet leaves its server: 64 MiB of items travel from one store to another in this process.
//!
//!     cargo run --release -p mbal-bench --example travel [-- --rounds 5 --out steps.csv]
//!
//! One thread does both sides, as worker 0 of either store, while a writer and a reader go on as workers 1 and 2 of both: they ask
//! where a key is, and go where they are sent. Every step is timed by itself, by the CPU time of its thread: what other programs
//! take from the core does not count, what interrupts take does, and so does spinning for a lock whose holder has lost its core.
//! Items per second are those of all steps together.
//!
//! Every value names its key and its version. The reader never finds an older version than the writer has finished; after the
//! journey every key has its last version. One more journey is flushed between the export of a part and its import: nothing comes back.
//! Then the cachelet is split where it is.
//!
//! Without clients (`--alone`) every round does the same steps. The last column takes the least of the rounds for each step: what
//! interrupts do to one round they do not do to the same step of another.
//!
//! Both memories have been used before, unless `--fresh`: a page that the kernel has to find first costs a step what it costs a set.

use std::fmt::Write;
use std::hint::black_box;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use std::thread;

use clap::Parser;
use mbal_bench::Random;
use mbal_cachelet::{
    Arriving, Birth, Crowded, Cursor, Draft, Due, ImportStep, Memory, Options, Part, Room, Store,
};
use mbal_model::{Key, MoveId, Prefix, Route, ServerId, WorkerId};
use mbal_reactor::Mapping;
use rustix::time::{ClockId, clock_gettime};

#[derive(Parser)]
struct Args {
    /// Of items in the cachelet that moves.
    #[arg(long, default_value_t = 64)]
    mib: u64,
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Bytes of a value; by default several, one after the other.
    #[arg(long)]
    value_bytes: Vec<usize>,
    /// Without a writer and a reader.
    #[arg(long)]
    alone: bool,
    /// In memory that has not been touched.
    #[arg(long)]
    fresh: bool,
    /// Steps as CSV.
    #[arg(long)]
    out: Option<PathBuf>,
}

const NOW: u32 = 100;
const PART_BYTES: usize = 64 << 10;
const MOVER: WorkerId = WorkerId(0);
const WRITER: WorkerId = WorkerId(1);
const READER: WorkerId = WorkerId(2);
/// Requests of one batch.
const BATCH: usize = 16;
/// So many requests after which a client lets others run.
const YIELD_EVERY: u64 = 1024;
const VALUE_BYTES: [usize; 3] = [20, 100, 1_000_000];
/// So many items of values of 1 MB beside the 64 MiB of what moves.
const MEMORY_BYTES: usize = 256 << 20;
/// Of a value: its key's number and its version.
const HEAD_BYTES: usize = 12;

fn thread_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// How long one kind of step took, each time.
struct Times {
    step: &'static str,
    ns: Vec<u64>,
    /// Of the same step in every round the least, while all rounds have as many: as they have without clients.
    least: Option<Vec<u64>>,
}

impl Times {
    fn new(step: &'static str) -> Times {
        Times { step, ns: Vec::new(), least: None }
    }

    fn time<R>(&mut self, step: impl FnOnce() -> R) -> R {
        let begin = thread_ns();
        let done = step();
        self.ns.push(thread_ns() - begin);
        done
    }

    fn total_ns(&self) -> u64 {
        self.ns.iter().sum()
    }

    /// Another round's.
    fn add(&mut self, other: Times) {
        self.least = match self.least.take() {
            None if self.ns.is_empty() => Some(other.ns.clone()),
            Some(least) if least.len() == other.ns.len() => {
                Some(least.iter().zip(&other.ns).map(|(one, other)| *one.min(other)).collect())
            }
            _ => None,
        };
        self.ns.extend(other.ns);
    }

    /// A line of figures, in microseconds: shares of all steps, and of the least.
    fn shares_us(&mut self) -> [f64; 5] {
        let shares = [0.5, 0.99, 0.9999, 1.0].map(|share| share_us(&mut self.ns, share));
        let [p50, p99, p9999, max] = shares;
        let least = self.least.as_mut().map_or(f64::NAN, |least| share_us(least, 0.9999));
        [p50, p99, p9999, max, least]
    }
}

/// Microseconds within which so large a share of the steps was done.
fn share_us(ns: &mut [u64], share: f64) -> f64 {
    ns.sort_unstable();
    let place = (ns.len() as f64 * share).ceil() as usize;
    ns[place.clamp(1, ns.len()) - 1] as f64 / 1000.0
}

/// The steps of a journey.
struct Steps {
    freeze: Times,
    export: Times,
    read: Times,
    import: Times,
    forget: Times,
}

impl Steps {
    fn new() -> Steps {
        let [freeze, export, read, import, forget] =
            ["freeze", "export", "read", "import", "forget"].map(Times::new);
        Steps { freeze, export, read, import, forget }
    }

    fn all(&mut self) -> [&mut Times; 5] {
        [&mut self.freeze, &mut self.export, &mut self.read, &mut self.import, &mut self.forget]
    }

    fn add(&mut self, other: Steps) {
        self.freeze.add(other.freeze);
        self.export.add(other.export);
        self.read.add(other.read);
        self.import.add(other.import);
        self.forget.add(other.forget);
    }

    fn total_ns(&mut self) -> u64 {
        self.all().iter().map(|times| times.total_ns()).sum()
    }
}

fn main() -> Result<(), String> {
    let args = Args::parse();
    let mut csv =
        String::from("value_bytes,step,times,p50_us,p99_us,p99_99_us,max_us,least_p99_99_us\n");
    println!(
        "CPU time of the thread that moves; 10 B keys, {} MiB of items, {} rounds",
        args.mib, args.rounds
    );
    let sizes = if args.value_bytes.is_empty() { &VALUE_BYTES[..] } else { &args.value_bytes };
    let mut memories = [(); 2].map(|_| memory());
    if !args.fresh {
        memories = memories.map(touched);
    }
    for &value_bytes in sizes {
        let (mut steps, mut split) = (Steps::new(), Times::new("split_step"));
        for _ in 0..args.rounds {
            let journey = Journey::new(&args, value_bytes, memories);
            let mut split_of_round = Times::new("split_step");
            let (of_round, line) = journey.go(&mut split_of_round, false);
            println!("{value_bytes} B values: {line}");
            steps.add(of_round);
            split.add(split_of_round);
            memories = journey.into_memories(args.fresh);
        }
        let journey = Journey::new(&args, value_bytes, memories);
        println!("{value_bytes} B values: {}", journey.go(&mut Times::new("split_step"), true).1);
        memories = journey.into_memories(args.fresh);
        println!(
            "{:>12} {:>9} {:>8} {:>8} {:>8} {:>8} {:>14}",
            "step, us", "times", "p50", "p99", "p99.99", "max", "least: p99.99"
        );
        let mut control = control(steps.export.ns.len(), args.rounds);
        for times in steps.all().into_iter().chain([&mut split, &mut control]) {
            let [p50, p99, p9999, max, least] = times.shares_us();
            let (step, count) = (times.step, times.ns.len());
            println!(
                "{step:>12} {count:>9} {p50:>8.1} {p99:>8.1} {p9999:>8.1} {max:>8.1} {least:>14.1}"
            );
            writeln!(
                csv,
                "{value_bytes},{step},{count},{p50:.1},{p99:.1},{p9999:.1},{max:.1},{least:.1}"
            )
            .expect("a string grows");
        }
    }
    match args.out {
        Some(path) => {
            std::fs::write(&path, csv).map_err(|error| format!("{}: {error}", path.display()))
        }
        None => Ok(()),
    }
}

/// Steps of some microseconds that touch no memory: what is longer is the machine's.
fn control(count: usize, rounds: usize) -> Times {
    let mut control = Times::new("control");
    for _ in 0..rounds {
        let (mut round, mut random) = (Times::new("control"), Random::new(1));
        for _ in 0..count / rounds {
            round.time(|| (0..2_000).for_each(|_| _ = black_box(random.below(10))));
        }
        control.add(round);
    }
    control
}

/// The cachelet that moves: one of four.
fn prefix() -> Prefix {
    Prefix::nth(1, 2)
}

/// A server's own.
fn memory() -> Memory {
    let mapping = Mapping::reserve(MEMORY_BYTES, MEMORY_BYTES).expect("the kernel has addresses");
    Memory::of(Box::new(mapping))
}

fn store(memory: Memory) -> Store {
    let options = Options {
        memory_bytes: MEMORY_BYTES,
        workers: 3,
        cachelets: 4,
        item_bytes_max: 1 << 20,
        evict: true,
        generation: 1,
    };
    Store::vacant(options, memory).expect("memory for what is known of pages")
}

/// The same after a store has filled it.
fn touched(memory: Memory) -> Memory {
    let store = store(memory);
    assert!(store.adopt(prefix(), MOVER, Birth { generation: 1, flush_number: 0 }));
    let numbers = (0..).filter(|number| in_prefix(*number));
    for number in numbers.take(MEMORY_BYTES >> 20) {
        store.enter(MOVER);
        put(&store, MOVER, number, &vec![1; 1_000_000]);
        store.leave(MOVER);
    }
    store.into_memory()
}

fn in_prefix(number: u64) -> bool {
    with_key(number, |key| prefix().contains(key.hash()))
}

fn with_key<R>(number: u64, then: impl FnOnce(&Key<'_>) -> R) -> R {
    let text = format!("{number:010}");
    then(&Key::new(text.as_bytes()).expect("ten bytes"))
}

fn put(store: &Store, worker: WorkerId, number: u64, value: &[u8]) {
    with_key(number, |key| {
        while store.reserve_at_once(worker, key.hash(), value.len(), NOW) == Room::InUse {
            thread::yield_now();
        }
        let draft = Draft { parts: &[value], ..Draft::default() };
        store.lock(key.hash(), NOW).put(key, &draft).expect("there is room");
    });
}

/// An item of the cachelet, and what its writer has done.
struct Written {
    number: u64,
    /// Versions that are finished; the first was there before the journey.
    version: AtomicU32,
    /// Versions that were finished before the flush began, and when it had ended.
    flushed: AtomicU32,
    flush_over: AtomicU32,
}

struct Journey {
    source: Store,
    target: Store,
    written: Vec<Written>,
    value_bytes: usize,
    alone: bool,
    stop: AtomicBool,
    sets: AtomicU64,
    gets: AtomicU64,
}

impl Journey {
    fn new(args: &Args, value_bytes: usize, memories: [Memory; 2]) -> Journey {
        let [source, target] = memories.map(store);
        let birth = |generation| Birth { generation, flush_number: 0 };
        assert!(source.adopt(prefix(), MOVER, birth(1)));
        assert!(target.begin_to_arrive(prefix(), MOVER, birth(2), ServerId(1)));
        let mut journey = Journey {
            source,
            target,
            written: Vec::new(),
            value_bytes,
            alone: args.alone,
            stop: AtomicBool::new(false),
            sets: AtomicU64::new(0),
            gets: AtomicU64::new(0),
        };
        journey.fill(args.mib << 20);
        journey
    }

    /// Stores items until there are so many bytes of them.
    fn fill(&mut self, bytes: u64) {
        let mut value = Vec::new();
        for number in (0..).filter(|number| in_prefix(*number)) {
            if self.written.len() % 1024 == 0 || self.value_bytes > 10_000 {
                let stats = self.source.stats_of(prefix()).expect("it is here");
                assert_eq!(stats.evictions, 0, "the memory is large enough");
                if stats.bytes >= bytes {
                    break;
                }
            }
            self.value(number, 1, &mut value);
            self.source.enter(MOVER);
            put(&self.source, MOVER, number, &value);
            self.source.leave(MOVER);
            let [version, flushed, flush_over] = [1, 0, 0].map(AtomicU32::new);
            self.written.push(Written { number, version, flushed, flush_over });
        }
    }

    fn value(&self, number: u64, version: u32, value: &mut Vec<u8>) {
        value.clear();
        value.extend(number.to_le_bytes());
        value.extend(version.to_le_bytes());
        value.resize(self.value_bytes, version as u8);
    }

    fn into_memories(self, fresh: bool) -> [Memory; 2] {
        match fresh {
            true => [memory(), memory()],
            false => [self.source.into_memory(), self.target.into_memory()],
        }
    }

    /// All of it, with clients, and a split behind it; what its steps took, and a line that says so.
    fn go(&self, split: &mut Times, flushes: bool) -> (Steps, String) {
        let mut steps = Steps::new();
        let begin = std::time::Instant::now();
        let bytes = std::thread::scope(|scope| {
            if !self.alone {
                scope.spawn(|| self.write());
                scope.spawn(|| self.read());
            }
            let _stop = StopAtEnd(&self.stop);
            let bytes = self.travel(&mut steps, flushes);
            assert_eq!(self.source.stats().items, 0);
            assert!(self.target.split(prefix(), NOW));
            while split.time(|| self.target.split_step(prefix(), NOW)) {}
            bytes
        });
        let wall = begin.elapsed().as_secs_f64();
        let there = self.check(flushes);
        let (items, seconds) = (self.written.len(), steps.total_ns() as f64 / 1e9);
        let rate = |amount: usize| amount as f64 / seconds / 1e6;
        let [sets, gets] = [&self.sets, &self.gets].map(|done| done.load(Relaxed));
        let line = match flushes {
            true => format!("flushed in the middle; {there} of {items} items have been set since"),
            false => format!(
                "{:.2} M items/s and {:.0} MB/s of CPU time; {items} items in {seconds:.3} s of it, \
                 {wall:.3} s on the clock; meanwhile {sets} sets, {gets} gets",
                rate(items),
                rate(bytes)
            ),
        };
        (steps, line)
    }

    /// The bytes that it took.
    fn travel(&self, steps: &mut Steps, flushes: bool) -> usize {
        let (source, target) = (&self.source, &self.target);
        let (mut cursor, mut arriving) = (Cursor::default(), Arriving::new(prefix()));
        let (mut bytes, mut out) = (0, Vec::with_capacity(2 * PART_BYTES));
        let mut flush_to_come = flushes;
        assert!(source.begin_to_leave(prefix(), MoveId(1)));
        while let Some(stamp) = steps.freeze.time(|| source.freeze(prefix(), NOW)) {
            while !source.all_have_left(stamp) {
                std::thread::yield_now();
            }
            let mut more = true;
            while more {
                out.clear();
                while more && out.len() < PART_BYTES {
                    let step = || source.export(prefix(), &mut cursor, NOW, &mut out);
                    more = steps.export.time(step);
                }
                cursor.end_part();
                bytes += out.len();
                if flush_to_come && target.stats().items > self.written.len() as u64 / 2 {
                    self.flush();
                    flush_to_come = false;
                }
                let mut part = steps.read.time(|| Part::read(&out).expect("whole"));
                assert_eq!(arriving.due(&part.heading), Due::Now);
                let mut rest = true;
                while rest {
                    target.enter(MOVER);
                    let drops = Crowded::Drops;
                    let step = || target.import(MOVER, &mut arriving, &mut part, NOW, drops);
                    rest = steps.import.time(step).expect("whole") == ImportStep::More;
                    target.leave(MOVER);
                    target.background(MOVER, NOW, 1);
                }
            }
            target.serve_until(prefix(), arriving.last());
            while steps.forget.time(|| source.forget(prefix(), &mut cursor, NOW)) {}
            source.background(MOVER, NOW, 1);
        }
        assert!(!flush_to_come, "half of the items came");
        bytes
    }

    /// As it goes through a cluster, one server after the other.
    fn flush(&self) {
        let version = |written: &Written| written.version.load(SeqCst);
        let before: Vec<u32> = self.written.iter().map(version).collect();
        let number = self.source.flush(0, NOW);
        self.target.flush_as(number, 0, NOW);
        for (written, before) in self.written.iter().zip(before) {
            written.flushed.store(before, SeqCst);
            written.flush_over.store(version(written) + 1, SeqCst);
        }
    }

    /// Looks at every key where it is to be now; how many are there.
    fn check(&self, flushed: bool) -> usize {
        let mut value = Vec::new();
        self.target.enter(MOVER);
        let there = self.written.iter().filter(|written| {
            let last = written.version.load(SeqCst);
            let (before, over) = (written.flushed.load(SeqCst), written.flush_over.load(SeqCst));
            let found = self.look(&self.target, written.number, &mut value);
            let number = written.number;
            match found {
                Some(version) if version <= before => panic!("{number} is back: {version}"),
                Some(version) => assert_eq!(version, last, "{number} is older"),
                None => {
                    assert!(flushed && last <= over, "{number} is lost {:?}", self.target.stats())
                }
            }
            found.is_some()
        });
        let there = there.count();
        self.target.leave(MOVER);
        let stats = self.target.stats();
        assert_eq!((stats.items, stats.evictions), (there as u64, 0));
        there
    }

    /// The version that a key has here.
    fn look(&self, store: &Store, number: u64, value: &mut Vec<u8>) -> Option<u32> {
        value.clear();
        with_key(number, |key| {
            store.read(key, NOW, true, value, |view, out| view.copy_value(out))
        })?;
        let (head, rest) = value.split_at(HEAD_BYTES);
        let (its_number, version) = head.split_at(8);
        assert_eq!(its_number, number.to_le_bytes(), "another key's");
        assert!(rest.iter().all(|byte| *byte == version[0]), "torn");
        assert_eq!(value.len(), self.value_bytes);
        Some(u32::from_le_bytes(version.try_into().expect("four bytes")))
    }

    /// The store that serves a key now; `None` of what is on its way, which is waited for.
    fn place(&self, me: WorkerId, number: u64) -> Option<&Store> {
        let serves = |store: &&Store| {
            let route = with_key(number, |key| store.route(me, key.hash()));
            matches!(route, Route::Own | Route::Neighbour(_))
        };
        [&self.source, &self.target].into_iter().find(serves)
    }

    /// Batches of requests for any keys until the journey is over.
    fn batches(&self, me: WorkerId, done: &AtomicU64, mut request: impl FnMut(&Store, &Written)) {
        let mut random = Random::new(u64::from(me.0));
        while !self.stop.load(Relaxed) {
            self.source.enter(me);
            self.target.enter(me);
            for _ in 0..BATCH {
                let written = &self.written[random.below(self.written.len() as u64) as usize];
                if let Some(store) = self.place(me, written.number) {
                    request(store, written);
                }
            }
            self.target.leave(me);
            self.source.leave(me);
            let all = done.fetch_add(BATCH as u64, Relaxed);
            // It may have the core of the one that moves, and does not hold a lock now.
            if all % YIELD_EVERY == 0 {
                std::thread::yield_now();
            }
        }
    }

    fn write(&self) {
        let mut value = Vec::new();
        self.batches(WRITER, &self.sets, |store, written| {
            let version = written.version.load(SeqCst) + 1;
            self.value(written.number, version, &mut value);
            put(store, WRITER, written.number, &value);
            written.version.store(version, SeqCst);
        });
    }

    fn read(&self) {
        let mut value = Vec::new();
        self.batches(READER, &self.gets, |store, written| {
            let (flushed, finished) = (written.flushed.load(SeqCst), written.version.load(SeqCst));
            if let Some(version) = self.look(store, written.number, &mut value) {
                assert!(version >= finished, "{version} after {finished}");
                assert!(version > flushed, "{version} is back");
            }
        });
    }
}

/// However the round ends, its clients do too.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
