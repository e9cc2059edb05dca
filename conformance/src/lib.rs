//! The black-box proof that MBal answers as memcached does: scripts of requests and expected replies,
//! and a differential test against a real memcached.
//!
//! A tool of developers and CI; nothing that is shipped depends on it.

#![forbid(unsafe_code)]

pub mod cluster;
pub mod covers;
pub mod differential;
pub mod member;
pub mod mover;
pub mod peer;
pub mod play;
pub mod pure;
pub mod runner;
pub mod script;
pub mod server;
