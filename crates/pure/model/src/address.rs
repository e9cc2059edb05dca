//! A host and a port, as documents and flags write them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

/// Of a host: no name that can be looked up is longer.
const NAME_BYTES_MAX: usize = 253;

/// Where somebody listens: `10.0.0.1:11211`, `cache.example:11211`, `[2001:db8::1]:11211`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    /// A name, or an IP address without brackets.
    pub host: String,
    pub port: u16,
}

impl Address {
    /// Stands for an address that only the asker knows: the one that it has asked.
    pub fn unknown() -> Address {
        Address::at(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0)
    }

    pub fn at(ip: IpAddr, port: u16) -> Address {
        Address { host: ip.to_string(), port }
    }

    /// `None` if `text` is no `HOST:PORT`. An IPv6 address needs its brackets.
    pub fn parse(text: &str) -> Option<Address> {
        let (host, port) = text.rsplit_once(':')?;
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_plain =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        let is_host = match bracketed {
            Some(host) => matches!(host.parse(), Ok(IpAddr::V6(_))),
            None => (1..=NAME_BYTES_MAX).contains(&host.len()) && host.bytes().all(is_plain),
        };
        let is_port = port.bytes().all(|digit| digit.is_ascii_digit());
        let port = port.parse().ok().filter(|_| is_host && is_port)?;
        Some(Address { host: bracketed.unwrap_or(host).into(), port })
    }

    /// The IP address, if the host is one.
    pub fn ip(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }

    /// What it says, with `asked` for what it leaves open: an unspecified host, port 0.
    pub fn or(&self, asked: &Address) -> Address {
        let is_open = self.ip().is_some_and(|ip| ip.is_unspecified());
        Address {
            host: if is_open { &asked.host } else { &self.host }.clone(),
            port: if self.port == 0 { asked.port } else { self.port },
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Address { host, port } = self;
        if host.contains(':') {
            write!(out, "[{host}]:{port}")
        } else {
            write!(out, "{host}:{port}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_reads_as_it_is_written() {
        for text in ["10.0.0.1:11211", "cache-1.example_2:1", "[2001:db8::1]:11211", "[::]:0"] {
            let address = Address::parse(text).expect(text);
            assert_eq!(address.to_string(), text);
        }
        for text in [
            "", "a", ":1", "a:", "a:65536", "a:+1", "::1:1", "[a]:1", "[::1:1", "a|b:1", "a,b:1",
            "a b:1",
        ] {
            assert_eq!(Address::parse(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_left_open_is_where_one_asked() {
        let asked = Address::parse("10.0.0.9:7").expect("well formed");
        for (said, meant) in [
            ("0.0.0.0:0", "10.0.0.9:7"),
            ("0.0.0.0:11211", "10.0.0.9:11211"),
            ("[::]:11211", "10.0.0.9:11211"),
            ("10.0.0.1:0", "10.0.0.1:7"),
            ("cache:1", "cache:1"),
        ] {
            let said = Address::parse(said).expect("well formed");
            assert_eq!(said.or(&asked).to_string(), meant);
        }
    }
}
