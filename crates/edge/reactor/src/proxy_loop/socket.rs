//! A socket of a proxy, and what its epoll is asked to tell of it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::entrance::Secured;
use crate::sys::{self, EDGE, Epoll, HUNG_UP, READABLE, WRITABLE};

/// A socket, and what of its output waits for it.
pub(super) struct Socket {
    pub fd: OwnedFd,
    /// It has taken less than there was: it is watched for room.
    pub blocked: bool,
    /// It is not read.
    pub paused: bool,
    /// A connection that is being made.
    pub dialing: bool,
    /// One that does not take its replies is not read. An upstream is: it may wait for its own replies to be taken.
    pub is_client: bool,
    pub secured: Option<Box<Secured>>,
}

impl Socket {
    pub fn of_client(fd: OwnedFd, secured: Option<Box<Secured>>) -> Socket {
        Socket { fd, blocked: false, paused: false, dialing: false, is_client: true, secured }
    }

    pub fn to_upstream(fd: OwnedFd) -> Socket {
        let secured = None;
        Socket { fd, blocked: false, paused: false, dialing: true, is_client: false, secured }
    }

    pub fn interest(&self) -> u32 {
        let is_read = !(self.paused || self.is_client && self.blocked);
        let reads = if is_read { READABLE } else { 0 };
        let writes = if self.blocked || self.dialing { WRITABLE } else { 0 };
        let edge = if self.secured.is_some() { 0 } else { EDGE | HUNG_UP };
        reads | writes | edge
    }
}

/// Sends what a socket takes of `unsent`, and watches it for room if that is not all.
#[inline]
pub(super) fn send(
    socket: &mut Socket,
    epoll: &Epoll,
    unsent: &[u8],
    token: u64,
) -> io::Result<usize> {
    if unsent.is_empty() {
        return Ok(0);
    }
    let sent = match sys::send(socket.fd.as_fd(), unsent) {
        Ok(sent) => sent,
        Err(error) if sys::is_transient(&error) => 0,
        Err(error) => return Err(error),
    };
    let blocked = sent < unsent.len();
    if blocked != socket.blocked {
        socket.blocked = blocked;
        epoll.modify(socket.fd.as_fd(), socket.interest(), token)?;
    }
    Ok(sent)
}
