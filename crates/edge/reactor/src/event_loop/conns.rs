//! Connections of clients: what is sent and is not taken, who stalls, pauses, closes, comes and goes.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use mbal_model::WorkerId;
use mbal_worker::{Actions, Carried, ConnId, Event};

use super::EventLoop;
use crate::conn::{Conn, RECEIVING};
use crate::letters::{Handed, Letter};
use crate::output::Output;
use crate::socket;
use crate::sys::{self, WRITABLE};
use crate::tls::Tls;

/// A wake-up goes on with those that stalled for so long.
const RESUMES_NS_MAX: u64 = 2_000_000;

impl EventLoop {
    #[cold]
    pub(super) fn pause(&mut self, id: ConnId, paused: bool) {
        let Some(conn) = &mut self.conns[id.0 as usize] else { return };
        conn.paused = paused;
        // One that has output is not read until that has left.
        if conn.output.is_empty()
            && self.epoll.modify(conn.fd.as_fd(), conn.interest(), u64::from(id.0)).is_err()
        {
            self.close(id);
        }
    }

    /// Who has no other servers has sent all replies already.
    pub(super) fn half_closed(
        &mut self,
        id: ConnId,
        now: u64,
        handle: &mut impl FnMut(u64, Event, &mut Actions),
    ) {
        if self.links.is_none() {
            return self.close(id);
        }
        self.pause(id, true);
        handle(now, Event::HalfClosed { conn: id }, &mut self.actions);
    }

    /// Nobody listens to it, so it broke, or was ready before it paused.
    #[cold]
    pub(super) fn serve_paused(&mut self, id: ConnId) {
        let Some(conn) = &mut self.conns[id.0 as usize] else { return };
        match sys::peek(conn.fd.as_fd()) {
            Err(error) if !sys::is_transient(&error) => self.close(id),
            _ => {}
        }
    }

    #[inline]
    pub(super) fn send(&mut self, id: ConnId, bytes: &[u8]) {
        let Some(conn) = &mut self.conns[id.0 as usize] else { return };
        let Some(tls) = &mut conn.tls else { return self.send_raw(id, bytes) };
        let mut cipher = Vec::new();
        tls.send(bytes, &mut cipher);
        self.send_raw(id, &cipher);
    }

    #[inline]
    pub(super) fn send_raw(&mut self, id: ConnId, bytes: &[u8]) {
        let Some(conn) = &mut self.conns[id.0 as usize] else { return };
        if !conn.output.is_empty() {
            conn.output.push(bytes);
            return;
        }
        match sys::send(conn.fd.as_fd(), bytes) {
            Ok(sent) if sent == bytes.len() => {}
            Ok(sent) => self.queue(id, &bytes[sent..]),
            Err(error) if sys::is_transient(&error) => self.queue(id, bytes),
            Err(_) => self.close(id),
        }
    }

    /// Keeps what the kernel did not take, and stops reading until it has.
    pub(super) fn queue(&mut self, id: ConnId, rest: &[u8]) {
        let Some(conn) = &mut self.conns[id.0 as usize] else { return };
        conn.output.push(rest);
        if self.epoll.modify(conn.fd.as_fd(), WRITABLE, u64::from(id.0)).is_err() {
            self.close(id);
        }
    }

    pub(super) fn flush(&mut self, id: ConnId) {
        let Some(conn) = &mut self.conns[id.0 as usize] else { return };
        match sys::send(conn.fd.as_fd(), conn.output.unsent()) {
            Ok(sent) => conn.output.sent(sent),
            Err(error) if sys::is_transient(&error) => return,
            Err(_) => return self.close(id),
        }
        if !conn.output.is_empty() {
            return;
        }
        if conn.leaving.is_some() {
            self.leave(id);
        } else if conn.closing
            || self.epoll.modify(conn.fd.as_fd(), conn.interest(), u64::from(id.0)).is_err()
        {
            self.close(id);
        } else if conn.stalled {
            self.drained.push(id);
        }
    }

    pub(super) fn stall(&mut self, id: ConnId) {
        let Some(conn) = &mut self.conns[id.0 as usize] else { return };
        conn.stalled = true;
        if conn.output.is_empty() {
            self.drained.push(id);
        }
    }

