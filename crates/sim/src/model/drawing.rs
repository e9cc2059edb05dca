//! One plot of a table that was left as CSV: which columns, which rows.

use mbal_plot::{Line, Panel, Plot};

/// One plot: where its numbers are, and what of them is drawn.
pub struct Drawing {
    pub name: &'static str,
    pub csv: &'static str,
    pub title: &'static str,
    /// The column, its axis' name, and whether it is logarithmic.
    pub x: (&'static str, &'static str, bool),
    /// Columns, each with the name of its line; their axis' name, and whether it is logarithmic.
    pub y: (&'static [(&'static str, &'static str)], &'static str, bool),
    /// A line for each value of this column, with these words before it.
    pub by: Option<(&'static str, &'static str)>,
    /// A panel for each value of this column.
    pub panels: Option<&'static str>,
    /// Only rows in which these columns have these values.
    pub only: &'static [(&'static str, &'static str)],
}

/// What most have.
pub const PLAIN: Drawing = Drawing {
    name: "",
    csv: "",
    title: "",
    x: ("", "", false),
    y: (&[], "", false),
    by: None,
    panels: None,
    only: &[],
};

impl Drawing {
    /// Of the file `csv`.csv with this text.
    pub fn plot(&self, text: &str) -> Result<Plot, String> {
        let mut rows = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let header = rows.next().unwrap_or_default();
        let column = |name: &str| {
            let at = header.iter().position(|other| *other == name);
            at.ok_or_else(|| format!("{}.csv has no column {name}", self.csv))
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
        Ok(Plot { title: self.title.to_owned(), x, y, log_x, log_y, panels })
    }
}
