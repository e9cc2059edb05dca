use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::{Interface, Listen};

/// Why a server did not start.
#[derive(Debug)]
pub enum StartError {
    Listen {
        /// TCP or UDP.
        transport: &'static str,
        /// What chooses the port.
        flag: &'static str,
        listen: Listen,
        error: io::Error,
    },
    Unix {
        path: PathBuf,
        error: io::Error,
    },
    /// Descriptors for `-c` connections are not to be had.
    Descriptors {
        wanted: u64,
        error: io::Error,
    },
    User {
        user: String,
        error: io::Error,
    },
    File {
        path: PathBuf,
        error: io::Error,
    },
    /// `-Y`.
    Passwords {
        path: PathBuf,
        error: io::Error,
    },
    /// `-Z`: what is wrong with certificates, keys or options.
    Tls(String),
    System(io::Error),
}

impl StartError {
    /// As memcached exits: the numbers are those of `sysexits.h`.
    pub fn exit_code(&self) -> u8 {
        const EX_FAILURE: u8 = 1;
        const EX_USAGE: u8 = 64;
        const EX_NOUSER: u8 = 67;
        const EX_OSERR: u8 = 71;
        match self {
            StartError::User { error, .. } if error.kind() == io::ErrorKind::NotFound => EX_NOUSER,
            StartError::Passwords { .. } => EX_FAILURE,
            StartError::Tls(_) => EX_USAGE,
            _ => EX_OSERR,
        }
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        match self {
            StartError::Listen { transport, flag, listen, error } => {
                let port = listen.port;
                match &listen.interface {
                    Interface::Named(name) => write!(out, "failed to listen on {name} port {port}"),
                    Interface::All | Interface::Loopback => {
                        write!(out, "failed to listen on {transport} port {port}")
                    }
                }?;
                write!(out, ": {error}")?;
                if error.kind() == io::ErrorKind::AddrInUse {
                    write!(out, "\nanother server has this port; choose one with {flag}")?;
                }
                Ok(())
            }
            StartError::Unix { path, error } => {
                write!(out, "failed to listen on UNIX socket {}: {error}", path.display())
            }
            StartError::Descriptors { wanted, error } => write!(
                out,
                "failed to raise the limit of open files to {wanted}: {error}\n\
                 start as root, raise `ulimit -n`, or ask for fewer connections with -c"
            ),
            StartError::User { user, error } => write!(out, "failed to become {user}: {error}"),
            StartError::File { path, error } => {
                write!(out, "failed to write {}: {error}", path.display())
            }
            StartError::Passwords { path, error } => {
                write!(out, "authentication file {}: {error}", path.display())
            }
            StartError::Tls(why) => write!(out, "{why}"),
            StartError::System(error) => write!(out, "{error}"),
        }
    }
}

impl std::error::Error for StartError {}
