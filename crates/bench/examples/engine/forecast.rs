//! Hit ratios of other memory sizes, forecast from the past and judged on what comes (docs/results/elastic.md).
//!
//! One store plays a trace's first half, with a server's sketch, which counts the second quarter. The forecast goes through what the store
//! hits in that quarter. Stores of all sizes, that have had the first half too, then play the second half: what they hit is what is
//! judged. *Renewed*: the same for each 40th of the second half, forecast as a server and a coordinator do if that is ten minutes.

use std::collections::HashMap;
use std::path::Path;

use mbal_bench::Trace;
use mbal_cachelet::{ITEM_OVERHEAD_BYTES, Store};
use mbal_elastic::{Forecast, Measured};
use mbal_model::Key;
use mbal_plot::{Line, Panel, Plot};
use mbal_sketch::{Curve, StackDistances};

use crate::engine::{Engine, options};
use crate::output::{Page, Sheet};
use crate::traces::{NOW, Traces, drawn, key_text};

/// All items of a trace have so many bytes together: values are stretched to it.
const ALL_BYTES: u64 = 128 << 20;
/// Memory, in half steps of doubling.
const SIZES: usize = 15;
const LEAST_BYTES: f64 = (1 << 20) as f64;
/// What the cluster has, which forecasts.
const NOW_AT: usize = 7;
const VALUE_BYTES_MAX: f64 = 900_000.0;
/// As in a server.
const SAMPLES_MOST: usize = 12_000;
const LEARNS: usize = 30;
/// A trace takes so long, wherever time counts.
pub const MINUTES: usize = 400;
/// Of ten minutes, over which a coordinator measures.
const PARTS: usize = MINUTES / 10;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    traces: Traces,
}

/// A key and the length of its value.
pub type Request = (u64, u32);

pub struct Requests {
    pub name: String,
    pub all: Vec<Request>,
}

/// By size, in bytes of memory.
struct Judged {
    trace: String,
    bytes: u64,
    measured: f64,
    /// Through what was measured, and as a list would.
    forecast: f64,
    of_list: f64,
    /// How far LRU lists of that size differ between the second quarter and the second half.
    drift: f64,
    /// By how much forecasts that were renewed are off, on average over the parts of the second half, with signs lost.
    renewed: f64,
}

pub fn run(args: &Args, out: &Path) -> Result<(), String> {
    let judged = args.traces.read(|name, trace| judge(&Requests::new(name, &trace)))?;
    let judged: Vec<Judged> = judged.into_iter().flatten().collect();
    if judged.is_empty() {
        return Ok(());
    }
    let mut page = Page::new(out, "forecast", "Hit ratios of other sizes, forecast");
    page.say(
        "Points of hit ratio by which a forecast is off: mean over sizes from 1 to 128 MiB in half steps of doubling, and the largest. Forecast \
         from the first half of a trace, judged on its second half. *A list*: the curve alone. *Drift*: by how much \
         LRU lists of these sizes differ between what was forecast from and what was judged on; no forecast knows of it. *Renewed*: \
         forecast anew for each 40th of the second half.",
    );
    page.table(&table(&judged));
    let sheet = sheet(&judged);
    page.save(&sheet, &plot(&judged).svg())
}

impl Requests {
    pub fn new(name: String, trace: &Trace) -> Requests {
        let mut sizes: HashMap<u64, f64> = HashMap::new();
        for (at, key) in trace.keys.iter().enumerate() {
            let own = trace.value_bytes.as_ref().map(|bytes| f64::from(bytes[at]));
            sizes.entry(*key).or_insert_with(|| own.unwrap_or_else(|| drawn(*key)));
        }
        let overhead = (sizes.len() * (ITEM_OVERHEAD_BYTES + 16)) as f64;
        let stretched = |by: f64| {
            let stretched = sizes.values().map(|bytes| (bytes * by).clamp(1.0, VALUE_BYTES_MAX));
            stretched.sum::<f64>() + overhead
        };
        // Long values are cut, so the factor is looked for.
        let (mut low, mut high) = (1e-6_f64, 1e6_f64);
        for _ in 0..60 {
            let middle = (low * high).sqrt();
            if stretched(middle) < ALL_BYTES as f64 { low = middle } else { high = middle }
        }
        let length = |key: &u64| (sizes[key] * low).clamp(1.0, VALUE_BYTES_MAX) as u32;
        Requests { name, all: trace.keys.iter().map(|key| (*key, length(key))).collect() }
    }
}

fn bytes_at(size: usize) -> u64 {
    (LEAST_BYTES * 2_f64.powf(size as f64 / 2.0)) as u64
}

/// The part that hits, by parts of the trace.
fn played(requests: &[Request], bytes: u64) -> Vec<f64> {
    let store = Store::new(options(bytes as usize, 1, 16));
    let mut engine = Engine::new(&store, 0);
    parts(requests, PARTS).map(|part| hit_ratio(&mut engine, part)).collect()
}

/// The part that hits; what misses is stored.
pub fn hit_ratio(engine: &mut Engine, part: &[Request]) -> f64 {
    static VALUE: [u8; VALUE_BYTES_MAX as usize] = [0; VALUE_BYTES_MAX as usize];
    let mut hits = 0;
    for (number, length) in part {
        let text = key_text(*number);
        let key = Key::new(&text).expect("16 bytes");
        hits += u32::from(engine.ask(&key, &VALUE[..*length as usize], NOW));
    }
    f64::from(hits) / part.len().max(1) as f64
}

pub fn parts(requests: &[Request], count: usize) -> impl Iterator<Item = &[Request]> {
    (0..count)
        .map(move |at| &requests[requests.len() * at / count..requests.len() * (at + 1) / count])
}

