//! Plots of what the experiments measured, drawn from their CSV: those of this crate, and the examples of the sketches'
//! and of the elastic policies, which know no plots.

use std::fs;
use std::path::Path;

use mbal_plot::{Line, Panel, Plot};

use super::report::Report;

/// One plot: where its numbers are, and what of them is drawn.
struct Drawing {
    name: &'static str,
    csv: &'static str,
    title: &'static str,
    /// The column, its axis' name, and whether it is logarithmic.
    x: (&'static str, &'static str, bool),
    /// Columns, each with the name of its line; their axis' name, and whether it is logarithmic.
    y: (&'static [(&'static str, &'static str)], &'static str, bool),
    /// A line for each value of this column, with these words before it.
    by: Option<(&'static str, &'static str)>,
    /// A panel for each value of this column.
    panels: Option<&'static str>,
    /// Only rows in which these columns have these values.
    only: &'static [(&'static str, &'static str)],
}

/// What most have.
const PLAIN: Drawing = Drawing {
    name: "",
    csv: "",
    title: "",
    x: ("", "", false),
    y: (&[], "", false),
    by: None,
    panels: None,
    only: &[],
};

const DRAWINGS: [Drawing; 13] = [
    Drawing {
        name: "curves-items",
        csv: "curves-points",
        title: "Miss ratio by size: exact and from 16,384 samples",
        x: ("size", "items", true),
        y: (&[("exact", "exact"), ("sampled", "sampled")], "miss ratio", false),
        panels: Some("trace"),
        only: &[("unit", "items")],
        ..PLAIN
    },
    Drawing {
        name: "curves-bytes",
        csv: "curves-points",
        title: "Miss ratio by memory: exact and from 16,384 samples",
        x: ("size", "bytes", true),
        y: (&[("exact", "exact"), ("sampled", "sampled")], "miss ratio", false),
        panels: Some("trace"),
        only: &[("unit", "bytes")],
        ..PLAIN
    },
    Drawing {
        name: "figure-18",
        csv: "figure-18-keys",
        title: "NetKV's Figure 18: estimated requests of the hottest keys",
        x: ("rank", "key, by popularity", true),
        y: (&[("estimated_count", "")], "requests", true),
        by: Some(("one_in", "1 in ")),
        ..PLAIN
    },
    Drawing {
        name: "figure-7",
        csv: "figure-7",
        title: "ElMem's Figure 7: items moved by age score, 10 servers",
        x: ("age_score", "weighted median age, requests", false),
        y: (&[("items_moved", "items moved")], "items moved", false),
        ..PLAIN
    },
    Drawing {
        name: "fusecache-growth",
        csv: "fusecache-growth",
        title: "FuseCache: time against k log² n",
        x: ("k_log2n_squared", "k log² n", true),
        y: (&[("ms_median", "")], "ms", true),
        by: Some(("k", "k ")),
        ..PLAIN
    },
    Drawing {
        name: "autoscale-servers",
        csv: "autoscale-minutes",
        title: "Autoscaler: servers in use, first seed",
        x: ("minute", "minute (the first day teaches)", false),
        y: (&[("servers", "")], "servers", false),
        by: Some(("policy", "")),
        ..PLAIN
    },
    Drawing {
        name: "autoscale-hit-ratio",
        csv: "autoscale-minutes",
        title: "Autoscaler, reactive: needed, predicted and observed hit ratio",
        x: ("minute", "minute (the first day teaches)", false),
        y: (
            &[("p_min", "needed"), ("predicted", "predicted"), ("observed", "observed")],
            "hit ratio",
            false,
        ),
        only: &[("policy", "reactive")],
        ..PLAIN
    },
    Drawing {
        name: "planners",
        csv: "planners-shakes",
        title: "16 cachelets x 8 workers: within 1% of the optimum, by effort",
        x: ("shakes", "shakes", true),
        y: (&[("within_1pct", "")], "share of clusters", false),
        by: Some(("recipe", "")),
        ..PLAIN
    },
    Drawing {
        name: "netkv-figure-5",
        csv: "netkv-figure-5",
        title: "Figure 5: imbalance against threshold, 100 servers",
        x: ("threshold", "threshold T, requests", true),
        y: (
            &[
                ("observed", "observed"),
                ("predicted_equal", "equal balls (Eq. 1-5)"),
                ("predicted_weighed", "bound"),
                ("predicted_weighed_sampled", "bound, sampled"),
                ("predicted_typical", "typical"),
            ],
            "max / average load",
            false,
        ),
        only: &[("trace", "wikipedia")],
        ..PLAIN
    },
    Drawing {
        name: "netkv-figure-12",
        csv: "netkv-figure-12",
        title: "Figure 12: replicas per hot key, 100 servers",
        x: ("rank", "key, by popularity", false),
        y: (&[("replicas", "")], "replicas", false),
        by: Some(("threshold", "T ")),
        ..PLAIN
    },
    Drawing {
        name: "netkv-figure-14",
        csv: "netkv-figure-14",
        title: "Figure 14: requests by server, 100 servers",
        x: ("server_by_load", "server, by load", false),
        y: (&[("requests", "")], "requests", false),
        by: Some(("policy", "")),
        ..PLAIN
    },
    Drawing {
        name: "netkv-figure-15",
        csv: "netkv-figure-15",
        title: "Figure 15: mean deviation (Eq. 6) against skew, 100 servers",
        x: ("skew", "Zipf skew", false),
        y: (&[("mean_deviation", "")], "sum |rate - average| / total", false),
        by: Some(("policy", "")),
        ..PLAIN
    },
    Drawing {
        name: "netkv-figure-17",
        csv: "netkv-figure-17",
        title: "Figure 17: imbalance against servers",
        x: ("servers", "servers", true),
        y: (&[("observed_mean", "")], "max / average load", true),
        by: Some(("policy", "")),
        ..PLAIN
    },
];

