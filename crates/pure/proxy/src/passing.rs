//! Requests for promised keys on their way to the keys' coordinators, and the proxies' own talk (docs/design/proxy.md).

use std::collections::BTreeMap;

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{KEY_BYTES_MAX, Key};
use mbal_wire::{Request, base64_decode, base64_encode, next_word};

use crate::Nanos;
use crate::expect::{Echo, Expect};
use crate::naming::SUFFIX_BYTES;
use crate::peers::{Ask, PeerTable, parse_hex};
use crate::placing::Refusal;
use crate::promises::{Course, Fence};
use crate::proxy::{Action, ClientId, ConnId, Proxy};
use crate::reply::Kind;
use crate::steering::Steered;
use crate::upstream::{Hide, InFlight, State, Who};

const PEER_DOWN: Refusal = b"SERVER_ERROR peer is down\r\n";
const NOT_ITS_COORDINATOR: Refusal = b"SERVER_ERROR not the key's coordinator\r\n";
/// What the proxies' own talk begins with.
const TALK: &[u8] = b"peer ";
/// No line of it is longer.
const LINE_BYTES_MAX: usize = 512;

/// Whom a connection leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Server,
    /// Peer number so much of the others: its answers to requests that are passed on.
    Passed(usize),
    /// Its promises.
    Promises(usize),
}

/// What a peer has sent begins with.
pub(crate) enum Line {
    /// A line of its own talk, so long.
    Whole(usize),
    NeedMore,
    Broken,
    /// A request that is passed on.
    Request,
}

impl Proxy {
    pub(crate) fn end_of(&self, upstream: usize) -> End {
        let servers = self.settings.servers.len();
        let peers = (self.upstreams.len() - servers) / 2;
        match upstream.checked_sub(servers) {
            None => End::Server,
            Some(place) if place < peers => End::Passed(place),
            Some(place) => End::Promises(place - peers),
        }
    }

    /// Upstream number so much is a proxy that gets what is passed on to it.
    fn passed_to(&self, place: usize) -> usize {
        self.settings.servers.len() + place
    }

    /// The connection for the promises of one of the others.
    fn promises_of(&self, place: usize, peers: usize) -> usize {
        self.upstreams[self.settings.servers.len() + peers + place].first_conn
    }

    /// What becomes of a client's request for a key.
    pub(crate) fn course_of(&self, client: u32, hash: u64) -> Result<Course, Refusal> {
        match &self.peers {
            None => Ok(Course::Own),
            Some(peers) if self.clients[client as usize].is_peer => match peers.is_own(hash) {
                true => Ok(Course::Own),
                false => Err(NOT_ITS_COORDINATOR),
            },
            Some(_) => Ok(self.promises.course(hash)),
        }
    }

    /// A request in text for a promised key.
    pub(crate) fn pass(&mut self, member: usize, key: &[u8], writes: bool) -> Steered {
        let conn = self.conn_of(self.passed_to(self.place_of(member)), key);
        // A home's answer is never older than that of the coordinator.
        match self.conns[conn].state {
            State::Up => match self.admit(conn) {
                Ok(()) => {
                    self.counters.passed += 1;
                    Steered::Pass { conn }
                }
                Err(why) => Steered::Refused(why),
            },
            _ if writes => Steered::Refused(PEER_DOWN),
            _ => Steered::Home,
        }
    }

    /// The connection for a request in binary for a promised key.
    pub(crate) fn pass_binary(&mut self, member: usize, key: &[u8]) -> Result<usize, Refusal> {
        let upstream = self.passed_to(self.place_of(member));
        let conn = self.conn_of(upstream, key) + self.settings.conns_per_server;
        self.admit(conn)?;
        self.counters.passed += 1;
        Ok(conn)
    }

    fn place_of(&self, member: usize) -> usize {
        self.peers.as_ref().expect("it has peers").place_of(member)
    }

