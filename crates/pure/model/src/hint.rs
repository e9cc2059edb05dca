//! What a server says of a key's owner: in an `L` token of a meta reply, or as the value of the binary status 7.

use std::fmt;

use crate::{MapVersion, ServerId, WorkerId};

/// Advice for the next request of this key's cachelet; the text of an `L` token, without its letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// `<map>.<local>.<worker>`: another worker of the server that was asked has it.
    Worker { version: MapVersion, worker: WorkerId },
    /// `<map>.<local>.<server>/<worker>`: another server has it, and these are its versions; local 0 is one that knows of no
    /// loans there.
    Server { version: MapVersion, server: ServerId, worker: WorkerId },
    /// `<map>`: this map is newer, and nothing more is known.
    Newer { map: u64 },
}

impl Hint {
    pub fn parse(text: &[u8]) -> Option<Hint> {
        fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
            let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|_| is_plain)
        }
        let text = std::str::from_utf8(text).ok()?;
        let Some((version, owner)) = text.rsplit_once('.') else {
            return Some(Hint::Newer { map: number(text)? });
        };
        let version = MapVersion::parse(version.as_bytes())?;
        Some(match owner.split_once('/') {
            None => Hint::Worker { version, worker: WorkerId(number(owner)?) },
            Some((server, worker)) => {
                let server = ServerId(number(server)?);
                Hint::Server { version, server, worker: WorkerId(number(worker)?) }
            }
        })
    }

    /// The map that it is of.
    pub fn map(&self) -> u64 {
        match self {
            Hint::Worker { version, .. } | Hint::Server { version, .. } => version.map,
            Hint::Newer { map } => *map,
        }
    }
}

impl fmt::Display for Hint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Hint::Worker { version, worker } => write!(out, "{version}.{}", worker.0),
            Hint::Server { version, server, worker } => {
                write!(out, "{version}.{}/{}", server.0, worker.0)
            }
            Hint::Newer { map } => write!(out, "{map}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_reads_as_it_is_written() {
        let version = MapVersion { map: 12, local: 3 };
        for (text, hint) in [
            ("12.3.1", Hint::Worker { version, worker: WorkerId(1) }),
            ("12.3.2/1", Hint::Server { version, server: ServerId(2), worker: WorkerId(1) }),
            ("12", Hint::Newer { map: 12 }),
        ] {
            assert_eq!(Hint::parse(text.as_bytes()), Some(hint));
            assert_eq!((hint.to_string().as_str(), hint.map()), (text, 12));
        }
        for text in [
            "", ".", "12.3", "12.3.", "12.3.x", "12.3.2/", "12.3./1", "1.2.3.4", "+1", "1.2.+3",
            "x",
        ] {
            assert_eq!(Hint::parse(text.as_bytes()), None, "{text}");
        }
    }
}
