//! How many servers a cluster needs, which ones go, and which items travel (papers/elmem).
//!
//! It never moves anything itself, and knows no clock: rates, ages and curves are arguments.

#![forbid(unsafe_code)]

mod fusecache;

pub use fusecache::{Age, Effort, Pick, fuse, fuse_counting};
