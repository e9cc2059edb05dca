//! How results are written down: line plots as SVG, JSON's strings.
//!
//! Called by the bench, the simulator, top and the server's log. Takes names and numbers, returns text; never writes a
//! file, and never works out a figure.
#![forbid(unsafe_code)]

pub mod json;
pub mod plot;
