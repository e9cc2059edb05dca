//! The thread that accepts connections, gives them to workers, and hears signals.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::process::{Signal, Signals};
use crate::sys::{self, Epoll, READABLE, Ready};
use crate::{ClientCertificate, Clock, Letter, Mailbox, Tally};

/// How long accepting pauses when descriptors or places have run out.
const RETRY_MS: i32 = 10;
pub(crate) const RETRY_NS: u64 = RETRY_MS as u64 * 1_000_000;

/// memcached's answer to one connection too many.
const TOO_MANY: &[u8] = b"ERROR Too many open connections\r\n";

const SIGNALS: u64 = u64::MAX;
const MAILBOX: u64 = u64::MAX - 1;

/// What event loops tell the main thread.
pub enum Request {
    /// Clients are let in from this moment of the listener's clock on, if they are not before ([`Listener::opened_by`]).
    Open { at_ns: u64 },
    /// A client sent `shutdown`, and may.
    Shutdown { graceful: bool },
}

/// Why the server ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// SIGINT, SIGTERM or the `shutdown` command.
    Normally,
    /// SIGUSR1, or `shutdown graceful`.
    Gracefully,
}

/// The main thread's loop: accepts, gives connections to workers, and waits for the end.
pub struct Listener {
    epoll: Epoll,
    sockets: ListeningSockets,
    signals: Signals,
    mailbox: Mailbox<Request>,
    workers: Vec<Mailbox<Letter>>,
    tally: Arc<Tally>,
    clock: Clock,
    /// Makes the sockets listen, which do not yet.
    opening: Option<Box<Opening>>,
    opens_at_ns: Option<u64>,
}

/// Lets clients connect.
pub type Opening = dyn FnOnce() -> io::Result<()> + Send;

impl Listener {
    pub fn new(
        listening: Vec<OwnedFd>,
        signals: Signals,
        mailbox: Mailbox<Request>,
        workers: Vec<Mailbox<Letter>>,
        tally: Arc<Tally>,
        clock: Clock,
    ) -> io::Result<Listener> {
        let epoll = Epoll::new()?;
        epoll.add(signals.as_fd(), READABLE, SIGNALS)?;
        epoll.add(mailbox.bell(), READABLE, MAILBOX)?;
        let sockets = ListeningSockets::new(listening, 0);
        sockets.watch(&epoll)?;
        Ok(Listener {
            epoll,
            sockets,
            signals,
            mailbox,
            workers,
            tally,
            clock,
            opening: None,
            opens_at_ns: None,
        })
    }

    /// The sockets, and those of the workers, do not listen before somebody [asks](Request::Open) for it; `opening` makes them.
    pub fn opened_by(mut self, opening: Box<Opening>) -> io::Result<Listener> {
        self.sockets.ignore(&self.epoll)?;
        self.opening = Some(opening);
        Ok(self)
    }

    fn open_at(&mut self, at_ns: u64) {
        if self.opening.is_some() {
            self.opens_at_ns = Some(self.opens_at_ns.map_or(at_ns, |before| before.min(at_ns)));
        }
    }

    fn open_due(&mut self, now_ns: u64) -> io::Result<()> {
        if self.opens_at_ns.is_none_or(|at| now_ns < at) {
            return Ok(());
        }
        self.opens_at_ns = None;
        let Some(opening) = self.opening.take() else { return Ok(()) };
        opening()?;
        self.sockets.watch(&self.epoll)?;
        self.workers.iter().for_each(|worker| worker.post(Letter::Open));
        Ok(())
    }

    fn timeout_ms(&self) -> i32 {
        if self.sockets.paused() {
            return RETRY_MS;
        }
        let left = self.opens_at_ns.map(|at| at.saturating_sub(self.clock.now_ns()));
        left.map_or(-1, |ns| i32::try_from(ns.div_ceil(1_000_000)).unwrap_or(i32::MAX))
    }

    /// Whoever comes in by the sockets that are marked, in the order of `listening`, speaks TLS.
    pub fn secured(mut self, secured: Vec<Option<ClientCertificate>>) -> Listener {
        self.sockets.secure(secured);
        self
    }

    /// Serves until a signal or a request ends the server; then every worker is told to stop.
    /// `observe` is called after every change of the [`Tally`] that came from here, `reload` at SIGHUP. `departs` is called at
    /// SIGTERM: if it says true the server goes on until something else ends it.
    pub fn run(
        mut self,
        observe: impl Fn(),
        reload: impl Fn(),
        departs: impl Fn() -> bool,
    ) -> io::Result<Ended> {
        let pulse = self.mailbox.watched();
        let mut ready = [Ready::NONE; 16];
        let mut arrived = Vec::new();
        let ended = loop {
            let count = self.epoll.wait(&mut ready, self.timeout_ms())?;
            pulse.beat();
            let now = self.clock.now_ns();
            let mut ended = None;
            for event in &ready[..count] {
                match event.token() {
                    SIGNALS => ended = ended.or(self.ended_by_signal(&reload, &departs)?),
                    MAILBOX => {
                        for request in self.mailbox.collect() {
                            match request {
                                Request::Open { at_ns } => self.open_at(at_ns),
                                Request::Shutdown { graceful: false } => {
                                    ended = Some(Ended::Normally)
                                }
                                Request::Shutdown { graceful: true } => {
                                    ended = Some(Ended::Gracefully)
                                }
                            }
                        }
                    }
                    door => {
                        self.sockets.open(door, now, &self.epoll, &self.tally, &mut arrived)?;
                    }
                }
            }
            let hung_up = if arrived.is_empty() { Vec::new() } else { self.tally.hung_up()? };
            for (fd, tls) in arrived.drain(..) {
                let worker = self.tally.fewest(&hung_up);
                self.tally.assign(worker);
                self.workers[worker].post(Letter::Adopt { fd, tls });
            }
            self.sockets.retry(now, &self.epoll, &self.tally)?;
            if ended.is_none() {
                self.open_due(now)?;
            }
            observe();
            if let Some(ended) = ended {
                break ended;
            }
        };
        for worker in &self.workers {
            worker.post(Letter::Stop);
        }
        Ok(ended)
    }

    fn ended_by_signal(
        &self,
        reload: impl Fn(),
        departs: impl Fn() -> bool,
    ) -> io::Result<Option<Ended>> {
        Ok(match self.signals.next()? {
            Some(Signal::Terminate) if departs() => None,
            Some(Signal::Interrupt | Signal::Terminate) => Some(Ended::Normally),
            Some(Signal::User1) => Some(Ended::Gracefully),
            Some(Signal::HangUp) => {
                reload();
                None
            }
            None => None,
        })
    }
}

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
