//! A server of a cluster as operators name it: by its number, or by an address that `mbal cluster status` shows.

use std::fmt;
use std::str::FromStr;

use mbal_control::api::{ServerStatus, Status};
use mbal_server::Caller;

use crate::cluster::{read, text};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamedServer {
    Number(u16),
    /// `HOST:PORT`, of clients or of links, or a host that has one server.
    Address(String),
}

impl FromStr for NamedServer {
    type Err = String;

    fn from_str(name: &str) -> Result<NamedServer, String> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-_:[]".contains(c);
        let is_number = name.bytes().all(|byte| byte.is_ascii_digit());
        match name.parse() {
            Ok(number) if is_number => Ok(NamedServer::Number(number)),
            _ if !is_number && !name.starts_with('-') && name.chars().all(is_plain) => {
                Ok(NamedServer::Address(name.into()))
            }
            _ => {
                Err("a server is its number, or HOST:PORT as `mbal cluster status` shows it".into())
            }
        }
    }
}

impl fmt::Display for NamedServer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NamedServer::Number(number) => number.fmt(out),
            NamedServer::Address(address) => address.fmt(out),
        }
    }
}

impl NamedServer {
    /// Its number; asks only if it is not that which was said.
    pub fn number(&self, caller: &Caller) -> Result<u16, String> {
        match self {
            NamedServer::Number(number) => Ok(*number),
            NamedServer::Address(_) => {
                let status: Status = read(&text(caller, "GET", "/v1/status", None)?)?;
                Ok(self.among(&status.servers)?.id)
            }
        }
    }

    pub fn among<'a>(&self, servers: &'a [ServerStatus]) -> Result<&'a ServerStatus, String> {
        let all = || servers.iter();
        let found: Vec<&ServerStatus> = match self {
            NamedServer::Number(number) => all().filter(|one| one.id == *number).collect(),
            NamedServer::Address(name) => {
                let exact = all().filter(|one| one.client == *name || one.link == *name);
                let exact: Vec<&ServerStatus> = exact.collect();
                let is_at = |one: &&ServerStatus| {
                    one.client.rsplit_once(':').is_some_and(|(host, _)| host == name)
                };
                // Who has died may have left its address to another one.
                let mut found =
                    if exact.is_empty() { all().filter(is_at).collect() } else { exact };
                if found.len() > 1 {
                    found.retain(|one| !one.has_ended());
                }
                found
            }
        };
        match found[..] {
            [one] => Ok(one),
            [] => Err(format!("there is no server {self}: {}", list(all()))),
            _ => Err(format!("{self} are several servers: {}", list(found.into_iter()))),
        }
    }
}

fn list<'a>(servers: impl Iterator<Item = &'a ServerStatus>) -> String {
    const MOST: usize = 20;
    let servers: Vec<String> = servers.map(|one| format!("{} is {}", one.id, one.client)).collect();
    let shown = servers[..servers.len().min(MOST)].join(", ");
    match servers.len() {
        0 => "there is none".into(),
        more if more > MOST => format!("{shown} and {} more", more - MOST),
        _ => shown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_found_by_its_number_its_addresses_or_its_host() {
        let server = |id, client: &str, state: &str| ServerStatus {
            id,
            client: client.into(),
            link: client.replace(":11211", ":11311"),
            state: state.into(),
            ..ServerStatus::default()
        };
        let servers = [
            server(1, "10.0.0.1:11211", "serving"),
            server(2, "10.0.0.1:11212", "serving"),
            server(3, "cache3.example:11211", "silent"),
            server(4, "[2001:db8::1]:11211", "serving"),
            server(5, "10.0.0.5:11211", "lost"),
            server(6, "10.0.0.5:11211", "serving"),
        ];
        let found = |name: &str| {
            let named: NamedServer = name.parse()?;
            named.among(&servers).map(|one| one.id)
        };
        for (name, id) in [
            ("3", 3),
            ("10.0.0.1:11212", 2),
            ("10.0.0.1:11311", 1),
            ("cache3.example", 3),
            ("cache3.example:11211", 3),
            ("[2001:db8::1]:11211", 4),
            ("[2001:db8::1]", 4),
            ("10.0.0.5:11211", 6),
        ] {
            assert_eq!(found(name), Ok(id), "{name}");
        }
        let why = found("9").expect_err("there is none");
        assert!(why.starts_with("there is no server 9: 1 is 10.0.0.1:11211, 2 is "), "{why}");
        let why = found("10.0.0.1").expect_err("there are two");
        assert_eq!(why, "10.0.0.1 are several servers: 1 is 10.0.0.1:11211, 2 is 10.0.0.1:11212");
        for name in ["", "70000", "-1", "a b", "\u{1b}[2J", "1/2"] {
            assert!(name.parse::<NamedServer>().is_err(), "{name:?}");
        }
    }
}
