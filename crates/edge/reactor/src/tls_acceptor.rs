//! TLS handshakes, on a thread of their own that gives way to the workers: what is dear of one (a signature) keeps
//! nobody waiting who is connected already.
//!
//! ```text
//!   worker's event loop ──Guest──► TlsAcceptor ──Letter::Welcome──► the same event loop; a proxy's likewise
//!    (a place is taken)             epoll: recv, shake, send      (the session opens)
//! ```

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use mbal_worker::Event;

use crate::guest::{Guest, Step};
use crate::letters::{Letter, ProxyLetter};
use crate::sys::{self, Epoll, READABLE, Ready, WRITABLE};
use crate::{Clock, Mailbox, Tally};

/// A handshake that takes longer is given up.
const HANDSHAKE_NS_MAX: u64 = 30_000_000_000;

/// Bytes of a handshake that are read at a time.
const RECEIVE_BYTES: usize = 16 << 10;
const READY_PER_WAIT: usize = 64;
/// A token that is no guest's place.
const MAILBOX: u64 = 1 << 32;
const LOOK_MS: i32 = 1000;

/// What becomes of a guest.
enum Greeted {
    Welcome(Guest),
    /// By its descriptor.
    Broke(u32, String),
}

/// Tells the event loop that a guest is for.
type Deliver = Box<dyn Fn(usize, Greeted) + Send>;

pub struct TlsAcceptor {
    epoll: Epoll,
    inbox: Mailbox<Guest>,
    deliver: Deliver,
    tally: Arc<Tally>,
    clock: Clock,
    guests: Vec<Option<Guest>>,
    buffer: Box<[u8]>,
}

impl TlsAcceptor {
    pub fn new(
        workers: Arc<[Mailbox<Letter>]>,
        tally: Arc<Tally>,
        clock: Clock,
    ) -> io::Result<TlsAcceptor> {
        let deliver = move |worker: usize, greeted| {
            workers[worker].post(match greeted {
                Greeted::Welcome(guest) => Letter::Welcome(guest),
                Greeted::Broke(fd, why) => Letter::Tell(Event::TlsBroke { fd, why }),
            });
        };
        TlsAcceptor::delivering(Box::new(deliver), tally, clock)
    }

    /// For clients of a proxy. Why a handshake failed is told to nobody.
    pub fn of_proxy(
        proxy: Mailbox<ProxyLetter>,
        tally: Arc<Tally>,
        clock: Clock,
    ) -> io::Result<TlsAcceptor> {
        let deliver = move |_, greeted| {
            if let Greeted::Welcome(guest) = greeted {
                proxy.post(ProxyLetter::Welcome(guest));
            }
        };
        TlsAcceptor::delivering(Box::new(deliver), tally, clock)
    }

    fn delivering(deliver: Deliver, tally: Arc<Tally>, clock: Clock) -> io::Result<TlsAcceptor> {
        let (epoll, inbox) = (Epoll::new()?, Mailbox::new()?);
        epoll.add(inbox.bell(), READABLE, MAILBOX)?;
        let buffer = vec![0; RECEIVE_BYTES].into_boxed_slice();
        Ok(TlsAcceptor { epoll, inbox, deliver, tally, clock, guests: Vec::new(), buffer })
    }

    /// Where event loops leave their guests.
    pub fn inbox(&self) -> Mailbox<Guest> {
        self.inbox.clone()
    }

    /// Greets for the life of the process.
    pub fn run(mut self) -> io::Result<()> {
        let pulse = self.inbox.watched();
        let mut ready = [Ready::NONE; READY_PER_WAIT];
        let mut next_look = 0;
        loop {
            let count = self.epoll.wait(&mut ready, LOOK_MS)?;
            pulse.beat();
            let now = self.clock.now_ns();
            for event in ready[..count].iter().filter(|event| event.token() != MAILBOX) {
                self.serve(event.token() as usize);
            }
            // After those, so that no place changes its guest while events name the last one.
            if ready[..count].iter().any(|event| event.token() == MAILBOX) {
                for guest in self.inbox.collect() {
                    self.admit(guest, now);
                }
            }
            if next_look <= now {
                next_look = now + LOOK_MS as u64 * 1_000_000;
                for place in 0..self.guests.len() {
                    if self.guests[place].as_ref().is_some_and(|guest| guest.deadline <= now) {
                        self.turn_away(place);
                    }
                }
            }
        }
    }

    fn admit(&mut self, mut guest: Guest, now: u64) {
        guest.deadline = now + HANDSHAKE_NS_MAX;
        let free = self.guests.iter().position(Option::is_none);
        let place = free.unwrap_or_else(|| {
            self.guests.push(None);
            self.guests.len() - 1
        });
        let watched = self.epoll.add(guest.fd.as_fd(), READABLE, place as u64);
        self.guests[place] = Some(guest);
        if watched.is_err() {
            self.turn_away(place);
        }
    }

    fn serve(&mut self, place: usize) {
        let Some(guest) = &mut self.guests[place] else { return };
        match guest.go_on(&mut self.buffer) {
            Step::Waits => {
                let interest = if guest.output.is_empty() { READABLE } else { WRITABLE };
                if self.epoll.modify(guest.fd.as_fd(), interest, place as u64).is_err() {
                    self.turn_away(place);
                }
            }
            Step::Done => {
                let guest = self.guests[place].take().expect("it has just gone on");
                if self.epoll.remove(guest.fd.as_fd()).is_err() {
                    return self.tally.leave(guest.worker);
                }
                // The last word of a handshake is the client's, and is not answered. Without TCP_NODELAY its kernel keeps the first request
                // back until that word has been acknowledged, which ours would do after 40 ms. A unix socket has none of this.
                drop(sys::switch_on(guest.fd.as_fd(), libc::IPPROTO_TCP, libc::TCP_QUICKACK));
                (self.deliver)(guest.worker, Greeted::Welcome(guest));
            }
            Step::Gone => self.turn_away(place),
            Step::Broke(why) => {
                let fd = guest.fd.as_raw_fd() as u32;
                (self.deliver)(guest.worker, Greeted::Broke(fd, why));
                self.turn_away(place);
            }
        }
    }

    fn turn_away(&mut self, place: usize) {
        let Some(mut guest) = self.guests[place].take() else { return };
        guest.tls.gone();
        self.tally.leave(guest.worker);
    }
}
