//! Plots of what the experiments measured, drawn from their CSV: those of this crate, and the examples of the sketches'
//! and of the elastic policies, which know no plots.

use std::fs;
use std::path::Path;

use mbal_plot::Plot;

use super::drawings::DRAWINGS;
use super::report::Report;

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
    for drawing in DRAWINGS.iter().filter(|one| found.iter().all(|found| found != one.csv)) {
        let missing = folder.join(format!("{}.csv", drawing.csv));
        eprintln!("SKIPPED {}: there is no {}", drawing.name, missing.display());
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
        plots.push((drawing.name.to_owned(), drawing.plot(text)?));
    }
    Ok(plots)
}

#[cfg(test)]
mod tests {
    use mbal_plot::Panel;

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

    /// After a change of how plots are drawn, `mbal-lab model plots --out docs/results/deciders` makes them again; and so of the others.
    #[test]
    fn the_committed_pictures_are_those_of_the_committed_csv() {
        for (name, pictures) in [("deciders", 11), ("spore", 7), ("phases", 6)] {
            let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results");
            assert_eq!(compared(&results.join(name)), pictures, "{name}");
        }
    }

    /// How many pictures of a folder are drawn from its tables; each is as it is drawn now.
    fn compared(folder: &Path) -> usize {
        let mut drawn = 0;
        for file in fs::read_dir(folder).unwrap() {
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
        drawn
    }
}
