//! Connections to upstreams that were given up while a write was not answered. The upstream's machine has all of it: a reset would not
//! take that back. So this side is closed alone, and when the other side closes too, all that came before has been executed.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use mbal_model::Instant;
use mbal_proxy::ConnId;

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
    pub fn keep(
        &mut self,
        epoll: &Epoll,
        fd: OwnedFd,
        conn: ConnId,
        now: Instant,
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
        self.0[place] = Some(Lingers { fd, conn, until: now + LINGERS_MAX });
        Ok(true)
    }

    /// One of them has late replies, which nobody waits for, or ends: whether all that was sent has been executed.
    pub fn serve(&mut self, token: u64, buffer: &mut [u8]) -> Option<(ConnId, bool)> {
        let place = (token - LINGERING) as usize;
        let Lingers { fd, conn, .. } = self.0[place].as_ref()?;
        let closed = match sys::recv(fd.as_fd(), buffer) {
            Ok(0) => true,
            Ok(_) => return None,
            Err(error) if sys::is_transient(&error) => return None,
            Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        };
        let ended = (*conn, closed);
        self.0[place] = None;
        Some(ended)
    }

    /// One that is not waited for any longer.
    #[inline]
    pub fn next_over(&mut self, now: Instant) -> Option<ConnId> {
        let over = self.0.iter_mut().find_map(|one| one.take_if(|one| one.until <= now));
        over.map(|over| over.conn)
    }
}
