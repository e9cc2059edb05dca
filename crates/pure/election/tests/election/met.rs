//! What a run has met, and how it fails.

use std::collections::BTreeMap;
use std::fmt;

/// An invariant by its number, and what broke it.
#[derive(Debug)]
pub struct Failed {
    pub invariant: u8,
    pub text: String,
}

impl fmt::Display for Failed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "invariant {}: {}", self.invariant, self.text)
    }
}

/// All that a run can meet.
const ALL: [&str; 21] = [
    "elected",
    "elected with a state",
    "lost a campaign",
    "campaign unanswered",
    "deposed: LeaseOver",
    "deposed: Replaced",
    "deposed: Unsettled",
    "told: Saved",
    "told: NotSaved",
    "told: Unknown",
    "saved by an attempt that was not answered",
    "save asked again",
    "save refused by its term",
    "save executed after its caller gave up",
    "lease renewed that was being revoked",
    "lease renewed by a replaced leader of etcd",
    "read as leader",
    "stopped while leading",
    "etcd away",
    "saves hang",
    "another leads after the first",
];

#[derive(Clone, Debug, Default)]
pub struct Met(BTreeMap<&'static str, u64>);

impl Met {
    /// # Panics
    /// If it is not in the list.
    pub fn count(&mut self, what: &str) {
        let known = ALL.iter().find(|known| **known == what);
        *self.0.entry(known.unwrap_or_else(|| panic!("{what} is in the list"))).or_default() += 1;
    }

    pub fn add(&mut self, other: &Met) {
        for (what, count) in &other.0 {
            *self.0.entry(what).or_default() += count;
        }
    }

    pub fn never(&self) -> Vec<&'static str> {
        ALL.into_iter().filter(|what| !self.0.contains_key(what)).collect()
    }
}
