//! Hit ratios of other memory sizes, forecast from the past and judged on what comes (docs/results/elastic.md).
//!
//! A store of [`NOW_BYTES`] has a trace's first half. The sketch counts its second quarter, as a server's counts the last
//! minutes, with the keys of the first one known. What the store hits in that quarter says what memory is worth. Stores of all sizes,
//! that have had the first half too, then play the second half: what they hit is what is judged.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use mbal_bench::Trace;
use mbal_cachelet::{Draft, ITEM_OVERHEAD_BYTES, Store};
use mbal_elastic::Forecast;
use mbal_model::Key;
use mbal_output::plot::{Line, Panel, Plot};
use mbal_sketch::{Curve, Random, StackDistances, is_chosen, mix};

use crate::engine::{Engine, options};
use crate::hits::{FILES, NOW};
use crate::output::{Page, Sheet};

/// All items of a trace have so many bytes together: values are stretched to it.
const ALL_BYTES: u64 = 128 << 20;
/// Memory, in half steps of doubling.
const SIZES: usize = 15;
const LEAST_BYTES: f64 = (1 << 20) as f64;
/// What the cluster has, which forecasts.
const NOW_AT: usize = 7;
const VALUE_BYTES_MAX: f64 = 900_000.0;
const SAMPLES_MOST: usize = 16_384;

#[derive(clap::Args)]
pub struct Args {
    /// Folder of the traces
    #[arg(long, default_value = "../shared/data/traces")]
    data: PathBuf,
    /// Only traces whose file has this in its name: a quick look
    #[arg(long)]
    only: Option<String>,
}

/// Requests of a key and the length of its value.
struct Requests {
    name: String,
    all: Vec<(u64, u32)>,
}

/// By size, in bytes of memory.
struct Judged {
    trace: String,
    bytes: u64,
    measured: f64,
    /// By [`KINDS`].
    forecast: [f64; KINDS.len()],
    /// How far LRU lists of that size differ between the two quarters and the second half.
    drift: f64,
}

const KINDS: [&str; 4] = ["all keys, a list", "all keys", "one in 64, a list", "one in 64"];

pub fn run(args: &Args, out: &Path) -> Result<(), String> {
    if !args.data.exists() {
        eprintln!("SKIPPED: no traces in {}", args.data.display());
        return Ok(());
    }
    let wanted = |file: &&&str| args.only.as_ref().is_none_or(|part| file.contains(part));
    let mut judged = Vec::new();
    for file in FILES.iter().filter(wanted) {
        judged.extend(judge(&Requests::read(&args.data.join(file))?));
    }
    let mut page = Page::new(out, "forecast", "Hit ratios of other sizes, forecast");
    page.say(
        "Points of hit ratio by which the forecast of a trace's first half is off in its second half, over sizes from 1 to 128 MiB \
         in half steps of doubling: mean, largest. *A list*: without the measured worth of memory. *Drift*: by how much LRU lists \
         of these sizes, played exactly, differ between what was forecast from and what was judged on; no forecast knows of it.",
    );
    page.table(&table(&judged));
    let sheet = sheet(&judged);
    page.save(&sheet, &plot(&judged).svg())
}

impl Requests {
    fn read(path: &Path) -> Result<Requests, String> {
        let trace = Trace::read(path, usize::MAX)?;
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
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        Ok(Requests {
            name: file.split('.').next().unwrap_or_default().to_owned(),
            all: trace.keys.iter().map(|key| (*key, length(key))).collect(),
        })
    }
}

/// Facebook's sizes of values (ElMem, ICDCS 2018, §V.A.2): generalised Pareto, 1 to 1,000 bytes.
fn drawn(key: u64) -> f64 {
    let unit = Random::new(mix(key + 1)).unit();
    (250.476 / 0.348_238 * (unit.powf(-0.348_238) - 1.0)).clamp(1.0, 1_000.0)
}

fn bytes_at(size: usize) -> u64 {
    (LEAST_BYTES * 2_f64.powf(size as f64 / 2.0)) as u64
}

/// Hits, as parts of all, in the second quarter and in the second half.
fn played(requests: &[(u64, u32)], bytes: u64) -> (f64, f64) {
    let store = Store::new(options(bytes as usize, 1, 16));
    let mut engine = Engine::new(&store, 0);
    let value = vec![0; VALUE_BYTES_MAX as usize];
    let (quarter, half) = (requests.len() / 4, requests.len() / 2);
    let mut hits = [0; 4];
    for (at, (number, length)) in requests.iter().enumerate() {
        let text = format!("{number:016x}");
        let key = Key::new(text.as_bytes()).expect("16 bytes");
        if engine.get(&key, NOW) {
            hits[(at / quarter.max(1)).min(3)] += 1;
        } else {
            let draft = Draft { parts: &[&value[..*length as usize]], ..Draft::default() };
            // What finds no room in a memory of a few pages is not stored.
            let _kept = engine.set(&key, &draft, NOW);
        }
    }
    let part = |hits: i32, of: usize| f64::from(hits) / of.max(1) as f64;
    (part(hits[1], half - quarter), part(hits[2] + hits[3], requests.len() - half))
}

