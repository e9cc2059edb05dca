//! Connections to upstreams that were given up while a write was not answered. The upstream's machine has all of it: a reset would not
//! take that back. So this side is closed alone, and when the other side closes too, all that came before has been executed.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use mbal_model::Instant;
use mbal_proxy::{ConnId, Event};

use super::ProxyLoop;
use crate::sys::{self, Epoll, READABLE};

/// Tokens from here up are such connections.
pub(super) const LINGERING: u64 = 1 << 35;
/// One more is reset.
const LINGERING_MAX: usize = 64;
/// An upstream that is stopped for longer is not waited for.
const LINGERS_MAX: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(super) struct Lingering(Vec<Option<Lingers>>);

struct Lingers {
    fd: OwnedFd,
    conn: ConnId,
    until: Instant,
}

impl Lingering {
    /// False if it is to be reset: not all that was sent has arrived, or there are too many.
    fn keep(
        &mut self,
        epoll: &Epoll,
        fd: OwnedFd,
        conn: ConnId,
        until: Instant,
    ) -> io::Result<bool> {
        let place = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        if place == LINGERING_MAX || sys::unacknowledged(fd.as_fd())? > 0 {
            return Ok(false);
        }
        sys::shut_down_writes(fd.as_fd())?;
        epoll.modify(fd.as_fd(), READABLE, LINGERING + place as u64)?;
        if place == self.0.len() {
            self.0.push(None);
        }
        self.0[place] = Some(Lingers { fd, conn, until });
        Ok(true)
    }
}

impl ProxyLoop {
    pub(super) fn abandon(&mut self, conn: ConnId) {
        let Some(socket) = self.upstreams[conn.0 as usize].take() else { return };
        let now = self.clock.now();
        let kept = self.lingering.keep(&self.epoll, socket.fd, conn, now + LINGERS_MAX);
        if kept.is_ok_and(|kept| kept) {
            self.proxy.handle(now, Event::Lingers { conn });
        }
    }

    /// One of them has late replies, which nobody waits for, or ends.
    #[cold]
    pub(super) fn serve_lingering(&mut self, token: u64) {
        let place = (token - LINGERING) as usize;
        let Some(Lingers { fd, conn, .. }) = &self.lingering.0[place] else { return };
        let conn = *conn;
        let closed = match sys::recv(fd.as_fd(), &mut self.buffer) {
            Ok(0) => true,
            Ok(_) => return,
            Err(error) if sys::is_transient(&error) => return,
            Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        };
        self.lingering.0[place] = None;
        self.proxy.handle(self.clock.now(), Event::Ended { conn, closed });
    }

    #[inline]
    pub(super) fn end_lingering(&mut self, now: Instant) {
        for place in 0..self.lingering.0.len() {
            if let Some(over) = self.lingering.0[place].take_if(|one| one.until <= now) {
                self.proxy.handle(now, Event::Ended { conn: over.conn, closed: false });
            }
        }
    }
}
