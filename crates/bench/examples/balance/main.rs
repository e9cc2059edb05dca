//! Judges what `scripts/balance-testbed` left in a folder: a table (`table.md`) and plots over time.
//!
//!   cargo run --release -p mbal-bench --example balance -- docs/results/balance
#![forbid(unsafe_code)]

mod runs;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use mbal_output::plot::{Line, Panel, Plot};
use runs::{Part, Run, parts};

const MODES: [&str; 3] = ["off", "on", "memcached"];
/// A balance that came: so many seconds in a row at most this far from even.
const EVEN: f64 = 1.15;
const IN_A_ROW: usize = 3;

fn main() -> Result<(), String> {
    let folder: PathBuf = env::args().nth(1).unwrap_or("docs/results/balance".into()).into();
    let parts = parts(&folder)?;
    let table = table(&parts);
    print!("{table}");
    write(&folder, "table.md", table)?;
    write(&folder, "workers.svg", workers(&parts).svg())?;
    write(&folder, "throughput.svg", throughput(&parts).svg())?;
    write(&folder, "p99.svg", p99(&parts).svg())
}

fn write(folder: &Path, name: &str, text: String) -> Result<(), String> {
    fs::write(folder.join(name), text).map_err(|error| format!("{name}: {error}"))
}

/// One row per run; figures are of the seconds after the balance had its time.
fn table(parts: &[Part]) -> String {
    let mut out = String::from(
        "| part | balance | offered /s | served /s | × off | of the ideal | operations, max / average | \
         even after, s | CPU, max / average | p99 ms | × off | throttled |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for part in parts {
        let off = part.run("off");
        for mode in MODES {
            let Some(run) = part.run(mode) else { continue };
            let against_off = |figure: fn(&Run) -> Option<f64>| {
                let ratio = figure(run)? / figure(off?)?;
                Some(ratio).filter(|_| mode != "off")
            };
            let served = run.served().unwrap_or(0.0);
            let _ = writeln!(
                out,
                "| {} | {mode} | {:.0} | {served:.0} | {} | {:.2} | {} | {} | {} | {} | {} | {} |",
                part.name,
                part.offered,
                shown(against_off(Run::served), 2),
                served / part.ideal(),
                shown(run.imbalance(), 2),
                shown(run.even_after(EVEN, IN_A_ROW), 0),
                shown(run.cpu_imbalance(), 2),
                shown(run.p99_ms(), 2),
                shown(against_off(Run::p99_ms), 3),
                shown(run.throttled(), 2),
            );
        }
    }
    out
}

fn shown(figure: Option<f64>, decimals: usize) -> String {
    figure.map_or("–".into(), |figure| format!("{figure:.decimals$}"))
}

fn workers(parts: &[Part]) -> Plot {
    let panel = |part: &Part, mode: &str| {
        let run = part.run(mode)?;
        let workers = run.rows.first()?.workers.len();
        let line = |worker: usize| Line {
            name: format!("worker {worker}"),
            points: run.rows.iter().map(|row| (row.second, row.workers[worker])).collect(),
        };
        let lines: Vec<Line> = (0..workers).map(line).collect();
        (!lines.is_empty()).then(|| Panel { title: format!("{}, {mode}", part.name), lines })
    };
    let panels = parts.iter().flat_map(|part| MODES.iter().filter_map(|mode| panel(part, mode)));
    Plot {
        title: "Operations by worker".into(),
        x: "seconds",
        y: "operations/s",
        log_x: false,
        log_y: false,
        panels: panels.collect(),
    }
}

fn over_time(
    parts: &[Part],
    title: &'static str,
    y: &'static str,
    log_y: bool,
    of: fn(&runs::Row) -> f64,
) -> Plot {
    let panel = |part: &Part| {
        let line = |mode: &&str| {
            let run = part.run(mode)?;
            let points = run.rows.iter().map(|row| (row.second, of(row))).collect();
            Some(Line { name: (*mode).to_owned(), points })
        };
        Panel { title: part.name.clone(), lines: MODES.iter().filter_map(line).collect() }
    };
    let panels = parts.iter().map(panel).collect();
    Plot { title: title.into(), x: "seconds", y, log_x: false, log_y, panels }
}

fn throughput(parts: &[Part]) -> Plot {
    over_time(parts, "Operations served", "operations/s", false, |row| row.served)
}

fn p99(parts: &[Part]) -> Plot {
    over_time(parts, "p99 of the replies of each second", "ms", true, |row| row.p99_ms)
}
