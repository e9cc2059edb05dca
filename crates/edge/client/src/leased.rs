//! Copies of hot keys on other servers: what homes have told of them, and how reads go there.
//!
//! ```text
//!   a read ──► Leased::suffix ──► none: to the home ──────────────► its reply tells of copies, or ends the lease
//!                   └───────────► the suffix's server, marked ──► from the copy, or passed on: ends the lease
//! ```
//! `docs/design/hotkeys.md` is the protocol.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant as SystemInstant;

use mbal_locks::{Mutex, ranks};
use mbal_model::{Instant, Owner, ReplicaVersion, ServerId};
use mbal_random::Random;
use mbal_replica::{Choice, Leases, choose_place};
use tokio::time::timeout;

use crate::client::{Inner, Target};
use crate::connection::Outcome;
use crate::reply::{Form, MetaReply, Reply};
use crate::request::{Command, SentKey};
use mbal_wire::MetaStatus;

/// Copies of one key that a batch considers, beginning with a random one: where one is takes time for each server of the cluster.
const TRIED_MAX: usize = 8;
/// What a copy's server may take of a read's time; the rest is the home's.
const PATIENCE_PART: u32 = 2;

/// The leases of a client.
pub struct Leased {
    since: SystemInstant,
    known: Mutex<ranks::ClientLeases, (Leases, Random)>,
    reads: AtomicU64,
}

impl Default for Leased {
    fn default() -> Leased {
        // Any number; it differs from client to client.
        let random = Random::new(RandomState::new().build_hasher().finish());
        let known = Mutex::new((Leases::of_client(), random));
        Leased { since: SystemInstant::now(), known, reads: AtomicU64::new(0) }
    }
}

impl Leased {
    /// Since it was made.
    pub fn now(&self) -> Instant {
        Instant::ZERO + self.since.elapsed()
    }

    /// Reads that copies have answered.
    pub fn reads(&self) -> u64 {
        self.reads.load(Relaxed)
    }

    fn with<T>(&self, act: impl FnOnce(&mut Leases, u32) -> T) -> T {
        let (leases, random) = &mut *self.known.lock();
        act(leases, random.word() as u32)
    }

    /// Leases of an earlier map end.
    pub fn follow(&self, map_version: u64) {
        self.with(|leases, _| leases.follow(map_version, self.now()));
    }

    fn route(&self, hash: u64) -> Choice {
        self.with(|leases, random| leases.route(hash, self.now(), random))
    }

    fn is_leased(&self, hash: u64) -> bool {
        self.with(|leases, _| leases.seen(hash, self.now()).is_some())
    }

    /// Some suffixes of which a read may choose, what must not be older there, and random bits for the choice. `None`: there is no lease.
    fn some_copies(&self, hash: u64) -> Option<(Vec<u8>, ReplicaVersion, u32)> {
        self.with(|leases, random| {
            let (suffixes, seen) = leases.copies(hash, self.now())?;
            let first = random as usize % suffixes.len().max(1);
            let some = suffixes.iter().cycle().skip(first).take(TRIED_MAX.min(suffixes.len()));
            // The same bits have chosen the first of them.
            Some((some.copied().collect(), seen, random.rotate_left(16)))
        })
    }

    /// Reads go home, until it tells of copies when it is asked later than now.
    pub fn ends(&self, hash: u64) {
        self.with(|leases, _| leases.without(hash, self.now()));
    }

    /// A home has answered a read, `by_lease` if it was passed on to it.
    pub fn told(&self, hash: u64, asked: Instant, by_lease: bool, reply: &MetaReply) {
        let (asked, told) = ((asked, by_lease), reply.told.as_ref());
        self.with(|leases, _| leases.answered(hash, asked, told, self.now()));
    }

