//! Gets and sets in process, without network, against the paper's rivals (MBal, EuroSys 2015, §4.1).
//!
//! Every thread draws its own requests, as in the paper; for MBal from the keys that its worker owns. They
//! are drawn before the clock starts, so that what is timed is hashing and the table. `batched` is groups
//! of 64 keys, buckets and items prefetched as the worker does it in a multi-get; `single` one request after
//! the other.
//! With `GLIBC_TUNABLES=glibc.malloc.hugetlb=1` in the environment every table gets huge pages, as in the paper.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use mbal_bench::{Random, Spread};
use mbal_cachelet::{Ahead, Draft, Store, View};
use mbal_model::{Key, Route, WorkerId};

use crate::drawn;
use crate::engine::{Engine, make_room, options};
use crate::output::{Page, Sheet};
use crate::rival::{Locking, Rival};

#[derive(clap::Args)]
pub struct Args {
    /// Memory of each table in Figure 5, in GiB
    #[arg(long, default_value_t = 4.0)]
    gib: f64,
    /// Memory in Figures 6 and 8, in MiB: less than their keys need
    #[arg(long, default_value_t = 256)]
    small_mib: usize,
    /// Millions of operations in a round, of all threads together
    #[arg(long, default_value_t = 8)]
    millions: usize,
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Of values in Figure 8, in bytes
    #[arg(long, value_delimiter = ',', default_values_t = [20, 32, 128, 512, 1024])]
    values: Vec<usize>,
    /// Figure 8 alone, without a page
    #[arg(long)]
    writes: bool,
    /// Threads, each number of them by itself
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    threads: Vec<usize>,
    /// What was measured as CSV in this file, without a page
    #[arg(long)]
    sheet: Option<PathBuf>,
}

type Text = [u8; 10];

const GROUP: usize = 64;
/// Keys whose cache misses overlap: while these are read, the next ones' buckets are on their way.
const STEP: usize = 8;
/// The locked tables' best: they have nothing to do meanwhile.
const RIVALS_STEP: usize = 16;
const CACHELETS_PER_WORKER: usize = 16;
const NOW: u32 = 1;
/// Groups between two looks after background work.
const REST_EVERY: usize = 16;
/// Bytes of memory per item of 10 + 20 B such that all tables hold all items.
const ROOM_BYTES: usize = 80;
/// Figure 6: the keys are so many times what fits, so that some 15% of gets miss, as in the paper.
const KEYS_PER_ROOM: f64 = 1.18;
const VALUE_BYTES: usize = 20;

#[derive(Clone, Copy, PartialEq, Debug)]
enum System {
    Mbal,
    TableLock,
    BucketLock,
    Malloc,
}

impl System {
    fn name(self) -> &'static str {
        match self {
            System::Mbal => "MBal",
            System::TableLock => "one lock (memcached then)",
            System::BucketLock => "lock per bucket (Mercury)",
            System::Malloc => "malloc per item",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Work {
    Gets,
    SingleGets,
    Sets,
    /// Three sets to a get, and every miss is followed by a set.
    Writes,
}

impl Work {
    fn name(self) -> &'static str {
        match self {
            Work::Gets => "gets, batched",
            Work::SingleGets => "gets, single",
            Work::Sets => "sets, batched",
            Work::Writes => "75% sets, cache smaller than the keys",
        }
    }
}

/// One thread's access to a table.
trait Access {
    /// Reads each key; appends its value's bytes to `out`. Tells which were found.
    fn get(&mut self, keys: &[Key], out: &mut Vec<u8>, found: &mut [bool]);
    fn set(&mut self, keys: &[Key], value: &[u8]);
    fn rest(&mut self) {}
}

impl Access for Engine<'_> {
    fn get(&mut self, keys: &[Key], out: &mut Vec<u8>, found: &mut [bool]) {
        self.store.enter(self.worker);
        if keys.len() == 1 {
            self.read(keys, [Ahead::NONE; STEP], out, found);
        } else {
            let mut waiting: (&[Key], [Ahead; STEP], &mut [bool]) =
                (&[], [Ahead::NONE; STEP], &mut []);
            for (keys, found) in keys.chunks(STEP).zip(found.chunks_mut(STEP)) {
                let ahead = self.prefetch_buckets(keys);
                self.read(waiting.0, waiting.1, out, waiting.2);
                self.prefetch_items(keys, ahead);
                waiting = (keys, ahead, found);
            }
            self.read(waiting.0, waiting.1, out, waiting.2);
        }
        self.store.leave(self.worker);
    }

