//! Sizes that change, and items that die young (*Engine*, line 6): does memory that served one shape of items
//! serve the next one as fresh memory would, and do the dead go before the living?

use std::path::Path;

use mbal_bench::{Popularity, Random};
use mbal_cachelet::{Draft, Store};
use mbal_model::{Key, Seconds};

use crate::drawn;
use crate::engine::{Engine, options};
use crate::output::{Page, Sheet};

#[derive(clap::Args)]
pub struct Args {
    #[arg(long, default_value_t = 64)]
    memory_mib: usize,
    /// Which requests there are; the page's are of 0.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

const CACHELETS: usize = 16;

pub fn run(args: &Args, out: &Path) -> Result<(), String> {
    let mut page = Page::new(out, "churn", "Sizes and lifetimes that change");
    let mut csv = Sheet::new(["what", "at", "figure", "beside"]);
    sizes(args, &mut page, &mut csv);
    lifetimes(args, &mut page, &mut csv);
    page.save(&csv, &drawn::churn(&csv)?)
}

/// One shape of items after the other, look-aside, Zipf 0.9 over twice the items that fit.
fn sizes(args: &Args, page: &mut Page, csv: &mut Sheet) {
    const PHASES: [(&str, usize); 3] = [("100 B", 100), ("4 KB", 4096), ("100 B again", 100)];
    const BESIDE_BYTES: usize = 32;
    /// Windows in which one working set is written, about.
    const WINDOWS: usize = 10;
    /// Working sets that a phase writes.
    const LENGTH: usize = 4;
    page.say(&format!(
        "## Sizes\n\n{} MiB, {CACHELETS} cachelets; values of 100 B, then 4 KB, then 100 B, each under keys of its own, Zipf 0.9 \
         over twice the keys that fit; a miss is set. A working set is as many sets as items fit. Beside it \
         fresh memory under the same requests.",
        args.memory_mib
    ));
    let bytes = args.memory_mib << 20;
    let store = || Store::new(options(bytes, 1, CACHELETS));
    let changed = store();
    let mut table = Sheet::new([
        "phase",
        "after 1 working set",
        "fresh",
        "after 4",
        "fresh",
        "index, MiB",
        "fresh",
    ]);
    for (phase, (name, value_bytes)) in PHASES.into_iter().enumerate() {
        let fresh = store();
        let items = bytes / (value_bytes + BESIDE_BYTES);
        let keys = Popularity::new(2 * items as u64, 0.9);
        // Of changed and of fresh memory: sets so far, hits in percent.
        let mut lines = Vec::new();
        for store in [&changed, &fresh] {
            let mut engine = Engine::new(store, 0);
            let mut random = Random::new(phase as u64 + args.seed * 1000);
            let mut points = Vec::new();
            let mut sets = 0;
            while sets < LENGTH * items {
                let (until, mut hits, mut requests) = (sets + items / WINDOWS, 0, 0);
                while sets < until {
                    let text = format!("{phase}:{:010}", keys.draw(&mut random));
                    let hit = look_aside(&mut engine, &text, &vec![7; value_bytes]);
                    hits += u32::from(hit);
                    sets += usize::from(!hit);
                    requests += 1;
                }
                points.push((
                    sets as f64 / items as f64,
                    f64::from(hits) * 100.0 / f64::from(requests),
                ));
            }
            lines.push(points);
        }
        let percent = |line: &Vec<(f64, f64)>, window: usize| line[window].1;
        let of = |window| [percent(&lines[0], window), percent(&lines[1], window)];
        for (ours, beside) in lines[0].iter().zip(&lines[1]) {
            let figures = [ours.1, beside.1].map(|percent| format!("{percent:.3}"));
            let heads = [format!("sizes {name}"), format!("{:.2}", ours.0)];
            csv.row(heads.into_iter().chain(figures));
        }
        // The window that begins when one working set has been written.
        let [one, last] = [of(WINDOWS), of(LENGTH * WINDOWS - 1)];
        let index = [&changed, &fresh].map(|s| s.stats().index_bytes as f64 / f64::from(1 << 20));
        let figures = one.iter().chain(&last).chain(&index).map(|figure| format!("{figure:.2}"));
        table.row(std::iter::once(name.to_owned()).chain(figures));
        page.verdict(
            one[0] >= one[1] - 1.0,
            &format!("{name}: within a point of fresh memory after one working set of writes"),
            &format!("{:+.2}", one[0] - one[1]),
        );
    }
    page.table(&table);
}

fn look_aside(engine: &mut Engine, text: &str, value: &[u8]) -> bool {
    const NOW: Seconds = 1;
    let key = Key::new(text.as_bytes()).expect("a short key");
    if engine.get(&key, NOW) {
        return true;
    }
    let draft = Draft { parts: &[value], ..Draft::default() };
    engine.set(&key, &draft, NOW).expect("eviction makes room");
    false
}

/// Ten items are written for each that stays: they have the times to live of Twitter's caches.
fn lifetimes(args: &Args, page: &mut Page, csv: &mut Sheet) {
    /// Shares of writes, in percent, and their times to live: 90% within minutes, as the rows with short ones;
    /// the rest a day.
    const TTLS: [(u64, Seconds); 5] = [(30, 10), (30, 60), (20, 120), (10, 300), (10, 86_400)];
    const SECONDS: Seconds = 900;
    const VALUE_BYTES: u64 = 460;
    const EXPIRED_PERCENT_MAX: f64 = 2.0;
    let bytes = args.memory_mib << 20;
    // At full memory the day-long tenth and what is alive of the rest need all of it.
    let sets_per_second = bytes as u64 / VALUE_BYTES / 160;
    let store = Store::new(options(bytes, 1, CACHELETS));
    let mut engine = Engine::new(&store, 0);
    let mut random = Random::new(1);
    let value = vec![7; 2 * VALUE_BYTES as usize];
    // What was written, with its deadline and length, until it was seen to be gone.
    let mut written: Vec<(u64, Seconds, u64)> = Vec::new();
    let (mut number, mut evicted) = (0, 0);
    let (mut worst, mut worst_second, mut first_eviction) = (0.0, 0, None);
    for second in 1..=SECONDS {
        for _ in 0..sets_per_second {
            let mut choice = random.below(100);
            let ttl = TTLS.iter().find(|(share, _)| {
                let here = choice < *share;
                choice = choice.saturating_sub(*share);
                here
            });
            let deadline = second + ttl.expect("shares come to 100").1;
            let length = VALUE_BYTES / 2 + random.below(VALUE_BYTES);
            let text = format!("{number:010}");
            let key = Key::new(text.as_bytes()).expect("ten bytes");
            let draft = Draft { deadline, parts: &[&value[..length as usize]], ..Draft::default() };
            engine.set(&key, &draft, second).expect("eviction makes room");
            written.push((number, deadline, length));
            number += 1;
        }
        // A worker comes back to its background work every millisecond.
        (0..1000).for_each(|_| engine.rest(second));
        let stats = store.stats();
        // Looked at as of before its deadline, an item shows whether it still has its memory.
        let mut expired_bytes = 0;
        written.retain(|&(number, deadline, length)| {
            if deadline > second {
                return true;
            }
            let text = format!("{number:010}");
            let key = Key::new(text.as_bytes()).expect("ten bytes");
            store.enter(engine.worker);
            let held = store.read(&key, deadline - 1, false, &mut Vec::new(), |_, _| ()).is_some();
            store.leave(engine.worker);
            expired_bytes += if held { length + 30 } else { 0 };
            held
        });
        let expired = expired_bytes as f64 * 100.0 / bytes as f64;
        let evicts = stats.evictions > evicted;
        if evicts && expired > worst {
            (worst, worst_second) = (expired, second);
        }
        if evicts && first_eviction.is_none() {
            first_eviction = Some(second);
        }
        let figures = [format!("{expired:.3}"), (stats.evictions - evicted).to_string()];
        csv.row(["lifetimes".into(), second.to_string()].into_iter().chain(figures));
        let used = format!("{:.3}", stats.used_bytes as f64 * 100.0 / bytes as f64);
        csv.row(["used".into(), second.to_string(), used, String::new()]);
        evicted = stats.evictions;
    }
    let first =
        first_eviction.map_or("never".into(), |second: Seconds| format!("in second {second}"));
    page.say(&format!(
        "## Lifetimes\n\n{sets_per_second} sets a second of 230 to 690 B in {} MiB; 30% live for 10 s, 30% for 60, 20% for 120, 10% for \
         300, 10% for a day. The first live item was evicted {first}; {evicted} in all of {number}.",
        args.memory_mib
    ));
    page.verdict(
        worst <= EXPIRED_PERCENT_MAX,
        &format!(
            "no live item evicted while more than {EXPIRED_PERCENT_MAX}% of the memory is expired"
        ),
        &format!("at most {worst:.2}% in a second with evictions (second {worst_second})"),
    );
}
