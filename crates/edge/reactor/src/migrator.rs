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

use mbal_link::{Frame, Kind, MoveLinkDue, MoveLinks, Taken, next_frame, push_frame};
use mbal_model::{MoveId, MoveLink, ServerId};
use mbal_worker::{BrokenLink, MoveMessage};

use crate::letters::{LinkNote, Linked, MIGRATOR, MigratorNote};
use crate::link_tls::LinkTls;
use crate::output::Output;
use crate::sys::{self, Epoll, READABLE, Ready, WRITABLE};
use crate::{Clock, Mailbox};

const RECEIVE_BYTES: usize = 256 << 10;
const READY_PER_WAIT: usize = 64;
const MAILBOX: u64 = u64::MAX;
const PING: Frame<'_> = Frame { kind: Kind::Ping, ticket: 0, payload: b"" };

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
    payload_bytes_max: usize,
    links: MoveLinks,
    sockets: Vec<Option<Socket>>,
    buffer: Box<[u8]>,
    handle: Box<MoveHandler>,
    /// Of this wake-up.
    now: u64,
}

struct Socket {
    link: MoveLink,
    fd: OwnedFd,
    tls: Option<LinkTls>,
    input: Vec<u8>,
    output: Output,
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
            payload_bytes_max,
            links: MoveLinks::new(timeout_ns),
            sockets: Vec::new(),
            buffer: vec![0; RECEIVE_BYTES].into_boxed_slice(),
            handle,
            now: 0,
        })
    }

    /// For the life of the process.
    pub fn run(mut self) -> io::Result<()> {
        let pulse = self.inbox.watched();
        let mut ready = [Ready::NONE; READY_PER_WAIT];
        loop {
            let left = self.links.next_wake().saturating_sub(self.clock.now_ns());
            let count = self.epoll.wait_ns(&mut ready, left)?;
            pulse.beat();
            self.now = self.clock.now_ns();
            for event in ready[..count].iter().filter(|event| event.token() != MAILBOX) {
                self.serve(event.token() as usize);
            }
            for note in self.inbox.collect() {
                self.note(note);
            }
            while let Some(due) = self.links.due(self.now) {
                match due {
                    MoveLinkDue::Ping(link) => self.send_by(link, &PING),
                    MoveLinkDue::Broken(link, why) => self.end_link(link, why),
                }
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
                let frame = Frame { kind: Kind::Move(kind), ticket: id.0, payload: &payload };
                self.send_by(link, &frame);
            }
            MigratorNote::Break { link } => self.end_link(link, "it said what cannot be"),
        }
    }

    fn place_of(&self, link: MoveLink) -> Option<usize> {
        self.sockets.iter().position(|one| one.as_ref().is_some_and(|one| one.link == link))
    }

    fn send_by(&mut self, link: MoveLink, frame: &Frame<'_>) {
        if let Some(place) = self.place_of(link) {
            self.send(place, frame);
        }
    }

    fn end_link(&mut self, link: MoveLink, why: &str) {
        if let Some(place) = self.place_of(link) {
            self.end(place, why);
        }
    }

    fn link(&mut self, linked: Linked) {
        let Linked { fd, tls, established, dialed, input } = linked;
        let server = ServerId(established.server);
        if let Some(older) = self.links.older(server, dialed) {
            self.end_link(older, "it was dialed again");
        }
        let link = self.links.up(self.now, server, dialed);
        let socket = Socket { link, fd, tls, input, output: Output::default() };
        let free = self.sockets.iter().position(Option::is_none);
        let place = free.unwrap_or_else(|| {
            self.sockets.push(None);
            self.sockets.len() - 1
        });
        let watched = self.epoll.add(socket.fd.as_fd(), READABLE, place as u64);
        self.sockets[place] = Some(socket);
        if let Err(error) = watched {
            return self.end(place, &error.to_string());
        }
        if dialed {
            let up = self.tell(MigratorEvent::Up { server, link });
            debug_assert_eq!(up, Ok(None), "workers say what there is to say");
        }
        self.take(place);
    }

    fn serve(&mut self, place: usize) {
        let Some(socket) = &mut self.sockets[place] else { return };
        let went = socket.flush().and_then(|()| socket.receive(&mut self.buffer));
        match went {
            Ok(true) => {
                self.links.heard(self.now, socket.link);
                self.take(place);
            }
            Ok(false) => {}
            Err(why) => return self.end(place, &why),
        }
        self.listen_to(place);
    }

    /// Tells of the whole messages that are there.
    fn take(&mut self, place: usize) {
        let Some(socket) = &mut self.sockets[place] else { return };
        let link = socket.link;
        let mut input = std::mem::take(&mut socket.input);
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
            why = self.take_frame(place, link, &frame).err();
            if self.sockets[place].is_none() {
                return;
            }
        }
        input.drain(..used);
        if let Some(socket) = &mut self.sockets[place] {
            socket.input = input;
        }
        if let Some(why) = why {
            self.end(place, why);
        }
    }

    fn take_frame(
        &mut self,
        place: usize,
        link: MoveLink,
        frame: &Frame<'_>,
    ) -> Result<(), &'static str> {
        let id = MoveId(frame.ticket);
        let taken = self.links.take(link, frame.kind)?;
        let (Taken::Asked(from) | Taken::Answered(from), Kind::Move(kind)) = (taken, frame.kind)
        else {
            if taken == Taken::Ping {
                self.send(place, &Frame { kind: Kind::Pong, ..*frame });
            }
            return Ok(());
        };
        let message = MoveMessage { from, link, id, kind, payload: frame.payload };
        let event = match taken {
            Taken::Answered(_) => MigratorEvent::Answered(message),
            _ => MigratorEvent::Asked(message),
        };
        let said = self.tell(event).map_err(|BrokenLink| "it said what cannot be")?;
        if let Some((kind, payload)) = said {
            self.send(place, &Frame { kind: Kind::Move(kind), ticket: id.0, payload: &payload });
        }
        Ok(())
    }

    fn send(&mut self, place: usize, frame: &Frame<'_>) {
        let Some(socket) = &mut self.sockets[place] else { return };
        match socket.send(frame) {
            Ok(()) => self.listen_to(place),
            Err(why) => self.end(place, &why),
        }
    }

    fn listen_to(&mut self, place: usize) {
        let Some(socket) = &self.sockets[place] else { return };
        let interest = if socket.output.is_empty() { READABLE } else { READABLE | WRITABLE };
        if let Err(error) = self.epoll.modify(socket.fd.as_fd(), interest, place as u64) {
            self.end(place, &error.to_string());
        }
    }

    fn end(&mut self, place: usize, why: &str) {
        let Some(socket) = self.sockets[place].take() else { return };
        let down = self.links.down(socket.link).expect("it has been up");
        if down.is_dialed {
            let (server, why) = (down.server, why.to_owned());
            self.linker.post(LinkNote::Lost { worker: MIGRATOR, server, why });
        }
        let down = self.tell(MigratorEvent::Down { link: socket.link });
        debug_assert_eq!(down, Ok(None), "there is nobody to say it to");
    }
}

impl Socket {
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
