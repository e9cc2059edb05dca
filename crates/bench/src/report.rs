//! Results for people (tables), for scripts (JSON) and for the record (CSV).

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;

use mbal_output::json::quoted;

use crate::compare::{Comparison, Series};
use crate::measure::{FIGURES, Figure};
use crate::summary::Spread;
use crate::tally::Tally;
use crate::timeline;

/// A figure over all rounds of a server, and against the first server.
struct Line {
    spread: Spread,
    ratio: Option<Spread>,
}

fn line(comparison: &Comparison, which: usize, figure: &Figure) -> Option<Line> {
    let values = |series: &Series| series.rounds.iter().map(figure.of).collect::<Vec<_>>();
    let own = values(&comparison.series[which]);
    let spread = Spread::of(own.iter().flatten().copied().collect())?;
    let base = values(&comparison.series[0]);
    let ratio = (which > 0).then(|| Spread::of_paired_ratios(&own, &base)).flatten();
    Some(Line { spread, ratio })
}

pub fn table(name: &str, comparison: &Comparison) -> String {
    let mut out = format!("{name}: {}\n", comparison.load);
    for (which, series) in comparison.series.iter().enumerate() {
        let rounds = series.rounds.len();
        let _ = writeln!(out, "  {} = {} ({rounds} rounds)", which + 1, series.command);
    }
    for figure in &FIGURES {
        let lines: Vec<(usize, Line)> = (0..comparison.series.len())
            .filter_map(|which| Some((which, line(comparison, which, figure)?)))
            .collect();
        if lines.iter().all(|(_, line)| line.spread.max == 0.0) {
            continue;
        }
        let _ = writeln!(out, "{}", figure.title);
        for (which, Line { spread: Spread { median, min, max }, ratio }) in lines {
            let decimals = figure.decimals;
            let _ = write!(
                out,
                "  {} {median:>12.decimals$}   {min:.decimals$} to {max:.decimals$}",
                which + 1
            );
            if let Some(Spread { median, min, max }) = ratio {
                let _ = write!(out, "   × {median:.3} ({min:.3} to {max:.3})");
            }
            out.push('\n');
        }
    }
    out
}

pub fn json(name: &str, comparison: &Comparison) -> String {
    let spread = |spread: Spread| {
        let Spread { median, min, max } = spread;
        format!("{{\"median\":{median},\"min\":{min},\"max\":{max}}}")
    };
    let servers = comparison.series.iter().enumerate().map(|(which, series)| {
        let figures = FIGURES.iter().filter_map(|figure| {
            let Line { spread: all, ratio } = line(comparison, which, figure)?;
            let ratio = ratio.map_or(String::new(), |r| format!(",\"ratio\":{}", spread(r)));
            let rounds: Vec<String> = series
                .rounds
                .iter()
                .map(|round| (figure.of)(round).map_or("null".into(), |value| value.to_string()))
                .collect();
            let name = figure.name;
            let (all, rounds) = (spread(all), rounds.join(","));
            Some(format!("\"{name}\":{{\"all\":{all},\"rounds\":[{rounds}]{ratio}}}"))
        });
        let figures = figures.collect::<Vec<_>>().join(",");
        let points = quantiles(&all_rounds(series)).into_iter();
        let points = points.map(|Point { quantile, us, .. }| format!("[{quantile},{us}]"));
        let points = points.collect::<Vec<_>>().join(",");
        let command = quoted(&series.command);
        format!("{{\"command\":{command},\"figures\":{{{figures}}},\"latency_us\":[{points}]}}")
    });
    let servers = servers.collect::<Vec<_>>().join(",");
    let (name, load) = (quoted(name), quoted(&comparison.load));
    format!("{{\"name\":{name},\"load\":{load},\"servers\":[{servers}]}}\n")
}

/// A point of a latency distribution: so many were at most so long.
struct Point {
    quantile: f64,
    us: f64,
    count: u64,
}

fn all_rounds(series: &Series) -> Tally {
    series.rounds.iter().fold(Tally::default(), |mut all, round| {
        all.join(round.tally.clone());
        all
    })
}

