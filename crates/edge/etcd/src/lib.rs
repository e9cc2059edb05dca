//! etcd, as coordinators and servers ask it: by the JSON that every member speaks (`/v3/...`), one call, one answer, with a time limit.
//!
//! Decides nothing: `mbal_election` says what is asked, and what an answer means. Knows no threads, and tries nothing again by itself.

#![forbid(unsafe_code)]

mod leadership;
mod ownership;

mod client;
mod json;

pub use client::{Etcd, Failed};
pub use leadership::Leadership;
pub use ownership::{OwnKey, OwnersKeys};
