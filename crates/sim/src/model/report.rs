//! Where figures go: a table to standard output, the same as CSV, and a plot beside it.

use std::fs;
use std::path::{Path, PathBuf};

use mbal_output::plot::Plot;

pub struct Report {
    folder: PathBuf,
}

impl Report {
    pub fn new(folder: &Path) -> Result<Report, String> {
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        Ok(Report { folder: folder.to_owned() })
    }

    pub fn table(&self, name: &str, header: &str, rows: &[String]) -> Result<(), String> {
        println!("# {name}\n{header}\n{}\n", rows.join("\n"));
        self.quiet_table(name, header, rows)
    }

    /// Too long to be read in a terminal.
    pub fn quiet_table(&self, name: &str, header: &str, rows: &[String]) -> Result<(), String> {
        self.write(&format!("{name}.csv"), &format!("{header}\n{}\n", rows.join("\n")))
    }

    pub fn plot(&self, name: &str, plot: &Plot) -> Result<(), String> {
        self.write(&format!("{name}.svg"), &plot.svg())
    }

    /// Under another name first, so that a reader, or Ctrl-C, never meets half a file.
    fn write(&self, name: &str, text: &str) -> Result<(), String> {
        let path = self.folder.join(name);
        let unfinished = self.folder.join(format!(".{name}"));
        fs::write(&unfinished, text)
            .and_then(|()| fs::rename(&unfinished, &path))
            .map_err(|error| format!("{}: {error}", path.display()))
    }
}
