//! Results for people (tables), for scripts (JSON) and for the record (CSV).

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;

use mbal_output::quoted;

use crate::compare::{Comparison, Series};
use crate::measure::{FIGURES, Figure, Round};
use crate::summary::Spread;
use crate::tally::Tally;
use crate::timeline;
use crate::unit::{Unit, quantile_us};

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
        let rounds = match series.rounds.len() {
            1 => String::new(),
            rounds => format!(" ({rounds} rounds)"),
        };
        let _ = writeln!(out, "  {} = {}{rounds}", which + 1, series.command);
    }
    for figure in &FIGURES {
        let lines: Vec<(usize, Line)> = (0..comparison.series.len())
            .filter_map(|which| Some((which, line(comparison, which, figure)?)))
            .collect();
        let in_order = |(_, line): &(usize, Line)| line.spread.max == 0.0;
        if lines.is_empty() || figure.unit == Unit::Fault && lines.iter().all(in_order) {
            continue;
        }
        let _ = writeln!(out, "{}", figure.title);
        for (which, Line { spread: Spread { median, min, max }, ratio }) in lines {
            let shown = |value| figure.unit.shown(value);
            let _ = write!(out, "  {} {:>12}", which + 1, shown(median));
            if comparison.series[which].rounds.len() > 1 {
                let _ = write!(out, "   {} to {}", shown(min), shown(max));
            }
            match ratio {
                Some(Spread { median, min, max }) if min != max => {
                    let _ = write!(out, "   × {median:.3} ({min:.3} to {max:.3})");
                }
                Some(Spread { median, .. }) => {
                    let _ = write!(out, "   × {median:.3}");
                }
                None => {}
            }
            out.push('\n');
        }
    }
    for (which, series) in comparison.series.iter().enumerate() {
        for Round { servers, .. } in series.rounds.iter().filter(|round| !round.servers.is_empty())
        {
            let rates: Vec<String> = servers.iter().map(|rate| Unit::Count.shown(*rate)).collect();
            let _ = writeln!(
                out,
                "keys per second, server by server\n  {} {}",
                which + 1,
                rates.join("  ")
            );
        }
    }
    if comparison.series.len() > 1 && comparison.series.iter().all(|one| one.rounds.len() > 1) {
        out += PAIRED;
    }
    for which in 0..comparison.series.len() {
        let _ = writeln!(out, "{}", verdict(comparison, which));
    }
    warnings(comparison).iter().for_each(|warning| out += &format!("!! {warning}\n"));
    out
}

const PAIRED: &str = "\
× is the median of the rounds' ratios, each to server 1 in the same round (least to most): it may lie on the
other side of 1 than the two medians do, where the machine's speed changed between rounds
";

/// What stands first in the table, and is asked first, in a line.
fn verdict(comparison: &Comparison, which: usize) -> String {
    let mut parts = Vec::new();
    for (name, before, after) in [
        ("requests_per_second", "", " requests/s"),
        ("p50_us", "p50 ", ""),
        ("p99_us", "p99 ", ""),
        ("hit_ratio", "", " hits"),
        ("server_cpu_us_per_key", "", " of server CPU a key"),
    ] {
        let figure = FIGURES.iter().find(|figure| figure.name == name).expect("a figure's name");
        let Some(Line { spread, ratio }) = line(comparison, which, figure) else { continue };
        let ratio = ratio.filter(|_| name != "hit_ratio");
        let ratio = ratio.map_or(String::new(), |ratio| format!(" (× {:.2})", ratio.median));
        parts.push(format!("{before}{}{after}{ratio}", figure.unit.shown(spread.median)));
    }
    let wrong: u64 = comparison.series[which].rounds.iter().map(|round| round.tally.wrong).sum();
    if wrong > 0 {
        parts.push(format!("{} WRONG REPLIES", Unit::Count.shown(wrong as f64)));
    }
    format!("{}: {}", which + 1, parts.join(", "))
}

/// From this share of the p99 on, the generator's own lateness is what a latency shows.
const LATE_MAX: f64 = 0.1;

