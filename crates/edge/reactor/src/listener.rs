//! The thread that accepts connections, gives them to workers, and hears signals.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::letters::{Letter, Request};
use crate::listening::{ListeningSockets, RETRY_MS};
use crate::process::{Signal, Signals};
use crate::sys::{Epoll, READABLE, Ready};
use crate::{ClientCertificate, Clock, Mailbox, Tally};

const SIGNALS: u64 = u64::MAX;
const MAILBOX: u64 = u64::MAX - 1;

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
