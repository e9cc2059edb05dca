//! Draws what `scripts/proxy-skew` left in a folder, like Figures 13 to 16 of NetKV (ICAC 2016). Nothing is measured, so it draws again
//! what was recorded at any time.
//!
//!   cargo run --release -p mbal-bench --example skew -- docs/results/proxy 100000
//!
//! The number is that of the keys.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::path::Path;
use std::{env, fs};

use mbal_bench::Spread;
use mbal_plot::{Line, Panel, Plot, stacked};

/// What the fixed rule of the paper has beside a hot key: ten replicas, be it hot or hotter.
const FIXED: f64 = 10.0;

/// A run's figures by their columns.
type Row<'a> = BTreeMap<&'a str, &'a str>;

fn main() -> Result<(), String> {
    let mut arguments = env::args().skip(1);
    let folder = arguments.next().ok_or("which folder?")?;
    let keys = arguments.next().and_then(|keys| keys.parse().ok()).ok_or("how many keys?")?;
    let folder = Path::new(&folder);
    let read = |name: &str| {
        let path = folder.join(name);
        fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
    };
    let svg = drawn(&read("skew.csv")?, &read("loads.csv")?, keys);
    fs::write(folder.join("skew.svg"), svg).map_err(|error| format!("skew.svg: {error}"))
}

fn drawn(runs: &str, loads: &str, keys: f64) -> String {
    let runs = rows(runs);
    let loads = rows(loads);
    let law = |row: &Row<'_>| row["load"].strip_prefix("Zipf ")?.parse::<f64>().ok();
    // Medians over the rounds of each law.
    let line = |name: &str, config: &str, of: &dyn Fn(&Row<'_>) -> Option<f64>| {
        let mut by_law: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        for row in runs.iter().filter(|row| row["configuration"] == config) {
            if let (Some(law), Some(y)) = (law(row), of(row)) {
                by_law.entry((law * 10.0) as u64).or_default().push(y);
            }
        }
        let point = |(law, ys)| Some((law as f64 / 10.0, Spread::of(ys)?.median));
        Line { name: name.into(), points: by_law.into_iter().filter_map(point).collect() }
    };
    let lines = |column: &str| {
        let of = |row: &Row<'_>| row[column].parse().ok();
        ["off", "triple", "copies"].map(|config| line(config, config, &of)).into()
    };
    let kilobytes = |row: &Row<'_>| Some(row["copies_bytes"].parse::<f64>().ok()? / 1e3);
    // A copy is as long as its item, whose bytes are those of all that there are by their number.
    let fixed = |row: &Row<'_>| {
        let all = row["copies_bytes"].parse::<f64>().ok()?
            / row["copies_percent"].parse::<f64>().ok()?
            * 100.0;
        Some(row["hot_keys"].parse::<f64>().ok()? * FIXED * all / keys / 1e3)
    };
    let memory =
        vec![line("copies", "copies", &kilobytes), line("ten for each hot key", "copies", &fixed)];
    let plot = |title: &str, y, log_y, lines| Plot {
        title: title.into(),
        x: "Zipf's exponent",
        y,
        log_x: false,
        log_y,
        panels: vec![Panel { title: String::new(), lines }],
    };
    stacked(&[
        plot("Memory of copies", "KB", false, memory),
        plot("Busiest server of the least busy", "times", true, lines("max_of_min")),
        plot("Busiest server of the average", "times", false, lines("max_of_average")),
        of_servers(&loads),
    ])
}

/// The load of each server, from the busiest on: a panel for each law, of the first round that there is.
fn of_servers(loads: &[Row<'_>]) -> Plot {
    let mut panels: Vec<Panel> = Vec::new();
    for row in loads.iter().filter(|row| row["part"] == "zipf") {
        let mut shares: Vec<f64> =
            row["gets"].split(' ').filter_map(|gets| gets.parse().ok()).collect();
        let average = shares.iter().sum::<f64>() / shares.len() as f64;
        shares.sort_by(|one, other| other.total_cmp(one));
        let points = (1..).zip(shares).map(|(at, gets)| (f64::from(at), gets / average)).collect();
        let line = Line { name: row["configuration"].into(), points };
        match panels.iter_mut().find(|panel| panel.title == row["load"]) {
            Some(panel) if panel.lines.iter().any(|known| known.name == line.name) => {}
            Some(panel) => panel.lines.push(line),
            None => panels.push(Panel { title: row["load"].into(), lines: vec![line] }),
        }
    }
    Plot {
        title: "Load of each server".into(),
        x: "server, from the busiest on",
        y: "of the average",
        log_x: false,
        log_y: true,
        panels,
    }
}

fn rows(csv: &str) -> Vec<Row<'_>> {
    let mut lines = csv.lines();
    let names: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
    lines.map(|line| names.iter().copied().zip(line.split(',')).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn laws_are_drawn_by_their_medians_and_servers_by_their_shares() {
        let runs = "part,load,configuration,round,max_of_average,max_of_min,hot_keys,copies_bytes,copies_percent\n\
            zipf,uniform,even,1,1.3,1.5,0,0,0\n\
            zipf,Zipf 1.5,off,1,5.2,22,0,0,0\nzipf,Zipf 1.5,copies,1,1.1,1.2,4,2000,1.0\n";
        let loads = "part,load,configuration,round,gets\nzipf,Zipf 1.5,off,1,300 100 200\n";
        let svg = drawn(runs, loads, 1_000.0);
        for text in ["ten for each hot key", "Zipf 1.5", "Load of each server", "triple"] {
            assert!(svg.contains(text), "{text}");
        }
        let plot = of_servers(&rows(loads));
        assert_eq!(plot.panels[0].lines[0].points, [(1.0, 1.5), (2.0, 1.0), (3.0, 0.5)]);
    }
}
