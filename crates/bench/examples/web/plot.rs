//! Draws what a load has left: response time, hit ratio and the database's rate by second, a line for each CSV of a folder.

use std::fs;
use std::path::Path;

use mbal_plot::{Line, Plot, stacked};

/// Column, what it is, whether by powers of ten.
const PLOTS: [(&str, &str, bool); 3] = [
    ("p95_ms", "95th percentile of web requests, ms", true),
    ("hit_ratio", "hit ratio", false),
    ("database_keys", "keys from the database a second", false),
];

pub fn plot(folder: &Path) -> Result<(), String> {
    let fail = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut files: Vec<_> = fs::read_dir(folder)
        .map_err(fail)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|ending| ending == "csv"))
        .collect();
    files.sort();
    let mut runs = Vec::new();
    for file in &files {
        let text = fs::read_to_string(file).map_err(fail)?;
        if text.starts_with("second,") {
            let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            runs.push((name, text));
        }
    }
    let plots: Vec<Plot> = PLOTS
        .iter()
        .map(|&(column, y, log)| {
            let lines = runs
                .iter()
                .map(|(name, text)| Line { name: name.clone(), points: points(text, column) });
            Plot::alone(String::new(), "seconds", y, (false, log), lines.collect())
        })
        .collect();
    fs::write(folder.join("runs.svg"), stacked(&plots)).map_err(fail)
}

fn points(csv: &str, column: &str) -> Vec<(f64, f64)> {
    let mut lines = csv.lines();
    let place = lines.next().and_then(|head| head.split(',').position(|name| name == column));
    let Some(place) = place else { return vec![] };
    let point = |line: &str| {
        let fields: Vec<&str> = line.split(',').collect();
        let (second, value) = (fields[0].parse::<f64>().ok()?, fields.get(place)?.parse().ok()?);
        (second >= 0.0).then_some((second, value))
    };
    lines.filter_map(point).collect()
}
