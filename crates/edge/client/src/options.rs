//! What a client may be told at its start.

use std::fmt;
use std::time::Duration;

/// How a client connects, and how long it waits. Has a sensible value for everything.
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) poll: Duration,
    pub(crate) connections: usize,
    pub(crate) copies: bool,
    pub(crate) login: Option<Login>,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<Tls>,
}

/// A name and a password, as a server's `-Y` wants them.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// Without blanks.
    pub user: String,
    /// Any text.
    pub password: String,
}

/// How TLS is spoken.
#[cfg(feature = "tls")]
#[derive(Clone)]
pub struct Tls {
    /// Whom to trust, and which certificate to show.
    pub config: std::sync::Arc<rustls::ClientConfig>,
    /// The name that servers' certificates have; `None` is the host of each address.
    pub server_name: Option<String>,
}

impl Options {
    /// One connection to each worker; a second for an answer.
    pub fn new() -> Options {
        Options {
            timeout: Duration::from_secs(1),
            connect_timeout: Duration::from_millis(500),
            poll: Duration::from_secs(1),
            connections: 1,
            copies: true,
            login: None,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// After so long a request has failed, however often it was tried; so long a server may be silent before it counts as gone.
    /// Default 1 s.
    pub fn timeout(self, timeout: Duration) -> Options {
        Options { timeout, ..self }
    }

    /// So long a connection may take, TLS and login included. Default 500 ms.
    pub fn connect_timeout(self, connect_timeout: Duration) -> Options {
        Options { connect_timeout, ..self }
    }

    /// So often a server is asked for news of the map. Default 1 s.
    pub fn poll(self, poll: Duration) -> Options {
        Options { poll, ..self }
    }

    /// Connections to each worker's port, over which keys are spread. Default 1.
    ///
    /// # Panics
    /// If there are none.
    pub fn connections_per_worker(self, connections: usize) -> Options {
        assert!(connections > 0);
        Options { connections, ..self }
    }

    /// Whether copies of hot keys on other servers are read, where the cluster has some (`--hot-keys` of its coordinator). Default true.
    pub fn read_copies(self, copies: bool) -> Options {
        Options { copies, ..self }
    }

    /// Logs in on every connection.
    pub fn login(self, login: Login) -> Options {
        Options { login: Some(login), ..self }
    }

    /// Speaks TLS.
    #[cfg(feature = "tls")]
    pub fn tls(self, tls: Tls) -> Options {
        Options { tls: Some(tls), ..self }
    }
}

impl Default for Options {
    fn default() -> Options {
        Options::new()
    }
}

/// Passwords are not for logs.
impl fmt::Debug for Login {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

#[cfg(feature = "tls")]
impl fmt::Debug for Tls {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Tls").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}