    fn set(&mut self, keys: &[Key], value: &[u8]) {
        let draft = Draft { parts: &[value], ..Draft::default() };
        self.store.enter(self.worker);
        for step in keys.chunks(STEP) {
            let ahead = self.prefetch_buckets(step);
            self.prefetch_items(step, ahead);
        }
        for key in keys {
            // Another worker may take the room that was just made; the server tries as often.
            let stored = (0..16).any(|_| {
                make_room(self.store, self.worker, key.hash(), value.len(), NOW);
                self.store.lock(key.hash(), NOW).put(key, &draft).is_ok()
            });
            assert!(stored, "eviction makes room");
        }
        self.store.leave(self.worker);
    }

    fn rest(&mut self) {
        Engine::rest(self, NOW);
    }
}

impl Engine<'_> {
    fn prefetch_buckets(&self, keys: &[Key]) -> [Ahead<'_>; STEP] {
        let mut ahead = [Ahead::NONE; STEP];
        for (key, ahead) in keys.iter().zip(&mut ahead) {
            *ahead = self.store.prefetch_bucket(key.hash());
        }
        ahead
    }

    fn prefetch_items(&self, keys: &[Key], ahead: [Ahead; STEP]) {
        for (key, ahead) in keys.iter().zip(ahead) {
            self.store.prefetch_item(key.hash(), ahead);
        }
    }

    #[inline]
    fn read(&self, keys: &[Key], ahead: [Ahead; STEP], out: &mut Vec<u8>, found: &mut [bool]) {
        for ((key, ahead), found) in keys.iter().zip(ahead).zip(found) {
            let show = |view: &View, out: &mut Vec<u8>| view.copy_value(out);
            *found = self.store.look_ahead(ahead, key, NOW, true, out, show).is_ok();
        }
    }
}

impl Access for &Rival {
    fn get(&mut self, keys: &[Key], out: &mut Vec<u8>, found: &mut [bool]) {
        for (keys, found) in keys.chunks(RIVALS_STEP).zip(found.chunks_mut(RIVALS_STEP)) {
            touch(self, keys);
            let mut table = self.table();
            for (key, found) in keys.iter().zip(found) {
                *found = table.get(key, out);
            }
        }
    }

    fn set(&mut self, keys: &[Key], value: &[u8]) {
        for keys in keys.chunks(RIVALS_STEP) {
            touch(self, keys);
            let mut table = self.table();
            keys.iter().for_each(|key| table.set(key, value));
        }
    }
}

fn touch(rival: &Rival, keys: &[Key]) {
    if keys.len() > 1 {
        let bits = keys.iter().fold(0, |bits, key| bits ^ rival.prefetch_bucket(key.hash()));
        std::hint::black_box(bits);
        let bits = keys.iter().fold(0, |bits, key| bits ^ rival.prefetch_item(key.hash()));
        std::hint::black_box(bits);
    }
}

/// A thread's own hash map of items from the allocator, evicted in their order of writing; no locks.
struct Malloc {
    items: HashMap<u64, Box<[u8]>, BuildHasherDefault<AsItIs>>,
    order: VecDeque<u64>,
    bytes: usize,
    bytes_max: usize,
}

/// Keys are hashes already.
#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are words")
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }
}

impl Malloc {
    /// What the allocator and the map take beside key and value: chunk header, box, hash, order.
    const BESIDE_BYTES: usize = 16 + 24 + 8 + 8;

