//! What a run has met, and what it fails by.

use std::collections::BTreeMap;
use std::fmt;

/// How often a run has met something: a thing that never happens is not tested.
#[derive(Debug, Default)]
pub struct Met(BTreeMap<String, u64>);

impl Met {
    pub fn count(&mut self, what: &str) {
        self.count_all(what, 1);
    }

    pub fn count_all(&mut self, what: &str, times: u64) {
        match self.0.get_mut(what) {
            Some(count) => *count += times,
            None if times > 0 => drop(self.0.insert(what.to_owned(), times)),
            None => {}
        }
    }

    pub fn add(&mut self, other: &Met) {
        other.0.iter().for_each(|(what, times)| self.count_all(what, *times));
    }

    pub fn never<'a>(&self, of: &[&'a str]) -> Vec<&'a str> {
        of.iter().copied().filter(|what| !self.0.contains_key(*what)).collect()
    }
}

/// What broke an invariant, which has its number from `docs/design/invariants.md`.
#[derive(Debug)]
pub struct Failed {
    pub invariant: u8,
    pub text: String,
}

impl Failed {
    pub fn new(invariant: u8, text: impl Into<String>) -> Failed {
        Failed { invariant, text: text.into() }
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "invariant {} is broken: {}", self.invariant, self.text)
    }
}
