//! Draws what `scripts/autoscale-minutes` left in a folder: what was asked, what the database got, and how many servers there were. Nothing
//! is measured, so it draws again what was recorded at any time.
//!
//!   cargo run --release -p mbal-bench --example minutes -- docs/results/elastic 1000
//!
//! The number is what the database bears a second.
#![forbid(unsafe_code)]

use std::path::Path;
use std::{env, fs};

use mbal_plot::{Line, Panel, Plot, stacked};

fn main() -> Result<(), String> {
    let mut arguments = env::args().skip(1);
    let folder = arguments.next().ok_or("which folder?")?;
    let bears = arguments.next().and_then(|rate| rate.parse().ok()).ok_or("which rate?")?;
    let folder = Path::new(&folder);
    let csv = fs::read_to_string(folder.join("autoscale.csv"))
        .map_err(|error| format!("autoscale.csv: {error}"))?;
    fs::write(folder.join("autoscale.svg"), drawn(&csv, bears)?)
        .map_err(|error| format!("autoscale.svg: {error}"))
}

/// Columns are second, rate, gets, misses and servers.
fn drawn(csv: &str, bears: f64) -> Result<String, String> {
    let number = |word: &str| word.parse::<f64>().map_err(|_| format!("not a number: {word}"));
    let rows: Vec<Vec<f64>> = csv
        .lines()
        .skip(1)
        .map(|row| row.split(',').map(number).collect())
        .collect::<Result<_, _>>()?;
    let line = |name: &str, of: &dyn Fn(&[f64]) -> f64| Line {
        name: name.into(),
        points: rows.iter().map(|row| (row[0] / 60.0, of(row))).collect(),
    };
    let plot = |title: &str, y, lines| Plot {
        title: title.into(),
        x: "minutes",
        y,
        log_x: false,
        log_y: false,
        panels: vec![Panel { title: String::new(), lines }],
    };
    Ok(stacked(&[
        plot("reads of the load", "reads/s", vec![line("reads", &|row| row[2])]),
        plot(
            "reads of the database",
            "reads/s",
            vec![line("misses", &|row| row[3]), line("what it bears", &|_| bears)],
        ),
        plot("servers with cachelets", "servers", vec![line("servers", &|row| row[4])]),
    ]))
}
