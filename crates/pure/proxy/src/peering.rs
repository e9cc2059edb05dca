//! Requests for promised keys on their way to the keys' coordinators, and the proxies' own talk (docs/design/proxy.md).

use std::collections::BTreeMap;
use std::time::Duration;

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Instant, KEY_BYTES_MAX, Key};
use mbal_wire::{ReplyKind, Request, base64_decode, next_word};

use crate::expect::Expect;
use crate::hot::HotTable;
use crate::inflight::Who;
use crate::ledger::Ledger;
use crate::naming::SUFFIX_BYTES;
use crate::peers::{Ask, PeerTable, parse_hex};
use crate::placing::Placing;
use crate::promises::{Course, Fence, Promises};
use crate::refusal::Refusal;
use crate::settings::Settings;
use crate::upstreams::Upstreams;

const PEER_DOWN: Refusal = b"SERVER_ERROR peer is down\r\n";
const NOT_ITS_COORDINATOR: Refusal = b"SERVER_ERROR not the key's coordinator\r\n";
/// What the proxies' own talk begins with.
const TALK: &[u8] = b"peer ";
/// No line of it is longer.
const LINE_BYTES_MAX: usize = 512;

/// What a peer has sent begins with.
pub(crate) enum Talk<'a> {
    /// A line of the proxies' own talk, without its end.
    Line(&'a [u8]),
    NeedMore,
    Broken,
    /// A request that is passed on.
    Request,
}

impl Talk<'_> {
    pub fn of(input: &[u8]) -> Talk<'_> {
        let begin = &input[..input.len().min(TALK.len())];
        if !TALK.starts_with(begin) {
            return Talk::Request;
        }
        match memchr::memchr(b'\n', &input[..input.len().min(LINE_BYTES_MAX)]) {
            Some(end) => match input[..end].strip_suffix(b"\r") {
                Some(line) if begin == TALK => Talk::Line(line),
                _ => Talk::Broken,
            },
            None if input.len() < LINE_BYTES_MAX => Talk::NeedMore,
            None => Talk::Broken,
        }
    }
}

/// What this proxy has been promised by others, and has promised to them.
pub(crate) struct Peering {
    peers: Option<PeerTable>,
    promises: Promises,
}

impl Peering {
    pub fn new(settings: &Settings) -> Peering {
        let peers = settings.peers.clone().map(|peers| {
            let pool = format!("{:?} {:?}", settings.distribution, settings.servers);
            PeerTable::new(peers, &pool)
        });
        let lease = settings.peers.as_ref().map_or(Duration::ZERO, |peers| peers.lease);
        let members = settings.peers.as_ref().map_or(0, |peers| peers.names.len());
        Peering { peers, promises: Promises::new(members, lease, settings.seed) }
    }

    pub fn start(&mut self, now: Instant) {
        self.promises.start(now);
    }

    /// Of the others.
    pub fn names(&self) -> Vec<String> {
        let others = self
            .peers
            .iter()
            .flat_map(|all| all.others().map(|member| format!("peer {}", all.peers.names[member])));
        others.collect()
    }

    pub fn peers(&self) -> Option<&PeerTable> {
        self.peers.as_ref()
    }

    /// Of so many keys.
    pub fn promised(&self) -> usize {
        self.promises.len()
    }

    #[inline]
    pub fn is_changing(&self) -> bool {
        self.promises.is_changing()
    }

    /// An earlier life of this proxy may have promised anything, until then.
    #[inline]
    pub fn serves(&self, now: Instant) -> bool {
        self.promises.serves_from <= now
    }

    /// What becomes of a request for a key.
    pub fn course_of(&self, is_peer: bool, hash: u64) -> Result<Course, Refusal> {
        match &self.peers {
            None => Ok(Course::Own),
            Some(peers) if is_peer => match peers.is_own(hash) {
                true => Ok(Course::Own),
                false => Err(NOT_ITS_COORDINATOR),
            },
            Some(_) => Ok(self.promises.course(hash)),
        }
    }

    /// True if the others pass on what they have promised to.
    pub fn is_sure(&self, now: Instant) -> bool {
        self.peers.as_ref().is_none_or(|peers| peers.is_sure(now))
    }

    pub fn all_promised(&self, hash: u64) -> bool {
        self.peers.as_ref().is_none_or(|peers| peers.all_promised(hash))
    }

    pub fn is_own(&self, hash: u64) -> bool {
        self.peers.as_ref().is_none_or(|peers| peers.is_own(hash))
    }

    /// The others hear at once of keys that are hot, or not any more.
    pub fn hurry(&mut self, now: Instant) {
        if let Some(peers) = &mut self.peers {
            peers.hurry(now);
        }
    }

    /// The upstream that a member is, for what is passed on to it.
    pub fn passed_to(&self, member: usize, upstreams: &Upstreams) -> usize {
        upstreams.passed_to(self.peers.as_ref().expect("it has peers").place_of(member))
    }

