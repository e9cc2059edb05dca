//! Hit ratios on recorded traces: the engine, as it is, beside seven policies (*Engine*, line 5).
//!
//! All caches hold the same number of equal items: a share of the trace's distinct keys. For the engine
//! that is so much memory, in pages, as holds that many items at its first eviction; its values are as
//! long as it takes to fill [`MEMORY_BYTES`] with them, so that a page is as small a part of the memory
//! as in a server of ordinary size. Reserve, open pages and index come out of the engine's share.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use mbal_bench::Trace;
use mbal_cachelet::{Draft, Options, Store};
use mbal_model::Key;

use crate::drawn;
use crate::engine::{Engine, options};
use crate::output::{Page, Sheet};
use crate::policies;
use crate::traces::{NOW, Traces};
use mbal_plot::{Line, Panel, Plot};

const PERCENTS: [u32; 4] = [1, 5, 10, 20];
const CACHELETS: [usize; 3] = [1, 16, 32];

/// Between two powers of two: pages are as small as the next lower one has them, for every number of cachelets.
const MEMORY_BYTES: usize = 24 << 20;
/// What `--granularity` tries instead.
const OTHER_MEMORIES: [usize; 4] = [3 << 19, 3 << 21, 3 << 23, 3 << 25];

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    traces: Traces,
    /// The engine alone, in memories of 1.5 to 96 MiB: what the size of its pages does
    #[arg(long)]
    granularity: bool,
}

/// A trace with its keys numbered in order of appearance.
struct Requests {
    name: String,
    keys: Vec<u32>,
    distinct: usize,
}

impl Requests {
    fn new(name: String, trace: Trace) -> Requests {
        let mut numbers = HashMap::new();
        let mut number = |key| {
            let next = numbers.len() as u32;
            *numbers.entry(key).or_insert(next)
        };
        let keys = trace.keys.into_iter().map(&mut number).collect();
        Requests { name, keys, distinct: numbers.len() }
    }

    fn items(&self, percent: u32) -> usize {
        (self.distinct * percent as usize).div_ceil(100)
    }
}

/// One cell of the table.
struct Cell {
    trace: String,
    percent: u32,
    items: usize,
    policy: String,
    /// Of all requests, in percent.
    hit_percent: f64,
    fitted: Option<Fitted>,
}

/// A memory of the engine, and how many items were in it.
struct Fitted {
    memory_bytes: usize,
    value_bytes: usize,
    at_first_eviction: u64,
    mean: f64,
}

pub fn run(args: &Args, out: &Path) -> Result<(), String> {
    let traces = args.traces.read(Requests::new)?;
    if traces.is_empty() {
        return Ok(());
    }
    if args.granularity {
        return granularity(&traces, out);
    }
    let mut page = Page::new(out, "hits", "Hit ratios on recorded traces");
    let cells = cells(&traces);
    page.say(
        "Percent of requests that hit. A cache holds so many percent of the trace's distinct keys, as equal items; \
         for MBal that is the memory that holds this many at its first eviction, with 1, 16 and 32 cachelets on one \
         worker. Belady may refuse the newcomer: nothing hits more.",
    );
    page.table(&table(&traces, &cells));
    judge(&mut page, &traces, &cells);
    let sheet = sheet(&cells);
    page.save(&sheet, &drawn::hits(&sheet)?)
}

/// Rows of the table side by side, and then in its order.
fn cells(traces: &[Requests]) -> Vec<Cell> {
    const AT_ONCE: usize = 6;
    let rows: Vec<(&Requests, u32)> =
        traces.iter().flat_map(|trace| PERCENTS.map(|percent| (trace, percent))).collect();
    let next = AtomicUsize::new(0);
    let take = || {
        let at = next.fetch_add(1, Ordering::Relaxed);
        rows.get(at).map(|row| (at, row))
    };
    let work = || {
        let mut done = Vec::new();
        while let Some((at, &(trace, percent))) = take() {
            let rivals = policies::NAMES.iter().map(|name| rival(trace, percent, name));
            let ours = CACHELETS.iter().map(|c| engine(trace, percent, *c, MEMORY_BYTES));
            let row: Vec<Cell> = rivals.chain(ours).collect();
            let shown: Vec<String> =
                row.iter().map(|c| format!("{} {:.2}", c.policy, c.hit_percent)).collect();
            eprintln!("{} {percent}%: {}", trace.name, shown.join(", "));
            done.push((at, row));
        }
        done
    };
    let mut done: Vec<(usize, Vec<Cell>)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|t| t.join().expect("a replay does not panic")).collect()
    });
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().flat_map(|(_, row)| row).collect()
}

