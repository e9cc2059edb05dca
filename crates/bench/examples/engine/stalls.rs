//! The longest time that one request or job keeps a worker (*Engine*, line 7), by the thread's CPU time.
//!
//! Each job of a full store is timed by itself: what other programs take from the core does not count, what
//! the kernel does for the job does. The memory is the kernel's first gift only in one job, and the others' as with
//! `-k`: on some hosts it takes longer than all that is ours.
//!
//! Nothing here goes by chance or by a clock, so every round does the same jobs in the same order, and a job's time is the
//! least that it took in any: what the host of a virtual machine takes meanwhile, the guest counts as the thread's.

use std::path::Path;

use mbal_bench::{Popularity, Random};
use mbal_cachelet::{Draft, Memory, Room, Store};
use mbal_model::{Key, Seconds};
use mbal_reactor::Mapping;
use rustix::time::{ClockId, clock_gettime};

use crate::drawn;
use crate::engine::{Engine, make_room, options};
use crate::output::{Page, Sheet};

#[derive(clap::Args)]
pub struct Args {
    #[arg(long, default_value_t = 1024)]
    memory_mib: usize,
    #[arg(long, default_value_t = 16)]
    cachelets: usize,
    /// Every job is done so often, and the least of its times counts.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

const STALL_US_MAX: f64 = 1000.0;

/// How long one kind of job took, each time.
struct Times {
    job: &'static str,
    ns: Vec<u32>,
}

impl Times {
    const PER_OCTAVE: f64 = 8.0;

    fn new(job: &'static str) -> Times {
        Times { job, ns: Vec::new() }
    }

    fn time<R>(&mut self, job: impl FnOnce() -> R) -> R {
        let begin = thread_ns();
        let done = job();
        let ns = thread_ns() - begin;
        self.ns.push(u32::try_from(ns).unwrap_or(u32::MAX));
        done
    }

    /// Of two rounds, the least of each job.
    fn least(mut self, other: Times) -> Times {
        assert_eq!(self.ns.len(), other.ns.len(), "{}: every round does the same", self.job);
        self.ns.iter_mut().zip(other.ns).for_each(|(ns, other)| *ns = (*ns).min(other));
        self
    }

    /// Within this so large a share of the jobs is done; of jobs in the order of their times.
    fn share_us(&self, share: f64) -> f64 {
        let place = (self.ns.len() as f64 * share).ceil() as usize;
        f64::from(self.ns[place.clamp(1, self.ns.len()) - 1]) / 1000.0
    }

    fn longest_us(&self) -> f64 {
        self.share_us(1.0)
    }

