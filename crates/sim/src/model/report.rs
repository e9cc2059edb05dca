//! Where figures go: a table to standard output; and if a folder was named, the same as CSV, and its plot beside it.

use std::fs;
use std::path::{Path, PathBuf};

use mbal_plot::Plot;

use super::drawn;

pub struct Report {
    folder: Option<PathBuf>,
}

impl Report {
    pub fn new(folder: Option<&Path>) -> Result<Report, String> {
        if let Some(folder) = folder {
            fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        Ok(Report { folder: folder.map(Path::to_owned) })
    }

    pub fn table(&self, name: &str, header: &str, rows: &[String]) -> Result<(), String> {
        println!("# {name}\n{header}\n{}\n", rows.join("\n"));
        self.quiet_table(name, header, rows)
    }

    /// Too long to be read in a terminal.
    pub fn quiet_table(&self, name: &str, header: &str, rows: &[String]) -> Result<(), String> {
        let csv = format!("{header}\n{}\n", rows.join("\n"));
        self.write(&format!("{name}.csv"), &csv)?;
        drawn::plots_of(name, &csv)?.iter().try_for_each(|(name, plot)| self.plot(name, plot))
    }

    pub fn plot(&self, name: &str, plot: &Plot) -> Result<(), String> {
        self.write(&format!("{name}.svg"), &plot.svg())
    }

    /// Under another name first, so that a reader, or Ctrl-C, never meets half a file.
    fn write(&self, name: &str, text: &str) -> Result<(), String> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let path = folder.join(name);
        let unfinished = folder.join(format!(".{name}"));
        fs::write(&unfinished, text)
            .and_then(|()| fs::rename(&unfinished, &path))
            .map_err(|error| format!("{}: {error}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_written_only_where_a_folder_was_named() {
        let folder = std::env::temp_dir().join(format!("mbal-sim-report-{}", std::process::id()));
        let rows = ["0,79118,1006".to_owned()];
        let before: Vec<_> = fs::read_dir(".").unwrap().flatten().map(|file| file.path()).collect();
        for named in [None, Some(folder.as_path())] {
            let report = Report::new(named).unwrap();
            report.table("figure-7", "server,age_score,items_moved", &rows).unwrap();
            assert_eq!(folder.exists(), named.is_some());
        }
        let after: Vec<_> = fs::read_dir(".").unwrap().flatten().map(|file| file.path()).collect();
        assert_eq!(before, after, "the current folder is as it was");
        let mut left: Vec<_> =
            fs::read_dir(&folder).unwrap().flatten().map(|file| file.file_name()).collect();
        left.sort();
        assert_eq!(left, ["figure-7.csv", "figure-7.svg"]);
        fs::remove_dir_all(&folder).unwrap();
    }
}
