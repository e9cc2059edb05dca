//! The thread that carries what the two sides of moves say to each other, over links of its own: their parts, of 64 KiB, do not stand
//! before anybody's requests.
//!
//! ```text
//!   linker ──Linked──► Migrator ◄──Tell, Break── event loops (what workers that carry a move say)
//!                         │  what was heard
//!                         ▼
//!                   the caller's function, which knows moves
//! ```
//! One link leads from each server to each other one that it may send to. It never looks into a message.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use mbal_link::{Due, Frame, Kind, Waiting, next_frame, push_frame};
use mbal_model::{MoveId, ServerId};
use mbal_worker::{BrokenLink, MoveLink, MoveMessage};

use crate::letters::{LinkNote, Linked, MIGRATOR, MigratorNote};
use crate::link_tls::LinkTls;
use crate::output::Output;
use crate::sys::{self, Epoll, READABLE, Ready, WRITABLE};
use crate::{Clock, Mailbox};

const RECEIVE_BYTES: usize = 256 << 10;
const READY_PER_WAIT: usize = 64;
const MAILBOX: u64 = u64::MAX;
const TICK_NS: u64 = 1_000_000_000;
/// A link of another server of which nothing was heard for so long has broken: whoever dialed it asks each second.
const UNUSED_NS_MAX: u64 = 30_000_000_000;