    fn new(bytes_max: usize) -> Malloc {
        Malloc { items: HashMap::default(), order: VecDeque::new(), bytes: 0, bytes_max }
    }
}

impl Access for Malloc {
    fn get(&mut self, keys: &[Key], out: &mut Vec<u8>, found: &mut [bool]) {
        for (key, found) in keys.iter().zip(found) {
            let item = self.items.get(&key.hash());
            let value = item.and_then(|item| item.strip_prefix(key.bytes()));
            value.inspect(|value| out.extend_from_slice(value));
            *found = value.is_some();
        }
    }

    fn set(&mut self, keys: &[Key], value: &[u8]) {
        for key in keys {
            let item: Box<[u8]> = [key.bytes(), value].concat().into();
            self.bytes += item.len() + Self::BESIDE_BYTES;
            match self.items.insert(key.hash(), item) {
                Some(old) => self.bytes -= old.len() + Self::BESIDE_BYTES,
                None => self.order.push_back(key.hash()),
            }
            while self.bytes > self.bytes_max {
                let oldest = self.order.pop_front().expect("what has bytes has an order");
                let old = self.items.remove(&oldest).expect("it is removed here alone");
                self.bytes -= old.len() + Self::BESIDE_BYTES;
            }
        }
    }
}

/// A table for some threads.
enum Table {
    Mbal(Box<Store>),
    Rival(Rival),
    Malloc { bytes_each: usize },
}

impl Table {
    fn new(system: System, bytes: usize, value_bytes: usize, threads: usize) -> Table {
        let rival = |locking| Table::Rival(Rival::new(locking, bytes, 10 + value_bytes));
        match system {
            System::Mbal => Table::Mbal(Box::new(Store::new(options(
                bytes,
                threads,
                (threads * CACHELETS_PER_WORKER).next_power_of_two(),
            )))),
            System::TableLock => rival(Locking::Table),
            System::BucketLock => rival(Locking::Bucket),
            System::Malloc => Table::Malloc { bytes_each: bytes / threads },
        }
    }

    fn access(&self, thread: usize) -> Box<dyn Access + '_> {
        match self {
            Table::Mbal(store) => Box::new(Engine::new(store, thread as u16)),
            Table::Rival(rival) => Box::new(rival),
            Table::Malloc { bytes_each } => Box::new(Malloc::new(*bytes_each)),
        }
    }

    /// Whether requests for this key are for this thread.
    fn is_of(&self, key: &Key, thread: usize, threads: usize) -> bool {
        match self {
            Table::Mbal(store) => store.route(WorkerId(thread as u16), key.hash()) == Route::Own,
            Table::Rival(_) | Table::Malloc { .. } => key.hash() as usize % threads == thread,
        }
    }
}

fn text_of(mut number: u64) -> Text {
    let mut text = *b"0000000000";
    for digit in text.iter_mut().rev() {
        *digit += (number % 10) as u8;
        number /= 10;
    }
    text
}

fn key_of(text: &Text) -> Key<'_> {
    Key::new(text).expect("ten bytes")
}

fn in_groups(texts: &[Text], mut act: impl FnMut(&[Key])) {
    for group in texts.chunks_exact(GROUP) {
        act(&std::array::from_fn::<_, GROUP, _>(|i| key_of(&group[i])));
    }
}

/// Does the work; how many gets found their key.
fn work(access: &mut dyn Access, work: Work, texts: &[Text], value: &[u8]) -> usize {
    let mut out = Vec::with_capacity(64 << 10);
    let (mut groups, mut hits) = (0, 0);
    in_groups(texts, |keys| {
        let mut found = [false; GROUP];
        out.clear();
        groups += 1;
        match work {
            Work::Gets => access.get(keys, &mut out, &mut found),
            Work::SingleGets => {
                for (key, found) in keys.iter().zip(found.chunks_mut(1)) {
                    access.get(std::slice::from_ref(key), &mut out, found);
                }
            }
            Work::Writes if groups % 4 == 0 => {
                access.get(keys, &mut out, &mut found);
                let missed = keys.iter().zip(found).filter(|(_, found)| !found);
                let missed: Vec<Key> = missed.map(|(key, _)| *key).collect();
                access.set(&missed, value);
            }
            Work::Sets | Work::Writes => access.set(keys, value),
        }
        hits += found.iter().filter(|found| **found).count();
        if groups % REST_EVERY == 0 {
            access.rest();
        }
    });
    std::hint::black_box(out);
    hits
}