fn rival(trace: &Requests, percent: u32, name: &str) -> Cell {
    let items = trace.items(percent);
    let mut policy = policies::named(name, &trace.keys, trace.distinct, items);
    let hits = policies::hits(&mut *policy, &trace.keys);
    Cell {
        trace: trace.name.clone(),
        percent,
        items,
        policy: name.into(),
        hit_percent: hits as f64 * 100.0 / trace.keys.len() as f64,
        fitted: None,
    }
}

fn engine_name(cachelets: usize) -> String {
    format!("MBal {cachelets}")
}

fn engine(trace: &Requests, percent: u32, cachelets: usize, memory_bytes: usize) -> Cell {
    let items = trace.items(percent);
    let (options, value_bytes, at_first_eviction) = fit(items, cachelets, memory_bytes);
    let memory_bytes = options.memory_bytes;
    let (hits, mean) = replay(options, &vec![0; value_bytes], &trace.keys);
    Cell {
        trace: trace.name.clone(),
        percent,
        items,
        policy: engine_name(cachelets),
        hit_percent: hits as f64 * 100.0 / trace.keys.len() as f64,
        fitted: Some(Fitted { memory_bytes, value_bytes, at_first_eviction, mean }),
    }
}

/// As long for every key, as those of real caches nearly are.
fn key_text(number: u32) -> [u8; 10] {
    let mut text = *b"0000000000";
    let mut rest = number;
    for digit in text.iter_mut().rev() {
        *digit += (rest % 10) as u8;
        rest /= 10;
    }
    text
}

/// Hits, and the mean number of items from the first eviction on.
fn replay(options: Options, value: &[u8], requests: &[u32]) -> (u64, f64) {
    const LOOK_EVERY: usize = 256;
    let store = Store::new(options);
    let mut engine = Engine::new(&store, 0);
    let (mut hits, mut looks, mut seen) = (0, 0u64, 0u64);
    for (at, &number) in requests.iter().enumerate() {
        let text = key_text(number);
        let key = Key::new(&text).expect("ten bytes");
        hits += u64::from(engine.ask(&key, value, NOW));
        if at % LOOK_EVERY == 0 {
            let stats = store.stats();
            if stats.evictions > 0 {
                (looks, seen) = (looks + 1, seen + stats.items);
            }
        }
    }
    (hits, seen as f64 / looks.max(1) as f64)
}

/// Items that the store had when it first evicted one, counted no further than `enough`.
fn items_at_first_eviction(options: &Options, value_bytes: usize, enough: usize) -> u64 {
    let store = Store::new(options.clone());
    let mut engine = Engine::new(&store, 0);
    let value = vec![0; value_bytes];
    let mut most = 0;
    for number in 0..enough as u32 {
        let text = key_text(number);
        let key = Key::new(&text).expect("ten bytes");
        let draft = Draft { parts: &[&value], ..Draft::default() };
        if engine.set(&key, &draft, NOW).is_err() || store.stats().evictions > 0 {
            break;
        }
        most = store.stats().items;
    }
    most
}