    /// How many took up to how many µs, in eighths of octaves.
    fn bins(&self) -> Vec<(f64, usize)> {
        let bin = |ns: &u32| (f64::from(*ns.max(&1)).log2() * Self::PER_OCTAVE) as i32;
        let upper_us = |bin: i32| (f64::from(bin + 1) / Self::PER_OCTAVE).exp2() / 1000.0;
        let chunks = self.ns.chunk_by(|one, next| bin(one) == bin(next));
        chunks.map(|chunk| (upper_us(bin(&chunk[0])), chunk.len())).collect()
    }
}

fn thread_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn set(engine: &mut Engine, text: &str, value: &[u8], deadline: Seconds, now: Seconds) {
    let key = Key::new(text.as_bytes()).expect("a short key");
    let draft = Draft { parts: &[value], deadline, ..Draft::default() };
    let (store, worker) = (engine.store, engine.worker);
    store.enter(worker);
    // As a server does: the index may have taken what was reserved for the item.
    let stored = (0..16).any(|_| {
        make_room(store, worker, key.hash(), value.len(), now);
        store.lock(key.hash(), now).put(&key, &draft).is_ok()
    });
    store.leave(worker);
    assert!(stored, "eviction makes room");
}

pub fn run(args: &Args, out: &Path) -> Result<(), String> {
    let mut page = Page::new(out, "stalls", "The longest that one job keeps a worker");
    let mut longest_once = Vec::new();
    let rounds = (0..args.rounds).map(|_| {
        let round = measure(args);
        longest_once
            .push(round.iter().map(|times| times.ns.iter().max().copied()).collect::<Vec<_>>());
        round
    });
    let least = |one: Vec<Times>, other: Vec<Times>| -> Vec<Times> {
        one.into_iter().zip(other).map(|(one, other)| one.least(other)).collect()
    };
    let mut all = rounds.reduce(least).ok_or("--rounds: at least one")?;
    all.iter_mut().for_each(|times| times.ns.sort_unstable());
    page.say(&format!(
        "CPU time of the worker's thread, µs; {} MiB, one worker, {} cachelets, 10 B keys. A background step is one call \
         of `Store::background`, as long as the server lets it run before it looks at the clock again. Every job is done in \
         {} rounds, the same each time, and the least of its times counts; what the longest job of each round by itself \
         took stands beside it.",
        args.memory_mib, args.cachelets, args.rounds
    ));
    let heads =
        ["job", "times", "p50", "p99", "p99.9", "p99.99", "longest", "longest of each round"];
    let mut table = Sheet::new(heads);
    let mut csv = Sheet::new(["job", "up_to_us", "times"]);
    for (at, times) in all.iter().enumerate() {
        let shares = [0.5, 0.99, 0.999, 0.9999, 1.0];
        let shares = shares.map(|share| format!("{:.1}", times.share_us(share)));
        let once = longest_once.iter().filter_map(|round| round[at]);
        let once: Vec<String> = once.map(|ns| format!("{:.0}", f64::from(ns) / 1000.0)).collect();
        let heads = [times.job.into(), times.ns.len().to_string()].into_iter();
        table.row(heads.chain(shares).chain([once.join(", ")]));
        for (up_to_us, count) in times.bins() {
            let row = [times.job.replace(',', ""), format!("{up_to_us:.3}"), count.to_string()];
            csv.row(row);
        }
    }
    page.table(&table);
    for times in &all {
        let longest = format!("{:.3} ms", times.longest_us() / 1000.0);
        page.verdict(
            times.longest_us() <= STALL_US_MAX,
            &format!("{}: at most 1 ms", times.job),
            &longest,
        );
    }
    page.save(&csv, &drawn::stalls(&csv)?)
}

fn measure(args: &Args) -> Vec<Times> {
    let options = || options(args.memory_mib << 20, 1, args.cachelets);
    let item_max = vec![7; options().item_bytes_max - 100];
    let mut first = Times::new("set of 1 MiB into memory that the kernel gives only then");
    let bytes = options().memory_bytes;
    // A server's own.
    let mapping = Mapping::reserve(bytes, bytes).expect("the kernel has addresses");
    let store = Store::with_memory(options(), Memory::of(Box::new(mapping)));
    let mut engine = Engine::new(&store, 0);
    for number in 0.. {
        if store.stats().evictions > 0 {
            break;
        }
        first.time(|| set(&mut engine, &format!("first{number}"), &item_max, 0, 1));
    }
    let store = Store::with_memory(options(), store.into_memory());
    let mut engine = Engine::new(&store, 0);
    let mut random = Random::new(1);
    let small = [7; 20];
    let text_of = |number: u64| format!("{number:010}");

    let mut growth = Times::new("set of a new key while the index grows");
    let mut rest = Times::new("background step while the memory fills");
    let mut items = 0;
    while store.stats().evictions == 0 {
        for _ in 0..1024 {
            growth.time(|| set(&mut engine, &text_of(items), &small, 0, 1));
            items += 1;
        }
        rest.time(|| engine.rest(1));
    }

    let mut gets = Times::new("get");
    let mut sets = Times::new("set into full memory");
    let mut cleaning = Times::new("background step: eviction, items that move on");
    let keys = Popularity::new(2 * items, 0.9);
    for step in 0..items {
        let text = text_of(keys.draw(&mut random));
        let key = Key::new(text.as_bytes()).expect("ten bytes");
        if !gets.time(|| engine.get(&key, 2)) {
            sets.time(|| set(&mut engine, &text, &small, 0, 2));
        }
        if step % 256 == 0 {
            cleaning.time(|| engine.rest(2));
        }
    }

    let mut inline = Times::new("set into full memory, no background work");
    for number in 0..items / 4 {
        inline.time(|| set(&mut engine, &text_of(3 * items + number), &small, 0, 3));
    }

    // Between its turns a worker serves others.
    let mut turns = Times::new("turn of making room for 1 MiB");
    let mut long_sets = Times::new("set of 1 MiB");
    let mut long_gets = Times::new("get of 1 MiB");
    for number in 0..2 * args.memory_mib as u64 {
        let text = format!("long{number}");
        let key = Key::new(text.as_bytes()).expect("a short key");
        let mut ready = false;
        while !ready {
            store.enter(engine.worker);
            let part = || store.reserve(engine.worker, key.hash(), item_max.len(), 4);
            ready = !matches!(turns.time(part), Room::Partly | Room::InUse);
            store.leave(engine.worker);
        }
        long_sets.time(|| set(&mut engine, &text, &item_max, 0, 4));
        long_gets.time(|| engine.get(&Key::new(text.as_bytes()).expect("a short key"), 4));
        engine.rest(4);
    }

    let mut expiry = Times::new("background step: expiry");
    for number in 0..items {
        set(&mut engine, &text_of(number), &small, 100, 5);
        if number % 256 == 0 {
            engine.rest(5);
        }
    }
    for second in 100..105 {
        (0..args.memory_mib * 16).for_each(|_| expiry.time(|| engine.rest(second)));
    }

    let mut flush = Times::new("flush_all of full memory");
    for _ in 0..3 {
        for number in 0..items {
            set(&mut engine, &text_of(number), &small, 0, 106);
            if number % 256 == 0 {
                engine.rest(106);
            }
        }
        store.enter(engine.worker);
        flush.time(|| store.flush(0, 106));
        store.leave(engine.worker);
    }
    vec![
        first, growth, rest, gets, sets, cleaning, inline, turns, long_sets, long_gets, expiry,
        flush,
    ]
}
