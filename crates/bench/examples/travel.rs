//! What it costs that a cachelet leaves its server: 64 MiB of small items travel from one store to another in this process.
//!
//!     cargo run --release -p mbal-bench --example travel [-- --rounds 5 --out steps.csv]
//!
//! One thread does both sides, as worker 0 of either store, while a writer and a reader go on as workers 1 and 2 of both: they ask
//! where a key is, and go where they are sent. Every step is timed by itself, by the CPU time of its thread: what other programs
//! take from the core does not count, what interrupts take does. Items per second are those of all steps together.

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use clap::Parser;
use mbal_bench::Random;
use mbal_cachelet::{Arriving, Birth, Cursor, Draft, Memory, Options, Part, Store, Turn};
use mbal_model::{Key, MoveId, Prefix, Route, WorkerId};
use mbal_reactor::Mapping;
use rustix::time::{ClockId, clock_gettime};

#[derive(Parser)]
struct Args {
    /// Of items in the cachelet that moves.
    #[arg(long, default_value_t = 64)]
    mib: u64,
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Without a writer and a reader.
    #[arg(long)]
    alone: bool,
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
const VALUE_BYTES: [usize; 2] = [20, 100];

fn thread_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// How long one kind of step took, each time.
struct Times {
    step: &'static str,
    ns: Vec<u64>,
}

impl Times {
    fn new(step: &'static str) -> Times {
        Times { step, ns: Vec::new() }
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

    /// Microseconds within which so large a share of the steps was done.
    fn share_us(&self, share: f64) -> f64 {
        let place = (self.ns.len() as f64 * share).ceil() as usize;
        self.ns[place.clamp(1, self.ns.len()) - 1] as f64 / 1000.0
    }
}

fn main() -> Result<(), String> {
    let args = Args::parse();
    let mut csv = String::from("value_bytes,step,times,p50_us,p99_us,p99_99_us,max_us\n");
    println!(
        "CPU time of the thread that moves; 10 B keys, {} MiB of items, {} rounds",
        args.mib, args.rounds
    );
    for value_bytes in VALUE_BYTES {
        let mut all: Vec<Times> =
            ["freeze", "export", "read", "import", "forget", "split_step"].map(Times::new).into();
        for _ in 0..args.rounds {
            let moved = round(&args, value_bytes, &mut all);
            println!("{value_bytes} B values: {moved}");
        }
        println!(
            "{:>12} {:>9} {:>8} {:>8} {:>8} {:>8}",
            "step, us", "times", "p50", "p99", "p99.99", "max"
        );
        for times in &mut all {
            times.ns.sort_unstable();
            let shares = [0.5, 0.99, 0.9999, 1.0].map(|share| times.share_us(share));
            let [p50, p99, p9999, max] = shares;
            let (step, count) = (times.step, times.ns.len());
            println!("{step:>12} {count:>9} {p50:>8.1} {p99:>8.1} {p9999:>8.1} {max:>8.1}");
            writeln!(csv, "{value_bytes},{step},{count},{p50:.1},{p99:.1},{p9999:.1},{max:.1}")
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

/// The cachelet that moves: one of four.
fn prefix() -> Prefix {
    Prefix::nth(1, 2)
}

fn store() -> Store {
    let options = Options {
        memory_bytes: 512 << 20,
        workers: 3,
        cachelets: 4,
        item_bytes_max: 1 << 20,
        evict: true,
        generation: 1,
    };
    let bytes = options.memory_bytes;
    // A server's own.
    let mapping = Mapping::reserve(bytes, bytes).expect("the kernel has addresses");
    Store::vacant(options, Memory::of(Box::new(mapping)))
        .expect("memory for what is known of pages")
}

fn put(store: &Store, worker: WorkerId, key: &Key<'_>, value: &[u8]) {
    store.reserve(worker, key.hash(), value.len(), NOW);
    let draft = Draft { parts: &[value], ..Draft::default() };
    store.lock(key.hash(), NOW).put(key, &draft).expect("there is room");
}

fn text(number: u64) -> String {
    format!("{number:010}")
}

/// Stores items until there are so many bytes of them; the numbers of their keys.
fn fill(store: &Store, bytes: u64, value: &[u8]) -> Vec<u64> {
    let mut numbers = Vec::new();
    for number in 0.. {
        let text = text(number);
        let key = Key::new(text.as_bytes()).expect("ten bytes");
        if !prefix().contains(key.hash()) {
            continue;
        }
        if numbers.len() % 1024 == 0 {
            let stats = store.stats_of(prefix()).expect("it is here");
            assert_eq!(stats.evictions, 0, "the memory is large enough");
            if stats.bytes >= bytes {
                break;
            }
        }
        store.enter(MOVER);
        put(store, MOVER, &key, value);
        store.leave(MOVER);
        numbers.push(number);
    }
    numbers
}

fn round(args: &Args, value_bytes: usize, all: &mut [Times]) -> String {
    let [freeze, export, read, import, forget, split_step] = all else { unreachable!("six") };
    let value = vec![7; value_bytes];
    let (source, target) = (store(), store());
    let birth = |generation| Birth { generation, flush_number: 0 };
    assert!(source.adopt(prefix(), MOVER, birth(1)) && target.adopt(prefix(), MOVER, birth(2)));
    let numbers = fill(&source, args.mib << 20, &value);
    let items = numbers.len() as u64;
    let stop = AtomicBool::new(false);
    let operations = [const { AtomicU64::new(0) }; 2];
    std::thread::scope(|scope| {
        let (stores, numbers, stop, value) = ([&source, &target], &numbers, &stop, &value);
        let [writes, reads] = &operations;
        if !args.alone {
            scope.spawn(move || client(stores, WRITER, numbers, stop, writes, Some(value)));
            scope.spawn(move || client(stores, READER, numbers, stop, reads, None));
        }
        let steps = |times: [&mut Times; 5]| {
            let [freeze, export, read, import, forget] = times;
            let before: u64 =
                [&*freeze, &*export, &*read, &*import, &*forget].iter().map(|t| t.total_ns()).sum();
            let begin = std::time::Instant::now();
            let mut bytes = 0;
            let (mut cursor, mut arriving) = (Cursor::default(), Arriving::new(prefix()));
            assert!(source.begin_to_leave(prefix(), MoveId(1)));
            let mut out = Vec::with_capacity(2 * PART_BYTES);
            while let Some(stamp) = freeze.time(|| source.freeze(prefix(), NOW)) {
                while !source.all_have_left(stamp) {
                    std::thread::yield_now();
                }
                let mut more = true;
                while more {
                    out.clear();
                    while more && out.len() < PART_BYTES {
                        more = export.time(|| source.export(prefix(), &mut cursor, NOW, &mut out));
                    }
                    cursor.end_part();
                    bytes += out.len();
                    let mut part = read.time(|| Part::read(&out).expect("whole"));
                    assert_eq!(arriving.turn_of(&part.heading), Turn::Now);
                    let mut rest = true;
                    while rest {
                        target.enter(MOVER);
                        let step = || target.import(MOVER, &mut arriving, &mut part, NOW);
                        rest = import.time(step).expect("whole");
                        target.leave(MOVER);
                        target.background(MOVER, NOW, 1);
                    }
                }
                while forget.time(|| source.forget(prefix(), &mut cursor, NOW)) {}
                source.background(MOVER, NOW, 1);
            }
            let wall = begin.elapsed().as_secs_f64();
            let after: u64 =
                [&*freeze, &*export, &*read, &*import, &*forget].iter().map(|t| t.total_ns()).sum();
            let seconds = (after - before) as f64 / 1e9;
            let rate = |amount: f64| amount / seconds / 1e6;
            format!(
                "{:.2} M items/s and {:.0} MB/s of CPU time; {items} items in {:.3} s of it, {wall:.3} s on the clock",
                rate(items as f64),
                rate(bytes as f64),
                seconds
            )
        };
        let _stop = StopAtEnd(stop);
        let mut moved = steps([freeze, export, read, import, forget]);
        assert_eq!(source.stats().items, 0);
        assert_eq!(target.stats().items, items, "nothing was lost");
        assert!(target.split(prefix(), NOW));
        while split_step.time(|| target.split_step(prefix(), NOW)) {}
        let [writes, reads] = operations.each_ref().map(|done| done.load(Relaxed));
        write!(moved, "; meanwhile {writes} sets, {reads} gets").expect("a string grows");
        moved
    })
}

/// However the round ends, its clients do too.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Sets, or gets, as a client that goes where it is sent.
fn client(
    [source, target]: [&Store; 2],
    worker: WorkerId,
    numbers: &[u64],
    stop: &AtomicBool,
    done: &AtomicU64,
    value: Option<&Vec<u8>>,
) {
    let mut random = Random::new(u64::from(worker.0));
    let mut out = Vec::new();
    while !stop.load(Relaxed) {
        source.enter(worker);
        target.enter(worker);
        for _ in 0..BATCH {
            let text = text(numbers[random.below(numbers.len() as u64) as usize]);
            let key = Key::new(text.as_bytes()).expect("ten bytes");
            let is_here =
                matches!(source.route(worker, key.hash()), Route::Own | Route::Neighbour(_));
            let store = if is_here { source } else { target };
            match value {
                // What is on its way is waited for, and then it is elsewhere.
                Some(_)
                    if !is_here && store.read(&key, NOW, false, &mut out, |_, _| ()).is_none() => {}
                Some(value) => put(store, worker, &key, value),
                None => {
                    out.clear();
                    store.read(&key, NOW, true, &mut out, |view, out| view.copy_value(out));
                }
            }
        }
        target.leave(worker);
        source.leave(worker);
        done.fetch_add(BATCH as u64, Relaxed);
    }
}
