//! What a figure leaves behind: `NAME.csv`, `NAME.svg`, and `NAME.md` with its tables and the limits that it is held to.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Rows of text under named columns.
pub struct Sheet {
    pub columns: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

impl Sheet {
    pub fn new<S: Into<String>>(columns: impl IntoIterator<Item = S>) -> Sheet {
        Sheet { columns: columns.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }

    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        let row: Vec<String> = cells.into_iter().map(Into::into).collect();
        assert_eq!(row.len(), self.columns.len(), "{row:?} under {:?}", self.columns);
        self.rows.push(row);
    }

    /// A file of [`Sheet::csv`]: no cell has a comma.
    pub fn read(path: &Path) -> Result<Sheet, String> {
        let fail = |what: String| format!("{}: {what}", path.display());
        let text = fs::read_to_string(path).map_err(|error| fail(error.to_string()))?;
        let mut lines = text.lines().map(|line| line.split(',').map(str::to_owned).collect());
        let columns: Vec<String> = lines.next().ok_or_else(|| fail("empty".into()))?;
        let rows: Vec<Vec<String>> = lines.collect();
        match rows.iter().find(|row| row.len() != columns.len()) {
            Some(row) => Err(fail(format!("{row:?} under {columns:?}"))),
            None => Ok(Sheet { columns, rows }),
        }
    }

    /// Where these columns are.
    pub fn places<const N: usize>(&self, names: [&str; N]) -> Result<[usize; N], String> {
        let mut places = [0; N];
        for (place, name) in places.iter_mut().zip(names) {
            let found = self.columns.iter().position(|column| column == name);
            *place = found.ok_or_else(|| format!("no column {name} in {:?}", self.columns))?;
        }
        Ok(places)
    }

    fn lines(&self) -> impl Iterator<Item = &Vec<String>> {
        std::iter::once(&self.columns).chain(&self.rows)
    }

    fn csv(&self) -> String {
        self.lines().map(|cells| cells.join(",") + "\n").collect()
    }

    pub fn save(&self, file: &Path) -> Result<(), String> {
        fs::write(file, self.csv()).map_err(|error| format!("{}: {error}", file.display()))
    }

    pub fn markdown(&self) -> String {
        let mut lines: Vec<String> =
            self.lines().map(|cells| format!("| {} |\n", cells.join(" | "))).collect();
        lines.insert(1, format!("|{}\n", "---|".repeat(self.columns.len())));
        lines.concat()
    }
}

/// The page of one figure.
pub struct Page {
    folder: PathBuf,
    name: &'static str,
    text: String,
}

impl Page {
    /// `command` is what makes the figure again.
    pub fn new(folder: &Path, name: &'static str, title: &str) -> Page {
        let mut page = Page { folder: folder.to_owned(), name, text: String::new() };
        page.say(&format!("# {title}\n\n{}", provenance()));
        page
    }

    /// Shown, and kept for the page.
    pub fn say(&mut self, text: &str) {
        println!("{text}");
        writeln!(self.text, "{}\n", text.trim_end()).expect("a string takes everything");
    }

    pub fn table(&mut self, sheet: &Sheet) {
        self.say(&sheet.markdown());
    }

    /// A limit, whether the figure keeps to it, and the figure.
    pub fn verdict(&mut self, holds: bool, limit: &str, found: &str) {
        let word = if holds { "holds" } else { "**FAILS**" };
        self.say(&format!("- {word}: {limit}: {found}"));
    }

    pub fn save(&self, sheet: &Sheet, svg: &str) -> Result<(), String> {
        fs::create_dir_all(&self.folder).map_err(|error| error.to_string())?;
        for (ending, text) in [("csv", sheet.csv().as_str()), ("svg", svg), ("md", &self.text)] {
            write(&self.folder, self.name, ending, text)?;
        }
        Ok(())
    }
}

pub fn write(folder: &Path, name: &str, ending: &str, text: &str) -> Result<(), String> {
    let path = folder.join(name).with_extension(ending);
    fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
}

/// Machine, commit, command and load, as far as they can be found out.
fn provenance() -> String {
    let told = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output().ok();
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        text.unwrap_or_else(|| "unknown".into())
    };
    let file = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpu = file("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let load = file("/proc/loadavg");
    let load = load.split(' ').next().unwrap_or("unknown");
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let changed = if told("git", &["status", "--porcelain", "-uno"]).is_empty() {
        ""
    } else {
        " and changes"
    };
    format!(
        "`cargo run --release -p mbal-bench --example engine -- {}`, {}, commit {}{changed}. {}, {cores} cores, \
         Linux {}; load average at the start {load}.",
        arguments.join(" "),
        told("date", &["-u", "+%F"]),
        told("git", &["rev-parse", "--short", "HEAD"]),
        model.trim_start_matches([' ', '\t', ':']),
        told("uname", &["-r"]),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sheet_is_csv_and_markdown() {
        let mut sheet = Sheet::new(["a", "b"]);
        sheet.row(["1", "2"]);
        assert_eq!(sheet.csv(), "a,b\n1,2\n");
        assert_eq!(sheet.markdown(), "| a | b |\n|---|---|\n| 1 | 2 |\n");
    }
}