    /// The connection for a request in text for a promised key. `None`: it goes home, whose answer is never older than that of the
    /// coordinator.
    pub fn pass(
        &self,
        member: usize,
        key: &[u8],
        writes: bool,
        upstreams: &mut Upstreams,
        ledger: &mut Ledger,
    ) -> Result<Option<usize>, Refusal> {
        let conn = upstreams.conn_of(self.passed_to(member, upstreams), key);
        if !upstreams.conn(conn).is_up() {
            return if writes { Err(PEER_DOWN) } else { Ok(None) };
        }
        upstreams.admit(conn, ledger)?;
        ledger.counters.passed += 1;
        Ok(Some(conn))
    }

    /// The connection for a request in binary for a promised key.
    pub fn pass_binary(
        &self,
        member: usize,
        key: &[u8],
        upstreams: &mut Upstreams,
        ledger: &mut Ledger,
    ) -> Result<usize, Refusal> {
        let [_, conn] = upstreams.both_of(self.passed_to(member, upstreams), key);
        upstreams.admit(conn, ledger)?;
        ledger.counters.passed += 1;
        Ok(conn)
    }

    /// True if a client's request waits until the promise of one of its keys is given or has ended.
    pub fn must_hold(&self, is_peer: bool, request: &Request<'_>) -> bool {
        if !self.promises.is_changing() || is_peer {
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

    /// True if a peer's connection is to end: it asks before this proxy serves, or for what no proxy passes on.
    pub fn refuses(&self, request: &Request<'_>, now: Instant) -> bool {
        let is_talk = matches!(request, Request::Answer(_) | Request::Quit | Request::Login { .. });
        !self.serves(now) || is_talk
    }

    /// True if a client's `flush_all` goes to one of the others, too.
    pub fn takes_flushes(&self, place: usize) -> bool {
        let member = self.peers.as_ref().and_then(|peers| peers.others().nth(place));
        member.is_some_and(|member| self.promises.has_session(member))
            && !is_planted(Fault::FlushNotPassed)
    }

    /// What a line of a peer is answered with, and whether promises have changed. `None`: it is none. `may_promise`: keys may be
    /// copied.
    pub fn hear(
        &mut self,
        line: &[u8],
        may_promise: bool,
        placing: &Placing,
        upstreams: &mut Upstreams,
        now: Instant,
    ) -> Option<(String, bool)> {
        let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let peers = self.peers.as_ref()?;
        let (reply, changed) = match words[1..] {
            [b"hello", member, list] => {
                let (members, own) = (peers.peers.names.len(), peers.peers.own);
                let number = std::str::from_utf8(member).ok().and_then(|text| text.parse().ok());
                let member = number.filter(|number| *number < members && *number != own);
                if parse_hex(list) != Some(peers.list) {
                    return Some(("DIFFERS\r\n".into(), false));
                }
                match self.greet(member?, upstreams, now) {
                    None => ("WAIT\r\n", false),
                    Some(id) => return Some((format!("OK {id:x}\r\n"), false)),
                }
            }
            [verb, id, ref rest @ ..] => {
                match (verb, rest, self.promises.member_of(parse_hex(id)?)) {
                    (b"keep" | b"claim" | b"release", _, None) => ("GONE\r\n", false),
                    (b"keep", [], Some(member)) => (self.keep(member, upstreams, now), false),
                    (b"claim", [key], Some(member)) => {
                        self.claim(member, key, may_promise, placing, upstreams, now)?
                    }
                    (b"release", [hash], Some(member)) => {
                        let changed = self.release(member, parse_hex(hash)?, upstreams, now);
                        ("OK\r\n", changed)
                    }
                    _ => return None,
                }
            }
            _ => return None,
        };
        Some((reply.into(), changed))
    }

    fn greet(&mut self, member: usize, upstreams: &Upstreams, now: Instant) -> Option<u64> {
        let may = self.serves(now) && upstreams.reaches(self.passed_to(member, upstreams));
        may.then(|| self.promises.hello(member, now)).flatten()
    }

    fn keep(&mut self, member: usize, upstreams: &Upstreams, now: Instant) -> &'static str {
        if !upstreams.reaches(self.passed_to(member, upstreams)) {
            return "WAIT\r\n";
        }
        self.promises.keep(member, now);
        "OK\r\n"
    }

    /// `None`: it is no key that this coordinator may copy.
    fn claim(
        &mut self,
        member: usize,
        key: &[u8],
        may_promise: bool,
        placing: &Placing,
        upstreams: &mut Upstreams,
        now: Instant,
    ) -> Option<(&'static str, bool)> {
        let hash = Key::new(key)?.hash();
        if self.peers.as_ref()?.coordinator(hash) != member {
            return None;
        }
        let both = upstreams.both_of(placing.home(key)?, key);
        let is_sure = !upstreams.are_in_doubt(both, now) || is_planted(Fault::PromisedInDoubt);
        let may_begin = is_sure && may_promise;
        if !may_begin && !self.promises.knows(hash) {
            ask_if_alive(both[0], upstreams, now);
            return Some(("WAIT\r\n", false));
        }
        let fences = fences(both, upstreams);
        let given = self.promises.claim(member, hash, fences);
        let changed = self.settle(upstreams, now);
        let given = given || self.promises.course(hash) == Course::Pass(member);
        Some((if given { "OK\r\n" } else { "WAIT\r\n" }, changed))
    }

    fn release(&mut self, member: usize, hash: u64, upstreams: &Upstreams, now: Instant) -> bool {
        // Of several, the key alone would say which.
        let conns = upstreams.conns_of(self.passed_to(member, upstreams));
        self.promises.release(member, hash, fences(conns, upstreams));
        self.settle(upstreams, now)
    }

    /// Gives and ends promises that have waited for replies. True if clients that wait may go on.
    pub fn settle(&mut self, upstreams: &Upstreams, now: Instant) -> bool {
        let in_doubt = |conn: usize| {
            upstreams.conn(conn).doubts.is_any(now) && !is_planted(Fault::PromisedInDoubt)
        };
        self.promises.is_changing()
            && self.promises.settle(|conn| upstreams.conn(conn).done(), in_doubt)
    }

    /// When leases are over, or the others are to be told something. Clients may wait until this proxy serves.
    #[inline]
    pub fn next_wake(&self, holds_any: bool, now: Instant) -> Option<Instant> {
        self.next_beat_or_end(self.peers.as_ref()?, holds_any, now)
    }

    fn next_beat_or_end(
        &self,
        peers: &PeerTable,
        holds_any: bool,
        now: Instant,
    ) -> Option<Instant> {
        let starts = Some(self.promises.serves_from).filter(|from| holds_any && now < *from);
        starts.into_iter().chain(self.promises.next_end()).chain([peers.next_beat()]).min()
    }

    /// A coordinator that was silent for a lease: what it was promised has ended.
    pub fn expired(&mut self, now: Instant) -> Option<usize> {
        let member = self.promises.expired(now)?;
        self.promises.end(member);
        Some(member)
    }

    /// What the others are asked for in turn.
    pub fn beat(&mut self, hot: &HotTable, upstreams: &mut Upstreams, now: Instant) {
        let Some(peers) = self.peers.as_mut().filter(|peers| peers.next_beat() <= now) else {
            return;
        };
        let is_fit = |key: &[u8]| {
            key.len() + SUFFIX_BYTES <= KEY_BYTES_MAX && key.iter().all(u8::is_ascii_graphic)
        };
        let hot: BTreeMap<u64, &[u8]> = hot.keys().filter(|(_, key)| is_fit(key)).collect();
        let mut asked = Vec::new();
        for place in 0..peers.others().count() {
            let conn = upstreams.promises_of(place);
            if !upstreams.conn(conn).is_up() {
                peers.passed_over(place, now);
                continue;
            }
            peers.beat(place, now, &hot, upstreams.out(conn), &mut asked);
            for ask in asked.drain(..) {
                let (shape, who) =
                    ((ReplyKind::Line, Expect::Any), Who::Peer { place: place as u8, ask });
                upstreams.ask_own(conn, &[], shape, who, now);
            }
        }
    }

    /// The connection for the promises of one of the others is there.
    pub fn connected(&mut self, place: usize, now: Instant) {
        if let Some(peers) = &mut self.peers {
            peers.connected(place, now);
        }
    }

    /// One of the others has answered. True if its promises have ended.
    pub fn answered(
        &mut self,
        place: usize,
        ask: Ask,
        at: Instant,
        now: Instant,
        reply: &[u8],
    ) -> bool {
        self.peers.as_mut().is_some_and(|peers| peers.answered(place, ask, at, now, reply))
    }

    /// The connection to one of the others is gone. True if there were promises of it.
    pub fn lost(&mut self, place: usize) -> bool {
        self.peers.as_mut().is_some_and(|peers| peers.lost(place))
    }
}

fn fences(conns: impl IntoIterator<Item = usize>, upstreams: &Upstreams) -> Vec<Fence> {
    conns.into_iter().map(|conn| (conn, upstreams.conn(conn).asked_in_all())).collect()
}

/// An upstream that nobody asks for anything would stay in doubt.
fn ask_if_alive(conn: usize, upstreams: &mut Upstreams, now: Instant) {
    let this = upstreams.conn(conn);
    if this.doubts.awaits_reply() && this.is_idle() && this.is_up() {
        let shape = (ReplyKind::Line, Expect::Version);
        upstreams.ask_own(conn, &[b"version\r\n"], shape, Who::Nobody, now);
    }
}
