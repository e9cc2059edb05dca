//! What came of a run: by what it failed, or what it met.

use std::collections::BTreeMap;
use std::fmt;

/// What a run fails by, with the number of `docs/design/invariants.md`.
#[derive(Clone, Debug)]
pub struct Failed {
    pub invariant: u8,
    pub text: String,
}

impl Failed {
    pub fn new(invariant: u8, text: String) -> Failed {
        Failed { invariant, text }
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "invariant {} is broken: {}", self.invariant, self.text)
    }
}

/// How often something was met.
#[derive(Clone, Debug, Default)]
pub struct Met(BTreeMap<&'static str, u64>);

/// Many runs meet all of these.
const TO_BE_MET: [&str; 27] = [
    "a coordinator was down",
    "a flush",
    "a link broke",
    "a link broke while a slice was gone and not confirmed",
    "a link broke while a slice was on its way",
    "a server died",
    "a slice thawed",
    "a way fell silent",
    "arrived",
    "born empty",
    "cancel is said",
    "cancelled too late",
    "dropped",
    "evicted something",
    "executed",
    "gave up what came",
    "handed over",
    "inherited",
    "refused",
    "sent on, since it is gone",
    "slowed down",
    "stayed",
    "taken back",
    "unreachable",
    "waited for a batch",
    "waited for a slice",
    "written in a slice that froze",
];

impl Met {
    pub fn count(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }

    pub fn add(&mut self, other: &Met) {
        other.0.iter().for_each(|(what, times)| *self.0.entry(what).or_default() += times);
    }

    pub fn never(&self) -> Vec<&'static str> {
        TO_BE_MET.into_iter().filter(|what| !self.0.contains_key(what)).collect()
    }
}