/// What makes a run worth nothing although every reply was right.
pub fn warnings(comparison: &Comparison) -> Vec<String> {
    let mut out = Vec::new();
    for (which, series) in comparison.series.iter().enumerate() {
        let Tally { counts, latency, lag, .. } = &all_rounds(series);
        let number = which + 1;
        if counts.gets > 0 && counts.hits == 0 {
            let why =
                if comparison.filled { "" } else { "; no key was set before: --prefill does" };
            let gets = Unit::Count.shown(counts.gets as f64);
            out.push(format!("{number}: HIT RATIO 0%: none of {gets} gets found its key{why}"));
        }
        if let (Some(lag), Some(p99)) = (quantile_us(lag, 0.99), quantile_us(latency, 0.99)) {
            if lag > LATE_MAX * p99 {
                out.push(format!(
                    "{number}: the generator was late by {} (p99), {:.0}% of the p99: latencies are its own in part. \
                     A lower --rate, more --client-threads, or --client-cores that no server has",
                    Unit::Micros.shown(lag),
                    lag / p99 * 100.0
                ));
            }
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
    use std::time::Instant;

    fn round(latency_us: u64, lag_us: Option<u64>, hits: u64) -> Round {
        let mut tally = Tally { seconds: 2.0, ..Tally::default() };
        (tally.counts.requests, tally.counts.gets, tally.counts.hits) = (1_000, 1_000, hits);
        tally.latency.record_n(latency_us * 1_000, 1_000).unwrap();
        lag_us.iter().for_each(|us| tally.lag.record_n(us * 1_000, 1_000).unwrap());
        Round {
            tally,
            server_cpu_ns: None,
            client_cpu_ns: 5_000_000,
            rows: Vec::new(),
            window: (Instant::now(), Instant::now()),
            shift: None,
            servers: Vec::new(),
        }
    }

    fn comparison(filled: bool, servers: Vec<Vec<Round>>) -> Comparison {
        let series = |rounds| Series { command: "s".into(), rounds };
        let series = servers.into_iter().map(series).collect();
        Comparison { load: "closed loop".into(), filled, series }
    }

    #[test]
    fn a_table_of_one_round_has_no_spread_and_ends_with_the_verdict() {
        let table = table("load", &comparison(true, vec![vec![round(1_290, None, 1_000)]]));
        let expected = "\
load: closed loop
  1 = s
keys per second
  1          500
requests per second
  1          500
p50
  1      1.29 ms
p90
  1      1.29 ms
p95
  1      1.29 ms
p99
  1      1.29 ms
p99.9
  1      1.29 ms
longest
  1      1.29 ms
hit ratio
  1      100.00%
generator CPU per key
  1      5.00 µs
seconds measured
  1       2.00 s
keys answered
  1        1,000
1: 500 requests/s, p50 1.29 ms, p99 1.29 ms, 100.00% hits
";
        assert_eq!(table, expected);
    }

    /// Medians say 500 to 500, the rounds 1 to 2.
    #[test]
    fn a_table_says_what_its_ratios_are_of() {
        let rounds = |p50s: &[u64]| p50s.iter().map(|us| round(*us, None, 1_000)).collect();
        let table = |first: &[u64], second: &[u64]| {
            table("load", &comparison(true, vec![rounds(first), rounds(second)]))
        };
        let told = table(&[100, 200, 300], &[200, 300, 100]);
        assert!(told.contains("× 1.500 (0.333 to 2.000)"), "{told}");
        assert!(told.contains("× is the median of the rounds' ratios, each to server 1"), "{told}");
        assert!(!table(&[100], &[200]).contains("median of the rounds"), "one has no median");
    }

    #[test]
    fn a_run_that_found_nothing_ends_loudly() {
        let table = table("load", &comparison(false, vec![vec![round(100, None, 0)]]));
        let end = "\
1: 500 requests/s, p50 100 µs, p99 100 µs, 0.00% hits
!! 1: HIT RATIO 0%: none of 1,000 gets found its key; no key was set before: --prefill does
";
        assert!(table.contains("hit ratio\n  1        0.00%\n") && table.ends_with(end), "{table}");
        let filled = comparison(true, vec![vec![round(100, None, 0)]]);
        assert_eq!(warnings(&filled), ["1: HIT RATIO 0%: none of 1,000 gets found its key"]);
    }

    #[test]
    fn servers_are_compared_in_their_verdicts_too() {
        let rounds = |us| vec![round(us, None, 1_000), round(us, None, 1_000)];
        let table = table("load", &comparison(true, vec![rounds(1_000), rounds(500)]));
        assert!(table.contains("  2 = s (2 rounds)\n"), "{table}");
        assert!(table.contains("p99\n  1      1.00 ms   1.00 ms to 1.00 ms\n"), "{table}");
        let verdict =
            "2: 500 requests/s (× 1.00), p50 500 µs (× 0.50), p99 500 µs (× 0.50), 100.00% hits\n";
        assert!(table.ends_with(verdict), "{table}");
    }

    #[test]
    fn a_generator_that_was_late_for_a_tenth_of_the_latency_is_warned_about() {
        let late = comparison(
            true,
            vec![vec![round(1_000, Some(90), 9)], vec![round(1_000, Some(320), 9)]],
        );
        let warnings = warnings(&late);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        let start = "2: the generator was late by 320 µs (p99), 32% of the p99: latencies are its own in part. ";
        assert!(warnings[0].starts_with(start), "{warnings:?}");
    }

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