/// Two points for each halving of what is longer, as HDR histograms are printed.
fn quantiles(tally: &Tally) -> Vec<Point> {
    let mut points: Vec<Point> = Vec::new();
    for value in tally.latency.iter_quantiles(2) {
        let us = value.value_iterated_to() as f64 / 1e3;
        let count = value.count_since_last_iteration() + points.last().map_or(0, |p| p.count);
        points.push(Point { quantile: value.quantile_iterated_to(), us, count });
    }
    points
}

/// Each server's latencies as HDR's tools print them.
pub fn percentiles(comparison: &Comparison) -> String {
    let mut out = String::new();
    for series in &comparison.series {
        let _ = writeln!(out, "\n{}", series.command);
        let _ =
            writeln!(out, "{:>12} {:>14} {:>10} {:>14}", "µs", "percentile", "count", "1/(1-part)");
        for Point { quantile, us, count } in quantiles(&all_rounds(series)) {
            let rest = if quantile < 1.0 {
                format!("{:.2}", 1.0 / (1.0 - quantile))
            } else {
                "inf".into()
            };
            let _ = writeln!(out, "{us:>12.1} {:>14.6} {count:>10} {rest:>14}", quantile * 100.0);
        }
    }
    out
}

/// A CSV field (RFC 4180).
fn field(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

/// Appends a row per round and server; a new file starts with the names of its columns.
pub fn append_csv(path: &Path, name: &str, comparison: &Comparison) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    let mut out = String::new();
    if file.metadata()?.len() == 0 {
        let names: Vec<&str> = FIGURES.iter().map(|figure| figure.name).collect();
        let _ = writeln!(out, "name,round,server,{},command,load", names.join(","));
    }
    for (which, series) in comparison.series.iter().enumerate() {
        for (number, round) in series.rounds.iter().enumerate() {
            let _ = write!(out, "{},{},{}", field(name), number + 1, which + 1);
            for figure in &FIGURES {
                let value = (figure.of)(round);
                let decimals = figure.decimals;
                let _ = match value {
                    Some(value) => write!(out, ",{value:.decimals$}"),
                    None => write!(out, ","),
                };
            }
            let _ = writeln!(out, ",{},{}", field(&series.command), field(&comparison.load));
        }
    }
    file.write_all(out.as_bytes())
}

/// A row per interval, round and server.
pub fn write_over_time(path: &Path, name: &str, comparison: &Comparison) -> io::Result<()> {
    let rounds = || comparison.series.iter().flat_map(|series| &series.rounds);
    let workers = rounds().map(|round| timeline::workers(&round.rows)).max().unwrap_or(0);
    let mut out = format!("name,server,round,{}\n", timeline::columns(workers));
    for (which, series) in comparison.series.iter().enumerate() {
        for (number, round) in series.rounds.iter().enumerate() {
            for row in &round.rows {
                let row = row.csv(workers);
                let _ = writeln!(out, "{},{},{},{row}", field(name), which + 1, number + 1);
            }
        }
    }
    std::fs::write(path, out)
}

/// Wrong replies of all rounds: a few shown, all counted.
pub fn wrongs(comparison: &Comparison) -> (u64, Vec<String>) {
    let mut count = 0;
    let mut shown = Vec::new();
    for series in &comparison.series {
        for round in &series.rounds {
            count += round.tally.wrong;
            let wrong = round.tally.wrong_shown.iter();
            shown.extend(wrong.map(|wrong| format!("{}: {wrong}", series.command)));
        }
    }
    shown.truncate(20);
    (count, shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_percentiles_go_up_to_the_longest_and_count_everything() {
        let mut tally = Tally::default();
        (1..=1_000).for_each(|us| tally.latency.record(us * 1_000).unwrap());
        let points = quantiles(&tally);
        assert!(
            points.windows(2).all(|two| two[0].us <= two[1].us && two[0].count <= two[1].count)
        );
        let half = points.iter().find(|point| point.quantile >= 0.5).unwrap();
        assert!((half.us - 500.0).abs() < 2.0, "{}", half.us);
        let last = points.last().unwrap();
        assert_eq!((last.quantile, last.count), (1.0, 1_000));
        assert!((last.us - 1_000.0).abs() < 2.0, "{}", last.us);
    }
}
