//! Upstreams that are servers of a cluster of MBal's: any of them answers for any key, and what one flushes all have flushed.
//!
//! An upstream is asked for its cluster when it is connected to. From then on
//!
//! - a key whose own server cannot be asked is asked of another one, under its own name;
//! - a server that comes back is not flushed: it has missed nothing;
//! - a `flush_all` goes to one server, when all that was asked before is answered;
//! - nothing is copied here: the cluster copies its hot keys itself.
//!
//! Keys change their way when a server is lost, comes back, or the list is another. What a client asks stays in order: nobody is
//! asked for anything before what was under way is answered (the *barrier*).

use std::collections::BTreeSet;

use mbal_model::Instant;

use crate::conn::Conn;
use crate::expect::Expect;
use crate::inflight::Who;
use crate::promises::Fence;
use crate::settings::Settings;
use crate::upstreams::{End, Upstreams};
use mbal_wire::ReplyKind;

/// Clusters behind one proxy.
const CLUSTERS_MAX: usize = 64;
/// Who has hung up so often when it was asked for its cluster is not asked the next time.
const HANGS_UP_MAX: u8 = 2;

/// A cluster, as one of its servers has told it.
struct Cluster {
    name: Vec<u8>,
    /// Each server's number and the address where the others reach it: no two clusters have the same.
    links: BTreeSet<Vec<u8>>,
    /// Where clients reach them.
    clients: BTreeSet<Vec<u8>>,
}

#[derive(Default)]
pub(crate) struct Clusters {
    known: Vec<Cluster>,
    /// All upstreams are of one cluster, number 0, and nobody is asked.
    is_one: bool,
    /// Requests that are to be answered before any client's next one is looked at.
    barrier: Vec<Fence>,
}

impl Clusters {
    pub fn new(settings: &Settings) -> Clusters {
        Clusters { is_one: settings.slots.is_some(), ..Clusters::default() }
    }

    pub fn is_any(&self) -> bool {
        self.is_one || !self.known.is_empty()
    }

    pub fn holds_all(&self) -> bool {
        !self.barrier.is_empty()
    }

    /// An upstream has told which cluster it is of. Its number; none if it is of none, or there are too many.
    pub fn learn(&mut self, reply: &[u8], upstreams: &Upstreams) -> Option<u16> {
        let used = |cluster| upstreams.all().iter().any(|one| one.cluster == Some(cluster));
        parse(reply).and_then(|told| self.add(told, used))
    }

    /// Nobody asks for anything before what was asked of clusters is answered.
    pub fn raise_barrier(&mut self, upstreams: &Upstreams) {
        // What waits for a connection stays its own.
        self.raise_barrier_where(upstreams, |conn| conn.is_up());
    }

    /// Likewise, what was asked of these upstreams, or waits for a connection to one: its keys go elsewhere.
    pub fn raise_barrier_for(&mut self, upstreams: &Upstreams, is_meant: impl Fn(usize) -> bool) {
        self.raise_barrier_where(upstreams, |conn| is_meant(conn.upstream));
    }

    fn raise_barrier_where(&mut self, upstreams: &Upstreams, is_meant: impl Fn(&Conn) -> bool) {
        for (number, conn) in upstreams.conns().iter().enumerate() {
            let is_its = upstreams.end_of(conn.upstream) == End::Server
                && upstreams.get(conn.upstream).cluster.is_some();
            if is_its && !conn.is_idle() && is_meant(conn) {
                self.barrier.push((number, conn.asked_in_all()));
            }
        }
    }

    /// True if nobody waits any more.
    pub fn settle_barrier(&mut self, upstreams: &Upstreams) -> bool {
        self.barrier.retain(|(conn, number)| upstreams.conn(*conn).done() < *number);
        self.barrier.is_empty()
    }

