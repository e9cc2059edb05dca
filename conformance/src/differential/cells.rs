//! The table of every command and every kind of reply that it got.

use std::collections::BTreeMap;

#[derive(Clone, Debug, Default)]
pub struct Cells(BTreeMap<&'static str, BTreeMap<String, u64>>);

impl Cells {
    pub fn count(&mut self, row: &'static str, kind: &str) {
        let row = self.0.entry(row).or_default();
        match row.get_mut(kind) {
            Some(count) => *count += 1,
            None => {
                row.insert(kind.to_string(), 1);
            }
        }
    }

    pub fn get(&self, row: &str, kind: &str) -> u64 {
        self.0.get(row).and_then(|row| row.get(kind)).copied().unwrap_or(0)
    }

    pub fn merge(&mut self, other: &Cells) {
        for (row, kinds) in &other.0 {
            for (kind, count) in kinds {
                *self.0.entry(row).or_default().entry(kind.clone()).or_default() += count;
            }
        }
    }

    pub fn total(&self) -> u64 {
        self.0.values().flat_map(BTreeMap::values).sum()
    }

    /// The declared cells in `list` (a row and a kind a line) that were reached less often than `least`.
    pub fn short_of(&self, list: &str, least: u64) -> Vec<String> {
        declared(list)
            .filter(|(row, kind)| self.get(row, kind) < least)
            .map(|(row, kind)| format!("{row} {kind}: {} of {least}", self.get(row, kind)))
            .collect()
    }

    /// One line per cell, declared ones first; the others were met by chance.
    pub fn table(&self, list: &str) -> String {
        let mut text = String::new();
        for (row, kind) in declared(list) {
            text.push_str(&format!("{:>9}  {row:<14}  {kind}\n", self.get(row, kind)));
        }
        text.push_str("beyond the list:\n");
        for (row, kinds) in &self.0 {
            let is_declared = |kind: &str| declared(list).any(|cell| cell == (*row, kind));
            for (kind, count) in kinds.iter().filter(|(kind, _)| !is_declared(kind)) {
                text.push_str(&format!("{count:>9}  {row:<14}  {kind}\n"));
            }
        }
        text
    }
}

fn declared(list: &str) -> impl Iterator<Item = (&str, &str)> {
    list.lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .filter_map(|line| line.split_once(": "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_declared_cell_that_was_not_reached_is_named() {
        let mut cells = Cells::default();
        cells.count("get", "END");
        cells.count("get", "END");
        assert_eq!(cells.short_of("get: END\nget: VALUE\n", 2), ["get VALUE: 0 of 2"]);
    }
}
