//! Events to sessions, sessions to batches.

use std::sync::Arc;

use mbal_model::{ClusterMap, Owner, ServerId, WorkerId};

use crate::batch::{Batch, Ended};
use crate::server::Server;
use crate::session::Session;
use crate::turn::Turn;
use crate::{Action, Actions, ConnId, Event, Now};

/// Steps of background work in a [`Event::Tick`].
const BACKGROUND_STEPS: usize = 64;

/// One worker: its sessions, and its share of the server.
pub struct Worker {
    here: Owner,
    server: Arc<Server>,
    map: Arc<ClusterMap>,
    sessions: Vec<Option<Box<Session>>>,
    /// Reused: see [`Turn::scratch`] and [`Batch::decoded`].
    scratch: Vec<u8>,
    decoded: Vec<u8>,
}

impl Worker {
    /// A worker of a server that has no peers.
    pub fn new(id: WorkerId, server: Arc<Server>) -> Worker {
        let here = Owner { server: ServerId(0), worker: id };
        let cachelets = server.store.options().cachelets;
        let map = Arc::new(ClusterMap::alone(here.server, server.settings.workers, cachelets));
        let (scratch, decoded) = (Vec::new(), Vec::new());
        Worker { here, server, map, sessions: Vec::new(), scratch, decoded }
    }

    /// Takes one event; appends to `actions` what is to be done about it.
    pub fn handle(&mut self, now: Now, event: Event<'_>, actions: &mut Actions) {
        match event {
            Event::Opened { conn } => {
                let index = conn.0 as usize;
                if self.sessions.len() <= index {
                    self.sessions.resize_with(index + 1, || None);
                }
                self.sessions[index] = Some(Box::default());
            }
            Event::Closed { conn } => self.sessions[conn.0 as usize] = None,
            Event::Received { conn, bytes } => {
                self.server.counters(self.here.worker.0.into()).bytes_read.add(bytes.len() as u64);
                self.with_session(now, conn, actions, |batch, session| {
                    received(batch, session, bytes)
                });
            }
            Event::Drained { conn } => {
                self.with_session(now, conn, actions, |batch, session| {
                    session.stalled = false;
                    run_pending(batch, session)
                });
            }
            Event::Tick => {
                self.server.store.background(self.here.worker, now.second, BACKGROUND_STEPS);
            }
        }
    }

    fn with_session(
        &mut self,
        now: Now,
        conn: ConnId,
        actions: &mut Actions,
        run: impl FnOnce(&mut Batch<'_>, &mut Session) -> Ended,
    ) {
        let mut session = self.sessions[conn.0 as usize].take().expect("opened before");
        if session.closing {
            self.sessions[conn.0 as usize] = Some(session);
            return;
        }
        let start = actions.bytes.len();
        self.server.store.enter(self.here.worker);
        let ended = {
            let turn = Turn {
                server: &self.server,
                counters: self.server.counters(self.here.worker.0.into()),
                map: &self.map,
                here: self.here,
                now,
                scratch: &mut self.scratch,
                out: &mut actions.bytes,
                start,
            };
            let mut batch = Batch { turn, decoded: &mut self.decoded, requests: 0 };
            run(&mut batch, &mut session)
        };
        self.server.store.leave(self.here.worker);
        let end = actions.bytes.len();
        if start < end {
            let counters = self.server.counters(self.here.worker.0.into());
            counters.bytes_written.add((end - start) as u64);
            actions.list.push(Action::Send { conn, bytes: start..end });
        }
        match ended {
            Ended::Hungry => {}
            Ended::Stalled => {
                session.stalled = true;
                actions.list.push(Action::Stall { conn });
            }
            Ended::Closed(shutdown) => {
                *session = Session { closing: true, ..Session::default() };
                actions.list.push(Action::Close { conn });
                if let Some(graceful) = shutdown {
                    actions.list.push(Action::Shutdown { graceful });
                }
            }
        }
        self.sessions[conn.0 as usize] = Some(session);
    }
}

fn received(batch: &mut Batch<'_>, session: &mut Session, mut bytes: &[u8]) -> Ended {
    if session.stalled {
        session.pending.extend_from_slice(bytes);
        return Ended::Hungry;
    }
    while !session.pending.is_empty() && !bytes.is_empty() {
        if !session.complete(&mut bytes) {
            return Ended::Hungry;
        }
        match run_pending(batch, session) {
            Ended::Hungry => {}
            Ended::Stalled => {
                session.pending.extend_from_slice(bytes);
                return Ended::Stalled;
            }
            closed => return closed,
        }
    }
    let ran = batch.run(session, bytes);
    if ran.ended != (Ended::Closed(None)) {
        session.pending.extend_from_slice(&ran.rewritten);
        session.pending.extend_from_slice(&bytes[ran.used..]);
    }
    ran.ended
}

fn run_pending(batch: &mut Batch<'_>, session: &mut Session) -> Ended {
    let pending = std::mem::take(&mut session.pending);
    let ran = batch.run(session, &pending);
    if ran.rewritten.is_empty() {
        session.keep(pending, ran.used);
    } else {
        session.pending = ran.rewritten;
        session.pending.extend_from_slice(&pending[ran.used..]);
    }
    ran.ended
}
