//! Why a server did not start, in words for its operator.

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
        /// `-u`, if it is he who may not.
        user: Option<String>,
        error: io::Error,
    },
    /// Not even one connection has room among the open files.
    Descriptors {
        wanted: u64,
        limit: u64,
    },
    /// `-m`.
    Memory {
        mib: u64,
        there_is: String,
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
    /// `--xdp`: what there is not.
    Xdp(String),
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
            StartError::Unix { path, user, error } => {
                write!(out, "failed to listen on UNIX socket {}: {error}", path.display())?;
                match user {
                    Some(user) => write!(out, "\n-u {user}: this user may not write there"),
                    None => Ok(()),
                }
            }
            StartError::Descriptors { wanted, limit } => write!(
                out,
                "{wanted} open files are needed beside the connections, and the hard limit is {limit}\n\
                 start as root, raise `ulimit -Hn`, or ask for fewer workers with -t"
            ),
            StartError::Memory { mib, there_is, error } => {
                write!(out, "-m {mib}: the kernel does not give so much memory: {error}")?;
                if there_is.is_empty() { Ok(()) } else { write!(out, "\n{there_is}") }
            }
            StartError::User { user, error } => write!(out, "failed to become {user}: {error}"),
            StartError::File { path, error } => {
                write!(out, "failed to write {}: {error}", path.display())
            }
            StartError::Passwords { path, error } => {
                write!(out, "authentication file {}: {error}", path.display())
            }
            StartError::Tls(why) | StartError::Xdp(why) => write!(out, "{why}"),
            StartError::System(error) => write!(out, "{error}"),
        }
    }
}

impl std::error::Error for StartError {}
