//! A server's name, one form for all tools: `HOST[:PORT]`, `[V6]:PORT`, `unix:PATH`.

use std::fmt;
use std::io;
use std::net::{Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

/// memcached's.
pub const PORT: u16 = 11211;

/// Where a server serves clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerName {
    Tcp {
        /// A name or an address; one of IPv6 without its brackets.
        host: String,
        port: u16,
    },
    Unix(PathBuf),
}

// Which server is meant: the arguments that all tools share. (A doc comment would become their help.)
#[derive(clap::Args, Clone, Debug, Default)]
pub struct At {
    // By hand: brackets are links in a docstring.
    #[arg(
        help = "Server: HOST, HOST:PORT, [V6]:PORT, or unix:PATH of its socket [default: 127.0.0.1]",
        value_name = "SERVER"
    )]
    named: Option<Name>,

    /// The same as a flag
    #[arg(long = "server", value_name = "SERVER", conflicts_with = "named", hide = true)]
    flagged: Option<Name>,

    /// Port of a SERVER that names none [default: 11211]
    #[arg(short, long, env = "MBAL_PORT", value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
}

impl At {
    /// Whether somebody has said which; otherwise it is the one on loopback.
    pub fn is_named(&self) -> bool {
        self.named.is_some() || self.flagged.is_some()
    }

    pub fn server(&self) -> ServerName {
        let port = self.port.unwrap_or(PORT);
        match self.named.as_ref().or(self.flagged.as_ref()) {
            None => ServerName::Tcp { host: "127.0.0.1".into(), port },
            Some(name) => name.with_port(port),
        }
    }
}

/// A name in which the port may be missing.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Name {
    Tcp { host: String, port: Option<u16> },
    Unix(PathBuf),
}

impl Name {
    fn with_port(&self, default: u16) -> ServerName {
        match self {
            Name::Tcp { host, port } => {
                ServerName::Tcp { host: host.clone(), port: port.unwrap_or(default) }
            }
            Name::Unix(path) => ServerName::Unix(path.clone()),
        }
    }
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Name, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path {
                "" => Err("unix: lacks the path of a socket".into()),
                path => Ok(Name::Unix(path.into())),
            };
        }
        if text.contains('/') {
            return Ok(Name::Unix(text.into()));
        }
        // More than one colon without brackets: an address of IPv6, so no port.
        if text.parse::<Ipv6Addr>().is_ok() {
            return Ok(Name::Tcp { host: text.into(), port: None });
        }
        let forms = "HOST, HOST:PORT, [V6]:PORT or unix:PATH";
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, behind) = rest.split_once(']').ok_or("a ] is missing")?;
                host.parse::<Ipv6Addr>().map_err(|_| format!("{host:?} is no address of IPv6"))?;
                match behind.strip_prefix(':') {
                    Some(port) => (host, Some(port)),
                    None if behind.is_empty() => (host, None),
                    None => return Err(format!("it has the form {forms}")),
                }
            }
            None => match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        if host.is_empty() || host.contains(char::is_whitespace) {
            return Err(format!("it has the form {forms}"));
        }
        // The system would take 11212 for the address 0.0.43.204.
        if host.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(format!("a port needs a host before it, or -p: 127.0.0.1:{host}"));
        }
        let port = match port.map(|port| (port, port.parse::<u16>())) {
            None => None,
            Some((_, Ok(port @ 1..))) => Some(port),
            Some((port, _)) => return Err(format!("{port:?} is no port, 1 to 65535")),
        };
        Ok(Name::Tcp { host: host.into(), port })
    }
}

impl ServerName {
    /// A name without a port means memcached's.
    pub fn parse(text: &str) -> Result<ServerName, String> {
        Ok(text.parse::<Name>()?.with_port(PORT))
    }

    /// The addresses of a host; of a unix socket none.
    pub fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        match self {
            ServerName::Tcp { host, port } => {
                let found: Vec<_> = (host.as_str(), *port).to_socket_addrs()?.collect();
                if found.is_empty() { Err(io::Error::other("no such host")) } else { Ok(found) }
            }
            ServerName::Unix(_) => Ok(Vec::new()),
        }
    }
}

impl From<SocketAddr> for ServerName {
    fn from(address: SocketAddr) -> ServerName {
        ServerName::Tcp { host: address.ip().to_string(), port: address.port() }
    }
}

impl fmt::Display for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerName::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            ServerName::Tcp { host, port } => write!(f, "{host}:{port}"),
            ServerName::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_named_in_one_of_four_forms() {
        for (text, expected) in [
            ("cache1", "cache1:11211"),
            ("cache1:11212", "cache1:11212"),
            ("10.0.0.5", "10.0.0.5:11211"),
            ("10.0.0.5:1", "10.0.0.5:1"),
            ("[::1]:11212", "[::1]:11212"),
            ("[::1]", "[::1]:11211"),
            ("::1", "[::1]:11211"),
            ("unix:/run/mbal.sock", "unix:/run/mbal.sock"),
            ("unix:mbal.sock", "unix:mbal.sock"),
            ("/run/mbal.sock", "unix:/run/mbal.sock"),
        ] {
            assert_eq!(
                ServerName::parse(text).map(|server| server.to_string()),
                Ok(expected.into())
            );
        }
    }

    #[test]
    fn what_names_no_server_is_told_what_would() {
        for (text, expected) in [
            ("", "it has the form HOST, HOST:PORT, [V6]:PORT or unix:PATH"),
            (":11211", "it has the form HOST, HOST:PORT, [V6]:PORT or unix:PATH"),
            ("a b", "it has the form HOST, HOST:PORT, [V6]:PORT or unix:PATH"),
            ("[::1]x", "it has the form HOST, HOST:PORT, [V6]:PORT or unix:PATH"),
            ("11212", "a port needs a host before it, or -p: 127.0.0.1:11212"),
            ("cache1:", "\"\" is no port, 1 to 65535"),
            ("cache1:0", "\"0\" is no port, 1 to 65535"),
            ("cache1:x", "\"x\" is no port, 1 to 65535"),
            ("[::1", "a ] is missing"),
            ("[cache1]:1", "\"cache1\" is no address of IPv6"),
            ("unix:", "unix: lacks the path of a socket"),
        ] {
            assert_eq!(ServerName::parse(text), Err(expected.into()), "{text:?}");
        }
    }
}
