//! A run over time as a picture: rate and latency, server beside server, and a line per worker where clients know them.

use crate::compare::{Comparison, Series};
use crate::timeline::{self, Row};
use mbal_output::plot::{Line, Panel, Plot, stacked};

/// The last round of each server: one line is one run.
pub fn over_time(name: &str, comparison: &Comparison) -> String {
    let last =
        |series: &Series| series.rounds.last().map_or(Vec::new(), |round| round.rows.clone());
    let runs: Vec<(String, Vec<Row>)> = comparison
        .series
        .iter()
        .enumerate()
        .map(|(which, series)| (format!("{} {}", which + 1, short(&series.command)), last(series)))
        .collect();
    let lines = |of: &dyn Fn(&Row) -> f64| -> Vec<Line> {
        let line = |(name, rows): &(String, Vec<Row>)| Line {
            name: name.clone(),
            points: rows.iter().map(|row| (row.second, of(row))).collect(),
        };
        runs.iter().map(line).collect()
    };
    let quantile =
        |place: usize| lines(&move |row| row.latency_us.map_or(f64::NAN, |us| us[place]));
    let panel = |title: &str, lines| Panel { title: title.into(), lines };
    let mut all = lines(&|row| row.requests_per_second);
    // The same for every server.
    if let Some((_, rows)) = runs.first() {
        let offered = |row: &Row| Some((row.second, row.offered_per_second?));
        let points: Vec<_> = rows.iter().filter_map(offered).collect();
        all.extend((!points.is_empty()).then(|| Line { name: "offered".into(), points }));
    }
    let mut rates = vec![panel("all", all)];
    for (name, rows) in runs.iter().filter(|(_, rows)| timeline::workers(rows) > 0) {
        let line = |worker: usize| Line {
            name: format!("worker {worker}"),
            points: rows.iter().map(|row| (row.second, row.workers_per_second[worker])).collect(),
        };
        rates.push(panel(name, (0..timeline::workers(rows)).map(line).collect()));
    }
    let mut latencies =
        vec![panel("p50", quantile(0)), panel("p99", quantile(1)), panel("p99.9", quantile(2))];
    if runs.iter().any(|(_, rows)| rows.iter().any(|row| row.lag_p99_us.is_some())) {
        let late = lines(&|row| row.lag_p99_us.unwrap_or(f64::NAN));
        latencies.push(panel("generator late by, p99", late));
    }
    let plot = |title: String, y, log_y, panels| Plot {
        title,
        x: "seconds",
        y,
        log_x: false,
        log_y,
        panels,
    };
    stacked(&[
        plot(format!("{name}: requests per second"), "requests/s", false, rates),
        plot("latency of the replies of each interval".into(), "µs", true, latencies),
    ])
}

/// A command's program, without its folder.
fn short(command: &str) -> &str {
    let program = command.split(' ').next().unwrap_or_default().trim_matches('\'');
    program.rsplit('/').next().unwrap_or(program)
}
