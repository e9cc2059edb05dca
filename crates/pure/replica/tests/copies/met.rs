//! What a run has met, and how it fails.

use std::collections::BTreeMap;
use std::fmt;

/// What a run fails by: the number of `docs/design/invariants.md`, and the key.
#[derive(Clone, Debug)]
pub struct Failed {
    pub invariant: u8,
    pub key: usize,
    pub text: String,
}

impl fmt::Display for Failed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "invariant {} is broken, key {}: {}", self.invariant, self.key, self.text)
    }
}

/// All that a run can meet. Trouble is counted by the state of a key that it meets.
const ALL: [&str; 72] = [
    "hot",
    "cold again",
    "widened",
    "read at home",
    "read from a copy by a smart client",
    "read from a copy by a lease of a server",
    "read from a copy at a client's own server",
    "a copy was older than what was seen",
    "read from a copy that was overwritten",
    "marked read passed on",
    "passed on, and told of copies",
    "missed",
    "a miss waited",
    "executed",
    "conflict",
    "a write waited",
    "a write waited for a lease to end",
    "a waiting write was given up",
    "a waiting write goes on elsewhere",
    "no route",
    "newborn",
    "refused for want of room",
    "died at a shadow",
    "died at home",
    "evicted at home",
    "lease over at a shadow",
    "flushed",
    "flush in the middle of copies",
    "grant over at a shadow",
    "hold lost",
    "hold late",
    "hold doubled",
    "held lost",
    "held late",
    "held doubled",
    "hold failed",
    "request lost",
    "reply lost",
    "a client gave up",
    "a client changed its server",
    "silence between servers",
    "restarted",
    "a stopped owner lost its keys",
    "moved",
    "moved to a shadow",
    "a shadow becomes home",
    "a newborn waits to leave",
    "a move found its destination dead",
    "home died in HotPending",
    "home died in Hot",
    "home died in ColdPending",
    "home died in Cold",
    "home stopped in HotPending",
    "home stopped in Hot",
    "home stopped in ColdPending",
    "home stopped in Cold",
    "shadow died in HotPending",
    "shadow died in Hot",
    "shadow died in ColdPending",
    "shadow stopped in HotPending",
    "shadow stopped in Hot",
    "shadow stopped in ColdPending",
    "leaves in HotPending",
    "leaves in Hot",
    "leaves in ColdPending",
    "leaves in Cold",
    "flushed in HotPending",
    "flushed in Hot",
    "flushed in ColdPending",
    "evicted in HotPending",
    "evicted in Hot",
    "evicted in ColdPending",
];

#[derive(Clone, Debug, Default)]
pub struct Met(BTreeMap<&'static str, u64>);

impl Met {
    /// # Panics
    /// If it is not in the list.
    pub fn count(&mut self, what: &str) {
        if let Some(count) = self.0.get_mut(what) {
            *count += 1;
            return;
        }
        let known = ALL.iter().find(|known| **known == what);
        self.0.insert(known.unwrap_or_else(|| panic!("{what} is in the list")), 1);
    }

    pub fn add(&mut self, other: &Met) {
        other.0.iter().for_each(|(what, times)| *self.0.entry(what).or_default() += times);
    }

    pub fn never(&self) -> Vec<&'static str> {
        ALL.into_iter().filter(|what| !self.0.contains_key(what)).collect()
    }
}