/// A table's figures: for every kind of work the operations per microsecond of all threads, by round.
fn measure(
    args: &Args,
    table: &Table,
    keys: u64,
    value: &[u8],
    threads: usize,
    works: &[Work],
) -> Vec<Vec<f64>> {
    // Of keys that are as many fewer: with as many each would ask for more of its own.
    let operations = args.millions * 1_000_000 / threads / GROUP * GROUP;
    let barrier = Barrier::new(threads);
    let one = |thread: usize| {
        let mut access = table.access(thread);
        let mut texts = Vec::with_capacity(operations);
        let own = |text: &Text| table.is_of(&key_of(text), thread, threads);
        texts.extend((0..keys).map(text_of).filter(own));
        texts.chunks(1 << 20).for_each(|part| {
            work(&mut *access, Work::Sets, part, value);
        });
        let mut random = Random::new(thread as u64);
        let drawn = std::iter::repeat_with(|| text_of(random.below(keys)));
        texts.clear();
        texts.extend(drawn.filter(own).take(operations));
        let mut times = Vec::new();
        for _ in 0..args.rounds {
            for &kind in works {
                barrier.wait();
                let begin = Instant::now();
                let hits = work(&mut *access, kind, &texts, value);
                barrier.wait();
                times.push(begin.elapsed());
                // A miss costs half of a hit: figures of both are not compared.
                let all = hits as f64 > 0.999 * texts.len() as f64;
                assert!(all || matches!(kind, Work::Sets | Work::Writes), "{hits} hits only");
            }
        }
        times
    };
    let times: Vec<Duration> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|thread| scope.spawn(move || one(thread))).collect();
        let times = one(0);
        others.into_iter().for_each(|other| drop(other.join().expect("no thread panics")));
        times
    });
    let rate = |time: &Duration| (threads * operations) as f64 / time.as_secs_f64() / 1e6;
    (0..works.len())
        .map(|kind| times[kind..].iter().step_by(works.len()).map(rate).collect())
        .collect()
}

struct Measured {
    figure: u32,
    system: System,
    work: Work,
    threads: usize,
    value_bytes: usize,
    rate: Spread,
}

pub fn run(args: &Args, out: &Path) -> Result<(), String> {
    const LOCKED: [System; 3] = [System::Mbal, System::TableLock, System::BucketLock];
    let page = Page::new(out, "tables", "Gets and sets in process");
    let mut all = Vec::new();
    let mut series = |figure, system: System, bytes, keys, value_bytes, threads, works: &[Work]| {
        let table = Table::new(system, bytes, value_bytes, threads);
        let rounds = measure(args, &table, keys, &vec![7; value_bytes], threads, works);
        for (&work, rounds) in works.iter().zip(rounds) {
            let rate = Spread::of(rounds).expect("there is a round");
            eprintln!(
                "figure {figure}: {}, {threads} threads, {work:?}: {rate:.2?}",
                system.name()
            );
            all.push(Measured { figure, system, work, threads, value_bytes, rate });
        }
    };
    let bytes = (args.gib * f64::from(1 << 30)) as usize;
    let small = args.small_mib << 20;
    for system in LOCKED.into_iter().filter(|_| !args.writes) {
        for &threads in &args.threads {
            let works = [Work::Gets, Work::SingleGets, Work::Sets];
            series(5, system, bytes, (bytes / ROOM_BYTES) as u64, VALUE_BYTES, threads, &works);
            let keys = small as f64 * KEYS_PER_ROOM / 56.0;
            series(6, system, small, keys as u64, VALUE_BYTES, threads, &[Work::Writes]);
        }
    }
    for &value_bytes in &args.values {
        for system in [System::Mbal, System::Malloc] {
            for &threads in &args.threads {
                let keys = 2 * small / (value_bytes + 30);
                series(8, system, small, keys as u64, value_bytes, threads, &[Work::Writes]);
            }
        }
    }
    if let Some(file) = &args.sheet {
        return sheet_of(&all).save(file);
    }
    if args.writes {
        return Ok(());
    }
    if !args.threads.starts_with(&[1, 2]) {
        return Err("the page is of 1 and 2 threads; others are for --sheet".into());
    }
    report(args, page, &all)
}

