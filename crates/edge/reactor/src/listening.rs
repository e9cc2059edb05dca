//! Sockets at which clients come in, and what keeps them shut for a while.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::sys::{self, Epoll, READABLE};
use crate::tally::Tally;
use crate::tls::ClientCertificate;

/// How long accepting pauses when descriptors or places have run out.
pub(crate) const RETRY_MS: i32 = 10;
pub(crate) const RETRY_NS: u64 = RETRY_MS as u64 * 1_000_000;

/// memcached's answer to one connection too many.
const TOO_MANY: &[u8] = b"ERROR Too many open connections\r\n";

/// Listening sockets in an epoll, under tokens that count up from `first_token`.
pub(crate) struct ListeningSockets {
    sockets: Vec<OwnedFd>,
    /// By socket: whoever comes in there speaks TLS. Those behind the end do not.
    secured: Vec<Option<ClientCertificate>>,
    first_token: u64,
    paused_until_ns: Option<u64>,
}

enum Knock {
    Came(OwnedFd),
    Nobody,
    NoRoom,
}

impl ListeningSockets {
    pub(crate) fn new(sockets: Vec<OwnedFd>, first_token: u64) -> ListeningSockets {
        ListeningSockets { sockets, secured: Vec::new(), first_token, paused_until_ns: None }
    }

    pub(crate) fn secure(&mut self, secured: Vec<Option<ClientCertificate>>) {
        self.secured = secured;
    }

    pub(crate) fn watch(&self, epoll: &Epoll) -> io::Result<()> {
        for (token, socket) in (self.first_token..).zip(&self.sockets) {
            epoll.add(socket.as_fd(), READABLE, token)?;
        }
        Ok(())
    }

    /// A socket that does not listen would be ready all the time.
    pub(crate) fn ignore(&self, epoll: &Epoll) -> io::Result<()> {
        self.sockets.iter().try_for_each(|socket| epoll.remove(socket.as_fd()))
    }

    pub(crate) fn paused(&self) -> bool {
        self.paused_until_ns.is_some()
    }

    /// Accepts all that wait at one door.
    ///
    /// Without a free descriptor (EMFILE and its kin), and at the limit when clients are to wait
    /// there, all sockets stay shut for [`RETRY_MS`]: the kernel keeps the queue, nobody spins.
    pub(crate) fn open(
        &mut self,
        token: u64,
        now_ns: u64,
        epoll: &Epoll,
        tally: &Tally,
        arrived: &mut Vec<(OwnedFd, Option<ClientCertificate>)>,
    ) -> io::Result<()> {
        let place = (token - self.first_token) as usize;
        let socket = self.sockets[place].as_fd();
        let tls = self.secured.get(place).copied().flatten();
        loop {
            match knock(socket, tally) {
                Knock::Came(fd) => arrived.push((fd, tls)),
                Knock::Nobody => return Ok(()),
                Knock::NoRoom => break,
            }
        }
        if self.paused_until_ns.is_none() {
            tally.pause(now_ns);
        }
        self.paused_until_ns = Some(now_ns + RETRY_NS);
        self.set_interest(epoll, 0)
    }

    /// Looks again whether there is room, once the pause is over.
    pub(crate) fn retry(&mut self, now_ns: u64, epoll: &Epoll, tally: &Tally) -> io::Result<()> {
        match self.paused_until_ns {
            Some(until) if until <= now_ns => {
                self.paused_until_ns = None;
                tally.resume(now_ns);
                self.set_interest(epoll, READABLE)
            }
            _ => Ok(()),
        }
    }

    fn set_interest(&self, epoll: &Epoll, interest: u32) -> io::Result<()> {
        for (token, socket) in (self.first_token..).zip(&self.sockets) {
            epoll.modify(socket.as_fd(), interest, token)?;
        }
        Ok(())
    }
}

fn knock(socket: BorrowedFd, tally: &Tally) -> Knock {
    loop {
        let entered = tally.enter();
        if !entered && tally.waits_at_limit() {
            return Knock::NoRoom;
        }
        let error = match sys::accept(socket) {
            Ok(fd) if entered => return Knock::Came(fd),
            Ok(fd) => {
                tally.reject();
                // The connection is closed either way; a client that does not listen misses a line.
                drop(sys::send(fd.as_fd(), TOO_MANY));
                continue;
            }
            Err(error) => error,
        };
        if entered {
            tally.give_back();
        }
        match error.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
                return Knock::NoRoom;
            }
            Some(libc::EAGAIN) => return Knock::Nobody,
            Some(error) if is_passing(error) => {}
            _ => panic!("accept on a listening socket: {error}"),
        }
    }
}

/// The client went away while it waited, or its network did, as accept(2) lists it: ask for the next one.
fn is_passing(error: i32) -> bool {
    matches!(
        error,
        libc::ECONNABORTED
            | libc::EINTR
            | libc::EPROTO
            | libc::EPERM
            | libc::ENETDOWN
            | libc::ENOPROTOOPT
            | libc::EHOSTDOWN
            | libc::ENONET
            | libc::EHOSTUNREACH
            | libc::EOPNOTSUPP
            | libc::ENETUNREACH
            | libc::ETIMEDOUT
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_that_fails_a_client_ends_no_server() {
        for passing in [
            libc::ENETDOWN,
            libc::EPROTO,
            libc::ENOPROTOOPT,
            libc::EHOSTDOWN,
            libc::ENONET,
            libc::EHOSTUNREACH,
            libc::EOPNOTSUPP,
            libc::ENETUNREACH,
        ] {
            assert!(is_passing(passing), "{}", io::Error::from_raw_os_error(passing));
        }
        for fatal in [libc::EBADF, libc::EINVAL, libc::ENOTSOCK] {
            assert!(!is_passing(fatal), "{}", io::Error::from_raw_os_error(fatal));
        }
    }
}
