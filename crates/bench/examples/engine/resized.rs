//! Hit ratios forecast for a resize, and what the resized engine then hits (docs/results/elastic.md).
//!
//! A trace is taken to last 400 minutes. Ten servers' sketches see it, and a store with the memory of all ten plays it. At five moments
//! the hit ratios of 7 to 15 servers are forecast as a coordinator would: through what the store has hit in the last ten minutes. Stores
//! that have had the same past then get the memory limit of so many servers. A lower one evicts at once; a higher one is filled through
//! misses, and has some time for that before it is judged.
//!
//! What comes is not what was. So a change of memory is judged by a store that plays on unchanged: the *change* is what the resized one hits
//! more in the same minutes; the *drift* is what the unchanged one hits more than before.

use std::path::Path;
use std::thread;

use mbal_cachelet::{Memory, Store};
use mbal_elastic::{Forecast, Measured};
use mbal_model::Key;
use mbal_plot::{Line, Panel, Plot};
use mbal_sketch::{Curve, StackDistances};

use crate::engine::{Engine, options};
use crate::forecast::{
    MINUTES, Request, Requests, errors, hit_ratio, mean, parts, show_minute, sketch,
};
use crate::output::{Page, Sheet};
use crate::traces::{NOW, Traces, key_text};

const SERVERS: u64 = 10;
const RESIZED: [u64; 6] = [7, 8, 9, 11, 12, 15];
/// Memory of ten servers, of 128 MiB that all items of a trace have.
const SIZES: [u64; 4] = [8 << 20, 16 << 20, 32 << 20, 64 << 20];
const MOMENTS: [usize; 5] = [160, 200, 240, 280, 320];
/// What was hit in so many minutes before is what the forecast goes through.
const MEASURED: usize = 10;
/// After a change, from which minute to which it is judged: with time for filling; and as the autoscaler tells what came true.
const FILLED: std::ops::Range<usize> = 20..60;
const TOLD: std::ops::Range<usize> = 5..15;
/// Of background work after a resize: a limit below what the index needs is never reached.
const STEPS_MOST: usize = 1_000_000;
/// The most error, on average.
const LIMIT: f64 = 0.01;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    traces: Traces,
}

/// A resize.
struct Judged {
    trace: String,
    bytes: u64,
    moment: usize,
    servers: u64,
    /// Of the memory, 20 minutes later.
    filled: f64,
    /// Hit ratios: of ten servers, before; forecast of so many; of lists that have as much memory.
    before: f64,
    forecast: f64,
    of_list: f64,
    after: After,
    told: After,
}

/// What was hit after a resize, and without it.
#[derive(Clone, Copy)]
struct After {
    resized: f64,
    unchanged: f64,
}

impl After {
    fn of(resized: &[f64], unchanged: &[f64], minutes: std::ops::Range<usize>) -> After {
        After { resized: mean(&resized[minutes.clone()]), unchanged: mean(&unchanged[minutes]) }
    }

    fn change(&self) -> f64 {
        self.resized - self.unchanged
    }
}

impl Judged {
    /// By how much the forecast change is off.
    fn change_off(&self, after: After) -> f64 {
        self.forecast - self.before - after.change()
    }

    fn drift(&self) -> f64 {
        self.after.unchanged - self.before
    }
}

pub fn run(args: &Args, out: &Path) -> Result<(), String> {
    let judged = args.traces.read(|name, trace| judge(&Requests::new(name, &trace)))?;
    let judged: Vec<Judged> = judged.into_iter().flatten().collect();
    if judged.is_empty() {
        return Ok(());
    }
    let mut page = Page::new(out, "resized", "Hit ratios after a resize, forecast");
    page.say(
        "Points of hit ratio, mean and largest. Ten servers become 7, 8, 9, 11, 12 and 15, at five moments of a trace and with four sizes of \
         memory. *Change*: what the resize brings or costs, the forecast of it against stores that were resized and stores that were not, in \
         the same minutes, 20 to 60 after it; *5 to 15*: in these. *Nobody forecasts*: the change itself. *Level*: the hit ratio afterwards; \
         *a list*: that of the curve alone. *Drift*: by how much unchanged stores differ from the ten minutes before.",
    );
    page.table(&by_trace(&judged));
    page.table(&by_servers(&judged));
    let more = judged.iter().filter(|one| one.servers > SERVERS).map(|one| one.filled);
    let filled = 100.0 * mean(&more.collect::<Vec<f64>>());
    page.say(&format!(
        "Of the memory after a resize to more servers {filled:.0}% are filled after 20 minutes."
    ));
    for trace in judged.chunk_by(|one, next| one.trace == next.trace) {
        let off: Vec<f64> = trace.iter().map(|one| one.change_off(one.after).abs()).collect();
        let found = format!("{:.2}", 100.0 * mean(&off));
        page.verdict(
            mean(&off) <= LIMIT,
            &format!("{}: change at most 1 point off", trace[0].trace),
            &found,
        );
    }
    page.save(&sheet(&judged), &plot(&judged).svg())
}