    /// True if a request waits until the promise of one of its keys is given or has ended.
    pub(crate) fn must_hold(&self, client: u32, request: &Request<'_>) -> bool {
        if !self.promises.is_changing() || self.clients[client as usize].is_peer {
            return false;
        }
        let holds = |key: &[u8]| {
            Key::new(key).is_some_and(|key| self.promises.course(key.hash()) == Course::Hold)
        };
        if let Request::Get(get) = request {
            let mut rest = get.keys;
            return std::iter::from_fn(|| {
                let (key, tail) = next_word(rest)?;
                rest = tail;
                Some(key)
            })
            .any(holds);
        }
        let mut decoded = [0; KEY_BYTES_MAX];
        match request.key() {
            Some((key, false)) => holds(key),
            Some((key, true)) => {
                base64_decode(key, &mut decoded).is_some_and(|length| holds(&decoded[..length]))
            }
            None => false,
        }
    }

    /// A client is not read until promises have changed, or the kernel has forgotten a key.
    pub(crate) fn hold(&mut self, client: u32) {
        let this = &mut self.clients[client as usize];
        (this.paused, this.need) = (true, 0);
        self.actions.push(Action::Pause(ClientId(client)));
        self.on_hold.insert(client);
    }

    pub(crate) fn let_all_go_on(&mut self) {
        for client in std::mem::take(&mut self.on_hold) {
            self.let_go_on(client);
        }
    }

    /// Answers what `input` begins with, if that is of the proxies' own talk.
    pub(crate) fn run_peer(&mut self, client: u32, input: &[u8]) -> Line {
        let begin = &input[..input.len().min(TALK.len())];
        if !TALK.starts_with(begin) {
            return Line::Request;
        }
        match memchr::memchr(b'\n', &input[..input.len().min(LINE_BYTES_MAX)]) {
            Some(end) => match input[..end].strip_suffix(b"\r") {
                Some(line) if begin == TALK && self.hear_peer(client, line) => Line::Whole(end + 1),
                _ => Line::Broken,
            },
            None if input.len() < LINE_BYTES_MAX => Line::NeedMore,
            None => Line::Broken,
        }
    }

    /// True if a peer's connection is to end: it asks before this proxy serves, or for what no proxy passes on.
    pub(crate) fn refuses_peer(&self, request: &Request<'_>) -> bool {
        let is_talk = matches!(request, Request::Answer(_) | Request::Quit | Request::Login { .. });
        self.now < self.promises.serves_from || is_talk
    }

    /// A line of a peer. False: it is none.
    pub(crate) fn hear_peer(&mut self, client: u32, line: &[u8]) -> bool {
        let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let reply: &[u8] = match (&self.peers, &words[1..]) {
            (Some(peers), [b"hello", member, list]) => {
                let (members, own) = (peers.peers.names.len(), peers.peers.own);
                let number = std::str::from_utf8(member).ok().and_then(|text| text.parse().ok());
                match number.filter(|number| *number < members && *number != own) {
                    _ if parse_hex(list) != Some(peers.list) => b"DIFFERS\r\n",
                    None => return false,
                    Some(member) => match self.greet(member) {
                        None => b"WAIT\r\n",
                        Some(id) => {
                            self.say(client, format!("OK {id:x}\r\n").as_bytes());
                            return true;
                        }
                    },
                }
            }
            (Some(_), [verb, id, rest @ ..]) => {
                let Some(id) = parse_hex(id) else { return false };
                match (*verb, rest, self.promises.member_of(id)) {
                    (b"keep" | b"claim" | b"release", _, None) => b"GONE\r\n",
                    (b"keep", [], Some(member)) => self.keep(member),
                    (b"claim", [key], Some(member)) => match self.claim(member, key) {
                        Some(reply) => reply,
                        None => return false,
                    },
                    (b"release", [hash], Some(member)) => {
                        let Some(hash) = parse_hex(hash) else { return false };
                        self.release(member, hash);
                        b"OK\r\n"
                    }
                    _ => return false,
                }
            }
            _ => return false,
        };
        self.say(client, reply);
        true
    }

