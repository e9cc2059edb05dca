//! Plots of what the sketches' and the elastic policies' experiments measured, drawn from their CSV.
//!
//! Those experiments are examples of their own crates, which know no plots: they write numbers.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use mbal_output::plot::{Line, Plot};

use super::report::Report;

/// One plot: where its numbers are, and what of them is drawn.
struct Drawing {
    name: &'static str,
    csv: &'static str,
    title: &'static str,
    /// Columns, their axis' name, and whether it is logarithmic.
    x: (&'static str, &'static str, bool),
    y: (&'static [&'static str], &'static str, bool),
    /// A line for each value of this column.
    by: Option<&'static str>,
    /// Only rows in which these columns have these values.
    only: &'static [(&'static str, &'static str)],
}

const DRAWINGS: [Drawing; 8] = [
    Drawing {
        name: "curves-items",
        csv: "curves-points",
        title: "Miss ratio by size: exact and from 16,384 samples",
        x: ("size", "items", true),
        y: (&["exact", "sampled"], "miss ratio", false),
        by: Some("trace"),
        only: &[("unit", "items")],
    },
    Drawing {
        name: "curves-bytes",
        csv: "curves-points",
        title: "Miss ratio by memory: exact and from 16,384 samples",
        x: ("size", "bytes", true),
        y: (&["exact", "sampled"], "miss ratio", false),
        by: Some("trace"),
        only: &[("unit", "bytes")],
    },
    Drawing {
        name: "figure-18",
        csv: "figure-18-keys",
        title: "NetKV's Figure 18: estimated requests of the hottest keys",
        x: ("rank", "key, by popularity", true),
        y: (&["estimated_count"], "requests", true),
        by: Some("one_in"),
        only: &[],
    },
    Drawing {
        name: "figure-7",
        csv: "figure-7",
        title: "ElMem's Figure 7: items moved by age score, 10 servers",
        x: ("age_score", "weighted median age, requests", false),
        y: (&["items_moved"], "items moved", false),
        by: None,
        only: &[],
    },
    Drawing {
        name: "fusecache-growth",
        csv: "fusecache-growth",
        title: "FuseCache: time against k log² n",
        x: ("k_log2n_squared", "k log² n", true),
        y: (&["ms_median"], "ms", true),
        by: Some("k"),
        only: &[],
    },
    Drawing {
        name: "autoscale-servers",
        csv: "autoscale-minutes",
        title: "Autoscaler: servers in use, first seed",
        x: ("minute", "minute (the first day teaches)", false),
        y: (&["servers"], "servers", false),
        by: Some("policy"),
        only: &[],
    },
    Drawing {
        name: "autoscale-hit-ratio",
        csv: "autoscale-minutes",
        title: "Autoscaler, reactive: needed, predicted and observed hit ratio",
        x: ("minute", "minute (the first day teaches)", false),
        y: (&["p_min", "predicted", "observed"], "hit ratio", false),
        by: None,
        only: &[("policy", "reactive")],
    },
    Drawing {
        name: "planners",
        csv: "planners-shakes",
        title: "16 cachelets x 8 workers: within 1% of the optimum, by effort",
        x: ("shakes", "shakes", true),
        y: (&["within_1pct"], "share of clusters", false),
        by: Some("recipe"),
        only: &[],
    },
];

/// Draws what is there, and says what is not.
pub fn run(folder: &Path, report: &Report) -> Result<(), String> {
    for drawing in &DRAWINGS {
        let path = folder.join(format!("{}.csv", drawing.csv));
        match fs::read_to_string(&path) {
            Ok(text) => {
                report.plot(drawing.name, &drawing.plot(&text)?)?;
                println!("{}.svg", drawing.name);
            }
            Err(error) => eprintln!("SKIPPED {}: {}: {error}", drawing.name, path.display()),
        }
    }
    Ok(())
}

impl Drawing {
    fn plot(&self, csv: &str) -> Result<Plot, String> {
        let mut rows = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let header = rows.next().unwrap_or_default();
        let column = |name: &str| {
            let at = header.iter().position(|other| *other == name);
            at.ok_or_else(|| format!("{}.csv has no column {name}", self.csv))
        };
        let x = column(self.x.0)?;
        let ys = self.y.0.iter().map(|name| column(name)).collect::<Result<Vec<_>, _>>()?;
        let by = self.by.map(column).transpose()?;
        let only = self
            .only
            .iter()
            .map(|(name, value)| Ok((column(name)?, *value)))
            .collect::<Result<Vec<_>, String>>()?;
        // In the order in which the file names them.
        let mut order: BTreeMap<String, usize> = BTreeMap::new();
        let mut lines: Vec<Line> = Vec::new();
        for row in rows.filter(|row| row.len() == header.len()) {
            if only.iter().any(|(at, value)| row[*at] != *value) {
                continue;
            }
            for (&at, name) in ys.iter().zip(self.y.0) {
                let name = match by {
                    Some(by) if ys.len() == 1 => format!("{} {}", header[by], row[by]),
                    Some(by) => format!("{} {name}", row[by]),
                    None => (*name).to_owned(),
                };
                let (Ok(x), Ok(y)) = (row[x].parse(), row[at].parse()) else { continue };
                let line = *order.entry(name.clone()).or_insert_with(|| {
                    lines.push(Line { name, points: Vec::new() });
                    lines.len() - 1
                });
                lines[line].points.push((x, y));
            }
        }
        for line in &mut lines {
            line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
        }
        Ok(Plot::alone(self.title.to_owned(), self.x.1, self.y.1, (self.x.2, self.y.2), lines))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_a_line_for_each_value_of_a_column() {
        let csv = "policy,minute,servers\nb,1,4\na,0,3\nb,0,5\na,1,oops\n";
        let servers = DRAWINGS.iter().find(|drawing| drawing.name == "autoscale-servers");
        let plot = servers.expect("it is drawn").plot(csv).expect("it has its columns");
        let lines: Vec<_> = plot.panels[0]
            .lines
            .iter()
            .map(|line| (line.name.as_str(), line.points.as_slice()))
            .collect();
        assert_eq!(
            lines,
            [("policy b", &[(0.0, 5.0), (1.0, 4.0)][..]), ("policy a", &[(0.0, 3.0)])]
        );
    }

    #[test]
    fn a_column_that_is_missing_is_named() {
        let error = DRAWINGS[3].plot("server,age_score\n0,1\n").err();
        assert_eq!(error.as_deref(), Some("figure-7.csv has no column items_moved"));
    }
}