/// By minute until one, the part that hits and the bytes in use; with another number of servers from a moment on.
fn played(all: &[Request], bytes: u64, resized: Option<(usize, u64)>, until: usize) -> Played {
    let most = bytes * RESIZED[RESIZED.len() - 1] / SERVERS;
    let store = Store::with_memory(options(bytes as usize, 1, 16), Memory::heap(most as usize));
    let mut engine = Engine::new(&store, 0);
    let mut played = Played::default();
    for (minute, part) in parts(all, MINUTES).enumerate().take(until) {
        if let Some((_, servers)) = resized.filter(|(moment, _)| *moment == minute) {
            resize(&engine, bytes * servers / SERVERS);
        }
        played.ratios.push(hit_ratio(&mut engine, part));
        played.used_bytes.push(store.stats().used_bytes);
    }
    played
}

#[derive(Default)]
struct Played {
    ratios: Vec<f64>,
    used_bytes: Vec<u64>,
}

/// Evicts what is too much, as background work of a server does within a second or so.
fn resize(engine: &Engine, bytes: u64) {
    assert!(engine.store.set_memory_limit(bytes as usize), "the memory is there");
    for _ in 0..STEPS_MOST {
        if engine.store.stats().used_bytes <= bytes {
            break;
        }
        engine.rest(NOW);
    }
}

/// The cluster's, at each of [`MOMENTS`], from sketches of ten servers.
fn curves(all: &[Request]) -> Vec<Curve> {
    let mut sketches: Vec<StackDistances> = (0..SERVERS).map(|_| sketch()).collect();
    let mut curves = Vec::new();
    for (minute, part) in parts(all, MINUTES).enumerate() {
        if MOMENTS.contains(&minute) {
            let share = 1.0 / SERVERS as f64;
            let servers = sketches.iter().map(|sketch| (sketch.by_bytes(), share));
            curves.push(Curve::merged(&servers.collect::<Vec<_>>()));
        }
        let mut by_server: Vec<Vec<Request>> = vec![Vec::new(); SERVERS as usize];
        for request in part {
            let hash = Key::new(&key_text(request.0)).expect("16 bytes").hash();
            by_server[(((hash >> 32) * SERVERS) >> 32) as usize].push(*request);
        }
        for (sketch, part) in sketches.iter_mut().zip(&by_server) {
            show_minute(sketch, minute, part);
        }
    }
    curves
}

fn judge(requests: &Requests) -> Vec<Judged> {
    let curves = &curves(&requests.all);
    let by_size = thread::scope(|scope| {
        let judge = |bytes| scope.spawn(move || judge_size(requests, curves, bytes));
        let threads = SIZES.map(judge);
        threads.map(|thread| thread.join().expect("no store panics"))
    });
    by_size.into_iter().flatten().collect()
}

fn judge_size(requests: &Requests, curves: &[Curve], bytes: u64) -> Vec<Judged> {
    let all = &requests.all;
    let unchanged = played(all, bytes, None, MINUTES).ratios;
    let mut judged = Vec::new();
    for (&moment, curve) in MOMENTS.iter().zip(curves) {
        let before = mean(&unchanged[moment - MEASURED..moment]);
        let list = Forecast::of(curve.clone());
        let forecast = list.clone().through(Measured { bytes, hit_ratio: before });
        for servers in RESIZED {
            let new_bytes = bytes * servers / SERVERS;
            let resized = played(all, bytes, Some((moment, servers)), moment + FILLED.end);
            let after =
                |minutes| After::of(&resized.ratios[moment..], &unchanged[moment..], minutes);
            judged.push(Judged {
                trace: requests.name.clone(),
                bytes,
                moment,
                servers,
                filled: resized.used_bytes[moment + FILLED.start] as f64 / new_bytes as f64,
                before,
                forecast: forecast.hit_ratio(new_bytes),
                of_list: list.hit_ratio(new_bytes),
                after: after(FILLED),
                told: after(TOLD),
            });
        }
    }
    judged
}

