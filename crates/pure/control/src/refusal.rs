//! Why something is not done.

use std::fmt;

/// Why not. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It cannot be meant so.
    Senseless(String),
    /// There is no such thing.
    Unknown(String),
    /// It does not fit what is.
    Conflict(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Refusal::Senseless(why) | Refusal::Unknown(why) | Refusal::Conflict(why)) = self;
        out.write_str(why)
    }
}
