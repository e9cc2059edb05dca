//! `-l`, `-p` and `--worker-ports`: which addresses they mean.

use mbal_server::{ClientCertificate, Interface, Listen};

use crate::flags::{Refused, failure, usage};

/// The listening places of all `-l` values; without any, all interfaces or loopback. Port 0 of
/// `-p` is none, so only places with a port of their own remain.
pub fn interfaces(
    specs: &[String],
    port: i32,
    all_interfaces: bool,
) -> Result<Vec<Listen>, Refused> {
    let mut places = Vec::new();
    for spec in specs.iter().flat_map(|list| list.split([',', ';'])).filter(|one| !one.is_empty()) {
        let asks = |prefix| spec.strip_prefix(prefix);
        let (spec, tls) = if let Some(rest) = asks("notls:") {
            (rest, None)
        } else if let Some(rest) = asks("btls:") {
            (rest, Some(ClientCertificate::NotAsked))
        } else if let Some(rest) = asks("mtls:") {
            (rest, Some(ClientCertificate::Required))
        } else {
            (spec, Some(ClientCertificate::AsConfigured))
        };
        let (host, own_port) = split(spec)?;
        let interface =
            if host == "*" { Interface::All } else { Interface::Named(host.to_string()) };
        places.push((interface, own_port.unwrap_or(port), tls));
    }
    if places.is_empty() {
        let interface = if all_interfaces { Interface::All } else { Interface::Loopback };
        places.push((interface, port, Some(ClientCertificate::AsConfigured)));
    }
    let mut listen = Vec::new();
    for (interface, port, tls) in places {
        let port = match port {
            0 => continue,
            -1 => 0,
            port => u16::try_from(port)
                .map_err(|_| usage(format!("ERROR: Invalid port number {port}.")))?,
        };
        let place = Listen { interface, port, tls };
        if !listen.contains(&place) {
            listen.push(place);
        }
    }
    Ok(listen)
}

/// Where `--metrics` or `--http` listens: on loopback if only a port is said; port 0 is any free one.
pub fn http_address(flag: &str, spec: &str) -> Result<Listen, Refused> {
    let refused = || usage(format!("{flag} {spec}: not a port, host:port or [v6]:port"));
    let port = |port: i32| u16::try_from(port).map_err(|_| refused());
    if let Ok(number) = spec.trim_start_matches(':').parse() {
        return Ok(Listen { interface: Interface::Loopback, port: port(number)?, tls: None });
    }
    match split(spec)? {
        (_, None) => Err(refused()),
        ("*", Some(number)) => {
            Ok(Listen { interface: Interface::All, port: port(number)?, tls: None })
        }
        (host, Some(number)) => Ok(Listen {
            interface: Interface::Named(host.to_string()),
            port: port(number)?,
            tls: None,
        }),
    }
}

/// Host and port of `host`, `host:port`, `v6`, `[v6]` or `[v6]:port`.
fn split(spec: &str) -> Result<(&str, Option<i32>), Refused> {
    let (host, rest) = match spec.strip_prefix('[') {
        Some(inside) => inside
            .split_once(']')
            .ok_or_else(|| failure(format!("Invalid IPV6 address: \"{spec}\"")))?,
        None => match spec.split_once(':') {
            // A second colon says that it is an IPv6 address without port.
            Some((_, after)) if after.contains(':') => (spec, ""),
            Some((host, _)) => (host, &spec[host.len()..]),
            None => (spec, ""),
        },
    };
    match rest.strip_prefix(':') {
        None if rest.is_empty() => Ok((host, None)),
        Some(digits) => match digits.parse() {
            Ok(port) => Ok((host, Some(port))),
            Err(_) => Err(failure(format!("Invalid port number: \"{digits}\""))),
        },
        None => Err(failure(format!("Invalid address: \"{spec}\""))),
    }
}

/// The base, if all workers' ports exist, none of them is a common port, and each is to have TLS or not.
pub fn worker_ports(base: u16, workers: u16, listen: &[Listen], tls: bool) -> Result<u16, Refused> {
    let refused = |why: String| Err(usage(format!("--worker-ports {base}: {why}")));
    let ports = usize::from(base)..usize::from(base) + usize::from(workers);
    if usize::from(u16::MAX) + 1 < ports.end {
        return refused(format!("{workers} workers need ports up to 65535"));
    }
    if listen.is_empty() {
        return refused("without a TCP port (-s, or -p 0) workers have none of their own".into());
    }
    // From 0 any free ports are taken.
    let is_taken = |place: &&Listen| base != 0 && ports.contains(&usize::from(place.port));
    if let Some(place) = listen.iter().find(is_taken) {
        return refused(format!("port {} is the common port already", place.port));
    }
    let both_ways = |place: &&Listen| {
        let is_other =
            |other: &Listen| other.tls != place.tls && other.interface.covers(&place.interface);
        tls && listen.iter().any(is_other)
    };
    match listen.iter().find(both_ways) {
        Some(Listen { interface, .. }) => {
            let host = match interface {
                Interface::Named(name) => name,
                Interface::All | Interface::Loopback => "a host",
            };
            refused(format!(
                "{host} has ports of several kinds (TLS, client certificates), a worker's own can be but one of these"
            ))
        }
        None => Ok(base),
    }
}