    /// Somebody has answered a read by a lease. False: nobody who could, and the home is to be asked.
    pub fn answered(&self, hash: u64, asked: Instant, reply: &MetaReply) -> bool {
        let from_copy = !reply.has_token || reply.replica_version.is_some();
        if from_copy && reply.status == MetaStatus::Value {
            if let Some(replica_version) = reply.replica_version {
                self.with(|leases, _| leases.saw(hash, replica_version, self.now()));
            }
            self.reads.fetch_add(1, Relaxed);
            return true;
        }
        self.told(hash, asked, true, reply);
        // A miss may mean that no home was found.
        reply.status == MetaStatus::Value || reply.told.is_some()
    }
}

impl Inner {
    /// Where this key is read by a lease, and what must not be older there. `None`: at its home.
    pub fn copy(&self, key: &SentKey) -> Option<(Target, ReplicaVersion)> {
        if !self.options.copies {
            return None;
        }
        let routes = self.routes();
        self.leased.follow(routes.version());
        let Choice::Copy { suffix, seen } = self.leased.route(key.hash) else { return None };
        let target = self.target_at(&routes, routes.copy(&key.key(), suffix)?, key.hash)?;
        drop(routes);
        let is_asked = !self.pool.is_left_alone(target.owner.server);
        is_asked.then_some((target, seen))
    }

    /// The same of a key that leaves together with others, whose targets are `asked` anyway.
    pub fn copy_among(
        &self,
        key: &SentKey,
        asked: impl Fn(&Target) -> bool,
    ) -> Option<(Target, ReplicaVersion)> {
        let (suffixes, seen, random) = self.leased.some_copies(key.hash)?;
        let places = {
            let routes = self.routes();
            let copies = suffixes.iter().map(|suffix| routes.copy(&key.key(), *suffix));
            let owners = std::iter::once(Some(routes.route(key.hash).owner)).chain(copies);
            let target = |owner: Option<Owner>| self.target_at(&routes, owner?, key.hash);
            owners.map(target).collect::<Vec<_>>()
        };
        let is_asked = |at: usize| places[at].as_ref().is_some_and(&asked);
        let at = choose_place(places.len(), is_asked, random);
        let target = places.into_iter().nth(at).flatten().filter(|_| at > 0)?;
        (!self.pool.is_left_alone(target.owner.server)).then_some((target, seen))
    }

    /// Whether this key may be read by a lease now.
    pub fn has_lease(&self, key: &SentKey) -> bool {
        if !self.options.copies {
            return false;
        }
        self.leased.follow(self.routes().version());
        self.leased.is_leased(key.hash)
    }

    /// Reads a key by its lease, if there is one. `None`: the home is to be asked.
    pub async fn read_copy(&self, key: &SentKey, command: &Command<'_>) -> Option<MetaReply> {
        let (target, seen) = command.reads().then(|| self.copy(key)).flatten()?;
        let (server, asked) = (target.owner.server, self.leased.now());
        let ask = async {
            let connection = self.connection(&target).await.ok()?;
            let mut bytes = Vec::new();
            command.push(&mut bytes, key, self.routes().heard(server), Some(seen));
            match connection.ask(self.requests(bytes, Form::Meta, 1)).await {
                Outcome::Replies(replies) => replies.into_iter().next(),
                Outcome::Unsent | Outcome::Lost => None,
            }
        };
        let told = timeout(self.options.timeout / PATIENCE_PART, ask).await.ok().flatten();
        self.heard_by_lease(key.hash, server, asked, told)
    }

    /// Takes a reply to a read by a lease. `None`: the home is to be asked.
    pub fn heard_by_lease(
        &self,
        hash: u64,
        server: ServerId,
        asked: Instant,
        reply: Option<Reply>,
    ) -> Option<MetaReply> {
        let Some(Reply::Meta(reply)) = reply else {
            self.leased.ends(hash);
            return None;
        };
        self.heed(hash, server, &reply);
        self.leased.follow(self.routes().version());
        self.leased.answered(hash, asked, &reply).then_some(reply)
    }
}
