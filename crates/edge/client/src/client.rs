//! The client: from a key to its owner's connection, and what is done when that fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use mbal_locks::{Mutex, ReadGuard, RwLock, WriteGuard, ranks};
use mbal_model::{Address, Hint, Owner, ServerId, WorkerId};
use mbal_routing::Routes;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

use crate::connection::{Connection, Outcome, Requests};
use crate::error::Error;
use crate::leased::Leased;
use crate::options::Options;
use crate::pool::{News, Pool, Unreached};
use crate::refresh;
use crate::reply::{Form, MetaReply, Reply};
use crate::request::{Command, SentKey};
use mbal_wire::MetaStatus;

/// A request is tried no more often, whatever happens.
const TRIES_MAX: usize = 3;
/// Commands that concern a whole server may take so much longer than a request of a key.
const ADMIN_PATIENCE: u32 = 4;
/// Where a server listens if nobody says so.
const PORT: u16 = 11211;

/// A client of a cluster. Cheap to clone; clones share connections and the map.
#[derive(Clone)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
    _refreshing: Arc<Refreshing>,
}

/// Ends the task that keeps the map true.
struct Refreshing(AbortHandle);

impl Drop for Refreshing {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub(crate) struct Inner {
    pub options: Options,
    routes: RwLock<ranks::ClientRoutes, Routes>,
    pub pool: Pool,
    pub news: Arc<News>,
    /// The server that is said to have a newer map.
    pub asks: Mutex<ranks::ClientAsks, Option<ServerId>>,
    /// Whose turn it is to be asked for news.
    pub turn: AtomicUsize,
    /// Counts how often somebody was.
    pub rounds: watch::Sender<u64>,
    pub seeds: Vec<Address>,
    pub missed: AtomicU64,
    pub leased: Leased,
}

/// How far a request has come, for the case that its time is over.
#[derive(Default)]
struct Progress {
    server: Option<ServerId>,
    may_be_executed: bool,
}

/// Where a request goes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Target {
    pub owner: Owner,
    pub address: Address,
    pub nth: usize,
}

impl Client {
    /// Asks these addresses, one after the other, for the cluster's map: any servers of the cluster, as `host:port` or `host`.
    ///
    /// # Errors
    /// [`Error::NoMap`] if none of them has one to give.
    pub async fn connect<S: AsRef<str>>(
        servers: impl IntoIterator<Item = S>,
        options: Options,
    ) -> Result<Client, Error> {
        let seed = |text: S| {
            let text = text.as_ref();
            let with_port = || Address::parse(&format!("{text}:{PORT}"));
            let unknown = || Error::NoMap(format!("{text:?} is no host:port"));
            Address::parse(text).or_else(with_port).ok_or_else(unknown)
        };
        let seeds = servers.into_iter().map(seed).collect::<Result<Vec<_>, _>>()?;
        let routes = refresh::first(&seeds, &options).await?;
        let news = Arc::new(News::default());
        let inner = Arc::new(Inner {
            pool: Pool::new(options.clone(), Arc::clone(&news)),
            options,
            routes: RwLock::new(routes),
            news,
            asks: Mutex::default(),
            turn: AtomicUsize::new(0),
            rounds: watch::Sender::new(0),
            seeds,
            missed: AtomicU64::new(0),
            leased: Leased::default(),
        });
        let refreshing = tokio::spawn(refresh::run(Arc::downgrade(&inner)));
        Ok(Client { inner, _refreshing: Arc::new(Refreshing(refreshing.abort_handle())) })
    }
}