/// A server's.
pub fn sketch() -> StackDistances {
    StackDistances::new(SAMPLES_MOST)
}

/// The requests of a minute, before which a server lets its sketch forget.
pub fn show_minute(distances: &mut StackDistances, minute: usize, part: &[Request]) {
    distances.fade(if minute < LEARNS { 0.9 } else { 0.983 });
    show(distances, part);
}

fn show(distances: &mut StackDistances, part: &[Request]) {
    for (number, length) in part {
        let text = key_text(*number);
        let hash = Key::new(&text).expect("16 bytes").hash();
        if distances.chosen().has(hash) {
            let bytes = *length + (ITEM_OVERHEAD_BYTES + text.len()) as u32;
            distances.read(hash, NOW, || None);
            distances.write(hash, bytes, 0);
        }
    }
    distances.count(part.len() as u64);
}

/// Of some parts, with those before known.
fn curve_of(requests: &[Request], counted: std::ops::Range<usize>) -> Curve {
    let mut distances = sketch();
    for (at, part) in parts(requests, PARTS).enumerate().take(counted.end) {
        if at == counted.start {
            distances.fade(0.0);
        }
        show(&mut distances, part);
    }
    distances.by_bytes()
}

pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Through what was measured at [`NOW_AT`].
fn through(curve: Curve, hit_ratio: f64) -> Forecast {
    Forecast::of(curve).through(Measured { bytes: bytes_at(NOW_AT), hit_ratio })
}

fn judge(requests: &Requests) -> Vec<Judged> {
    let all = &requests.all;
    let (quarter, half) = (PARTS / 4, PARTS / 2);
    let results: Vec<Vec<f64>> = (0..SIZES).map(|size| played(all, bytes_at(size))).collect();
    let now = &results[NOW_AT];
    let list = Forecast::of(curve_of(all, quarter..half));
    let coming = Forecast::of(curve_of(all, half..PARTS));
    let past = through(curve_of(all, quarter..half), mean(&now[quarter..half]));
    let mut renewed = [0.0; SIZES];
    let mut distances = sketch();
    for (minute, part) in parts(all, MINUTES).enumerate() {
        let at = minute / (MINUTES / PARTS);
        if at >= half && minute % (MINUTES / PARTS) == 0 {
            let forecast = through(distances.by_bytes(), now[at - 1]);
            for (size, off) in renewed.iter_mut().enumerate() {
                let error = forecast.hit_ratio(bytes_at(size)) - results[size][at];
                *off += error.abs() / (PARTS - half) as f64;
            }
        }
        show_minute(&mut distances, minute, part);
    }
    let judged = |size: usize| {
        let bytes = bytes_at(size);
        Judged {
            trace: requests.name.clone(),
            bytes,
            measured: mean(&results[size][half..]),
            forecast: past.hit_ratio(bytes),
            of_list: list.hit_ratio(bytes),
            drift: coming.hit_ratio(bytes) - list.hit_ratio(bytes),
            renewed: renewed[size],
        }
    };
    (0..SIZES).map(judged).collect()
}

/// Mean and largest, in points.
pub fn errors(errors: impl Iterator<Item = f64> + Clone) -> String {
    let count = errors.clone().count().max(1) as f64;
    let mean = errors.clone().map(f64::abs).sum::<f64>() / count;
    let most = errors.fold(0.0, |most: f64, error| most.max(error.abs()));
    format!("{:.2}, {:.1}", 100.0 * mean, 100.0 * most)
}

fn table(judged: &[Judged]) -> Sheet {
    let mut sheet = Sheet::new(["trace", "forecast", "a list", "drift", "renewed"]);
    let mut row = |name: &str, of: &dyn Fn(&Judged) -> bool| {
        let rows: Vec<&Judged> = judged.iter().filter(|one| of(one)).collect();
        let cells = [
            errors(rows.iter().map(|one| one.forecast - one.measured)),
            errors(rows.iter().map(|one| one.of_list - one.measured)),
            errors(rows.iter().map(|one| one.drift)),
            errors(rows.iter().map(|one| one.renewed)),
        ];
        sheet.row([name.to_owned()].into_iter().chain(cells));
    };
    for one in judged.iter().step_by(SIZES) {
        row(&one.trace, &|other| other.trace == one.trace);
    }
    row("**all**", &|_| true);
    sheet
}

fn sheet(judged: &[Judged]) -> Sheet {
    let mut sheet =
        Sheet::new(["trace", "bytes", "measured", "forecast", "of_list", "drift", "renewed_off"]);
    for one in judged {
        let figures = [one.measured, one.forecast, one.of_list, one.drift, one.renewed];
        let figures = figures.map(|figure| format!("{figure:.5}"));
        sheet.row([one.trace.clone(), one.bytes.to_string()].into_iter().chain(figures));
    }
    sheet
}

fn plot(judged: &[Judged]) -> Plot {
    let panel = |rows: &[Judged]| {
        let line = |name: &str, of: &dyn Fn(&Judged) -> f64| Line {
            name: name.into(),
            points: rows
                .iter()
                .map(|one| (one.bytes as f64 / f64::from(1 << 20), of(one)))
                .collect(),
        };
        let forecast = line("forecast", &|one| 100.0 * one.forecast);
        let list = line("a list", &|one| 100.0 * one.of_list);
        Panel {
            title: rows[0].trace.clone(),
            lines: vec![line("measured", &|one| 100.0 * one.measured), forecast, list],
        }
    };
    Plot {
        title: "Hit ratio forecast from a trace's first half, and measured in its second".into(),
        x: "MiB",
        y: "hit ratio, %",
        log_x: true,
        log_y: false,
        panels: judged.chunks(SIZES).map(panel).collect(),
    }
}