fn sheet_of(all: &[Measured]) -> Sheet {
    let mut csv = Sheet::new([
        "figure",
        "work",
        "value_bytes",
        "table",
        "threads",
        "median_mops",
        "least",
        "greatest",
    ]);
    for one in all {
        let figures =
            [one.rate.median, one.rate.min, one.rate.max].map(|rate| format!("{rate:.3}"));
        let heads = [
            one.figure.to_string(),
            one.work.name().replace(',', ""),
            one.value_bytes.to_string(),
            one.system.name().into(),
            one.threads.to_string(),
        ];
        csv.row(heads.into_iter().chain(figures));
    }
    csv
}

fn report(args: &Args, mut page: Page, all: &[Measured]) -> Result<(), String> {
    page.say(&format!(
        "Millions of operations per second, all threads together: median of {} rounds (least to greatest). 10 B keys, \
         uniform. Figure 5: {} million items of 20 B in {} GiB. Figures 6 and 8: {} MiB, fewer than the keys; three \
         sets to a get, misses are set. MBal's threads have memory of their own, the locked tables take it from free \
         lists that all share; malloc is a hash map per thread with an allocation per item.",
        args.rounds,
        (args.gib * f64::from(1 << 30)) as usize / ROOM_BYTES / 1_000_000,
        args.gib,
        args.small_mib
    ));
    let mut table =
        Sheet::new(["figure", "what", "value B", "table", "1 thread", "2 threads", "ratio"]);
    let csv = sheet_of(all);
    let with = |one: &Measured, threads| {
        let same = |other: &&Measured| {
            (other.figure, other.system, other.work, other.value_bytes, other.threads)
                == (one.figure, one.system, one.work, one.value_bytes, threads)
        };
        all.iter().find(same).expect("both were measured").rate
    };
    let shown = |rate: Spread| format!("{:.1} ({:.1}–{:.1})", rate.median, rate.min, rate.max);
    for one in all.iter().filter(|one| one.threads == 1) {
        let two = with(one, 2);
        table.row([
            one.figure.to_string(),
            one.work.name().into(),
            one.value_bytes.to_string(),
            one.system.name().into(),
            shown(one.rate),
            shown(two),
            format!("{:.2}", two.median / one.rate.median),
        ]);
    }
    page.table(&table);
    let of_mbal = |work, threads| {
        let one = all
            .iter()
            .find(|one| one.figure == 5 && one.system == System::Mbal && one.work == work);
        with(one.expect("it was measured"), threads).median
    };
    for (work, least) in [(Work::Gets, 20.0), (Work::SingleGets, 10.0), (Work::Sets, 16.0)] {
        let (one, two) = (of_mbal(work, 1), of_mbal(work, 2));
        let name = work.name();
        page.verdict(
            one >= least,
            &format!("{name}: at least {least} M/s on one thread"),
            &format!("{one:.1}"),
        );
        let ratio = two / one;
        page.verdict(
            ratio >= 1.9,
            &format!("{name}: two threads 1.9 × one"),
            &format!("{ratio:.2}"),
        );
    }
    page.save(&csv, &drawn::tables(&csv)?)
}