/// Draws what is there, and says what is not; a folder without anything is the wrong one.
pub fn run(folder: &Path, report: &Report) -> Result<(), String> {
    let fail = |error| format!("{}: {error}", folder.display());
    let mut found = Vec::new();
    for file in fs::read_dir(folder).map_err(fail)? {
        let file = file.map_err(fail)?.file_name().into_string().unwrap_or_default();
        found.extend(file.strip_suffix(".csv").map(str::to_owned));
    }
    found.sort();
    let mut drawn = 0;
    for csv in &found {
        let path = folder.join(format!("{csv}.csv"));
        let text = fs::read_to_string(&path).map_err(fail)?;
        for (name, plot) in plots_of(csv, &text)? {
            report.plot(&name, &plot)?;
            println!("{name}.svg");
            drawn += 1;
        }
    }
    for Drawing { name, csv, .. } in &DRAWINGS {
        if !found.iter().any(|found| found == csv) {
            eprintln!(
                "SKIPPED {name}: there is no {}",
                folder.join(format!("{csv}.csv")).display()
            );
        }
    }
    match drawn {
        0 => Err(format!("{}: nothing to draw, no experiment has left its CSV", folder.display())),
        _ => Ok(()),
    }
}

/// Of the file `csv`.csv with this text: every plot that there is, with its name.
pub fn plots_of(csv: &str, text: &str) -> Result<Vec<(String, Plot)>, String> {
    let mut plots = Vec::new();
    for drawing in DRAWINGS.iter().filter(|drawing| drawing.csv == csv) {
        plots.push((drawing.name.to_owned(), drawing.plot(drawing.title, csv, text)?));
    }
    Ok(plots)
}

