//! Judges what `scripts/balance-testbed` left in a folder: a table (`table.md`) and plots over time. Nothing is measured, so
//! it draws again what was recorded at any time.
//!
//!   cargo run --release -p mbal-bench --example balance                              the folders of the results
//!   cargo run --release -p mbal-bench --example balance -- docs/results/balance
#![forbid(unsafe_code)]

mod runs;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use mbal_plot::{Line, Panel, Plot};
use runs::{Part, Run, parts};

const MODES: [&str; 3] = ["off", "on", "memcached"];
const FOLDERS: [&str; 3] =
    ["docs/results/balance", "docs/results/balance/latency", "docs/results/balance/zipf"];
/// A balance that came: so many seconds in a row at most this far from even.
const EVEN: f64 = 1.15;
const IN_A_ROW: usize = 3;

fn main() -> Result<(), String> {
    let mut folders: Vec<PathBuf> = env::args().skip(1).map(PathBuf::from).collect();
    if folders.is_empty() {
        folders = FOLDERS.map(PathBuf::from).into();
    }
    for folder in folders {
        for (name, text) in judged(&folder)? {
            if name == "table.md" {
                println!("{}\n{text}", folder.display());
            }
            fs::write(folder.join(name), text).map_err(|error| format!("{name}: {error}"))?;
        }
    }
    Ok(())
}

/// Files by their names.
fn judged(folder: &Path) -> Result<Vec<(&'static str, String)>, String> {
    let parts = parts(folder)?;
    let made = made(folder)?;
    let mut files = vec![("table.md", table(&parts))];
    let plots = [
        ("workers.svg", workers(&parts)),
        ("cpu.svg", cpu(&parts)),
        ("throughput.svg", throughput(&parts)),
        ("p99.svg", p99(&parts)),
    ];
    for (name, mut plot) in plots {
        // Where no client knew the workers, there is no picture of their operations.
        if !plot.panels.is_empty() {
            plot.title += &format!(" ({made})");
            files.push((name, plot.svg()));
        }
    }
    Ok(files)
}

/// Day and commit of the figures, as the testbed left them: `Made by SCRIPT on DAY, commit COMMIT`.
fn made(folder: &Path) -> Result<String, String> {
    let path = folder.join("heading.txt");
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let made = text.lines().next().and_then(|line| line.split_once(" on "));
    made.map(|(_, made)| made.to_owned()).ok_or_else(|| format!("{}: no day", path.display()))
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

/// A panel for each run, a line for each worker; `of` has the points of one run, by worker.
fn by_worker(
    parts: &[Part],
    title: &str,
    y: &'static str,
    of: fn(&Run) -> Vec<runs::Points>,
) -> Plot {
    let panel = |part: &Part, mode: &str| {
        let workers = of(part.run(mode)?).into_iter().enumerate();
        let line = |(worker, points)| Line { name: format!("worker {worker}"), points };
        let lines: Vec<Line> = workers.map(line).collect();
        (!lines.is_empty()).then(|| Panel { title: format!("{}, {mode}", part.name), lines })
    };
    let panels = parts.iter().flat_map(|part| MODES.iter().filter_map(|mode| panel(part, mode)));
    let (title, panels) = (title.into(), panels.collect());
    Plot { title, x: "seconds", y, log_x: false, log_y: false, panels }
}

fn workers(parts: &[Part]) -> Plot {
    by_worker(parts, "Operations by worker", "operations/s", Run::operations)
}

fn cpu(parts: &[Part]) -> Plot {
    by_worker(parts, "CPU by worker", "cores", Run::cores)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// After a change of the judge, or of how plots are drawn, this program makes the files again.
    #[test]
    fn the_committed_tables_and_pictures_are_those_of_the_committed_csv() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for folder in FOLDERS.map(|folder| root.join(folder)) {
            for (name, text) in judged(&folder).unwrap() {
                let path = folder.join(name);
                let committed = fs::read_to_string(&path).unwrap();
                assert!(text == committed, "{} is another", path.display());
            }
        }
    }
}
