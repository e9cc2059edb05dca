//! A run of `mbal bench` over time as a picture: rate and latency, server beside server, and a line for each worker where clients know
//! them. From the rows that `--over-time` has left, of each server's last round.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use mbal_plot::{Line, Panel, Plot, stacked};

/// Draws what `mbal bench --over-time FILE.csv` has written, as FILE.svg beside it
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

pub fn run(args: &Args) -> Result<(), String> {
    for file in &args.files {
        let failed = |why: String| format!("{}: {why}", file.display());
        let csv = fs::read_to_string(file).map_err(|error| failed(error.to_string()))?;
        let drawn = over_time(&csv).map_err(failed)?;
        fs::write(file.with_extension("svg"), drawn).map_err(|error| failed(error.to_string()))?;
    }
    Ok(())
}

fn over_time(csv: &str) -> Result<String, String> {
    let mut lines = csv.lines();
    let columns: Vec<&str> = lines.next().ok_or("it is empty")?.split(',').collect();
    let [_, "server", "round", "second", ..] = columns[..] else {
        return Err("these are no rows over time".into());
    };
    // The name, which is first, may have commas.
    let rows = lines.map(|line| line.rsplitn(columns.len(), ',').collect::<Vec<_>>());
    let mut rows: Vec<Vec<&str>> = rows.filter(|row| row.len() == columns.len()).collect();
    rows.iter_mut().for_each(|row| row.reverse());
    let name = rows.first().ok_or("it has no rows")?[0].trim_matches('"');
    let last: BTreeMap<&str, &str> = rows.iter().map(|row| (row[1], row[2])).collect();
    // What was not measured is a gap.
    let line = |name: &str, server: &str, column: usize| Line {
        name: name.into(),
        points: rows
            .iter()
            .filter(|row| row[1] == server && row[2] == last[server])
            .filter_map(|row| Some((row[3].parse().ok()?, row[column].parse().unwrap_or(f64::NAN))))
            .collect(),
    };
    let has_any =
        |lines: &[Line]| lines.iter().any(|line| line.points.iter().any(|at| !at.1.is_nan()));
    let panel = |title: &str, column: &str| {
        let column = columns.iter().position(|one| *one == column)?;
        let lines: Vec<Line> = last.keys().map(|server| line(server, server, column)).collect();
        has_any(&lines).then(|| Panel { title: title.into(), lines })
    };
    let mut all = panel("all", "requests_per_second").ok_or("it has no rates")?;
    let offered =
        panel("offered", "offered_per_second").and_then(|panel| panel.lines.into_iter().next());
    all.lines.extend(offered.map(|line| Line { name: "offered".into(), ..line }));
    let mut rates = vec![all];
    let workers: Vec<usize> =
        (0..columns.len()).filter(|at| columns[*at].starts_with("worker_")).collect();
    for server in last.keys() {
        let lines: Vec<Line> =
            workers.iter().map(|at| line(&columns[*at].replace('_', " "), server, *at)).collect();
        rates.extend(has_any(&lines).then(|| Panel { title: (*server).into(), lines }));
    }
    let latencies = [
        ("p50", "p50_us"),
        ("p99", "p99_us"),
        ("p99.9", "p999_us"),
        ("generator late by, p99", "lag_p99_us"),
    ];
    let latencies = latencies.iter().filter_map(|(title, column)| panel(title, column)).collect();
    let plot = |title: String, y, log_y, panels| Plot {
        title,
        x: "seconds",
        y,
        log_x: false,
        log_y,
        panels,
    };
    Ok(stacked(&[
        plot(format!("{name}: requests per second"), "requests/s", false, rates),
        plot("latency of the replies of each interval".into(), "µs", true, latencies),
    ]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "name,server,round,second,requests_per_second,keys_per_second,hit_ratio,p50_us,p99_us,p999_us,max_us,\
        offered_per_second,lag_p99_us,worker_0,worker_1\n";

    #[test]
    fn each_server_has_a_line_and_its_workers_a_panel() {
        let rows = "\"load, of two\",1,1,1.0,100,100,1,10,20,30,40,,,60,40\nload,1,2,1.0,200,200,1,10,20,30,40,,,,\n\
            load,2,1,1.0,300,300,1,10,20,30,40,,,100,200\n";
        let drawn = over_time(&(HEAD.to_owned() + rows)).expect("it can be drawn");
        assert!(
            drawn.starts_with("<svg ") && drawn.contains(">load, of two: requests per second<")
        );
        // The first server's last round has no workers; nobody was offered anything.
        assert_eq!(
            ["worker 1<", "p99.9<", "offered<", "late by"].map(|word| drawn.contains(word)),
            [true, true, false, false]
        );
    }

    #[test]
    fn what_cannot_be_drawn_is_told() {
        for (csv, why) in [
            ("", "it is empty"),
            ("a,b\n", "these are no rows over time"),
            (HEAD, "it has no rows"),
        ] {
            assert_eq!(over_time(csv), Err(why.to_owned()));
        }
    }
}
