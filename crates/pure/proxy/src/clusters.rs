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

use mbal_model::planted::{Fault, is_planted};
use mbal_routing::ketama::KeyHash;
use mbal_wire::{Admin, Command, Request};

use crate::Nanos;
use crate::expect::Expect;
use crate::passing::End;
use crate::placing::{DOWN, Refusal};
use crate::promises::Fence;
use crate::proxy::Proxy;
use crate::reply::Kind;
use crate::upstream::{Conn, Health, InFlight, State, Who, push_delete};

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
    /// Requests that are to be answered before any client's next one is looked at.
    barrier: Vec<Fence>,
}

impl Clusters {
    pub fn is_any(&self) -> bool {
        !self.known.is_empty()
    }

    pub fn holds_all(&self) -> bool {
        !self.barrier.is_empty()
    }

    /// Its number; none if there are too many.
    fn learn(&mut self, told: Cluster, used: impl Fn(u16) -> bool) -> Option<u16> {
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
            [b"cachelet", ..] => break,
            _ => {}
        }
    }
    (!told.links.is_empty()).then_some(told)
}

impl Proxy {
    /// Asks an upstream which cluster it is of, if `conn` is its first one.
    pub(crate) fn ask_cluster(&mut self, conn: usize, is_new: bool) {
        let upstream = &mut self.upstreams[self.conns[conn].upstream];
        upstream.asked_again_at = Nanos::MAX;
        let is_known = is_new && upstream.is_told && upstream.cluster.is_none();
        if conn != upstream.first_conn || is_known {
            return;
        }
        if HANGS_UP_MAX <= upstream.hung_up {
            upstream.hung_up = 0;
            return;
        }
        let this = &mut self.conns[conn];
        this.out.bytes.extend_from_slice(b"config get mbal\r\n");
        this.ask(InFlight::own(Who::Cluster, Kind::Config, Expect::Any, self.now), None);
        self.tell_conn(conn);
    }

    pub(crate) fn cluster_answered(&mut self, upstream: usize, reply: &[u8]) {
        if reply == b"END\r\n" {
            // One of MBal's that has heard of no map yet.
            self.upstreams[upstream].asked_again_at = self.now + self.settings.retry;
            return;
        }
        let upstreams = &self.upstreams;
        let used = |cluster| upstreams.iter().any(|one| one.cluster == Some(cluster));
        let cluster = parse(reply).and_then(|told| self.clusters.learn(told, used));
        let this = &mut self.upstreams[upstream];
        (this.cluster, this.is_told, this.hung_up) = (cluster, true, 0);
        if cluster.is_none() {
            return;
        }
        this.missed = None;
        self.end_all_copies();
        // Those that cannot be asked are known by what the others tell.
        for number in self.order.clone() {
            let this = &mut self.upstreams[number];
            if !this.is_told && this.cluster.is_none() {
                this.cluster = self.clusters.of_client(&this.name);
                if this.cluster == cluster && this.health == Health::Ejected {
                    self.come_back(number);
                }
            }
        }
    }

    /// The connection for a key whose upstream is of a cluster.
    pub(crate) fn route_in_cluster(
        &mut self,
        home: usize,
        key: &[u8],
        binary: bool,
    ) -> Result<usize, Refusal> {
        let cluster = self.upstreams[home].cluster;
        let skipped = if binary { self.settings.conns_per_server } else { 0 };
        let text = self.conn_of(home, key);
        let among = text - self.upstreams[home].first_conn;
        let is_its = |number: &usize| self.upstreams[*number].cluster == cluster;
        if self.owing {
            // A write of unknown outcome that went another way is to be over first.
            let owes = |number: usize| {
                let conn = self.upstreams[number].first_conn + among;
                conn != text
                    && [conn, conn + self.settings.conns_per_server]
                        .iter()
                        .any(|at| self.conns[*at].owes_key(key))
            };
            let own = [text, text + self.settings.conns_per_server];
            let is_lost = self.conns[text].state != State::Up
                && own.iter().any(|at| self.conns[*at].owes_key(key));
            if is_lost || (0..self.settings.servers.len()).filter(is_its).any(owes) {
                return Err(DOWN);
            }
        }
        let conn = text + skipped;
        if self.conns[text].state == State::Up || !self.conns[conn].asked.is_empty() {
            self.admit(conn)?;
            return Ok(conn);
        }
        let hash = u64::from(KeyHash::OneAtATime.place(key));
        let is_up = |number: &&usize| {
            let there = &self.upstreams[**number];
            is_its(number)
                && there.health == Health::Serves
                && self.conns[there.first_conn + among].state == State::Up
        };
        let others = self.order.iter().filter(is_up);
        let weight = |number: &&usize| mbal_random::mix(hash ^ ((**number as u64) << 32));
        let Some(there) = others.max_by_key(weight).copied() else {
            self.admit(conn)?;
            return Ok(conn);
        };
        let conn = self.upstreams[there].first_conn + among + skipped;
        self.admit(conn)?;
        self.conns[text].is_stood_for = true;
        self.counters.failovers += 1;
        Ok(conn)
    }

