//! The store as a whole: against a naive one, at the bounds of its memory, and under torture.

#![allow(clippy::disallowed_methods, reason = "the torture test has threads and a clock")]

mod ahead;
mod bounds;
mod broken;
mod chosen;
mod ends;
mod journeys;
mod limit;
mod naive;
mod oracle;
mod pieces;
mod presence;
mod split;
mod support;
mod torture;
mod travel;
mod walk;
