//! Requests that are executed in one turn: hashed, prefetched, executed in groups, so that the cache misses of a group overlap instead
//! of being paid in turn.

use mbal_cachelet::{Ahead, Store};
use mbal_model::{Instant, Key, ReplicaVersion, ServerId};
use mbal_random::Random;
use mbal_replica::Leases;
use mbal_wire::PeerRequest;

use crate::commands::turn::{Then, Turn};
use crate::copies::{HotMode, Sends};
use crate::event::Action;
use crate::forwarding::held::{Again, HeldRequests};
use crate::forwarding::links::{Asker, Links};
use crate::forwarding::once::AnsweredOnce;
use crate::ids::{Client, Ticket};
use crate::moving::moves::Owning;
use crate::sessions::job::{Job, decode_keys};
use crate::sessions::session::{Pause, Session};
use crate::sessions::slots::Place;
use crate::sessions::wakes::Wakes;
use crate::time::micros_left;

/// Requests that are executed in one turn.
pub(crate) struct Batch<'w> {
    pub turn: Turn<'w>,
    pub links: &'w mut Links,
    /// Peers whose requests are gathered from further ones.
    pub relays: &'w mut AnsweredOnce,
    /// Servers that have passed on what is executed now, and the last of them.
    pub hops: u8,
    pub passed_by: Option<ServerId>,
    /// Until when that may be executed, here or wherever it is passed on to.
    pub until: Instant,
    /// Requests to other servers are appended here.
    pub to_peers: &'w mut Vec<u8>,
    pub actions: &'w mut Vec<Action>,
    /// Peers' requests that are not executed yet; and the one among them that is tried again in this turn.
    pub held: &'w mut HeldRequests,
    pub again: Option<Again>,
    pub wakes: &'w mut Wakes,
    /// Copies of hot keys that clients may read, where a worker holds leases for all of them.
    pub leases: &'w mut Option<Box<Leases>>,
    pub random: &'w mut Random,
    /// Keys that came in base64, decoded; reused from group to group.
    pub decoded: &'w mut Vec<u8>,
    /// Requests executed so far.
    pub requests: u32,
    /// What is told on standard error.
    pub said: &'w mut Vec<u8>,
}

impl Batch<'_> {
    /// Looks for the keys of a group, all at once, and lets `execute` have one request after the other, until it says how the
    /// batch ends. Every request takes this way, by whatever way it has come. The group has no gaps.
    #[inline(always)]
    pub fn run_group<const N: usize, R>(
        &mut self,
        jobs: &[Option<Job<'_>>; N],
        decoded: &mut Vec<u8>,
        mut execute: impl FnMut(&mut Self, &Job<'_>, Option<Key<'_>>) -> Option<R>,
    ) -> Option<R> {
        decode_keys(jobs, decoded);
        self.turn.made_room = false;
        let (mut keys, mut ahead) = ([const { None }; N], [Ahead::NONE; N]);
        prefetch(&self.turn.on.shared.store, jobs, decoded, &mut keys, &mut ahead);
        let count = jobs.iter().position(Option::is_none).unwrap_or(N);
        self.turn.observer.look_at(&self.turn.on, &jobs[..count], &keys);
        for (at, job) in jobs.iter().enumerate() {
            let Some(job) = job else { break };
            self.turn.ahead = ahead[at];
            let ended = execute(self, job, keys[at]);
            if ended.is_some() {
                return ended;
            }
        }
        None
    }

    pub fn wait(&mut self, session: &Session, server: ServerId) -> Then {
        if let Client::Conn { conn, .. } = session.client {
            self.links.wait(server, conn);
        }
        Then::Wait(Pause::Credit(server))
    }

    /// `keys`: of how many it may bring the values.
    pub fn forward(
        &mut self,
        to: Owning,
        client: Client,
        place: Place,
        keys: usize,
        request: &[u8],
    ) -> Ticket {
        let wants_leases = self.turn.on.shared.copies.mode() != HotMode::Off;
        let peer = PeerRequest::new(self.hops + 1, self.turn.on.here.map_version, request);
        let peer = PeerRequest { gone: to.gone, wants_leases, ..peer };
        self.forward_as(to.server, client, place, keys, &peer)
    }

    /// To a server that has a copy of the key.
    pub fn forward_by_lease(
        &mut self,
        to: ServerId,
        client: Client,
        place: Place,
        (request, seen): (&[u8], ReplicaVersion),
    ) -> Ticket {
        let peer = PeerRequest::new(self.hops + 1, self.turn.on.here.map_version, request);
        self.forward_as(to, client, place, 1, &PeerRequest { by_lease: Some(seen), ..peer })
    }

    fn forward_as(
        &mut self,
        to: ServerId,
        client: Client,
        place: Place,
        keys: usize,
        peer: &PeerRequest<'_>,
    ) -> Ticket {
        self.turn.has_waiting = true;
        self.send_on(to, Asker::Client { client, place }, keys, peer)
    }

    pub fn send_on(
        &mut self,
        server: ServerId,
        asker: Asker,
        keys: usize,
        peer: &PeerRequest<'_>,
    ) -> Ticket {
        let now = self.turn.now().instant();
        let ticket = self.links.ask(server, asker, now, keys);
        let start = self.to_peers.len();
        peer.encode(self.to_peers);
        let request = start..self.to_peers.len();
        let micros_left = micros_left(self.until, now);
        self.actions.push(Action::Forward { server, ticket, micros_left, request });
        ticket
    }

    pub fn sends(&mut self) -> Sends<'_> {
        Sends {
            shared: self.turn.on.shared,
            links: self.links,
            requests: self.to_peers,
            actions: self.actions,
            here: self.turn.on.here,
        }
    }
}

/// The keys, and where each is looked for.
#[inline(always)]
fn prefetch<'a, 's, const N: usize>(
    store: &'s Store,
    jobs: &[Option<Job<'a>>; N],
    mut decoded: &'a [u8],
    keys: &mut [Option<Key<'a>>; N],
    ahead: &mut [Ahead<'s>; N],
) {
    for ((job, slot), ahead) in jobs.iter().flatten().zip(&mut *keys).zip(&mut *ahead) {
        let Some((mut bytes, base64)) = job.request.key() else { continue };
        if base64 {
            let (length, rest) = decoded.split_first().expect("decoded before");
            (bytes, decoded) = rest.split_at(usize::from(*length));
        }
        *slot = Key::new(bytes);
        if let Some(key) = slot {
            *ahead = store.prefetch_bucket(key.hash());
        }
    }
    if N > 1 {
        for (key, ahead) in keys.iter().zip(ahead) {
            key.iter().for_each(|key| store.prefetch_item(key.hash(), *ahead));
        }
    }
}
