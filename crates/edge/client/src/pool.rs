//! Connections by server and port, opened when they are needed, and which servers are left alone.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Instant;

use mbal_locks::{Mutex, ranks};
use mbal_model::{Address, ServerId};
use tokio::sync::Notify;

use crate::breaker::Breaker;
use crate::connection::{Connection, End, Outcome, Requests};
use crate::dial::dial;
use crate::options::Options;
use crate::reply::{Form, MetaReply, Reply};
use mbal_wire::MetaStatus;

/// Why there is no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreached {
    /// Its server did not answer, and has not been found well since.
    LeftAlone,
    /// It could not be opened, just now.
    Failed,
}

pub struct Pool {
    options: Options,
    servers: Mutex<ranks::ClientServers, BTreeMap<ServerId, Arc<Server>>>,
    news: Arc<News>,
}

/// What connections tell those who look after the map.
#[derive(Default)]
pub struct News {
    pub notify: Notify,
    /// Servers that a connection to has ended: they may have started anew.
    lost: Mutex<ranks::ClientLost, BTreeSet<ServerId>>,
}

impl News {
    fn lost(&self, server: ServerId) {
        self.lost.lock().insert(server);
        self.notify.notify_one();
    }

    pub fn take_lost(&self) -> BTreeSet<ServerId> {
        std::mem::take(&mut self.lost.lock())
    }
}

struct Server {
    breaker: Mutex<ranks::ClientBreaker, Breaker>,
    /// The port that failed, which is where it is probed.
    failed: Mutex<ranks::ClientFailed, Option<Address>>,
    slots: Mutex<ranks::ClientSlots, BTreeMap<(Address, usize), Arc<Slot>>>,
}

/// A place for one connection.
#[derive(Default)]
struct Slot {
    open: Mutex<ranks::ClientOpen, Option<Arc<Connection>>>,
    /// Held by whoever opens it.
    dialing: Arc<tokio::sync::Mutex<()>>,
}

impl Slot {
    fn live(&self) -> Option<Arc<Connection>> {
        self.open.lock().as_ref().filter(|open| !open.has_ended()).cloned()
    }
}

impl Pool {
    pub fn new(options: Options, news: Arc<News>) -> Pool {
        Pool { options, servers: Mutex::default(), news }
    }

    /// The `nth` connection to a port of this server.
    pub async fn connection(
        &self,
        id: ServerId,
        address: &Address,
        nth: usize,
    ) -> Result<Arc<Connection>, Unreached> {
        let server = self.server(id);
        if !server.breaker.lock().is_closed() {
            return Err(Unreached::LeftAlone);
        }
        let slot = server.slot(address, nth);
        if let Some(open) = slot.live() {
            return Ok(open);
        }
        // Others wait here for the one who opens it.
        let dialing = Arc::clone(&slot.dialing).lock_owned().await;
        if let Some(open) = slot.live() {
            return Ok(open);
        }
        if !server.breaker.lock().is_closed() {
            return Err(Unreached::LeftAlone);
        }
        let (address, options, news) =
            (address.clone(), self.options.clone(), Arc::clone(&self.news));
        // A task of its own: it ends even if nobody waits for it any longer, so that a failure is known.
        let opening = tokio::spawn(async move {
            let _dialing = dialing;
            match dial(&address, &options).await {
                Ok(stream) => {
                    let (at, watched) = (address.clone(), Arc::clone(&server));
                    let open = Arc::new(Connection::new(stream, move |end| match end {
                        End::Dropped => {}
                        End::Broken => news.lost(id),
                        End::Silent | End::NotAReply => {
                            watched.failed(&at);
                            news.lost(id);
                        }
                    }));
                    *slot.open.lock() = Some(Arc::clone(&open));
                    Ok(open)
                }
                Err(_) => {
                    server.failed(&address);
                    news.lost(id);
                    Err(Unreached::Failed)
                }
            }
        });
        opening.await.unwrap_or(Err(Unreached::Failed))
    }

    /// The same, if it is open.
    pub fn open(&self, id: ServerId, address: &Address, nth: usize) -> Option<Arc<Connection>> {
        self.server(id).slot(address, nth).live()
    }

    pub fn is_left_alone(&self, id: ServerId) -> bool {
        !self.server(id).breaker.lock().is_closed()
    }

    /// Closes what leads to other addresses than these.
    pub fn keep(&self, addresses: &BTreeMap<ServerId, BTreeSet<Address>>) {
        let mut servers = self.servers.lock();
        servers.retain(|id, _| addresses.contains_key(id));
        for (id, server) in &*servers {
            server.slots.lock().retain(|(address, _), _| addresses[id].contains(address));
            let mut failed = server.failed.lock();
            // It is somewhere else now, where it may be well.
            if failed.as_ref().is_some_and(|address| !addresses[id].contains(address)) {
                *failed = None;
                server.breaker.lock().succeeded();
            }
        }
    }

    /// Probes the servers whose time has come; when the next one's comes.
    pub fn probe(&self, now: Instant) -> Option<Instant> {
        let servers: Vec<Arc<Server>> = self.servers.lock().values().cloned().collect();
        for server in &servers {
            if server.breaker.lock().begin_probe(now) {
                let (server, options) = (Arc::clone(server), self.options.clone());
                let news = Arc::clone(&self.news);
                tokio::spawn(async move {
                    server.probe(&options).await;
                    news.notify.notify_one();
                });
            }
        }
        servers.iter().filter_map(|server| server.breaker.lock().probe_at()).min()
    }

    fn server(&self, id: ServerId) -> Arc<Server> {
        let new = || {
            let (breaker, failed, slots) = Default::default();
            Arc::new(Server { breaker, failed, slots })
        };
        Arc::clone(self.servers.lock().entry(id).or_insert_with(new))
    }
}

impl Server {
    fn slot(&self, address: &Address, nth: usize) -> Arc<Slot> {
        Arc::clone(self.slots.lock().entry((address.clone(), nth)).or_default())
    }

    fn failed(&self, address: &Address) {
        // Any number; it differs from client to client.
        let jitter = RandomState::new().build_hasher().finish();
        self.breaker.lock().failed(Instant::now(), jitter);
        *self.failed.lock() = Some(address.clone());
    }

    /// It is well if it answers a no-op where it did not.
    async fn probe(&self, options: &Options) {
        let address = self.failed.lock().clone();
        let Some(address) = address else { return self.breaker.lock().succeeded() };
        let is_well = match dial(&address, options).await {
            Ok(stream) => {
                let (bytes, form) = (b"mn\r\n".to_vec(), Form::Meta);
                let patience = options.timeout;
                let connection = Connection::new(stream, |_| {});
                let outcome = connection.ask(Requests { bytes, form, replies: 1, patience }).await;
                let noop =
                    Reply::Meta(MetaReply { status: MetaStatus::Noop, ..MetaReply::default() });
                matches!(outcome, Outcome::Replies(replies) if replies == [noop])
            }
            Err(_) => false,
        };
        match is_well {
            true => self.breaker.lock().succeeded(),
            false => self.failed(&address),
        }
    }
}
