//! What threads tell each other, by mailbox.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use mbal_link::Established;
use mbal_model::{MoveId, MoveLink, ServerId};
use mbal_proxy::{PoolTold, Proxy};
use mbal_worker::{Carried, Event, Report};

use crate::conn::Conn;
use crate::guest::Guest;
use crate::link_tls::LinkTls;
use crate::mailbox::Mailbox;
use crate::tls::ClientCertificate;

/// What other threads tell an event loop.
pub enum Letter {
    /// Serve this connection, with or without TLS; its place in the [`crate::Tally`] is taken already.
    Adopt { fd: OwnedFd, tls: Option<ClientCertificate> },
    /// Serve this connection, whose handshake is over.
    Welcome(Guest),
    /// Serve this connection, which another worker hands over.
    Take(Handed),
    /// Send requests over this link, or serve those that come over it.
    Linked(Linked),
    /// Serve clients at the own ports, too, and those who send datagrams ([`crate::EventLoop::opens_later`]).
    Open,
    /// This has happened to the worker.
    Tell(Event<'static>),
    /// Leave [`crate::EventLoop::run`]. Replies to what was received have been sent, as far as sockets took them.
    Stop,
}

/// A connection between two workers, with what each of their threads knew of it.
pub struct Handed {
    pub(crate) conn: Conn,
    pub(crate) session: Carried,
}

/// Takes lines, each with its end, and keeps no worker waiting.
pub type Said = dyn Fn(&[u8]) + Send + Sync;

/// Whom an event loop writes to.
#[derive(Clone)]
pub struct Post {
    pub main: Mailbox<Request>,
    /// By worker, itself included.
    pub workers: Arc<[Mailbox<Letter>]>,
    /// The balancer, which must not keep a worker waiting.
    pub balancer: Arc<dyn Fn(Report) + Send + Sync>,
    /// The other sides of moves.
    pub migrator: Option<Mailbox<MigratorNote>>,
    /// Standard error, for lines that a worker says.
    pub said: Arc<Said>,
}

/// What event loops tell the main thread.
pub enum Request {
    /// Clients are let in from this moment of the listener's clock on, if they are not before ([`crate::Listener::opened_by`]).
    Open { at_ns: u64 },
    /// A client sent `shutdown`, and may.
    Shutdown { graceful: bool },
}

/// What an event loop tells the linker.
pub enum LinkNote {
    /// A link that this worker had dialed is no more.
    Lost { worker: usize, server: ServerId, why: String },
    /// The other servers are these from now on. Links to others are not dialed again; those that are up stay.
    Peers(Vec<(ServerId, String)>),
}

/// A link whose handshake is over.
pub struct Linked {
    pub(crate) fd: OwnedFd,
    pub(crate) tls: Option<LinkTls>,
    pub(crate) established: Established,
    /// This side sends the requests.
    pub(crate) dialed: bool,
    /// What came behind the handshake.
    pub(crate) input: Vec<u8>,
}

/// What other threads tell a migrator.
pub enum MigratorNote {
    /// A link whose handshake is over.
    Linked(Linked),
    /// Say this, unless the link has broken.
    Tell { link: MoveLink, id: MoveId, kind: u8, payload: Vec<u8> },
    /// The other side said what cannot be.
    Break { link: MoveLink },
}

/// A link of this worker is for moves: a server's migrator has it.
pub(crate) const MIGRATOR: usize = u16::MAX as usize;

/// What other threads tell a proxy's loop.
pub enum ProxyLetter {
    /// Do this with the proxy, between two wake-ups.
    Do(Box<dyn FnOnce(&mut Proxy) + Send>),
    /// The upstreams from now on, and where they are dialed.
    Upstreams(PoolTold, Vec<SocketAddr>),
    /// A client has shaken hands.
    Welcome(Guest),
    Stop,
}