impl Drawing {
    fn plot(&self, title: &str, csv: &str, text: &str) -> Result<Plot, String> {
        let mut rows = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let header = rows.next().unwrap_or_default();
        let column = |name: &str| {
            let at = header.iter().position(|other| *other == name);
            at.ok_or_else(|| format!("{csv}.csv has no column {name}"))
        };
        let x = column(self.x.0)?;
        let ys = self.y.0.iter().map(|(name, _)| column(name)).collect::<Result<Vec<_>, _>>()?;
        let by = self.by.map(|(by, words)| Ok::<_, String>((column(by)?, words))).transpose()?;
        let panel_of = self.panels.map(column).transpose()?;
        let only = self
            .only
            .iter()
            .map(|(name, value)| Ok((column(name)?, *value)))
            .collect::<Result<Vec<_>, String>>()?;
        // Panels and lines in the order in which the file names them.
        let mut panels: Vec<Panel> = Vec::new();
        for row in rows.filter(|row| row.len() == header.len()) {
            if only.iter().any(|(at, value)| row[*at] != *value) {
                continue;
            }
            let title = panel_of.map_or("", |at| row[at]);
            let panel = panels.iter().position(|panel| panel.title == title);
            let panel = panel.unwrap_or_else(|| {
                panels.push(Panel { title: title.to_owned(), lines: Vec::new() });
                panels.len() - 1
            });
            let lines = &mut panels[panel].lines;
            for (&at, (_, name)) in ys.iter().zip(self.y.0) {
                let name =
                    by.map_or((*name).to_owned(), |(by, words)| format!("{words}{}", row[by]));
                let (Ok(x), Ok(y)) = (row[x].parse(), row[at].parse()) else { continue };
                match lines.iter_mut().find(|line| line.name == name) {
                    Some(line) => line.points.push((x, y)),
                    None => lines.push(Line { name, points: vec![(x, y)] }),
                }
            }
        }
        for line in panels.iter_mut().flat_map(|panel| &mut panel.lines) {
            line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
        }
        let (x, y, log_x, log_y) = (self.x.1, self.y.1, self.x.2, self.y.2);
        Ok(Plot { title: title.to_owned(), x, y, log_x, log_y, panels })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(csv: &str, text: &str) -> Result<Plot, String> {
        plots_of(csv, text).map(|plots| plots.into_iter().next().expect("it is drawn").1)
    }

    fn lines(panel: &Panel) -> Vec<(&str, &[(f64, f64)])> {
        panel.lines.iter().map(|line| (line.name.as_str(), line.points.as_slice())).collect()
    }

    #[test]
    fn rows_become_a_line_for_each_value_of_a_column() {
        let csv = "recipe,shakes,within_1pct\nb,1,4\na,0,3\nb,0,5\na,1,oops\n";
        let plot = plot("planners-shakes", csv).expect("it has its columns");
        let expected: [(&str, &[_]); 2] = [("b", &[(0.0, 5.0), (1.0, 4.0)]), ("a", &[(0.0, 3.0)])];
        assert_eq!(lines(&plot.panels[0]), expected);
    }

    #[test]
    fn each_trace_has_a_panel_and_the_same_two_lines() {
        let csv =
            "trace,unit,size,exact,sampled\ns,items,1,0.5,0.4\nt,items,2,0.3,0.2\nt,bytes,9,1,1\n";
        let plot = plot("curves-points", csv).expect("it has its columns");
        let titles: Vec<_> = plot.panels.iter().map(|panel| panel.title.as_str()).collect();
        assert_eq!(titles, ["s", "t"]);
        let expected: [(&str, &[_]); 2] = [("exact", &[(2.0, 0.3)]), ("sampled", &[(2.0, 0.2)])];
        assert_eq!(lines(&plot.panels[1]), expected);
    }

    #[test]
    fn a_column_that_is_missing_is_named() {
        let error = plot("figure-7", "server,age_score\n0,1\n").err();
        assert_eq!(error.as_deref(), Some("figure-7.csv has no column items_moved"));
    }

    #[test]
    fn a_folder_with_nothing_to_draw_is_an_error() {
        let folder = std::env::temp_dir().join(format!("mbal-sim-plots-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let error = run(&folder, &Report::new(None).unwrap());
        fs::remove_dir(&folder).unwrap();
        let folder = folder.display();
        assert_eq!(
            error,
            Err(format!("{folder}: nothing to draw, no experiment has left its CSV"))
        );
    }

    /// After a change of how plots are drawn, `mbal-lab model plots --out docs/results/deciders` makes them again.
    #[test]
    fn the_committed_pictures_are_those_of_the_committed_csv() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results/deciders");
        let mut drawn = 0;
        for file in fs::read_dir(&folder).unwrap() {
            let path = file.unwrap().path();
            let Some(csv) = path.to_str().and_then(|path| path.strip_suffix(".csv")) else {
                continue;
            };
            let csv = csv.rsplit('/').next().unwrap();
            for (name, plot) in plots_of(csv, &fs::read_to_string(&path).unwrap()).unwrap() {
                let committed = fs::read_to_string(folder.join(format!("{name}.svg"))).unwrap();
                assert!(plot.svg() == committed, "{name}.svg is another");
                drawn += 1;
            }
        }
        assert_eq!(drawn, 11);
    }
}