    /// Its number; none if there are too many.
    fn add(&mut self, told: Cluster, used: impl Fn(u16) -> bool) -> Option<u16> {
        let is_it = |one: &Cluster| one.name == told.name && !one.links.is_disjoint(&told.links);
        let unused = |at: &usize| !used(*at as u16);
        let known = self.known.iter().position(is_it);
        let free = || (CLUSTERS_MAX <= self.known.len()).then(|| (0..CLUSTERS_MAX).find(unused));
        match known {
            Some(at) => {
                self.known[at] = told;
                Some(at as u16)
            }
            None => match free() {
                None => {
                    self.known.push(told);
                    Some(self.known.len() as u16 - 1)
                }
                Some(at) => {
                    let at = at?;
                    self.known[at] = told;
                    Some(at as u16)
                }
            },
        }
    }

    /// Of which known cluster a server is that clients reach there.
    pub fn of_client(&self, name: &str) -> Option<u16> {
        if self.is_one {
            return Some(0);
        }
        let is_its = |one: &Cluster| one.clients.contains(name.as_bytes());
        self.known.iter().position(is_its).map(|at| at as u16)
    }
}

/// What is told of a cluster. A lone server tells no link.
fn parse(reply: &[u8]) -> Option<Cluster> {
    let mut told = Cluster { name: vec![], links: BTreeSet::new(), clients: BTreeSet::new() };
    if !reply.starts_with(b"CONFIG ") {
        return None;
    }
    for line in reply.split(|byte| *byte == b'\n') {
        let words: Vec<&[u8]> = line.trim_ascii_end().split(|byte| *byte == b' ').collect();
        match words[..] {
            [b"cluster", name] => told.name = name.to_vec(),
            [b"server", number, b"link", link, b"client", client, ..] => {
                told.links.insert([number, link].join(&b' '));
                told.clients.insert(client.to_vec());
            }
            _ => {}
        }
    }
    (!told.links.is_empty()).then_some(told)
}

/// Asks an upstream which cluster it is of, if `conn` is its first one.
pub(crate) fn ask(conn: usize, is_new: bool, upstreams: &mut Upstreams, now: Instant) {
    if upstreams.is_mapped() {
        return;
    }
    let is_first = upstreams.is_first(conn);
    let upstream = upstreams.get_mut(upstreams.conn(conn).upstream);
    upstream.asked_again_at = Instant::MAX;
    let is_known = is_new && upstream.is_told && upstream.cluster.is_none();
    if !is_first || is_known {
        return;
    }
    if HANGS_UP_MAX <= upstream.hung_up {
        upstream.hung_up = 0;
        return;
    }
    let shape = (ReplyKind::Config, Expect::Any);
    upstreams.ask_own(conn, &[b"config get mbal servers\r\n"], shape, Who::Cluster, now);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> Vec<u8> {
        format!("CONFIG mbal 0 {}\r\n{text}\r\nEND\r\n", text.len()).into_bytes()
    }

    #[test]
    fn who_is_of_a_cluster_tells_links() {
        let cluster = "cluster shop\nversion 3\nserver 1 link 10.0.0.1:7 client a:1\n\
                       server 2 link 10.0.0.2:7 client b:1\n";
        let parsed = parse(&told(cluster)).expect("it is one");
        assert_eq!((&parsed.name[..], parsed.links.len()), (&b"shop"[..], 2));
        assert!(parsed.clients.contains(&b"b:1"[..]));
        for other in [&b"ERROR\r\n"[..], b"END\r\n", &told("cluster mbal\nserver 0 client a:1\n")] {
            assert!(parse(other).is_none());
        }
    }

    #[test]
    fn clusters_of_one_name_are_told_apart_by_links() {
        let mut clusters = Clusters::default();
        let mut learn = |servers: &[&str]| {
            let lines = servers.iter().map(|link| format!("server 1 link {link} client c:1\n"));
            let text = "cluster mbal\n".to_owned() + &lines.collect::<String>();
            clusters.add(parse(&told(&text)).expect("it is one"), |_| true)
        };
        assert_eq!(learn(&["a:1", "b:1"]), Some(0));
        assert_eq!(learn(&["c:1"]), Some(1));
        assert_eq!(learn(&["b:1", "d:1"]), Some(0), "one has left, one has come");
        assert_eq!(learn(&["a:1"]), Some(2), "it has left");
        for at in 3..64 {
            assert_eq!(learn(&[&format!("e:{at}")]), Some(at));
        }
        assert_eq!(learn(&["f:1"]), None);
    }
}
