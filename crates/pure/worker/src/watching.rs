//! The worker's part in what is told of connections: who came and went, who watches, who is idle.

use std::sync::Arc;

use mbal_wire::streams;

use crate::conns::ConnInfo;
use crate::log::{self, ItemLine, VERBOSE};
use crate::session::{Session, Wait};
use crate::worker::Worker;
use crate::{Action, Actions, ConnId, Now, verbose};

/// Why a connection closes, as `watch connevents` tells it.
const NORMAL: &str = "normal";
pub(crate) const ERROR: &str = "error";
const IDLE: &str = "idle_timeout";

impl Worker {
    pub(crate) fn introduce(&mut self, now: Now, conn: ConnId, info: Arc<ConnInfo>) {
        info.commanded(now.second);
        self.shared.conns.enter(&info);
        if self.shared.log.watched() & streams::CONNECTIONS != 0 {
            log::connection(&self.shared.log, now, &info, None);
        }
        if self.shared.log.watched() & VERBOSE != 0 {
            verbose::opened(&mut self.said, info.fd, self.shared.settings.protocol);
        }
        let session = self.sessions[conn.0 as usize].as_mut().expect("opened before");
        session.info = Some(info);
    }

    pub(crate) fn part_from(&mut self, now: Now, conn: ConnId) {
        let Some(session) = self.sessions[conn.0 as usize].take() else { return };
        self.abandon_walk(&session);
        if let Some(watcher) = session.wait.watcher() {
            self.shared.log.unwatch(watcher);
            self.watching.retain(|watching| *watching != conn);
            if self.shared.log.watched() & streams::EVICTIONS == 0 {
                self.shared.store.watch_evictions(false);
            }
        }
        let info = session.info.expect("every session has one");
        self.shared.conns.leave(&info);
        if self.shared.log.watched() & VERBOSE != 0 {
            verbose::closed(&mut self.said, info.fd);
        }
        if self.shared.log.watched() & streams::CONNECTIONS != 0 {
            log::connection(&self.shared.log, now, &info, Some(session.closes.unwrap_or(NORMAL)));
        }
    }

    fn abandon_walk(&self, session: &Session) {
        if matches!(&session.wait, Wait::Walk(walk) if walk.is_of_the_crawler()) {
            self.shared.crawls.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// `-o idle_timeout`: closes connections that have sent nothing for longer. A value on its way, and
    /// replies that have not left, keep one open.
    pub(crate) fn close_idle(&mut self, now: Now, actions: &mut Actions) {
        let timeout = self.shared.settings.idle_timeout;
        if timeout == 0 {
            return;
        }
        let counters = self.shared.counters(self.here.worker.0.into());
        for (index, session) in self.sessions.iter_mut().enumerate() {
            let Some(session) = session else { continue };
            let info = session.info.as_ref().expect("every session has one");
            let idle = now.second.saturating_sub(info.last_command());
            if idle > timeout && session.is_at_rest() {
                counters.idle_kicks.add(1);
                if self.shared.log.watched() & VERBOSE != 0 {
                    verbose::idle(&mut self.said, info.fd);
                }
                session.closes = Some(IDLE);
                session.wait = Wait::End { shutdown: None, asked: true };
                actions.list.push(Action::Close { conn: ConnId(index as u32) });
            }
        }
    }

    /// After an event, while somebody watches: lines leave for their watchers.
    #[cold]
    pub(crate) fn pass_lines_on(&mut self, now: Now, actions: &mut Actions) {
        if !self.said.is_empty() {
            actions.list.push(Action::Say { lines: std::mem::take(&mut self.said) });
        }
        if self.shared.log.watched() & streams::EVICTIONS != 0 {
            self.shared.store.watch_evictions(true);
            let (evicted, _lost) = self.shared.store.take_evicted();
            for item in evicted {
                let meta = &item.meta;
                let bytes =
                    mbal_model::item_bytes(item.key.len(), meta.flags, meta.value_bytes as usize);
                let line = ItemLine {
                    key: &item.key,
                    class: mbal_model::size_class(bytes),
                    value_bytes: meta.value_bytes as usize,
                    fd: 0,
                };
                let ttl = match meta.deadline {
                    0 => -1,
                    deadline => i64::from(deadline) - i64::from(now.second),
                };
                let idle = now.second.saturating_sub(meta.last_access);
                log::eviction(&self.shared.log, now, meta.fetched, ttl, idle, &line);
            }
        }
        let here = self.here.worker;
        let server = Arc::clone(&self.shared);
        for worker in server.log.nudged() {
            if worker == here {
                self.send_lines(actions);
            } else {
                actions.list.push(Action::Nudge { worker });
            }
        }
    }

    /// What waits for this worker's watchers, unless they have not read what came before.
    pub(crate) fn send_lines(&mut self, actions: &mut Actions) {
        for conn in &self.watching {
            let session = self.sessions[conn.0 as usize].as_mut().expect("it watches");
            send_lines_to(*conn, session, actions);
        }
    }
}

pub(crate) fn send_lines_to(conn: ConnId, session: &mut Session, actions: &mut Actions) {
    let Wait::Watching { watcher, full: full @ false } = &mut session.wait else { return };
    let start = actions.bytes.len();
    watcher.take(&mut actions.bytes);
    let end = actions.bytes.len();
    if start < end {
        *full = true;
        actions.list.push(Action::Send { conn, bytes: start..end });
        actions.list.push(Action::Stall { conn });
    }
}
