//! How a tool reaches a server: the server's name, TLS, and a login.
//!
//! Called by `mbal top`, `mbal bench` and the questions to a control socket, which share these flags.
//! Never sends a request but a login, never decides when a connection is read.
//!
//! ```text
//!   At ──► ServerName (host and port, or a socket's path) ─┐
//!                                                          ├─► Dialer::connect ─► Stream ─► Dialer::log_in
//!   Access ──► Dialer (certificates, password: read once) ─────┘
//! ```

#![forbid(unsafe_code)]

mod access;
mod login;
mod name;
pub mod pem;
mod stream;
mod tls;

pub use access::{Access, Dialer, wants_login};
pub use login::{Login, Speech};
pub use name::{At, PORT, ServerName};
pub use stream::Stream;
pub use tls::{AnyCertificate, Tls};