fn by_trace(judged: &[Judged]) -> Sheet {
    let mut sheet =
        Sheet::new(["trace", "change", "5 to 15", "nobody forecasts", "level", "a list", "drift"]);
    let mut row = |name: &str, of: &dyn Fn(&Judged) -> bool| {
        let all: Vec<&Judged> = judged.iter().filter(|one| of(one)).collect();
        let cells = [
            errors(all.iter().map(|one| one.change_off(one.after))),
            errors(all.iter().map(|one| one.change_off(one.told))),
            errors(all.iter().map(|one| one.after.change())),
            errors(all.iter().map(|one| one.forecast - one.after.resized)),
            errors(all.iter().map(|one| one.of_list - one.after.resized)),
            errors(all.iter().map(|one| one.drift())),
        ];
        sheet.row([name.to_owned()].into_iter().chain(cells));
    };
    for trace in judged.chunk_by(|one, next| one.trace == next.trace) {
        row(&trace[0].trace, &|one| one.trace == trace[0].trace);
    }
    row("**all**", &|_| true);
    row("all, fewer servers", &|one| one.servers < SERVERS);
    row("all, more servers", &|one| one.servers > SERVERS);
    sheet
}

/// What a resize brings, on average over all traces, moments and sizes.
fn by_servers(judged: &[Judged]) -> Sheet {
    let mut sheet = Sheet::new(["10 servers become", "change, mean", "forecast, mean", "off"]);
    for servers in RESIZED {
        let all: Vec<&Judged> = judged.iter().filter(|one| one.servers == servers).collect();
        let points = |of: &dyn Fn(&Judged) -> f64| {
            format!("{:+.2}", 100.0 * mean(&all.iter().map(|one| of(one)).collect::<Vec<f64>>()))
        };
        sheet.row([
            servers.to_string(),
            points(&|one| one.after.change()),
            points(&|one| one.forecast - one.before),
            errors(all.iter().map(|one| one.change_off(one.after))),
        ]);
    }
    sheet
}

fn sheet(judged: &[Judged]) -> Sheet {
    let mut sheet = Sheet::new([
        "trace",
        "bytes",
        "minute",
        "servers",
        "filled",
        "before",
        "forecast",
        "of_list",
        "resized",
        "unchanged",
        "resized_5_to_15",
        "unchanged_5_to_15",
    ]);
    for one in judged {
        let figures = [
            one.filled,
            one.before,
            one.forecast,
            one.of_list,
            one.after.resized,
            one.after.unchanged,
            one.told.resized,
            one.told.unchanged,
        ];
        let figures = figures.map(|figure| format!("{figure:.5}"));
        let counts = [one.bytes, one.moment as u64, one.servers].map(|count| count.to_string());
        sheet.row([one.trace.clone()].into_iter().chain(counts).chain(figures));
    }
    sheet
}

/// Changes of each trace, means over moments and sizes.
fn plot(judged: &[Judged]) -> Plot {
    let panel = |trace: &[Judged]| {
        let line = |name: &str, of: &dyn Fn(&Judged) -> f64| {
            let point = |servers: u64| {
                let all = trace.iter().filter(|one| one.servers == servers);
                (servers as f64, 100.0 * mean(&all.map(of).collect::<Vec<f64>>()))
            };
            Line { name: name.into(), points: RESIZED.map(point).to_vec() }
        };
        Panel {
            title: trace[0].trace.clone(),
            lines: vec![
                line("measured", &|one| one.after.change()),
                line("forecast", &|one| one.forecast - one.before),
            ],
        }
    };
    Plot {
        title: "What a resize of ten servers brings or costs, forecast and measured".into(),
        x: "servers",
        y: "points of hit ratio",
        log_x: false,
        log_y: false,
        panels: judged.chunk_by(|one, next| one.trace == next.trace).map(panel).collect(),
    }
}
