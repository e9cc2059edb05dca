//! The sessions of one worker.

use std::sync::Arc;

use crate::ids::{Client, ConnId};
use crate::observing::conns::{ConnInfo, Endpoint};
use crate::sessions::session::Session;
use crate::sessions::slots::Slots;

pub(crate) struct Sessions {
    /// By connection.
    all: Vec<Option<Box<Session>>>,
    last_serial: u64,
    /// Those that watch.
    pub watching: Vec<ConnId>,
    /// Stands for a peer.
    nobody: Arc<ConnInfo>,
}

impl Default for Sessions {
    fn default() -> Sessions {
        let nobody = Arc::new(unknown(u32::MAX));
        Sessions { all: Vec::new(), last_serial: 0, watching: Vec::new(), nobody }
    }
}

impl Sessions {
    pub fn open(&mut self, conn: ConnId, mut session: Box<Session>) {
        let index = conn.0 as usize;
        if self.all.len() <= index {
            self.all.resize_with(index + 1, || None);
        }
        self.last_serial += 1;
        session.client = Client::Conn { conn, serial: self.last_serial };
        session.info.get_or_insert_with(|| Arc::new(unknown(conn.0)));
        self.all[index] = Some(session);
    }

    pub fn nobody(&self) -> Arc<ConnInfo> {
        Arc::clone(&self.nobody)
    }

    /// Of a connection that is open, and is not taken out.
    #[inline]
    pub fn of(&mut self, conn: ConnId) -> &mut Session {
        self.all[conn.0 as usize].as_mut().expect("opened before")
    }

    pub fn get(&mut self, conn: ConnId) -> Option<&mut Session> {
        self.all.get_mut(conn.0 as usize)?.as_deref_mut()
    }

    /// Takes a session out: for its turn, or since its connection has gone.
    #[inline]
    pub fn take(&mut self, conn: ConnId) -> Option<Box<Session>> {
        self.all[conn.0 as usize].take()
    }

    #[inline]
    pub fn put_back(&mut self, conn: ConnId, session: Box<Session>) {
        self.all[conn.0 as usize] = Some(session);
    }

    /// `None` once the client has gone.
    pub fn of_client(&mut self, client: Client) -> Option<&mut Session> {
        let Client::Conn { conn, .. } = client else { return None };
        self.get(conn).filter(|session| session.client == client)
    }

    pub fn slots_of(&mut self, client: Client) -> Option<&mut Slots> {
        self.of_client(client).map(|session| &mut session.slots)
    }

    pub fn each(&mut self) -> impl Iterator<Item = (ConnId, &mut Session)> {
        let all = (0..).map(ConnId).zip(&mut self.all);
        all.filter_map(|(conn, session)| Some((conn, session.as_deref_mut()?)))
    }
}

/// A connection that its driver has not introduced.
fn unknown(fd: u32) -> ConnInfo {
    let nowhere = || Endpoint::Unix(String::new());
    ConnInfo::new(fd, nowhere(), nowhere())
}
