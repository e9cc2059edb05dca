//! Draws lines from a table of points, `plot,panel,line,WHAT,y`: plots below each other, their panels side by side. A plot is named by what y is, and
//! WHAT is x.
//!
//!   cargo run --release -p mbal-bench --example lines -- docs/results/paper/figure-2.csv
//!
//! leaves figure-2.svg beside it. Points of one line at the same x become their median.
#![forbid(unsafe_code)]

use std::path::Path;
use std::{env, fs};

use mbal_bench::Spread;
use mbal_plot::{Line, Panel, Plot, stacked};

/// Rows of one name, in the order in which names came first.
type ByName<'a, T> = Vec<(&'a str, T)>;
type Points = Vec<(f64, f64)>;

fn main() -> Result<(), String> {
    let file = env::args().nth(1).ok_or("which table?")?;
    let file = Path::new(&file);
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
    let csv = fs::read_to_string(file).map_err(|error| failed(&error))?;
    let svg = drawn(&csv).ok_or_else(|| failed(&"it is no table of plot,panel,line,WHAT,y"))?;
    fs::write(file.with_extension("svg"), svg).map_err(|error| failed(&error))
}

fn drawn(csv: &str) -> Option<String> {
    let mut plots: ByName<'_, ByName<'_, ByName<'_, Points>>> = Vec::new();
    let mut rows = csv.lines();
    let header: Vec<&str> = rows.next()?.split(',').collect();
    let ["plot", "panel", "line", x_name, "y"] = header[..] else { return None };
    for row in rows {
        let [plot, panel, line, x, y] = row.split(',').collect::<Vec<_>>()[..] else { return None };
        let points = found(found(found(&mut plots, plot), panel), line);
        points.push((x.parse().ok()?, y.parse().ok()?));
    }
    let plot = |(name, panels): (&str, ByName<'_, ByName<'_, Points>>)| Plot {
        title: format!("{name} by {x_name}"),
        x: "",
        y: "",
        log_x: false,
        log_y: false,
        panels: panels.into_iter().map(panel).collect(),
    };
    Some(stacked(&plots.into_iter().map(plot).collect::<Vec<_>>()))
}

fn panel((title, lines): (&str, ByName<'_, Points>)) -> Panel {
    let line = |(name, points): (&str, Points)| Line { name: name.into(), points: medians(points) };
    Panel { title: title.into(), lines: lines.into_iter().map(line).collect() }
}

fn medians(mut points: Points) -> Points {
    points.sort_by(|one, other| one.0.total_cmp(&other.0));
    let median = |alike: &[(f64, f64)]| {
        let spread = Spread::of(alike.iter().map(|point| point.1).collect())?;
        Some((alike[0].0, spread.median))
    };
    points.chunk_by(|one, other| one.0 == other.0).filter_map(median).collect()
}

/// The thing of this name; a new one stands last.
fn found<'a, 'n, T: Default>(list: &'a mut ByName<'n, T>, name: &'n str) -> &'a mut T {
    let at = list.iter().position(|(known, _)| *known == name).unwrap_or_else(|| {
        list.push((name, T::default()));
        list.len() - 1
    });
    &mut list[at].1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_of_one_line_and_place_become_their_median() {
        assert_eq!(
            medians(vec![(2.0, 7.0), (1.0, 5.0), (2.0, 9.0), (2.0, 8.0)]),
            [(1.0, 5.0), (2.0, 8.0)]
        );
        let table = "plot,panel,line,Zipf's constant,y\nrequests/s,95% gets,mbal,0,5\nrequests/s,95% gets,memcached,0,4\np99 ms,,mbal,0,1\n";
        let svg = drawn(table).unwrap();
        for text in ["requests/s by Zipf", "p99 ms by Zipf", "95% gets", "memcached"] {
            assert!(svg.contains(text), "{text}");
        }
        assert_eq!(drawn("a,b\n"), None);
        assert_eq!(drawn("plot,panel,line,x,y\n1,2\n"), None);
    }
}