    /// True if what is passed on reaches a coordinator.
    fn reaches(&self, member: usize) -> bool {
        let upstream = self.passed_to(self.place_of(member));
        let first = self.upstreams[upstream].first_conn;
        let conns = &self.conns[first..][..self.settings.conns_per_server];
        conns.iter().all(|conn| conn.state == State::Up)
    }

    /// True if a client's `flush_all` goes to a peer, too.
    pub(crate) fn is_told_of_flushes(&self, client: u32, place: usize) -> bool {
        let member = self.peers.as_ref().and_then(|peers| peers.others().nth(place));
        !self.clients[client as usize].is_peer
            && member.is_some_and(|member| self.promises.has_session(member))
            && !is_planted(Fault::FlushNotPassed)
    }

    fn greet(&mut self, member: usize) -> Option<u64> {
        let may = self.promises.serves_from <= self.now && self.reaches(member);
        may.then(|| self.promises.hello(member, self.now)).flatten()
    }

    fn keep(&mut self, member: usize) -> &'static [u8] {
        if !self.reaches(member) {
            return b"WAIT\r\n";
        }
        self.promises.keep(member, self.now);
        b"OK\r\n"
    }

    /// `None`: it is no key that this coordinator may copy.
    fn claim(&mut self, member: usize, key: &[u8]) -> Option<&'static [u8]> {
        let hash = Key::new(key)?.hash();
        if self.peers.as_ref()?.coordinator(hash) != member {
            return None;
        }
        let home = self.full.place(key)?;
        let text = self.conn_of(home, key);
        let both = [text, text + self.settings.conns_per_server];
        let is_sure =
            !both.iter().any(|conn| self.in_doubt(*conn)) || is_planted(Fault::PromisedInDoubt);
        let may_promise = is_sure && self.hot.suspended_until <= self.now;
        if !may_promise && !self.promises.knows(hash) {
            self.ask_if_alive(text);
            return Some(b"WAIT\r\n");
        }
        let fences = both.iter().map(|conn| self.fence(*conn)).collect();
        let given = self.promises.claim(member, hash, fences);
        self.settle_promises();
        let given = given || self.promises.course(hash) == Course::Pass(member);
        Some(if given { b"OK\r\n" } else { b"WAIT\r\n" })
    }

    /// An upstream that nobody asks for anything would stay in doubt.
    fn ask_if_alive(&mut self, conn: usize) {
        let this = &mut self.conns[conn];
        if this.doubt == Some(Nanos::MAX) && this.asked.is_empty() && this.state == State::Up {
            this.out.bytes.extend_from_slice(b"version\r\n");
            self.ask_own(conn, Kind::Line, Expect::Version, Who::Nobody);
        }
    }

    fn release(&mut self, member: usize, hash: u64) {
        let upstream = self.passed_to(self.place_of(member));
        let conns = self.settings.conns_per_server;
        // Of several, the key alone would say which.
        let first = self.upstreams[upstream].first_conn;
        let fences = (first..first + 2 * conns).map(|conn| self.fence(conn)).collect();
        self.promises.release(member, hash, fences);
        self.settle_promises();
    }

    fn fence(&self, conn: usize) -> Fence {
        (conn, self.conns[conn].asked_in_all())
    }

    /// True if a write over an earlier life of a connection may still be executed.
    pub(crate) fn in_doubt(&self, conn: usize) -> bool {
        self.conns[conn].is_in_doubt(self.now)
    }

    /// Gives and ends promises that have waited for replies.
    pub(crate) fn settle_promises(&mut self) {
        let (conns, now) = (&self.conns, self.now);
        let in_doubt =
            |conn: usize| conns[conn].is_in_doubt(now) && !is_planted(Fault::PromisedInDoubt);
        if self.promises.is_changing() && self.promises.settle(|conn| conns[conn].done, in_doubt) {
            self.let_all_go_on();
        }
    }

    /// When [`Proxy::tell_peers`] is due.
    pub(crate) fn next_of_peers(&self) -> Option<Nanos> {
        let peers = self.peers.as_ref()?;
        let starts = Some(self.promises.serves_from).filter(|_| !self.on_hold.is_empty());
        let starts = starts.filter(|from| self.now < *from);
        starts.into_iter().chain(self.promises.next_end()).chain([peers.next_beat()]).min()
    }

    /// Leases that are over, and what peers are asked for in turn.
    pub(crate) fn tell_peers(&mut self) {
        if self.peers.is_none() {
            return;
        }
        while let Some(member) = self.promises.expired(self.now) {
            self.take_back(member);
        }
        if self.promises.serves_from <= self.now {
            self.let_all_go_on();
        }
        let Some(mut peers) = self.peers.take() else { return };
        if peers.next_beat() <= self.now {
            self.beat(&mut peers);
        }
        self.peers = Some(peers);
    }

    fn beat(&mut self, peers: &mut PeerTable) {
        let is_fit = |key: &[u8]| {
            key.len() + SUFFIX_BYTES <= KEY_BYTES_MAX && key.iter().all(u8::is_ascii_graphic)
        };
        let hot = self.hot.keys().filter(|(_, key)| is_fit(key));
        let hot: BTreeMap<u64, &[u8]> = hot.collect();
        let others = peers.others().count();
        let mut asked = Vec::new();
        let mut told = Vec::new();
        for place in 0..others {
            let conn = self.promises_of(place, others);
            let this = &mut self.conns[conn];
            if this.state != State::Up {
                peers.passed_over(place, self.now);
                continue;
            }
            peers.beat(place, self.now, &hot, &mut this.out.bytes, &mut asked);
            for ask in asked.drain(..) {
                told.push((conn, Who::Peer { place: place as u8, ask }));
            }
        }
        for (conn, who) in told {
            self.ask_own(conn, Kind::Line, Expect::Any, who);
        }
    }

    /// A peer has answered.
    pub(crate) fn peer_answered(&mut self, place: usize, ask: Ask, at: Nanos, reply: &[u8]) {
        let now = self.now;
        let Some(peers) = &mut self.peers else { return };
        if peers.answered(place, ask, at, now, reply) {
            self.end_all_copies();
        }
    }

    /// A connection to a peer is gone.
    pub(crate) fn lost_peer(&mut self, place: usize) {
        if self.peers.as_mut().is_some_and(|peers| peers.lost(place)) {
            self.end_all_copies();
        }
    }

    /// A coordinator was silent for a lease: its keys are asked for at their homes from now on.
    fn take_back(&mut self, member: usize) {
        self.counters.leases_ended += 1;
        self.promises.end(member);
        let upstream = self.passed_to(self.place_of(member));
        let first = self.upstreams[upstream].first_conn;
        for conn in first..first + 2 * self.settings.conns_per_server {
            if !self.conns[conn].asked.is_empty() {
                self.actions.push(Action::HangUp(ConnId(conn as u32)));
                self.fail(conn, b"SERVER_ERROR upstream timed out\r\n");
            }
            // What was passed on without a known outcome is deleted where the key is asked for.
            for (key, base64) in std::mem::take(&mut self.conns[conn].owed) {
                let mut spelled = Vec::new();
                match base64 {
                    true => base64_encode(&key, &mut spelled),
                    false => spelled.extend_from_slice(&key),
                }
                self.delete_at_home(&spelled, base64);
            }
        }
        self.let_all_go_on();
    }

    fn delete_at_home(&mut self, key: &[u8], base64: bool) {
        let Ok((conn, None)) = self.route(key, base64) else { return };
        let end: &[u8] = if base64 { b" b\r\n" } else { b"\r\n" };
        for part in [b"md ", key, end] {
            self.conns[conn].out.bytes.extend_from_slice(part);
        }
        let (hide, at) = (Hide::Nothing, self.now);
        let (who, kind) = (Who::Nobody, Kind::Meta);
        let expect = Expect::MetaDeleted(Echo::default());
        let asked = InFlight { who, kind, expect, hide, writes: true, renamed: false, at };
        self.conns[conn].ask(asked, Some((key, base64)));
        self.tell_conn(conn);
    }
}
