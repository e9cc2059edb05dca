//! The worker's part in what is told of connections: who came and went, who watches, who is idle.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use mbal_wire::streams;

use crate::event::{Action, Actions};
use crate::ids::ConnId;
use crate::observing::conns::ConnInfo;
use crate::observing::log::{self, ItemLine, VERBOSE};
use crate::observing::verbose;
use crate::sessions::session::{IDLE, NORMAL, Session, Wait};
use crate::worker::Worker;

impl Worker {
    pub(crate) fn introduce(&mut self, conn: ConnId, info: Arc<ConnInfo>) {
        info.commanded(self.here.now.second);
        self.shared.conns.enter(&info);
        if self.shared.log.watched() & streams::CONNECTIONS != 0 {
            log::connection(&self.shared.log, self.here.now, &info, None);
        }
        if self.shared.log.watched() & VERBOSE != 0 {
            verbose::opened(&mut self.said, info.fd, self.shared.settings.protocol);
        }
        self.sessions.of(conn).info = Some(info);
    }

    pub(crate) fn part_from(&mut self, conn: ConnId) {
        let Some(session) = self.sessions.take(conn) else { return };
        self.abandon_walk(&session);
        if let Some(watcher) = session.wait.watcher() {
            self.shared.log.unwatch(watcher);
            self.sessions.watching.retain(|watching| *watching != conn);
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
            log::connection(
                &self.shared.log,
                self.here.now,
                &info,
                Some(session.closes.unwrap_or(NORMAL)),
            );
        }
    }

    fn abandon_walk(&self, session: &Session) {
        if matches!(&session.wait, Wait::Walk(walk) if walk.is_of_the_crawler()) {
            self.shared.tuned.crawls.fetch_sub(1, Relaxed);
        }
    }

    /// `-o idle_timeout`: closes connections that have sent nothing for longer. A value on its way, and
    /// replies that have not left, keep one open.
    pub(crate) fn close_idle(&mut self, actions: &mut Actions) {
        let timeout = self.shared.settings.idle_timeout;
        if timeout == 0 {
            return;
        }
        let second = self.here.now.second;
        let counters = self.shared.counters(self.here.owner.worker.0.into());
        for (conn, session) in self.sessions.each() {
            let info = session.info.as_ref().expect("every session has one");
            let idle = second.saturating_sub(info.last_command());
            if idle > timeout && session.is_at_rest() {
                counters.idle_kicks.add(1);
                if self.shared.log.watched() & VERBOSE != 0 {
                    verbose::idle(&mut self.said, info.fd);
                }
                session.closes = Some(IDLE);
                session.wait = Wait::End { shutdown: None, asked: true };
                actions.list.push(Action::Close { conn });
            }
        }
    }

    /// After an event, while somebody watches: lines leave for their watchers.
    #[cold]
    pub(crate) fn pass_lines_on(&mut self, actions: &mut Actions) {
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
                    deadline => i64::from(deadline) - i64::from(self.here.now.second),
                };
                let idle = self.here.now.second.saturating_sub(meta.last_access);
                log::eviction(&self.shared.log, self.here.now, meta.fetched, ttl, idle, &line);
            }
        }
        let here = self.here.owner.worker;
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
        for at in 0..self.sessions.watching.len() {
            let conn = self.sessions.watching[at];
            send_lines_to(conn, self.sessions.of(conn), actions);
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
