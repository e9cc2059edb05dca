//! Several proxies: who coordinates a key, and what a coordinator knows of its peers' promises (docs/design/proxy.md).
//!
//! A coordinator copies a key when all its peers have promised to pass on the requests for it, and reads copies while it is sure that
//! they still do.

use std::collections::BTreeMap;
use std::time::Duration;

use mbal_model::planted::{Fault, is_planted};
use mbal_model::{Instant, KEY_BYTES_MAX, Key};
use mbal_random::mix;

/// Within a lease, a coordinator says so often that it is there.
const BEATS_PER_LEASE: u32 = 8;
/// Within a lease, a claim or a `hello` that has to wait is made again so often.
const TRIES_PER_LEASE: u32 = 64;

/// The proxies that serve the same upstreams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peers {
    /// All of them, this one included, in the same order everywhere.
    pub names: Vec<String>,
    pub own: usize,
    /// A peer keeps its promises so long after it has heard from a coordinator.
    pub lease: Duration,
}

impl Peers {
    /// Of at most 64 names in any order; `own` is one of them.
    pub fn new(mut names: Vec<String>, own: &str, lease: Duration) -> Result<Peers, String> {
        names.sort();
        names.dedup();
        if !(2..=64).contains(&names.len()) {
            return Err("from 2 to 64 proxies".into());
        }
        let place = names.iter().position(|name| name == own);
        let own = place.ok_or_else(|| format!("{own} is not among them"))?;
        Ok(Peers { names, own, lease })
    }

    /// How long a coordinator may be sure: clocks differ by 5% in speed.
    fn sure(&self) -> Duration {
        self.lease / 10 * 9
    }
}

/// What a coordinator asks a peer for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    Hello,
    Keep,
    Claim(u64),
    Release,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claim {
    /// There is no answer yet.
    InFlight,
    Waits,
    Promised,
}

/// What a coordinator knows of one peer.
struct Session {
    /// Its place among all proxies.
    member: usize,
    id: Option<u64>,
    /// Its promises hold until then.
    sure_until: Instant,
    claims: BTreeMap<u64, Claim>,
    beats_at: Instant,
    /// It has another list of proxies.
    differs: bool,
}

impl Session {
    fn end(&mut self) {
        (self.id, self.sure_until) = (None, Instant::ZERO);
        self.claims.clear();
    }
}

/// All proxies, as one of them sees them.
pub(crate) struct PeerTable {
    pub peers: Peers,
    /// By proxy: of its name.
    hashes: Vec<u64>,
    /// Of all that has to be the same for all proxies.
    pub list: u64,
    sessions: Vec<Session>,
}

impl PeerTable {
    /// `pool` says which upstreams there are, and how keys are placed.
    pub fn new(peers: Peers, pool: &str) -> PeerTable {
        let hash = |name: &String| Key::new(name.as_bytes()).map_or(0, |name| name.hash());
        let hashes: Vec<u64> = peers.names.iter().map(hash).collect();
        let of_pool = pool.as_bytes().chunks(KEY_BYTES_MAX).filter_map(Key::new);
        let all = hashes.iter().copied().chain(of_pool.map(|part| part.hash()));
        let list = all.fold(peers.lease.as_nanos() as u64, |list, hash| mix(list ^ hash));
        let others = (0..peers.names.len()).filter(|member| *member != peers.own);
        let session = |member| Session {
            member,
            id: None,
            sure_until: Instant::ZERO,
            claims: BTreeMap::new(),
            beats_at: Instant::ZERO,
            differs: false,
        };
        PeerTable { sessions: others.map(session).collect(), hashes, list, peers }
    }

    /// Which proxy coordinates the keys of a hash: it wins the rendezvous.
    pub fn coordinator(&self, hash: u64) -> usize {
        let weight = |at: &usize| mix(hash ^ self.hashes[*at]);
        (0..self.hashes.len()).max_by_key(weight).expect("there are two")
    }

    pub fn is_own(&self, hash: u64) -> bool {
        self.coordinator(hash) == self.peers.own
    }

    /// The others, in their order.
    pub fn others(&self) -> impl Iterator<Item = usize> {
        self.sessions.iter().map(|session| session.member)
    }

    /// Which of the others a proxy is.
    pub fn place_of(&self, member: usize) -> usize {
        member - usize::from(self.peers.own < member)
    }

    /// True if all peers pass on what they have promised to.
    pub fn is_sure(&self, now: Instant) -> bool {
        self.sessions.iter().all(|session| {
            session.id.is_some()
                && (now < session.sure_until || is_planted(Fault::CopiesOutliveLeases))
        })
    }

