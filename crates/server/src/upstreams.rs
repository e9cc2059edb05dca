//! Which upstreams a proxy has, and where they are dialed: as they are at its start, and again whenever they may have changed.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;
use std::{io, thread};

use mbal_proxy::RingServer;
use mbal_reactor::{Mailbox, ProxyLetter, process};

use crate::log;

/// More in a pool are a mistake of whoever lists them.
const UPSTREAMS_MAX: usize = 4096;

/// Says which upstreams there are, in the order of the pool.
pub type Source = Box<dyn Fn() -> Result<Vec<RingServer>, String> + Send + Sync>;

type Placed = (RingServer, SocketAddr);

/// The upstreams of a proxy, and who says what they are.
pub struct Upstreams {
    source: Source,
    known: Vec<Placed>,
    /// Why they could not be read the last time.
    failed: Option<String>,
    /// They are what they were at the start.
    stay: bool,
}

impl Upstreams {
    /// As they are now.
    pub fn read(source: Source) -> Result<Upstreams, String> {
        let known = placed(source()?, &[])?;
        Ok(Upstreams { source, known, failed: None, stay: false })
    }

    /// They do not change any more: other proxies take them for what they were.
    pub(crate) fn stay(&mut self) {
        self.stay = true;
    }

    pub fn servers(&self) -> Vec<RingServer> {
        self.known.iter().map(|(server, _)| server.clone()).collect()
    }

    /// Where each is dialed.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.known.iter().map(|(_, address)| *address).collect()
    }

    /// Reads them again, if they can be read, and tells a proxy of those that have changed.
    fn again(&mut self, mailbox: &Mailbox<ProxyLetter>, descriptors: Descriptors) {
        if self.stay {
            let text =
                "mbal proxy: with --peers the upstreams stay as they are until it starts again";
            return log::warn("upstreams_not_read", text);
        }
        let before = &self.known;
        let next = match (self.source)().and_then(|servers| placed(servers, before)) {
            Ok(next) => next,
            Err(why) => {
                let text = format!("mbal proxy: the upstreams stay as they are: {why}");
                // Once, however often they are looked for.
                if self.failed.replace(why.clone()) != Some(why) {
                    log::warn("upstreams_not_read", &text);
                }
                return;
            }
        };
        self.failed = None;
        if next == *before {
            return;
        }
        let wanted = descriptors.for_upstreams(next.len());
        if process::raise_descriptor_limit(wanted).is_ok_and(|limit| limit < wanted) {
            let text = format!("mbal proxy: {wanted} descriptors are more than there may be");
            log::warn("few_descriptors", &text);
        }
        let missing = |from: &[Placed], in_: &[Placed]| {
            let is_in = |(one, at): &&Placed| {
                let is_its = |(other, there): &Placed| {
                    (&other.host, other.port, there) == (&one.host, one.port, at)
                };
                !in_.iter().any(is_its)
            };
            from.iter().filter(is_in).count()
        };
        let (came, left) = (missing(&next, before), missing(before, &next));
        let count = next.len();
        let text = format!("mbal proxy: {count} upstreams; {came} came, {left} left");
        log::info("upstreams_changed", &text);
        mailbox.post(ProxyLetter::Upstreams(next.clone()));
        self.known = next;
    }
}

/// Descriptors that a proxy needs.
#[derive(Clone, Copy)]
pub(crate) struct Descriptors {
    pub clients: u64,
    pub conns_per_server: u64,
}

/// Beside those of clients and upstreams.
const BESIDE: u64 = 128;

impl Descriptors {
    /// Text and binary have connections of their own.
    pub fn for_upstreams(&self, upstreams: usize) -> u64 {
        self.clients + 2 * upstreams as u64 * self.conns_per_server + BESIDE
    }
}

/// Starts the thread that reads upstreams again, whenever it is told to and so often, and tells a proxy. To read may take seconds.
pub(crate) fn follow(
    mut upstreams: Upstreams,
    mailbox: Mailbox<ProxyLetter>,
    descriptors: Descriptors,
    poll: Option<Duration>,
) -> io::Result<Sender<()>> {
    let (look, asked) = mpsc::channel();
    let work = move || {
        loop {
            let ended = match poll {
                Some(every) => asked.recv_timeout(every) == Err(RecvTimeoutError::Disconnected),
                None => asked.recv().is_err(),
            };
            if ended {
                return;
            }
            upstreams.again(&mailbox, descriptors);
        }
    };
    thread::Builder::new().name("mbal-upstreams".into()).spawn(work)?;
    Ok(look)
}

/// Where each of a proxy's peers is dialed.
pub fn resolve(peers: Vec<RingServer>) -> Result<Vec<SocketAddr>, String> {
    Ok(placed(peers, &[])?.into_iter().map(|(_, at)| at).collect())
}

/// Where each is dialed: IPv4 first, and where it was before if that is still one of its addresses.
fn placed(servers: Vec<RingServer>, before: &[Placed]) -> Result<Vec<Placed>, String> {
    if servers.is_empty() {
        return Err("there are no upstreams".into());
    }
    if UPSTREAMS_MAX < servers.len() {
        return Err(format!("{} upstreams are more than {UPSTREAMS_MAX}", servers.len()));
    }
    let mut placed: Vec<Placed> = Vec::new();
    for server in servers {
        let is_it = |(other, _): &&Placed| (&other.host, other.port) == (&server.host, server.port);
        if placed.iter().any(|one| is_it(&one)) {
            return Err(format!("{server} is there twice"));
        }
        let host = &server.host;
        let failed = |why: io::Error| format!("{host}: {why}");
        let found = (host.as_str(), server.port).to_socket_addrs().map_err(failed)?;
        let (v4, v6): (Vec<_>, Vec<_>) = found.partition(SocketAddr::is_ipv4);
        let all: Vec<SocketAddr> = v4.into_iter().chain(v6).collect();
        let kept = before.iter().find(is_it).map(|(_, at)| *at).filter(|at| all.contains(at));
        let Some(at) = kept.or(all.first().copied()) else {
            return Err(format!("{host}: no such host"));
        };
        placed.push((server, at));
    }
    Ok(placed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(list: &[&str]) -> Vec<RingServer> {
        list.iter().map(|one| one.parse().expect("a server")).collect()
    }

    #[test]
    fn a_host_with_several_addresses_stays_where_it_was() {
        let first = placed(servers(&["127.0.0.1:1", "localhost:2"]), &[]).expect("they are there");
        let at = "127.0.0.9:1".parse().expect("an address");
        let before = vec![("127.0.0.1:1".parse().expect("a server"), at), first[1].clone()];
        let again = placed(servers(&["localhost:2", "127.0.0.1:1"]), &before);
        let again = again.expect("they are there");
        assert_eq!(again, [first[1].clone(), first[0].clone()]);
    }

    #[test]
    fn a_pool_has_each_upstream_once_and_one_at_least() {
        assert_eq!(placed(Vec::new(), &[]), Err("there are no upstreams".into()));
        let many = placed(servers(&["127.0.0.1:1"; 4097]), &[]);
        assert_eq!(many, Err("4097 upstreams are more than 4096".into()));
        let twice = placed(servers(&["127.0.0.1:1:2", "127.0.0.1:1 a"]), &[]);
        assert_eq!(twice, Err("127.0.0.1:1 is there twice".into()));
    }
}
