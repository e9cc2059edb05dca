//! Sockets, threads' mailboxes and clocks: what drives a `worker` in a server.
//!
//! Called by `server`, which gives every [`EventLoop`] a thread and a worker. Never looks into the
//! bytes that it carries, and never decides what to answer.
//!
//! ```text
//!            main thread                          one thread per worker
//!   signals ─┐                                  ┌───────────────────────────────────┐
//!   listen   ├─► Listener ──Letter::Adopt──────►│ EventLoop                         │
//!   sockets ─┘      ▲     (fewest connections)  │  epoll_wait                       │◄─Letter::Take── other
//!                   │                           │   └ per ready connection:         │
//!                   └──── Request::Shutdown ────│     recv ─► worker ─► send        │
//!                                               │       (unsent rest: queued, and   │
//!   port BASE+i ───────────────────────────────►│        not read until it left)    │
//!                                               └───────────────────────────────────┘
//! ```
//!
//! A connection by TLS goes to the [`TlsAcceptor`]'s thread first, and comes back when hands are shaken.
//!
//! Links to other servers come up on the [`Linker`]'s thread, and are served by the workers' event loops; those for moves by the
//! [`Migrator`]'s.
//!
//! A connection that a worker hands over leaves this epoll when its last reply has left, and joins the
//! other worker's: bytes that arrive between wait in the socket.
//!
//! **Bounds.** A connection that does not read its replies is not read either, so what is queued
//! for it is at most what the worker sends for one receive of [`RECEIVE_BYTES`], or for one
//! `Drained`: the worker stops itself by `Action::Stall` after
//! [`mbal_worker::OUTPUT_BYTES_MAX`]. Connections are bounded by
//! [`Tally`]; a mailbox by the number of connections.

mod clock;
mod conn;
mod core_demand;
mod event_loop;
mod guest;
mod letters;
mod link_tls;
mod linker;
mod listener;
mod listening;
mod mailbox;
mod mapping;
mod migrator;
mod output;
mod populator;
pub mod process;
mod proxy_loop;
pub mod socket;
mod stopwatch;
mod sys;
mod tally;
mod tls;
mod tls_acceptor;
pub mod watchdog;

pub use clock::{Clock, LeaseClock};
pub use event_loop::EventLoop;
pub use guest::Guest;
pub use letters::{
    Handed, Letter, LinkNote, Linked, MigratorNote, Post, ProxyLetter, Request, Said,
};
pub use linker::{LINK_CREDITS, LinkPlan, LinkSeen, Linker, LinksSeen, STRANGERS_MAX};
pub use listener::{Ended, Listener, Opening};
pub use mailbox::Mailbox;
pub use mapping::Mapping;
pub use migrator::{Migrator, MigratorEvent, MoveHandler, Said as MoveSaid};
pub use output::RECEIVE_BYTES;
pub use proxy_loop::{KernelPlane, NOWHERE, NamesWanted, ProxyLoop, SwitchTasks};
pub use tally::Tally;
pub use tls::{ClientCertificate, Load, TlsDoor};
pub use tls_acceptor::TlsAcceptor;
