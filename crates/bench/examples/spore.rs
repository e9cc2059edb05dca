//! Judges what `scripts/spore-testbed` left in a folder: a table of medians (`table.md`) and a plot for each part. Nothing is measured,
//! so it draws again what was recorded at any time.
//!
//!   cargo run --release -p mbal-bench --example spore -- docs/results/spore
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

use mbal_bench::Spread;
use mbal_plot::{Line, Panel, Plot, stacked};

/// Columns of the table: how they are called in `runs.csv`, for people, by how much they are divided, and their decimals.
const COLUMNS: [(&str, &str, f64, usize); 12] = [
    ("requests_per_second", "requests/s", 1.0, 0),
    ("p50_us", "p50 ms", 1e3, 1),
    ("p90_us", "p90 ms", 1e3, 1),
    ("p95_us", "p95 ms", 1e3, 1),
    ("p99_us", "p99 ms", 1e3, 1),
    ("p999_us", "p99.9 ms", 1e3, 1),
    ("writes_p90_us", "writes p90 ms", 1e3, 1),
    ("max_over_mean", "max / average", 1.0, 2),
    ("from_copies", "from copies", 1.0, 3),
    ("relief_seconds", "relief s", 1.0, 2),
    ("relief_seconds_worst", "worst relief s", 1.0, 2),
    ("wrong", "wrong", 1.0, 0),
];

/// One load of one part: its configurations in the order in which they were measured first.
#[derive(Default)]
struct Load {
    configurations: Vec<(String, Vec<Row>)>,
}

/// A run's figures by their columns.
type Row = BTreeMap<String, f64>;
/// Loads by their names, in order.
type Part = Vec<(String, Load)>;
/// Those of one panel, each with its place among all.
type Alike<'a> = Vec<(usize, &'a String, &'a Load)>;

fn main() -> Result<(), String> {
    let folder = env::args().nth(1).ok_or("which folder?")?;
    let folder = Path::new(&folder);
    let read = |name: &str| {
        let path = folder.join(name);
        fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
    };
    let parts = parts(&read("runs.csv")?);
    let mut table = table(&parts);
    table += &copies(&read("copies.csv")?);
    println!("{table}");
    let write = |name: &str, text: String| {
        fs::write(folder.join(name), text).map_err(|error| format!("{name}: {error}"))
    };
    write("table.md", table)?;
    for (name, part) in &parts {
        write(&format!("{name}.svg"), plots(name, part))?;
    }
    Ok(())
}

fn parts(csv: &str) -> BTreeMap<String, Part> {
    let mut lines = csv.lines();
    let names: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
    let mut parts: BTreeMap<String, Part> = BTreeMap::new();
    for line in lines {
        let fields: Vec<&str> = line.split(',').collect();
        let words: Vec<&str> = fields[0].trim_matches('"').split('|').collect();
        let [part, load, configuration] = words[..] else { continue };
        let figures = names
            .iter()
            .zip(&fields)
            .filter_map(|(name, field)| Some((name.to_string(), field.parse().ok()?)));
        let part = parts.entry(part.into()).or_default();
        let load = found(part, load);
        found(&mut load.configurations, configuration).push(figures.collect());
    }
    parts
}

/// The thing of this name; a new one stands last.
fn found<'a, T: Default>(list: &'a mut Vec<(String, T)>, name: &str) -> &'a mut T {
    let at = list.iter().position(|(known, _)| known == name).unwrap_or_else(|| {
        list.push((name.into(), T::default()));
        list.len() - 1
    });
    &mut list[at].1
}

fn median(rows: &[Row], column: &str) -> Option<f64> {
    let values = rows.iter().filter_map(|row| row.get(column).copied());
    Spread::of(values.collect()).map(|spread| spread.median)
}

fn table(parts: &BTreeMap<String, Part>) -> String {
    let titles = COLUMNS.map(|(_, title, ..)| title).join(" | ");
    let mut out = format!(
        "| part | load | | rounds | {titles} |\n|---|---|---|---{}|\n",
        "|---".repeat(COLUMNS.len())
    );
    for (part, loads) in parts {
        for (load, Load { configurations }) in loads {
            for (configuration, rows) in configurations {
                let _ = write!(out, "| {part} | {load} | {configuration} | {} |", rows.len());
                for (column, _, divided, decimals) in COLUMNS {
                    let figure = median(rows, column).map(|figure| figure / divided);
                    let shown =
                        figure.map_or("–".into(), |figure| format!("{figure:.decimals$}"));
                    let _ = write!(out, " {shown} |");
                }
                out.push('\n');
            }
        }
    }
    out
}