/// What a migrator tells its caller.
pub enum MigratorEvent<'a> {
    /// A link that this server dialed is up.
    Up {
        server: ServerId,
        link: MoveLink,
    },
    /// A link has broken, whoever dialed it. Nothing of it is heard any more.
    Down {
        link: MoveLink,
    },
    /// The source of a move asks, or its destination answers.
    Asked(MoveMessage<'a>),
    Answered(MoveMessage<'a>),
}

/// What is said at once, if anything: a frame's kind and payload.
pub type Said = Option<(u8, Vec<u8>)>;

/// Gets the time in nanoseconds of the clock, and what happened; says what is said at once.
pub type MoveHandler = dyn FnMut(u64, MigratorEvent<'_>) -> Result<Said, BrokenLink> + Send;

pub struct Migrator {
    epoll: Epoll,
    inbox: Mailbox<MigratorNote>,
    linker: Mailbox<LinkNote>,
    clock: Clock,
    timeout_ns: u64,
    payload_bytes_max: usize,
    links: Vec<Option<Link>>,
    links_ever: u64,
    buffer: Box<[u8]>,
    handle: Box<MoveHandler>,
    /// Of this wake-up.
    now: u64,
}

struct Link {
    id: MoveLink,
    server: ServerId,
    fd: OwnedFd,
    tls: Option<LinkTls>,
    input: Vec<u8>,
    output: Output,
    /// Of one that was dialed here: whether the other side is there.
    waiting: Option<Waiting>,
    heard: u64,
}

impl Migrator {
    /// A timeout in nanoseconds says when the other side is taken to be gone. No payload is longer than `payload_bytes_max`.
    pub fn new(
        inbox: Mailbox<MigratorNote>,
        linker: Mailbox<LinkNote>,
        clock: Clock,
        timeout_ns: u64,
        payload_bytes_max: usize,
        handle: Box<MoveHandler>,
    ) -> io::Result<Migrator> {
        let epoll = Epoll::new()?;
        epoll.add(inbox.bell(), READABLE, MAILBOX)?;
        Ok(Migrator {
            epoll,
            inbox,
            linker,
            clock,
            timeout_ns,
            payload_bytes_max,
            links: Vec::new(),
            links_ever: 0,
            buffer: vec![0; RECEIVE_BYTES].into_boxed_slice(),
            handle,
            now: 0,
        })
    }

    /// For the life of the process.
    pub fn run(mut self) -> io::Result<()> {
        let pulse = self.inbox.watched();
        let mut ready = [Ready::NONE; READY_PER_WAIT];
        let mut next_tick = 0;
        loop {
            let now = self.clock.now_ns();
            let due =
                self.links.iter().flatten().filter_map(|link| link.waiting.as_ref()?.next(false));
            let wake = due.fold(next_tick, u64::min);
            let count = self.epoll.wait_ns(&mut ready, wake.saturating_sub(now))?;
            pulse.beat();
            let now = self.clock.now_ns();
            self.now = now;
            for event in ready[..count].iter().filter(|event| event.token() != MAILBOX) {
                self.serve(event.token() as usize);
            }
            for note in self.inbox.collect() {
                self.note(note);
            }
            for place in 0..self.links.len() {
                self.look_after(place, next_tick <= now);
            }
            if next_tick <= now {
                next_tick = now + TICK_NS;
            }
        }
    }

    fn tell(&mut self, event: MigratorEvent<'_>) -> Result<Said, BrokenLink> {
        (self.handle)(self.now, event)
    }

    fn note(&mut self, note: MigratorNote) {
        match note {
            MigratorNote::Linked(linked) => self.link(linked),
            MigratorNote::Tell { link, id, kind, payload } => {
                if let Some(place) = self.place_of(link) {
                    let frame = Frame { kind: Kind::Move(kind), ticket: id.0, payload: &payload };
                    self.send(place, &frame);
                }
            }
            MigratorNote::Break { link } => {
                if let Some(place) = self.place_of(link) {
                    self.end(place, "it said what cannot be");
                }
            }
        }
    }

    fn place_of(&self, link: MoveLink) -> Option<usize> {
        self.links.iter().position(|one| one.as_ref().is_some_and(|one| one.id == link))
    }

    fn link(&mut self, linked: Linked) {
        let Linked { fd, tls, established, dialed, input } = linked;
        let server = ServerId(established.server);
        // Who dials again has given the older link up.
        let older = |link: &Link| link.server == server && link.waiting.is_some() == dialed;
        let older = self.links.iter().position(|link| link.as_ref().is_some_and(older));
        if let Some(place) = older {
            self.end(place, "it was dialed again");
        }
        self.links_ever += 1;
        let id = MoveLink(self.links_ever);
        let waiting = dialed.then(|| Waiting::new(self.timeout_ns));
        let output = Output::default();
        let link = Link { id, server, fd, tls, input, output, waiting, heard: self.now };
        let free = self.links.iter().position(Option::is_none);
        let place = free.unwrap_or_else(|| {
            self.links.push(None);
            self.links.len() - 1
        });
        let watched = self.epoll.add(link.fd.as_fd(), READABLE, place as u64);
        self.links[place] = Some(link);
        if let Err(error) = watched {
            return self.end(place, &error.to_string());
        }
        if dialed {
            let up = self.tell(MigratorEvent::Up { server, link: id });
            debug_assert_eq!(up, Ok(None), "workers say what there is to say");
        }
        self.take(place);
    }

    fn serve(&mut self, place: usize) {
        let Some(link) = &mut self.links[place] else { return };
        let went = link.flush().and_then(|()| link.receive(&mut self.buffer));
        match went {
            Ok(true) => {
                link.heard = self.now;
                if let Some(waiting) = &mut link.waiting {
                    waiting.heard(self.now);
                }
                self.take(place);
            }
            Ok(false) => {}
            Err(why) => return self.end(place, &why),
        }
        self.listen_to(place);
    }

    /// Tells of the whole messages that are there.
    fn take(&mut self, place: usize) {
        let Some(link) = &mut self.links[place] else { return };
        let mut input = std::mem::take(&mut link.input);
        let mut used = 0;
        let mut why = None;
        while why.is_none() {
            let rest = &input[used..];
            let (frame, after) = match next_frame(rest, self.payload_bytes_max) {
                Ok(Some(found)) => found,
                Ok(None) => break,
                Err(_) => {
                    why = Some("it sent what is no frame");
                    break;
                }
            };
            used = input.len() - after.len();
            let Some(link) = &self.links[place] else { return };
            let (dialed, id) = (link.waiting.is_some(), MoveId(frame.ticket));
            match frame.kind {
                Kind::Ping if !dialed => {
                    let pong = Frame { kind: Kind::Pong, ..frame };
                    self.send(place, &pong);
                }
                Kind::Pong if dialed => {}
                Kind::Move(kind) => {
                    let (from, link, payload) = (link.server, link.id, frame.payload);
                    let message = MoveMessage { from, link, id, kind, payload };
                    let event = match dialed {
                        true => MigratorEvent::Answered(message),
                        false => MigratorEvent::Asked(message),
                    };
                    match self.tell(event) {
                        Ok(None) => {}
                        Ok(Some((kind, payload))) => {
                            let kind = Kind::Move(kind);
                            let answer = Frame { kind, ticket: id.0, payload: &payload };
                            self.send(place, &answer);
                        }
                        Err(BrokenLink) => why = Some("it said what cannot be"),
                    }
                }
                _ => why = Some("it sent what is not its to send"),
            }
        }
        input.drain(..used);
        if let Some(link) = &mut self.links[place] {
            link.input = input;
        }
        if let Some(why) = why {
            self.end(place, why);
        }
    }

    fn send(&mut self, place: usize, frame: &Frame<'_>) {
        let Some(link) = &mut self.links[place] else { return };
        match link.send(frame) {
            Ok(()) => self.listen_to(place),
            Err(why) => self.end(place, &why),
        }
    }

    fn listen_to(&mut self, place: usize) {
        let Some(link) = &self.links[place] else { return };
        let interest = if link.output.is_empty() { READABLE } else { READABLE | WRITABLE };
        if let Err(error) = self.epoll.modify(link.fd.as_fd(), interest, place as u64) {
            self.end(place, &error.to_string());
        }
    }

    fn end(&mut self, place: usize, why: &str) {
        let Some(link) = self.links[place].take() else { return };
        let (server, why) = (link.server, why.to_owned());
        if link.waiting.is_some() {
            self.linker.post(LinkNote::Lost { worker: MIGRATOR, server, why });
        }
        let down = self.tell(MigratorEvent::Down { link: link.id });
        debug_assert_eq!(down, Ok(None), "there is nobody to say it to");
    }

    /// Asks whether the other side is there, and ends what is silent.
    fn look_after(&mut self, place: usize, ticks: bool) {
        const PING: Frame<'_> = Frame { kind: Kind::Ping, ticket: 0, payload: b"" };
        let Some(link) = &mut self.links[place] else { return };
        match &mut link.waiting {
            None if link.heard + UNUSED_NS_MAX <= self.now => {
                self.end(place, "it asks nothing");
            }
            None => {}
            Some(waiting) => match waiting.due(self.now, false) {
                Some(Due::Silent) => self.end(place, "it does not answer"),
                Some(Due::Ping) => self.send(place, &PING),
                Some(Due::Expired(_)) => unreachable!("messages of moves have no deadlines"),
                None if ticks && waiting.is_idle(self.now) => self.send(place, &PING),
                None => {}
            },
        }
    }
}

impl Link {
    fn send(&mut self, frame: &Frame<'_>) -> Result<(), String> {
        let mut bytes = Vec::with_capacity(frame.payload.len() + mbal_link::HEADER_BYTES);
        push_frame(&mut bytes, frame);
        match &mut self.tls {
            None => self.output.push(&bytes),
            Some(tls) => {
                let mut cipher = Vec::new();
                tls.send(&bytes, &mut cipher);
                self.output.push(&cipher);
            }
        }
        self.flush()
    }

    fn flush(&mut self) -> Result<(), String> {
        while !self.output.is_empty() {
            match sys::send(self.fd.as_fd(), self.output.unsent()) {
                Ok(sent) => self.output.sent(sent),
                Err(error) if sys::is_transient(&error) => return Ok(()),
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(())
    }

    /// True if something came.
    fn receive(&mut self, buffer: &mut [u8]) -> Result<bool, String> {
        let count = match sys::recv(self.fd.as_fd(), buffer) {
            Ok(0) => return Err("it closed".into()),
            Ok(count) => count,
            Err(error) if sys::is_transient(&error) => return Ok(false),
            Err(error) => return Err(error.to_string()),
        };
        match &mut self.tls {
            None => self.input.extend_from_slice(&buffer[..count]),
            Some(tls) => {
                let mut cipher = Vec::new();
                let received = tls.receive(&buffer[..count], &mut self.input, &mut cipher);
                self.output.push(&cipher);
                received.map_err(|why| format!("TLS: {why}"))?;
                self.flush()?;
            }
        }
        Ok(true)
    }
}
