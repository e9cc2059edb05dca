//! What a server's ordinary clients may read elsewhere: leases that it holds for them, as a smart client holds its own.

use mbal_model::{Instant, Key, ReplicaVersion, ServerId};
use mbal_replica::{Announcement, Choice, Leases, MARK};
use mbal_routing::place;

use crate::batch::{Batch, Job};
use crate::copies::{HotMode, Read};
use crate::links::Credit;
use crate::ownership::push_hint;
use crate::session::Session;
use crate::slots::Sent;
use crate::turn::Then;
use crate::unreachable::Lost;
use crate::worker::Worker;

/// Hot keys that a connection remembers, and marks of answers without copies.
const OF_A_CONNECTION: (usize, usize) = (16, 16);
/// The same of a worker, for all its connections.
const OF_A_WORKER: (usize, usize) = (512, 16);

/// What a home, or a shadow, says in front of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReplyPrefix {
    /// Nothing: the home has answered, and tells of no copies.
    Without,
    /// The home tells of copies.
    Announcement(Announcement),
    /// It comes from a copy; of which version, if that is of use.
    FromCopy(Option<ReplicaVersion>),
}

impl ReplyPrefix {
    /// Puts it in front of what stands from `before` on.
    pub fn put(&self, before: usize, out: &mut Vec<u8>) {
        let text = match self {
            ReplyPrefix::Without => return,
            ReplyPrefix::Announcement(told) => told.to_string(),
            ReplyPrefix::FromCopy(replica_version) => {
                replica_version.map(token).unwrap_or_default()
            }
        };
        let Ok(length) = u8::try_from(text.len()) else { return };
        let reply = out.split_off(before);
        out.extend_from_slice(&[MARK, length]);
        out.extend_from_slice(text.as_bytes());
        out.extend_from_slice(&reply);
    }

    /// Takes it from a reply. A home that holds a copy itself says what it has in another way, and is not asked by clients.
    pub fn from(reply: &[u8]) -> (ReplyPrefix, &[u8]) {
        let Some((&[MARK, length], rest)) = reply.split_first_chunk::<2>() else {
            return (ReplyPrefix::Without, reply);
        };
        let Some((text, rest)) = rest.split_at_checked(length.into()) else {
            return (ReplyPrefix::Without, reply);
        };
        if length == 0 {
            return (ReplyPrefix::FromCopy(None), rest);
        }
        let replica_version = text.strip_prefix(b"@").and_then(ReplicaVersion::parse);
        let told = || Announcement::parse(text).map(ReplyPrefix::Announcement);
        let from_copy =
            replica_version.map(|replica_version| ReplyPrefix::FromCopy(Some(replica_version)));
        (from_copy.or_else(told).unwrap_or(ReplyPrefix::Without), rest)
    }
}

/// What a copy's reply says of it.
fn token(replica_version: ReplicaVersion) -> String {
    format!("@{replica_version}")
}