    /// True if a client's request waits until what was asked before is answered.
    pub(crate) fn waits_for_clusters(&mut self, client: u32, request: &Request<'_>) -> bool {
        if !self.clusters.is_any() {
            return false;
        }
        let flushes = match request {
            Request::Admin { command: Admin::FlushAll { exptime: Some(_) }, .. } => true,
            Request::Binary(binary) => matches!(binary.command, Command::Flush { .. }),
            _ => false,
        };
        // One server flushes what all have: also what is on its way to another one.
        if flushes && !std::mem::replace(&mut self.clients[client as usize].is_fenced, true) {
            self.raise_barrier();
        }
        self.clusters.holds_all()
    }

    /// Nobody asks for anything before what was asked of clusters is answered.
    pub(crate) fn raise_barrier(&mut self) {
        for conn in 0..self.conns.len() {
            let this = &self.conns[conn];
            let is_its = self.end_of(this.upstream) == End::Server
                && self.upstreams[this.upstream].cluster.is_some();
            // What waits for a connection stays its own.
            if is_its && this.state == State::Up && !this.asked.is_empty() {
                self.clusters.barrier.push((conn, this.asked_in_all()));
            }
        }
    }

    pub(crate) fn settle_barrier(&mut self) {
        let conns = &self.conns;
        self.clusters.barrier.retain(|(conn, number)| conns[*conn].done < *number);
        if self.clusters.barrier.is_empty() {
            self.let_all_go_on();
        }
    }

    /// Where `flush_all` goes in a cluster: one connection of each; an error if one of them has none.
    pub(crate) fn flushes_of_clusters(&mut self, binary: bool) -> Vec<Result<usize, Refusal>> {
        let mut asked: Vec<(u16, Result<usize, Refusal>)> = Vec::new();
        let skipped = if binary { self.settings.conns_per_server } else { 0 };
        for number in self.order.clone() {
            let this = &self.upstreams[number];
            let Some(cluster) = this.cluster else { continue };
            let conn = this.first_conn;
            let found = match self.conns[conn].state {
                State::Up => self.admit(conn + skipped).map(|()| conn + skipped),
                State::Dialing { .. } | State::Closed { .. } => Err(DOWN),
            };
            match asked.iter_mut().find(|(other, _)| *other == cluster) {
                None => asked.push((cluster, found)),
                Some((_, before)) if before.is_err() => *before = found,
                Some(_) if is_planted(Fault::FlushedByEach) => asked.push((cluster, found)),
                Some(_) => {}
            }
        }
        asked.into_iter().map(|(_, found)| found).collect()
    }

    /// A server of a cluster that is gone for longer than a write may take: what it may have executed is deleted by another one.
    pub(crate) fn move_debts(&mut self, conn: usize) {
        let this = &mut self.conns[conn];
        let upstream = this.upstream;
        let is_over = this.lost_at + self.settings.doubt <= self.now;
        if !this.owes() || !is_over || self.upstreams[upstream].cluster.is_none() {
            return;
        }
        let binary = self.is_binary(conn);
        let owed = std::mem::take(&mut self.conns[conn].owed);
        for (key, base64) in owed {
            let home = self.full.place(&key).expect("somebody is in the pool");
            match self.route_in_cluster(home, &key, binary) {
                Ok(there) if there != conn => {
                    let this = &mut self.conns[there];
                    push_delete(&mut this.out.bytes, &key, base64, binary);
                    let kind = if binary { Kind::Binary } else { Kind::Line };
                    this.ask(InFlight::own(Who::Nobody, kind, Expect::Any, self.now), None);
                    self.tell_conn(there);
                }
                _ => drop(self.conns[conn].owed.insert((key, base64))),
            }
        }
        self.owing = self.conns.iter().any(Conn::owes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> Vec<u8> {
        format!("CONFIG mbal 0 {}\r\n{text}\r\nEND\r\n", text.len()).into_bytes()
    }

    #[test]
    fn who_is_of_a_cluster_tells_links() {
        let cluster = "cluster shop\nversion 3.1\nserver 1 link 10.0.0.1:7 client a:1 workers a:2\n\
                       server 2 link 10.0.0.2:7 client b:1\ncachelet 0000/1 1/0\n";
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
            clusters.learn(parse(&told(&text)).expect("it is one"), |_| true)
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
