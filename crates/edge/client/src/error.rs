//! Why a request failed.

use std::fmt;

use mbal_model::ServerId;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The key is empty, or longer than the protocol has it: 250 bytes, or 186 if it has blanks or control characters, which are sent in base64.
    Key,
    /// It was not executed: the server that has the key cannot be reached.
    Unreachable(ServerId),
    /// It was sent, and no answer came: nobody knows whether it was executed.
    Unknown(ServerId),
    /// The server refused it: the text of a `SERVER_ERROR`, as of a value that is too large.
    Server(String),
    /// The server did not take it for a sound request: the text of a `CLIENT_ERROR`, as of counting what is no number.
    Client(String),
    /// At the start, none of the addresses gave a map; what the last one said.
    NoMap(String),
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Key => write!(out, "no key: empty, or too long"),
            Error::Unreachable(server) => {
                write!(out, "server {} cannot be reached; the request was not executed", server.0)
            }
            Error::Unknown(server) => {
                write!(
                    out,
                    "no answer from server {}; the request may have been executed",
                    server.0
                )
            }
            Error::Server(text) | Error::Client(text) => write!(out, "refused: {text}"),
            Error::NoMap(why) => write!(out, "no map of the cluster: {why}"),
        }
    }
}

impl std::error::Error for Error {}