/// A store of about `memory_bytes` that holds `items`, and the values' length: the longest values that
/// fit, then the fewest pages that do not hold less.
fn fit(items: usize, cachelets: usize, memory_bytes: usize) -> (Options, usize, u64) {
    const STEP_BYTES: usize = 4096;
    let held = |memory_bytes: usize, value_bytes: usize| {
        items_at_first_eviction(&options(memory_bytes, 1, cachelets), value_bytes, items + 1)
    };
    let holds = |memory, value| held(memory, value) >= items as u64;
    let value_bytes = last_true(1, memory_bytes / items, |value| holds(memory_bytes, value));
    let less = last_true(0, memory_bytes / STEP_BYTES / 4, |steps| {
        holds(memory_bytes - steps * STEP_BYTES, value_bytes)
    });
    let options = options(memory_bytes - less * STEP_BYTES, 1, cachelets);
    let counted = items_at_first_eviction(&options, value_bytes, 2 * items);
    (options, value_bytes, counted)
}

/// The last number in `low..high` for which a falling condition is true; `low` if none is.
fn last_true(low: usize, high: usize, condition: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (low, high);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if condition(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

fn find<'c>(cells: &'c [Cell], trace: &str, percent: u32, policy: &str) -> &'c Cell {
    let same =
        |cell: &&Cell| cell.trace == trace && cell.percent == percent && cell.policy == policy;
    cells.iter().find(same).expect("every cell was measured")
}

/// A policy's mean over a trace's sizes.
fn trace_mean(cells: &[Cell], trace: &str, policy: &str) -> f64 {
    PERCENTS.map(|percent| find(cells, trace, percent, policy).hit_percent).iter().sum::<f64>()
        / PERCENTS.len() as f64
}

fn mean(traces: &[Requests], cells: &[Cell], policy: &str) -> f64 {
    traces.iter().map(|trace| trace_mean(cells, &trace.name, policy)).sum::<f64>()
        / traces.len() as f64
}

fn policy_names() -> Vec<String> {
    let rivals = policies::NAMES.map(String::from).into_iter();
    rivals.chain(CACHELETS.map(engine_name)).collect()
}

fn table(traces: &[Requests], cells: &[Cell]) -> Sheet {
    let names = policy_names();
    let columns = ["trace", "size", "items"].map(String::from).into_iter().chain(names.clone());
    let mut sheet = Sheet::new(columns);
    let figures = |figure: &dyn Fn(&str) -> f64| -> Vec<String> {
        names.iter().map(|name| format!("{:.2}", figure(name))).collect()
    };
    for trace in traces {
        for percent in PERCENTS {
            let heads =
                [trace.name.clone(), format!("{percent}%"), trace.items(percent).to_string()];
            let cells = figures(&|name| find(cells, &trace.name, percent, name).hit_percent);
            sheet.row(heads.into_iter().chain(cells));
        }
        let heads = [trace.name.clone(), "mean".into(), String::new()];
        sheet.row(heads.into_iter().chain(figures(&|name| trace_mean(cells, &trace.name, name))));
    }
    let heads = ["**all**".to_owned(), "mean".into(), String::new()];
    sheet.row(heads.into_iter().chain(figures(&|name| mean(traces, cells, name))));
    sheet
}

fn judge(page: &mut Page, traces: &[Requests], cells: &[Cell]) {
    /// Points of hit ratio that a cell may be behind.
    const SLACK: f64 = 0.5;
    for name in CACHELETS.map(engine_name) {
        let mut below = Vec::new();
        for trace in traces {
            for percent in PERCENTS {
                let behind = find(cells, &trace.name, percent, "LRU").hit_percent
                    - find(cells, &trace.name, percent, &name).hit_percent;
                if behind > SLACK {
                    below.push(format!("{} {percent}% by {behind:.2}", trace.name));
                }
            }
        }
        page.verdict(
            below.is_empty(),
            &format!("{name}: no cell below LRU − {SLACK}"),
            &listed(&below),
        );
        let worse = |trace: &&Requests| {
            trace_mean(cells, &trace.name, &name) < trace_mean(cells, &trace.name, "LRU")
        };
        let worse: Vec<String> = traces.iter().filter(worse).map(|t| t.name.clone()).collect();
        page.verdict(
            worse.is_empty(),
            &format!("{name}: no trace's mean below LRU's"),
            &listed(&worse),
        );
        let behind = mean(traces, cells, "S3-FIFO") - mean(traces, cells, &name);
        page.verdict(
            behind <= SLACK,
            &format!("{name}: overall mean within {SLACK} of S3-FIFO's"),
            &format!("{behind:+.2} behind"),
        );
    }
    for name in CACHELETS[1..].iter().copied().map(engine_name) {
        let mut below = Vec::new();
        for trace in traces {
            for percent in PERCENTS {
                let of = |name: &str| find(cells, &trace.name, percent, name).hit_percent;
                let behind = of(&engine_name(1)) - of(&name);
                if behind > SLACK {
                    below.push(format!("{} {percent}% by {behind:.2}", trace.name));
                }
            }
        }
        page.verdict(
            below.is_empty(),
            &format!("{name}: no cell more than {SLACK} below one cachelet's"),
            &listed(&below),
        );
    }
}