    /// The first of those that keep the proxy from copying.
    pub fn silent(&self, now: Instant) -> Option<(&str, bool)> {
        let silent = |session: &&Session| session.id.is_none() || session.sure_until <= now;
        let session = self.sessions.iter().find(silent)?;
        Some((&self.peers.names[session.member], session.differs))
    }

    /// True if all peers have promised to pass on a key's requests.
    pub fn all_promised(&self, hash: u64) -> bool {
        let has = |session: &Session| session.claims.get(&hash) == Some(&Claim::Promised);
        self.sessions.iter().all(has)
    }

    pub fn next_beat(&self) -> Instant {
        self.sessions.iter().map(|session| session.beats_at).min().expect("there is one")
    }

    /// All peers hear at once of keys that are hot, or not any more.
    pub fn hurry(&mut self, now: Instant) {
        self.sessions.iter_mut().for_each(|session| session.beats_at = session.beats_at.min(now));
    }

    /// Appends what peer `place` is asked for: lines, and what each is. `hot` are this coordinator's hot keys, by hash.
    pub fn beat(
        &mut self,
        place: usize,
        now: Instant,
        hot: &BTreeMap<u64, &[u8]>,
        out: &mut Vec<u8>,
        asked: &mut Vec<Ask>,
    ) {
        let (own, list, lease) = (self.peers.own, self.list, self.peers.lease);
        let session = &mut self.sessions[place];
        if now < session.beats_at {
            return;
        }
        session.beats_at = now + lease / BEATS_PER_LEASE;
        let Some(id) = session.id else {
            out.extend_from_slice(format!("peer hello {own} {list:x}\r\n").as_bytes());
            return asked.push(Ask::Hello);
        };
        out.extend_from_slice(format!("peer keep {id:x}\r\n").as_bytes());
        asked.push(Ask::Keep);
        session.claims.retain(|hash, claim| {
            let stays = hot.contains_key(hash) || *claim == Claim::InFlight;
            if !stays {
                // By its hash: the name of a key that has cooled is forgotten.
                out.extend_from_slice(format!("peer release {id:x} {hash:x}\r\n").as_bytes());
                asked.push(Ask::Release);
            }
            stays
        });
        for (hash, key) in hot {
            if matches!(session.claims.get(hash), None | Some(Claim::Waits)) {
                session.claims.insert(*hash, Claim::InFlight);
                out.extend_from_slice(format!("peer claim {id:x} ").as_bytes());
                out.extend_from_slice(key);
                out.extend_from_slice(b"\r\n");
                asked.push(Ask::Claim(*hash));
            }
        }
    }

    /// Peer `place` cannot be asked.
    pub fn passed_over(&mut self, place: usize, now: Instant) {
        self.sessions[place].beats_at = now + self.peers.lease / BEATS_PER_LEASE;
    }

    /// Peer `place` is there: it is asked for a session.
    pub fn connected(&mut self, place: usize, now: Instant) {
        self.sessions[place].beats_at = now;
    }

    /// What peer `place` has answered to what it was asked for at `at`. True if its promises have ended.
    pub fn answered(
        &mut self,
        place: usize,
        ask: Ask,
        at: Instant,
        now: Instant,
        reply: &[u8],
    ) -> bool {
        let (sure, lease) = (self.peers.sure(), self.peers.lease);
        let session = &mut self.sessions[place];
        let again_at = (now + lease / TRIES_PER_LEASE).min(session.beats_at);
        let words = reply.strip_suffix(b"\r\n").unwrap_or(reply);
        match (ask, words) {
            (Ask::Hello, _) => {
                session.differs = words == b"DIFFERS";
                match words.strip_prefix(b"OK ").and_then(parse_hex) {
                    Some(id) => {
                        (session.id, session.sure_until) = (Some(id), at + sure);
                        session.beats_at = now;
                    }
                    None if !session.differs => session.beats_at = again_at,
                    None => {}
                }
            }
            (_, b"GONE") => {
                let had_one = session.id.is_some();
                session.end();
                session.beats_at = again_at;
                return had_one;
            }
            (Ask::Keep, b"OK") => session.sure_until = session.sure_until.max(at + sure),
            (Ask::Claim(hash), _) => {
                if let Some(claim) = session.claims.get_mut(&hash) {
                    *claim = if words == b"OK" { Claim::Promised } else { Claim::Waits };
                    if *claim == Claim::Waits {
                        session.beats_at = again_at;
                    }
                }
            }
            (Ask::Keep | Ask::Release, _) => {}
        }
        false
    }

    /// The connection to peer `place` is gone: its promises are not counted on any more. True if there were any.
    pub fn lost(&mut self, place: usize) -> bool {
        let session = &mut self.sessions[place];
        let had_one = session.id.is_some();
        session.end();
        had_one
    }
}

pub(crate) fn parse_hex(digits: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}