impl Batch<'_> {
    /// A read of another server's key that a copy can answer: here, or at a server that the client has a lease for. `None`: it goes home.
    pub fn read_elsewhere(
        &mut self,
        session: &mut Session,
        job: &Job<'_>,
        key: &Key<'_>,
    ) -> Option<Then> {
        let mode = self.turn.shared.copies.mode();
        if mode == HotMode::Off {
            return None;
        }
        let read = Read::of(&job.request)?;
        if let Read::Get(get) = &read {
            if !get.further.is_empty() || session.get_continues {
                return None;
            }
        }
        // What is under way for this key must not be overtaken.
        let under_way = session.slots.under_way(key.hash());
        if let Some(seen) = job.request.by_lease() {
            if under_way.is_some() || self.has_heard_newer(session, key) {
                return None;
            }
            let before = self.turn.out.len();
            let replica_version = self.turn.read_copy(&read, key, seen)?;
            if mode == HotMode::Async {
                push_hint(self.turn.out, before, token(replica_version));
            }
            return Some(Then::Next);
        }
        if mode == HotMode::Atomic
            && under_way.is_none()
            && self.turn.read_copy(&read, key, ReplicaVersion::default()).is_some()
        {
            return Some(Then::Next);
        }
        let (server, seen) = self.leased_server(session, mode, key)?;
        if under_way.is_some_and(|to| to != server) {
            return None;
        }
        if server == self.turn.here.server {
            if under_way.is_some() {
                return None;
            }
            let replica_version = self.turn.read_copy(&read, key, seen)?;
            let now = self.turn.now.instant();
            if let Some(leases) = &mut session.leases {
                leases.saw(key.hash(), replica_version, now);
            }
            return Some(Then::Next);
        }
        if self.links.credit(server) != Credit::Available {
            return None;
        }
        let asked = self.turn.now.instant();
        session.slots.sent_by(self.turn.map_version);
        session.slots.has_leased();
        self.turn.counters.requests_peer.add(1);
        let lost = Lost::of(&job.request, key);
        let sent = Sent { hash: key.hash(), to: server, asked, by_lease: true };
        let place = session.slots.push_peer(lost, sent);
        self.forward_by_lease(server, session.client, place, (job.bytes, seen));
        Some(Then::Next)
    }

    /// In the last lease the home has answered this connection, and told of no copies: the one here may be older. A client that does
    /// not wait for its replies has not heard that.
    fn has_heard_newer(&self, session: &Session, key: &Key<'_>) -> bool {
        session.leases.as_ref().is_some_and(|leases| {
            let now = self.turn.now.instant();
            let lease = self.turn.shared.copies.terms().lease;
            leases.was_without(key.hash(), now - lease)
        })
    }

    /// Whose copy is read, and what it must not be older than.
    fn leased_server(
        &mut self,
        session: &mut Session,
        mode: HotMode,
        key: &Key<'_>,
    ) -> Option<(ServerId, ReplicaVersion)> {
        let leases = match mode {
            HotMode::Atomic => &mut *self.leases,
            _ => &mut session.leases,
        };
        let leases = leases.as_mut().filter(|leases| !leases.is_empty())?;
        let now = self.turn.now.instant();
        leases.follow(self.turn.map_version, now);
        let random = self.random.word() as u32;
        let Choice::Copy { suffix, seen } = leases.route(key.hash(), now, random) else {
            return None;
        };
        let (_, cluster) = self.turn.shared.cluster()?;
        Some((place(key, suffix, cluster.servers.keys().copied())?.server, seen))
    }
}

impl Worker {
    /// A reply to a request of a client has come that was asked at that moment, and what was said of this key in front of it.
    pub(crate) fn heed_leases(
        &mut self,
        client: crate::session::Client,
        hash: u64,
        asked: Instant,
        taken: &ReplyPrefix,
    ) {
        let mode = self.shared.copies.mode();
        if mode == HotMode::Off {
            return;
        }
        let now = self.now.instant();
        let leases = match mode {
            HotMode::Atomic => &mut self.leases,
            _ => match client {
                crate::session::Client::Conn { conn, .. } => {
                    let session = self.sessions.get_mut(conn.0 as usize).and_then(Option::as_mut);
                    let Some(session) = session.filter(|session| session.client == client) else {
                        return;
                    };
                    &mut session.leases
                }
                crate::session::Client::Once { .. } => return,
            },
        };
        let bounds = if mode == HotMode::Atomic { OF_A_WORKER } else { OF_A_CONNECTION };
        let map_version = self.map_version;
        let since = self.map_since;
        if let Some(leases) = leases {
            leases.follow(map_version, now);
        }
        let new = || Box::new(Leases::new(bounds.0, bounds.1, map_version, since));
        match taken {
            ReplyPrefix::FromCopy(None) => {}
            ReplyPrefix::FromCopy(Some(replica_version)) => {
                let leases = leases.get_or_insert_with(new);
                leases.saw(hash, *replica_version, now);
            }
            // In this mode nothing has to be remembered.
            ReplyPrefix::Without if mode == HotMode::Atomic && leases.is_none() => {}
            ReplyPrefix::Without => {
                leases.get_or_insert_with(new).without(hash, now);
            }
            ReplyPrefix::Announcement(told) => {
                let leases = leases.get_or_insert_with(new);
                leases.told(hash, asked, told, now);
            }
        }
    }
}