fn listed(found: &[String]) -> String {
    if found.is_empty() { "none".into() } else { found.join(", ") }
}

fn sheet(cells: &[Cell]) -> Sheet {
    let mut sheet = Sheet::new([
        "trace",
        "percent",
        "items",
        "policy",
        "hit_percent",
        "memory_bytes",
        "value_bytes",
        "items_at_first_eviction",
        "items_mean",
    ]);
    for cell in cells {
        let of_engine = match &cell.fitted {
            None => [(); 4].map(|()| String::new()),
            Some(fitted) => [
                fitted.memory_bytes.to_string(),
                fitted.value_bytes.to_string(),
                fitted.at_first_eviction.to_string(),
                format!("{:.1}", fitted.mean),
            ],
        };
        let heads = [
            cell.trace.clone(),
            cell.percent.to_string(),
            cell.items.to_string(),
            cell.policy.clone(),
            format!("{:.3}", cell.hit_percent),
        ];
        sheet.row(heads.into_iter().chain(of_engine));
    }
    sheet
}

/// The mean over each trace's sizes, by memory: where it stops to matter, pages are small enough.
fn granularity(traces: &[Requests], out: &Path) -> Result<(), String> {
    let mut page = Page::new(out, "hits-granularity", "Hit ratio and the size of pages");
    page.say(
        "Mean hit percent over the four sizes. The same items, longer in a larger memory: pages, of at least 4 KiB, \
         become a smaller part of it.",
    );
    let columns = ["trace".to_owned(), "cachelets".into()].into_iter();
    let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
    let mut table = Sheet::new(columns.chain(OTHER_MEMORIES.map(|m| format!("{} MiB", mib(m)))));
    let mut cells = Vec::new();
    let mut panels = Vec::new();
    // The large trace's fifth would be items of a few bytes in the least memory.
    for trace in traces.iter().filter(|trace| trace.distinct < 100_000) {
        let mut lines = Vec::new();
        for cachelets in CACHELETS {
            let mean_in = |memory_bytes: usize| {
                let of_memory =
                    PERCENTS.map(|percent| engine(trace, percent, cachelets, memory_bytes));
                let sum = of_memory.iter().map(|cell| cell.hit_percent).sum::<f64>();
                cells.extend(of_memory);
                (mib(memory_bytes), sum / PERCENTS.len() as f64)
            };
            let points = Vec::from(OTHER_MEMORIES.map(mean_in));
            let heads = [trace.name.clone(), cachelets.to_string()].into_iter();
            table.row(heads.chain(points.iter().map(|(_, mean)| format!("{mean:.2}"))));
            lines.push(Line { name: engine_name(cachelets), points });
        }
        panels.push(Panel { title: trace.name.clone(), lines });
    }
    page.table(&table);
    let plot = Plot {
        title: "Mean hit ratio by memory, for the same number of items".into(),
        x: "MiB",
        y: "hit ratio, %",
        log_x: true,
        log_y: false,
        panels,
    };
    page.save(&sheet(&cells), &plot.svg())
}
