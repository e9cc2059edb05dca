//! Which HTTP requests a web page may have made a browser send, so that nobody answers them.
//!
//! A page can have requests sent wherever its reader's browser gets to: to loopback, and into a private network. Two
//! things give it away, and a page can change neither. `Origin` names the site that the page is of. `Host` is the name that
//! the browser has looked up: a page whose own name is made to point here (DNS rebinding) is of the same origin, but says
//! its own name.

use std::net::IpAddr;

/// The names that callers may say in `Host`.
///
/// An IP address needs no look-up, and a name without a dot is none that a stranger can have: both are fine whatever they are. So are
/// `localhost`, and what ends in `.localhost`. All others have to be listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosts {
    /// Without ports, in small letters.
    names: Vec<String>,
}

impl Hosts {
    /// Beside those that are always fine.
    pub fn and(names: impl IntoIterator<Item = String>) -> Hosts {
        let names = names.into_iter().map(|name| host_of(&name).to_ascii_lowercase());
        Hosts { names: names.filter(|name| !name.is_empty()).collect() }
    }

    /// Whether a request that names this `HOST[:PORT]` is for who listens here.
    pub fn allow(&self, authority: &str) -> bool {
        let host = host_of(authority).to_ascii_lowercase();
        let is_address = host.parse::<IpAddr>().is_ok();
        let is_local = |host: &str| !host.contains('.') || host.ends_with(".localhost");
        // Nothing is looked up with the dot of the root, or without it, that is not the same.
        let host = host.strip_suffix('.').unwrap_or(&host);
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        is_address
            || !host.is_empty()
                && host.bytes().all(is_name)
                && (is_local(host) || self.names.iter().any(|name| name == host))
    }
}

/// Of `HOST[:PORT]`, or of a URL; an IPv6 address without its brackets.
fn host_of(authority: &str) -> &str {
    let authority = authority.split_once("://").map_or(authority, |(_, rest)| rest);
    let authority = authority.split('/').next().unwrap_or_default();
    if let Some((host, _)) = authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return host;
    }
    authority.split_once(':').map_or(authority, |(host, _)| host)
}

/// Whether a page of `origin` is one of who answers to `host`: none is served, but a browser may be where a person types.
pub fn is_same_origin(origin: &str, host: Option<&str>) -> bool {
    let of = origin.strip_prefix("http://");
    of.is_some_and(|of| host.is_some_and(|host| of.eq_ignore_ascii_case(host)))
}

/// Whether this says that a body is JSON. A page of another site cannot say so without being asked first what it may send.
pub fn is_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_local_names_and_listed_names_are_fine() {
        let hosts = Hosts::and(["Cache.example:11210".into(), "http://c2.example:11210/".into()]);
        for host in [
            "127.0.0.1:11210",
            "127.0.0.1",
            "[::1]:11210",
            "10.0.0.1:80",
            "localhost:11210",
            "LOCALHOST",
            "localhost.:1",
            "a.localhost:1",
            "coordinator:11210",
            "cache.example:11210",
            "CACHE.example",
            "c2.example.:9",
            "my_host",
        ] {
            assert!(hosts.allow(host), "{host}");
        }
        for host in [
            "evil.example:11210",
            "evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "xlocalhost.com",
            "cache.example.evil.com",
            "",
            ":11210",
            "a b",
            "[evil.example]:1",
            "10.0.0.1.",
            "\u{ff4c}ocalhost",
            "user@localhost",
        ] {
            assert!(!hosts.allow(host), "{host}");
        }
    }

    #[test]
    fn a_page_of_another_place_is_of_another_origin() {
        assert!(is_same_origin("http://127.0.0.1:11210", Some("127.0.0.1:11210")));
        for (origin, host) in [
            ("null", Some("127.0.0.1:11210")),
            ("", Some("")),
            ("http://evil.example", Some("127.0.0.1:11210")),
            ("http://127.0.0.1:8000", Some("127.0.0.1:11210")),
            ("https://127.0.0.1:11210", Some("127.0.0.1:11210")),
            ("http://127.0.0.1:11210", None),
        ] {
            assert!(!is_same_origin(origin, host), "{origin} {host:?}");
        }
    }

    #[test]
    fn only_json_is_json() {
        for said in ["application/json", "application/json; charset=utf-8", "Application/JSON ;x"] {
            assert!(is_json(said), "{said}");
        }
        for said in [
            "",
            "text/plain",
            "text/plain; application/json",
            "application/jsonp",
            "application/x-www-form-urlencoded",
        ] {
            assert!(!is_json(said), "{said}");
        }
    }
}