impl Inner {
    pub fn routes(&self) -> ReadGuard<'_, Routes> {
        self.routes.read()
    }

    pub fn routes_mut(&self) -> WriteGuard<'_, Routes> {
        self.routes.write()
    }

    /// Asks a key's owner; or, for a read of a hot key, who has a copy.
    pub async fn ask(&self, key: &SentKey, command: &Command<'_>) -> Result<MetaReply, Error> {
        let mut progress = Progress::default();
        let deadline = Instant::now() + self.options.timeout;
        // What is read from now on comes behind a write, and after it shows what it wrote: at the home.
        if !command.reads() {
            self.leased.ends(key.hash);
        }
        let answer = timeout_at(deadline, self.try_to_ask(key, command, &mut progress)).await;
        if !command.reads() {
            self.leased.ends(key.hash);
        }
        answer.unwrap_or_else(|_| {
            let server = progress.server.unwrap_or(ServerId::NOBODY);
            match progress.may_be_executed {
                true => Err(Error::Unknown(server)),
                false => Err(Error::Unreachable(server)),
            }
        })
    }

    async fn try_to_ask(
        &self,
        key: &SentKey,
        command: &Command<'_>,
        progress: &mut Progress,
    ) -> Result<MetaReply, Error> {
        if let Some(reply) = self.read_copy(key, command).await {
            return Ok(reply);
        }
        let mut server = ServerId::NOBODY;
        for _ in 0..TRIES_MAX {
            let target = self.target(key.hash).await;
            server = target.owner.server;
            progress.server = Some(server);
            let connection = match self.connection(&target).await {
                Ok(connection) => connection,
                Err(Unreached::LeftAlone) => break,
                Err(Unreached::Failed) if self.is_elsewhere(key.hash, &target).await => continue,
                Err(Unreached::Failed) => break,
            };
            let (mut bytes, asked) = (Vec::new(), self.leased.now());
            command.push(&mut bytes, key, self.routes().heard(server), None);
            progress.may_be_executed = true;
            let outcome = connection.ask(self.requests(bytes, Form::Meta, 1)).await;
            match outcome {
                Outcome::Replies(replies) => {
                    progress.may_be_executed = false;
                    let reply = replies.into_iter().next();
                    let reply = match command.reads() {
                        true => self.heard_read(key.hash, server, asked, reply)?,
                        false => self.heard(key.hash, server, reply)?,
                    };
                    let is_too_old = matches!(reply.hint, Some(Hint::Newer { .. }));
                    let missed = reply.status == MetaStatus::Miss && command.reads() && is_too_old;
                    if missed && self.is_elsewhere(key.hash, &target).await {
                        continue;
                    }
                    return Ok(reply);
                }
                // The next try opens another connection.
                Outcome::Unsent => progress.may_be_executed = false,
                Outcome::Lost if command.reads() => progress.may_be_executed = false,
                Outcome::Lost => return Err(Error::Unknown(server)),
            }
        }
        Err(Error::Unreachable(server))
    }

    /// Where the owner of this hash is asked, once nothing is unanswered where it was before.
    pub async fn target(&self, hash: u64) -> Target {
        loop {
            let (target, before) = {
                let routes = self.routes();
                let route = routes.route(hash);
                let target = |owner| self.target_at(&routes, owner, hash);
                let before = route.before.map(|owner| (owner, target(owner)));
                (target(route.owner).expect("an owner has an address"), before)
            };
            let Some((owner, before)) = before else { return target };
            if let Some(before) = before {
                self.await_answers(&before).await;
            }
            self.routes_mut().settled(hash, owner);
        }
    }

    /// Where a key of this hash is asked for at that worker.
    pub fn target_at(&self, routes: &Routes, owner: Owner, hash: u64) -> Option<Target> {
        let address = routes.address(owner)?.clone();
        Some(Target { owner, address, nth: hash as usize % self.options.connections })
    }

    /// Waits until what has been asked there is answered, or will never be.
    async fn await_answers(&self, before: &Target) {
        let open = self.pool.open(before.owner.server, &before.address, before.nth);
        let Some(connection) = open.filter(|open| open.unanswered() > 0) else { return };
        // Replies come in order, so this one comes last. However it ends, nothing is unanswered.
        drop(connection.ask(self.requests(b"mn\r\n".to_vec(), Form::Meta, 1)).await);
    }

    /// True if, by the newest map that can be had, somebody else is to be asked.
    async fn is_elsewhere(&self, hash: u64, target: &Target) -> bool {
        let mut rounds = self.rounds.subscribe();
        self.news.notify.notify_one();
        // The task that refreshes lives as long as the client.
        drop(rounds.changed().await);
        let routes = self.routes();
        let owner = routes.route(hash).owner;
        owner != target.owner || routes.address(owner) != Some(&target.address)
    }

    pub async fn connection(&self, target: &Target) -> Result<Arc<Connection>, Unreached> {
        self.pool.connection(target.owner.server, &target.address, target.nth).await
    }

    pub fn requests(&self, bytes: Vec<u8>, form: Form, replies: usize) -> Requests {
        Requests { bytes, form, replies, patience: self.options.timeout }
    }

    /// Takes what `server`, or whom it has asked, says of owners in its reply.
    fn heard(&self, hash: u64, server: ServerId, reply: Option<Reply>) -> Result<MetaReply, Error> {
        match reply {
            Some(Reply::Meta(reply)) => {
                self.heed(hash, server, &reply);
                Ok(reply)
            }
            Some(Reply::Refused(text)) => Err(self.refusal(text, server)),
            _ => unreachable!("a meta command has a meta reply"),
        }
    }

    /// The same of a read, and what it says of copies.
    pub fn heard_read(
        &self,
        hash: u64,
        server: ServerId,
        asked: mbal_model::Instant,
        reply: Option<Reply>,
    ) -> Result<MetaReply, Error> {
        let reply = self.heard(hash, server, reply)?;
        self.leased.follow(self.routes().version());
        self.leased.told(hash, asked, false, &reply);
        Ok(reply)
    }

    pub fn heed(&self, hash: u64, server: ServerId, reply: &MetaReply) {
        if let Some(hint) = reply.hint {
            let heeded = self.routes_mut().heed(hash, server, hint);
            heeded.ask.into_iter().for_each(|server| self.ask_for_map(server));
        }
    }

    fn ask_for_map(&self, server: ServerId) {
        *self.asks.lock() = Some(server);
        self.news.notify.notify_one();
    }

    pub fn refusal(&self, text: String, server: ServerId) -> Error {
        match text.strip_prefix("SERVER_ERROR ") {
            // Another server has the key, and did not answer the one that was asked: the map may be old.
            Some("no route to owner") => {
                self.news.notify.notify_one();
                Error::Unknown(server)
            }
            Some(text) => Error::Server(text.to_owned()),
            None => Error::Client(text.trim_start_matches("CLIENT_ERROR ").to_owned()),
        }
    }

    /// Asks a server for what is no key's.
    pub async fn ask_server(
        &self,
        server: ServerId,
        bytes: Vec<u8>,
        form: Form,
    ) -> Result<Reply, Error> {
        let patience: Duration = self.options.timeout * ADMIN_PATIENCE;
        let first = Owner { server, worker: WorkerId(0) };
        let address = self.routes().address(first).cloned().ok_or(Error::Unreachable(server))?;
        let target = Target { owner: first, address, nth: 0 };
        let connection = self.connection(&target).await.map_err(|_| Error::Unreachable(server))?;
        let requests = Requests { bytes, form, replies: 1, patience };
        match timeout_at(Instant::now() + patience, connection.ask(requests)).await {
            Err(_) | Ok(Outcome::Lost) => Err(Error::Unknown(server)),
            Ok(Outcome::Unsent) => Err(Error::Unreachable(server)),
            Ok(Outcome::Replies(replies)) => match replies.into_iter().next() {
                Some(Reply::Refused(text)) => Err(self.refusal(text, server)),
                Some(reply) => Ok(reply),
                None => Err(Error::Unknown(server)),
            },
        }
    }

    /// Keys that were not found since nobody was there to be asked.
    pub fn missed(&self, keys: u64) {
        self.missed.fetch_add(keys, Relaxed);
    }
}
