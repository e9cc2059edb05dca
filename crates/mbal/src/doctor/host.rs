//! What a doctor sees of this host: files of the kernel, ports, secrets, and the cluster's coordinator.

use std::fs;
use std::net::{TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mbal_control::api::Status;
use mbal_reactor::process;
use mbal_server::{Interface, Listen, machine};

use super::checks::{Clock, HostState, Port, Secret};
use crate::cluster;

/// A server's link takes a connection within this time, or a firewall is in the way.
const REACHED_WITHIN: Duration = Duration::from_secs(2);
/// Each may take that long.
const SERVERS_REACHED_MAX: usize = 32;
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
const CLOCKS: &str = "/sys/devices/system/clocksource/clocksource0";

/// What the kernel's files say. `read` reads one.
pub fn kernel(read: impl Fn(&str) -> Option<String>) -> HostState {
    let number = |path: &str| read(path)?.trim().parse().ok();
    let of = |path: &str, name: &str| kib(&read(path)?, name);
    let memory = |name: &str| of("/proc/meminfo", name);
    let commit_left = || Some(memory("CommitLimit")?.saturating_sub(memory("Committed_AS")?));
    let word = |path: &str| Some(read(path)?.trim().to_owned());
    HostState {
        somaxconn: number("/proc/sys/net/core/somaxconn"),
        syn_backlog: number("/proc/sys/net/ipv4/tcp_max_syn_backlog"),
        overcommit: number("/proc/sys/vm/overcommit_memory"),
        commit_left: commit_left(),
        swappiness: number("/proc/sys/vm/swappiness"),
        swap_bytes: memory("SwapTotal"),
        huge_pages: read(HUGE_PAGES).and_then(|modes| chosen(&modes)),
        reserved_bytes: memory("Hugetlb"),
        memory_bytes: memory("MemTotal"),
        slice_us: number("/proc/sys/kernel/sched_cfs_bandwidth_slice_us"),
        clock: Clock {
            is_synchronized: None,
            source: word(&format!("{CLOCKS}/current_clocksource")),
            sources: read(&format!("{CLOCKS}/available_clocksource"))
                .map(|all| all.split_whitespace().map(str::to_owned).collect())
                .unwrap_or_default(),
        },
        ..HostState::default()
    }
}

/// With what the system tells of this process.
pub fn seen() -> HostState {
    let mut seen = kernel(|path| fs::read_to_string(path).ok());
    seen.files = process::descriptor_limits().ok();
    seen.is_root = process::is_root();
    seen.group_bytes = machine::group_memory_bytes();
    seen.quota = machine::cpu_quota_us();
    seen.clock.is_synchronized = process::clock_is_synchronized();
    seen
}

/// Bytes of a line `Name:   123 kB`.
fn kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

/// `madvise` of `always [madvise] never`.
fn chosen(modes: &str) -> Option<String> {
    Some(modes.split_once('[')?.1.split_once(']')?.0.to_owned())
}

pub enum Transport {
    Tcp,
    Udp,
}

/// Whether the port can be had where it is to listen. 0 is any free one.
pub fn port(flag: &'static str, place: &Listen, transport: &Transport) -> Option<Port> {
    let number = place.port;
    if number == 0 {
        return None;
    }
    let hosts = match &place.interface {
        Interface::All => vec!["::".to_owned(), "0.0.0.0".into()],
        Interface::Loopback => vec!["127.0.0.1".into(), "::1".into()],
        Interface::Named(name) => vec![name.clone()],
    };
    let take = |host: &String| match transport {
        Transport::Tcp => TcpListener::bind((host.as_str(), number)).map(drop),
        Transport::Udp => UdpSocket::bind((host.as_str(), number)).map(drop),
    };
    let mut refused = hosts.iter().map(take).filter_map(Result::err);
    // A host without IPv6 has no such address, and needs none.
    let is_missing = |error: &std::io::Error| {
        hosts.len() > 1
            && error.kind() != std::io::ErrorKind::AddrInUse
            && error.kind() != std::io::ErrorKind::PermissionDenied
    };
    let taken = refused.find(|error| !is_missing(error)).map(|error| error.to_string());
    Some(Port { flag, number, taken })
}

pub fn secret(flag: &'static str, path: &Path) -> Secret {
    let found = fs::metadata(path).and_then(|found| {
        fs::File::open(path)?;
        Ok((found.mode(), found.len()))
    });
    let found = found.map_err(|error| error.to_string());
    Secret { flag, path: path.display().to_string(), found }
}

/// The cluster's state, and which of its servers this host does not reach.
pub fn cluster(url: &str, token: Option<PathBuf>, seen: &mut HostState) {
    let asked = cluster::caller(url, &cluster::Token::of(token));
    let status = asked.and_then(|caller| {
        let text = cluster::text(&caller, "GET", "/v1/status", None)?;
        cluster::read::<Status>(&text)
    });
    let servers = status.iter().flat_map(|status| &status.servers);
    let reached = servers.filter(|server| !server.link.is_empty()).take(SERVERS_REACHED_MAX);
    seen.unreached = reached
        .filter_map(|server| Some((server.id, server.link.clone(), unreached(&server.link)?)))
        .collect();
    seen.cluster = Some(status);
}

fn unreached(address: &str) -> Option<String> {
    let addresses = match address.to_socket_addrs() {
        Ok(addresses) => addresses,
        Err(error) => return Some(error.to_string()),
    };
    let mut last = Some("it has no address".to_owned());
    for address in addresses {
        match TcpStream::connect_timeout(&address, REACHED_WITHIN) {
            Ok(_) => return None,
            Err(error) => last = Some(error.to_string()),
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_files_are_read() {
        let files = [
            ("/proc/sys/net/core/somaxconn", "4096\n"),
            (
                "/proc/meminfo",
                "MemTotal:       16 kB\nSwapTotal:       8 kB\nCommitLimit: 9 kB\nCommitted_AS: 5 kB\nHugetlb:  2048 kB\n",
            ),
            (HUGE_PAGES, "always [madvise] never\n"),
            ("/sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n"),
            ("/sys/devices/system/clocksource/clocksource0/available_clocksource", "tsc hpet \n"),
            ("/proc/sys/vm/swappiness", "x"),
        ];
        let seen = kernel(|path| {
            let found = files.iter().find(|(name, _)| *name == path);
            found.map(|(_, text)| (*text).to_owned())
        });
        assert_eq!(seen.somaxconn, Some(4096));
        assert_eq!((seen.memory_bytes, seen.swap_bytes), (Some(16 << 10), Some(8 << 10)));
        assert_eq!((seen.commit_left, seen.reserved_bytes), (Some(4 << 10), Some(2048 << 10)));
        assert_eq!(seen.huge_pages.as_deref(), Some("madvise"));
        assert_eq!(seen.clock.source.as_deref(), Some("tsc"));
        assert_eq!(seen.clock.sources, ["tsc", "hpet"]);
        assert_eq!((seen.swappiness, seen.overcommit), (None, None));
    }
}