    pub(super) fn resume_drained(
        &mut self,
        now: u64,
        handle: &mut impl FnMut(u64, Event, &mut Actions),
    ) {
        let due = self.drained.len();
        let mut done = 0;
        while done < due {
            let id = self.drained[done];
            done += 1;
            let Some(conn) = &mut self.conns[id.0 as usize] else { continue };
            if std::mem::take(&mut conn.stalled) {
                handle(now, Event::Drained { conn: id }, &mut self.actions);
                self.settle(now, handle);
                if self.clock.now_ns() - now > RESUMES_NS_MAX {
                    break;
                }
            }
        }
        // The others, and those that stalled again meanwhile, wait for the next turn, so that nobody is starved.
        self.drained.drain(..done);
    }

    pub(super) fn close_when_sent(&mut self, id: ConnId) {
        let Some(conn) = &mut self.conns[id.0 as usize] else { return };
        conn.closing = true;
        if let Some(tls) = &mut conn.tls {
            let mut goodbye = Vec::new();
            tls.close(&mut goodbye);
            self.send_raw(id, &goodbye);
        }
        let Some(conn) = &mut self.conns[id.0 as usize] else { return };
        if conn.output.is_empty() {
            self.close(id);
        }
    }

    pub(super) fn close(&mut self, id: ConnId) {
        if self.conns[id.0 as usize].take().is_some() {
            self.tally.leave(self.worker);
            self.closed.push(id);
        }
    }

    pub(super) fn hand_over(&mut self, id: ConnId, to: WorkerId, session: Carried) {
        match &mut self.conns[id.0 as usize] {
            // It broke while its last reply was sent: the session goes with it.
            None => {}
            Some(conn) => {
                conn.leaving = Some((to, session));
                if conn.output.is_empty() {
                    self.leave(id);
                }
            }
        }
    }

    pub(super) fn leave(&mut self, id: ConnId) {
        let Some(mut conn) = self.conns[id.0 as usize].take() else { return };
        self.free.push(id);
        let (to, session) = conn.leaving.take().expect("it was asked to leave");
        if self.epoll.remove(conn.fd.as_fd()).is_err() {
            return self.tally.leave(self.worker);
        }
        let to = usize::from(to.0);
        self.tally.hand_over(self.worker, to);
        self.post.workers[to].post(Letter::Take(Handed { conn, session }));
    }

    pub(super) fn adopt(
        &mut self,
        fd: OwnedFd,
        tls: Option<Box<Tls>>,
        own_port: bool,
        now: u64,
        handle: &mut impl FnMut(u64, Event, &mut Actions),
    ) -> Option<ConnId> {
        let info = socket::info(fd.as_fd()).map(Arc::new);
        let output = Output::default();
        let conn =
            Conn { fd, tls, output, stalled: false, paused: false, closing: false, leaving: None };
        let conn = self.admit(conn)?;
        handle(now, Event::Opened { conn, own_port }, &mut self.actions);
        if let Some(info) = info {
            handle(now, Event::Introduced { conn, info }, &mut self.actions);
        }
        self.settle(now, handle);
        Some(conn)
    }

    pub(super) fn take(
        &mut self,
        handed: Handed,
        now: u64,
        handle: &mut impl FnMut(u64, Event, &mut Actions),
    ) {
        let Handed { conn, session } = handed;
        let Some(conn) = self.admit(conn) else { return };
        handle(now, Event::Adopted { conn, session }, &mut self.actions);
        self.settle(now, handle);
    }

    /// Names a connection that the tally counts here, and listens to it.
    pub(super) fn admit(&mut self, conn: Conn) -> Option<ConnId> {
        let id = self.free.pop().unwrap_or_else(|| {
            self.conns.push(None);
            ConnId(self.conns.len() as u32 - 1)
        });
        if self.epoll.add(conn.fd.as_fd(), RECEIVING, u64::from(id.0)).is_err() {
            self.tally.leave(self.worker);
            self.free.push(id);
            return None;
        }
        self.conns[id.0 as usize] = Some(conn);
        Some(id)
    }
}
