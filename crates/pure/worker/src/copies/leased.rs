//! What a server's ordinary clients may read elsewhere: leases that it holds for them, as a smart client holds its own.

use mbal_model::{Instant, Key, ReplicaVersion, ServerId};
use mbal_replica::{Choice, Leases};
use mbal_routing::place;

use crate::commands::context::{Context, Here};
use crate::commands::hints::push_hint;
use crate::commands::turn::Then;
use crate::copies::read::Read;
use crate::copies::reading::read_copy;
use crate::copies::reply_prefix::{ReplyPrefix, token};
use crate::copies::terms::HotMode;
use crate::forwarding::links::Credit;
use crate::forwarding::unreachable::Lost;
use crate::sessions::batch::Batch;
use crate::sessions::job::Job;
use crate::sessions::session::Session;
use crate::sessions::slots::Sent;

/// Hot keys that a connection remembers, and marks of answers without copies.
const OF_A_CONNECTION: (usize, usize) = (16, 16);
/// The same of a worker, for all its connections.
const OF_A_WORKER: (usize, usize) = (512, 16);

/// A read of another server's key that a copy can answer: here, or at a server that the client has a lease for. `None`: it goes home.
pub(crate) fn read_elsewhere(
    batch: &mut Batch<'_>,
    session: &mut Session,
    job: &Job<'_>,
    key: &Key<'_>,
) -> Option<Then> {
    let mode = batch.turn.on.shared.copies.mode();
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
        if under_way.is_some() || has_heard_newer(&batch.turn.on, session, key) {
            return None;
        }
        // It may not have heard the last answer yet.
        let shown = session.leases.as_ref().map(|leases| leases.shown(key.hash()));
        let seen = seen.max(shown.unwrap_or_default());
        let before = batch.turn.out.len();
        let replica_version = read_copy(&mut batch.turn, &read, key, seen)?;
        if mode == HotMode::Async {
            push_hint(batch.turn.out, before, token(replica_version));
        }
        return Some(Then::Next);
    }
    if mode == HotMode::Atomic
        && under_way.is_none()
        && read_copy(&mut batch.turn, &read, key, ReplicaVersion::default()).is_some()
    {
        return Some(Then::Next);
    }
    let (server, seen) = leased_server(batch, session, mode, key)?;
    if under_way.is_some_and(|to| to != server) {
        return None;
    }
    if server == batch.turn.on.here.owner.server {
        if under_way.is_some() {
            return None;
        }
        let replica_version = read_copy(&mut batch.turn, &read, key, seen)?;
        let now = batch.turn.now().instant();
        if let Some(leases) = &mut session.leases {
            leases.saw(key.hash(), replica_version, now);
        }
        return Some(Then::Next);
    }
    if batch.links.credit(server) != Credit::Available {
        return None;
    }
    let asked = batch.turn.now().instant();
    session.slots.sent_by(batch.turn.on.here.map_version);
    session.slots.has_leased();
    batch.turn.on.counters.requests_peer.add(1);
    let lost = Lost::of(&job.request, key);
    let sent = Sent { hash: key.hash(), to: server, asked, by_lease: true };
    let place = session.slots.push_peer(lost, sent);
    batch.forward_by_lease(server, session.client, place, (job.bytes, seen));
    Some(Then::Next)
}

/// In the last lease the home has answered this connection, and told of no copies: the one here may be older. A client that does
/// not wait for its replies has not heard that.
fn has_heard_newer(on: &Context<'_>, session: &Session, key: &Key<'_>) -> bool {
    session.leases.as_ref().is_some_and(|leases| {
        let now = on.now().instant();
        let lease = on.shared.copies.terms().lease;
        leases.was_without(key.hash(), now - lease)
    })
}

/// Whose copy is read, and what it must not be older than.
fn leased_server(
    batch: &mut Batch<'_>,
    session: &mut Session,
    mode: HotMode,
    key: &Key<'_>,
) -> Option<(ServerId, ReplicaVersion)> {
    let leases = match mode {
        HotMode::Atomic => &mut *batch.leases,
        _ => &mut session.leases,
    };
    let leases = leases.as_mut().filter(|leases| !leases.is_empty())?;
    let now = batch.turn.now().instant();
    leases.follow(batch.turn.on.here.map_version, now);
    let here = &batch.turn.on;
    if here.shared.copies.shadows.may_have(key.hash()) {
        // Answered here, a read costs nobody else anything.
        let seen = leases.seen(key.hash(), now)?;
        return Some((here.here.owner.server, seen));
    }
    let random = batch.random.word() as u32;
    let Choice::Copy { suffix, seen } = leases.route(key.hash(), now, random) else {
        return None;
    };
    let (_, cluster) = batch.turn.on.shared.cluster()?;
    Some((place(key, suffix, cluster.servers.keys().copied())?.server, seen))
}

/// A reply to a request of a client has come that was asked at that moment, by a lease or not, and what was said of this key in front of it.
/// `leases`: those that are held for the client, by itself or with others, as the mode has it.
pub(crate) fn heed_leases(
    leases: &mut Option<Box<Leases>>,
    mode: HotMode,
    here: &Here,
    hash: u64,
    asked: (Instant, bool),
    taken: &ReplyPrefix,
) {
    let now = here.now.instant();
    let bounds = if mode == HotMode::Atomic { OF_A_WORKER } else { OF_A_CONNECTION };
    let (map_version, since) = (here.map_version, here.map_since);
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
            leases.get_or_insert_with(new).answered(hash, asked, None, now);
        }
        ReplyPrefix::Announcement(told) => {
            let leases = leases.get_or_insert_with(new);
            leases.answered(hash, asked, Some(told), now);
        }
    }
}
