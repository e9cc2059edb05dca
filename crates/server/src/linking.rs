//! What a server's linker needs, until it is known which server it is.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use mbal_model::{Cluster, ServerId};
use mbal_reactor::{
    Clock, Letter, LinkNote, LinkPlan, Linker, LinksSeen, Mailbox, MigratorNote, Request,
};
use rustls::{ClientConfig, ServerConfig};

use crate::log;

/// With a map, clients are let in when all links are up, or after so long: a server that is down keeps nobody waiting.
const OPENS_WITHIN: Duration = Duration::from_secs(2);

pub(crate) struct Linking {
    /// Where event loops tell what became of their links, and the other servers are told.
    pub inbox: Mailbox<LinkNote>,
    /// The listening sockets.
    pub sockets: Vec<OwnedFd>,
    pub workers: Arc<[Mailbox<Letter>]>,
    pub clock: Clock,
    pub secret: Vec<u8>,
    pub timeout_ns: u64,
    pub payload_bytes_max: usize,
    /// Who serves the links for moves, if cachelets move.
    pub migrator: Option<Mailbox<MigratorNote>>,
    pub tls: Option<(Arc<ServerConfig>, Arc<ClientConfig>)>,
    pub seen: LinksSeen,
    /// Who lets clients in.
    pub main: Mailbox<Request>,
}

impl Linking {
    /// Starts the thread that brings links up, and then has clients let in: workers have been told of the map. Whoever dials before waits
    /// in the kernel.
    pub(crate) fn start(self, here: ServerId, cluster: &Cluster) -> io::Result<()> {
        let Linking { inbox, sockets, workers, clock, main, .. } = self;
        // The main thread waits for nothing else, as a linker does for names.
        main.post(Request::Open { at_ns: clock.now_ns() + OPENS_WITHIN.as_nanos() as u64 });
        let plan = LinkPlan {
            cluster: mbal_link::Cluster::new(&cluster.name, here.0, &self.secret),
            peers: peers(cluster, here),
            timeout_ns: self.timeout_ns,
            payload_bytes_max: self.payload_bytes_max,
            migrator: self.migrator,
            tls: self.tls,
            seen: self.seen,
            ready: Some(Box::new(move || main.post(Request::Open { at_ns: 0 }))),
            say: Box::new(|warns, name, text| match warns {
                true => log::warn(name, text),
                false => log::info(name, text),
            }),
        };
        let linker = Linker::new(plan, sockets, inbox, workers, clock)?;
        thread::Builder::new().name("mbal-linker".into()).spawn(move || {
            linker.run().expect("epoll fails only for want of kernel memory");
        })?;
        Ok(())
    }
}

/// The other servers, and where they take links.
pub(crate) fn peers(cluster: &Cluster, here: ServerId) -> Vec<(ServerId, String)> {
    let others = cluster.servers.iter().filter(|(server, _)| **server != here);
    others.filter_map(|(server, at)| Some((*server, at.link.as_ref()?.to_string()))).collect()
}