/// Copies in the middle of each run, by part, load and configuration.
fn copies(csv: &str) -> String {
    let mut all: Vec<(String, Vec<Row>)> = Vec::new();
    for line in csv.lines() {
        let [name, figures @ ..] = &line.split(',').collect::<Vec<_>>()[..] else { continue };
        let figure = |text: &&str| text.parse().unwrap_or(f64::NAN);
        let names = ["copies", "bytes", "grants"].map(String::from);
        let row = names.into_iter().zip(figures.iter().map(figure)).collect::<Vec<_>>();
        found(&mut all, name).push(row.into_iter().collect());
    }
    let mut out = String::from(
        "\n| part | load | | copies | bytes of them | how often a key got some |\n|---|---|---|---|---|---|\n",
    );
    for (name, rows) in all {
        let figure = |column| median(&rows, column).unwrap_or(f64::NAN);
        let _ = writeln!(
            out,
            "| {} | {:.0} | {:.0} | {:.0} |",
            name.replace('|', " | "),
            figure("copies"),
            figure("bytes"),
            figure("grants")
        );
    }
    out
}

/// The first number of a load's name, or its place.
fn x_of(load: &str, place: usize) -> f64 {
    let digits =
        load.split(|one: char| !one.is_ascii_digit() && one != '.').find(|part| !part.is_empty());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(place as f64)
}

/// Loads that differ in a number alone share a panel.
fn plots(name: &str, part: &Part) -> String {
    let kind = |load: &str| {
        load.chars().filter(|one| !one.is_ascii_digit() && *one != '.').collect::<String>()
    };
    let mut panels: Vec<(String, Alike<'_>)> = Vec::new();
    for (place, (load, figures)) in part.iter().enumerate() {
        found(&mut panels, kind(load).trim()).push((place, load, figures));
    }
    let plot = |title: String, y, of: &dyn Fn(&[Row]) -> Option<f64>| Plot {
        title,
        x: "load",
        y,
        log_x: false,
        log_y: false,
        panels: panels
            .iter()
            .map(|(title, loads)| {
                let mut lines: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
                for (place, load, Load { configurations }) in loads {
                    for (configuration, rows) in configurations {
                        let point = of(rows).map(|y| (x_of(load, *place), y));
                        found(&mut lines, configuration).extend(point);
                    }
                }
                let line = |(name, points)| Line { name, points };
                Panel { title: title.clone(), lines: lines.into_iter().map(line).collect() }
            })
            .collect(),
    };
    stacked(&[
        plot(format!("{name}: requests per second"), "requests/s", &|rows| {
            median(rows, "requests_per_second")
        }),
        plot(format!("{name}: p90"), "ms", &|rows| Some(median(rows, "p90_us")? / 1e3)),
        plot(format!("{name}: p99"), "ms", &|rows| Some(median(rows, "p99_us")? / 1e3)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_medians_in_the_order_of_the_runs() {
        let csv = "name,round,server,requests_per_second,p90_us,command\n\
            \"6a|8 clients|off\",1,1,100,5000,\"a,b\"\n\"6a|8 clients|even\",1,1,400,1000,\"a\"\n\
            \"6a|8 clients|off\",1,1,300,7000,\"a\"\n";
        let parts = parts(csv);
        let table = table(&parts);
        let lines: Vec<&str> = table.lines().skip(2).collect();
        assert!(lines[0].starts_with("| 6a | 8 clients | off | 2 | 200 | – | 6.0 |"), "{table}");
        assert!(lines[1].starts_with("| 6a | 8 clients | even | 1 | 400 |"), "{table}");
        assert!(plots("6a", &parts["6a"]).contains("even"));
        assert_eq!((x_of("Zipf 1.5", 3), x_of("uniform keys", 3)), (1.5, 3.0));
        assert!(
            copies("6a|8 clients|async,4,1000,7\n6a|8 clients|async,6,3000,7\n")
                .ends_with("| 6a | 8 clients | async | 5 | 2000 | 7 |\n")
        );
    }
}