/// What a server's sketch tells of `counted`, having seen `before`.
fn sketched(before: &[(u64, u32)], counted: &[(u64, u32)], every_key: bool) -> Curve {
    let mut distances = match every_key {
        true => StackDistances::new(SAMPLES_MOST),
        false => StackDistances::of_chosen(SAMPLES_MOST),
    };
    for part in [before, counted] {
        distances.fade(0.0);
        for (number, length) in part {
            let text = format!("{number:016x}");
            let hash = Key::new(text.as_bytes()).expect("16 bytes").hash();
            if every_key || is_chosen(hash) {
                let bytes = *length + (ITEM_OVERHEAD_BYTES + text.len()) as u32;
                distances.read(hash, NOW, || None);
                distances.write(hash, bytes, 0);
            }
        }
        distances.count(part.len() as u64);
    }
    distances.by_bytes()
}

fn judge(requests: &Requests) -> Vec<Judged> {
    let all = &requests.all;
    let (quarter, half) = (all.len() / 4, all.len() / 2);
    let of_past = [true, false].map(|every| sketched(&all[..quarter], &all[quarter..half], every));
    let of_coming = sketched(&all[..half], &all[half..], true);
    let results: Vec<(f64, f64)> = (0..SIZES).map(|size| played(all, bytes_at(size))).collect();
    let now = bytes_at(NOW_AT);
    let forecasts = of_past.iter().flat_map(|curve| {
        let list = Forecast::of(curve.clone());
        let efficiency = list.efficiency_of(now, results[NOW_AT].0).unwrap_or(1.0);
        eprintln!("{}: memory is worth {efficiency:.2}", requests.name);
        [list.clone(), list.with_efficiency(efficiency)]
    });
    let forecasts: Vec<Forecast> = forecasts.collect();
    let judged = |size: usize| {
        let bytes = bytes_at(size);
        let of = |nth: usize| forecasts[nth].hit_ratio(bytes);
        Judged {
            trace: requests.name.clone(),
            bytes,
            measured: results[size].1,
            forecast: std::array::from_fn(of),
            drift: (1.0 - of_coming.miss_ratio(bytes)) - of(0),
        }
    };
    (0..SIZES).map(judged).collect()
}

/// Mean and largest, in points.
fn errors(errors: impl Iterator<Item = f64> + Clone) -> String {
    let count = errors.clone().count().max(1) as f64;
    let mean = errors.clone().map(f64::abs).sum::<f64>() / count;
    let most = errors.fold(0.0, |most: f64, error| most.max(error.abs()));
    format!("{:.2}, {:.1}", 100.0 * mean, 100.0 * most)
}

fn table(judged: &[Judged]) -> Sheet {
    let mut sheet = Sheet::new(["trace"].into_iter().chain(KINDS).chain(["drift"]));
    let mut row = |name: &str, of: &dyn Fn(&Judged) -> bool| {
        let rows: Vec<&Judged> = judged.iter().filter(|one| of(one)).collect();
        let kinds = (0..KINDS.len())
            .map(|kind| errors(rows.iter().map(move |one| one.forecast[kind] - one.measured)));
        let drift = errors(rows.iter().map(|one| one.drift));
        sheet.row([name.to_owned()].into_iter().chain(kinds).chain([drift]));
    };
    for one in judged.iter().step_by(SIZES) {
        row(&one.trace, &|other| other.trace == one.trace);
    }
    row("**all**", &|_| true);
    sheet
}

fn sheet(judged: &[Judged]) -> Sheet {
    let heads = ["trace", "bytes", "measured"].into_iter();
    let kinds = ["all_list", "all", "sampled_list", "sampled", "drift"];
    let mut sheet = Sheet::new(heads.chain(kinds));
    for one in judged {
        let figures = [one.measured].into_iter().chain(one.forecast).chain([one.drift]);
        let figures = figures.map(|figure| format!("{figure:.5}"));
        sheet.row([one.trace.clone(), one.bytes.to_string()].into_iter().chain(figures));
    }
    sheet
}

fn plot(judged: &[Judged]) -> Plot {
    let panel = |rows: &[Judged]| {
        let line = |name: &str, of: &dyn Fn(&Judged) -> f64| Line {
            name: name.into(),
            points: rows.iter().map(|one| (one.bytes as f64 / f64::from(1 << 20), of(one))).collect(),
        };
        let forecast = line("forecast", &|one| 100.0 * one.forecast[1]);
        let list = line("a list", &|one| 100.0 * one.forecast[0]);
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
