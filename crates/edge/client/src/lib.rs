//! A client of [MBal](https://docs.rs/mbal-client), a memcached-compatible cache cluster, that knows the cluster: every key is asked of
//! the worker that owns it, in one hop.
//!
//! ```no_run
//! # async fn run() -> Result<(), mbal_client::Error> {
//! use std::time::Duration;
//! use mbal_client::{Client, Options, Store};
//!
//! let client = Client::connect(["10.0.0.1:11211", "10.0.0.2:11211"], Options::new()).await?;
//! client.set("greeting", "hello", Store::ttl(Duration::from_secs(60))).await?;
//! if let Some(value) = client.get("greeting").await? {
//!     assert_eq!(value.bytes, b"hello");
//! }
//! # Ok(()) }
//! ```
//!
//! # What it does
//!
//! - **One hop.** The cluster's map says which worker of which server has a key. The client has connections to each worker's own port
//!   ([`Options::connections_per_worker`]), opened when they are needed.
//! - **Pipelining.** A client is shared ([`Client`] is cheap to clone): requests that are made at the same time leave together, and
//!   [`Client::get_many`] asks all workers at once.
//! - **The map changes, and requests go on.** Replies tell of cachelets that have moved, and of newer maps; beside that the client polls
//!   ([`Options::poll`]). Every request is executed wherever it arrives, so a map that is old costs a hop, nothing else.
//! - **A key that melts its server** is copied to others, unless the cluster's coordinator was started with `--hot-keys off`. The client is told
//!   where, for a second at a time, and reads there; see *Copies of hot keys*.
//! - **A server that is gone** costs its keys, nothing else: a `get` is a miss, a write is [`Error::Unreachable`]. It is noticed within
//!   [`Options::timeout`], from then on its keys are refused at once, and in the background it is tried again.
//! - **TLS and logins**: [`Options::tls`], [`Options::login`] (a server's `-Z` and `-Y`).
//!
//! # What is asked again, and what is not
//!
//! A request that never left, since its server could not be reached, goes to the key's owner by a newer map, if there is one. A read whose
//! connection broke is asked once more. A write that has been sent is never repeated: without an answer nobody knows
//! whether it was executed, and that is what [`Error::Unknown`] says.
//!
//! # Order
//!
//! Requests of one key that are made one after the other, each after the answer to the one before, are executed in that order. So are those
//! of one key that are made at once in one task, while the key's cachelet stays where it is. When it moves, requests for its new place wait until
//! nothing is unanswered at the old one; of several that wait so, a later one may pass an earlier one. A read that has gone to a copy does not
//! wait for a write that is made while it is under way, and may see it.
//!
//! # Copies of hot keys
//!
//! Writes go to the owner, reads of a hot key to one of its copies. Each answer of the owner says whether there are any, and until when
//! they may be read. The cluster's mode says what a read may find:
//!
//! - `async`: what this client has written, or something newer; never something older than it has read. What others have
//!   written may be missing for as long as the coordinator's `--lease`.
//! - `atomic`: what the owner would have answered.
//!
//! In both, chance sends each read to the owner or to one of the copies. In `async` mode it says what the client has seen, and a copy that is older
//! passes it on to the owner.
//!
//! A copy whose server is gone, or which is none any more, costs a detour: within half of [`Options::timeout`] its owner is asked instead. Of
//! [`Client::get_many`], what a silent server was asked for is a miss.
//!
//! ```no_run
//! # async fn run() -> Result<(), mbal_client::Error> {
//! use mbal_client::{Client, Options};
//!
//! let client = Client::connect(["10.0.0.1:11211"], Options::new()).await?;
//! for _ in 0..1_000_000 {
//!     client.get("the page that everybody wants").await?;
//! }
//! println!("{} of them were answered by copies", client.copy_reads());
//!
//! // One that asks the owner, always.
//! let strict = Client::connect(["10.0.0.1:11211"], Options::new().read_copies(false)).await?;
//! # Ok(()) }
//! ```
//!
//! # Not here
//!
//! Datagrams, unix sockets, the binary protocol, servers that are not MBal's. A server that is alone is a cluster of one.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod breaker;
mod client;
mod commands;
mod connection;
mod dial;
mod error;
mod leased;
mod many;
mod options;
mod pool;
mod refresh;
mod reply;
mod request;
mod value;

pub use client::Client;
pub use error::Error;
#[cfg(feature = "tls")]
pub use options::Tls;
pub use options::{Login, Options};
pub use value::{Cas, Store, Value};

/// A server of the cluster, by its number in the map.
pub use mbal_model::ServerId;
#[cfg(feature = "tls")]
pub use rustls;
